"""Objectives turn the scores and embeddings of a batch into named loss terms.

A ranking loss is a ``contrast`` of a miner and a criterion: VSE++ uses ``hardest`` with ``hinge``, AdOpt uses
``adaptive_top_k`` with ``info_nce``. ``openvse list terms`` lists all losses of the papers by name.
"""

from __future__ import annotations

from openvse.objectives.base import Criterion, Miner, Term
from openvse.objectives.pcmepp import PCMEPP
from openvse.objectives.ranking import (
    AdaptiveTopK,
    All,
    Contrast,
    Hardest,
    Hinge,
    InfoNCE,
    MultiViewAverage,
    MultiViewBound,
    Random,
)
from openvse.objectives.regularizers import MMD, Correspondence, Diversity, SetUniformity
from openvse.registry import Registry

MINERS: Registry[Miner] = Registry(
    "miner", {"adaptive_top_k": AdaptiveTopK, "all": All, "hardest": Hardest, "random": Random}
)
CRITERIA: Registry[Criterion] = Registry("criterion", {"hinge": Hinge, "info_nce": InfoNCE})
TERMS: Registry[Term] = Registry(
    "objective term",
    {
        "contrast": Contrast,
        "correspondence": Correspondence,
        "diversity": Diversity,
        "mmd": MMD,
        "multi_view_average": MultiViewAverage,
        "multi_view_bound": MultiViewBound,
        "pcmepp": PCMEPP,
        "set_uniformity": SetUniformity,
    },
)

__all__ = ["CRITERIA", "MINERS", "TERMS", "Criterion", "Miner", "Term"]
