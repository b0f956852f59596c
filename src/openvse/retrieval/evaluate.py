"""The evaluation of two-tower models on a data set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from openvse.corpus import Corpus, seen_in_training
from openvse.datasets import open_corpus
from openvse.errors import OpenVSEError
from openvse.evaluation import Report, Reranker, embed_ensemble, evaluate
from openvse.features import open_store
from openvse.model import Model, TwoTower
from openvse.training.kind import Request, published_for


@dataclass(frozen=True)
class RetrievalEvaluation:
    """A retrieval report; see ``training.kind.Evaluation``."""

    report: Report
    warnings: tuple[str, ...] = ()

    def to_markdown(self) -> str:
        """Return the report's table."""
        return self.report.to_markdown()

    def to_json(self) -> str:
        """Return the whole report as JSON."""
        return self.report.to_json()

    def write(self, folder: Path) -> list[Path]:
        """Write the report as Markdown and JSON."""
        self.report.save(folder)
        return [folder / "report.json", folder / "report.md"]


def evaluate_towers(models: Sequence[TwoTower], request: Request) -> RetrievalEvaluation:
    """Rank in both directions; the scores of several models are averaged.

    Args:
        models: the models; with ``request.rerank`` the last one reranks the proposals of the others.
        request: what to evaluate, and how.

    Raises:
        OpenVSEError: there are more stores than models, or the data or stores cannot be used.
    """
    if request.exchanged:
        raise OpenVSEError("--exchanged is for models that answer questions: leave it out for retrieval")
    corpus = open_corpus(
        request.data, require_images=not request.features, allow_outside=request.allow_outside
    )
    chosen = corpus if request.split == "all" else corpus.split(request.split)
    paths = _one_store_each(request.features, len(models))
    stores = [open_store(path, model.image.encoder) for model, path in zip(models, paths, strict=True)]
    embedded = embed_ensemble(
        models, chosen, stores, batch_size=request.batch_size, progress=request.progress
    )
    first, *others = embedded.members
    leaks = leakage_lines(models, embedded.corpus)
    again = Reranker(others.pop(), request.rerank_top, request.rerank_weight) if request.rerank else None
    report = evaluate(
        first.images,
        first.texts,
        embedded.corpus.relevance,
        first.similarity,
        reranker=again,
        others=others,
        name=chosen.name,
        model=", ".join(model.fingerprint for model in models),
        folds=request.folds,
        published=_published(models, embedded.corpus.relevance.num_images, request.folds),
        problems=(*leaks, *embedded.corpus.problems),
        progress=request.progress,
    )
    return RetrievalEvaluation(report, leaks)


def leakage_lines(models: Sequence[Model], corpus: Corpus) -> tuple[str, ...]:
    """Return a line for each model that was trained on images of the corpus, as far as it remembers them."""
    names = ["the model"] if len(models) == 1 else [f"model {number}" for number in range(1, len(models) + 1)]
    found = (
        seen_in_training(model.provenance, corpus).describe(name)
        for name, model in zip(names, models, strict=True)
    )
    return tuple(filter(None, found))


def _one_store_each(stores: Sequence[Path], num_models: int) -> list[Path | None]:
    """Return the store of each model: its own, the one for all, or none.

    Raises:
        OpenVSEError: the number of stores does not fit.
    """
    if len(stores) not in (0, 1, num_models):
        raise OpenVSEError(
            f"--features is given {len(stores)} times for {num_models} model(s): give it once for all of them, "
            f"or once per model, in their order"
        )
    if len(stores) == 1:
        return [stores[0]] * num_models
    return [*stores] or [None] * num_models


def _published(models: Sequence[TwoTower], num_images: int, folds: int) -> dict[str, dict[str, float]]:
    """Return the published results of the model's recipe for such a test set; none for an ensemble."""
    if len(models) > 1:
        return {}
    return published_for(models[0].provenance, {"num_images": num_images, "folds": folds})
