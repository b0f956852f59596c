"""How an exported model reads: images to pixels and sentences to tokens, without PyTorch.

Images need Pillow and NumPy alone. Sentences need a vocabulary or the file of a tokenizer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from jaxtyping import Float
from PIL.Image import Image, Resampling

from openvse.errors import ModelError
from openvse.media.resizing import cut_long, pixel_windows, resized_middle, stretched
from openvse.tokenization.vocabulary import WORD_SPLITTERS, Cleaning, UnknownWord, Vocabulary, cleaned, unknown_words


@dataclass(frozen=True)
class Preprocessing:
    """Turns a decoded image into pixels: cut windows, resize, cut the middle out, scale, normalise.

    Attributes:
        sizes: squares, in pixels, to which the whole image is resized. Several are placed one below the other. Empty if
            ``shortest`` is set, or nothing is resized.
        shortest: the length of the shorter side after resizing, which keeps the aspect ratio. None uses ``sizes``.
        crop: height and width that are cut out of the middle. None cuts nothing.
        rounds: whether the place of the crop is rounded to the nearest pixel, and not down.
        resample: the filter, by its number in Pillow.
        factor: the factor of the values 0 to 255.
        mean: subtracted from each channel, after the factor.
        deviation: the divisor of each channel.
        order: ``multiply`` computes ``(value * factor - mean) / deviation``. ``subtract`` computes
            ``(value - mean) / deviation``.
        windows: grids of windows that are preprocessed one by one, as in the backbone ``crops``. None uses the image.
        shorter_side: the length in pixels to which the shorter side of a large image is shrunk, for which a JPEG may be
            decoded smaller (see ``media.images.read_image``). None decodes at full size.
    """

    sizes: tuple[tuple[int, int], ...] = ()
    shortest: int | None = None
    crop: tuple[int, int] | None = None
    rounds: bool = False
    resample: int = int(Resampling.BICUBIC)
    factor: float = 1.0
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    deviation: tuple[float, ...] = (1.0, 1.0, 1.0)
    order: Literal["multiply", "subtract"] = "multiply"
    windows: tuple[tuple[int, float], ...] | None = None
    shorter_side: int | None = None

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Preprocessing:
        """Return the preprocessing that an export describes. Raise ModelError if the description is damaged."""
        try:
            return cls(**{key: _tuples(value) for key, value in fields.items()})
        except TypeError as error:
            raise ModelError(f"the preprocessing of the export is damaged ({error}): export again") from error

    def __call__(self, image: Image) -> Float[np.ndarray, "... 3 H W"]:
        """Return the pixels of an upright RGB image."""
        if self.windows is not None:
            whole, boxes = replace(self, windows=None), pixel_windows(self.windows, *image.size)
            return np.stack([whole(image.crop(box)) for box in boxes])
        if len(self.sizes) < 2:
            return self._normalised(self._resized(image))
        most = max(size[1] for size in self.sizes)
        squares = [self._normalised(stretched(image, size[::-1], self.resample)) for size in self.sizes]
        return np.concatenate([np.pad(each, ((0, 0), (0, 0), (0, most - each.shape[2]))) for each in squares], axis=1)

    def _resized(self, image: Image) -> Image:
        if self.sizes:
            image = stretched(image, self.sizes[0][::-1], self.resample)
        elif self.shortest is not None and self.crop is not None:
            return resized_middle(image, self.shortest, self.crop[::-1], self.resample, rounds=self.rounds)
        elif self.shortest is not None:
            image = cut_long(image)
            short = min(image.size)
            wide, high = (int(self.shortest * side / short) for side in image.size)
            image = image.resize((wide, high), Resampling(self.resample))
        if self.crop is None:
            return image
        height, width = self.crop
        free = (image.width - width) / 2, (image.height - height) / 2
        left, top = (round(each) if self.rounds else int(each // 1) for each in free)
        return image.crop((left, top, left + width, top + height))

    def _normalised(self, image: Image) -> Float[np.ndarray, "3 H W"]:
        values = np.array(image, dtype=np.float32).transpose(2, 0, 1)
        mean, deviation = (np.array(each, dtype=np.float32)[:, None, None] for each in (self.mean, self.deviation))
        if self.order == "subtract":
            return np.asarray((values - mean) / deviation, dtype=np.float32)
        return np.asarray((values * np.float32(self.factor) - mean) / deviation, dtype=np.float32)


def _tuples(value: Any) -> Any:
    """Return the lists of JSON as tuples."""
    return tuple(_tuples(each) for each in value) if isinstance(value, list) else value


class VocabularyTokenizer:
    """Splits a sentence into words and finds their ids. The splitter is a name in ``WORD_SPLITTERS``."""

    def __init__(
        self, folder: Path, *, file: str, splitter: str, boundaries: bool, max_words: int | None, nearest: bool
    ) -> None:
        self._vocabulary = Vocabulary.load(folder / file, split=WORD_SPLITTERS.get(splitter)(), nearest=nearest)
        self._boundaries, self._max_words = boundaries, max_words

    def tokenize(self, captions: Sequence[str]) -> list[list[int]]:
        """Return the ids of the words of each sentence."""
        return [
            self._vocabulary.ids(caption, boundaries=self._boundaries, max_words=self._max_words)
            for caption in captions
        ]

    def unknown_words(self, caption: str) -> list[UnknownWord]:
        """Return the words of a sentence that are read and not in the vocabulary."""
        return self._vocabulary.unknown(caption, self._max_words)


class PieceTokenizer:
    """Cuts a sentence into word pieces, as a pretrained text model does, by a file of the ``tokenizers`` library."""

    def __init__(
        self, folder: Path, *, file: str, max_length: int, unknown: int | None, cut: str, cleaning: Cleaning = "none"
    ) -> None:
        from tokenizers import Tokenizer

        try:
            self._pieces = Tokenizer.from_file(str(folder / file))
        except Exception as error:  # the library raises the base class
            raise ModelError(f"{folder / file} cannot be read ({error}): export the model again") from error
        self._pieces.no_padding()
        self._pieces.enable_truncation(max_length, direction=cut)
        self._words = Tokenizer.from_file(str(folder / file))
        self._words.no_padding()
        self._words.no_truncation()
        self._unknown, self._cleaning = unknown, cleaning

    def tokenize(self, captions: Sequence[str]) -> list[list[int]]:
        """Return the ids of the pieces of each sentence, special tokens included."""
        try:
            encoded = self._pieces.encode_batch([cleaned(caption, self._cleaning) for caption in captions])
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # how the library ends, which no other code foresees
                raise
            raise ModelError(f"the tokenizer cannot read a sentence ({error}): export the model again") from error
        return [list(each.ids) or [self._unknown or 0] for each in encoded]

    def unknown_words(self, caption: str) -> list[UnknownWord]:
        """Return the words of a sentence, separated at white space, that the tokenizer lacks or spells out."""

        def encode(words: Sequence[str]) -> list[tuple[list[int], list[str]]]:
            plain = [cleaned(word, self._cleaning) for word in words]
            encoded = self._words.encode_batch(plain, add_special_tokens=False)
            return [(each.ids, each.tokens) for each in encoded]

        return unknown_words(caption, encode, self._unknown)


RuntimeTokenizer: TypeAlias = VocabularyTokenizer | PieceTokenizer
"""Turns sentences into token ids."""


def read_tokenizer(folder: Path, reading: Mapping[str, Any]) -> RuntimeTokenizer:
    """Return the tokenizer of an export. Raise ModelError if it is missing, damaged, or of an unknown kind."""
    kinds: dict[str, Any] = {"vocabulary": VocabularyTokenizer, "pieces": PieceTokenizer}
    options = dict(reading)
    if (kind := kinds.get(str(options.pop("kind", "")))) is None:
        raise ModelError(
            f"the export has a tokenizer of the kind {reading.get('kind')!r}, but this openvse knows "
            f"{', '.join(kinds)}: update openvse, or export the model again"
        )
    if not (folder / str(options.get("file", ""))).is_file():  # a pipe would be waited for
        raise ModelError(f"{folder} has no file of its tokenizer: export the model again")
    try:
        made: RuntimeTokenizer = kind(folder, **options)
    except TypeError as error:
        raise ModelError(f"the tokenizer of the export is damaged ({error}): export again") from error
    return made
