"""The identity of the data of a split, by which a run that goes on notices that they have changed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from openvse.corpus.corpus import Corpus
from openvse.corpus.questions import QuestionSet
from openvse.corpus.splits import stable_hash
from openvse.errors import BadImageError
from openvse.media.packed import FileSlice, ImageFile, PackedFile
from openvse.types import FeatureSource

SAMPLE = 256
"""The number of images of a split whose content is compared."""

_HEAD_BYTES = 1 << 16
_KEPT_NUMBERS = 16
_TOLERANCE = 0.01
_AT_ONCE = 32


@dataclass(frozen=True)
class SplitData:
    """The data of one split.

    Attributes:
        unit: the name of the examples: "pairs" or "questions".
        digest: a hash of the examples: names of images, captions; for questions, also the answers.
        content: a few numbers that tell the content of each image of a sample, by the name of the image: of its stored
            features, or of the beginning of its file.
    """

    unit: str
    images: int
    examples: int
    digest: str
    content: Mapping[str, Sequence[float]]

    @property
    def size(self) -> str:
        """The numbers of images and examples in words."""
        return f"{self.images:,} images and {self.examples:,} {self.unit}"

    def values(self) -> dict[str, Any]:
        """Return the identity as the records of a run and a model keep it: without the content of images."""
        return {"images": self.images, self.unit: self.examples, "digest": self.digest}

    def other_images(self, now: SplitData) -> list[str]:
        """Return the images of both samples whose content is not the same any more.

        Features that were extracted again may differ in their last digits.
        """
        both = [name for name in self.content if name in now.content]
        return [name for name in both if not _alike(self.content[name], now.content[name])]

    def change(self, now: SplitData) -> str:
        """Return in words how other data differ from these; "" if they are the same."""
        if (self.images, self.examples) != (now.images, now.examples):
            return f"{self.size} then, {now.size} now"
        if self.digest != now.digest:
            return f"{self.size} then and now, but not the same ones, or in another order"
        if other := self.other_images(now):
            return (
                f"{self.size} then and now, but the content of {len(other)} of {len(now.content)} compared images has "
                f"changed (first: {other[0]})"
            )
        return ""

    @classmethod
    def of_pairs(cls, corpus: Corpus, features: FeatureSource | None, *, ordered: bool) -> SplitData:
        """Return the identity of the pairs of a split.

        Args:
            features: the stored features of its images; None if the files are read.
            ordered: whether the order of the pairs matters, as it does for the batches of training.
        """
        digest = digest_of(_pairs(corpus), ordered=ordered)
        content = _content(corpus.image_ids, corpus.image_paths, features)
        return cls("pairs", len(corpus), len(corpus.relevance.images), digest, content)

    @classmethod
    def of_questions(
        cls, questions: QuestionSet, features: FeatureSource | None, *, ordered: bool, sees: bool = True
    ) -> SplitData:
        """Return the identity of the questions and answers of a split; see ``of_pairs``.

        Args:
            features: the stored features of its images; None if the files are read.
            ordered: whether the order of the questions matters.
            sees: whether the model looks at the images; otherwise their content does not matter.
        """
        images = (questions.image_ids, questions.image_paths) if sees else ((), ())
        content = _content(*images, features)
        digest = digest_of_questions(questions, ordered=ordered)
        return cls("questions", len(questions.image_ids), len(questions), digest, content)


def digest_of(lines: Iterable[str], *, ordered: bool = True) -> str:
    """Return a hash of lines; without an order, of the different lines."""
    digest = hashlib.sha256()
    for number, line in enumerate(lines if ordered else sorted(set(lines))):
        digest.update(b"\n" * bool(number) + line.encode(errors="surrogatepass"))
    return digest.hexdigest()[:16]


def digest_of_pairs(corpus: Corpus) -> str:
    """Return a hash of the relevant pairs, by the names of the images and the words of the sentences."""
    return digest_of(_pairs(corpus), ordered=False)


def digest_of_questions(questions: QuestionSet, *, ordered: bool = False) -> str:
    """Return a hash of questions: their names, images, words and answers."""
    lines = ("\0".join((q.question_id, q.image_id, q.text, *q.answers)) for q in questions.questions)
    return digest_of(lines, ordered=ordered)


def _pairs(corpus: Corpus) -> Iterable[str]:
    pairs = zip(corpus.relevance.images.tolist(), corpus.relevance.texts.tolist(), strict=True)
    return (f"{corpus.image_ids[image]}\0{corpus.captions[text]}" for image, text in pairs)


def _content(
    ids: Sequence[str], paths: Sequence[ImageFile], features: FeatureSource | None
) -> dict[str, list[float]]:
    """Return a few numbers of the content of some images; which ones depends only on their names."""
    sample = sorted(ids, key=stable_hash)[:SAMPLE]
    if features is None:
        path_of = dict(zip(ids, paths, strict=True))
        return {name: _of_file(path_of[name]) for name in sample}
    rows: dict[str, list[float]] = {}
    for start in range(0, len(sample), _AT_ONCE):
        rows |= _of_features(sample[start : start + _AT_ONCE], features)
    return rows


def _of_features(ids: Sequence[str], features: FeatureSource) -> dict[str, list[float]]:
    """Return the first numbers of the mean of the local features of each image."""
    stored = features.gather(features.positions(ids))
    assert stored.mask is not None
    values, real = stored.values[..., :_KEPT_NUMBERS].double(), stored.mask[..., None]
    means = values.masked_fill(~real, 0).sum(dim=1) / real.sum(dim=1)
    return dict(zip(ids, means.tolist(), strict=True))


def _of_file(path: ImageFile) -> list[float]:
    """Return a hash of the beginning of a file as numbers; nothing if it cannot be read."""
    try:
        if isinstance(path, FileSlice):
            head = path.read_bytes()
        elif isinstance(path, PackedFile):  # one cell of a table would cost a whole group of rows
            head = str(path.container.stat().st_size).encode()
        else:
            with path.open("rb") as file:
                head = file.read(_HEAD_BYTES) + str(path.stat().st_size).encode()
    except (OSError, BadImageError):
        return []
    return [float(byte) for byte in hashlib.blake2b(head, digest_size=_KEPT_NUMBERS).digest()]


def _alike(one: Sequence[float], other: Sequence[float]) -> bool:
    if len(one) != len(other):
        return False
    first, second = np.array(one), np.array(other)
    largest = np.abs(first).max(initial=0)
    return bool(np.allclose(first, second, rtol=0, atol=_TOLERANCE * largest, equal_nan=True))
