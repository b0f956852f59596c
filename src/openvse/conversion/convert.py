"""The conversion of a released checkpoint or a published dual encoder to a model folder, once for each short name.

Each architecture of dual encoders (CLIP, SigLIP and related models) has a plan: the parts of openvse, and the names of
the weights. OpenCLIP's own files (``open_clip_config.json`` and weights) are converted to the form of ``transformers``
first: a vision transformer with a class token and the standard text transformer, which are CLIP under other names.
"""

from __future__ import annotations

import json
import logging
import math
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from openvse.backbones.pretrained import FINGERPRINT_FILE, identify, load_or_explain, load_processor, load_tokenizer
from openvse.conversion.weights import (
    OPEN_CLIP_CONFIG,
    OPEN_CLIP_WEIGHTS,
    PUBLISHED,
    WEIGHTS,
    ModelFiles,
    Names,
    Weights,
    again,
    fill,
    is_hub_id,
    open_model,
    read_dual_weights,
    read_mapping,
    renamed,
    shape,
)
from openvse.errors import CheckpointError, ModelError
from openvse.files import is_free, locked, settle, user_cache
from openvse.model.base import CONFIG
from openvse.model.two_tower import TwoTower
from openvse.registry import Registry
from openvse.retrieval.build import build_model
from openvse.specs.load import apply_override, parse_override, validated
from openvse.specs.model import TwoTowerSpec

CACHE_VARIABLE = "OPENVSE_CACHE"
"""The environment variable that sets another folder for converted models."""


_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Conversion:
    """The result of a conversion. ``repository`` is where the code of the checkpoint is, or its architecture."""

    repository: str
    model: TwoTower
    notes: tuple[str, ...]


@runtime_checkable
class Converter(Protocol):
    """A function that converts checkpoints of other code. An installed package adds one as ``converter.NAME``."""

    def __call__(
        self, path: Path, vocabulary: str | None, repository: str | None, overrides: Sequence[str], /
    ) -> Conversion:
        """Return the model of a file. Raise CheckpointError if it is of other code, damaged or has no counterpart.

        Args:
            vocabulary: the file of the model's words, or the tokenizer of its text model.
            repository: the name of the code, or None to recognise it by the weights.
            overrides: settings that the file does not contain, as ``key.path=value``.
        """


CONVERTERS: Registry[Conversion] = Registry("converter", {})


def convert(
    checkpoint: str | Path,
    out: str | Path,
    *,
    vocabulary: str | Path | None = None,
    repository: str | None = None,
    overrides: Sequence[str] = (),
) -> Conversion:
    """Convert a checkpoint of VSE-infinity, PVSE or VSE+2AD, or a dual encoder, to a model folder of equal embeddings.

    No code in the files is run. Checksums, options, names, shapes and number types are verified before a weight is
    copied. The folder appears only when it is complete: every weight has its place and is finite.

    Args:
        checkpoint: the file that the training of a repository saved, or a dual encoder of ``transformers`` or OpenCLIP:
            a folder with its files, a hub id, or a short name of ``PUBLISHED``.
        out: the model folder. It must be empty or not exist.
        vocabulary: the file of the model's words in training, or its text model's tokenizer. Dual encoders have one.
        repository: vse_infinity, pvse, vse_2ad or esa. None recognises the repository by the weights.
        overrides: settings of the recipe that a file does not contain, as ``key.path=value``.

    Raises:
        CheckpointError: the file cannot be read, is damaged, belongs to another project, holds numbers that are not
            finite or options that are not plausible, or cannot be represented in openvse.
        RecipeError: an override is not of the form ``key.path=value``.
    """
    folder = Path(out)
    if not is_free(folder, CONFIG):
        raise CheckpointError(f"{folder} exists: choose a new folder for the model")
    source = PUBLISHED[str(checkpoint)].source if str(checkpoint) in PUBLISHED else str(checkpoint)
    path, words = Path(source), None if vocabulary is None else str(vocabulary)
    try:
        if repository is None and (path.is_dir() or (not path.exists() and is_hub_id(source))):
            done = Conversion(*convert_dual(open_model(source), tokenizer=words, overrides=overrides), ())
        else:
            done = _convert_released(path, words, repository, overrides)
    except (CheckpointError, ModelError) as error:  # the latter if a part of the model cannot be loaded
        raise CheckpointError(str(error) if source in str(error) else f"{source}: {error}") from error
    done.model.save(folder)
    return done


