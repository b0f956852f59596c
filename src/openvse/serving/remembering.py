"""A model that remembers the sentences that it has embedded."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from openvse.encoders import UnknownWord
from openvse.media.videos import ClipSource
from openvse.model import Calibration, TwoTower
from openvse.similarities import Similarity
from openvse.types import EmbeddingSet


class RememberingModel:
    """A model for a search engine, which embeds a sentence once as long as it is among the last that were asked.

    Args:
        model: the model.
        sentences: how many embedded sentences are kept.
    """

    def __init__(self, model: TwoTower, sentences: int) -> None:
        self._model, self._most = model, sentences
        self._known: OrderedDict[str, EmbeddingSet] = OrderedDict()
        self._fingerprint, self._calibration = model.fingerprint, model.calibration

    @property
    def fingerprint(self) -> str:
        """That of the model, which is computed once, as a served model does not change."""
        return self._fingerprint

    @property
    def similarity(self) -> Similarity:
        """That of the model."""
        return self._model.similarity

    @property
    def calibration(self) -> Calibration | None:
        """The curve of the model; None if it keeps none."""
        return self._calibration

    def encode_text(self, captions: Sequence[str]) -> EmbeddingSet:
        """Embed sentences, those that are not known in one call."""
        if not captions:
            return self._model.encode_text(captions)
        new = [each for each in dict.fromkeys(captions) if each not in self._known]
        if new:
            embedded = self._model.encode_text(new)
            for row, caption in enumerate(new):
                self._known[caption] = embedded[row : row + 1]
        for caption in captions:
            self._known.move_to_end(caption)
        found = EmbeddingSet.concatenate([self._known[caption] for caption in captions])
        while len(self._known) > self._most:
            self._known.popitem(last=False)
        return found

    def encode_image(self, images: Sequence[ClipSource]) -> EmbeddingSet:
        """Embed images."""
        return self._model.encode_image(images)

    def score(self, images: EmbeddingSet, texts: EmbeddingSet) -> Float[Tensor, "I T"]:
        """Score all pairs as the model does."""
        return self._model.score(images, texts)

    def unknown_words(self, captions: Sequence[str]) -> list[list[UnknownWord]]:
        """Return the words of each sentence that the model has not learned."""
        return self._model.unknown_words(captions)
