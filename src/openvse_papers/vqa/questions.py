"""Questions about images, with the answers that people gave."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
from jaxtyping import Int

from openvse.corpus.corpus import Corpus
from openvse.corpus.identity import SplitData, digest_of
from openvse.corpus.splits import canonical_split, completed_splits, split_positions, without_leakage
from openvse.errors import DataError
from openvse.files import whole_characters
from openvse.media.listing import Problem, skipped
from openvse.media.matching import find_files
from openvse.types import Relevance


@dataclass(frozen=True)
class Question:
    """One question about one image.

    Attributes:
        question_id: unique in a set.
        image_id: the identifier of the image in feature stores and reports.
        path: the expected path of the image file.
        answers: the answers of all annotators, in their order: ten in VQA 2.0, one or the members of a set in DAQUAR,
            none if they are not published.
        split: a name or synonym of a split, or "" if the data set has none.
        kind: the published type of the answer ("yes/no", "number", "other"), or "" if it is unknown.
        asks: the published type of the question ("what color", "is there a"), or "" if it is unknown.
    """

    question_id: str
    image_id: str
    path: Path
    text: str
    answers: Sequence[str]
    split: str = ""
    kind: str = ""
    asks: str = ""


@dataclass(frozen=True)
class QuestionSet:
    """Q questions about I images, in the order in which they were found.

    Attributes:
        name: the name of the data set in messages and reports.
        problems: one line for each kind of item that was skipped when the set was opened.
    """

    name: str
    questions: tuple[Question, ...]
    problems: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.questions)

    @cached_property
    def image_ids(self) -> tuple[str, ...]:
        """The identifiers of the images, in the order in which the questions first refer to them."""
        return tuple(dict.fromkeys(question.image_id for question in self.questions))

    @cached_property
    def image_paths(self) -> tuple[Path, ...]:
        """The file of each image of ``image_ids``."""
        paths: dict[str, Path] = {}
        for question in self.questions:
            paths.setdefault(question.image_id, question.path)
        return tuple(paths.values())

    def images_of(self) -> Int[np.ndarray, "Q"]:
        """Return the position of each question's image in ``image_ids``."""
        row = {image: number for number, image in enumerate(self.image_ids)}
        return np.array([row[question.image_id] for question in self.questions], dtype=np.int64)

    def split(self, name: str) -> QuestionSet:
        """Return the questions of one split. See ``Corpus.split``."""
        labels = self.split_labels()
        wanted, positions = split_positions(name, labels, of=self.name, unit="question")
        chosen = [self.questions[position] for position in positions]
        named = tuple(q if q.split == wanted else replace(q, split=wanted) for q in chosen)
        return replace(self, name=f"{self.name}/{wanted}", questions=named)

    def split_labels(self) -> tuple[str, ...]:
        """Return the split of each question, which its image decides. See ``Corpus.split_labels``."""
        return self._split_labels

    @cached_property
    def _split_labels(self) -> tuple[str, ...]:
        of_image = completed_splits(self._stated_splits, self.image_ids, self.image_paths)
        places = zip(self.questions, self.images_of().tolist(), strict=True)
        return tuple(question.split or of_image[image] for question, image in places)

    @property
    def _stated_splits(self) -> tuple[str, ...]:
        """The split that the data state for each image, or "" without one."""
        splits: dict[str, str] = {}
        for question in self.questions:
            splits[question.image_id] = question.split or splits.get(question.image_id, "")
        return tuple(splits.values())

    def select(self, positions: Int[np.ndarray, "P"]) -> QuestionSet:
        """Return the questions at these positions, in this order."""
        return replace(self, questions=tuple(self.questions[position] for position in positions))

    def about(self, image_ids: Collection[str]) -> QuestionSet:
        """Return the questions about these images, for instance those that have features."""
        wanted = frozenset(image_ids)
        return replace(self, questions=tuple(q for q in self.questions if q.image_id in wanted))

    def exchange_images(self, seed: int = 0) -> QuestionSet:
        """Return the same questions, each about another image: a control that shows how much a model uses the image.

        The images are put in a random order, and the questions about each image go to the next one of that order, so
        no question keeps its image, and questions about one image stay together.

        Raises:
            DataError: there is only one image.
        """
        count = len(self.image_ids)
        if count < 2:
            raise DataError(
                f"{self.name}: images cannot be exchanged, because there is only one: take more questions"
            )
        order = np.random.default_rng(seed).permutation(count)
        other = np.empty_like(order)
        other[order] = np.roll(order, -1)
        places = [(self.image_ids[number], self.image_paths[number]) for number in other.tolist()]
        pairs = zip(self.questions, self.images_of().tolist(), strict=True)
        moved = (replace(question, image_id=places[n][0], path=places[n][1]) for question, n in pairs)
        return replace(self, questions=tuple(moved))

    def identity(self, *, ordered: bool = False) -> SplitData:
        """Return the identity of the questions: their names, images, words and answers."""
        lines = ("\0".join((q.question_id, q.image_id, q.text, *q.answers)) for q in self.questions)
        return SplitData("questions", len(self.image_ids), len(self), digest_of(lines, ordered=ordered))

    def as_corpus(self) -> Corpus:
        """Return the images with the questions as their captions, so that caption t is question t.

        Code that takes images and sentences from a corpus (extraction, loaders, vocabularies) works on it.
        """
        images, num_questions = self.images_of(), len(self)
        return Corpus(
            name=self.name,
            image_ids=self.image_ids,
            image_paths=self.image_paths,
            captions=tuple(question.text for question in self.questions),
            relevance=Relevance(images, np.arange(num_questions), len(self.image_ids), num_questions),
            splits=self._stated_splits,
            problems=self.problems,
        )


