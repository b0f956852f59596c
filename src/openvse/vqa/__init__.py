"""The task of answering questions about images: its model, batches, training and metrics."""

from typing import TYPE_CHECKING

from openvse.lazy import lazy_names

if TYPE_CHECKING:
    from openvse.vqa.accuracy import answer_accuracy, exact_match
    from openvse.vqa.answers import AnswerVocabulary
    from openvse.vqa.evaluator import evaluate_answers, most_frequent_answers
    from openvse.vqa.predict import read_results, write_results
    from openvse.vqa.wordnet import WordNet, find_wordnet

__all__ = [
    "AnswerVocabulary",
    "WordNet",
    "answer_accuracy",
    "evaluate_answers",
    "exact_match",
    "find_wordnet",
    "most_frequent_answers",
    "read_results",
    "write_results",
]

__getattr__, __dir__ = lazy_names(__name__)
