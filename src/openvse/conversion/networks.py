"""The networks that several repositories share: their names there and in openvse, and their shapes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from openvse.conversion.checkpoint import number
from openvse.conversion.weights import Names, Weights, count, shape
from openvse.errors import CheckpointError

BASE_SIZE, STRIDE = 256, 32  # pixels: the side of an image before --input_scale_factor, and of a grid cell
HEAD_DIM = 64  # in every published BERT and ViT; the weights do not show the width of a head

BIGRU: Names = {"embed.": "encoder.words.", "rnn.": "encoder.gru."}
RESIDUAL_MLP: Names = {
    "fc.": "encoder.projection.linear.",
    "mlp.layers.0.": "encoder.projection.mlp.0.",
    "mlp.bns.0.": "encoder.projection.mlp.1.",
    "mlp.layers.1.": "encoder.projection.mlp.3.",
    "mlp.bns.1.": None,  # made, but never called
}
# The extractor holds its network twice, once as a whole and once in two parts; the weights are the same.
RESNET: Names = {
    "backbone.resnet.fc.": None,
    "backbone.resnet.": "encoder.backbone.",
    "backbone.base.": None,
    "backbone.top.": None,
}


def bert(weights: Weights, *, model: str) -> tuple[dict[str, Any], Names]:
    """Return the text encoder of a fine-tuned BERT, and the names of its weights except the projection's.

    Args:
        weights: the weights of the text encoder, as released.
        model: the name of the BERT from which the training started.
    """
    encoder = {
        "name": "transformers_text",
        "model": model,
        # The released code does not cut captions; the limit is BERT's own.
        "max_length": shape(weights, "bert.embeddings.position_embeddings.weight", axes=2)[0],
        "size_augmentation": "bert_style",
    }
    # Older versions of transformers also save the positions.
    return encoder, {"bert.embeddings.position_ids": None, "bert.": "encoder.backbone."}


def bert_config(weights: Weights) -> dict[str, Any]:
    """Return the configuration of a BERT whose weights have our names, as ``transformers`` writes it.

    Raises:
        CheckpointError: its width is not a multiple of the width of a head.
    """
    begin = "text.encoder.backbone."
    words, width = shape(weights, f"{begin}embeddings.word_embeddings.weight", axes=2)
    if width > HEAD_DIM and width % HEAD_DIM:
        raise CheckpointError(
            f"its BERT has the width {width}, which is not a multiple of {HEAD_DIM}, the width of an attention head: "
            f"give a checkpoint that the released code saved"
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
    """Return the text encoder of a bidirectional GRU over words, which NLTK splits.

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
            f"its GRU has the width {hidden} and its images {embed_dim}: give a checkpoint that the released code saved"
        )
    return {"name": "bigru", "word_dim": word_dim, "tokenizer": "nltk", "size_augmentation": "bert_style"}


def resnet(weights: Weights, begin: str, *, caffe: bool) -> dict[str, Any]:
    """Return the image encoder of a residual network, by the shapes of its weights.

    Args:
        weights: the weights of the image encoder, as released.
        begin: the beginning of the names of the network's weights.
        caffe: whether the network has the form of the bottom-up-attention detector.

    Raises:
        CheckpointError: the CNN is not a ResNet, or has basic blocks in the form of the detector.
    """
    if f"{begin}layer4.0.conv1.weight" not in weights:
        raise CheckpointError(
            "its CNN is neither a ResNet nor a ResNeXt: only these networks of torchvision are converted"
        )
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
    """Return the side of the images of VSE-infinity and VSE+2AD in pixels, from the command line.

    Raises:
        CheckpointError: its ``--input_scale_factor`` is not plausible.
    """
    factor = number(options, "input_scale_factor", 1.0, lowest=STRIDE / BASE_SIZE, highest=16.0)
    return int(BASE_SIZE * factor)
