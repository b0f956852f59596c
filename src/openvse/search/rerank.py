"""Rank the hits of an index again with a model that scores pairs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from openvse.errors import BadImageError, DataError, ModelError
from openvse.model import TwoTower
from openvse.search.engine import Hit, with_probabilities
from openvse.types import EmbeddingSet, FeatureSource, Inputs

_logger = logging.getLogger(__name__)

_AT_ONCE = 64


class HitReranker:
    """Scores the first hits of every query again, with a model for which there can be no index.

    Args:
        model: any model; its similarity scores pairs of query and image.
        top: how many hits of each query are ranked again; the others stay behind them, in their order.
        weight: w, of the new score; the score of the index has 1 - w.
        features: stored local features of the images, by their path below the indexed folder; without them the
            images are decoded.
        gallery: the number of images that the hits were chosen from, for the probabilities.
        expected: how many of them are expected to be relevant; see ``SearchEngine.search``.

    Attributes:
        calibration: the curve from score to probability with which hits are given probabilities; None where the weight
            is below 1 (a mixture of two scores has no curve), without ``gallery``, and where the model keeps none. The
            hits that are ranked again then have no probability.

    Raises:
        DataError: ``top`` is below 1, or ``weight`` outside 0 to 1.

    Examples:
        >>> rerank = HitReranker(openvse.load("runs/score_attention/best"), top=20)  # doctest: +SKIP
        >>> hits = rerank(["a dog"], engine.search(["a dog"], top_k=20))  # doctest: +SKIP
    """

    def __init__(
        self,
        model: TwoTower,
        *,
        top: int = 20,
        weight: float = 1.0,
        features: FeatureSource | None = None,
        gallery: int | None = None,
        expected: float | None = None,
    ) -> None:
        if top < 1 or not 0 <= weight <= 1:
            raise DataError(f"top is {top} and weight {weight}: allowed are 1 and more, and 0 to 1")
        self.top = top
        self._model, self._weight, self._features = model, weight, features
        self._gallery, self._expected = gallery, expected
        self.calibration = model.calibration if weight == 1 and gallery is not None else None

    @torch.inference_mode()
    def __call__(self, queries: Sequence[str], results: Sequence[Sequence[Hit]]) -> list[list[Hit]]:
        """Rank the hits of every query again; each image is read once, whatever the number of its queries.

        An image that cannot be read any more is logged and stays behind those that were ranked again.

        Raises:
            ModelError: a score is NaN or infinite.
        """
        paths = {hit.id: hit.path for hits in results for hit in hits[: self.top]}
        images, rows = self._embed(paths)
        pairs = [
            (number, hit) for number, hits in enumerate(results) for hit in hits[: self.top] if hit.id in rows
        ]
        if images is None:
            return [list(hits) for hits in results]
        device = self._model.device
        # An empty query has no hits, and no embedding.
        asked = [number for number, hits in enumerate(results) if hits]
        scores = self._model.similarity.pairs(
            images,
            self._model.encode_text([queries[number] for number in asked]).to(device),
            torch.tensor([rows[hit.id] for _, hit in pairs], device=device),
            torch.tensor([asked.index(number) for number, _ in pairs], device=device),
        )
        if not scores.isfinite().all():
            _, hit = pairs[int((~scores.isfinite()).nonzero()[0])]
            raise ModelError(
                f"the re-ranking model scores {hit.id} as NaN or infinite, so nothing can be ranked: check its weights "
                f"and features"
            )
        anew: list[dict[str, float]] = [{} for _ in results]
        for (number, hit), score in zip(pairs, scores.tolist(), strict=True):
            anew[number][hit.id] = self._weight * score + (1 - self._weight) * hit.score
        return [self._ordered(hits, mine) for hits, mine in zip(results, anew, strict=True)]

    def _embed(self, paths: dict[str, Path]) -> tuple[EmbeddingSet | None, dict[str, int]]:
        """Embed the images that can be read, some at a time, and return the row of each."""
        ids, parts, rows = list(paths), [], dict[str, int]()
        for start in range(0, len(ids), _AT_ONCE):
            some = ids[start : start + _AT_ONCE]
            known, inputs = self._decode(some, paths) if self._features is None else self._look_up(some)
            if inputs is not None:
                parts.append(self._model.image(inputs.to(self._model.device)))
                rows |= zip(known, range(len(rows), len(rows) + len(known)), strict=True)
        return EmbeddingSet.concatenate(parts) if parts else None, rows

    def _decode(self, ids: Sequence[str], paths: dict[str, Path]) -> tuple[list[str], Inputs | None]:
        """Read the images; leave out those that cannot be read."""
        backbone = self._model.image.encoder.backbone
        items = {}
        for name in ids:
            try:
                items[name] = backbone.read(paths[name])
            except BadImageError as error:
                _logger.warning("a hit is not ranked again: %s", error)
        return list(items), backbone.collate(list(items.values())) if items else None

    def _look_up(self, ids: Sequence[str]) -> tuple[list[str], Inputs | None]:
        """Take the features of images from the store, without those that it lacks."""
        assert self._features is not None
        known = [name for name in ids if name in self._features]
        if len(known) < len(ids):
            _logger.warning(
                "%d hit(s) have no stored features and are not ranked again", len(ids) - len(known)
            )
        return known, self._features.gather(self._features.positions(known)) if known else None

    def _ordered(self, hits: Sequence[Hit], anew: dict[str, float]) -> list[Hit]:
        """Put the hits with a new score first, the best of them foremost, and number all of them."""
        scored = [
            replace(hit, score=anew[hit.id], probability=None)
            for hit in sorted((hit for hit in hits if hit.id in anew), key=lambda hit: -anew[hit.id])
        ]
        if self.calibration is not None and self._gallery is not None:
            scored = with_probabilities(scored, self.calibration, self._gallery, self._expected)
        rest = [hit for hit in hits if hit.id not in anew]
        return [replace(hit, rank=rank) for rank, hit in enumerate([*scored, *rest], start=1)]
