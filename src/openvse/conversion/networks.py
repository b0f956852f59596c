"""The networks that several repositories share: what they are called there and here, and their shapes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from openvse.conversion.options import number
from openvse.conversion.weights import Names, Weights, count, shape
from openvse.errors import CheckpointError

BASE_SIZE, STRIDE = 256, 32  # pixels: the side of an image before --input_scale_factor, and of a grid cell
HEAD_DIM = 64  # of every published BERT and ViT; a head's width cannot be read off the weights

BIGRU: Names = {"embed.": "encoder.words.", "rnn.": "encoder.gru."}
RESIDUAL_MLP: Names = {
    "fc.": "encoder.projection.linear.",
    "mlp.layers.0.": "encoder.projection.mlp.0.",
    "mlp.bns.0.": "encoder.projection.mlp.1.",
    "mlp.layers.1.": "encoder.projection.mlp.3.",
    "mlp.bns.1.": None,  # made, but never called
}
# The extractor holds its network whole, and once more in two parts; all are the same weights.
RESNET: Names = {
    "backbone.resnet.fc.": None,
    "backbone.resnet.": "encoder.backbone.",
    "backbone.base.": None,
    "backbone.top.": None,
}


def bert(weights: Weights, *, model: str) -> tuple[dict[str, Any], Names]:
    """Return the text encoder of a fine-tuned BERT, and its weights' names without the projection's.

    Args:
        weights: of the text encoder, as released.
        model: which BERT it started from.
    """
    encoder = {
        "name": "transformers_text",
        "model": model,
        # The released code cuts no caption: the limit is BERT's own.
        "max_length": shape(weights, "bert.embeddings.position_embeddings.weight", axes=2)[0],
        "size_augmentation": "bert_style",
    }
    # Older versions of transformers save the numbers of the positions too.
    return encoder, {"bert.embeddings.position_ids": None, "bert.": "encoder.backbone."}


def bert_config(weights: Weights) -> dict[str, Any]:
    """Return the configuration of a BERT whose weights have our names, as ``transformers`` writes it.

    Raises:
        CheckpointError: its width is no number of heads.
    """
    begin = "text.encoder.backbone."
    words, width = shape(weights, f"{begin}embeddings.word_embeddings.weight", axes=2)
    if width > HEAD_DIM and width % HEAD_DIM:
        raise CheckpointError(
            f"its BERT is {width} wide, no multiple of the {HEAD_DIM} of each attention head: that is no released model"
        )
    return {
        "model_type": "bert",
        "vocab_size": words,
        "hidden_size": width,
        "num_hidden_layers": count(weights, f"{begin}encoder.layer."),
        "num_attention_heads": max(1, width // HEAD_DIM),
        "intermediate_size": shape(weights, f"{begin}encoder.layer.0.intermediate.dense.weight", axes=2)[0],
        "max_position_embeddings": shape(weights, f"{begin}embeddings.position_embeddings.weight", axes=2)[0],
        "type_vocab_size": shape(weights, f"{begin}embeddings.token_type_embeddings.weight", axes=2)[0],
    }


def bigru(weights: Weights, *, embed_dim: int) -> dict[str, Any]:
    """Return the text encoder of a bidirectional GRU over words, read as NLTK splits them.

    Raises:
        CheckpointError: its GRU has several layers, one direction, or another width.
    """
    words, word_dim = shape(weights, "embed.weight", axes=2)
    if "rnn.weight_ih_l1" in weights:
        raise CheckpointError("its GRU has several layers: openvse's bigru has one")
    if "rnn.weight_ih_l0_reverse" not in weights:
        raise CheckpointError("its GRU reads in one direction: openvse's bigru reads in both")
    hidden = shape(weights, "rnn.weight_hh_l0", axes=2)[1]
    if hidden not in (embed_dim, embed_dim / 2) or words < 4:
        raise CheckpointError(
            f"its GRU is {hidden} wide and its images {embed_dim}: that is no released model"
        )
    return {"name": "bigru", "word_dim": word_dim, "tokenizer": "nltk", "size_augmentation": "bert_style"}


def resnet(weights: Weights, begin: str, *, caffe: bool) -> dict[str, Any]:
    """Return the image encoder of a residual network, by the shapes of its weights.

    Args:
        weights: of the image encoder, as released.
        begin: of the names of the network's weights.
        caffe: the network has the form of the bottom-up-attention detector.

    Raises:
        CheckpointError: its CNN is none, or has basic blocks in the detector's form.
    """
    if f"{begin}layer4.0.conv1.weight" not in weights:
        raise CheckpointError("its CNN is no ResNet or ResNeXt: no other network of torchvision is converted")
    inner_dim = shape(weights, f"{begin}layer1.0.conv1.weight", axes=4)[0]
    bottleneck = f"{begin}layer1.0.conv3.weight" in weights
    if caffe and not bottleneck:
        raise CheckpointError(
            "its ResNet has blocks of two convolutions, which the released code does not make"
        )
    return {
        "name": "resnet",
        "blocks": [count(weights, f"{begin}layer{stage}.") for stage in range(1, 5)],
        "bottleneck": bottleneck,
        "form": "caffe" if caffe else "torchvision",
        "stem_dim": shape(weights, f"{begin}conv1.weight", axes=4)[0],
        "inner_dim": inner_dim,
        "groups": inner_dim // shape(weights, f"{begin}layer1.0.conv2.weight", axes=4)[1],
    }


def scaled_size(options: Mapping[str, Any]) -> int:
    """Return the side of the images in pixels that VSE-infinity and VSE+2AD read, from the command line.

    Raises:
        CheckpointError: its ``--input_scale_factor`` is not plausible.
    """
    factor = number(options, "input_scale_factor", 1.0, lowest=STRIDE / BASE_SIZE, highest=16.0)
    return int(BASE_SIZE * factor)
