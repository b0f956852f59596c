"""A corpus: images, sentences and the pairs that belong together, with identical and long captions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Int

from openvse.corpus.splits import canonical_split, completed_splits, split_positions, without_leakage
from openvse.errors import DataError, NoCaptionsError
from openvse.files import whole_characters
from openvse.media.listing import ImageFile, Problem, skipped
from openvse.media.matching import FoundFiles, find_files
from openvse.types import FeatureSource, Relevance


@dataclass(frozen=True)
class Record:
    """An image, as a loader found it. Several records may describe one image.

    Attributes:
        image_id: the identifier of the image in feature stores and reports.
        path: the expected path of the image file, or its place in a larger file.
        split: a name or synonym of a split, or "" if the data set has none.
    """

    image_id: str
    path: ImageFile
    captions: Sequence[str]
    split: str = ""


@dataclass(frozen=True)
class Corpus:
    """Images, texts and their explicit relevance.

    Attributes:
        name: the name of the data set in messages and reports.
        image_ids: the identifier of each image.
        image_paths: the file of each image, or its place in a larger file.
        captions: the T sentences.
        relevance: the pairs (image, text) that belong together.
        splits: "train", "validation", "test" or "" for each image.
        problems: a line for each kind of item that was skipped at opening. A ``Problem`` also has all cases.
        features: local features of the images that come with the data set. They are read if there is no store and the
            encoder has no backbone.
    """

    name: str
    image_ids: tuple[str, ...]
    image_paths: tuple[ImageFile, ...]
    captions: tuple[str, ...]
    relevance: Relevance
    splits: tuple[str, ...]
    problems: tuple[str, ...] = ()
    features: FeatureSource | None = None

    def __len__(self) -> int:
        return len(self.image_ids)

    def split(self, name: str) -> Corpus:
        """Return the images of one split with their texts.

        Args:
            name: "train", "validation" or "test", or a synonym such as "dev" or "val".

        Raises:
            DataError: the name is unknown, or the split is empty. The message lists the splits.
        """
        labels = self.split_labels()
        drawn = self.image_paths if labels != self.splits else ()
        wanted, positions = split_positions(name, labels, of=self.name, unit="image", files=drawn)
        chosen = self.select(positions)
        return replace(chosen, name=f"{self.name}/{wanted}", splits=(wanted,) * len(chosen))

    def split_labels(self) -> tuple[str, ...]:
        """Return the split of each image: from the data, or if none is in train, from ``completed_splits``."""
        return self._split_labels

    @cached_property
    def _split_labels(self) -> tuple[str, ...]:
        return completed_splits(self.splits, self.image_ids, self.image_paths)

    def select(self, image_positions: Int[np.ndarray, "I"]) -> Corpus:
        """Return the images at these positions, in this order, with all texts relevant to one of them."""
        row_of = np.full(len(self), -1)
        row_of[image_positions] = np.arange(len(image_positions))
        rows = row_of[self.relevance.images]
        order = np.argsort(rows, kind="stable")[np.count_nonzero(rows < 0) :]
        chosen = replace(
            self,
            image_ids=tuple(self.image_ids[i] for i in image_positions),
            image_paths=tuple(self.image_paths[i] for i in image_positions),
            splits=tuple(self.splits[i] for i in image_positions),
        )
        return chosen._paired(rows[order], self.relevance.texts[order])

    def with_pairs(self, mask: Bool[np.ndarray, "P"]) -> Corpus:
        """Return all images with the texts of some of the pairs."""
        return self._paired(self.relevance.images[mask], self.relevance.texts[mask])

    def _paired(self, images: Int[np.ndarray, "P"], texts: Int[np.ndarray, "P"]) -> Corpus:
        """Return the images with the texts of some pairs, which are numbered by their first pair."""
        known, first, inverse = np.unique(texts, return_index=True, return_inverse=True)
        by_pair = np.argsort(first)
        number = np.empty_like(by_pair)
        number[by_pair] = np.arange(len(by_pair))
        captions = tuple(self.captions[i] for i in known[by_pair])
        return replace(
            self, captions=captions, relevance=Relevance(images, number[inverse], len(self.image_ids), len(captions))
        )


def build_corpus(name: str, records: Iterable[Record], *, require_images: bool = True) -> Corpus:
    r"""Check records and join them into a corpus, in which every caption is a text of its own.

    Records of one file are one image with the captions of all of them. A file is found by its name exactly, or in
    another Unicode form, or if only one file fits, with ``\\`` for ``/`` or in another case (see ``find_files``).
    Captions with a missing image file, images without a caption and empty captions are left out and counted in
    ``problems``. So is leakage: an image of several splits is kept in the last of train, validation and test.

    Args:
        name: the name of the data set in messages.
        records: records of images.
        require_images: whether to leave out images without a file. False if precomputed features replace them.

    Raises:
        DataError: an identifier means two files, an image is listed in a split and in none, or nothing is left.
    """
    usable = [_canonical(record) for record in records]
    explicit, unsaid = (
        [each.path for each in usable if isinstance(each.path, Path) and bool(each.captions) is captioned]
        for captioned in (True, False)
    )
    has_captions = any(record.captions for record in usable)
    files = find_files(explicit, unsaid)
    usable = _one_name_each(name, usable, files)
    problems: list[str] = []
    usable = without_leakage(problems, usable)
    usable = _joined(name, usable)
    if otherwise := files.otherwise_written():
        problems.append(Problem(f"matched {len(otherwise)} name(s) to files written in another way", otherwise))
    usable = _usable(problems, usable, files if require_images else None)
    if not usable:
        reasons = "; ".join(problems) or "there are no records"
        kind = DataError if has_captions or not problems else NoCaptionsError
        raise kind(f"{name}: no image with a caption is left ({reasons}): check the folder and the file names")
    captions = tuple(chain.from_iterable(record.captions for record in usable))
    images = np.repeat(np.arange(len(usable)), [len(record.captions) for record in usable])
    return Corpus(
        name=name,
        image_ids=tuple(record.image_id for record in usable),
        image_paths=tuple(record.path for record in usable),
        captions=captions,
        relevance=Relevance(images, np.arange(len(captions)), len(usable), len(captions)),
        splits=tuple(record.split for record in usable),
        problems=tuple(problems),
    )


def in_order(records: Iterable[Record], *, only_training: bool = False) -> list[Record]:
    """Sort records by their identifiers.

    Training draws pairs by their position. So the published forms of a data set (a token file, a JSON, arrays) give the
    same batches only if their training images have the same order. With ``only_training``, the images of validation and
    test stay in the order of the file, after the others, because the five folds of COCO's test are cut in it.
    """
    held_out = ("validation", "test") if only_training else ()
    canonical = [_canonical(record) for record in records]
    training = [record for record in canonical if record.split not in held_out]
    rest = [record for record in canonical if record.split in held_out]
    return sorted(training, key=lambda record: record.image_id) + rest


def _canonical(record: Record) -> Record:
    split = canonical_split(record.split) if record.split else ""
    return record if record.split == split else replace(record, split=split)


def _one_name_each(name: str, records: Sequence[Record], files: FoundFiles) -> list[Record]:
    """Give all records of a file its path and the first of their identifiers. Drop the others."""
    id_of: dict[Path, str] = {}
    place_of: dict[str, ImageFile] = {}
    named = []
    for record in records:
        place, image_id = record.path, record.image_id
        if isinstance(place, Path) and place in files.files:
            place = files.files[place]
            image_id = id_of.setdefault(place, image_id)
        if place_of.setdefault(image_id, place) != place:
            raise DataError(f"{name}: image {image_id!r} is two files, {place_of[image_id]} and {place}: rename one")
        named.append(replace(record, image_id=image_id, path=place))
    captioned = {record.image_id for record in named if record.captions}
    return [record for record in named if record.captions or record.image_id not in captioned]


def _joined(name: str, records: Sequence[Record]) -> list[Record]:
    """Return one record for each image, with the captions of all its records in their order."""
    rows: dict[str, list[Record]] = {}
    for record in records:
        rows.setdefault(record.image_id, []).append(record)
    for image_id, group in rows.items():
        if len({record.split for record in group}) > 1:
            raise DataError(f"{name}: image {image_id!r} is listed in a split and in none: give all its rows one split")
    return [
        group[0]
        if len(group) == 1
        else replace(group[0], captions=[caption for record in group for caption in record.captions])
        for group in rows.values()
    ]


def _usable(problems: list[str], records: Sequence[Record], files: FoundFiles | None) -> list[Record]:
    """Return the usable records, and add a line for each kind of problem, where all images exist without ``files``."""
    if files is not None:
        present = set(files.files.values())
        missing = [each.path for each in records if isinstance(each.path, Path) and each.path not in present]
        gone = set(missing)
        records = [record for record in records if record.path not in gone]
        lines = [files.without_file(path) for path in missing]
        problems += skipped(lines, "captioned image(s) without a file", fault=True)
    halved = [r.image_id for r in records if any(whole_characters(each) != each for each in r.captions)]
    if halved:
        summary = f"{len(halved)} image(s) have a caption with half a character, which is read as U+FFFD"
        problems.append(Problem(summary, halved))
    clean = [replace(record, captions=_tidy(record.captions)) for record in records]
    pairs = list(zip(records, clean, strict=True))
    emptied = [old.image_id for old, new in pairs if len(new.captions) < len(old.captions)]
    problems += skipped(emptied, "image(s) with an empty caption")
    problems += skipped([new.image_id for new in clean if not new.captions], "image(s) without a caption")
    return [record for record in clean if record.captions]


def _tidy(captions: Sequence[str]) -> tuple[str, ...]:
    return tuple(whole_characters(tidied) for caption in captions if (tidied := " ".join(caption.split())))


@dataclass(frozen=True)
class SharedTexts:
    """The number of texts that are relevant to several images, and of the images that have them as captions."""

    num_texts: int
    num_images: int

    @classmethod
    def of(cls, relevance: Relevance) -> SharedTexts:
        """Count the texts that are relevant to several images."""
        shared = np.bincount(relevance.texts, minlength=relevance.num_texts) > 1
        return cls(int(shared.sum()), len(np.unique(relevance.images[shared[relevance.texts]])))

    def describe(self) -> str:
        """Return a line with these numbers, or "" if there are no such texts."""
        if not self.num_texts:
            return ""
        counts = f"{self.num_texts:,}, of {self.num_images:,} images"
        return f"identical captions: {counts}. Each counts as relevant to all images that have it"


def merge_identical(corpus: Corpus, key: Callable[[str], str] = str.casefold) -> Corpus:
    """Merge captions that differ at most in case into one text, which is relevant to all images that have it.

    The first spelling of the text is kept. White space does not matter either, since ``build_corpus`` tidies it.

    Args:
        key: a function of a caption. Captions with equal results are merged.
    """
    numbers: dict[str, int] = {}
    captions: list[str] = []
    number_of = np.empty(len(corpus.captions), dtype=np.int64)
    for position, caption in enumerate(corpus.captions):
        number_of[position] = numbers.setdefault(key(caption), len(numbers))
        if len(numbers) > len(captions):
            captions.append(caption)
    if len(captions) == len(corpus.captions):
        return corpus
    pairs = dict.fromkeys(
        zip(corpus.relevance.images.tolist(), number_of[corpus.relevance.texts].tolist(), strict=True)
    )
    images, texts = np.array(list(pairs), dtype=np.int64).T
    relevance = Relevance(images, texts, corpus.relevance.num_images, len(captions))
    return replace(corpus, captions=tuple(captions), relevance=relevance)


LONG_CAPTION = 256
"""The number of words, separated by white space. Captions of published data sets have less than half of it."""


def long_captions(captions: Sequence[str]) -> str:
    """Return a line that counts long captions, or "" if there are none."""
    lengths = [len(caption.split()) for caption in captions]
    longest = max(lengths, default=0)
    if longest <= LONG_CAPTION:
        return ""
    count = sum(length > LONG_CAPTION for length in lengths)
    return (
        f"{count:,} caption(s) have more than {LONG_CAPTION} words (the longest {longest:,}): text encoders read only "
        f"the beginning (bigru: max_words, transformers_text: max_length)"
    )
