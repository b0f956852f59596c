"""The task of retrieval: two towers that learn to rank."""

from __future__ import annotations
