"""Weights as 8-bit integers: smaller files, and embeddings that differ a little."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from openvse.corpus import Corpus
from openvse.errors import ModelError
from openvse.evaluation.arrays import evaluate
from openvse.runtime import ArraySet, OnnxModel
from openvse.similarities import Order

SUFFIX = "-int8"
"""What follows the fingerprint of a model whose weights were rounded."""
_METRICS = ("i2t_r1", "i2t_r5", "i2t_r10", "t2i_r1", "t2i_r5", "t2i_r10", "rsum")


@dataclass(frozen=True)
class Effect:
    """How the rounding changes retrieval.

    Attributes:
        name: the data set and its split.
        num_images: the number of images.
        num_texts: the number of sentences.
        before: recalls in per cent and RSUM in float32.
        after: the same in int8.
    """

    name: str
    num_images: int
    num_texts: int
    before: Mapping[str, float]
    after: Mapping[str, float]


def quantize(path: Path) -> None:
    """Round the weights of the matrix products and of the word embeddings of an ONNX file to int8, in its place.

    Activations are rounded while the program runs (dynamic quantisation), so no data is needed. Convolutions stay in
    float32, because ONNX Runtime has no fast dynamic form of them. The integers are unsigned: products with signed ones
    overflow on processors without VNNI.

    Raises:
        ModelError: ONNX Runtime or ONNX is not installed.
    """
    try:
        from onnxruntime.quantization import QuantType, quantize_dynamic
    except ImportError as error:
        raise ModelError("int8 needs more packages: pip install 'openvse[onnx]'") from error
    rounded = path.with_suffix(".int8")
    logging.getLogger("root").addFilter(_no_advice)
    try:
        quantize_dynamic(
            str(path),
            str(rounded),
            op_types_to_quantize=["MatMul", "Gemm", "Gather"],
            weight_type=QuantType.QUInt8,
            per_channel=True,
        )
    finally:
        logging.getLogger("root").removeFilter(_no_advice)
    rounded.replace(path)


def effect_of(rounded: OnnxModel, images: ArraySet, texts: ArraySet, corpus: Corpus) -> Effect:
    """Return how retrieval in a corpus changes.

    Args:
        rounded: the model in int8.
        images: the embeddings of the corpus in float32.
        texts: likewise.
        corpus: the images with their captions.
    """
    after = rounded.encode_image(corpus.image_paths), rounded.encode_text(corpus.captions)
    measured = []
    for pair in ((images, texts), after):
        similarity = Order() if rounded.description.score == "order" else None
        report = evaluate(
            pair[0].vectors, pair[1].vectors, corpus.relevance, similarity=similarity, resamples=0
        )
        measured.append({name: float(report.metrics[name]) for name in _METRICS})
    return Effect(corpus.name, len(corpus), len(corpus.captions), *measured)


def _no_advice(record: logging.LogRecord) -> bool:
    """Keep out the quantiser's advice to run its preprocessing first."""
    return "pre-processing" not in record.getMessage()
