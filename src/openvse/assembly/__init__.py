"""Builds parts from their names and options, which turns a recipe into modules."""
