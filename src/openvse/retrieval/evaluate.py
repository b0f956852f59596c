"""The evaluation of two-tower models on a data set."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from openvse.corpus import Corpus, seen_in_training
from openvse.datasets import open_corpus
from openvse.datasets.coco_judgements import read_cxc, read_eccv_caption
from openvse.datasets.registry import DATASETS, QUESTION_SETS, parse_source
from openvse.errors import OpenVSEError
from openvse.evaluation import (
    EmbeddedEnsemble,
    Report,
    Reranker,
    embed_ensemble,
    evaluate,
    measure_reliability,
    shown_images,
)
from openvse.evaluation.judged import JudgedReport
from openvse.evaluation.protocols import TestProtocol
from openvse.features import open_store, open_token_states
from openvse.files import replacing
from openvse.model import Model, TwoTower
from openvse.retrieval.judged import NumberedItems, judge_cxc, judge_eccv_caption, number_items
from openvse.similarities import Similarity
from openvse.training.kind import Request, check_data, published_for, under_protocol
from openvse.types import FeatureSource

RELIABILITY = "reliability.png"

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RetrievalEvaluation:
    """A retrieval report; see ``training.kind.Evaluation``. ``corpus`` holds the images that could be read."""

    report: Report | JudgedReport
    warnings: tuple[str, ...] = ()
    corpus: Corpus | None = None

    def to_markdown(self) -> str:
        """Return the report's table."""
        return self.report.to_markdown()

    def to_json(self) -> str:
        """Return the whole report as JSON."""
        return self.report.to_json()

    def write(self, folder: Path) -> list[Path]:
        """Write the report as Markdown and JSON, and the reliability plot, if there are probabilities to plot."""
        self.report.save(folder)
        written = [folder / "report.json", folder / "report.md"]
        reliability = self.report.reliability if isinstance(self.report, Report) else None
        if reliability is None:
            return written
        try:
            figure = reliability.plot()
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
        OpenVSEError: there are more stores than models, the data or stores cannot be used, or the data are not those
            of the protocol.
    """
    if request.exchanged:
        raise OpenVSEError("--exchanged is for models that answer questions: leave it out for retrieval")
    request, protocol = under_protocol(request, "retrieval")
    corpus = open_captioned(request)
    check_data(protocol, corpus.name)
    judge = _judge(protocol, models, request)
    chosen = corpus if request.split == "all" else corpus.split(request.split)
    paths = _one_store_each(request.features, len(models))
    stores = [open_store(path, model.image.encoder) for model, path in zip(models, paths, strict=True)]
    embedded = embed_requested(models, chosen, stores, request)
    leaks = leakage_lines(models, embedded.corpus)
    if judge is not None:
        return _judged(judge, models[0], embedded, request, leaks)
    size = len(embedded.corpus), len(embedded.corpus.captions)
    other = () if protocol is None else filter(None, [protocol.mismatch(*size)])
    report = report_on(models, embedded, request, chosen.name)
    warnings = (*leaks, *other)
    problems = (*warnings, *report.problems)
    return RetrievalEvaluation(replace(report, problems=problems), warnings, embedded.corpus)


def open_captioned(request: Request) -> Corpus:
    """Open all splits of the data of a request.

    Raises:
        DataError: the data hold questions in place of captions, or see ``open_corpus``.
    """
    return open_corpus(
        request.data,
        require_images=not request.features,
        allow_outside=request.allow_outside,
        questions=False,
    )


def embed_requested(
    models: Sequence[TwoTower],
    corpus: Corpus,
    stores: Sequence[FeatureSource | None],
    request: Request,
) -> EmbeddedEnsemble:
    """Embed a corpus as a request says, with the stores of its images for each model; see ``embed_ensemble``."""
    return embed_ensemble(
        models,
        corpus,
        stores,
        text_features=[open_token_states(request.text_features, model.text.encoder) for model in models],
        batch_size=request.batch_size,
        processes=request.processes,
        progress=request.progress,
    )


def report_on(models: Sequence[TwoTower], embedded: EmbeddedEnsemble, request: Request, name: str) -> Report:
    """Rank embedded images and texts as a request says.

    Args:
        models: the models that embedded them; with ``request.rerank`` the last one reranks.
        embedded: their embeddings.
        request: folds, reranking, bootstrap and what to keep.
        name: the data set and split.
    """
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
        name=name,
        model=", ".join(model.fingerprint for model in models),
        folds=request.folds,
        resamples=request.resamples,
        seed=request.seed,
        keep=request.keep,
        published=_published(models, relevance.num_images, request.folds),
        problems=embedded.corpus.problems,
        see=None if shown is None else shown.see,
        every=request.every,
        processes=request.processes,
        progress=request.progress,
    )
    if curve is None or shown is None:
        return report
    return replace(report, reliability=measure_reliability(curve, shown, relevance))


Judge = Callable[[NumberedItems, Similarity, str], JudgedReport]


def _judge(protocol: TestProtocol | None, models: Sequence[TwoTower], request: Request) -> Judge | None:
    """Read the judgements of a protocol, before anything is embedded, and return what evaluates on them.

    Raises:
        OpenVSEError: there are several models, or the files of the protocol are not given or cannot be used.
    """
    if protocol is None or not protocol.annotations:
        return None
    if len(models) > 1 or request.rerank:
        raise OpenVSEError(f"protocol {protocol.name} evaluates one model by itself: name one model")
    if request.annotations is None:
        raise OpenVSEError(f"protocol {protocol.name} needs --annotations: {protocol.annotations}")
    if protocol.name == "cxc":
        rated = read_cxc(request.annotations, request.split)
        return lambda items, similarity, model: judge_cxc(items, similarity, rated, model=model)
    judged = read_eccv_caption(request.annotations)
    return lambda items, similarity, model: judge_eccv_caption(items, similarity, judged, model=model)


def _judged(
    judge: Judge, model: TwoTower, embedded: EmbeddedEnsemble, request: Request, leaks: tuple[str, ...]
) -> RetrievalEvaluation:
    (member,) = embedded.members
    root = parse_source(request.data, {*DATASETS, *QUESTION_SETS})[1]
    items = number_items(root, embedded.corpus, member.images, member.texts)
    report = judge(items, model.similarity, model.fingerprint)
    return RetrievalEvaluation(replace(report, problems=(*leaks, *report.problems)), leaks)


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
