"""The changes that a phase of a recipe makes; users learn of them, so that a jump of the loss does not surprise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from openvse.specs import RunRecipe, apply_override

OBJECTIVE = "objective."
"""The prefix of those changes that give the loss another scale."""


def phase_changes(recipe: RunRecipe, index: int) -> dict[str, tuple[Any, Any]]:
    """Return the changes of a phase from the one before: the old and the new value of each changed key.

    Args:
        recipe: the recipe with the phases.
        index: the position of the phase; 1 is the second phase.
    """
    before, after = (_settings(recipe, each) for each in (index - 1, index))
    return {
        key: (before.get(key), after.get(key))
        for key in sorted({*before, *after})
        if before.get(key) != after.get(key)
    }


def announcement(recipe: RunRecipe, index: int) -> str:
    """Return the line that announces a phase: its first epoch, and its changes."""
    phases = recipe.training.phases
    first = 1 + sum(phase.epochs for phase in phases[:index])
    changes = phase_changes(recipe, index)
    listed = [f"{key.removeprefix(OBJECTIVE)} is {new} (was {old})" for key, (old, new) in changes.items()]
    if phases[index].warmup_epochs:
        listed.append(f"the learning rate warms up over {phases[index].warmup_epochs:g} epoch(s)")
    line = f"phase {index + 1} of {len(phases)} begins with epoch {first}: {', '.join(listed) or 'no change'}"
    if any(key.startswith(OBJECTIVE) for key in changes):
        line += (
            "; the loss has another scale from here on: compare validation, not the loss, with earlier epochs"
        )
    return line


def _settings(recipe: RunRecipe, index: int) -> dict[str, Any]:
    """Return the settings of a phase by their dotted paths."""
    phase = recipe.training.phases[index]
    tree: dict[str, Any] = {"objective": recipe.to_dict().get("objective", {})}
    for path, value in phase.objective.items():
        tree = apply_override(tree, f"{OBJECTIVE}{path}", value)
    rate = phase.learning_rate or recipe.optimizer.learning_rate
    return {
        **dict(_leaves(tree["objective"], OBJECTIVE.rstrip("."))),
        "learning_rate": rate,
        "frozen": ", ".join(phase.frozen) or "nothing",
    }


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the values of a tree by their paths; the name of a part has the path of the part itself."""
    if not isinstance(value, Mapping):
        yield path, value
        return
    for key, below in value.items():
        yield from _leaves(below, path if key == "name" else f"{path}.{key}")
