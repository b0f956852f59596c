"""Questions about images, the answers that people gave, how answers are compared, and a model's vocabulary of them."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from math import prod
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from openvse.corpus.corpus import Corpus
from openvse.corpus.splits import canonical_split, completed_splits, split_positions, without_leakage
from openvse.corpus.trained_on import SplitData, digest_of
from openvse.errors import DataError, ModelError
from openvse.files import read_json, read_lines, whole_characters, write_whole
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
        paths = {question.image_id: question.path for question in reversed(self.questions)}
        return tuple(paths[image_id] for image_id in self.image_ids)

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
            raise DataError(f"{self.name}: images cannot be exchanged, because there is only one: take more questions")
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
    first = {question.question_id: number for number, question in reversed([*enumerate(usable)])}
    repeated = [first[question.question_id] != number for number, question in enumerate(usable)]
    usable = _skip(problems, usable, repeated, "question(s) with the identifier of an earlier one")
    if require_images:
        images = find_files(question.path for question in usable)
        missing = dict.fromkeys(q.path for q in usable if q.path not in images.files)
        found = [replace(q, path=images.files[q.path]) for q in usable if q.path in images.files]
        what = f"question(s) about {len(missing)} image(s) that are not there"
        if lines := [images.without_file(path) for path in missing]:
            problems.append(Problem(f"skipped {len(usable) - len(found)} {what}", lines, fault=True))
        usable = found
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


def _skip(problems: list[str], questions: Sequence[Question], bad: Sequence[bool], what: str) -> list[Question]:
    """Leave out the marked items, and add a line that counts and names them."""
    cases = [question.question_id for question, is_bad in zip(questions, bad, strict=True) if is_bad]
    problems += skipped(cases, what)
    return [question for question, is_bad in zip(questions, bad, strict=True) if not is_bad]


MIN_VOTES = 4
"""With fewer answers, no answer can get the full score of VQA, which takes three *other* annotators."""

_ARTICLES = frozenset({"a", "an", "the"})
_NUMBER_WORDS = "zero one two three four five six seven eight nine ten"
_DIGITS = {word: str(number) for number, word in enumerate(_NUMBER_WORDS.split())} | {"none": "0"}
_PUNCTUATION = ';/[]"{}()=+\\_-><@`,?!'
_COMMA_IN_NUMBER = re.compile(r"\d,\d")
_PERIOD_BEFORE_NO_DIGIT = re.compile(r"\.(?!\d)")
# The contractions of VQA's evaluation. A missing apostrophe is put back.
_CONTRACTIONS = """
    ain't aren't can't could've couldn't couldn't've didn't doesn't don't hadn't hadn't've hasn't haven't
    he'd he'd've he's how'd how'll how's isn't it'd it'd've it'll ma'am might've mightn't mightn't've
    must've mustn't needn't not've o'clock oughtn't 'ow's'at shan't she'd've should've shouldn't
    shouldn't've somebody'd've somebody'll somebody's someone'd someone'd've someone'll someone's
    something'd something'd've something'll that's there'd there'd've there're there's they'd they'd've
    they'll they're they've 'twas wasn't we'd've we've weren't what'll what're what's what've when's where'd
    where's where've who'd who'd've who'll who's who've why'll why're why's won't would've wouldn't
    wouldn't've y'all y'all'd've y'all'll you'd you'd've you'll you're you've
