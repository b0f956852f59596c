"""The repositories whose checkpoints are converted: VSE-infinity, VSE+2AD and PVSE.

- VSE-infinity (github.com/woodfrog/vse_infty): BERT and BiGRU branches, regions and grids.
- VSE+2AD (github.com/96-Zachary/vse_2ad), which began from it: regions and grids, BiGRU and BERT.
- PVSE (github.com/yalesong/pvse): images or clips and sentences, one embedding or several.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from openvse.conversion.checkpoint import (
    ReleasedCheckpoint,
    ReleasedPlan,
    flag,
    label,
    number,
    refuse_options,
    whole_number,
)
from openvse.conversion.weights import Names, Weights, count, renamed, shape, sides
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


def text_encoder(
    weights: Weights, *, embed_dim: int, projection: str, model: str = "bert-base-uncased"
) -> tuple[dict[str, Any], Names]:
    """Return the text encoder of VSE-infinity or VSE+2AD, a fine-tuned BERT or a GRU, and the names of its weights.

    Args:
        weights: the weights of the text encoder, as released.
        embed_dim: D.
        projection: the name of the layer behind BERT.
        model: the name of the BERT from which the training started.
    """
    if not any(name.startswith("bert.") for name in weights):
        return bigru(weights, embed_dim=embed_dim), BIGRU
    encoder = {
        "name": "transformers_text",
        "model": model,
        # The released code does not cut captions; the limit is BERT's own.
        "max_length": shape(weights, "bert.embeddings.position_embeddings.weight", axes=2)[0],
        "size_augmentation": "bert_style",
    }
    # Older versions of transformers also save the positions.
    names = {"bert.embeddings.position_ids": None, "bert.": "encoder.backbone."}
    return encoder, {**names, f"{projection}.": "encoder.projection.linear."}


def regions(feature_dim: int, *, residual: bool) -> dict[str, Any]:
    """Return the image encoder of VSE-infinity or VSE+2AD for stored regions."""
    projection = "residual_mlp" if residual else "linear"
    return {"name": "precomputed", "feature_dim": feature_dim, "projection": projection}


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


UNNORMALISED = dict.fromkeys(("no_imgnorm", "no_txtnorm"), "openvse scores with unit vectors")

GPO: Names = {"gpool.gru.": "aggregator.generator.", "gpool.linear.": "aggregator.score."}
# Backbones of other projects; the repository's own backbones have the form of the detector.
FROM_THE_HUB = ("wsl", "imagenet_resnext")


def is_vse_infinity(checkpoint: ReleasedCheckpoint) -> bool:
    """Return whether both sides are pooled by GPO."""
    return any("gpool." in name for name in checkpoint.image) and "gpool.linear.weight" in checkpoint.text


def plan_vse_infinity(checkpoint: ReleasedCheckpoint) -> ReleasedPlan:
    """Return the plan for a checkpoint; raise CheckpointError if openvse cannot represent the model."""
    return _plan_pooled(checkpoint, "vse_infinity", "gpo", GPO)


EXTERNAL_ATTENTION: Names = {
    "linear1.weight": "aggregator.attention.weight",
    "linear1.bias": None,  # it shifts all logits of a dimension equally
}


def is_esa(checkpoint: ReleasedCheckpoint) -> bool:
    """Return whether both sides are pooled by external attention."""
    return any("linear1." in name for name in checkpoint.image) and "linear1.weight" in checkpoint.text


def plan_esa(checkpoint: ReleasedCheckpoint) -> ReleasedPlan:
    """Return the plan for a checkpoint, whose encoders are those of VSE-infinity; see ``plan_vse_infinity``."""
    plan = _plan_pooled(checkpoint, "esa", "external_attention", EXTERNAL_ATTENTION)
    plan.recipe["objective"]["ranking"]["positives"] = "hardest"
    return plan


def _plan_pooled(checkpoint: ReleasedCheckpoint, name: str, aggregator: str, names: Names) -> ReleasedPlan:
    """Return the plan for the encoders of VSE-infinity with an aggregator, whose weights have the given names."""
    options = checkpoint.options
    refuse_options(options, UNNORMALISED)
    grid = {n.removeprefix("image_encoder."): w for n, w in checkpoint.image.items()}
    embed_dim, feature_dim = shape(grid, "fc.weight", axes=2)
    notes: list[str] = []
    image_encoder = (
        _infinity_grids(grid, checkpoint.options, notes)
        if "image_encoder.fc.weight" in checkpoint.image
        else regions(feature_dim, residual="mlp.layers.0.weight" in grid)
    )
    encoder, text_names = text_encoder(checkpoint.text, embed_dim=embed_dim, projection="linear")
    uses_bert = encoder["name"] == "transformers_text"
    recipe = {
        "name": f"converted/{name}",
        "embed_dim": embed_dim,
        "image": {"encoder": image_encoder, "aggregator": aggregator},
        "text": {"encoder": encoder, "aggregator": aggregator},
        "objective": {
            "ranking": {
                "name": "contrast",
                # Independent of --max_violation, which the training script turns on after --vse_mean_warmup_epochs.
                "miner": "hardest",
                "criterion": {
                    "name": "hinge",
                    "margin": number(options, "margin", 0.2, lowest=0.0, highest=2.0),
                },
            }
        },
        "optimizer": {"multipliers": {"text.encoder.backbone": 0.1} if uses_bert else {}},
    }
    weights = sides(
        renamed(grid, {**RESIDUAL_MLP, **RESNET, **names}), renamed(checkpoint.text, {**text_names, **names})
    )
    place = "vocab/f30k_precomp_vocab.json or vocab/coco_precomp_vocab.json, from the data of SCAN"
    return ReleasedPlan(recipe, weights, "bert-base-uncased" if uses_bert else place, tuple(notes))


def _infinity_grids(image: Weights, options: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    source = label(options, "backbone_source", "detector")
    if "backbone_source" not in options:
        notes.append(
            "the file does not say which CNN it holds: that of the detector is assumed (image.encoder.form)"
        )
    return {
        **resnet(image, "backbone.resnet.", caffe=not any(name in source for name in FROM_THE_HUB)),
        "image_size": scaled_size(options),
        "pixels": "caffe" if "detector" in source else "imagenet",
    }


ADPOOL: Names = {
    "pool.linear.": "aggregator.token.0.",
    "pool.balance.weight": "aggregator.balance.weight",
    "pool.balance.bias": None,  # it shifts both logits equally
}
LINEAR: Names = {"fc.": "encoder.projection.linear.", "mlp.": None}
SCALE = 1.25  # the exponent of its rule for the number of negatives, which adaptive_top_k has as a constant
COUNTING = (
    "captions are pooled without padding: the embedding of each equals that of the released code for a batch with only "
    "this caption; text.aggregator.count_padding=true repeats the released code in a batch, but cannot be indexed"
)


def is_vse_2ad(checkpoint: ReleasedCheckpoint) -> bool:
    """Return whether both sides are pooled by AdPool."""
    return (
        any("pool.balance." in name for name in checkpoint.image) and "pool.balance.weight" in checkpoint.text
    )


def plan_vse_2ad(checkpoint: ReleasedCheckpoint) -> ReleasedPlan:
    """Return the plan for a checkpoint; raise CheckpointError if openvse cannot represent the model."""
    options = checkpoint.options
    refuse_options(options, UNNORMALISED)
    if any(name.startswith("vit_model.") for name in checkpoint.image):
        raise CheckpointError(
            "its image encoder is a ViT, from which the released code drops a random tenth of the patches at "
            "evaluation: its embeddings cannot be reproduced, so it is not converted"
        )
    image = {n.removeprefix("img_proj."): w for n, w in checkpoint.image.items()}
    embed_dim, feature_dim = shape(image, "fc.weight", axes=2)
    grids = "img_proj.fc.weight" in checkpoint.image
    # Both projections always exist; the second is only used for regions.
    residual = not grids and label(options, "precomp_enc_type", "basic") == "basic"
    if grids:
        image_encoder = {
            **resnet(image, "backbone.resnet.", caffe=True),
            "image_size": scaled_size(options),
            "pixels": "caffe",
        }
    else:
        image_encoder = regions(feature_dim, residual=residual)
    image_names = {**(RESIDUAL_MLP if residual else LINEAR), **RESNET, **ADPOOL}
    model = label(options, "bert_type", "bert-base-uncased")
    encoder, text_names = text_encoder(checkpoint.text, embed_dim=embed_dim, projection="fc", model=model)
    words = f"data/vocab/{label(options, 'data_name', 'f30k')}_precomp_vocab.json"
    aggregator = {"name": "adpool", "token_weights": "per_dimension"}
    recipe = {
        "name": "converted/vse_2ad",
        "embed_dim": embed_dim,
        "image": {"encoder": image_encoder, "aggregator": aggregator},
        "text": {"encoder": encoder, "aggregator": aggregator},
        "objective": {"ranking": _2ad_ranking(options)},
    }
    weights = sides(renamed(image, image_names), renamed(checkpoint.text, {**text_names, **ADPOOL}))
    vocabulary = model if encoder["name"] == "transformers_text" else words
    return ReleasedPlan(recipe, weights, vocabulary, (COUNTING, *_scale_note(options)))


def _2ad_ranking(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ranking term; the training script always passes --tau to its loss."""
    criterion = {
        "name": "info_nce",
        "temperature": number(options, "tau", 0.05, lowest=0.001, highest=10.0),
        "margin": number(options, "margin", 0.2, lowest=0.0, highest=2.0),
    }
    return {"name": "contrast", "miner": "adaptive_top_k", "criterion": criterion, "reduction": "mean"}


