"""Teaching: captions that are typed beside photographs, saved at once, and learned at once."""
