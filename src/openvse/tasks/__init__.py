"""The tasks by name, and what every task can do: load a model, train, evaluate."""

from __future__ import annotations

from openvse.registry import Registry
from openvse.retrieval.kind import Retrieval
from openvse.training.kind import TaskKind
from openvse.vqa.kind import VQA

TASKS: Registry[TaskKind] = Registry("task", {"retrieval": Retrieval, "vqa": VQA})

__all__ = ["TASKS", "TaskKind"]
