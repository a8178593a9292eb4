"""Inference engines: which are here by their images, which one serves a model, and what running ones serve."""
