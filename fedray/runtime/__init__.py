"""Where jobs run: this process (`inline`) or the actors of a Ray cluster (`ray`)."""
