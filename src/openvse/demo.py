"""The demo: a model that learns the names of emoji and finds emoji images for queries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from openvse.corpus import Corpus
from openvse.datasets import open_corpus
from openvse.evaluation import Report, embed_corpus, evaluate
from openvse.features import FeatureStore
from openvse.files import write_whole
from openvse.model import TwoTower
from openvse.retrieval.build import build_model
from openvse.retrieval.recipe import RetrievalRecipe
from openvse.search import Hit, Index, SearchEngine, build_index, contact_sheet
from openvse.specs import read_recipe, validated
from openvse.tasks.load import load_as
from openvse.tasks.run import train
from openvse.training.records import Watcher

RECIPE = "vse_infinity/openmoji_cpu"
ANSWERED = ("weather", "vehicle", "crying cat", "insect", "heart", "shoe", "fruit")
"""Queries that a model of seed 0 answers well; names and keywords such as these are what it learned."""

BEYOND = ("vehicle on water", "a happy cat", "an elephant", "a lawnmower")
"""Queries that this model does not answer well."""

QUERIES = (*ANSWERED, *BEYOND)
COMBINES = "not answered well: it learned names and keywords, and hardly how words combine"
NEVER_SAW = "not answered: words it never saw in training"
TOP_K = 7

OnImages = Callable[[int, int, float], None]


@dataclass(frozen=True)
class Answer:
    """An image that answers a query; ``held_out`` images were never trained on."""

    label: str
    score: float
    held_out: bool


@dataclass(frozen=True)
class DemoResult:
    """The results of the demo and the paths of its files.

    Attributes:
        table: a text table that compares the trained model with the untrained one and chance, on held-out emoji.
        answers: the best images for each of ``QUERIES``.
        remarks: for each query, why the model does not answer it well, or "" where it does.
        report: the full report on the test split.
        contact_sheet: the answers as a page.
        model: the model folder.
        index: the index of all images.
    """

    table: str
    answers: Sequence[Sequence[Answer]]
    remarks: Sequence[str]
    report: Path
    contact_sheet: Path
    model: Path
    index: Path


def run_demo(
    out: Path, *, seed: int, watcher: Watcher, on_images: OnImages, overrides: Sequence[str] = ()
) -> DemoResult:
    """Train VSE-infinity on OpenMoji, test it on emoji that it never saw, and answer queries over all of them.

    A demo that was interrupted, or has run before, goes on from what is there.

    Args:
        out: the folder for all files.
        seed: the seed of the training.
        watcher: the object that is notified about the training.
        on_images: a function that is called with the number of images that are done, their total, and the rate.
        overrides: changes to the recipe, as on the command line of ``openvse train``.
    """
    source = f"openmoji:{out / 'pictures'}"
    recipe = validated(
        RetrievalRecipe, read_recipe(RECIPE, [f"data.source={source}", f"seed={seed}", *overrides])
    )
    run = out / f"run-s{seed}"
    result = train(
        recipe,
        run,
        resume=(run / "last.pt").exists(),
        watcher=watcher,
        on_extraction=lambda state: on_images(state.done, state.total, state.images_per_s),
    )
    corpus = open_corpus(source)
    trained = load_as(TwoTower, result.best)
    untrained = build_model(recipe, captions=corpus.split("train").captions, seed=seed).eval()
    features = FeatureStore.open(run / "features", trained.image.encoder.fingerprint)
    test = corpus.split("test")
    before = _evaluate(untrained, test, features)
    report = replace(_evaluate(trained, test, features), published={"untrained": before.metrics})
    build_index(
        trained,
        Path(str(corpus.image_paths[0])).parent,
        out / "index",
        progress=lambda state: on_images(state.done, state.total, state.images_per_s),
    )
    engine = SearchEngine(trained, Index.open(out / "index", trained.fingerprint))
    hits = engine.search(QUERIES, top_k=TOP_K)
    held_out = {
        path.name for path, split in zip(corpus.image_paths, corpus.splits, strict=True) if split != "train"
    }
    names = _names(corpus)
    sheet = out / "contact_sheet.html"
    write_whole(sheet, _page(hits, names, held_out))
    return DemoResult(
        table=report.to_markdown(),
        answers=[[Answer(names[h.id], h.score, h.id in held_out) for h in answer] for answer in hits],
        remarks=_remarks(hits),
        report=report.save(out / "report") / "report.md",
        contact_sheet=sheet,
        model=result.best,
        index=out / "index",
    )


def _evaluate(model: TwoTower, corpus: Corpus, features: FeatureStore) -> Report:
    embedded = embed_corpus(model, corpus, features)
    return evaluate(
        embedded.images,
        embedded.texts,
        embedded.corpus.relevance,
        model.similarity,
        name=corpus.name,
        model=model.fingerprint,
    )


def _names(corpus: Corpus) -> dict[str, str]:
    """Return the first text of each image by its file name."""
    names: dict[str, str] = {}
    for image, text in zip(corpus.relevance.images.tolist(), corpus.relevance.texts.tolist(), strict=True):
        names.setdefault(corpus.image_paths[image].name, corpus.captions[text])
    return names


def _remarks(hits: Sequence[Sequence[Hit]]) -> list[str]:
    """Return why the model does not answer each query well."""
    remarks = []
    for query, answer in zip(QUERIES, hits, strict=True):
        unknown = ", ".join(repr(unknown.word) for hit in answer[:1] for unknown in hit.unknown_words)
        remarks.append(f"{NEVER_SAW}: {unknown}" if unknown else COMBINES if query in BEYOND else "")
    return remarks


def _page(hits: Sequence[Sequence[Hit]], names: dict[str, str], held_out: set[str]) -> str:
    """Name the images, and mark those that the model never trained on."""
    labelled = {
        f"{query} ({remark})" if remark else query: [replace(hit, id=names[hit.id]) for hit in answer]
        for query, remark, answer in zip(QUERIES, _remarks(hits), hits, strict=True)
    }
    badges = {names[file]: "held out" for file in held_out}
    return contact_sheet(
        labelled,
        "openvse demo: emoji that fit a sentence",
        note="Images: OpenMoji (CC BY-SA 4.0). A badge marks emoji that were held out of training.",
        badges=badges,
    )
