"""Evaluation turns embeddings and relevance into ranks, and ranks into a report."""

from openvse.evaluation.metrics import METRICS, Metric, bootstrap_replicates, retrieval_metrics
from openvse.evaluation.ranking import Ranks, rank_by_counting

__all__ = ["METRICS", "Metric", "Ranks", "bootstrap_replicates", "rank_by_counting", "retrieval_metrics"]
