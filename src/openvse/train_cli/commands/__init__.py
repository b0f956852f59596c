"""The commands of the training half. Each file registers its own, and imports heavy modules only when it runs."""
