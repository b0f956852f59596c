"""Models: their parts, their folder on disk, and the hub."""
