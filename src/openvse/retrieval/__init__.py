"""The task of retrieval: two towers that learn to rank."""
