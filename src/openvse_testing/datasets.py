"""The contract of a data set's loader."""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from openvse.corpus import Corpus
from openvse.corpus.splits import SPLITS
from openvse.datasets import DATASETS
from openvse.datasets.registry import Loader
from openvse.errors import BadImageError, OpenVSEError
from openvse.media.videos import read_poster
from openvse_testing.contract import BrokenContractError, hold, part_name, require


def check_dataset(loader: str | Loader, root: str | Path, *, decode: int = 8) -> None:
    """Check that a loader opens a copy of its data set as training and evaluation need it.

    A small copy in the real layout is enough. The copy opens twice with the same result. Identifiers are unique. Every
    image has a caption and every caption an image. Splits have known names. Images can be decoded. The same items open
    without image files. An empty folder is refused with one line.

    Args:
        loader: the loader function, or its registered name.
        root: a copy of the data set, complete with its images.
        decode: the number of images to decode, evenly spread over the data set.

    Raises:
        BrokenContractError: a promise is broken. The message names each.

    Examples:
        >>> check_dataset("folder", "photos")  # doctest: +SKIP
    """
    function = DATASETS.get(loader) if isinstance(loader, str) else loader
    try:
        corpus = _open(function, Path(root))
    except (OpenVSEError, OSError) as error:
        raise BrokenContractError(f"{part_name(loader)} does not open {root}: {error}") from error
    hold(_Copy(function, Path(root), corpus, decode), DATASET_PROMISES, part_name(loader))


@dataclass(frozen=True)
class _Copy:
    """A copy of a data set, opened once."""

    loader: Loader
    root: Path
    corpus: Corpus
    decode: int


def _open(loader: Loader, root: Path, *, require_images: bool = True) -> Corpus:
    opened = loader(root, require_images=require_images)
    return opened if isinstance(opened, Corpus) else opened.as_corpus()


def _require_equal(first: Corpus, second: Corpus, what: str) -> None:
    for name in ("image_ids", "captions", "splits"):
        require(getattr(first, name) == getattr(second, name), f"{what} gives other {name}")
    same = np.array_equal(first.relevance.images, second.relevance.images)
    require(same and np.array_equal(first.relevance.texts, second.relevance.texts), f"{what} gives other pairs")


def _again(copy: _Copy) -> None:
    _require_equal(copy.corpus, _open(copy.loader, copy.root), "opening the copy again")


def _identifiers(copy: _Copy) -> None:
    ids = copy.corpus.image_ids
    repeated = sorted(image_id for image_id, count in Counter(ids).items() if count > 1)
    require(not repeated, f"image {next(iter(repeated), '')} is listed twice: list it once, with all its captions")
    lengths = {len(ids), len(copy.corpus.image_paths), len(copy.corpus.splits), copy.corpus.relevance.num_images}
    require(len(lengths) == 1, "image_ids, image_paths, splits and relevance differ in number: use build_corpus")


def _partners(copy: _Copy) -> None:
    relevance, captions = copy.corpus.relevance, copy.corpus.captions
    require(relevance.num_texts == len(captions), "captions and relevance differ in number: use build_corpus")
    for what, paired, count in (
        ("image", relevance.images, relevance.num_images),
        ("caption", relevance.texts, relevance.num_texts),
    ):
        alone = np.setdiff1d(np.arange(count), paired)
        require(
            not len(alone), f"{what} {next(iter(alone), '')} belongs to nothing: use build_corpus, which leaves it out"
        )
        require(not len(np.setdiff1d(paired, np.arange(count))), f"relevance names a {what} that is not there")
    blank = [number for number, caption in enumerate(captions) if not caption.strip()]
    require(not blank, f"caption {next(iter(blank), '')} is empty: use build_corpus, which leaves it out")


def _splits(copy: _Copy) -> None:
    unknown = sorted({*copy.corpus.splits} - {*SPLITS, ""})
    require(not unknown, f"unknown split(s) {unknown}: allowed are {', '.join(SPLITS)}, or '' for none")


def _images(copy: _Copy) -> None:
    paths = copy.corpus.image_paths
    if copy.corpus.features is not None:  # the data set has features instead of images
        return
    for number in np.unique(np.linspace(0, len(paths) - 1, min(copy.decode, len(paths))).astype(int)):
        try:
            read_poster(paths[number])
        except BadImageError as error:
            raise BrokenContractError(str(error)) from error


def _without_images(copy: _Copy) -> None:
    opened = _open(copy.loader, copy.root, require_images=False)
    missing = {*copy.corpus.image_ids} - {*opened.image_ids}
    require(not missing, f"require_images=False loses {len(missing)} image(s), such as {min(missing, default='')}")


def _empty(copy: _Copy) -> None:
    with tempfile.TemporaryDirectory() as empty:
        try:
            _open(copy.loader, Path(empty))
        except OpenVSEError as error:
            require("\n" not in str(error), "the error for an empty folder has several lines")
        except OSError:  # names the missing file, and the command line turns it into one line
            pass
        except Exception as error:
            raise BrokenContractError(
                f"an empty folder raises {type(error).__name__}: raise a DataError that names the missing files"
            ) from error
        else:
            raise BrokenContractError("an empty folder opens: raise a DataError that names the missing files")


DATASET_PROMISES = (_again, _identifiers, _partners, _splits, _images, _without_images, _empty)
