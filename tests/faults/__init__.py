"""Faults made from outside, and the proof that no work is lost: see README.md."""
