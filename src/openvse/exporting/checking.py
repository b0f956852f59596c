"""What an export says about reading, and its comparison with the model before it is put into its place.

Its tokenizer and preprocessing let a runtime without PyTorch give the same results. The effect of int8 is measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from openvse.backbones import Backbone
from openvse.backbones.efficientnet_lite import EfficientNetLite
from openvse.backbones.nested import Crops
from openvse.backbones.pretrained import TransformersVision
from openvse.corpus import Corpus
from openvse.encoders import BiGRU, TextEncoder
from openvse.encoders.projections import Encoder
from openvse.encoders.transformers_text import PROBE, TransformersText
from openvse.encoders.words_encoder import VOCABULARY_FILE
from openvse.errors import DataError, ModelError
from openvse.evaluation.arrays import evaluate_arrays
from openvse.functional import position_mask
from openvse.media.images import probe_image
from openvse.media.listing import ImageFile
from openvse.model.two_tower import Tower, TwoTower
from openvse.pipeline import decoded, in_batches, quiet, tell_skipped
from openvse.runtime import OnnxModel
from openvse.runtime.arrays import ArraySet
from openvse.runtime.model import Description, Preprocessing, Side, read_tokenizer
from openvse.similarities.scores import CSD, Order
from openvse.tokenization.vocabulary import WORD_SPLITTERS
from openvse.types import EmbeddingSet, Inputs

TOKENIZER_FILE = "tokenizer.json"
PROBES = (
    PROBE,
    "a dog",
    "A black-and-white cat isn't looking at the 2 colour photographs; why?",
    "word " * 400,
    "Zwei Männer, ein Ball",
    "\uff26ull-width, \u201ccurly\u201d &amp; \ufb01ne, Σίσυφος",
    "",
)
"""Sentences that are tokenized both ways before an export is put into its place."""
SHAPES = ((96, 64), (65, 97), (48, 48), (333, 250), (10, 400))


def describe_tokenizer(encoder: TextEncoder, folder: Path) -> dict[str, Any]:
    """Write the files of a tokenizer, and describe them. Raise ModelError if none gives the same tokens."""
    if isinstance(encoder, BiGRU):
        encoder.vocabulary.save(folder / VOCABULARY_FILE)
        splitter = WORD_SPLITTERS.name_of(type(encoder.vocabulary.split))  # type: ignore[arg-type]
        reading: dict[str, Any] = {
            "kind": "vocabulary",
            "file": VOCABULARY_FILE,
            "splitter": splitter,
            "boundaries": encoder.boundaries,
            "max_words": encoder.max_words,
            "nearest": encoder.vocabulary.reads_nearest,
        }
        if splitter is None:
            raise ModelError(
                f"{type(encoder.vocabulary.split).__name__} splits the words, but a runtime does not support it: "
                f"export a model whose tokenizer is one of {', '.join(WORD_SPLITTERS)}"
            )
    elif isinstance(encoder, TransformersText):
        if (fast := getattr(encoder.tokenizer, "backend_tokenizer", None)) is None:
            raise ModelError(
                f"the tokenizer {type(encoder.tokenizer).__name__} has no {TOKENIZER_FILE}, which a runtime reads: "
                f"export a model with a fast tokenizer, or take --format sentence_transformers"
            )
        fast.save(str(folder / TOKENIZER_FILE))
        reading = {
            "kind": "pieces",
            "file": TOKENIZER_FILE,
            "max_length": encoder.max_length,
            "unknown": encoder.tokenizer.unk_token_id,
            "cut": encoder.tokenizer.truncation_side,
            "cleaning": encoder.cleaning,
        }
    else:
        raise ModelError(
            f"the text encoder {type(encoder).__name__} has a tokenizer that a runtime does not know: export a model "
            f"with bigru or transformers_text"
        )
    _check_tokens(encoder, folder, reading)
    return reading


def _check_tokens(encoder: TextEncoder, folder: Path, reading: dict[str, Any]) -> None:
    ours = [ids.tolist() for ids in encoder.tokenize(PROBES)]
    for caption, one, other in zip(PROBES, ours, read_tokenizer(folder, reading).tokenize(PROBES), strict=True):
        if one != other:
            raise ModelError(
                f"the exported tokenizer gives other tokens than the model for {caption[:40]!r}, so the export would "
                f"be wrong: take --format sentence_transformers, or a model with another tokenizer"
            )


def describe_preprocessing(backbone: Backbone) -> Preprocessing:
    """Return a backbone's preprocessing. Raise ModelError if a runtime cannot give the same pixels."""
    made = _preprocessing(backbone)
    for number, size in enumerate(SHAPES):
        image = probe_image(number, size)
        ours, theirs = backbone.preprocess(image).numpy(), made(image)
        if ours.shape != theirs.shape or np.abs(ours - theirs).max() > 1e-5:
            raise ModelError(
                f"the preprocessing of {type(backbone).__name__} cannot be exported, because an image of "
                f"{size[0]} x {size[1]} pixels becomes other pixels: export a model with another backbone"
            )
    return replace(made, shorter_side=backbone.decoded_for(None, exact=False))


