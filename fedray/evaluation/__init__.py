"""What is asked of the models: scores of new and known clients, of stacks, and what the report shows."""
