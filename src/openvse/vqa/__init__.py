"""Answers to questions about pictures: how predictions are scored, and what they are compared with."""

from __future__ import annotations

from openvse.vqa.accuracy import answer_accuracy, exact_match
from openvse.vqa.baselines import most_frequent_answers
from openvse.vqa.evaluator import evaluate_answers
from openvse.vqa.report import AnswerProtocol, AnswerReport
from openvse.vqa.results import read_results, write_results
from openvse.vqa.wordnet import WordNet, find_wordnet
from openvse.vqa.wups import wups

__all__ = [
    "AnswerProtocol",
    "AnswerReport",
    "WordNet",
    "answer_accuracy",
    "evaluate_answers",
    "exact_match",
    "find_wordnet",
    "most_frequent_answers",
    "read_results",
    "write_results",
    "wups",
]
