"""Published data sets, and questions about images."""
