"""Answers to questions: their normal form, their scores, and the answers from which a model chooses."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from openvse.errors import DataError, ModelError
from openvse.files import read_json, write_whole

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
    signs = {
        ord(sign): "" if in_number or f"{sign} " in text or f" {sign}" in text else " "
        for sign in _PUNCTUATION
    }
    bare = _PERIOD_BEFORE_NO_DIGIT.sub("", text.translate(signs))
    words = [_DIGITS.get(word, word) for word in bare.lower().split()]
    return (
        " ".join(_WITH_APOSTROPHE.get(word, word) for word in words if word not in _ARTICLES) or text.lower()
    )


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
            raise DataError(
                f"no answer occurs {min_count} times in the training answers ({most}): lower min_count or give more"
            )
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
            raise ModelError(
                f"{path} is not a vocabulary of answers: copy or save the model folder again"
            ) from error
