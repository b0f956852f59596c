"""The tasks by name, and the functions of every task: load a model, train, evaluate."""

from __future__ import annotations

from openvse.registry import Registry
from openvse.retrieval.kind import Retrieval
from openvse.training.kind import TaskKind

TASKS: Registry[TaskKind] = Registry("task", {"retrieval": Retrieval})


def task_kind(task: str) -> TaskKind:
    """Return the definition of a task. Raise RecipeError for an unknown name."""
    return TASKS.get(task)()
