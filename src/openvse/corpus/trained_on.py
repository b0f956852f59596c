"""The identity of the data of a split, and a model's training images in a few kilobytes, to notice them later."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import UInt

from openvse.corpus.corpus import Corpus
from openvse.corpus.splits import LEAKAGE, stable_hash
from openvse.specs.model import section


@dataclass(frozen=True)
class SplitData:
    """The data of one split.

    Attributes:
        unit: the name of the examples, such as "pairs".
        digest: a hash of the examples: names of images, captions, and whatever else belongs to one.
    """

    unit: str
    images: int
    examples: int
    digest: str

    @property
    def size(self) -> str:
        """The numbers of images and examples in words."""
        return f"{self.images:,} images and {self.examples:,} {self.unit}"

    def values(self) -> dict[str, Any]:
        """Return the identity as the records of a run and a model keep it."""
        return {"images": self.images, self.unit: self.examples, "digest": self.digest}

    @classmethod
    def of_pairs(cls, corpus: Corpus, *, ordered: bool = False) -> SplitData:
        """Return the identity of the pairs of a split. Their order matters for the batches of training."""
        pairs = zip(corpus.relevance.images.tolist(), corpus.relevance.texts.tolist(), strict=True)
        lines = (f"{corpus.image_ids[image]}\0{corpus.captions[text]}" for image, text in pairs)
        return cls("pairs", len(corpus), len(corpus.relevance.images), digest_of(lines, ordered=ordered))


def digest_of(lines: Iterable[str], *, ordered: bool = True) -> str:
    """Return a hash of lines, or without an order, of the different lines."""
    digest = hashlib.sha256()
    for number, line in enumerate(lines if ordered else sorted(set(lines))):
        digest.update(b"\n" * bool(number) + line.encode(errors="surrogatepass"))
    return digest.hexdigest()[:16]


SAMPLE_SIZE = 1024
"""The number of training images that a model remembers. A model with fewer remembers all."""

_KEPT_BYTES = 6

_Sample: TypeAlias = tuple[int, UInt[np.ndarray, "_"]]
"""The number of all images, and the smallest of their hashes in order."""


@dataclass(frozen=True)
class Seen:
    """The share of a data set that a model has seen in training.

    Attributes:
        checked: the number of its images that could be checked.
        seen: the number of these images that the model was trained on.
    """

    checked: int
    seen: int

    def describe(self, model: str) -> str:
        """Return a line about leakage, or "" if there is none."""
        if not self.seen:
            return ""
        return (
            f"{LEAKAGE}: {model} was trained on {self.seen} of the {self.checked} images that could be checked, so its "
            f"figures say nothing about new images: evaluate on a split that it has not seen"
        )


def training_sample(corpus: Corpus) -> dict[str, Any]:
    """Return the number of training images and a sample of them, for a model's provenance.

    A hash of its identifier and its first text identifies an image. The sample holds the smallest hashes. Whether the
    sample has another image is certain if the image's hash is not larger than the largest of the sample. So the share
    of seen images can be estimated for any data set.

    Args:
        corpus: the images that a model is trained on, with their texts.
    """
    return _written(len(corpus), np.sort(_hashes(corpus))[:SAMPLE_SIZE])


def also_trained_on(data: Mapping[str, Any], *before: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data in a model's provenance, whose sample also has the images of other trainings.

    Args:
        data: the data that the model is trained on now.
        before: the provenance of the model that it began from, which is not checked.
    """
    stated = _stated({"data": data}), *map(_stated, before)
    known = [each for each in stated if each is not None]
    return {**data, "trained_on": _written(*_union(known))} if len(known) > 1 else dict(data)


def _union(known: Sequence[_Sample]) -> _Sample:
    """Join samples. The result holds all hashes up to the smallest bound of the incomplete samples."""
    hashes = np.unique(np.concatenate([sample for _, sample in known]))
    bounds = [int(sample.max()) for count, sample in known if count > len(sample)]
    common = hashes[hashes <= min(bounds)] if bounds else hashes
    return max(len(hashes), *(count for count, _ in known)), common[:SAMPLE_SIZE]


def _written(count: int, smallest: UInt[np.ndarray, "S"]) -> dict[str, Any]:
    """Return a sample as provenance keeps it. ``count`` is the number of all images."""
    digits = smallest.astype(">u8").view(np.uint8).reshape(-1, 8)[:, 8 - _KEPT_BYTES :]
    return {"images": count, "sample": base64.b64encode(digits.tobytes()).decode()}


def remembers_training(provenance: Mapping[str, Any]) -> bool:
    """Return whether a model names its training images. A converted one does not."""
    return _stated(provenance) is not None


def seen_in_training(provenance: Mapping[str, Any], corpus: Corpus) -> Seen:
    """Return the share of a corpus that a model has seen, or nothing if it does not name its training images.

    Args:
        provenance: the provenance of the model, which is not checked.
        corpus: the corpus to evaluate on.
    """
    if (stated := _stated(provenance)) is None:
        return Seen(0, 0)
    hashes, (count, sample) = _hashes(corpus), stated
    if count > len(sample):
        hashes = hashes[hashes <= sample.max()]
    return Seen(len(hashes), int(np.isin(hashes, sample).sum()))


def _hashes(corpus: Corpus) -> UInt[np.ndarray, "I"]:
    """Return a hash of 48 bits for each image."""
    first: dict[int, int] = {}
    for image, text in zip(corpus.relevance.images.tolist(), corpus.relevance.texts.tolist(), strict=True):
        first.setdefault(image, text)
    named = (
        f"{image_id}\n{corpus.captions[first[number]].casefold() if number in first else ''}"
        for number, image_id in enumerate(corpus.image_ids)
    )
    mask = (1 << 8 * _KEPT_BYTES) - 1
    return np.fromiter((stable_hash(name) & mask for name in named), dtype=np.uint64, count=len(corpus))


def _stated(provenance: Mapping[str, Any]) -> _Sample | None:
    """Return the number of training images and the sample of them that a model remembers, or None without one.

    Provenance may hold anything.
    """
    stated = section(provenance, "data", "trained_on")
    try:
        content = np.frombuffer(base64.b64decode(stated["sample"], validate=True), dtype=np.uint8)
        if not len(content) or not isinstance(stated["images"], int):
            return None
        wide = np.zeros((len(content) // _KEPT_BYTES, 8), dtype=np.uint8)
        wide[:, 8 - _KEPT_BYTES :] = content.reshape(-1, _KEPT_BYTES)
    except (KeyError, TypeError, ValueError, binascii.Error):
        return None
    return stated["images"], wide.view(">u8").ravel().astype(np.uint64)
