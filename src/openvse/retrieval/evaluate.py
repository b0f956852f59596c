"""The evaluation of two-tower models on a data set, alone or side by side on the same images and texts.

The part of a report for one model shows the best and the worst queries.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, starmap
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias, cast

import numpy as np
from jaxtyping import Float, Int

from openvse.batches.loaders import with_features
from openvse.corpus import Corpus
from openvse.corpus.identity import SplitData
from openvse.corpus.splits import canonical_split
from openvse.corpus.trained_on import seen_in_training
from openvse.datasets import open_corpus
from openvse.datasets.check import leakage_between_splits
from openvse.datasets.registry import parse_source
from openvse.encoders.transformers_text import states_can_be_stored
from openvse.errors import DataError, OpenVSEError
from openvse.evaluation.comparison import Comparison, MeasuredRun, Row
from openvse.evaluation.embed import EmbeddedEnsemble, HubsOut, Member, drawn_for_bank, embed_ensemble, make_bank
from openvse.evaluation.reliability import (
    MIN_SHORT,
    SHORT,
    ScoreCounts,
    fit_calibration,
    fit_short,
    measure_reliability,
    shown_images,
)
from openvse.evaluation.reliability import too_small as too_small_to_calibrate
from openvse.evaluation.report import (
    JUDGES,
    AnsweredQueries,
    AnsweredQuery,
    Findings,
    Judge,
    Outcomes,
    QueryOutcomes,
    Report,
    Shown,
    TestProtocol,
    evaluate_sets,
    largest_changes,
    one_per_image,
    protocols,
    protocols_of,
)
from openvse.evaluation.rerank import Reranker
from openvse.features.extract import extract_text_features, find_stored_features
from openvse.features.store import has_store_of, open_store, open_token_states
from openvse.files import replacing
from openvse.indexing.words import query_words
from openvse.model.base import Model
from openvse.model.two_tower import TwoTower
from openvse.output.documents import Document
from openvse.output.figures import styled
from openvse.pipeline import WorkProgress
from openvse.scoring.calibration import PART, Calibration, ShortCurve
from openvse.scoring.hubs import QueryBank
from openvse.training.kind import (
    Compared,
    Evaluation,
    LoadedRun,
    Request,
    expect_data,
    published_for,
    same_items,
    under_protocol,
)
from openvse.types import EmbeddingSet, FeatureSource, OnProgress

_MOST_IMAGES = 2000  # whose scores with short queries are computed
_ROWS = 64


@dataclass(frozen=True)
class CountedCorpus:
    """The counted scores of a corpus, from which a curve is fitted once every pair has been seen."""

    counts: ScoreCounts
    corpus: Corpus
    images: EmbeddingSet

    def fit(self, model: TwoTower) -> Calibration:
        """Fit the curve of the model whose scores these are, with the curves of queries of one and two words."""
        digest, name = SplitData.of_pairs(self.corpus).digest, self.corpus.name
        curve = fit_calibration(self.counts, model=model.fingerprint, name=name, digest=digest)
        if not model.indexable:
            return curve
        words, said = _words_of(self.corpus)
        return replace(curve, short=_short_curves(model, self.images, words[:_MOST_IMAGES]), said=said)


def count_scores(member: Member, corpus: Corpus) -> CountedCorpus | None:
    """Return a counter of the scores of a corpus, or None if it is too small for a curve."""
    if too_small_to_calibrate(corpus.relevance) is not None:
        return None
    return CountedCorpus(ScoreCounts(member, corpus.relevance), corpus, member.images)


def _short_curves(model: TwoTower, images: EmbeddingSet, words: list[set[str]]) -> dict[str, ShortCurve]:
    """Fit the curves of short queries, made of the words of captions, where an image with all of them is relevant."""
    images, drawing, curves = images[: len(words)], np.random.default_rng(0), {}
    for count, queries in ((1, _single(words)), (2, _pairs(words, drawing))):
        known = [each for each in queries if not any(model.unknown_words(" ".join(each)))]
        chosen = [known[at] for at in sorted(drawing.permutation(len(known))[:SHORT])]
        if len(chosen) < MIN_SHORT:
            continue
        texts = model.encode_text([" ".join(each) for each in chosen]).to(images.vectors.device)
        rows = [model.score(images[at : at + _ROWS], texts).cpu() for at in range(0, len(images), _ROWS)]
        held = np.array([[sum(word in some for word in each) for some in words] for each in chosen])
        scores = np.concatenate([row.float().numpy() for row in rows]).T
        for key, least in ((str(count), 0), (PART, 1))[:count]:
            curves[key] = fit_short(scores, held == count, (least <= held) & (held < count))
    return curves


def _words_of(corpus: Corpus) -> tuple[list[set[str]], float]:
    """Return the words of the captions of each image, folded, without function words, and the share of a caption."""
    words: list[set[str]] = [set() for _ in range(len(corpus))]
    held, captions = 0.0, np.bincount(corpus.relevance.images, minlength=len(corpus))
    for image, text in zip(corpus.relevance.images.tolist(), corpus.relevance.texts.tolist(), strict=True):
        found = query_words(corpus.captions[text])
        words[image] |= {" ".join(parts) for parts in found.values()}
        held += len(found) / captions[image]
    return words, min(1.0, held / max(1, sum(map(len, words))))


def _single(words: Sequence[set[str]]) -> list[tuple[str, ...]]:
    """Return the words of at least two images, and of at most half of them."""
    images = Counter(chain.from_iterable(words))
    return [(word,) for word, count in sorted(images.items()) if 2 <= count <= len(words) / 2]


def _pairs(words: Sequence[set[str]], drawing: np.random.Generator) -> list[tuple[str, ...]]:
    """Return pairs of such words that one image has, drawn image by image."""
    common, pairs = {word for (word,) in _single(words)}, dict[tuple[str, ...], None]()
    for _ in range(1 + 2 * SHORT // max(1, len(words))):
        for held in words:
            if len(both := sorted(held & common)) >= 2:
                pairs[tuple(sorted(drawing.choice(both, 2, replace=False).tolist()))] = None
    return sorted(pairs)


RELIABILITY = "reliability.png"
SHOWN = 4
"""The number of first results that a report shows of each query."""
NamedBank: TypeAlias = tuple[str, QueryBank]
"""A query bank, and its name in a report."""
SIDES = (("t2i", "Texts asking for images"), ("i2t", "Images asking for texts"))
"""The directions, with the titles of their queries."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RetrievalEvaluation(Evaluation):
    """A retrieval report. ``corpus`` holds the images that could be read."""

    report: Document
    corpus: Corpus | None = None

    def write(self, folder: Path) -> list[Path]:
        """Write the report as Markdown and JSON, and the reliability plot, if there are probabilities to plot."""
        written = super().write(folder)
        reliability = self.report.reliability if isinstance(self.report, Report) else None
        if reliability is None:
            return written
        try:
            with styled(), replacing(folder / RELIABILITY) as partial:
                reliability.plot().savefig(partial, format="png")
        except OpenVSEError as error:
            _logger.warning("%s is not written: %s", RELIABILITY, error)
            return written
        return [*written, folder / RELIABILITY]

    def score(self) -> tuple[str, float]:
        """Return RSUM."""
        return "rsum", self._measured().metrics["rsum"]

    def findings(self, count: int) -> Findings:
        """Return the figures, and ``count`` best and worst queries of each direction, if they were kept."""
        report, corpus = self._measured(), self.corpus
        return Findings(
            data=report.protocol.name,
            size={"num_images": report.protocol.num_images, "folds": report.protocol.folds},
            metrics=report.metrics,
            intervals=report.intervals,
            beside=report.beside(),
            notes=tuple(report.protocol_lines()),
            problems=report.problems,
            protocols=() if corpus is None else protocols_of(corpus),
            reliability=report.reliability,
            queries=tuple(_queries(corpus, report.outcomes, count)) if corpus and count else (),
            digest="" if corpus is None else SplitData.of_pairs(corpus).digest,
        )

    def _measured(self) -> Report:
        if isinstance(self.report, Report):
            return self.report
        raise OpenVSEError(
            f"{type(self.report).__name__} has figures of its own kind: use 'openvse evaluate' for the protocol"
        )


