"""What a user writes: strict YAML that becomes frozen dataclasses."""
