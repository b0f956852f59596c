"""The command line: its frame, and the commands that index, search and serve."""
