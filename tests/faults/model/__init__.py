"""Server and agent decisions together, over a model of the world: see tests/faults/README.md."""
