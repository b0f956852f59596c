"""An exported model that embeds images and sentences in ONNX Runtime, and a model of either kind by its place."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, cast, runtime_checkable

import numpy as np
from jaxtyping import Float
from PIL.Image import Image, Resampling

from openvse.errors import DataError, DiskError, ModelError, message_of
from openvse.files import check_same, read_json, settle, several
from openvse.halves import usable_device
from openvse.media.images import ImageLike, are_images, one_or_many, one_or_several, read_image, within_memory
from openvse.media.resizing import cut_long, pixel_windows, resized_middle, stretched
from openvse.pipeline import read_ahead
from openvse.registry import Provided
from openvse.runtime.arrays import ArraySet, Kind, score_sets
from openvse.scoring.calibration import read_calibration
from openvse.scoring.hubs import QueryBank, read_bank
from openvse.tokenization.vocabulary import (
    WORD_SPLITTERS,
    Cleaning,
    UnknownWord,
    Vocabulary,
    cleaned,
    unknown_line,
    unknown_words,
)


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


EXPORT = "export.json"
FORMAT, VERSION = "openvse-export", 1
ExportPrecision: TypeAlias = Literal["float32", "int8"]


CLIPS = ("clips",)
"""The inputs of images where the model also reads clips, so that they are not exported."""


@dataclass(frozen=True)
class Side:
    """The program of images or of texts. Its file is "" where it was not exported.

    The inputs are ``pixels`` or ``CLIPS``, ``features`` and ``mask``, or ``tokens`` and ``mask``. ``longest`` is the
    largest set of features or tokens, ``width`` the width of stored features. ``runtime.reading`` explains ``reading``.
    """

    file: str
    inputs: tuple[str, ...]
    longest: int | None
    width: int | None
    reading: Mapping[str, Any] | None


@dataclass(frozen=True)
class Description:
    """The content of an export's description.

    Attributes:
        fingerprint: the name of the model in an index: the model's fingerprint, followed by ``-int8`` if the weights
            were rounded to it, because the embeddings differ.
        of_model: the fingerprint of the model that was exported.
        num_embeddings: K, the number of embeddings of an image and of a text. 0 for a side that was not exported.
        score: how two embeddings are compared. The score of two items is the score of their best pair.
        checked: the comparison when the export was made: the largest difference of a number of an embedding, by side.
    """

    precision: ExportPrecision
    fingerprint: str
    of_model: str
    num_embeddings: tuple[int, int]
    dim: int
    score: Kind
    image: Side
    text: Side
    checked: Mapping[str, Any]
    openvse: str
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the description as indented JSON."""
        return json.dumps({"kind": FORMAT, "version": VERSION, **asdict(self)}, indent=2, default=str) + "\n"


def is_export(folder: str | Path) -> bool:
    """Return whether a folder holds an exported model."""
    try:
        return settle(folder, EXPORT) is not None
    except DiskError:
        raise
    except OSError:  # a hub id may be longer than any name
        return False


def read_description(folder: str | Path) -> Description:
    """Read the description of an export. Raise ModelError if it is missing, damaged, or from a newer openvse."""
    path = Path(folder, EXPORT)
    if not is_export(folder):
        raise ModelError(f"{folder} is not an exported model: make one with 'openvse export MODEL {folder}'")
    try:
        fields = read_json(path)
        kind = fields.pop("kind"), fields.pop("version")
        if kind == (FORMAT, VERSION):
            sides = [fields.pop(side) for side in ("image", "text")]
            image, text = (Side(**{**each, "inputs": tuple(each["inputs"])}) for each in sides)
            fields["num_embeddings"] = tuple(fields["num_embeddings"])
            return Description(image=image, text=text, **fields)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{path} is damaged ({error}): export the model again") from error
    raise ModelError(f"{path} has format {kind[0]} {kind[1]}, not {FORMAT} {VERSION}: update openvse, or export again")


_logger = logging.getLogger(__name__)


