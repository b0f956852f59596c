"""Re-ranking of the hits of an index with a model that scores pairs."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from openvse.datasets import open_corpus
from openvse.errors import BadImageError, DataError, MissingItemError, ModelError, check_number
from openvse.features.store import open_store
from openvse.model.two_tower import TwoTower
from openvse.runtime.arrays import ArraySet
from openvse.search.hits import Answer, ByteCache, Hit, Hits, Probabilities
from openvse.search.query import Page, Query, only_sentences
from openvse.similarities import SetMax
from openvse.types import EmbeddingSet, FeatureSource, Inputs


@runtime_checkable
class ScoresSets(Protocol):
    """What scores the embeddings of images and texts, such as a ``TwoTower``."""

    def score(self, images: EmbeddingSet, texts: EmbeddingSet) -> Tensor:
        """Return the scores of all pairs."""


@dataclass(frozen=True)
class ModelComparison:
    """The comparison of a PyTorch model, by its own similarity, swapped if items are sentences."""

    model: ScoresSets
    swapped: bool = False

    @property
    def is_inner(self) -> bool:
        """Whether the similarity of the model is the largest inner product, and nothing else."""
        similarity = getattr(self.model, "similarity", None)
        return isinstance(similarity, SetMax) and type(similarity).forward is SetMax.forward

    def __call__(self, items: Float[np.ndarray, "n K D"], queries: ArraySet) -> Float[np.ndarray, "n Q"]:
        """Score all pairs. A similarity with single-precision weights computes in single precision."""
        try:
            return self._score(items, queries)
        except RuntimeError:
            if items.dtype == np.float32:
                raise
            return self._score(items.astype(np.float32), queries)

    @torch.inference_mode()
    def _score(self, items: Float[np.ndarray, "n K D"], queries: ArraySet) -> Float[np.ndarray, "n Q"]:
        held = EmbeddingSet(torch.from_numpy(items), torch.ones(items.shape[:2], dtype=torch.bool))
        vectors = np.ascontiguousarray(queries.vectors, items.dtype)
        asked = EmbeddingSet(torch.from_numpy(vectors), torch.from_numpy(queries.mask))
        scores = self.model.score(asked, held).T if self.swapped else self.model.score(held, asked)
        scored: np.ndarray = scores.numpy()
        return scored


def captions_below(root: Path) -> Mapping[str, Sequence[str]]:
    """Return the captions of the images in a folder, by their path below it with forward slashes."""
    corpus = open_corpus(root, require_images=False, allow_outside=True)
    names: list[str | None] = []
    for path in corpus.image_paths:
        if not isinstance(path, Path):  # in an archive or a table, which an index does not read
            names.append(None)
            continue
        try:
            names.append(path.resolve().relative_to(root.resolve()).as_posix())
        except (ValueError, OSError):  # the data set names an image elsewhere
            names.append(None)
    captions: defaultdict[str, list[str]] = defaultdict(list)
    for image, text in zip(corpus.relevance.images.tolist(), corpus.relevance.texts.tolist(), strict=True):
        if (name := names[image]) is not None:
            captions[name].append(corpus.captions[text])
    return captions


_logger = logging.getLogger(__name__)

_AT_ONCE = 64


class HitReranker:
    """Scores the first hits of every query again, with a model that cannot be indexed.

    ``SearchEngine.answer`` takes one.

    Args:
        model: any model. Its similarity scores pairs of query and image.
        top: the number of hits of each query that are re-ranked. The others follow them in their order.
        weight: w, the weight of the new score. The score of the index has the weight 1 - w. Only a score of the model
            alone (1) has a probability, by the model's own curve.
        features: the stored local features of the images, by their path below the indexed folder, or the folder of the
            store. Without features the images are decoded.
        keep_bytes: memory for the embeddings of the images that were read last, for further queries. A file that has
            changed is read again.

    Raises:
        DataError: ``top`` is below 1, or ``weight`` is not between 0 and 1.

    Examples:
        >>> rerank = HitReranker(openvse.load("runs/score_attention/best"), top=20)  # doctest: +SKIP
        >>> answers = engine.answer("a dog", Page(top_k=10), rerank)  # doctest: +SKIP
    """

    def __init__(
        self,
        model: TwoTower,
        *,
        top: int = 20,
        weight: float = 1.0,
        features: FeatureSource | Path | None = None,
        keep_bytes: int = 0,
    ) -> None:
        check_number("top", top, 1, whole=True)
        check_number("weight", weight, 0, 1)
        self.top = top
        if isinstance(features, Path):
            features = open_store(features, model.image.encoder)
        self._model, self._weight, self._features = model, weight, features
        self._embeddings: ByteCache[EmbeddingSet] = ByteCache(keep_bytes, _num_bytes)

    def first(self, page: Page) -> Page:
        """Return the page of the index that a page of the new order needs. Both orders are equal after ``top``."""
        if page.skip >= self.top:
            return page
        top_k = max(self.top, page.skip + page.top_k)
        return replace(page, top_k=top_k, skip=0, min_score=None, min_precision=None, expected=None)

    @torch.inference_mode()
    def rerank(self, queries: Sequence[Query], answers: Sequence[Answer], pages: Sequence[Page]) -> list[Answer]:
        """Re-rank the first hits of every answer, and return pages of them. An image is read once.

        An unreadable image is logged, and follows the re-ranked images. The answers are to the pages that
        ``first`` returns. Thresholds of ``pages`` refer to the new scores, so other hits do not reach them.

        Raises:
            DataError: a query is not just a sentence, or a mixture of two scores should have a precision.
            ModelError: a score is NaN or infinite, or a precision is requested and the model keeps no curve.
        """
        only_sentences("rerank", queries)
        if self._weight < 1 and any((page.min_precision, page.expected) != (None, None) for page in pages):
            raise DataError(
                f"weight is {self._weight}, which has no probability: give 1, or no min_precision and expected"
            )
        first = [answer.hits if page.skip < self.top else [] for answer, page in zip(answers, pages, strict=True)]
        scored = self._scores(queries, first)
        return [self._page(*each) for each in zip(answers, scored, pages, strict=True)]

    def _scores(self, queries: Sequence[Query], results: Sequence[Sequence[Hit]]) -> list[dict[str, float]]:
        """Return the new scores of the first hits of each query, by the ids of the hits."""
        images, rows = self._embed({hit.id: hit for hits in results for hit in hits[: self.top]})
        anew: list[dict[str, float]] = [{} for _ in results]
        if images is None:
            return anew
        pairs = [(number, hit) for number, hits in enumerate(results) for hit in hits[: self.top] if hit.id in rows]
        device = self._model.device
        scores = self._model.similarity.pairs(
            images,
            self._model.encode_text([query.text for query in queries]).to(device),
            torch.tensor([rows[hit.id] for _, hit in pairs], device=device),
            torch.tensor([number for number, _ in pairs], device=device),
        )
        if not scores.isfinite().all():
            _, hit = pairs[int((~scores.isfinite()).nonzero()[0])]
            raise ModelError(f"the re-ranking model scores {hit.id} as NaN or infinite: check its weights and features")
        for (number, hit), score in zip(pairs, scores.tolist(), strict=True):
            anew[number][hit.id] = self._weight * score + (1 - self._weight) * hit.score
        return anew

    def _page(self, answer: Answer, anew: Mapping[str, float], page: Page) -> Answer:
        """Sort the hits with a new score by it, append the others, number all, and return some of them."""
        if page.skip >= self.top:
            return replace(answer, hits=Hits(), more=False) if page.is_limited else answer
        hits = sorted((hit for hit in answer.hits if hit.id in anew), key=lambda hit: -anew[hit.id])
        hits = [replace(hit, score=anew[hit.id], probability=None, fit="") for hit in hits]
        probabilities = None if hits else answer.probabilities
        if hits and self._weight == 1:
            before = answer.probabilities
            is_short = before is not None and before.captioned is not None
            # The curve of a short query needs the scores of other images.
            curve = None if is_short else self._model.calibration
            given = Probabilities(curve, answer.searched, page.expected, page.min_precision)
            given.check()
            expected = before.expected if page.expected is None and before is not None else page.expected
            probabilities = replace(given, expected=expected)
            likely = probabilities.of(np.array([hit.score for hit in hits]))
            hits = [
                replace(hit, probability=probability, fit=fit)
                for hit, (probability, fit) in zip(hits, likely, strict=True)
                if probabilities.suffices(probability)
            ]
        if page.is_limited:
            hits = [hit for hit in hits if page.min_score is None or hit.score >= page.min_score]
        else:
            hits += [hit for hit in answer.hits if hit.id not in anew]
        last = page.skip + page.top_k
        ranked = [replace(hit, rank=rank) for rank, hit in enumerate(hits, start=1)]
        return replace(
            answer,
            hits=Hits(ranked[page.skip : last]),
            more=len(ranked) > last or (answer.more and not page.is_limited),
            probabilities=probabilities,
            before={hit.id: hit.rank for hit in answer.hits[: self.top]},
        )

    def _embed(self, hits: dict[str, Hit]) -> tuple[EmbeddingSet | None, dict[str, int]]:
        """Embed the readable images that are not kept, some at a time, and return the row of each."""
        keys = {name: _key(hit) for name, hit in hits.items()}
        cached = {name: known for name, key in keys.items() if (known := self._embeddings.find(key)) is not None}
        parts = list(cached.values())
        rows = {name: row for row, name in enumerate(cached)}
        others = [name for name in hits if name not in rows]
        for start in range(0, len(others), _AT_ONCE):
            some = others[start : start + _AT_ONCE]
            read, inputs = self._decode(some, hits) if self._features is None else self._look_up(some)
            if inputs is None:
                continue
            images = self._model.image(inputs.to(self._model.device))
            parts.append(images)
            rows |= zip(read, range(len(rows), len(rows) + len(read)), strict=True)
            for row, name in enumerate(read):
                self._embeddings.keep(keys[name], images[row : row + 1].map(torch.clone))
        return EmbeddingSet.concatenate(parts) if parts else None, rows

    def _decode(self, ids: Sequence[str], hits: dict[str, Hit]) -> tuple[list[str], Inputs | None]:
        """Read the images, without unreadable ones."""
        backbone = self._model.image.encoder.backbone
        items = {}
        for name in ids:
            try:
                items[name] = backbone.read(hits[name].source)
            except (BadImageError, MissingItemError) as error:
                _logger.warning("a hit is not re-ranked: %s", error)
        return list(items), backbone.collate(list(items.values())) if items else None

    def _look_up(self, ids: Sequence[str]) -> tuple[list[str], Inputs | None]:
        """Return the features of the images that are in the store."""
        assert self._features is not None
        known = [name for name in ids if name in self._features]
        if len(known) < len(ids):
            _logger.warning("%d hit(s) have no stored features and are not re-ranked", len(ids) - len(known))
        return known, self._features.gather(self._features.positions(known)) if known else None


def _key(hit: Hit) -> Hashable:
    """Return a key that changes with the file. A missing file has a key, too, and then cannot be read."""
    try:
        status = hit.path.stat()
    except OSError:
        return hit.path, None
    return hit.path, hit.start, hit.end, status.st_mtime_ns, status.st_size


def _num_bytes(embedded: EmbeddingSet) -> int:
    tensors = (embedded.vectors, embedded.mask, embedded.residual, embedded.source)
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)