def _scale_note(options: Mapping[str, Any]) -> tuple[str, ...]:
    scale = number(options, "scale", SCALE, lowest=0.0, highest=100.0)
    if scale == SCALE:
        return ()
    return (
        f"it was trained with --scale {scale:g}, but adaptive_top_k counts negatives as with --scale {SCALE}: its "
        f"embeddings are the same, and only further training differs",
    )


PIE_NET: Names = {
    f"{module}.{theirs}.": f"aggregator.{ours}."
    for module in ("pie_net", "our_model")  # the second in files from before July 2019
    for theirs, ours in {
        "attention.w_1": "hidden",
        "attention.w_2": "heads",
        "fc": "residual",
        "layer_norm": "norm",
    }.items()
}
CNN: Names = {"cnn.": "encoder.backbone.", "fc.": "encoder.global_projection.", "cnn.fc.": None}
VIDEO_CNN: Names = {
    "cnn.": "encoder.backbone.backbone.",
    "cnn.fc.": None,
    "rnn.": "encoder.global_projection.gru.",
}
LEGACY = (
    "the file does not say which states of its GRUs were used: --legacy is assumed, as in the commands of the "
    "repository (otherwise set text.encoder.global_state=final, and for videos image.encoder.pooled_by=bigru)"
)
NUM_FRAMES, MAX_FRAMES = 8, 1000
FRAMES = (
    f"the file does not say how many frames it was trained with: {NUM_FRAMES} are assumed, as for TGIF; set "
    f"image.encoder.num_frames=4 for MRW, as in the command of the repository"
)


