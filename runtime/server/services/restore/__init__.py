"""Accepting a database that was put back: what nodes hold of the lost time becomes rows again, or is stopped."""