def published_folder(name: str) -> Path | None:
    """Return the model folder of a short name, which the first call converts, or None for any other name."""
    if name not in PUBLISHED:
        return None
    folder = Path(os.environ.get(CACHE_VARIABLE) or user_cache()).expanduser() / "models" / name / "model"
    if settle(folder, CONFIG):
        return folder
    source = PUBLISHED[name].source
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.parent, "converted model", ModelError):
        if not settle(folder, CONFIG):
            _logger.warning("%s: %s is converted once, into %s", name, source, folder)
            try:
                convert(source, folder)
            except CheckpointError as error:
                raise ModelError(f"{name} is {source}, which cannot be used: {error}") from error
    return folder


def _convert_released(
    path: Path, vocabulary: str | None, repository: str | None, overrides: Sequence[str]
) -> Conversion:
    """Return the result of the first converter that knows a file."""
    reasons = []
    for name in CONVERTERS:
        try:
            return CONVERTERS.get(name)(path, vocabulary, repository, overrides)
        except CheckpointError as error:
            reasons.append(str(error))
    raise CheckpointError("; ".join(reasons))


CLIP_TOKENIZER = "openai/clip-vit-base-patch32"  # the tokenizer of every model without its own
OPEN_CLIP_TOKENIZER = ("tokenizer.json", "vocab.json")
RESAMPLING = {"bicubic": 3, "bilinear": 2, "nearest": 0}  # Pillow's numbers
_MEAN, _STD = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
_TEXT = "text."  # the beginning of names in a separate text tower (custom_text)

# The keys that a configuration may have. Other keys must have the values in _USUAL, or none.
_READ: Mapping[str, frozenset[str]] = {
    "model_cfg": frozenset({"embed_dim", "vision_cfg", "text_cfg", "quick_gelu", "custom_text"})
    | {"init_logit_scale", "init_logit_bias"},
    "vision_cfg": frozenset({"image_size", "layers", "width", "head_width", "mlp_ratio", "patch_size"})
    | {"patch_dropout", "output_tokens"},
    "text_cfg": frozenset({"context_length", "vocab_size", "width", "heads", "layers", "mlp_ratio"})
    | {"hf_tokenizer_name", "output_tokens"},
}
_USUAL: Mapping[str, Any] = {"pool_type": ("tok", "argmax"), "pos_embed_type": ("learnable",)}

_OUTSIDE: Names = {
    "visual.class_embedding": "vision_model.embeddings.class_embedding",
    "visual.conv1.": "vision_model.embeddings.patch_embedding.",
    "visual.positional_embedding": "vision_model.embeddings.position_embedding.weight",
    "visual.ln_pre.": "vision_model.pre_layrnorm.",
    "visual.ln_post.": "vision_model.post_layernorm.",
    "visual.transformer.resblocks.": "vision_model.encoder.layers.",
    "visual.proj": "visual_projection.weight",
    "token_embedding.": "text_model.embeddings.token_embedding.",
    "positional_embedding": "text_model.embeddings.position_embedding.weight",
    "transformer.resblocks.": "text_model.encoder.layers.",
    "ln_final.": "text_model.final_layer_norm.",
    "text_projection": "text_projection.weight",
    "logit_scale": "logit_scale",
    "attn_mask": None,  # the causal mask
}
_INSIDE: Names = {
    "ln_1.": "layer_norm1.",
    "ln_2.": "layer_norm2.",
    "attn.out_proj.": "self_attn.out_proj.",
    "attn.in_proj_": "self_attn.qkv_proj.",
    "mlp.c_fc.": "mlp.fc1.",
    "mlp.c_proj.": "mlp.fc2.",
}