def evaluate_towers(models: Sequence[TwoTower], request: Request) -> RetrievalEvaluation:
    """Rank in both directions. The scores of several models are averaged, or the last one re-ranks for the others."""
    if request.exchanged:
        raise OpenVSEError("--exchanged is for models that answer questions: leave it out for retrieval")
    request, protocol = under_protocol(request, "retrieval")
    corpus = open_captioned(request)
    expect_data(protocol, corpus.name)
    judge = _judge(protocol, models, request)
    chosen = request.part(corpus) if protocol is None else protocol.pooled(request.part(corpus))
    request.check_stores(len(models))
    stores = stores_for(models, chosen, request, several=len(models) > 1)
    read = [] if not request.features else [number for number, store in enumerate(stores) if store is None]
    if read:  # they are needed now
        _logger.info("%d model(s) read the images: no feature store there belongs to their encoders", len(read))
        corpus = open_captioned(request, require_images=True)
        chosen = request.part(corpus) if protocol is None else protocol.pooled(request.part(corpus))
    check_calibration(models, chosen, request)
    bank = open_bank(models, corpus, request)
    embedded = embed_requested(models, chosen, stores, request)
    names = ["the model"] if len(models) == 1 else [f"model {n}" for n in range(1, len(models) + 1)]
    leaks = (
        *leakage_lines(zip(names, models, strict=True), embedded.corpus),
        *leakage_between_splits(corpus, request.split),
    )
    if judge is not None:
        (member,), root = embedded.members, parse_source(request.data)[1]
        judged = judge(root, embedded.corpus, member, models[0].fingerprint, leaks)
        return RetrievalEvaluation(judged, leaks)
    size = len(embedded.corpus), len(embedded.corpus.captions)
    counted = count_scores(embedded.members[0], embedded.corpus) if request.calibrate else None
    if request.calibrate and counted is None:
        raise DataError(f"{chosen.name}: too few images can be read for a curve from score to probability")
    report = report_on(models, embedded, request, chosen.name, bank, counted)
    if protocol is None:
        other = _protocol_of_figures(models, embedded.corpus, request.folds)
    else:
        other = filter(None, [protocol.mismatch(*size)])
    warnings = (*leaks, *other)
    if request.folds > 1 and size[0] < len(chosen):
        warnings += (f"the {request.folds} folds are cut from the {size[0]:,} images that can be used",)
    problems = (*warnings, *report.problems)
    curve = None if counted is None else counted.fit(models[0])
    report = replace(report, problems=problems)
    return RetrievalEvaluation(report, warnings, embedded.corpus, calibration=curve)


