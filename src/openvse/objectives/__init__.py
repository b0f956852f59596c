"""Objectives: scores and embeddings of a batch -> named loss terms."""

from __future__ import annotations

from openvse.objectives.base import Criterion, Miner, Objective, Term
from openvse.objectives.contrast import Contrast
from openvse.objectives.criteria import Hinge, InfoNCE
from openvse.objectives.miners import All, Hardest
from openvse.registry import Registry

MINERS: Registry[Miner] = Registry("miner", {"all": All, "hardest": Hardest})
CRITERIA: Registry[Criterion] = Registry("criterion", {"hinge": Hinge, "info_nce": InfoNCE})
TERMS: Registry[Term] = Registry("objective term", {"contrast": Contrast})

__all__ = [
    "CRITERIA",
    "MINERS",
    "TERMS",
    "All",
    "Contrast",
    "Criterion",
    "Hardest",
    "Hinge",
    "InfoNCE",
    "Miner",
    "Objective",
    "Term",
]
