"""Answers to questions about pictures: predictions, how they are scored and compared, and pages that show them."""

from __future__ import annotations

from openvse.vqa.accuracy import answer_accuracy, exact_match
from openvse.vqa.answer_page import answer_page
from openvse.vqa.baselines import most_frequent_answers
from openvse.vqa.evaluator import evaluate_answers
from openvse.vqa.explain import Explained, explain
from openvse.vqa.predict import Prediction, predict, predict_batches, question_dataset
from openvse.vqa.report import AnswerProtocol, AnswerReport
from openvse.vqa.results import read_results, write_results
from openvse.vqa.wordnet import WordNet, find_wordnet
from openvse.vqa.wups import wups

__all__ = [
    "AnswerProtocol",
    "AnswerReport",
    "Explained",
    "Prediction",
    "WordNet",
    "answer_accuracy",
    "answer_page",
    "evaluate_answers",
    "exact_match",
    "explain",
    "find_wordnet",
    "most_frequent_answers",
    "predict",
    "predict_batches",
    "question_dataset",
    "read_results",
    "write_results",
    "wups",
]
