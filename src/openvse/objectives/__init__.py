"""Objectives turn the scores and embeddings of a batch into named loss terms.

A ranking loss is a ``contrast`` of a miner and a criterion: VSE++ uses ``hardest`` with ``hinge``, AdOpt uses
``adaptive_top_k`` with ``info_nce``. ``openvse list terms`` lists all losses of the papers by name.
"""

from __future__ import annotations

from openvse.objectives import ranking, regularizers
from openvse.objectives.base import Criterion, Miner, Term
from openvse.registry import Registry, parts_of

_TERMS = "contrast correspondence diversity mmd multi_view_average multi_view_bound pcmepp set_uniformity"
_PARTS = (
    parts_of("adaptive_top_k all hardest random", ranking),
    parts_of("hinge info_nce", ranking),
    parts_of(_TERMS, ranking, regularizers),
)
globals().update({part.__name__: part for parts in _PARTS for part in parts.values()})  # names of the room, too
MINERS: Registry[Miner] = Registry("miner", _PARTS[0])
CRITERIA: Registry[Criterion] = Registry("criterion", _PARTS[1])
TERMS: Registry[Term] = Registry("objective term", _PARTS[2])

__all__ = ["CRITERIA", "MINERS", "TERMS", "Criterion", "Miner", "Term"]
