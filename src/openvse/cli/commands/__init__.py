"""The commands of the search half. Each file registers its own, and imports heavy modules only when it runs."""
