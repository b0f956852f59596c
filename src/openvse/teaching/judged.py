"""The judgements of an index as a data set: its images, and the judged sentences with the images that fit."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import numpy as np

from openvse.corpus import Corpus
from openvse.errors import DataError, MissingItemError
from openvse.indexing import Index
from openvse.search.judgements import JUDGEMENTS, Judgements
from openvse.stores.base import Note
from openvse.types import Relevance


def open_judged(root: Path, *, require_images: bool) -> Corpus:
    """Return the images of an index, in the split test, with the sentences whose hits people judged.

    An image belongs to a sentence if people said that it fits. All others do not, judged or not. A sentence for which
    no image fits is left out.

    Args:
        root: the folder of the index.
        require_images: whether to leave out images without a file.

    Raises:
        DataError: no image of the index was judged to fit.
    """
    index = Index.open(root)
    note, paths = Note.of(index), dict[str, Path]()
    for position, item in enumerate(index.table.ids):
        path = index.image_path(position)
        with suppress(MissingItemError):
            paths[item] = note.shown(path) if require_images else path
    with index.database() as database:
        database.close()
    place_of = {item: place for place, item in enumerate(paths)}
    said = Judgements(index.path / JUDGEMENTS).every()
    fit = {
        query: [place_of[each] for each in items if items[each] and each in place_of] for query, items in said.items()
    }
    fit = {query: places for query, places in fit.items() if places}
    if not fit:
        raise DataError(
            f"{root}: no image was judged to fit a sentence: judge hits on the page of a server that learns"
        )
    texts = np.repeat(np.arange(len(fit)), [*map(len, fit.values())])
    pairs = Relevance(np.concatenate([*fit.values()]), texts, len(paths), len(fit))
    return Corpus(f"judged hits of {root.name}", (*paths,), (*paths.values(),), (*fit,), pairs, ("test",) * len(paths))
