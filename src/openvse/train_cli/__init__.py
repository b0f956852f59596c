"""The commands of the training half."""