def check_calibration(models: Sequence[TwoTower], corpus: Corpus, request: Request) -> None:
    """Raise OpenVSEError for a requested curve that cannot be fitted, before anything is embedded."""
    if not request.calibrate:
        return
    if len(models) > 1 or request.folds > 1 or request.query_bank or request.protocol:
        raise OpenVSEError("--calibrate fits the curve of one model: name one, without folds, query bank or protocol")
    if request.split != "all" and canonical_split(request.split) == "test":
        raise OpenVSEError("--calibrate fits a curve, which must not see the test split: give --split validation")
    if reason := too_small_to_calibrate(corpus.relevance):
        raise DataError(f"{corpus.name} is too small for a curve from score to probability: {reason}")


def open_captioned(request: Request, *, require_images: bool = False) -> Corpus:
    """Open all splits of the data of a request. Without stores, or if required, the images must exist."""
    return open_corpus(
        request.data,
        require_images=require_images or not request.features,
        allow_outside=request.allow_outside,
        questions=False,
    )


def stores_for(
    models: Sequence[TwoTower], corpus: Corpus, request: Request, *, first: int = 0, several: bool = False
) -> list[FeatureSource | None]:
    """Return the store of each model: the named one, or its run's, if it holds all images in their present state.

    ``first`` is the number of the first model among those in the request. If one place was named for ``several``, a
    model that can read images reads them where no store there belongs to its encoder.
    """
    stores: list[FeatureSource | None] = []
    for number, model in enumerate(models):
        named, encoder = request.store(first + number), model.image.encoder
        if several and len(request.features) == 1 and named is not None and encoder.backbone.reads_images:
            named = named if has_store_of(named, encoder) else None
        if (store := open_store(named, encoder)) is None and number < len(request.places):
            stored = find_stored_features(model, request.places[number])
            if stored is not None and stored.holds(corpus.image_ids, corpus.image_paths):
                store = stored.store
        stores.append(store)
    return stores


def embed_requested(
    models: Sequence[TwoTower], corpus: Corpus, stores: Sequence[FeatureSource | None], request: Request
) -> EmbeddedEnsemble:
    """Embed a corpus for a request, with the stores of its images for each model. See ``embed_ensemble``."""
    return embed_ensemble(
        models,
        corpus,
        stores,
        text_features=[open_token_states(request.text_features, model.text.encoder) for model in models],
        batch_size=request.batch_size,
        processes=request.processes,
        progress=request.progress,
    )


