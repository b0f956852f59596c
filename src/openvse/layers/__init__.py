"""Layers that several parts share."""
