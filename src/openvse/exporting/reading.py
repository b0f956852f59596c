"""The tokenizers and preprocessing in an export, so that a runtime without PyTorch gives the same results."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from openvse.backbones import Backbone
from openvse.backbones.crops import Crops
from openvse.backbones.efficientnet_lite import EfficientNetLite
from openvse.backbones.pretrained import CheckpointBackbone
from openvse.encoders import BiGRU, TextEncoder
from openvse.encoders.transformers_text import PROBE, TransformersText
from openvse.encoders.words_encoder import VOCABULARY_FILE
from openvse.errors import ModelError
from openvse.media.images import probe_image
from openvse.runtime.reading import Preprocessing, read_tokenizer
from openvse.tokenization.word_splitters import WORD_SPLITTERS

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
    theirs = read_tokenizer(folder, reading).tokenize(PROBES)
    for caption, one, other in zip(PROBES, ours, theirs, strict=True):
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
    if isinstance(backbone, CheckpointBackbone) and not backbone.reads_videos:
        return _of_processor(backbone)
    raise ModelError(
        f"the preprocessing of {type(backbone).__name__} has no form for a runtime: export a model with "
        f"efficientnet_lite, crops of it, transformers_vision or precomputed features"
    )


def _of_processor(backbone: CheckpointBackbone) -> Preprocessing:
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
