"""What an analysis opens by the names that a user gives, models and data, and its result: tables, figures and files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np

from openvse.corpus import Corpus
from openvse.datasets import open_corpus
from openvse.errors import DataError, OpenVSEError
from openvse.evaluation.embed import Member
from openvse.features.store import open_store
from openvse.files import replacing_files, settle
from openvse.model.base import Model
from openvse.model.two_tower import TwoTower
from openvse.output.figures import styled
from openvse.output.table import Table
from openvse.retrieval.evaluate import embed_requested, leakage_lines, open_captioned
from openvse.tasks.load import load
from openvse.tasks.runs import find_run, split_name
from openvse.training.kind import Request
from openvse.types import EmbeddingSet

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Kind = TypeVar("Kind", bound=Model)


@dataclass(frozen=True)
class Embedded:
    """A corpus in the embeddings of a model: the readable images with their texts."""

    name: str
    model: TwoTower
    corpus: Corpus
    images: EmbeddingSet
    texts: EmbeddingSet
    warnings: tuple[str, ...] = ()

    @property
    def member(self) -> Member:
        """The embeddings with the similarity that scores them."""
        return Member(self.images, self.texts, self.model.similarity)


def open_models(words: Sequence[str], device: str) -> dict[str, Model]:
    """Load runs or models, by their names in tables and figures."""
    return {name: load(find_run(source).model, device=device) for name, source in named_sources(words).items()}


def open_two_towers(words: Sequence[str], device: str) -> dict[str, TwoTower]:
    """Load runs or models of retrieval."""
    return only(TwoTower, open_models(words, device))


def only(kind: type[Kind], models: Mapping[str, Model]) -> dict[str, Kind]:
    """Return models that all are of a kind. Raise OpenVSEError if one is of another kind."""
    chosen: dict[str, Kind] = {}
    for name, model in models.items():
        if not isinstance(model, kind):
            raise OpenVSEError(f"{name} {model.purpose}, but this needs a model that {kind.purpose}: name another")
        chosen[name] = model
    return chosen


def named_sources(words: Sequence[str]) -> dict[str, str]:
    """Return runs or models, each as ``find_run`` takes it or as ``NAME=RUN``, by their names in tables and figures.

    Without a name, the folder's name is used, or the word itself where two would be equal.
    """
    given = [split_name(word) for word in words]
    if bare := next((word for word, parts in zip(words, given, strict=True) if "" in parts), None):
        raise OpenVSEError(f"{bare!r} cannot be read: write NAME=RUN, or the run alone")
    sources = [source for _, source in given]
    short = [name or find_run(source).name for name, source in given]
    names = [
        label if name or short.count(label) == 1 else source for (name, source), label in zip(given, short, strict=True)
    ]
    for each in (sources, names):
        if twice := next((word for word in each if each.count(word) > 1), None):
            raise OpenVSEError(f"{twice} is named twice: name each model once, with a name of its own")
    return dict(zip(names, sources, strict=True))


def open_split(request: Request, limit: int | None = None, opened: Corpus | None = None) -> Corpus:
    """Open the split of a request, or take it from the ``opened`` data. ``limit`` images of it are spread evenly."""
    corpus = opened or open_corpus(
        request.data, require_images=not request.features, allow_outside=request.allow_outside
    )
    corpus = request.part(corpus)
    if limit is None or limit >= len(corpus):
        return corpus
    return corpus.select(np.linspace(0, len(corpus) - 1, limit).round().astype(np.int64))


def embed_all(towers: Mapping[str, TwoTower], request: Request, *, limit: int | None = None) -> list[Embedded]:
    """Embed the same images and texts with each model."""
    models = [*towers.values()]
    stores = [open_store(request.store(number), model.image.encoder) for number, model in enumerate(models)]
    corpus = open_split(request, limit, open_captioned(request))
    together = embed_requested(models, corpus, stores, request)
    corpus = together.corpus
    return [
        Embedded(name, model, corpus, member.images, member.texts, leakage_lines([(name, model)], corpus))
        for (name, model), member in zip(towers.items(), together.members, strict=True)
    ]


def warnings_of(embedded: Iterable[Embedded]) -> tuple[str, ...]:
    """Return warnings to read before figures of all these models."""
    return tuple(line for each in embedded for line in each.warnings)


def training_captions(request: Request) -> tuple[str, ...]:
    """Return the captions of the training split of the same data, or none if it has no such split."""
    try:
        corpus = open_corpus(request.data, require_images=False, allow_outside=request.allow_outside)
        return corpus.split("train").captions
    except DataError:
        return ()


Draw: TypeAlias = "Callable[[], Figure]"

ENDINGS = ("png", "svg", "csv")


@dataclass(frozen=True)
class Analysis:
    """The result of an analysis.

    The name of a table or figure is the part of its file's name after ``name``, "" for the main one.
    """

    name: str
    summary: Table
    tables: Mapping[str, Table]
    figures: Mapping[str, Draw] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def write(self, folder: Path, *, overwrite: bool = False) -> list[Path]:
        """Write tables as CSV and figures as PNG and SVG, which take their places together, and return the files."""
        refuse_written(folder, self.name, overwrite=overwrite)
        written: list[Path] = []
        with replacing_files(folder, f"{self.name}.csv", _written(folder, self.name)) as partial:
            for part, table in self.tables.items():
                written.append(partial / f"{self.name}{part and f'_{part}'}.csv")
                written[-1].write_text(table.to_csv(), encoding="utf-8")
            for part, draw in self.figures.items():
                with styled():
                    figure = draw()
                    for ending in ("png", "svg"):
                        written.append(partial / f"{self.name}{part and f'_{part}'}.{ending}")
                        # Without a date, equal numbers give equal files.
                        metadata = {"Date": None} if ending == "svg" else {}
                        figure.savefig(written[-1], format=ending, metadata=metadata)
        return [folder / path.name for path in written]


def refuse_written(folder: Path, name: str, *, overwrite: bool) -> None:
    """Raise OpenVSEError where an earlier result of an analysis would be replaced, before any work is done."""
    settle(folder, f"{name}.csv")
    if not overwrite and (there := _written(folder, name)):
        shown = ", ".join(there[:3]) + (" ..." if len(there) > 3 else "")
        raise OpenVSEError(f"{folder} already holds {shown}: choose another --out, or give --overwrite")


def _written(folder: Path, name: str) -> list[str]:
    return sorted(
        path.name
        for path in (folder.iterdir() if folder.is_dir() else ())
        if path.suffix[1:] in ENDINGS and (path.stem == name or path.stem.startswith(f"{name}_"))
    )
