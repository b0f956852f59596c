"""The task of answering questions about images: its model, batches, training and metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from openvse.lazy import lazy_names

if TYPE_CHECKING:
    from openvse.vqa.accuracy import answer_accuracy, exact_match
    from openvse.vqa.answerer import Answerer
    from openvse.vqa.answers import AnswerVocabulary
    from openvse.vqa.build import build_answerer
    from openvse.vqa.evaluator import evaluate_answers, most_frequent_answers
    from openvse.vqa.explain import Explained
    from openvse.vqa.predict import Prediction, predict_batches, question_dataset, read_results, write_results
    from openvse.vqa.report import AnswerProtocol, AnswerReport
    from openvse.vqa.wordnet import WordNet, find_wordnet

__all__ = [
    "AnswerProtocol",
    "AnswerReport",
    "AnswerVocabulary",
    "Answerer",
    "Explained",
    "Prediction",
    "WordNet",
    "answer_accuracy",
    "build_answerer",
    "evaluate_answers",
    "exact_match",
    "find_wordnet",
    "most_frequent_answers",
    "predict_batches",
    "question_dataset",
    "read_results",
    "write_results",
]

__getattr__, __dir__ = lazy_names(
    "openvse.vqa",
    {
        "AnswerProtocol": "openvse.vqa.report",
        "AnswerReport": "openvse.vqa.report",
        "AnswerVocabulary": "openvse.vqa.answers",
        "Answerer": "openvse.vqa.answerer",
        "Explained": "openvse.vqa.explain",
        "Prediction": "openvse.vqa.predict",
        "WordNet": "openvse.vqa.wordnet",
        "answer_accuracy": "openvse.vqa.accuracy",
        "build_answerer": "openvse.vqa.build",
        "evaluate_answers": "openvse.vqa.evaluator",
        "exact_match": "openvse.vqa.accuracy",
        "find_wordnet": "openvse.vqa.wordnet",
        "most_frequent_answers": "openvse.vqa.evaluator",
        "predict_batches": "openvse.vqa.predict",
        "question_dataset": "openvse.vqa.predict",
        "read_results": "openvse.vqa.predict",
        "write_results": "openvse.vqa.predict",
    },
)
