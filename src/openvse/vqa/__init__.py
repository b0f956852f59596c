"""The task of answering questions about images: its model, its data in batches, its training, its measures."""

from __future__ import annotations