def open_clip_files(
    config: Mapping[str, Any], weights: Weights, source: Path, folder: Path, tokenizer: str | None
) -> tuple[Path, Weights]:
    """Write the files that ``transformers`` reads, and return their folder and the weights by its names.

    Without a tokenizer (a folder or hub id), the one in ``source`` is used, or CLIP's.
    """
    model = _section(config, "model_cfg")
    vision, text = _section(model, "vision_cfg"), _section(model, "text_cfg")
    for name, section in {"model_cfg": model, "vision_cfg": vision, "text_cfg": text}.items():
        _expect_mapped(name, section)
    ours = _by_their_names(weights)
    folder.mkdir(parents=True)
    described = _config(model, vision, text, ours)
    preprocessing = _preprocessing(config.get("preprocess_cfg") or {}, described["vision_config"]["image_size"])
    (folder / "config.json").write_text(json.dumps(described))
    (folder / "preprocessor_config.json").write_text(json.dumps(preprocessing))
    if tokenizer is None:
        own = any((source / name).is_file() for name in OPEN_CLIP_TOKENIZER)
        if not own and text.get("hf_tokenizer_name"):
            raise CheckpointError(
                f"it reads words with the tokenizer of {text['hf_tokenizer_name']}, which is not among its files: give "
                f"its folder or hub id with --vocabulary"
            )
        _copy_tokenizer(str(source) if own else CLIP_TOKENIZER, folder)
    return folder, ours


