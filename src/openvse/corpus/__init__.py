"""The content of a data set: images, sentences or questions, and their relevance."""

from __future__ import annotations

from openvse.corpus.corpus import Corpus, Record, SharedTexts, build_corpus, long_captions, merge_identical
from openvse.corpus.facts import Facts, Form, Piece
from openvse.corpus.identity import SplitData
from openvse.corpus.questions import Question, QuestionSet, build_questions
from openvse.corpus.trained_on import Seen, also_trained_on, seen_in_training, training_sample
from openvse.media.problems import Problem

__all__ = [
    "Corpus",
    "Facts",
    "Form",
    "Piece",
    "Problem",
    "Question",
    "QuestionSet",
    "Record",
    "Seen",
    "SharedTexts",
    "SplitData",
    "also_trained_on",
    "build_corpus",
    "build_questions",
    "long_captions",
    "merge_identical",
    "seen_in_training",
    "training_sample",
]
