"""A check on a machine with a real card: what we say of it against what its own tool says, kept as evidence."""