def _section(tree: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = tree.get(name)
    if not isinstance(section, Mapping):
        raise CheckpointError(f"its open_clip_config.json has no {name}: download it again")
    return section


def _expect_mapped(name: str, section: Mapping[str, Any]) -> None:
    """Raise CheckpointError for an option whose network cannot be converted."""
    for key, value in section.items():
        usual = not value or value in _USUAL.get(key, ())
        if key not in _READ[name] and not usual:
            raise CheckpointError(
                f"its {name} has {key} {value!r}, but only OpenCLIP's plain vision transformer and standard text "
                f"transformer are converted: take a copy in the format of transformers, if there is one"
            )
    if name != "model_cfg" and not isinstance(section.get("layers"), int):
        raise CheckpointError(f"its {name} has layers {section.get('layers')!r}: take a model of two transformers")


def _by_their_names(weights: Weights) -> Weights:
    """Return the weights by the names of ``transformers``, which has separate weights for queries, keys and values."""
    flat = {n.removeprefix(_TEXT): w for n, w in weights.items()}
    result: Weights = {}
    for outside, weight in renamed(flat, _OUTSIDE).items():
        name = outside
        begin, layers, rest = name.partition(".encoder.layers.")
        if layers:
            number, _, inside = rest.partition(".")
            (last,) = renamed({inside: weight}, _INSIDE)
            name = f"{begin}{layers}{number}.{last}"
        for which, part in zip("qkv", weight.chunk(3), strict=True) if ".qkv_proj." in name else [("qkv", weight)]:
            result[name.replace(".qkv_", f".{which}_")] = part
    for name in ("visual_projection.weight", "text_projection.weight"):
        result |= {name: result[name].T} if name in result else {}
    return result


def _config(
    model: Mapping[str, Any], vision: Mapping[str, Any], text: Mapping[str, Any], weights: Weights
) -> dict[str, Any]:
    """Return the configuration as ``transformers`` writes it, with sizes from the shapes of the weights."""
    width, _, patch, _ = shape(weights, "vision_model.embeddings.patch_embedding.weight", axes=4)
    words, text_width = shape(weights, "text_model.embeddings.token_embedding.weight", axes=2)
    positions = shape(weights, "text_model.embeddings.position_embedding.weight", axes=2)[0]
    hidden = shape(weights, "vision_model.encoder.layers.0.mlp.fc1.weight", axes=2)[0]
    text_hidden = shape(weights, "text_model.encoder.layers.0.mlp.fc1.weight", axes=2)[0]
    act = "quick_gelu" if model.get("quick_gelu") else "gelu"
    return {
        "model_type": "clip",
        "projection_dim": shape(weights, "visual_projection.weight", axes=2)[0],
        "vision_config": {
            "hidden_size": width,
            "intermediate_size": hidden,
            "num_hidden_layers": vision["layers"],
            "num_attention_heads": width // int(vision.get("head_width", 64)),
            "image_size": _side(vision.get("image_size", 224)),
            "patch_size": patch,
            "hidden_act": act,
        },
        "text_config": {
            "hidden_size": text_width,
            "intermediate_size": text_hidden,
            "num_hidden_layers": text["layers"],
            "num_attention_heads": int(text.get("heads", 8)),
            "max_position_embeddings": positions,
            "vocab_size": words,
            "hidden_act": act,
        },
    }


def _side(size: Any) -> int:
    if isinstance(size, int):
        return size
    if isinstance(size, list | tuple) and len(set(size)) == 1:
        return int(size[0])
    raise CheckpointError(f"its images are not square (image_size {size}): take a model with square images")


def _preprocessing(options: Mapping[str, Any], side: int) -> dict[str, Any]:
    """Return OpenCLIP's preprocessing of validation as ``transformers`` describes it."""
    mode, interpolation = options.get("resize_mode", "shortest"), options.get("interpolation", "bicubic")
    if mode not in ("shortest", "squash") or interpolation not in RESAMPLING:
        raise CheckpointError(
            f"its preprocessing resizes images by {mode!r} and {interpolation!r}: only shortest and squash can be "
            f"converted, with {', '.join(RESAMPLING)}"
        )
    square = {"height": side, "width": side}
    return {
        "image_processor_type": "CLIPImageProcessor",
        "do_resize": True,
        "size": {"shortest_edge": side} if mode == "shortest" else square,
        "do_center_crop": mode == "shortest",
        "crop_size": square,
        "resample": RESAMPLING[interpolation],
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(options.get("mean") or _MEAN),
        "image_std": list(options.get("std") or _STD),
        "do_convert_rgb": True,
    }


def load_clip_tokenizer(source: str) -> Any:
    """Return CLIP's tokenizer. Raise ModelError if the folder holds none that can be loaded."""
    from transformers import CLIPTokenizer

    there = {path.name for path in Path(source).iterdir()} if Path(source).is_dir() else set()
    if {"vocab.json", "merges.txt"} <= there and not {"tokenizer.json", "tokenizer_config.json"} & there:
        return load_or_explain(CLIPTokenizer.from_pretrained, source, what="the tokenizer")
    return load_tokenizer(source)


def _copy_tokenizer(source: str, folder: Path) -> None:
    try:
        load_clip_tokenizer(source).save_pretrained(folder)
    except ModelError as error:
        raise CheckpointError(
            f"its tokenizer cannot be loaded ({error}): put vocab.json and merges.txt of CLIP's tokenizer next to its "
            f"weights, or give a folder with them with --vocabulary"
        ) from error


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
    image = {"encoder": {**_PLAIN, "class_token": True, "projection": projection}, "aggregator": "first_token"}
    text = _text(config, pooling, projection={"name": "linear", "bias": False})
    return image, text, {"scale": _number(weights, "logit_scale").exp().item(), "link": "softmax"}


_bert_clip = partial(_clip, pooling="first_token")
"""AltCLIP and Chinese-CLIP: the image tower of CLIP, and the first token of a BERT."""


def _siglip(config: Any, weights: Weights) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """SigLIP: patches -> attention pooling, and the last position of the text, padding or not -> linear."""
    vision = config.vision_config
    if not vision.vision_use_head:
        raise CheckpointError("its image tower has no pooling head to embed an image: take a complete SigLIP model")
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
        raise CheckpointError(f"it has no single number {name!r}: the file is incomplete, or of another project")
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
        raise CheckpointError(f"the scale of its logits is {scaling}: its training diverged, or the file is damaged")
    if architecture.towers is _siglip:
        width = config.vision_config.hidden_size
    else:
        width = shape(weights, "text_projection.weight", axes=2)[0]
    return {"embed_dim": width, "image": image, "text": text, "similarity": {"name": "scaled_cosine", **scaling}}


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
        raise CheckpointError(f"its tokenizer has {highest + 1:,} words, but the model {num_words:,}: give its own")
    return tokenizer


def _known(name: str, wanted: Weights) -> str:
    """Return the name of a weight in this version of ``transformers``, which renamed the layers of AltCLIP."""
    swapped = name.replace(".layer.", ".layers.")
    return swapped if name not in wanted and swapped in wanted else name
