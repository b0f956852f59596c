"""A model that remembers the sentences that it has embedded."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from openvse.encoders import UnknownWord
from openvse.media.videos import ClipSource
from openvse.model import Calibration
from openvse.runtime import OnnxModel
from openvse.runtime.arrays import Kind

if TYPE_CHECKING:  # an exported model is served without PyTorch
    from openvse.model import TwoTower

Embedder: TypeAlias = "TwoTower | OnnxModel"
"""A model of PyTorch, or an exported one."""


class RememberingModel:
    """A model for a search engine, which embeds a sentence once as long as it is among the last that were asked.

    Embeddings and scores are tensors, or arrays where the model is an exported one.

    Args:
        model: the model.
        sentences: how many embedded sentences are kept.
    """

    def __init__(self, model: Embedder, sentences: int) -> None:
        self._model: Any = model
        self._most = sentences
        self._known: OrderedDict[str, Any] = OrderedDict()
        self._fingerprint, self._calibration = model.fingerprint, model.calibration

    @property
    def fingerprint(self) -> str:
        """That of the model, which is computed once, as a served model does not change."""
        return self._fingerprint

    @property
    def similarity(self) -> Any:
        """That of the model; None for an exported one."""
        return getattr(self._model, "similarity", None)

    @property
    def indexable(self) -> bool:
        """Whether the largest inner products are the best scores."""
        return bool(self._model.indexable)

    @property
    def kind(self) -> Kind | None:
        """How an exported model compares two embeddings; None for a model of PyTorch."""
        return self._model.kind if isinstance(self._model, OnnxModel) else None

    @property
    def calibration(self) -> Calibration | None:
        """The curve of the model; None if it keeps none."""
        return self._calibration

    def encode_text(self, captions: Sequence[str]) -> Any:
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
        some = [self._known[caption] for caption in captions]
        found = type(some[0]).concatenate(some)
        while len(self._known) > self._most:
            self._known.popitem(last=False)
        return found

    def encode_image(self, images: Sequence[ClipSource]) -> Any:
        """Embed images."""
        return self._model.encode_image(images)

    def score(self, images: Any, texts: Any) -> Any:
        """Score all pairs as the model does."""
        return self._model.score(images, texts)

    def unknown_words(self, captions: Sequence[str]) -> list[list[UnknownWord]]:
        """Return the words of each sentence that the model has not learned."""
        return self._model.unknown_words(captions)  # type: ignore[no-any-return]
