"""The judgements of an index as a data set: its images, and the judged sentences with the images that fit."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import numpy as np

from openvse.corpus import Corpus
from openvse.errors import DataError, MissingItemError
from openvse.indexing import Index
from openvse.search.hits import JUDGEMENTS, Judgements
from openvse.stores.base import Note
from openvse.types import Relevance


def open_judged(root: Path, *, require_images: bool) -> Corpus:
    """Return the images of an index, in the split test, with the sentences whose hits people judged.

    An image belongs to a sentence if people said that it fits. All others do not, judged or not. A sentence for which
    no image fits is left out. If required, so is an image without a file. Raise DataError if nothing is left.
    """
    index = Index.open(root)
    note, paths = Note.of(index), dict[str, Path]()
    for position, item in enumerate(index.table.ids):
        with suppress(MissingItemError):
            path = index.image_path(position)
            paths[item] = note.shown(path) if require_images else path
    with index.database() as database:
        database.close()
    place_of = {item: place for place, item in enumerate(paths)}
    every = Judgements(index.path / JUDGEMENTS).every().items()
    fit = {query: [place_of[each] for each in said if said[each] and each in place_of] for query, said in every}
    if not (texts := [query for query, places in fit.items() if places]):
        raise DataError(
            f"{root}: no image was judged to fit a sentence: judge hits on the page of a server that learns"
        )
    owners = np.repeat(np.arange(len(texts)), [len(fit[text]) for text in texts])
    pairs = Relevance(np.concatenate([fit[text] for text in texts]), owners, len(paths), len(texts))
    name, splits = f"judged hits of {root.name}", ("test",) * len(paths)
    return Corpus(name, (*paths,), (*paths.values(),), (*texts,), pairs, splits)
