"""Evaluation turns embeddings and relevance into ranks, and ranks into a report."""

from __future__ import annotations

from openvse.evaluation.bank import HubsOut, drawn_for_bank, make_bank
from openvse.evaluation.calibrate import fit_calibration
from openvse.evaluation.comparison import Difference, paired_differences, sign_test
from openvse.evaluation.embed import EmbeddedCorpus, embed_corpus, embed_ensemble
from openvse.evaluation.ensemble import Member, mean_scores
from openvse.evaluation.evaluator import evaluate_sets
from openvse.evaluation.metrics import (
    Metrics,
    bootstrap_replicates,
    chance_metrics,
    percentile_intervals,
    recall_at_k,
    retrieval_metrics,
)
from openvse.evaluation.ranking import Ranks, rank_by_counting
from openvse.evaluation.reliability import measure_reliability
from openvse.evaluation.report import Report
from openvse.evaluation.rerank import Reranker

__all__ = [
    "Difference",
    "EmbeddedCorpus",
    "HubsOut",
    "Member",
    "Metrics",
    "Ranks",
    "Report",
    "Reranker",
    "bootstrap_replicates",
    "chance_metrics",
    "drawn_for_bank",
    "embed_corpus",
    "embed_ensemble",
    "evaluate_sets",
    "fit_calibration",
    "make_bank",
    "mean_scores",
    "measure_reliability",
    "paired_differences",
    "percentile_intervals",
    "rank_by_counting",
    "recall_at_k",
    "retrieval_metrics",
    "sign_test",
]