def open_bank(models: Sequence[TwoTower], corpus: Corpus, request: Request) -> NamedBank | None:
    """Embed the query bank that a request names, or return the model's own, with its name.

    The corpus has all splits of the data. A model's own bank is left out where it may hold evaluated items.
    """
    model, plain = models[0], len(models) == 1 and not (request.rerank or request.every)
    named = request.query_bank, request.split
    split, measured = (each if each in ("", "all") else canonical_split(each) for each in named)
    if not split:
        kept = None if not plain or measured in ("all", "train") else model.query_bank
        seen = kept and leakage_lines([("", model)], request.part(corpus))
        return None if kept is None or seen else ("of the model", kept)
    if not plain:
        raise OpenVSEError("--query-bank takes hubs out of the search of one model: leave out --rerank and --every")
    if split == measured or "all" in (split, measured):
        raise OpenVSEError(
            f"the query bank is split {split}, but split {measured} is evaluated: take another split as the bank, such "
            f"as train"
        )
    asked = replace(request, split=split)
    drawn = drawn_for_bank(asked.part(corpus))
    embedded = embed_requested([model], drawn, stores_for([model], drawn, asked), asked)
    return f"{split} of {corpus.name}", make_bank(model.fingerprint, embedded.members[0], embedded.corpus)


def report_on(
    models: Sequence[TwoTower],
    embedded: EmbeddedEnsemble,
    request: Request,
    name: str,
    bank: NamedBank | None = None,
    counted: CountedCorpus | None = None,
) -> Report:
    """Rank embedded images and texts for a request. With ``request.rerank``, the last model re-ranks.

    ``counted`` counts the scores for a new curve. The reliability of the present curve is then not measured.
    """
    first, *others = embedded.members
    relevance = embedded.corpus.relevance
    curve = models[0].calibration if len(models) == request.folds == 1 and counted is None else None
    shown = None if curve is None else shown_images(relevance, first.device)
    again = Reranker(others.pop(), request.rerank_top, request.rerank_weight) if request.rerank else None
    ranked = partial(
        evaluate_sets,
        first.images,
        first.texts,
        relevance,
        first.similarity,
        others=others,
        folds=request.folds,
        processes=request.processes,
        progress=request.progress,
    )
    report = ranked(
        reranker=again,
        name=name,
        model=", ".join(model.fingerprint for model in models),
        resamples=request.resamples,
        seed=request.seed,
        keep=request.keep,
        see=counted.counts.see if counted is not None else None if shown is None else shown.see,
        every=request.every,
    )
    if bank is not None:
        found, (called, kept) = ranked(bank=bank[1], resamples=0), bank
        hubs_out = HubsOut(called, len(kept.images.mask), len(kept.texts.mask), found.metrics)
        report = replace(report, hubs_out=hubs_out)
    published = _published(models, embedded.corpus, request.folds)
    report = replace(report, published=published, problems=embedded.corpus.problems)
    if curve is None or shown is None:
        return report
    return replace(report, reliability=measure_reliability(curve, shown, relevance))


def _judge(protocol: TestProtocol | None, models: Sequence[TwoTower], request: Request) -> Judge | None:
    """Read the judgements of a protocol, before anything is embedded, and return their evaluation function."""
    if protocol is None or not protocol.annotations:
        return None
    if len(models) > 1 or request.rerank or request.query_bank:
        raise OpenVSEError(f"protocol {protocol.name} evaluates one model by itself: name one model, and no query bank")
    if request.annotations is None:
        raise OpenVSEError(f"protocol {protocol.name} needs --annotations: {protocol.annotations}")
    return JUDGES.get(protocol.name)(request.annotations, request.split)


def leakage_lines(models: Iterable[tuple[str, Model]], corpus: Corpus) -> tuple[str, ...]:
    """Return a line for each named model that was trained on images of the corpus, as far as it remembers them."""
    lines = (seen_in_training(model.provenance, corpus).describe(name) for name, model in models)
    return tuple(filter(None, lines))


def _published(models: Sequence[TwoTower], corpus: Corpus, folds: int) -> dict[str, dict[str, float]]:
    """Return the published results of the model's recipe for such a test set, none for an ensemble."""
    if len(models) > 1:
        return {}
    size = {"num_images": len(corpus), "folds": folds}
    return published_for(models[0].provenance, size, protocols_of(corpus))


