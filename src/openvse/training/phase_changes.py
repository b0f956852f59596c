"""What a phase of a recipe changes, so that a jump of the loss is not taken for a fault."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from openvse.specs import RunRecipe, apply_override

OBJECTIVE = "objective."
"""How the name of a change begins that gives the loss another scale."""


def phase_changes(recipe: RunRecipe, index: int) -> dict[str, tuple[Any, Any]]:
    """Return what a phase sets differently from the one before: for each key the old and the new value.

    Args:
        recipe: whose phases they are.
        index: position of the phase, from 1.
    """
    before, after = (_settings(recipe, each) for each in (index - 1, index))
    return {
        key: (before.get(key), after.get(key))
        for key in sorted({*before, *after})
        if before.get(key) != after.get(key)
    }


def announcement(recipe: RunRecipe, index: int) -> str:
    """Return the line that says what a phase changes, with its first epoch."""
    phases = recipe.training.phases
    first = 1 + sum(phase.epochs for phase in phases[:index])
    changes = phase_changes(recipe, index)
    listed = [f"{key.removeprefix(OBJECTIVE)} is {new} (was {old})" for key, (old, new) in changes.items()]
    if phases[index].warmup_epochs:
        listed.append(f"the learning rate warms up over {phases[index].warmup_epochs:g} epoch(s)")
    line = f"phase {index + 1} of {len(phases)} begins with epoch {first}: {', '.join(listed) or 'no change'}"
    if any(key.startswith(OBJECTIVE) for key in changes):
        line += "; the loss has another scale from here on: compare the validation, not the loss, with what was before"
    return line


def _settings(recipe: RunRecipe, index: int) -> dict[str, Any]:
    """Return what holds in a phase, by dotted path."""
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
    """Yield the values of a tree; a part's name stands at the part's own path, also where it has options."""
    if not isinstance(value, Mapping):
        yield path, value
        return
    for key, below in value.items():
        yield from _leaves(below, path if key == "name" else f"{path}.{key}")