def build_questions(name: str, questions: Iterable[Question], *, require_images: bool = True) -> QuestionSet:
    """Check questions and join them into a set.

    Questions with a missing image file, empty questions, and questions with the identifier of an earlier one are left
    out and counted in ``problems``. So is leakage: an image whose questions are listed in several splits is kept only
    in the last of train, validation and test. Questions without an answer are kept in the test split, and if no
    question at all has an answer. Otherwise they are left out and counted.

    Args:
        name: the name of the data set in messages.
        questions: the questions, whose order is kept.
        require_images: whether to look for the image files. False if precomputed features replace them.

    Raises:
        DataError: a split is unknown, or nothing is left.
    """
    problems: list[str] = []
    usable = without_leakage(problems, [_tidy(question) for question in questions])
    usable = _without_repetitions(problems, usable)
    if require_images:
        usable = _with_images(problems, usable)
    usable = _skip(problems, usable, [not q.text for q in usable], "question(s) without a text")
    if any(question.answers for question in usable):
        silent = [not q.answers and q.split != "test" for q in usable]
        usable = _skip(problems, usable, silent, "question(s) without an answer")
    if not usable:
        reasons = "; ".join(problems) or "there are no records"
        raise DataError(f"{name}: no question is left ({reasons}): check the folder and the file names")
    return QuestionSet(name, tuple(usable), tuple(problems))


def numbered(questions: Iterable[Question]) -> Iterator[Question]:
    """Give questions without an identifier one: the image's, with the number of the question, counted from 0."""
    asked: Counter[str] = Counter()
    for question in questions:
        own = f"{question.image_id}#{asked[question.image_id]}"
        asked[question.image_id] += 1
        yield question if question.question_id else replace(question, question_id=own)


def _tidy(question: Question) -> Question:
    """Return a question with tidy white space, without blank answers, in a split with its canonical name."""
    return replace(
        question,
        text=whole_characters(" ".join(question.text.split())),
        answers=tuple(filter(None, map(_tidy_answer, question.answers))),
        split=canonical_split(question.split) if question.split else "",
    )


@lru_cache(maxsize=1 << 16)  # millions of answers, few different ones
def _tidy_answer(answer: str) -> str:
    return whole_characters(" ".join(answer.split()))


def _without_repetitions(problems: list[str], questions: Sequence[Question]) -> list[Question]:
    seen: set[str] = set()
    repeated = []
    for question in questions:
        repeated.append(question.question_id in seen)
        seen.add(question.question_id)
    return _skip(problems, questions, repeated, "question(s) with the identifier of an earlier one")


def _with_images(problems: list[str], questions: Sequence[Question]) -> list[Question]:
    """Leave out questions about missing images, and give the others the image path. See ``find_files``."""
    images = find_files(question.path for question in questions)
    missing = list(dict.fromkeys(q.path for q in questions if q.path not in images.files))
    usable = [replace(q, path=images.files[q.path]) for q in questions if q.path in images.files]
    lines = [images.without_file(path) for path in missing]
    what = f"question(s) about {len(missing)} image(s) that are not there"
    if lines:
        problems.append(Problem(f"skipped {len(questions) - len(usable)} {what}", lines, fault=True))
    return usable


def _skip(
    problems: list[str], questions: Sequence[Question], bad: Sequence[bool], what: str
) -> list[Question]:
    """Leave out the marked items, and add a line that counts and names them."""
    cases = [question.question_id for question, is_bad in zip(questions, bad, strict=True) if is_bad]
    problems += skipped(cases, what)
    return [question for question, is_bad in zip(questions, bad, strict=True) if not is_bad]
