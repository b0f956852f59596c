"""The conversion of a published dual encoder (CLIP, SigLIP and related models) to a model.

Each architecture has a plan: the parts of openvse, and the names of the weights.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from openvse.backbones.pretrained import (
    FINGERPRINT_FILE,
    identify,
    load_or_explain,
    load_processor,
    load_tokenizer,
)
from openvse.conversion.dual_files import (
    CONFIG,
    OPEN_CLIP_CONFIG,
    OPEN_CLIP_WEIGHTS,
    WEIGHTS,
    ModelFiles,
    read_dual_weights,
    read_mapping,
)
from openvse.conversion.open_clip import load_clip_tokenizer, open_clip_files
from openvse.conversion.weights import Names, Weights, again, fill, renamed, shape
from openvse.errors import CheckpointError
from openvse.model.two_tower import TwoTower
from openvse.retrieval.build import build_model
from openvse.specs.load import apply_override, parse_override, validated
from openvse.specs.model import TwoTowerSpec

# The names of all architectures. Each has some of them.
NAMES: Names = {
    "vision_model.": "image.encoder.backbone.",
    "vision_model.head.": "image.aggregator.",
    "text_model.": "text.encoder.backbone.",
    "visual_projection.": "image.encoder.projection.linear.",
    "text_projection.": "text.encoder.projection.linear.",
    "logit_": None,
    "temperature": None,
}
NOT_WEIGHTS = "position_ids"  # older versions of transformers also save the positions
_COMMIT_DIGITS = 12
TOKENIZER_FILES = (
    "tokenizer.json",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tokenizer.model",
)
GELUS = {"gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh"}
_PLAIN = {"name": "transformers_vision", "augmentation": "none", "projection": "none"}


@dataclass(frozen=True)
class Architecture:
    """The conversion of one ``model_type``: its name, and the beginning of its classes in ``transformers``.

    ``towers`` makes the specs of image tower, text tower and similarity from the configuration and the weights, as
    ``transformers`` reads and names them.
    """

    what: str
    prefix: str
    towers: Callable[[Any, Weights], tuple[dict[str, Any], dict[str, Any], dict[str, Any]]]


def _clip(
    config: Any, weights: Weights, *, pooling: str = "last_token"
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """CLIP and related models: class token -> LayerNorm -> linear, and one token of the text -> linear."""
    projection = {"name": "norm_linear", "eps": config.vision_config.layer_norm_eps}
    image = {
        "encoder": {**_PLAIN, "class_token": True, "projection": projection},
        "aggregator": "first_token",
    }
    text = _text(config, pooling, projection={"name": "linear", "bias": False})
    return image, text, {"scale": _number(weights, "logit_scale").exp().item(), "link": "softmax"}


_bert_clip = partial(_clip, pooling="first_token")
"""AltCLIP and Chinese-CLIP: the image tower of CLIP, and the first token of a BERT."""


def _siglip(config: Any, weights: Weights) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """SigLIP: patches -> attention pooling, and the last position of the text, padding or not -> linear."""
    vision = config.vision_config
    if not vision.vision_use_head:
        raise CheckpointError(
            "its image tower has no pooling head, so it cannot embed an image: take a complete SigLIP model"
        )
    if vision.hidden_act not in GELUS:
        raise CheckpointError(
            f"the pooling head of its image tower has the activation {vision.hidden_act!r}, but map_head only "
            f"has {' or '.join(GELUS)}: take another SigLIP model"
        )
    head = {
        "name": "map_head",
        "num_heads": vision.num_attention_heads,
        "hidden_dim": vision.intermediate_size,
        "activation": GELUS[vision.hidden_act],
        "eps": vision.layer_norm_eps,
    }
    text = _text(config, "last_token", projection="linear")
    text["encoder"] |= {"last_position": True, "cleaning": "lower"}
    scaling = {
        "scale": _number(weights, "logit_scale").exp().item(),
        "bias": _number(weights, "logit_bias").item(),
        "link": "sigmoid",
    }
    vision.vision_use_head = False  # the aggregator is the head
    # The defaults belong to CLIP, and are outside of SigLIP's vocabulary. Nothing reads them.
    config.text_config.bos_token_id = config.text_config.eos_token_id = None
    return {"encoder": _PLAIN, "aggregator": head}, text, scaling


def _align(config: Any, weights: Weights) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """ALIGN: the mean of an EfficientNet's last feature map, and the first token of a BERT -> linear."""
    image = {"encoder": _PLAIN, "aggregator": config.vision_config.pooling_type}
    scaling = {"scale": 1 / _number(weights, "temperature").item(), "link": "softmax"}
    return image, _text(config, "first_token", projection="linear"), scaling


