"""Batches of a corpus: images from files or from a feature store, tokens, and the positive pairs."""