class OnnxModel:
    """Two towers as ONNX files, with the parts of a model that a search needs. PyTorch is not imported.

    A tower is read on first use, so that a search by sentences does not read the program of the images.

    Args:
        folder: the folder that ``openvse export MODEL FOLDER`` wrote.
        threads: the number of CPU threads. None leaves it to ONNX Runtime.

    Attributes:
        description: the content of ``export.json``.
        calibration: the curve from score to probability. None if the model had none, or the weights are int8.

    Raises:
        ModelError: the folder holds no exported model, or ONNX Runtime is not installed.

    Examples:
        >>> model = OnnxModel("exported")  # doctest: +SKIP
        >>> model.score(model.encode_image(["a.jpg"]), model.encode_text(["a dog"]))  # doctest: +SKIP
    """

    indexable = True
    source = ""

    def __init__(self, folder: str | Path, *, threads: int | None = None) -> None:
        self.folder, self.source = Path(folder), str(folder)
        self._set = settle(folder, EXPORT)
        self.description = read_description(folder)
        self._threads = threads
        self._programs: dict[str, Any] = {}
        self._tokenizer: RuntimeTokenizer | None = None
        curve = read_calibration(self.folder)
        self.calibration = curve if curve and curve.model == self.fingerprint else None
        check_same(self.folder, EXPORT, self._set)

    @cached_property
    def query_bank(self) -> QueryBank | None:
        """The query bank of the model. None without one, or if the weights are int8."""
        bank = read_bank(self.folder)
        return bank if bank is not None and bank.model == self.fingerprint else None

    @property
    def fingerprint(self) -> str:
        """The name of the model in an index."""
        return self.description.fingerprint

    @property
    def kind(self) -> Kind:
        """How two embeddings are compared."""
        return self.description.score

    @property
    def reads_images(self) -> bool:
        """Whether it reads images, and not only stored features."""
        return self.description.image.inputs in (("pixels",), CLIPS)

    @property
    def makes_index(self) -> bool:
        """Whether it can embed the images of an index."""
        return self.reads_images

    @property
    def has_whole(self) -> bool:
        """Whether ``whole`` exists: a model of PyTorch, which also reads segments of clips and feature stores."""
        return False

    @property
    def whole(self) -> Any:
        """The model of PyTorch behind this one. None for an export, which has none."""
        return None

    @property
    def reads_videos(self) -> bool:
        """Whether the model behind towers embeds clips. An exported tower reads none."""
        return self.description.image.inputs == CLIPS

    @property
    def tokenizer(self) -> RuntimeTokenizer:
        """The part that turns sentences into tokens."""
        if self._tokenizer is None:
            self._tokenizer = read_tokenizer(self.folder, self.description.text.reading or {})
            check_same(self.folder, EXPORT, self._set)
        return self._tokenizer

    def encode(self, items: ImageLike | Iterable[ImageLike]) -> ArraySet:
        """Embed sentences or images, and recognise which. A text that ends like an image is its path."""
        given = one_or_several(items, "items")
        return self.encode_image(given) if are_images(given) else self.encode_text(given)

    def encode_image(self, images: ImageLike | Iterable[ImageLike], batch_size: int = 64) -> ArraySet:
        """Embed images (paths, bytes, PIL images or arrays ``uint8 [H, W, 3]``).

        Raises:
            BadImageError: an image cannot be decoded.
            ModelError: the model reads only stored features.
            DataError: there are no images.
        """
        given = cast(Sequence[ImageLike], one_or_many(images))
        parts = read_ahead(given, partial(OnnxModel.read_image, self), batch_size)
        return self._embed("image", ({"pixels": np.stack(pixels)} for pixels in parts))

    def read_image(self, image: ImageLike) -> Float[np.ndarray, "... 3 H W"]:
        """Decode an image for ``encode_pixels``. Threads may call it."""
        decoded = read_image(image, shorter_side=self._preprocess.shorter_side)
        with within_memory(image):
            return self._preprocess(decoded)

    def encode_pixels(self, images: Sequence[Float[np.ndarray, "... 3 H W"]]) -> ArraySet:
        """Embed images that ``read_image`` has decoded, as one batch."""
        return self._embed("image", iter([{"pixels": np.stack(images)}]))

    @cached_property
    def _preprocess(self) -> Preprocessing:
        if (reading := self.description.image.reading) is None:
            raise ModelError("this model was exported for stored features: give them to encode_features")
        return Preprocessing.from_json(reading)

    def encode_features(self, features: Sequence[Float[np.ndarray, "N C"]], batch_size: int = 64) -> ArraySet:
        """Embed images by their stored features, ``float32 [N, C]`` for each image.

        Raises:
            DataError: there are none, or a set has another width, or is larger than the export's limit.
            ModelError: the model reads images.
        """
        side = self.description.image
        if side.width is None:
            raise ModelError("this model was exported for images: give images to encode_image")
        for item in features:
            if item.ndim != 2 or item.shape[1] != side.width or not len(item):
                raise DataError(f"features have the shape {list(item.shape)}: give [1 to {side.longest}, {side.width}]")
        return self._embed_sets("image", [np.asarray(item, np.float32) for item in features], batch_size)

    def encode_text(self, captions: str | Iterable[str], batch_size: int = 256) -> ArraySet:
        """Embed sentences. Unknown words are logged, in one warning for all sentences.

        Args:
            captions: one sentence, or any number of sentences.
            batch_size: the number of sentences at a time.

        Raises:
            DataError: there are none, or one has more tokens than the export's limit.
        """
        if not (captions := several(captions, "captions")):
            raise DataError("captions is empty: give at least one text")
        if unknown := unknown_line(chain.from_iterable(self.unknown_words(captions))):
            _logger.warning("%s", unknown)
        tokens = [np.array(ids, np.int64) for ids in self.tokenizer.tokenize(captions)]
        return self._embed_sets("text", tokens, batch_size)

    def unknown_words(self, captions: str | Iterable[str]) -> list[list[UnknownWord]]:
        """Return the words of each sentence that the model has not learned."""
        captions = several(captions, "captions")
        return [self.tokenizer.unknown_words(caption) for caption in captions]

    def score(self, images: ArraySet, texts: ArraySet) -> Float[np.ndarray, "I T"]:
        """Score all pairs by the model's similarity."""
        return score_sets(images, texts, self.description.score)

    def open(self, side: str) -> None:
        """Open the program of ``image`` or ``text`` once. Raise ModelError if it is missing, damaged or replaced."""
        if side not in self._programs:
            described: Side = getattr(self.description, side)
            program = open_program(self.folder / described.file, self._threads)
            check_same(self.folder, EXPORT, self._set)
            self._programs[side] = program

    def run(self, side: str, inputs: dict[str, np.ndarray]) -> Float[np.ndarray, "B K D"]:
        """Run the program of a side, ``image`` or ``text``, on inputs by their names.

        A program in int8 runs on one item at a time. It rounds all activations of a run with one scale, so an item
        would get another embedding in other company.
        """
        self.open(side)
        runs = each_alone(inputs) if self.description.precision == "int8" else [inputs]
        embedded = [self._programs[side].run(["embeddings"], some)[0] for some in runs]
        return embedded[0] if len(embedded) == 1 else np.concatenate(embedded)

    def _embed(self, side: str, batches: Iterator[dict[str, np.ndarray]]) -> ArraySet:
        if not (parts := [self.run(side, batch) for batch in batches]):
            raise DataError("there is nothing to embed: give at least one item that can be read")
        return ArraySet.full(np.concatenate(parts))

    def _embed_sets(self, side: str, items: Sequence[np.ndarray], batch_size: int) -> ArraySet:
        """Embed sets of tokens or features. Sets of similar size share a batch, so that little of it is padding."""
        described: Side = getattr(self.description, side)
        lengths = np.array([len(item) for item in items])
        if described.longest is not None and len(items) and lengths.max() > described.longest:
            raise DataError(
                f"an item has {lengths.max()} {described.inputs[0]}, but the export accepts at most "
                f"{described.longest}: export the model with --longest {lengths.max()}"
            )
        order = np.argsort(lengths, kind="stable")
        chunks = (order[start : start + batch_size] for start in range(0, len(order), batch_size))
        batches = (padded([items[place] for place in chunk], described.inputs[0]) for chunk in chunks)
        return self._embed(side, batches)[np.argsort(order, kind="stable")]


