"""The task of retrieval: two towers that learn to rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from openvse.lazy import lazy_names

if TYPE_CHECKING:
    from openvse.retrieval.hit_reranker import HitReranker

__all__ = ["HitReranker"]

# The registry of tasks imports this room, and needs no PyTorch.
__getattr__, __dir__ = lazy_names(__name__)
