"""Data: corpora from files, and batches from corpora."""

from __future__ import annotations

from openvse.data.batches import PlacedInputs, image_batches, text_batches
from openvse.data.check import Finding, check_data, describe_data
from openvse.data.corpus import Corpus, Record, build_corpus
from openvse.data.datasets import DATASETS, find_loader, open_corpus
from openvse.data.facts import Facts, Form, Piece
from openvse.data.image_loaders import (
    ImageLoader,
    PixelImages,
    RandomView,
    StoredImages,
    image_loader,
    own_features,
    with_features,
)
from openvse.data.known import FACTS
from openvse.data.pairs import BatchKey, EpochBatches, PairDataset
from openvse.data.question_batches import PlacedQuestions, QuestionDataset, question_batches
from openvse.data.question_sets import QUESTION_SETS, open_questions
from openvse.data.questions import Question, QuestionSet, build_questions

__all__ = [
    "DATASETS",
    "FACTS",
    "QUESTION_SETS",
    "BatchKey",
    "Corpus",
    "EpochBatches",
    "Facts",
    "Finding",
    "Form",
    "ImageLoader",
    "PairDataset",
    "Piece",
    "PixelImages",
    "PlacedInputs",
    "PlacedQuestions",
    "Question",
    "QuestionDataset",
    "QuestionSet",
    "RandomView",
    "Record",
    "StoredImages",
    "build_corpus",
    "build_questions",
    "check_data",
    "describe_data",
    "find_loader",
    "image_batches",
    "image_loader",
    "open_corpus",
    "open_questions",
    "own_features",
    "question_batches",
    "text_batches",
    "with_features",
]
