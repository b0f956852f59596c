"""From scores to probabilities, and the normalisation of scores by a query bank."""
