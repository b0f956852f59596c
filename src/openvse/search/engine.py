"""The search engine: queries in, the best items of a catalogue out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar, overload

import numpy as np
from jaxtyping import Bool, Float, Int

from openvse.errors import DataError, IndexFormatError, MissingItemError
from openvse.indexing.conditions import Condition, parse_condition
from openvse.indexing.index import Index
from openvse.indexing.manifest import check_model
from openvse.indexing.words import TITLE_KEYS, query_words
from openvse.media.images import is_one, one_or_several
from openvse.media.segments import span_of
from openvse.media.text_reading import TextLine
from openvse.runtime.arrays import ArraySet, embeds_gaussians, turned, uncertainties
from openvse.runtime.model import load_embedder
from openvse.scoring.calibration import PART, Calibration, moved_by
from openvse.search.catalogue import Catalogue, IndexCatalogue
from openvse.search.exact import (
    DEPTH,
    EmbeddedQueries,
    ExactSearch,
    Ranking,
    ScoreBest,
    WordHits,
    are_same,
    as_arrays,
    comparison_of,
    embed_queries,
    first_of_scenes,
    joined,
    unit_vectors,
)
from openvse.search.hits import Answer, Hit, Hits, Judgements, Probabilities, lines_with, title_of
from openvse.search.provided import STORE_ADDRESS, STORE_CATALOGUE, TEACHER, Teaches
from openvse.search.query import OneQuery, Page, Query, check_pages
from openvse.stores.base import Note
from openvse.stores.choice import EngineAddress

_MOST_FOLDED = 10_000
"""The largest number of items of a ranking that are searched for the first ones of scenes."""

_MOST_ALIKE = 1000
"""The largest number of items among which near duplicates of a hit are counted."""

FEW_WORDS = 2
"""Queries of so few words have curves of their own, and their words suggest the number of relevant images."""

SAMPLE, CAPTIONED = 1000, 0.5
"""The items whose scores show a query's score by chance, and the share of them that must have captions."""

MOST_JUDGED = 200
"""The last queries whose judgements move the curve of probabilities."""

_logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class _Search:
    """A query with its page, the items that are searched, those that have words of it, and how many have them all.

    ``judged`` are the positions of the items that people judged for this sentence, and whether they fit.
    """

    query: Query
    page: Page
    where: tuple[Condition, ...]
    searched: int
    probabilities: Probabilities
    words: WordHits
    whole: int | None
    judged: Mapping[int, bool]

    @property
    def kind(self) -> object:
        """The common properties of queries that are searched together."""
        return self.where, self.page.one_per, self.query.is_sentence, self.query.is_image, self.page.only


@dataclass(frozen=True)
class _Shown:
    """A page of a ranking: ranks and probabilities of its items, whether any was found, and whether more follow."""

    ranking: Ranking
    ranks: list[int]
    likely: list[tuple[float | None, str]]
    is_empty: bool
    more: bool