def _preprocessing(backbone: Backbone) -> Preprocessing:
    if isinstance(backbone, Crops):
        inner = _preprocessing(backbone.inner)
        windows = None if backbone.shared else backbone.windows
        return Preprocessing(**{**asdict(inner), "windows": windows})
    if isinstance(backbone, EfficientNetLite):
        sizes = backbone.scales or (backbone.image_size,)
        squares = tuple((size, size) for size in sizes)
        return Preprocessing(sizes=squares, mean=(127.0,) * 3, deviation=(128.0,) * 3, order="subtract")
    if isinstance(backbone, TransformersVision):
        return _of_processor(backbone)
    raise ModelError(
        f"the preprocessing of {type(backbone).__name__} has no form for a runtime: export a model with "
        f"efficientnet_lite, crops of it, transformers_vision or precomputed features"
    )


def _of_processor(backbone: TransformersVision) -> Preprocessing:
    """Return the preprocessing that a checkpoint of ``transformers`` describes."""
    from PIL.Image import Resampling

    processor = backbone.processor

    def given(name: str, default: Any = None) -> Any:
        value = getattr(processor, name, None)
        return default if value is None else value

    size, crop = dict(given("size", {})), dict(given("crop_size", {}))
    square: tuple[tuple[int, int], ...] = ()
    shortest, cut = None, None
    resample = int(given("resample", Resampling.BICUBIC))
    if backbone.image_size is not None:
        square, resample = ((backbone.image_size, backbone.image_size),), int(Resampling.BICUBIC)
    else:
        if given("do_resize", False):
            shortest = size.get("shortest_edge")
            square = () if shortest else ((size.get("height", 0), size.get("width", 0)),)
        if given("do_center_crop", False):
            cut = crop.get("height", 0), crop.get("width", 0)
    normalises = given("do_normalize", False)
    return Preprocessing(
        sizes=square,
        shortest=shortest,
        crop=cut,
        rounds=backbone.round_crop,
        resample=resample,
        factor=float(given("rescale_factor", 1.0)) if given("do_rescale", False) else 1.0,
        mean=tuple(map(float, given("image_mean"))) if normalises else (0.0,) * 3,
        deviation=tuple(map(float, given("image_std"))) if normalises else (1.0,) * 3,
    )


TOLERANCE = 1e-4
"""The largest difference of a number of a float32 embedding; embeddings have unit length."""
_LOWEST_COSINE = 0.9  # below it an int8 embedding is of no use
_BATCH = 3
_AT_ONCE = 64

OF_WORDS = ("openvse.model.two_tower", "openvse.runtime.model")
"""The loggers that warn of words of the probes that a model does not know."""
_METRICS = ("i2t_r1", "i2t_r5", "i2t_r10", "t2i_r1", "t2i_r5", "t2i_r10", "rsum")


@dataclass(frozen=True)
class Deviation:
    """The difference between ``count`` embeddings of an export and the model's.

    It has the largest difference of one number, the lowest cosine, and the largest Euclidean distance. The cosine with
    any other embedding changes by no more than this distance.
    """

    what: str
    largest: float
    cosine: float
    distance: float
    count: int


