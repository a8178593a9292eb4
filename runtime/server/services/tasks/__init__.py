"""A task's life on the server: checked, created, read, changed by its node and by operators, ended."""
