"""The evaluation of two-tower models on a data set."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from openvse.datasets import open_corpus
from openvse.errors import OpenVSEError
from openvse.evaluation import (
    Report,
    Reranker,
    embed_ensemble,
    evaluate,
    measure_reliability,
    shown_images,
)
from openvse.features import open_store
from openvse.files import replacing
from openvse.model import TwoTower
from openvse.training.kind import Request, published_for

RELIABILITY = "reliability.png"

_logger = logging.getLogger(__name__)


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
        """Write the report as Markdown and JSON, and the reliability plot, where there are probabilities to plot."""
        self.report.save(folder)
        written = [folder / "report.json", folder / "report.md"]
        if self.report.reliability is None:
            return written
        try:
            figure = self.report.reliability.plot()
        except OpenVSEError as error:
            _logger.warning("%s is not written: %s", RELIABILITY, error)
            return written
        with replacing(folder / RELIABILITY) as partial:
            figure.savefig(partial, format="png", dpi=120)
        return [*written, folder / RELIABILITY]


def evaluate_towers(models: Sequence[TwoTower], request: Request) -> RetrievalEvaluation:
    """Rank in both directions; the scores of several models are averaged.

    Args:
        models: the models; with ``request.rerank`` the last one reranks the proposals of the others.
        request: what to evaluate, and how.

    Raises:
        OpenVSEError: there are more stores than models, or the data or stores cannot be used.
    """
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
    relevance = embedded.corpus.relevance
    curve = models[0].calibration if len(models) == request.folds == 1 else None
    shown = None if curve is None else shown_images(relevance, first.images.vectors)
    again = Reranker(others.pop(), request.rerank_top, request.rerank_weight) if request.rerank else None
    report = evaluate(
        first.images,
        first.texts,
        relevance,
        first.similarity,
        reranker=again,
        others=others,
        name=chosen.name,
        model=", ".join(model.fingerprint for model in models),
        folds=request.folds,
        published=_published(models, relevance.num_images, request.folds),
        problems=embedded.corpus.problems,
        see=None if shown is None else shown.see,
        progress=request.progress,
    )
    if curve is not None and shown is not None:
        report = replace(report, reliability=measure_reliability(curve, shown, relevance))
    return RetrievalEvaluation(report)


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
