"""Training: the loop, the learning-rate schedule, collapse, checkpoints and records."""
