"""Serving: an index and its models as a web interface for programs, and as a page for people."""