def _protocol_of_figures(models: Sequence[TwoTower], corpus: Corpus, folds: int) -> Iterator[str]:
    """Yield a line for each protocol that would make the published results of the model comparable."""
    size, fitting = {"num_images": len(corpus), "folds": folds}, protocols_of(corpus)
    for name, protocol in protocols().items() if len(models) == 1 else ():
        figures = published_for(models[0].provenance, size, [name]).keys()
        if name not in fitting and figures - published_for(models[0].provenance, size).keys():
            yield (
                f"the published figures belong to other sentences of {protocol.data}: give --protocol {name} to compare"
            )


def _queries(corpus: Corpus, outcomes: Outcomes | None, count: int) -> Iterator[AnsweredQueries]:
    for side, title in SIDES if outcomes is not None else ():
        yield _Direction(corpus, side, getattr(outcomes, side)).queries(title, count)


class _Direction:
    """The queries of one direction, with the results of each."""

    def __init__(self, corpus: Corpus, side: str, outcomes: QueryOutcomes) -> None:
        self._corpus, self._outcomes, self._asks_with_image = corpus, outcomes, side == "i2t"
        pairs = corpus.relevance
        asking, asked = (pairs.images, pairs.texts) if side == "i2t" else (pairs.texts, pairs.images)
        order = np.argsort(asking, kind="stable")
        self._asked = asked[order]
        self._starts = np.searchsorted(asking[order], np.arange(asking.max() + 2))

    def queries(self, title: str, count: int) -> AnsweredQueries:
        """Return the queries that are right by the widest margin, and the queries whose right answer is farthest."""
        ranks = self._outcomes.ranks
        margins = np.where(ranks == 1, self._margins(), -np.inf)
        best = [number for number in np.argsort(-margins, kind="stable").tolist() if ranks[number] == 1]
        worst = [number for number in np.argsort(-ranks, kind="stable").tolist() if ranks[number] > 1]
        rights = (int(self._right(number)[0]) for number in range(len(ranks)))
        images = self._outcomes.queries.tolist() if self._asks_with_image else list(rights)
        return AnsweredQueries(
            title, *(tuple(map(self._shown, one_per_image(some, images, count))) for some in (best, worst))
        )

    def _right(self, number: int) -> Int[np.ndarray, "R"]:
        query = int(self._outcomes.queries[number])
        return self._asked[self._starts[query] : self._starts[query + 1]]

    def _margins(self) -> Float[np.ndarray, "Q"]:
        """Return by how much the first result of each query scores better than the first wrong one after it."""
        scores = self._outcomes.scores
        margins = np.zeros(len(scores))
        for number, hits in enumerate(self._outcomes.hits):
            wrong = np.flatnonzero(~np.isin(hits, self._right(number)))
            margins[number] = scores[number, 0] - scores[number, wrong[0] if len(wrong) else -1]
        return margins

    def _shown(self, number: int) -> AnsweredQuery:
        rank, positions = int(self._outcomes.ranks[number]), self._outcomes.hits[number, :SHOWN].tolist()
        shown = self.answered(number, positions, "right at once" if rank == 1 else f"right at {rank:,}")
        return replace(shown, right=None) if any(shown.hits) else shown

    def answered(self, number: int, positions: Sequence[int], *results: str) -> AnsweredQuery:
        """Return a query with the candidates at some positions, and a right one."""
        right, of_images = self._right(number), self._asks_with_image
        answer = partial(shown_item, self._corpus, is_image=not of_images)
        return AnsweredQuery(
            query=shown_item(self._corpus, int(self._outcomes.queries[number]), is_image=of_images),
            answers=tuple(map(answer, positions)),
            hits=tuple(position in right for position in positions),
            right=answer(int(right[0])),
            results=results,
        )


def shown_item(corpus: Corpus, position: int, *, is_image: bool) -> Shown:
    """Return an image or a sentence of a corpus for a page that shows it."""
    if is_image:
        return Shown(corpus.image_ids[position], corpus.image_paths[position])
    return Shown(corpus.captions[position])


_FIRST_HITS = 1
"""The number of first results of each query kept for the examples."""


