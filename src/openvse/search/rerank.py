"""Re-ranking of the hits of an index with a model that scores pairs."""

from __future__ import annotations

import copy
import logging
from collections.abc import Hashable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from openvse.errors import BadImageError, DataError, ModelError
from openvse.media.segments import ClipSegment
from openvse.model import TwoTower
from openvse.search.hits import Chances, Hit
from openvse.search.kept import Kept
from openvse.types import EmbeddingSet, FeatureSource, Inputs

_logger = logging.getLogger(__name__)

_AT_ONCE = 64


class HitReranker:
    """Scores the first hits of every query again, with a model that cannot be indexed.

    Args:
        model: any model; its similarity scores pairs of query and image.
        top: the number of hits of each query that are re-ranked; the others follow them in their order.
        weight: w, the weight of the new score; the score of the index has the weight 1 - w.
        features: the stored local features of the images, by their path below the indexed folder; without features
            the images are decoded.
        chances: gives hits their probabilities, with a curve of this model, and leaves out hits that are not probable
            enough; by default the hits that are re-ranked have none.
        keep_bytes: memory for the embeddings of the images that were read last, for further queries; a file that has
            changed is read again.

    Raises:
        DataError: ``top`` is below 1, or ``weight`` is not between 0 and 1.

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
        chances: Chances | None = None,
        keep_bytes: int = 0,
    ) -> None:
        if top < 1 or not 0 <= weight <= 1:
            raise DataError(
                f"top is {top} and weight is {weight}: give a top of 1 or more, and a weight from 0 to 1"
            )
        self.top = top
        if chances is not None and weight < 1:
            raise DataError(
                f"weight is {weight}, but a mixture of two scores has no curve: give 1, or no chances"
            )
        self._model, self._weight, self._features, self.chances = model, weight, features, chances
        self._kept: Kept[EmbeddingSet] = Kept(keep_bytes, _num_bytes)

    def with_chances(self, chances: Chances) -> HitReranker:
        """Return the same with other probabilities; both keep their embeddings in the same memory."""
        other = copy.copy(self)
        other.chances = chances
        return other

    @torch.inference_mode()
    def __call__(self, queries: Sequence[str], results: Sequence[Sequence[Hit]]) -> list[list[Hit]]:
        """Re-rank the hits of every query; an image that several queries found is read once.

        An image that can no longer be read is logged, and follows the images that were re-ranked.

        Raises:
            ModelError: a score is NaN or infinite.
        """
        paths = {hit.id: hit.source for hits in results for hit in hits[: self.top]}
        images, rows = self._embed(paths)
        pairs = [
            (number, hit) for number, hits in enumerate(results) for hit in hits[: self.top] if hit.id in rows
        ]
        if images is None:
            return [list(hits) for hits in results]
        device = self._model.device
        # An empty query has neither hits nor an embedding.
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
                f"the re-ranking model scores {hit.id} as NaN or infinite, so the images cannot be ranked: "
                f"check its weights "
                f"and features"
            )
        anew: list[dict[str, float]] = [{} for _ in results]
        for (number, hit), score in zip(pairs, scores.tolist(), strict=True):
            anew[number][hit.id] = self._weight * score + (1 - self._weight) * hit.score
        return [self._ordered(hits, mine) for hits, mine in zip(results, anew, strict=True)]

    def _embed(self, paths: dict[str, Path | ClipSegment]) -> tuple[EmbeddingSet | None, dict[str, int]]:
        """Embed the images that can be read and are not kept, some at a time, and return the row of each."""
        keys = {name: _key(source) for name, source in paths.items()}
        found = {name: known for name, key in keys.items() if (known := self._kept.find(key)) is not None}
        parts = list(found.values())
        rows = {name: row for row, name in enumerate(found)}
        others = [name for name in paths if name not in rows]
        for start in range(0, len(others), _AT_ONCE):
            some = others[start : start + _AT_ONCE]
            read, inputs = self._decode(some, paths) if self._features is None else self._look_up(some)
            if inputs is None:
                continue
            images = self._model.image(inputs.to(self._model.device))
            parts.append(images)
            rows |= zip(read, range(len(rows), len(rows) + len(read)), strict=True)
            for row, name in enumerate(read):
                self._kept.keep(keys[name], images[row : row + 1].map(torch.clone))
        return EmbeddingSet.concatenate(parts) if parts else None, rows

    def _decode(
        self, ids: Sequence[str], paths: dict[str, Path | ClipSegment]
    ) -> tuple[list[str], Inputs | None]:
        """Read the images; leave out those that cannot be read."""
        backbone = self._model.image.encoder.backbone
        items = {}
        for name in ids:
            try:
                items[name] = backbone.read(paths[name])
            except BadImageError as error:
                _logger.warning("a hit is not re-ranked: %s", error)
        return list(items), backbone.collate(list(items.values())) if items else None

    def _look_up(self, ids: Sequence[str]) -> tuple[list[str], Inputs | None]:
        """Return the features of those images that are in the store."""
        assert self._features is not None
        known = [name for name in ids if name in self._features]
        if len(known) < len(ids):
            _logger.warning("%d hit(s) have no stored features and are not re-ranked", len(ids) - len(known))
        return known, self._features.gather(self._features.positions(known)) if known else None

    def _ordered(self, hits: Sequence[Hit], anew: dict[str, float]) -> list[Hit]:
        """Sort the hits with a new score by it, append the others, and number all."""
        scored = [
            replace(hit, score=anew[hit.id], probability=None)
            for hit in sorted((hit for hit in hits if hit.id in anew), key=lambda hit: -anew[hit.id])
        ]
        rest = [hit for hit in hits if hit.id not in anew]
        if self.chances is not None:
            scored = self.chances.of(scored)
            rest = [] if self.chances.min_precision is not None else rest
        return [replace(hit, rank=rank) for rank, hit in enumerate([*scored, *rest], start=1)]


def _key(source: Path | ClipSegment) -> Hashable:
    """Return a key that changes with the file; one that is gone has a key, too, and then cannot be read."""
    try:
        found = (source.path if isinstance(source, ClipSegment) else source).stat()
    except OSError:
        return source, None
    return source, found.st_mtime_ns, found.st_size


def _num_bytes(embedded: EmbeddingSet) -> int:
    tensors = (embedded.vectors, embedded.mask, embedded.residual, embedded.source)
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)
