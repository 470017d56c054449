"""Reads a user's data in many forms, such as tables, folders of pictures or data sets of torch."""
