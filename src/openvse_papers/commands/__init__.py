"""Commands that are registered by the entry points of the wheel."""
