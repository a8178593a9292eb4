"""Mutated texts for every parser of vendors' tools: none may crash it, or make it tell of what is not in the text."""
