"""The tasks by name, and what every task can do: load a model, train, evaluate."""

from __future__ import annotations

from openvse.registry import Registry
from openvse.retrieval.kind import Retrieval
from openvse.training.kind import TaskKind
from openvse.vqa.kind import VQA

TASKS: Registry[TaskKind] = Registry("task", {"retrieval": Retrieval, "vqa": VQA})


def kind_of(task: str) -> TaskKind:
    """Return what openvse knows of a task; raise RecipeError for a name that no task has."""
    return TASKS.get(task)()


__all__ = ["TASKS", "TaskKind", "kind_of"]
