"""Conversion of the published checkpoints of other projects to model folders. No code in them is run."""
