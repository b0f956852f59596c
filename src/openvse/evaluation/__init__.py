"""Evaluation turns embeddings and relevance into ranks, and ranks into a report."""

from __future__ import annotations

from openvse.evaluation.bank import Normalized, QueryBank
from openvse.evaluation.calibrate import ScoreCounts, fit_calibration
from openvse.evaluation.calibrate import too_small as too_small_to_calibrate
from openvse.evaluation.comparison import Comparison, MeasuredRun, Row, RowContrast, contrast_rows
from openvse.evaluation.embed import EmbeddedCorpus, EmbeddedEnsemble, embed_corpus, embed_ensemble
from openvse.evaluation.ensemble import Member, Scorer, mean_scores
from openvse.evaluation.evaluator import choose_betas, evaluate
from openvse.evaluation.findings import AnsweredQueries, AnsweredQuery, Shown
from openvse.evaluation.metrics import (
    Metrics,
    bootstrap_replicates,
    chance_metrics,
    mean_metrics,
    mean_rank,
    median_rank,
    normalized_median_rank,
    percentile_intervals,
    recall_at_k,
    retrieval_metrics,
)
from openvse.evaluation.paired import Difference, Signs, paired_differences, sign_test
from openvse.evaluation.places import Places
from openvse.evaluation.processes import ALONE, Processes
from openvse.evaluation.ranking import QueryRanks, Ranks, rank_by_counting
from openvse.evaluation.reliability import Reliability, measure_reliability, shown_images
from openvse.evaluation.report import Protocol, Remarks, Report, Reranked
from openvse.evaluation.rerank import Proposals, Reranker, rerank

__all__ = [
    "ALONE",
    "AnsweredQueries",
    "AnsweredQuery",
    "Comparison",
    "Difference",
    "EmbeddedCorpus",
    "EmbeddedEnsemble",
    "MeasuredRun",
    "Member",
    "Metrics",
    "Normalized",
    "Places",
    "Processes",
    "Proposals",
    "Protocol",
    "QueryBank",
    "QueryRanks",
    "Ranks",
    "Reliability",
    "Remarks",
    "Report",
    "Reranked",
    "Reranker",
    "Row",
    "RowContrast",
    "ScoreCounts",
    "Scorer",
    "Shown",
    "Signs",
    "bootstrap_replicates",
    "chance_metrics",
    "choose_betas",
    "contrast_rows",
    "embed_corpus",
    "embed_ensemble",
    "evaluate",
    "fit_calibration",
    "mean_metrics",
    "mean_rank",
    "mean_scores",
    "measure_reliability",
    "median_rank",
    "normalized_median_rank",
    "paired_differences",
    "percentile_intervals",
    "rank_by_counting",
    "recall_at_k",
    "rerank",
    "retrieval_metrics",
    "shown_images",
    "sign_test",
    "too_small_to_calibrate",
]