def _text(config: Any, aggregator: str, *, projection: Any) -> dict[str, Any]:
    """Return the text tower, which reads as many tokens as the text model has positions."""
    own = config.text_config
    # XLM-RoBERTa counts its positions from the one after the padding.
    offset = own.pad_token_id + 1 if own.model_type == "altclip_text_model" else 0
    encoder = {
        "name": "transformers_text",
        "fine_tune": False,
        "max_length": own.max_position_embeddings - offset,
        "size_augmentation": "none",
        "projection": projection,
    }
    return {"encoder": encoder, "aggregator": aggregator}


def _number(weights: Weights, name: str) -> Any:
    if name not in weights or weights[name].numel() != 1:
        raise CheckpointError(
            f"it has no single number {name!r}: the file is incomplete, or of another project"
        )
    return weights[name].detach().double().reshape(())


ARCHITECTURES: Mapping[str, Architecture] = {
    "clip": Architecture("CLIP", "CLIP", _clip),
    "siglip": Architecture("SigLIP and SigLIP 2 of fixed resolution", "Siglip", _siglip),
    "altclip": Architecture("AltCLIP", "AltCLIP", _bert_clip),
    "chinese_clip": Architecture("Chinese-CLIP", "ChineseCLIP", _bert_clip),
    "align": Architecture("ALIGN", "Align", _align),
    "metaclip_2": Architecture("MetaCLIP 2", "MetaClip2", _clip),
}
"""The dual encoders of ``transformers`` that are converted, by ``model_type``."""


def convert_dual(
    place: ModelFiles, *, tokenizer: str | None = None, overrides: Sequence[str] = ()
) -> tuple[str, TwoTower]:
    """Return the name of the architecture of a dual encoder, and its model with its weights."""
    from transformers import AutoConfig

    with tempfile.TemporaryDirectory() as temporary:
        made = Path(temporary) / "transformers"
        files, weights = _as_transformers(place, made, tokenizer)
        load = partial(AutoConfig.from_pretrained, trust_remote_code=False)
        config: Any = load_or_explain(load, files, what="the configuration")
        kind = str(config.model_type)
        architecture = ARCHITECTURES[kind]
        used = {name: weight for name, weight in weights.items() if not name.endswith(NOT_WEIGHTS)}
        tree = _spec(architecture, config, used)
        ours = renamed(used, NAMES)
        # Layers that openvse applies after the tower, which holds them too.
        ours |= again(used, "text_model.head.", "text.encoder.projection.linear.")
        if kind != "siglip":
            ours |= again(used, "vision_model.post_layernorm.", "image.encoder.projection.norm.")
        for side in ("image", "text"):
            tree[side]["encoder"] = {**tree[side]["encoder"], "model": place.name}
        if files == made:  # OpenCLIP preprocesses images with torchvision, and cleans sentences
            tree["image"]["encoder"]["round_crop"] = True
            tree["text"]["encoder"]["cleaning"] = "open_clip"
        for path, value in map(parse_override, overrides):
            tree = apply_override(tree, path, value)
        assets = Path(temporary) / "assets"
        _write_assets(place, files, tokenizer, config, architecture.prefix, assets)
        model = build_model(validated(TwoTowerSpec, tree), assets=assets)
    wanted = model.state_dict()
    fill(model, {_known(name, wanted): weight for name, weight in ours.items()})
    model.provenance = {
        "description": f"{architecture.what}, converted from {place.name}",
        "converted": {"source": place.name, "revision": place.revision, "architecture": kind},
    }
    return kind, model.eval()


