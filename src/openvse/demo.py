"""The demo: a model that learns the names of emoji and finds emoji images for queries."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from openvse.corpus import Corpus
from openvse.datasets import open_corpus
from openvse.evaluation.embed import embed_corpus
from openvse.evaluation.report import Report, evaluate_sets
from openvse.features.store import FeatureStore
from openvse.files import write_whole
from openvse.indexing import Index
from openvse.indexing.scanning import METADATA
from openvse.model.two_tower import TwoTower
from openvse.retrieval.build import build_model
from openvse.retrieval.names import model_of_names
from openvse.retrieval.recipe import RetrievalRecipe
from openvse.search import Hit, Page, SearchEngine, contact_sheet
from openvse.search.updating import index
from openvse.specs.load import read_recipe, validated
from openvse.tasks.load import load_as
from openvse.tasks.run import run_recipe
from openvse.training.records import Watcher

RECIPE = "k_max_pool/openmoji_cpu"
ANSWERED = ("something to drink", "a happy cat", "bad weather", "a place to sleep", "music", "insect", "fruit")
"""Queries that a model of seed 0 answers well. Most of them differ from every training text."""

BEYOND: Mapping[str, str] = {
    "vehicle on water": "answered in part: it finds a motor boat and a rowing boat, and vehicles on land",
    "an elephant": "not answered: the emoji of the elephant was held out; animals like it come before it",
    "a lawnmower": "not answered: there is no such emoji, and a search always finds something",
}
"""Queries that it does not answer well, each with the reason."""

QUERIES = (*ANSWERED, *BEYOND)
BY_NAMES = ("something against the rain", "public transport", "an insect")
"""Queries that the model of names answers well: it has seen no caption. Drawings are unlike its photographs."""

TOP_K = 7

OnImages = Callable[[int, int, float], None]


@dataclass(frozen=True)
class DemoHit:
    """An image that answers a query. ``held_out`` images were never trained on."""

    label: str
    score: float
    held_out: bool


@dataclass(frozen=True)
class DemoResult:
    """The results of the demo, with the paths of its files.

    ``table`` compares the trained model with the untrained one and chance, on held-out emoji. ``by_names`` are lines of
    what a model of names finds, none if the recipe has no names.
    """

    table: str
    by_names: Sequence[str]
    answers: Sequence[Sequence[DemoHit]]
    report: Path
    contact_sheet: Path
    model: Path
    index: Path


def run_demo(
    out: Path, *, seed: int, watcher: Watcher, on_images: OnImages, overrides: Sequence[str] = ()
) -> DemoResult:
    """Train GPO with AdOpt on OpenMoji, test it on emoji that it never saw, and answer queries over all of them.

    A demo that was interrupted, or has run before, continues from its files.
    """
    source = f"openmoji:{out / 'pictures'}"
    recipe = validated(RetrievalRecipe, read_recipe(RECIPE, [f"data.source={source}", f"seed={seed}", *overrides]))
    run = out / f"run-s{seed}"
    result = run_recipe(
        recipe,
        run,
        resume=True,
        watcher=watcher,
        on_extraction=lambda state: on_images(state.done, state.total, state.per_s),
    )
    corpus = open_corpus(source)
    trained = load_as(TwoTower, result.best)
    untrained = build_model(recipe, captions=corpus.split("train").captions, seed=seed).eval()
    features = FeatureStore(run / "features", trained.image.encoder.fingerprint)
    test = corpus.split("test")
    before = _evaluate(untrained, test, features)
    report = replace(_evaluate(trained, test, features), published={"untrained": before.metrics})
    pictures = Path(str(corpus.image_paths[0])).parent
    _say_names(corpus, pictures / METADATA)
    index(
        trained,
        pictures,
        out / "index",
        overwrite=True,  # the index may be of another seed
        progress=lambda step, state: on_images(state.done, state.total, state.per_s) if step == "images" else None,
    )
    engine = SearchEngine(trained, Index.open(out / "index", trained.fingerprint))
    # The names of emoji would be found as words, too, and the answers are to show what the model has learned.
    hits = [answer.hits for answer in engine.answer(QUERIES, Page(TOP_K, only="similarity"))]
    held_out = {path.name for path, split in zip(corpus.image_paths, corpus.splits, strict=True) if split != "train"}
    sheet = out / "contact_sheet.html"
    write_whole(sheet, _page(hits, held_out))
    return DemoResult(
        table=report.to_markdown(),
        by_names=_found_by_names(recipe, corpus, features) if trained.image.encoder.backbone.classifier() else (),
        answers=[[DemoHit(h.title, h.score, h.id in held_out) for h in answer] for answer in hits],
        report=report.save(out / "report") / "report.md",
        contact_sheet=sheet,
        model=result.best,
        index=out / "index",
    )


def _found_by_names(recipe: RetrievalRecipe, corpus: Corpus, features: FeatureStore) -> list[str]:
    """Return a line for each of ``BY_NAMES``: the emoji that the model of names finds."""
    drawn = list(zip(corpus.image_ids, corpus.image_paths, strict=True))
    model, pairs = model_of_names(recipe, drawn, features.path), corpus.relevance
    titles = dict(zip(pairs.images[::-1].tolist(), pairs.texts[::-1].tolist(), strict=True))
    images = embed_corpus(model, corpus.with_pairs(pairs.texts == 0), features).images
    found = [(row, row.topk(5).indices.tolist()) for row in model.score(images, model.encode_text(BY_NAMES)).T]
    return [
        f"{query!r}: " + ", ".join(f"{corpus.captions[titles[each]]} {row[each]:.2f}" for each in best)
        for query, (row, best) in zip(BY_NAMES, found, strict=True)
    ]


def _evaluate(model: TwoTower, corpus: Corpus, features: FeatureStore) -> Report:
    embedded = embed_corpus(model, corpus, features)
    return evaluate_sets(
        embedded.images,
        embedded.texts,
        embedded.corpus.relevance,
        model.similarity,
        name=corpus.name,
        model=model.fingerprint,
    )


def _say_names(corpus: Corpus, path: Path) -> None:
    """Write the texts of the images for their index: the first as the title, the others as keywords."""
    texts: dict[str, list[str]] = {}
    for image, text in zip(corpus.relevance.images.tolist(), corpus.relevance.texts.tolist(), strict=True):
        texts.setdefault(corpus.image_paths[image].name, []).append(corpus.captions[text])
    lines = [{"file_name": name, "title": title, "keywords": keywords} for name, (title, *keywords) in texts.items()]
    write_whole(path, "".join(json.dumps(each) + "\n" for each in lines))


def _page(hits: Sequence[Sequence[Hit]], held_out: set[str]) -> str:
    """Return the contact sheet, with a mark on the images that were held out of training."""
    queries = [f"{query} ({BEYOND[query]})" if query in BEYOND else query for query in QUERIES]
    return contact_sheet(
        dict(zip(queries, hits, strict=True)),
        "openvse demo: emoji that fit a sentence",
        note="Images: OpenMoji (CC BY-SA 4.0). A badge marks emoji that were held out of training.",
        badges=dict.fromkeys(held_out, "held out"),
    )