def _examples(corpus: Corpus, first: Row, second: Row, count: int) -> list[AnsweredQueries]:
    """Return the queries whose ranks differ most."""
    rows, found = (first, second), []
    for side, title in SIDES:
        ranks = [-row.queries()[side] for row in rows]
        outcomes: list[QueryOutcomes] = [getattr(row.runs[0].outcomes, side) for row in rows]
        hits = np.stack([each.hits[:, 0] for each in outcomes], axis=1)
        placed, direction = [*zip(ranks, rows, strict=True)], _Direction(corpus, side, outcomes[0])
        ends = (
            [(n, hits[n].tolist(), *(_place(each[n], len(row.runs)) for each, row in placed)) for n in some.tolist()]
            for some in largest_changes(np.log(ranks[0] / ranks[1]), count)
        )
        better, worse = (tuple(starmap(direction.answered, end)) for end in ends)
        found.append(AnsweredQueries(title, better, worse))
    return found


def compare_towers(loaded: Iterable[LoadedRun], request: Request) -> Compared:
    """Rank the same images and texts with each run, one run in memory at a time.

    The runs are loaded twice, because all are checked before anything is embedded. Texts that several runs read with
    the same frozen text model are read once.
    """
    whole = open_captioned(request)
    shares_texts, reads_images = _check(loaded, request.part(whole), request)
    if reads_images:  # the files must exist
        whole = open_captioned(request, require_images=True)
    corpus, shared = request.part(whole), leakage_between_splits(whole, request.split)
    runs: list[MeasuredRun] = []
    done = 0
    with TemporaryDirectory() as states:
        for run in loaded:
            models = cast("tuple[TwoTower, ...]", run.models)
            asked = replace(request, places=run.places, rerank=run.rerank, keep=_FIRST_HITS)
            if shares_texts:
                asked = _with_states(models, corpus, asked, Path(states))
            stores = stores_for(models, corpus, asked, first=done, several=True)
            done += len(models)
            for store in stores:
                corpus = same_items(runs, run.source, "read", "images", corpus, with_features(corpus, store))
            embedded = embed_requested(models, corpus, stores, asked)
            corpus = same_items(runs, run.source, "read", "images", corpus, embedded.corpus)
            report = report_on(models, embedded, asked, corpus.name)
            assert report.outcomes is not None
            queries = {"i2t": -1.0 * report.outcomes.i2t.ranks, "t2i": -1.0 * report.outcomes.t2i.ranks}
            warnings = leakage_lines(((run.source, model) for model in models), corpus)
            measured = report.metrics, report.replicates, queries, warnings, report.outcomes
            runs.append(MeasuredRun(run.source, report.model, *measured))
    frame = Comparison(
        name=corpus.name,
        size={"images": len(corpus), "texts": len(corpus.captions)},
        seed=request.seed,
        resamples=request.resamples,
        problems=(*shared, *corpus.problems),
        folds=request.folds,
    )
    return Compared(tuple(runs), frame, partial(_examples, corpus))


def _check(loaded: Iterable[LoadedRun], corpus: Corpus, request: Request) -> tuple[bool, bool]:
    """Open the inputs of all runs. Return whether frozen text models are the same, and whether images are read."""
    makers: list[str] = []
    done, reads_images = 0, False
    for run in loaded:
        models = cast("tuple[TwoTower, ...]", run.models)
        reads_images |= None in stores_for(models, corpus, request, first=done, several=True)
        done += len(models)
        for model in models:
            encoder = model.text.encoder
            open_token_states(request.text_features, encoder)
            if states_can_be_stored(encoder):
                makers.append(encoder.fingerprint)
    return request.text_features is None and len(set(makers)) < len(makers), reads_images


def _with_states(models: Sequence[TwoTower], corpus: Corpus, request: Request, folder: Path) -> Request:
    """Store the states of the texts from frozen text models that are missing in a folder of stores."""
    for model in models:
        encoder = model.text.encoder
        if states_can_be_stored(encoder):
            store = folder / hashlib.sha256(encoder.fingerprint.encode()).hexdigest()[:16]
            extract_text_features(
                encoder,
                corpus.captions,
                store,
                batch_size=request.batch_size,
                device=model.device,
                dtype="float32",
                progress=partial(_show, request.progress) if request.progress else None,
            )
    return replace(request, text_features=folder)


def _show(progress: OnProgress, state: WorkProgress) -> None:
    progress("reading sentences", state.done, state.total)


def _place(rank: float, runs: int) -> str:
    mean = f" (mean of {runs} runs)" if runs > 1 else ""
    return "first hit" if rank == 1 else f"first hit (right at {rank:.4g}{mean})"
