"""Runs on a page or in a table: their training, progress and results."""