def examples(tower: Tower[Any], side: Side, sizes: Sequence[int]) -> list[Inputs]:
    """Return a batch of random inputs for each size: its sets have this size, half of it, and 1."""
    encoder: Encoder = tower.encoder
    random = torch.Generator().manual_seed(0)
    if side.inputs == ("pixels",):
        backbone: Any = encoder.backbone
        pixels = torch.stack([backbone.preprocess(probe_image(n, SHAPES[0])) for n in range(_BATCH)])
        return [Inputs(pixels, None) for _ in sizes]
    batches = []
    for size in sizes:
        mask = position_mask(torch.tensor([size, max(1, size // 2), 1]), size)
        if side.width is not None:
            values = torch.randn(_BATCH, size, side.width, generator=random)
        elif isinstance(encoder, TextEncoder):
            ids = torch.cat(encoder.tokenize([text for text in PROBES if text]))
            values = ids[torch.randint(len(ids), mask.shape, generator=random)]
        else:
            raise ModelError(f"{type(encoder).__name__} has inputs that an export does not support")
        batches.append(Inputs(values.masked_fill(~mask.view(*mask.shape, *[1] * (values.dim() - 2)), 0), mask))
    return batches


def checked_sizes(longest: int | None) -> list[int]:
    """Return the set sizes at which a program is compared: small ones, some between, and the largest."""
    if longest is None:
        return [1]
    sizes, step = [1, 2], 3
    while step < longest:
        sizes.append(step)
        step = int(1.6 * step) + 1
    return sorted({*(size for size in sizes if size <= longest), longest})


def check_side(model: TwoTower, folder: Path, description: Description, name: str) -> Deviation:
    """Compare a program with its tower at several set sizes. Raise ModelError if their embeddings differ."""
    side: Side = getattr(description, name)
    tower: Tower[Any] = getattr(model, name)
    sizes = checked_sizes(side.longest)
    runtime = OnnxModel(folder)
    parts = []
    for size, inputs in zip(sizes, examples(tower, side, sizes), strict=True):
        embedded: EmbeddingSet = tower(inputs)
        given = [inputs.values] if inputs.mask is None else [inputs.values, inputs.mask]
        arrays = {key: tensor.numpy() for key, tensor in zip(side.inputs, given, strict=True)}
        measured = deviation(f"{name} tower", embedded.vectors.numpy(), runtime.run(name, arrays))
        at = "" if side.longest is None else f" with {size} {side.inputs[0]}"
        judge(measured, f"the exported {name} tower{at}", is_int8=description.precision == "int8")
        parts.append(measured)
    return Deviation(
        parts[0].what,
        max(each.largest for each in parts),
        min(each.cosine for each in parts),
        max(each.distance for each in parts),
        sum(each.count for each in parts),
    )


def check_readers(model: TwoTower, folder: Path) -> list[Deviation]:
    """Compare a runtime with its model, on sentences and images. Raise ModelError if they differ."""
    runtime = OnnxModel(folder)
    with quiet(*OF_WORDS):
        deviations = [
            deviation(
                "sentences", model.encode_text(PROBES[:-1]).vectors.numpy(), runtime.encode_text(PROBES[:-1]).vectors
            )
        ]
    if runtime.description.image.reading is not None:
        images = [probe_image(number, size) for number, size in enumerate(SHAPES)]
        deviations.append(
            deviation("images", model.encode_image(images).vectors.numpy(), runtime.encode_image(images).vectors)
        )
    for each in deviations:
        judge(each, f"the export, for {each.what},")
    return deviations


def deviation(what: str, ours: np.ndarray, theirs: np.ndarray) -> Deviation:
    """Compare embeddings ``[B, K, D]`` of the model with an export's."""
    if ours.shape != theirs.shape:
        return Deviation(what, float("inf"), -1.0, float("inf"), len(ours))
    norms = np.linalg.norm(ours, axis=-1) * np.linalg.norm(theirs, axis=-1)
    cosines = (ours * theirs).sum(axis=-1) / np.maximum(norms, 1e-12)
    apart = ours - theirs
    distance = float(np.linalg.norm(apart, axis=-1).max())
    return Deviation(what, float(np.abs(apart).max()), float(cosines.min()), distance, len(ours))


def judge(measured: Deviation, what: str, *, is_int8: bool = False, tolerance: float | None = None) -> None:
    """Raise ModelError if embeddings of an export are too far from the model's.

    In int8 only the cosine counts. Otherwise a number may differ by the tolerance, or by ``TOLERANCE``.
    """
    allowed = TOLERANCE if tolerance is None else tolerance
    if is_int8 and not measured.cosine >= _LOWEST_COSINE:
        raise ModelError(f"{what} in int8 has a cosine of {measured.cosine:.2f} with the model's: leave out --int8")
    if not is_int8 and not measured.largest <= allowed:
        raise ModelError(
            f"{what} gives embeddings that differ from the model's by {measured.largest:.1e} (allowed: "
            f"{allowed:g}), so it is not written: report it"
        )


@dataclass(frozen=True)
class Effect:
    """The change of retrieval in a split by int8: recalls in per cent and RSUM, before and after."""

    name: str
    num_images: int
    num_texts: int
    before: Mapping[str, float]
    after: Mapping[str, float]


def embed_images(model: OnnxModel, corpus: Corpus) -> tuple[ArraySet, Corpus]:
    """Embed the images of a corpus, and return the corpus without the unreadable ones, which are reported."""
    places = range(len(corpus))

    def path(place: int) -> ImageFile:
        return corpus.image_paths[place]

    readable: list[int] = []
    parts: list[np.ndarray] = []
    for batch in decoded(in_batches(places, _AT_ONCE), lambda place: model.read_image(path(place)), path):
        tell_skipped((path(place), reason) for place, reason in batch.failed)
        if batch.items:
            parts.append(model.encode_pixels(batch.values).vectors)
            readable += batch.items
    if not parts:
        raise DataError(f"{corpus.name}: no image can be read: check them by 'openvse data check'")
    return ArraySet.full(np.concatenate(parts)), corpus.select(np.array(readable))


def effect_of(rounded: OnnxModel, images: ArraySet, texts: ArraySet, corpus: Corpus) -> Effect:
    """Return the change of retrieval in a corpus."""
    after = rounded.encode_image(corpus.image_paths), rounded.encode_text(corpus.captions)
    measured = []
    for pair in ((images, texts), after):
        similarity = {"order": Order(), "csd": CSD()}.get(rounded.description.score)
        report = evaluate_arrays(pair[0].vectors, pair[1].vectors, corpus.relevance, similarity=similarity, resamples=0)
        measured.append({name: float(report.metrics[name]) for name in _METRICS})
    return Effect(corpus.name, len(corpus), len(corpus.captions), *measured)
