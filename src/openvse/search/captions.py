"""The captions of indexed images, which are shown with the hits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from openvse.errors import OpenVSEError


def captions_beside(root: Path) -> Mapping[str, Sequence[str]]:
    """Return the captions of the images in a folder, by their path below it with forward slashes.

    Args:
        root: an indexed folder; if ``open_corpus`` cannot read it as a data set, there are no captions.
    """
    try:
        from openvse.datasets import open_corpus
    except ImportError:  # the runtime distribution reads no data sets
        return {}
    try:
        corpus = open_corpus(root, require_images=False, allow_outside=True)
    except (OpenVSEError, OSError):  # most folders only hold images
        return {}
    names: list[str | None] = []
    for path in corpus.image_paths:
        if not isinstance(path, Path):  # in an archive or a table, which an index does not read
            names.append(None)
            continue
        try:
            names.append(path.resolve().relative_to(root.resolve()).as_posix())
        except (ValueError, OSError):  # the data set names an image elsewhere
            names.append(None)
    captions: defaultdict[str, list[str]] = defaultdict(list)
    for image, text in zip(corpus.relevance.images.tolist(), corpus.relevance.texts.tolist(), strict=True):
        if (name := names[image]) is not None:
            captions[name].append(corpus.captions[text])
    return captions
