"""The search engine: queries in, the best items of a catalogue out."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

from openvse.errors import DataError, IndexFormatError
from openvse.index.conditions import Condition, parse_conditions
from openvse.index.embedding import embeds_gaussians
from openvse.index.index import Index
from openvse.index.manifest import check_model
from openvse.media.segments import span_of
from openvse.media.videos import ClipSource
from openvse.runtime.arrays import ArraySet, turned, uncertainties
from openvse.scoring.calibration import Calibration
from openvse.search.catalogue import Catalogue, IndexCatalogue, StoreCatalogue
from openvse.search.exact import ExactSearch, comparison_of
from openvse.search.hits import Answer, Hit, Probabilities, best_of_files, title_of
from openvse.search.query import EmbeddedQueries, Page, Query, as_arrays, embed_queries
from openvse.search.words import DEPTH, WordHits, joined
from openvse.stores import Note, StoreAddress
from openvse.tokenization.vocabulary import UnknownWord

_logger = logging.getLogger(__name__)

Asked: TypeAlias = str | Query
"""A sentence, or a query of several parts."""


@runtime_checkable
class SearchModel(Protocol):
    """What the search engine needs of a model; ``TwoTower`` and ``OnnxModel`` have it.

    Optional are ``score`` (an exported model has ``kind`` instead), ``unknown_words`` and ``calibration``.
    """

    @property
    def fingerprint(self) -> str:
        """A hash that identifies the model."""
        ...

    def encode_text(self, captions: Sequence[str]) -> Any:
        """Embed sentences as an embedding set of tensors or arrays."""
        ...

    def encode_image(self, images: Any) -> Any:
        """Embed images or clips as an embedding set of tensors or arrays."""
        ...


@runtime_checkable
class SearchReranker(Protocol):
    """What ranks the first hits of sentences again; ``openvse.retrieval.HitReranker`` is one.

    Attributes:
        top: the number of hits of each query that it ranks.
    """

    top: int

    def rerank(
        self, queries: Sequence[Query], answers: Sequence[Answer], pages: Sequence[Page]
    ) -> list[Answer]:
        """Rank the first hits of every answer, and return pages of them."""
        ...


class SearchEngine:
    """Finds the images of an index that fit sentences, or resemble images; with or without the folder of the index.

    Args:
        model: the model that made the embeddings: one of PyTorch, or an exported one.
        source: what to search: an index, or the address of a store that an index has filled (``read_address``).
        engine: ``exact``, for an exact search whatever the index has; or the engine of the index, by its name or by the
            URL of its server, with the secrets that the index does not know. None takes that of the index, and its URL
            from the index and the environment.
        images: for a store, where the first of the indexed folders is now; None leaves it where it was.

    Attributes:
        catalogue: the items that are searched, and what is known of them.
        calibration: the model's curve from score to probability; None where it keeps none, and for sentences.

    Raises:
        IndexFormatError: another model made the embeddings.
        EngineError: the engine cannot be reached, or cannot serve the model.

    Examples:
        >>> engine = SearchEngine(model, Index.open("index"))  # doctest: +SKIP
        >>> engine.search(["a dog on a beach"], top_k=3)[0][0].path  # doctest: +SKIP
    """

    def __init__(
        self,
        model: SearchModel,
        source: Index | StoreAddress,
        *,
        engine: str | None = None,
        images: Path | None = None,
    ) -> None:
        self._model = model
        self.catalogue: Catalogue
        if isinstance(source, Index):
            check_model(source.path, source.manifest, model.fingerprint)
            compare = comparison_of(model, source.manifest.holds)
            self.catalogue = IndexCatalogue(source, compare, model=model, engine=engine)
        else:
            compare = comparison_of(model, "images")
            self.catalogue = StoreCatalogue(source, compare, model.fingerprint, images=images)
        self._are_texts = self.note.holds == "sentences"
        self._compare, self._of_gaussians = compare, embeds_gaussians(model)
        self.calibration: Calibration | None = (
            None if self._are_texts else getattr(model, "calibration", None)
        )

    @property
    def note(self) -> Note:
        """What the items have in common: the model, the shape of the embeddings, the indexed folders."""
        return self.catalogue.note

    @property
    def root(self) -> Path:
        """The first of the indexed folders."""
        return Path(self.note.roots[0].path if self.note.roots else "")

    def close(self) -> None:
        """Close files and connections; the engine cannot be used afterwards."""
        self.catalogue.close()

    def __enter__(self) -> SearchEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def search(self, queries: Asked | Sequence[Asked], top_k: int = 10) -> list[list[Hit]]:
        """Return the best items of every query, best first; ``answer`` does more.

        An empty sentence is logged, and has no hits.

        Args:
            queries: any number of sentences or queries; one that is given by itself is a sequence of one.
            top_k: how many items of each; fewer are returned where there are fewer.

        Raises:
            BadImageError: an image cannot be decoded.
            DataError: ``top_k`` is below 1, every sentence is empty, or the index holds no item of an id.
        """
        return [answer.hits for answer in self.answer(queries, Page(top_k=top_k))]

    def answer(
        self,
        queries: Asked | Sequence[Asked],
        page: Page | Sequence[Page] | None = None,
        rerank: SearchReranker | None = None,
    ) -> list[Answer]:
        """Return a page of the best items for every query.

        An empty sentence is logged, and has no hits. All parts of all queries are embedded together, and queries with
        the same conditions are searched together.

        Args:
            queries: any number of sentences or queries; one that is given by itself is a sequence of one.
            page: which of the items are wanted, of all queries or of each; by default the best 10.
            rerank: ranks the first hits of sentences again; the thresholds of the page then refer to its scores.

        Raises:
            BadImageError: an image cannot be decoded.
            DataError: a number is outside its range, a condition cannot be understood, every sentence is empty, or the
                index holds no item of an id.
            ModelError: a precision is wanted, and the model keeps no curve.
        """
        asked = [queries] if isinstance(queries, str | Query) else list(queries)
        pages = [page or Page()] * len(asked) if page is None or isinstance(page, Page) else list(page)
        full = [number for number, each in enumerate(asked) if isinstance(each, Query) or each.strip()]
        if asked and not full:
            raise DataError("all queries are empty: give a sentence that says what the image should show")
        if len(full) < len(asked):
            _logger.warning(
                "an empty query has no hits (%d of %d are empty)", len(asked) - len(full), len(asked)
            )
        given = [
            Query(each) if isinstance(each, str) else each for each in (asked[number] for number in full)
        ]
        wanted = [pages[number] for number in full]
        if rerank is None:
            answered = self._answers(given, wanted)
        else:
            whole = self._answers(given, [each.of_all(rerank.top) for each in wanted])
            answered = rerank.rerank(given, whole, wanted)
        answers = [Answer([]) for _ in asked]
        for number, answer in zip(full, self._titled(answered), strict=True):
            answers[number] = answer
        return answers

    def _titled(self, answers: Sequence[Answer]) -> list[Answer]:
        """Add titles to hits (none if the index was replaced meanwhile), and uncertainties to distributions."""
        ids = [hit.id for answer in answers for hit in answer.hits]
        metadata: Sequence[Mapping[str, object]] = [{}] * len(ids)
        with suppress(IndexFormatError):
            metadata = self.catalogue.metadata_of(ids) if ids else ()
        titles = dict(zip(ids, map(title_of, metadata), strict=True))
        spread: dict[str, float] = {}
        if self._of_gaussians and ids:
            vectors = np.asarray(self.catalogue.vectors(ids))[:, 0]
            spread = dict(zip(ids, uncertainties(vectors, of_texts=self._are_texts).tolist(), strict=True))
        return [
            replace(
                answer,
                hits=[
                    replace(hit, title=titles[hit.id], uncertainty=spread.get(hit.id)) for hit in answer.hits
                ],
            )
            for answer in answers
        ]

    def _answers(self, queries: Sequence[Query], pages: Sequence[Page]) -> list[Answer]:
        """Answer queries none of which is empty."""
        if not queries:
            return []
        where = [tuple(parse_conditions(page.where)) for page in pages]
        counts = [self.catalogue.count(conditions) for conditions in where]
        probabilities = [
            Probabilities(self.calibration, max(1, count), page.expected, page.min_precision)
            for page, count in zip(pages, counts, strict=True)
        ]
        for query, each in zip(queries, probabilities, strict=True):
            each.check([query])
        word_hits = [self._word_hits(*each) for each in zip(queries, pages, where, strict=True)]
        embedded = embed_queries(queries, self._texts, self._images, self._items)
        groups: dict[object, list[int]] = {}
        for number, query in enumerate(queries):
            alike = where[number], pages[number].one_per_file, query.is_sentence, pages[number].only
            groups.setdefault(alike, []).append(number)
        hits: dict[int, list[Hit]] = {}
        for numbers in groups.values():
            # One hit more says whether there is another page, and one more replaces the query's own item.
            some = [pages[number] for number in numbers]
            wanted = max(page.skip + page.top_k for page in some) + 1
            wanted += any(queries[number].like is not None for number in numbers)
            asked, search = embedded.some(np.array(numbers)), self._by_looks
            words = [word_hits[number] for number in numbers]
            if any(each.shares for each in words) or some[0].only == "words":
                search, wanted = partial(self._by_both, words, some), max(wanted, DEPTH)
            find = partial(search, asked, queries[numbers[0]].is_sentence, where[numbers[0]])
            rows = self._of_files(find, wanted) if some[0].one_per_file else find(wanted)
            hits |= zip(numbers, rows, strict=True)
        unknown, warnings = self._unknown_words(queries), self._warnings(where)
        return [
            replace(
                _answer(query, hits[number], pages[number], probabilities[number]),
                searched=0 if where[number] and not hits[number] else counts[number],
                unknown_words=unknown[number],
                uncertainty=self._uncertainty(embedded, number),
                warnings=warnings[where[number]],
            )
            for number, query in enumerate(queries)
        ]

    def _warnings(
        self, where: Sequence[tuple[Condition, ...]]
    ) -> dict[tuple[Condition, ...], tuple[str, ...]]:
        """Log and return the warnings about conditions, by the conditions of a query."""
        warnings = {conditions: self.catalogue.warnings(conditions) for conditions in dict.fromkeys(where)}
        for warning in dict.fromkeys(chain.from_iterable(warnings.values())):
            _logger.warning("%s", warning)
        return warnings

    def _word_hits(self, query: Query, page: Page, where: tuple[Condition, ...]) -> WordHits:
        """Return the items that have words of a query; none if looks alone count."""
        if page.only == "words" and not query.is_sentence:
            raise DataError(
                "only=words needs queries that are just a sentence: leave it out, or give a sentence"
            )
        hits = WordHits()
        if page.only != "looks" and query.is_sentence:
            indexed = self.catalogue.words(query.text, where)
            if indexed is None and page.only == "words":
                raise DataError(
                    "only=words needs the words of the items, which are not indexed here: run 'openvse index' again, "
                    "and search its folder"
                )
            hits = hits if indexed is None else indexed
        return hits

    def _by_looks(
        self, queries: EmbeddedQueries, sentences: bool, where: tuple[Condition, ...], count: int
    ) -> list[list[Hit]]:
        """Return the best items of each query by their scores."""
        rows = self.catalogue.nearest(queries, count, where, sentences=sentences)
        return [[self._hit(score, item_id) for score, item_id in row] for row in rows]

    def _by_both(
        self,
        words: Sequence[WordHits],
        pages: Sequence[Page],
        queries: EmbeddedQueries,
        sentences: bool,
        where: tuple[Condition, ...],
        count: int,
    ) -> list[list[Hit]]:
        """Return the best items of each query by words and looks; see ``search.words``."""
        alone = pages[0].only == "words"
        rows = [[]] * len(words) if alone else self._by_looks(queries, sentences, where, count)
        ranked = []
        for number, (row, matches, page) in enumerate(zip(rows, words, pages, strict=True)):
            looks = [hit.id for hit in row]
            hits, first = dict(zip(looks, row, strict=True)), set(looks[: page.skip + page.top_k])
            others = [item_id for item_id in matches.shares if item_id not in hits]
            if others:
                vectors = self.catalogue.vectors(others)
                exact = ExactSearch(vectors, self._compare, names=others)
                scores = exact.score(queries.some(np.array([number])), vectors)[0].tolist()
                hits |= {each: self._hit(score, each) for score, each in zip(scores, others, strict=True)}
            for each, matched in matches.matched.items():
                hits[each] = replace(hits[each], by="both" if each in first else "words", matched=matched)
            order = joined(matches, looks, {each: hit.score for each, hit in hits.items()})
            ranked.append([hits[each] for each in order])
        return ranked

    def _of_files(self, find: Callable[[int], list[list[Hit]]], wanted: int) -> list[list[Hit]]:
        """Return the first hit of each file, of so many hits that enough files are found."""
        count = wanted
        while True:
            best = [best_of_files(hits) for hits in find(count)]
            if count >= len(self.catalogue) or all(len(hits) >= wanted for hits in best):
                return best
            count *= 4

    def _hit(self, score: float, item_id: str) -> Hit:
        span = None if self._are_texts else span_of(item_id)
        start, end = span or (None, None)
        return Hit(0, score, item_id, self.catalogue.path_of(item_id), None, start, end)

    def _texts(self, captions: Sequence[str]) -> ArraySet:
        return self._asked(self._model.encode_text(captions), are_texts=True)

    def _images(self, images: Sequence[ClipSource]) -> ArraySet:
        return self._asked(self._model.encode_image(images), are_texts=False)

    def _items(self, ids: Sequence[str]) -> ArraySet:
        items = ArraySet.full(np.asarray(self.catalogue.vectors(ids)))
        return turned(items) if self._of_gaussians else items

    def _asked(self, embedded: Any, *, are_texts: bool) -> ArraySet:
        """Return embeddings as queries; Gaussians of the items' side are turned to the other side."""
        same = are_texts is self._are_texts
        return turned(as_arrays(embedded)) if same and self._of_gaussians else as_arrays(embedded)

    def _uncertainty(self, queries: EmbeddedQueries, number: int) -> float | None:
        """Return the sum of the variances of a query of one part; None if its embedding is no distribution."""
        if not self._of_gaussians:
            return None
        query = queries.some(np.array([number]))
        if query.weights is not None:
            return None
        return float(uncertainties(query.parts.vectors[0], of_texts=not self._are_texts)[0])

    def _unknown_words(self, queries: Sequence[Query]) -> list[tuple[UnknownWord, ...]]:
        look_up = getattr(self._model, "unknown_words", None)
        if look_up is None:
            return [()] * len(queries)
        return [tuple(words) for words in look_up([query.text for query in queries])]


def _answer(
    query: Query,
    hits: Sequence[Hit],
    page: Page,
    probabilities: Probabilities,
) -> Answer:
    """Return the page of the hits of a query, numbered, without its own item and those below the thresholds."""
    others = [hit for hit in hits if hit.id != query.like]
    ranked = [replace(hit, rank=rank) for rank, hit in enumerate(others, start=1)]
    likely = probabilities.of(ranked) if query.is_sentence else ranked
    lowest = -math.inf if page.min_score is None else page.min_score
    good = [hit for hit in likely if hit.score >= lowest]
    last = page.skip + page.top_k
    of_sentence = probabilities if query.is_sentence else None
    return Answer(good[page.skip : last], more=len(good) > last, probabilities=of_sentence)