def is_pvse(checkpoint: ReleasedCheckpoint) -> bool:
    """Return whether the checkpoint has a PIE-Net on either side, or its CNN and a GRU."""
    named = (*checkpoint.image, *checkpoint.text)
    return any(name.startswith(("pie_net.", "our_model.")) for name in named) or (
        "cnn.conv1.weight" in checkpoint.image and "embed.weight" in checkpoint.text
    )


def plan_pvse(checkpoint: ReleasedCheckpoint) -> ReleasedPlan:
    """Return the plan for a checkpoint; raise CheckpointError if openvse cannot represent the model."""
    options, image, text = checkpoint.options, checkpoint.image, checkpoint.text
    refuse_options(options, {"order": "openvse has no PIE-Nets whose embeddings are absolute values"})
    heads = [n for side in (image, text) for n in side if n.endswith("attention.w_2.weight")]
    if len(heads) < 2:
        raise CheckpointError(
            "it does not have a PIE-Net on both sides (--img_attention, --txt_attention): openvse has no aggregator "
            "that only uses the global vector"
        )
    head = next(n for n in heads if n in image)
    embed_dim = shape(image, head.replace("attention.w_2", "fc"), axes=2)[0]
    legacy = flag(options, "legacy", default=not options)
    video = "rnn.weight_ih_l0" in image
    num_embeddings = shape(image, head, axes=2)[0]
    aggregator = {"name": "pie_net", "num_embeddings": num_embeddings}
    recipe = {
        "name": "converted/pvse",
        "embed_dim": embed_dim,
        "image": {
            "encoder": _pvse_clips(checkpoint, legacy=legacy)
            if video
            else {**_pvse_cnn(checkpoint), "projection": "none", "size_augmentation": "none", "pooled": True},
            "aggregator": aggregator,
        },
        "text": {
            "encoder": {
                **bigru(text, embed_dim=embed_dim),
                "size_augmentation": "none",
                "output": "words",
                "global_state": "last_word" if legacy else "final",
                "freeze_words": not flag(options, "txt_finetune", default=True),
            },
            "aggregator": aggregator,
        },
        "objective": _pvse_objective(options, num_embeddings),
        "optimizer": {
            "name": "adam",
            "amsgrad": True,
            "weight_decay": number(options, "weight_decay", 0.0, lowest=0.0, highest=1.0),
            "learning_rate": number(options, "lr", 2e-4, lowest=1e-8, highest=1.0),
        },
    }
    image_names = {**(VIDEO_CNN if video else CNN), **PIE_NET}
    weights = sides(renamed(image, image_names), renamed(text, {**BIGRU, **PIE_NET}))
    notes = () if options else (LEGACY, FRAMES) if video else (LEGACY,)
    place = (
        f"vocab/{label(options, 'data_name', 'coco')}_vocab.pkl"
        if "data_name" in options
        else "vocab/{coco,mrw,tgif}_vocab.pkl"
    )
    return ReleasedPlan(recipe, weights, place, notes)