class SearchEngine:
    """Finds the images of an index that fit sentences, or resemble images, with or without the folder of the index.

    Args:
        model: the model that made the embeddings, in PyTorch or exported, or its place.
        source: the searched index or its folder, or the URL of a server with a store that an index has filled, such as
            ``qdrant://HOST``.
        engine: ``exact``, for an exact search whatever the index has, or the engine of the index, by its name or by the
            URL of its server, with the secrets that the index does not know. None takes the index's engine, and its URL
            from the index and the environment.
        images: for a store, the present place of the first of the indexed folders. None leaves it unchanged.

    Attributes:
        catalogue: the searched items, with their facts.
        calibration: the model's curve from score to probability, or None without one, and for sentences.
        judgements: what people said of hits, or None to take nothing into account. An item that fits a sentence comes
            first in its ranking, and one that does not is left out. All together move the curve (``moved_by``).

    Raises:
        IndexFormatError: another model made the embeddings.
        EngineError: the engine cannot be reached, or cannot serve the model.

    Examples:
        >>> engine = openvse.open("runs/mine/index")  # doctest: +SKIP
        >>> engine.search("a dog on a beach", top_k=3)[0].path  # doctest: +SKIP
    """

    def __init__(
        self,
        model: Any,
        source: Index | EngineAddress | str | Path,
        *,
        engine: str | None = None,
        images: Path | None = None,
    ) -> None:
        self.catalogue: Catalogue
        self._teacher: Teaches | None = None
        self.judgements: Judgements | None = None
        self._moved: tuple[object, float, int] = None, 0.0, 0
        if isinstance(source, str | Path):
            source = STORE_ADDRESS.get()(str(source)) if "://" in str(source) else Index.open(source)
        self._attach(load_embedder(str(model)) if isinstance(model, str | Path) else model, source, engine, images)

    def _attach(
        self, model: Any, source: Index | EngineAddress, engine: str | None = None, images: Path | None = None
    ) -> None:
        """Search a source by a model."""
        self._model = model
        vars(self).pop("_sample", None)
        if isinstance(source, Index):
            check_model(source.path, source.manifest, model.fingerprint)
            compare = comparison_of(model, source.manifest.holds)
            self.catalogue = IndexCatalogue(source, compare, model=model, engine=engine)
        else:
            compare = comparison_of(model, "images")
            self.catalogue = STORE_CATALOGUE.get()(source, compare, model.fingerprint, images=images)
        self._are_texts = self.note.holds == "sentences"
        self._compare, self._of_gaussians = compare, embeds_gaussians(model)
        self.calibration: Calibration | None = None if self._are_texts else getattr(model, "calibration", None)

    def __repr__(self) -> str:
        return f"SearchEngine({len(self.catalogue)} {self.note.holds} of {self.root})"

    @property
    def note(self) -> Note:
        """The common properties of the items: the model, the shape of the embeddings, the indexed folders."""
        return self.catalogue.note

    @property
    def root(self) -> Path:
        """The first of the indexed folders."""
        return Path(self.note.roots[0].path if self.note.roots else "")

    def close(self) -> None:
        """Close files and connections. The engine cannot be used afterwards."""
        self.catalogue.close()
        if self._teacher is not None:
            self._teacher.close()
            self._teacher = None

    def teach(self, item: str | Path, captions: str | Iterable[str]) -> None:
        """Save captions of an item in the ``metadata.jsonl`` of its folder, and learn from them.

        The next search of this engine knows them, and the index on the disk does when nothing was taught for some
        seconds, or after ``close``. The captions that the item has stay.

        Args:
            item: the id of an item, which is its path below the first indexed folder, or its whole path.
            captions: sentences or names of things, one or more.

        Raises:
            DataError: a caption is empty, too long or not printable, or the folder cannot be written.
            IndexFormatError: another process teaches the index.
            MissingItemError: the index holds no such item.
        """
        path = Path(item)
        name = path.relative_to(self.root).as_posix() if path.is_relative_to(self.root) else str(item)
        self._learned(lambda teacher: teacher.teach(name, captions))

    def undo(self) -> str | None:
        """Remove the captions that this engine saved last, and return the id of their item, or None without any."""
        return self._learned(lambda teacher: teacher.undo())

    def _learned(self, change: Callable[[Teaches], ResultT]) -> ResultT:
        """Let the teacher of the index change something, and search by what it has learned."""
        if not isinstance(self.catalogue, IndexCatalogue):
            raise DataError("an engine without an index cannot be taught: open the index that fills it")
        place = self.catalogue.index.path
        self._teacher = self._teacher or TEACHER.get()(place, self._model)
        result = change(self._teacher)
        self.catalogue.close()
        self._attach(*self._teacher.present(Index.open(place)))
        return result

    def __enter__(self) -> SearchEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @overload
    def search(  # type: ignore[overload-overlap]  # a sentence is no sequence of its letters
        self,
        queries: OneQuery,
        top_k: int = ...,
        *,
        where: Sequence[Condition | str] = ...,
        skip: int = ...,
        min_score: float | None = ...,
        min_precision: float | None = ...,
    ) -> Hits: ...
    @overload
    def search(
        self,
        queries: Iterable[OneQuery],
        top_k: int = ...,
        *,
        where: Sequence[Condition | str] = ...,
        skip: int = ...,
        min_score: float | None = ...,
        min_precision: float | None = ...,
    ) -> list[Hits]: ...
    def search(
        self,
        queries: OneQuery | Iterable[OneQuery],
        top_k: int = Page.top_k,
        *,
        where: Sequence[Condition | str] = Page.where,
        skip: int = Page.skip,
        min_score: float | None = Page.min_score,
        min_precision: float | None = Page.min_precision,
    ) -> Hits | list[Hits]:
        """Return the best items, best first, or a list of them for each of several queries. ``answer`` does more.

        An empty sentence is logged, and has no hits.

        Args:
            queries: a sentence, an image (a path, a PIL image or an array) or a ``Query``, or any number of them.
            top_k: the number of items of each query. Fewer are returned if there are fewer.
            where: conditions that all hits fulfil, such as ``"date >= 2024-05"``. For the others, see ``Page``.

        Raises:
            BadImageError: an image cannot be decoded.
            DataError: a number is outside its range, a condition cannot be understood, an image does not exist, every
                sentence is empty, or the index holds no item of an id.
        """
        page = Page(top_k, skip, where, min_score, min_precision)
        hits = [answer.hits for answer in self.answer(queries, page)]
        return hits[0] if isinstance(queries, Query) or is_one(queries) else hits

    def answer(
        self, queries: OneQuery | Iterable[OneQuery], page: Page | Sequence[Page] | None = None, rerank: Any = None
    ) -> list[Answer]:
        """Return a page of the best items for every query.

        An empty sentence is logged, and has no hits. All parts of all queries are embedded together, and queries with
        the same conditions are searched together.

        Args:
            queries: any number of sentences, images or queries. A single one is a sequence of one.
            page: the wanted items, of all queries or of each. Default: the best 10.
            rerank: reranks the first hits of sentences. The thresholds of the page then refer to its scores.

        Raises:
            BadImageError: an image cannot be decoded.
            DataError: a number is outside its range, a condition cannot be understood, every sentence is empty, or the
                index holds no item of an id.
            ModelError: a precision needs a curve, and the model keeps none.
        """
        several = [queries] if isinstance(queries, Query) else one_or_several(queries, "queries")
        asked = [each if isinstance(each, str) and not each.strip() else Query.of(each) for each in several]
        pages = [page or Page()] * len(asked) if page is None or isinstance(page, Page) else list(page)
        full = [number for number, each in enumerate(asked) if isinstance(each, Query)]
        if asked and not full:
            raise DataError("all queries are empty: give a sentence that says what the image should show")
        if len(full) < len(asked):
            _logger.warning("an empty query has no hits (%d of %d are empty)", len(asked) - len(full), len(asked))
        given = [each for each in asked if isinstance(each, Query)]
        wanted = [pages[number] for number in full]
        check_pages(given, wanted)
        if rerank is None:
            answered = self._answers(given, wanted)
        else:
            answered = rerank.rerank(given, self._answers(given, map(rerank.first, wanted)), wanted)
        answers = [Answer(Hits()) for _ in asked]
        for number, answer, each in zip(full, answered, wanted, strict=True):
            lines = answer.warnings
            if answer.probabilities and answer.searched and not (answer.hits or each.skip):
                lines += answer.probabilities.out_of_reach()
            answers[number] = replace(answer, warnings=lines)
            for line in lines[len(answer.warnings) :]:
                _logger.warning("%s", line)
        return answers

    def _answers(
        self, queries: Sequence[Query], pages: Iterable[Page], judged: Sequence[Mapping[str, bool]] | None = None
    ) -> list[Answer]:
        """Answer queries none of which is empty. Queries with the same conditions are searched together.

        ``judged`` replaces what people said of items, and leaves the curve as it was learned.
        """
        curve = self.calibration
        if judged is None:
            moved, said = self.moved_by_judgements()[0], self.judgements
            curve = curve.moved(moved) if curve and moved else curve
            judged = [said.of(each.text) if said and each.is_sentence else {} for each in queries]
        searches = [self._search(*each, curve) for each in zip(queries, pages, judged, strict=True)]
        if not searches:
            return []
        embedded = embed_queries(
            queries,
            lambda captions: self._asked(self._model.encode_text(captions), are_texts=True),
            lambda images: self._asked(self._model.encode_image(images), are_texts=False),
            self._items,
        )
        searches = [
            replace(each, probabilities=self._probabilities(each, embedded, at)) for at, each in enumerate(searches)
        ]
        alike: dict[object, list[int]] = {}
        for number, each in enumerate(searches):
            alike.setdefault(each.kind, []).append(number)
        shown: dict[int, _Shown] = {}
        for numbers in alike.values():
            some = [searches[number] for number in numbers]
            rankings = self._ranked(some, embedded.some(np.array(numbers)))
            shown |= zip(numbers, map(self._shown, some, rankings), strict=True)
        about = self._about([each for page in shown.values() for each in page.ranking.positions.tolist()])
        look_up = getattr(self._model, "unknown_words", lambda texts: [()] * len(texts))
        unknown, warnings = look_up([each.text for each in queries]), self._warnings([each.where for each in searches])
        return [
            Answer(
                self._hits(each, shown[number], about),
                0 if each.where and shown[number].is_empty else each.searched,
                shown[number].more,
                tuple(unknown[number]),
                each.probabilities if each.query.is_sentence else None,
                warnings=warnings[each.where],
                uncertainty=self._uncertainty(embedded, number),
            )
            for number, each in enumerate(searches)
        ]

    def moved_by_judgements(self) -> tuple[float, int]:
        """Return by how much judgements move the log odds of probabilities, and how many do so."""
        if self.judgements is None or self.calibration is None:
            return 0.0, 0
        known = self.catalogue, self.judgements.state
        if self._moved[0] != known:
            judged = [*self.judgements.every().items()][-MOST_JUDGED:]
            queries, pages = [Query(text) for text, _ in judged], [Page(len(items)) for _, items in judged]
            answers = self._answers(queries, pages, [dict.fromkeys(items, True) for _, items in judged])
            stated = [
                (hit.probability, items[hit.id])
                for answer, (_, items) in zip(answers, judged, strict=True)
                for hit in answer.hits
                if hit.id in items and hit.probability is not None
            ]
            self._moved = known, moved_by(np.array(stated).reshape(-1, 2)), len(stated)
        return self._moved[1:]

    def _search(self, query: Query, page: Page, said: Mapping[str, bool], curve: Calibration | None) -> _Search:
        """Return the facts of a query before it is compared with the items."""
        where = tuple(parse_condition(each) if isinstance(each, str) else each for each in page.where)
        searched = self.catalogue.count(where)
        probabilities = Probabilities(curve, max(1, searched), page.expected, page.min_precision)
        probabilities.check()
        judged = dict[int, bool]()
        for item, fits in said.items():
            with suppress(MissingItemError):
                judged[self.catalogue.position(item)] = fits
        return _Search(query, page, where, searched, probabilities, *self._word_hits(query, page, where), judged)

    def _probabilities(self, search: _Search, queries: EmbeddedQueries, number: int) -> Probabilities:
        """Return the probabilities of a query, by the curve of its kind and the number that its words suggest."""
        given, query = search.probabilities, search.query
        if given.curve is None or not query.is_sentence:
            return given
        num_words, expected = len(query_words(query.text)), given.expected
        if num_words > FEW_WORDS:
            expected = max(given.curve.expected, float(search.whole or 0)) if expected is None else expected
            return replace(given, expected=expected)
        sampled, captioned = self._sample
        if expected is None and search.whole is not None and captioned:
            expected = max(search.whole, (1 - captioned or 1) / 2) / captioned  # what no caption names
        curve = part = None
        if expected is not None and sampled is not None:
            (scores,), _ = sampled.search(queries.some(np.array([number])), SAMPLE)
            of_short = partial(given.curve.of_short, mean=float(scores.mean()), spread=float(scores.std()))
            curve, part = of_short(str(num_words)), of_short(PART)
        if curve is None and given.min_precision is not None:
            raise DataError(
                f"min_precision: too little is known of how many images show {query.text!r:.60}: say how many you "
                f"expect, or give a longer sentence"
            )
        return replace(given, curve=curve, expected=expected, captioned=captioned or 1.0, part=part)

    @cached_property
    def _sample(self) -> tuple[ExactSearch | None, float]:
        """Items spread over the index, for a query's score by chance, and the detail of their captions."""
        if not isinstance(self.catalogue, IndexCatalogue) or not len(self.catalogue):
            return None, 0.0
        chosen = np.unique(np.linspace(0, len(self.catalogue) - 1, SAMPLE).astype(np.int64))
        try:
            metadata = self.catalogue.metadata_of(chosen.tolist())
        except IndexFormatError:  # it was replaced meanwhile
            return None, 0.0
        said = [
            sum(len(text) if isinstance(text, list) else 1 for key in TITLE_KEYS if (text := each.get(key)))
            for each in metadata
        ]
        few = 1.0 if self.calibration is None else self.calibration.said
        captioned = 1 - (1 - few) ** np.array(said)
        enough = sum(map(bool, said)) >= CAPTIONED * len(said)
        return ExactSearch(self.catalogue.vectors(chosen), self._compare), float(captioned.mean()) * enough

    def _ranked(self, searches: Sequence[_Search], queries: EmbeddedQueries) -> list[Ranking]:
        """Rank the items for queries of one kind."""
        # One item more says whether there is another page, and one more replaces the query's own item.
        wanted = max(each.page.skip + each.page.top_k for each in searches) + 1
        wanted += any(each.query.like is not None for each in searches) + max(len(each.judged) for each in searches)
        first = searches[0]
        if first.page.only == "words" or any(each.words for each in searches):
            wanted = max(wanted, DEPTH)
        count = wanted
        while True:
            rankings = found = self._first(searches, queries, count)
            if first.page.one_per is not None:
                rankings = [self._folded(*each, wanted) for each in zip(searches, found, strict=True)]
            open_ends = [
                len(each) >= count and self._may_go_on(search, ranking, wanted)
                for search, each, ranking in zip(searches, found, rankings, strict=True)
            ]
            if count >= len(self.catalogue) or not any(open_ends):
                return rankings
            count *= 4

    def _may_go_on(self, search: _Search, ranking: Ranking, wanted: int) -> bool:
        """Return whether fewer items than wanted are good enough, and later ones, such as hubs, may be."""
        if not search.page.is_limited:  # every item is good enough
            return 0 < len(ranking) < wanted
        _, good = self._good(search, ranking.scores, ranking.rows)
        if good.sum() >= wanted or not len(ranking):
            return False
        last = ranking.scores[[ranking.places.argmax()]] + np.float32(self.catalogue.hub_range + 1e-6)
        return bool(self._good(search, last)[1].all())

    def _first(self, searches: Sequence[_Search], queries: EmbeddedQueries, count: int) -> list[Ranking]:
        """Rank at least the first ``count`` items by visual similarity, by words, or by both."""
        first = searches[0]
        if first.page.only == "words":
            similar = [Ranking.by_similarity(np.empty(0, np.float32), np.empty(0, np.int64))] * len(searches)
        else:
            crosses = first.query.is_image if self._are_texts else first.query.is_sentence
            columns = self.catalogue.nearest(queries, count, first.where, hubs_out=crosses)
            similar = [Ranking.by_similarity(*each) for each in zip(*columns, strict=True)]

        def scored(
            number: int, positions: Int[np.ndarray, "n"], most: int
        ) -> tuple[Float[np.ndarray, "k"], Int[np.ndarray, "k"]]:
            some = ExactSearch(self.catalogue.vectors(positions), self._compare)
            (scores,), (places,) = some.search(queries.some(np.array([number])), most)
            return scores, places

        best = [partial(scored, number) for number in range(len(searches))]
        rankings = [
            joined(each.words, ranking, score, None if each.page.is_limited else count) if each.words else ranking
            for each, ranking, score in zip(searches, similar, best, strict=True)
        ]
        return [self._judged(*each) for each in zip(searches, rankings, best, strict=True)]

    def _judged(self, search: _Search, ranking: Ranking, best: ScoreBest) -> Ranking:
        """Return a ranking that begins with the items that fit, as people said, without those that do not."""
        others = ranking.some(~np.isin(ranking.positions, [*search.judged]))
        fit = np.array([place for place, fits in search.judged.items() if fits], np.int64)
        if isinstance(self.catalogue, IndexCatalogue) and (allowed := self.catalogue.allowed(search.where)) is not None:
            fit = fit[allowed[fit]]
        if search.page.only == "words":
            fit = fit[search.words.rows(fit) >= 0]
        if not len(fit):
            return others
        scores, order = best(fit, len(fit))
        place_of = dict(zip(ranking.positions.tolist(), ranking.places.tolist(), strict=True))
        places = np.array([place_of.get(each, -1) for each in fit[order].tolist()], np.int64)
        return Ranking(fit[order], scores, search.words.rows(fit[order]), places).then(others)

    def _folded(self, search: _Search, ranking: Ranking, wanted: int) -> Ranking:
        """Return the first item of each file, or the first ``wanted`` of those that are not nearly the same."""
        if search.page.one_per == "file":
            files = [str(self.catalogue.path_of(each)) for each in ranking.positions.tolist()]
            return ranking.some(np.sort(np.unique(files, return_index=True)[1]))
        if search.query.like is not None:  # it is no hit, so it stands for none
            ranking = ranking.some(ranking.positions != self.catalogue.position(search.query.like))
        ranking = ranking.some(np.arange(min(len(ranking), _MOST_FOLDED)))
        most = len(ranking) if search.page.is_limited else wanted
        return ranking.some(first_of_scenes(self._directions(ranking.positions), most))

    def _directions(self, positions: Int[np.ndarray, "n"]) -> Float[np.ndarray, "n K d"]:
        return unit_vectors(self.catalogue.vectors(positions), are_gaussians=self._of_gaussians)

    def _alike(self, search: _Search, positions: Int[np.ndarray, "n"]) -> list[int]:
        """Return the number of near duplicates of each item among the searched, if the page has one a scene."""
        if search.page.one_per != "scene" or not len(positions):
            return [0] * len(positions)
        vectors = ArraySet.full(np.asarray(self.catalogue.vectors(positions)))
        asked = EmbeddedQueries(turned(vectors) if self._of_gaussians else vectors, None)
        _, near = self.catalogue.nearest(asked, _MOST_ALIKE, search.where)
        return [
            int(are_same(self._directions(np.array([own])), self._directions(row[row != own])).sum())
            for own, row in zip(positions.tolist(), near, strict=True)
        ]

    def _shown(self, search: _Search, ranking: Ranking) -> _Shown:
        """Return the page of a ranking, without the query's own item and items below the thresholds."""
        is_empty = not len(ranking)
        if search.query.like is not None:
            ranking = ranking.some(ranking.positions != self.catalogue.position(search.query.like))
        likely, good = self._good(search, ranking.scores, ranking.rows)
        page, rows = search.page, np.flatnonzero(good)
        last = page.skip + page.top_k
        chosen = rows[page.skip : last]
        likely = [likely[row] for row in chosen.tolist()]
        return _Shown(ranking.some(chosen), (chosen + 1).tolist(), likely, is_empty, len(rows) > last)

    @staticmethod
    def _good(
        search: _Search, scores: Float[np.ndarray, "n"], rows: Int[np.ndarray, "n"] | None = None
    ) -> tuple[list[tuple[float | None, str]], Bool[np.ndarray, "n"]]:
        """Return the probabilities of scores, each with its word, and which reach the thresholds of the page.

        ``rows`` are the rows of their items among the items with words.
        """
        scores, least = scores.astype(np.float64), search.page.min_score
        likely: list[tuple[float | None, str]] = [(None, "")] * len(scores)
        if search.query.is_sentence:
            rows = np.full(len(scores), -1) if rows is None else rows
            words, given = search.words, search.probabilities
            among, count = None, len(query_words(search.query.text))
            if given.captioned is not None:  # captions name a part of the contents, as for the whole query
                among = words.among(rows, given.searched) / max(1e-6, given.captioned)
                among = np.clip(np.rint(among), 1, given.searched).astype(np.int64)
            shares = [len(words.matched(row)) / count if row >= 0 else 0.0 for row in rows.tolist()]
            unnamed = 1 - (given.captioned or 0.0) or 1.0 if count == 1 else 1.0
            likely = given.of(scores, among, np.array(shares), unnamed)
        good = np.array([search.probabilities.suffices(each) for each, _ in likely], bool)
        return likely, good if least is None else good & (scores >= least)

    def _about(self, positions: Sequence[int]) -> dict[int, tuple[str, float | None]]:
        """Return titles (none if the index was replaced meanwhile) and uncertainties of items, by their positions."""
        metadata: Sequence[Mapping[str, object]] = [{}] * len(positions)
        with suppress(IndexFormatError):
            metadata = self.catalogue.metadata_of(positions) if positions else ()
        spread: Sequence[float | None] = [None] * len(positions)
        if self._of_gaussians and positions:
            vectors = self.catalogue.vectors(np.array(positions))[:, 0]
            spread = uncertainties(vectors, of_texts=self._are_texts).tolist()
        return dict(zip(positions, zip(map(title_of, metadata), spread, strict=True), strict=True))

    def _hits(self, search: _Search, shown: _Shown, about: Mapping[int, tuple[str, float | None]]) -> Hits:
        """Return the hits of a page."""
        ranking, last, hits = shown.ranking, search.page.skip + search.page.top_k, Hits()
        alike, texts = self._alike(search, ranking.positions), self._texts_read(search, ranking)
        columns = (ranking.positions, ranking.scores, ranking.rows, ranking.places)
        for rank, (probability, fit), position, score, row, place, near, text in zip(
            shown.ranks, shown.likely, *(each.tolist() for each in columns), alike, texts, strict=True
        ):
            item_id, path = self.catalogue.id_of(position), self.catalogue.path_of(position)
            start, end = (None, None) if self._are_texts else span_of(item_id) or (None, None)
            title, uncertainty = about[position]
            hits.append(
                Hit(
                    *(rank, score, item_id, path, probability, start, end, title, fit, uncertainty),
                    by="similarity" if row < 0 else "both" if 0 <= place < last else "words",
                    matched=search.words.matched(row) if row >= 0 else (),
                    text=text,
                    alike=near,
                    key=self.catalogue.key_of(position),
                    note=self.note,
                )
            )
        return hits

    def _texts_read(self, search: _Search, ranking: Ranking) -> list[tuple[TextLine, ...]]:
        """Return the lines of each item in which words of the sentence were read."""
        matched = [search.words.matched(row) if row >= 0 else () for row in ranking.rows.tolist()]
        if not search.words.forms or not any(matched):
            return [()] * len(matched)
        texts = self.catalogue.texts_of(ranking.positions.tolist())
        return [lines_with(text, each, search.words.forms) for text, each in zip(texts, matched, strict=True)]

    def _warnings(self, where: Sequence[tuple[Condition, ...]]) -> dict[tuple[Condition, ...], tuple[str, ...]]:
        """Log and return the warnings about conditions, by the conditions of a query."""
        warnings = {conditions: self.catalogue.warnings(conditions) for conditions in dict.fromkeys(where)}
        for warning in dict.fromkeys(chain.from_iterable(warnings.values())):
            _logger.warning("%s", warning)
        return warnings

    def _word_hits(self, query: Query, page: Page, where: tuple[Condition, ...]) -> tuple[WordHits, int | None]:
        """Return the items with words of a query (none for ``similarity``), and the number with all words, if known."""
        if not query.is_sentence or (page.only == "similarity" and self.calibration is None):
            return WordHits(), None
        if (indexed := self.catalogue.words(query.text, where)) is None and page.only == "words":
            raise DataError("only=words needs the words of the items, which an engine does not hold: search its index")
        if indexed is None:
            return WordHits(), None
        return WordHits() if page.only == "similarity" else indexed, indexed.whole

    def _items(self, ids: Sequence[str]) -> ArraySet:
        positions = np.array([self.catalogue.position(each) for each in ids])
        items = ArraySet.full(np.asarray(self.catalogue.vectors(positions)))
        return turned(items) if self._of_gaussians else items

    def _asked(self, embedded: Any, *, are_texts: bool) -> ArraySet:
        """Return embeddings as queries. Gaussians of the items' side are turned to the other side."""
        same = are_texts is self._are_texts
        return turned(as_arrays(embedded)) if same and self._of_gaussians else as_arrays(embedded)

    def _uncertainty(self, queries: EmbeddedQueries, number: int) -> float | None:
        """Return the sum of the variances of a query of one part, or None if its embedding is no distribution."""
        if not self._of_gaussians:
            return None
        query = queries.some(np.array([number]))
        if query.weights is not None:
            return None
        return float(uncertainties(query.parts.vectors[0], of_texts=not self._are_texts)[0])
