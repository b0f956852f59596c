"""The task of answering questions about images: its model, batches, training and metrics."""

from typing import TYPE_CHECKING

from openvse.lazy import lazy_names

if TYPE_CHECKING:
    from openvse_papers.vqa.answerer import read_results, write_results
    from openvse_papers.vqa.answers import AnswerVocabulary, WordNet, answer_accuracy, exact_match, find_wordnet
    from openvse_papers.vqa.evaluate import evaluate_answers, most_frequent_answers

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