def _pvse_clips(checkpoint: ReleasedCheckpoint, *, legacy: bool) -> dict[str, Any]:
    return {
        "name": "frames",
        "backbone": _pvse_cnn(checkpoint),
        "num_frames": whole_number(
            checkpoint.options, "max_video_length", NUM_FRAMES, lowest=1, highest=MAX_FRAMES
        ),
        "projection": "none",
        "pooled": True,
        "pooled_by": "bigru_last" if legacy else "bigru",
    }


def _pvse_cnn(checkpoint: ReleasedCheckpoint) -> dict[str, Any]:
    options = checkpoint.options
    return {
        **resnet(checkpoint.image, "cnn.", caffe=False),
        "image_size": whole_number(options, "crop_size", 224, lowest=32, highest=4096),
        "fit": "crop",
        "fine_tune": flag(options, "img_finetune", default=True),
    }


def _pvse_objective(options: Mapping[str, Any], num_embeddings: int) -> dict[str, Any]:
    terms: dict[str, Any] = {
        "ranking": {
            "name": "contrast",
            "miner": "hardest" if flag(options, "max_violation", default=True) else "all",
            "criterion": {
                "name": "hinge",
                "margin": number(options, "margin", 0.1, lowest=0.0, highest=2.0),
                "reduction": "mean",
            },
            "reduction": "mean",
        }
    }
    weights = {
        name: number(options, f"{option}_weight", 0.0, lowest=0.0, highest=1000.0)
        for name, option in (("diversity", "div"), ("mmd", "mmd"))
    }
    if num_embeddings > 1:  # the released code computes neither term for single embeddings
        terms |= {name: {"name": name, "weight": weight} for name, weight in weights.items() if weight}
    if "mmd" in terms:
        terms["mmd"]["kernel"] = "legacy_exp"
    return terms


@dataclass(frozen=True)
class Repository:
    """The functions that read the checkpoints of one repository."""

    recognise: Callable[[ReleasedCheckpoint], bool]
    plan: Callable[[ReleasedCheckpoint], ReleasedPlan]


REPOSITORIES: Mapping[str, Repository] = {
    "vse_infinity": Repository(is_vse_infinity, plan_vse_infinity),
    "pvse": Repository(is_pvse, plan_pvse),
    "vse_2ad": Repository(is_vse_2ad, plan_vse_2ad),
    "esa": Repository(is_esa, plan_esa),
}