def padded(items: Sequence[np.ndarray], name: str) -> dict[str, np.ndarray]:
    """Return items of different lengths as a padded array with its mask, by the names of a program's inputs."""
    lengths = np.array([len(item) for item in items])
    mask = np.arange(lengths.max()) < lengths[:, None]
    values = np.zeros((*mask.shape, *items[0].shape[1:]), items[0].dtype)
    values[mask] = np.concatenate(items)
    return {name: values, "mask": mask}


def each_alone(inputs: dict[str, np.ndarray]) -> Iterator[dict[str, np.ndarray]]:
    """Yield each item of a padded batch as a batch of one, without its padding."""
    for row in range(len(next(iter(inputs.values())))):
        item = {name: values[row : row + 1] for name, values in inputs.items()}
        if "mask" in item:
            size = int(item["mask"].sum())
            item = {name: values[:, :size] for name, values in item.items()}
        yield item


def open_program(path: Path, threads: int | None = None) -> Any:
    """Open an ONNX file on the CPU. Raise ModelError if it is damaged, or it or ONNX Runtime is missing."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    # Threads that spin after a sentence would slow the search that follows.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # Files of earlier versions have signed weights, which overflow on processors without VNNI.
    options.add_session_config_entry("session.x64quantprecision", "1")
    if threads is not None:
        options.intra_op_num_threads = threads
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime has one class for each of its codes
        raise ModelError(f"{path} cannot be read ({message_of(error)}): export the model again") from error


@runtime_checkable
class WholeModel(Protocol):
    """A model of PyTorch, as the search half uses it."""

    @property
    def fingerprint(self) -> str:
        """A hash that identifies the model."""

    @property
    def indexable(self) -> bool:
        """Whether scores from the embeddings of an index are exactly the model's."""

    @property
    def reads_images(self) -> bool:
        """Whether it reads image files, and not only stored features."""

    @property
    def reads_videos(self) -> bool:
        """Whether it embeds clips too."""

    def read_image(self, image: Any) -> Any:
        """Decode an image for ``encode_pixels``. Raise BadImageError if it cannot be used."""

    def encode_pixels(self, images: Sequence[Any]) -> Any:
        """Embed the results of ``read_image`` as one batch."""


@runtime_checkable
class ModelLoader(Protocol):
    """What loads a model of PyTorch that embeds images and sentences. It raises ModelError if there is none."""

    def __call__(self, source: str, *, device: str = ...) -> WholeModel: ...


MODEL_LOADER: Provided[ModelLoader] = Provided("model_loader")


def load_embedder(source: str, *, device: str = "cpu", threads: int | None = None) -> Any:
    """Load a model that embeds images and sentences.

    Args:
        source: the folder of an exported model, or any source of ``openvse.load``.
        device: where a model of PyTorch computes. An exported model computes on the CPU.
        threads: the number of CPU threads of an exported model. None leaves it to ONNX Runtime.

    Raises:
        ModelError: there is no such model, or it needs PyTorch, which is not installed.
    """
    if is_export(source):
        if usable_device(device) != "cpu":
            raise ModelError(f"an exported model computes on the CPU, not on {device}: leave out --device")
        return OnnxModel(source, threads=threads)
    return MODEL_LOADER.get()(source, device=device)
