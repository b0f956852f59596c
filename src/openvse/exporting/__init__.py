"""Exports: a model as files that other runtimes and libraries read."""
