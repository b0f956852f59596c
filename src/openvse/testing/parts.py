"""The contracts of miners, criteria, objective terms and similarities."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import nn

from openvse.assembly.parts import parameters
from openvse.registry import Maker, Registry
from openvse.testing.contract import NO_OPTIONS, hold, make_part, part_name
from openvse.testing.objectives import CRITERION_PROMISES, MINER_PROMISES, TERM_PROMISES
from openvse.testing.objectives import WIDTH as TERM_WIDTH
from openvse.testing.similarities import SIMILARITY_PROMISES
from openvse.testing.similarities import WIDTH as SIMILARITY_WIDTH

ModuleT = TypeVar("ModuleT", bound=nn.Module)

_PROMISES: Mapping[str, Sequence[Callable[[Any], None]]] = {
    "miner": MINER_PROMISES,
    "criterion": CRITERION_PROMISES,
    "objective term": TERM_PROMISES,
    "similarity": SIMILARITY_PROMISES,
}
# A large margin, so that the negatives of random embeddings violate it.
_USUAL: Mapping[str, Any] = {"miner": "hardest", "criterion": {"name": "hinge", "margin": 1.5}}


def check_part(
    registry: Registry[ModuleT], part: str | Maker[ModuleT], *, options: Mapping[str, Any] = NO_OPTIONS
) -> None:
    """Check that a miner, a criterion, an objective term or a similarity keeps the promises of its kind.

    ``docs/parts.md`` lists them: what objectives, training, evaluation and search rely on.

    Args:
        registry: the kind of the part: ``MINERS``, ``CRITERIA``, ``TERMS`` or ``SIMILARITIES``.
        part: the class of the part, or its name in the registry.
        options: the options, as in a recipe. A miner or criterion that a term needs but that is not given is
            ``hardest`` or ``hinge``.

    Raises:
        BrokenContractError: a promise is broken; the message names each.
        RecipeError: the part refuses the options.

    Examples:
        >>> from openvse.objectives import MINERS
        >>> check_part(MINERS, "adaptive_top_k", options={"rule": "paper"})
    """
    hold(made_part(registry, part, options), _PROMISES[registry.kind], part_name(part))


def made_part(
    registry: Registry[ModuleT], part: str | Maker[ModuleT], options: Mapping[str, Any] = NO_OPTIONS
) -> ModuleT:
    """Return the part to check, in evaluation mode and double precision."""
    width = SIMILARITY_WIDTH if registry.kind == "similarity" else TERM_WIDTH
    context = dict.fromkeys(("embed_dim", "image_dim", "text_dim"), width)
    accepted = parameters(registry.get(part) if isinstance(part, str) else part)
    usual = {name: value for name, value in _USUAL.items() if name in accepted}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make_part(registry, part, {**usual, **options}, context).double().eval()