"""
_WITH_APOSTROPHE = {
    form[:place] + form[place + 1 :]: form
    for form in _CONTRACTIONS.split()
    for place, sign in enumerate(form)
    if sign == "'"
}


@lru_cache(maxsize=1 << 18)
def normalize_answer(answer: str) -> str:
    """Return the form in which VQA's evaluation compares answers (Antol et al., ICCV 2015, and its published code).

    The answer becomes lower case. Punctuation becomes a space, or nothing if a space is next to any sign of its kind or
    the answer has a comma inside a number. Periods are removed unless a digit follows. Number words up to ten and
    "none" become digits. Articles are removed. Contractions without their apostrophe get it back.

    Deviation: an answer of which nothing would remain ("a", "the", "?") is only changed to lower case.

    Examples:
        >>> normalize_answer("The two dogs."), normalize_answer("1,000"), normalize_answer("dont know")
        ('2 dogs', '1000', "don't know")
    """
    text = " ".join(answer.split())
    in_number = _COMMA_IN_NUMBER.search(text) is not None
    signs = {ord(sign): "" if in_number or f"{sign} " in text or f" {sign}" in text else " " for sign in _PUNCTUATION}
    bare = _PERIOD_BEFORE_NO_DIGIT.sub("", text.translate(signs))
    words = [_DIGITS.get(word, word) for word in bare.lower().split()]
    return " ".join(_WITH_APOSTROPHE.get(word, word) for word in words if word not in _ARTICLES) or text.lower()


def are_votes(answers: Iterable[Sequence[str]]) -> bool:
    """Return whether the answers to each question are votes of annotators, several of which give the full score.

    They are votes if no question has only one to three answers, as in VQA 2.0 (ten each). Otherwise each annotated
    answer is right, as in DAQUAR (one, or the members of a set). Questions without answers do not matter.
    """
    counts = [len(given) for given in answers if given]
    return bool(counts) and min(counts) >= MIN_VOTES


def vote_score(
    matches: Int[np.ndarray, "*shape"], annotators: Int[np.ndarray, "*shape"]
) -> Float[np.ndarray, "*shape"]:
    """Return VQA's accuracy of an answer that ``matches`` of the annotators gave, from 0 to 1.

    It is the mean, over the subsets that leave out one annotator, of min(matches in the subset / 3, 1) (Antol et al.,
    ICCV 2015, and Goyal et al., CVPR 2017). Each annotator who agrees is missing in one subset, so the mean has only
    two kinds of summands. With ten annotators: 0, 0.3, 0.6, 0.9, 1.
    """
    one_missing = np.minimum((matches - 1) / 3, 1)
    all_there = np.minimum(matches / 3, 1)
    return np.asarray((matches * one_missing + (annotators - matches) * all_there) / annotators)


def answer_scores(answers: Sequence[str], *, votes: bool) -> dict[str, float]:
    """Return the score of each answer to one question as a prediction, by its normal form, in the same order."""
    counts = Counter(map(normalize_answer, answers))
    if not votes:
        return dict.fromkeys(counts, 1.0)
    matches = np.array(list(counts.values()), dtype=np.int64)
    scores = vote_score(matches, np.full_like(matches, len(answers)))
    return dict(zip(counts, scores.tolist(), strict=True))


def main_answers(answers: Sequence[str], *, votes: bool) -> tuple[str, ...]:
    """Return the normal form of the most frequent answer (the first of several), or without votes, of all answers."""
    counts = Counter(map(normalize_answer, answers))
    return tuple(answer for answer, _ in counts.most_common(1)) if votes else tuple(counts)


class AnswerVocabulary:
    """The A answers from which a model chooses, in their normal forms.

    It is built only from the training answers.

    Args:
        answers: the answers, in the order of their ids.
        votes: whether ``targets`` treats answers as votes. See ``are_votes``.

    Examples:
        >>> vocabulary = AnswerVocabulary.from_answers([["Two"], ["a cup"], ["2"]], min_count=1)
        >>> vocabulary.answers
        ('2', 'cup')
        >>> vocabulary.targets([["cup", "two"], ["dog"]]).tolist()
        [[1.0, 1.0], [0.0, 0.0]]
    """

    def __init__(self, answers: Sequence[str], *, votes: bool) -> None:
        self.answers = tuple(answers)
        self.votes = votes
        self._ids = {answer: number for number, answer in enumerate(self.answers)}

    @classmethod
    def from_answers(cls, answers: Iterable[Sequence[str]], *, min_count: int = 9) -> AnswerVocabulary:
        """Build a vocabulary from the training answers, the most frequent first, ties in alphabetical order.

        A question counts once for its most frequent answer. If its answers are not votes, it counts once for each.
        Answers of fewer than ``min_count`` questions are left out (9 is VQA 2.0's "more than 8 times"). Raise DataError
        if no answer occurs that often.
        """
        answers = list(answers)
        votes = are_votes(answers)
        counts = Counter(answer for given in answers for answer in main_answers(given, votes=votes))
        frequent = sorted((a for a in counts if counts[a] >= min_count), key=lambda a: (-counts[a], a))
        if not frequent:
            most = f"the most frequent, {counts.most_common(1)[0][1]} times" if counts else "there are none"
            raise DataError(f"no training answer occurs {min_count} times ({most}): lower min_count or give more")
        return cls(frequent, votes=votes)

    def __len__(self) -> int:
        return len(self.answers)

    def __contains__(self, answer: object) -> bool:
        return isinstance(answer, str) and self.id_of(answer) is not None

    def id_of(self, answer: str) -> int | None:
        """Return the id of an answer in any spelling, or None if it is not in the vocabulary."""
        return self._ids.get(normalize_answer(answer))

    def targets(self, answers: Sequence[Sequence[str]]) -> Float[np.ndarray, "Q A"]:
        """Return the score of each answer of the vocabulary for each question: soft targets from 0 to 1, float32.

        A question whose answers are all unknown has a row of zeros.

        Args:
            answers: for each of Q questions, the answers of all annotators.
        """
        targets = np.zeros((len(answers), len(self)), dtype=np.float32)
        for row, given in enumerate(answers):
            for answer, score in answer_scores(given, votes=self.votes).items():
                if answer in self._ids:
                    targets[row, self._ids[answer]] = score
        return targets

    def save(self, path: Path) -> None:
        """Write the answers as JSON, by rename, so that a reader never sees half a file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        content = {"votes": self.votes, "answers": self.answers}
        write_whole(path, json.dumps(content, ensure_ascii=False, indent=0))

    @classmethod
    def load(cls, path: Path) -> AnswerVocabulary:
        """Read the file that ``save`` wrote. Raise ModelError if the file is missing or damaged."""
        try:
            content = read_json(path)
            return cls([str(answer) for answer in content["answers"]], votes=bool(content["votes"]))
        except OSError as error:
            raise ModelError(f"{path} cannot be read: copy or save the whole model folder again") from error
        except (ValueError, KeyError, TypeError) as error:
            raise ModelError(f"{path} is not a vocabulary of answers: copy or save the model folder again") from error


_FILES = ("index.noun", "data.noun")
_INSTALLED = (Path("/usr/share/wordnet"), Path("/usr/share/nltk_data/corpora/wordnet"))
_ENDINGS = (
    ("s", ""),
    ("ses", "s"),
    ("ves", "f"),
    ("xes", "x"),
    ("zes", "z"),
    ("ches", "ch"),
    ("shes", "sh"),
    ("men", "man"),
    ("ies", "y"),
)
"""The rules that turn plural nouns into singular ones, as in WordNet's Morphy."""


class _Sense(NamedTuple):
    """A meaning: its place in the data, its name, and the senses of which it is a kind or an instance."""

    offset: int
    word: str
    above: tuple[int, ...]


class WordNet:
    """WordNet's nouns and Wu and Palmer's similarity between them (ACL 1994).

    The numbers equal nltk's ``wup_similarity`` (version 3.10).

    Args:
        folder: the folder with ``index.noun``, ``data.noun`` and optionally ``noun.exc``: WordNet's folder ``dict``
            (Fellbaum, 1998, wordnet.princeton.edu), Debian's package ``wordnet-base``, or nltk's ``corpora/wordnet``.

    Raises:
        DataError: the files are missing, or do not belong to WordNet.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            self._data = (folder / "data.noun").read_bytes()
            # Each line ends with the offsets of the word's senses. The licence before them is skipped.
            lines = [line.split() for line in read_lines(folder / "index.noun") if not line.startswith(" ")]
            self._index = {each[0]: tuple(map(int, each[-int(each[2]) :])) for each in lines}
            exceptions = read_lines(folder / "noun.exc") if (folder / "noun.exc").is_file() else []
        except OSError as error:
            raise DataError(
                f"{folder}: {' and '.join(_FILES)} of WordNet cannot be read there ({error.strerror}): give the folder "
                "that holds them, for instance Debian's, from the package wordnet-base"
            ) from error
        except (ValueError, IndexError) as error:
            raise self._damaged("index.noun") from error
        self._exceptions = {words[0]: words[1:] for words in map(str.split, exceptions) if words}
        self._depths: dict[int, tuple[int, int]] = {}

    @cache  # noqa: B019 - lives as long as the evaluation
    def similarity(self, one: str, other: str) -> float:
        """Return the similarity of the most similar senses of two nouns, from 0 to 1.

        It is 1 for equal words and 0 if one of them is not a noun in WordNet. Plurals are understood. The words of a
        compound may be separated by a space, a hyphen or an underscore.

        Raises:
            DataError: the data are damaged.
        """
        if one == other:
            return 1.0
        senses = [(a, b) for a in self.senses(one) for b in self.senses(other)]
        return max((self._wu_palmer(a, b) for a, b in senses), default=0.0)

    def senses(self, word: str) -> list[int]:
        """Return the places of the senses of a noun in ``data.noun``, empty for an unknown word."""
        plain = word.lower().strip().replace(" ", "_")
        parts = plain.replace("-", "_").split("_")
        for written in (plain, *(joint.join(parts) for joint in ("_", "-", ""))):
            offsets = [offset for form in self._forms(written) for offset in self._index.get(form, ())]
            if offsets:
                return offsets
        return []

    def _forms(self, word: str) -> list[str]:
        """Return a word and its possible singular forms."""
        singular = self._exceptions.get(word) or [
            word.removesuffix(end) + new for end, new in _ENDINGS if word.endswith(end)
        ]
        return list(dict.fromkeys([word, *singular]))

    def _wu_palmer(self, one: int, other: int) -> float:
        """Return 2 d / (d1 + d2), with the depths of the lowest common ancestor and of both senses by way of it.

        The lowest ancestor is the one whose shortest path to the root is longest. Its depth is its longest path. Of
        several, the first sense counts, then the first name. From a sense to this ancestor the shortest path counts,
        even if it leads through an ancestor of both.
        """
        common = self._distances(one).keys() & self._distances(other).keys()
        if not common:
            return 0.0
        lowest = max(self._depth(node)[0] for node in common)
        nodes = [node for node in common if self._depth(node)[0] == lowest]
        node = one if one in nodes else min(nodes, key=self._name)
        depth = self._depth(node)[1] + 1
        return 2 * depth / (self._steps(one, node) + self._steps(other, node) + 2 * depth)

    def _steps(self, sense: int, ancestor: int) -> int:
        up, further = self._distances(sense), self._distances(ancestor)
        return min(up[node] + steps for node, steps in further.items())

    @cache  # noqa: B019
    def _distances(self, offset: int) -> dict[int, int]:
        """Return the steps to each ancestor on the shortest path. A sense is its own ancestor."""
        steps = {offset: 0}
        level = {offset}
        while level:
            level = {up for node in level for up in self._sense(node).above if up not in steps}
            steps |= dict.fromkeys(level, max(steps.values()) + 1)
        return steps

    def _depth(self, offset: int, below: tuple[int, ...] = ()) -> tuple[int, int]:
        """Return the steps to the root on the shortest and on the longest path."""
        if offset not in self._depths:
            if offset in below:
                raise self._damaged("data.noun")
            ways = [self._depth(up, (*below, offset)) for up in self._sense(offset).above]
            shortest = min((way[0] + 1 for way in ways), default=0)
            self._depths[offset] = shortest, max((way[1] + 1 for way in ways), default=0)
        return self._depths[offset]

    def _name(self, offset: int) -> str:
        """Return the first word of a sense and the number of the sense, as in nltk: ``dog.n.01``."""
        word = self._sense(offset).word
        number = self._index.get(word, (offset,)).index(offset) + 1
        return f"{word}.n.{number:02d}"

    @cache  # noqa: B019
    def _sense(self, offset: int) -> _Sense:
        """Read a line of ``data.noun``: offset, file, kind, words with their ids, pointers (wndb(5WN))."""
        try:
            line = self._data[offset : self._data.index(b"\n", offset)].decode()
            fields = line.partition("|")[0].split()
            if int(fields[0]) != offset:
                raise ValueError("no line begins here")
            after_words = 4 + 2 * int(fields[3], 16)
            pointers, most = fields[after_words + 1 :], 4 * int(fields[after_words])
            above = [int(pointers[n + 1]) for n in range(0, most, 4) if pointers[n] in ("@", "@i")]
            return _Sense(offset, fields[4].lower(), tuple(above))
        except (ValueError, IndexError) as error:
            raise self._damaged("data.noun") from error

    def _damaged(self, name: str) -> DataError:
        return DataError(f"{self.folder / name}: not in WordNet's format: install WordNet again")


def find_wordnet() -> Path | None:
    """Return the folder of WordNet: $WNSEARCHDIR, $WNHOME/dict, or Debian's folder. None if there is none."""
    home = os.environ.get("WNHOME")
    named = filter(None, (os.environ.get("WNSEARCHDIR"), home and f"{home}/dict"))
    places = (*map(Path, named), *_INSTALLED)
    return next((place for place in places if all((place / name).is_file() for name in _FILES)), None)


THRESHOLDS = (0.9, 0.0)
"""The thresholds for DAQUAR. At 0.9 only near synonyms count fully, at 0.0 every similarity does."""

_DOWN_WEIGHT = 0.1


def answer_accuracy(
    predictions: Sequence[str], answers: Sequence[Sequence[str]], *, votes: bool
) -> Float[np.ndarray, "Q"]:
    """Return the score of each predicted answer, from 0 to 1.

    With votes it is VQA's accuracy (Antol et al., ICCV 2015): the mean, over the subsets that leave out one annotator,
    of min(annotators in the subset who gave the answer / 3, 1). Otherwise an answer equal to one of the annotated
    answers scores 1. Answers are compared in their normal form.

    Deviation: the official code does not normalise answers if all annotators agree.

    Args:
        predictions: an answer to each of Q questions.
        answers: the answers of all annotators to each question, at least one.

    Raises:
        DataError: the numbers of the two differ, or a question has no answer.
    """
    _check(len(predictions), answers)
    annotators = np.array([len(given) for given in answers], dtype=np.int64)
    normal = zip(map(normalize_answer, predictions), answers, strict=True)
    found = [[*map(normalize_answer, given)].count(answer) for answer, given in normal]
    matches = np.array(found, dtype=np.int64)
    return vote_score(matches, annotators) if votes else (matches > 0).astype(np.float64)


def exact_match(predictions: Sequence[Sequence[str]], answers: Sequence[Sequence[str]]) -> Float[np.ndarray, "Q"]:
    """Return 1 for each question whose predicted answers are those given, and 0 for the others.

    It is DAQUAR's accuracy (Malinowski and Fritz, NIPS 2014). Answers are compared in their normal form. Their order
    and repetitions do not matter.

    Args:
        predictions: the members of the predicted set for each of Q questions.
        answers: the members of the given set, at least one.

    Raises:
        DataError: the numbers of the two differ, or a question has no answer.
    """
    _check(len(predictions), answers)
    equal = [
        set(map(normalize_answer, predicted)) == set(map(normalize_answer, given))
        for predicted, given in zip(predictions, answers, strict=True)
    ]
    return np.array(equal, dtype=np.float64)


def _check(num_predictions: int, answers: Sequence[Sequence[str]]) -> None:
    if num_predictions != len(answers):
        raise DataError(f"got {num_predictions} predictions for {len(answers)} questions: give one for each question")
    empty = next((number for number, given in enumerate(answers) if not given), None)
    if empty is not None:
        raise DataError(f"question number {empty} has no answer to compare with: leave it out")


def wups(
    predictions: Sequence[Sequence[str]],
    answers: Sequence[Sequence[str]],
    similarity: Callable[[str, str], float],
    *,
    threshold: float,
) -> Float[np.ndarray, "Q"]:
    """Return the WUPS of each question, from 0 to 1 (Malinowski and Fritz, NIPS 2014, section 4).

    For a predicted set A and the given set T it is the smaller of two products: over a in A of the largest s(a, t)
    for t in T, and over t in T of the largest s(a, t) for a in A. s is Wu and Palmer's similarity, times 0.1 if it is
    below the threshold, 0.9 or 0. An empty prediction scores 0.
    """
    _check(len(predictions), answers)

    def closeness(one: str, other: str) -> float:
        value = similarity(one, other)
        return value if value >= threshold else _DOWN_WEIGHT * value

    def covered(words: Iterable[str], others: Iterable[str]) -> float:
        return prod(max(closeness(word, other) for other in others) for word in words)

    scores = []
    for predicted, given in zip(predictions, answers, strict=True):
        guesses, true = set(map(normalize_answer, predicted)), set(map(normalize_answer, given))
        scores.append(min(covered(guesses, true), covered(true, guesses)) if guesses else 0.0)
    return np.array(scores, dtype=np.float64)
