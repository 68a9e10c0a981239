"""The operators: a folder a family, and what the families share."""
