"""Documents and web pages for people to read."""