def _spec(architecture: Architecture, config: Any, weights: Weights) -> dict[str, Any]:
    image, text, scaling = architecture.towers(config, weights)
    if not all(math.isfinite(value) for value in scaling.values() if isinstance(value, float)):
        raise CheckpointError(
            f"the scale of its logits is not finite ({scaling}): its training diverged, or the file is damaged"
        )
    if architecture.towers is _siglip:
        width = config.vision_config.hidden_size
    else:
        width = shape(weights, "text_projection.weight", axes=2)[0]
    similarity = {"name": "scaled_cosine", **scaling}
    return {"embed_dim": width, "image": image, "text": text, "similarity": similarity}


def _as_transformers(place: ModelFiles, folder: Path, tokenizer: str | None) -> tuple[Path, Weights]:
    """Return a folder with the files that ``transformers`` reads, and the weights by its names."""
    config = place.find(CONFIG)
    if config is not None and read_mapping(config).get("model_type") in ARCHITECTURES:
        return config.parent, read_dual_weights(place, WEIGHTS)
    if (open_clip := place.find(OPEN_CLIP_CONFIG)) is not None:
        weights = read_dual_weights(place, OPEN_CLIP_WEIGHTS)
        return open_clip_files(read_mapping(open_clip), weights, open_clip.parent, folder, tokenizer)
    if config is None:
        raise CheckpointError(
            f"it is not a dual encoder (it has neither {CONFIG} nor {OPEN_CLIP_CONFIG}): give a hub id, or a folder "
            f"with all files of a model such as openai/clip-vit-base-patch32"
        )
    if (kind := read_mapping(config).get("model_type")) == "siglip2":
        raise CheckpointError(
            "it is a NaFlex model of SigLIP 2, which reads an image as a varying number of patches and cannot be "
            "converted: take one of fixed resolution, such as google/siglip2-base-patch16-224"
        )
    named = ", ".join(each.what for each in ARCHITECTURES.values())
    raise CheckpointError(
        f"its config.json says model_type {kind!r}, but only these dual encoders are converted: {named}, and "
        f"OpenCLIP's own files. To use a model that only reads images or texts, name it in a recipe "
        f"(image.encoder.model, text.encoder.model)"
    )


def _write_assets(
    place: ModelFiles, files: Path, tokenizer: str | None, config: Any, prefix: str, folder: Path
) -> None:
    """Write the files that the two encoders need in addition to their weights, as the encoders write them."""
    if place.revision is not None:
        identity = f"{place.name}@{place.revision[:_COMMIT_DIGITS]}"
    else:
        identity = identify(str(place.folder), config.vision_config)
    for side, own, kind in (("image", config.vision_config, "Vision"), ("text", config.text_config, "Text")):
        (folder / side).mkdir(parents=True)
        own.architectures = [f"{prefix}{kind}Model"]
        own.save_pretrained(folder / side)
    (folder / "image" / FINGERPRINT_FILE).write_text(f"{identity}\n", encoding="utf-8")
    load_processor(str(files)).save_pretrained(folder / "image")
    _load_tokenizer(files, tokenizer, config).save_pretrained(folder / "text")


def _load_tokenizer(files: Path, named: str | None, config: Any) -> Any:
    """Return the tokenizer that the user named, or the one among the files."""
    # Without these files, transformers would make a tokenizer without words.
    if named is None and not any((files / name).is_file() for name in TOKENIZER_FILES):
        raise CheckpointError(
            f"it has no tokenizer (none of {', '.join(TOKENIZER_FILES)}): download all files of the model, or give the "
            f"folder or hub id of its tokenizer with --vocabulary"
        )
    load = load_clip_tokenizer if config.model_type == "clip" else load_tokenizer
    tokenizer, num_words = load(named or str(files)), config.text_config.vocab_size
    if (highest := max(tokenizer.get_vocab().values(), default=0)) >= num_words:
        raise CheckpointError(
            f"its tokenizer has {highest + 1:,} words, but the model {num_words:,}: give the tokenizer that the model "
            f"was trained with"
        )
    return tokenizer


def _known(name: str, wanted: Weights) -> str:
    """Return the name of a weight in this version of ``transformers``, which renamed the layers of AltCLIP."""
    swapped = name.replace(".layer.", ".layers.")
    return swapped if name not in wanted and swapped in wanted else name
