"""Checkpoints of the repositories of VSE-infinity, ESA, VSE+2AD and PVSE as models of openvse.

A checkpoint has options, of which only plausible values are accepted, and the weights of two encoders. A plan of its
repository turns them into a model. No code in a file is run.

- VSE-infinity (github.com/woodfrog/vse_infty): BERT and BiGRU branches, regions and grids.
- ESA (github.com/KevinLight831/ESA): the encoders of VSE-infinity with another pooling.
- VSE+2AD (github.com/96-Zachary/vse_2ad), which began from VSE-infinity: regions and grids, BiGRU and BERT.
- PVSE (github.com/yalesong/pvse): images or clips and sentences, one embedding or several.
"""

from __future__ import annotations

import json
import pickle
import re
import tempfile
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar

import torch

from openvse.backbones.pretrained import load_tokenizer
from openvse.conversion.convert import Conversion
from openvse.conversion.weights import (
    Names,
    Weights,
    again,
    count,
    dense_weights,
    expect_fit,
    expect_own_storage,
    fill,
    read_checkpoint,
    renamed,
    shape,
)
from openvse.encoders.words_encoder import VOCABULARY_FILE
from openvse.errors import CheckpointError, ModelError, decoded_text, nearest
from openvse.files import parse_json, read_lines
from openvse.model.two_tower import TwoTower
from openvse.retrieval.build import build_model
from openvse.specs.load import apply_override, parse_override, validated
from openvse.specs.model import TwoTowerSpec
from openvse.tokenization.vocabulary import END, MASK, SPECIALS, START, UNKNOWN, Vocabulary

_MAX_VOCABULARY = 1 << 24  # bytes
_NAME = re.compile(r"[\w./-]{1,100}")
PROGRESS = ("epoch", "best_rsum", "best_score", "rsum")

PLAUSIBLE: Mapping[str, tuple[float, float]] = {
    "crop_size": (32, 4096),
    "div_weight": (0, 1000),
    "input_scale_factor": (1 / 8, 16),  # of 256 pixels: one grid cell at least
    "lr": (1e-8, 1),
    "margin": (0, 2),
    "max_video_length": (1, 1000),
    "mmd_weight": (0, 1000),
    "scale": (0, 100),
    "tau": (0.001, 10),
    "weight_decay": (0, 1),
}
"""The smallest and the largest value of the options that are numbers."""


def read_vocabulary(path: Path) -> list[str]:
    """Read the words of a ``Vocabulary`` of VSE++ or a related project, in the order of their ids.

    The repositories store it as JSON (``word2idx``, ``idx2word``, ``idx``) or as a pickle, of which only the
    attributes of this one class are read.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_VOCABULARY + 1)
        if len(content) > _MAX_VOCABULARY:
            raise ValueError("too large")
        if path.suffix == ".json":
            tree = parse_json(decoded_text(content, path))
        else:
            tree = _VocabularyUnpickler(BytesIO(content), encoding="utf-8").load()
    except OSError as error:
        raise CheckpointError(f"vocabulary {path} cannot be read ({error.strerror}): check the path") from error
    except _ForeignCodeError as error:
        raise CheckpointError(
            f"{path} tries to run {error}, which no vocabulary needs. Nothing was run: get the file elsewhere"
        ) from error
    except Exception as error:  # damaged bytes fail in many ways
        raise _no_vocabulary(path, type(error).__name__) from error
    fields = vars(tree) if isinstance(tree, _Vocabulary) else tree
    ids = fields.get("word2idx") if isinstance(fields, dict) else None
    if not isinstance(ids, dict) or not ids or {*map(str, ids.values())} != {*map(str, range(len(ids)))}:
        raise _no_vocabulary(path, "no word2idx with an id for each word, from 0 on")
    return [str(word) for word, _ in sorted(ids.items(), key=lambda item: int(item[1]))]


class _Vocabulary:
    """Replaces the class of the repositories. It only has attributes."""


class _ForeignCodeError(Exception):
    """A pickle asks for a class or function that a vocabulary does not need."""


class _VocabularyUnpickler(pickle._Unpickler):
    """The Python unpickler, because the one in C allocates as many objects as a pickle claims to have."""

    def find_class(self, module: str, name: str) -> Any:
        if name == "Vocabulary":  # in the module vocab, lib.vocab or __main__
            return _Vocabulary
        raise _ForeignCodeError(f"{module}.{name}")


def _no_vocabulary(path: Path, reason: str) -> CheckpointError:
    return CheckpointError(f"{path} is not a vocabulary ({reason}): give the .json or .pkl file of its training")


@dataclass(frozen=True)
class ReleasedCheckpoint:
    """A checkpoint that the released code of a repository wrote, with the names of weights there.

    ``options`` are the command line of the training, empty if the file only holds weights. ``progress`` is the epoch
    and the validation score, if the file states them.
    """

    options: Mapping[str, Any]
    image: Weights
    text: Weights
    progress: Mapping[str, int | float]


@dataclass(frozen=True)
class ReleasedPlan:
    """The recipe of the model to build for a checkpoint, and the weights by the names of that model.

    Word embeddings are still in the order of the checkpoint's own vocabulary. ``vocabulary`` is its place in the
    repository, or the tokenizer to use if the user gives none. ``notes`` are remarks for the user.
    """

    recipe: dict[str, Any]
    weights: Weights
    vocabulary: str
    notes: tuple[str, ...] = ()


def find_encoders(tree: Any) -> ReleasedCheckpoint:
    """Find options and weights of both encoders in a file. Raise CheckpointError if one is missing."""
    whole = tree if isinstance(tree, dict) else {}
    model = whole.get("model", tree)
    if isinstance(model, list) and len(model) == 2 and all(isinstance(side, dict) for side in model):
        image, text = map(dense_weights, model)
    else:
        everything = dense_weights(model if isinstance(model, dict) else {})
        image, text = (again(everything, side, "") for side in ("img_enc.", "txt_enc."))
    if not image or not text:
        raise CheckpointError("it holds no encoders of VSE-infinity, PVSE or VSE+2AD: give a checkpoint of these")
    options = whole.get("opt", whole.get("args", {}))
    progress = {key: whole[key] for key in PROGRESS if isinstance(whole.get(key), int | float)}
    return ReleasedCheckpoint(options if isinstance(options, dict) else {}, image, text, progress)


OptionT = TypeVar("OptionT", bool, str, int, float)


def option(options: Mapping[str, Any], name: str, default: OptionT) -> OptionT:
    """Return an option of the command line, of the type of its default. Raise CheckpointError if not plausible."""
    value = options.get(name, default)
    if isinstance(default, bool):
        plausible, expected = isinstance(value, bool), "True or False"
    elif isinstance(default, str):
        plausible, expected = isinstance(value, str) and _NAME.fullmatch(value) is not None, "a name"
    else:
        (lowest, highest), whole = PLAUSIBLE[name], isinstance(default, int)
        kind = int if whole else int | float
        plausible = isinstance(value, kind) and not isinstance(value, bool) and lowest <= value <= highest
        expected = f"a {'whole ' * whole}number from {lowest:g} to {highest:g}"
    if not plausible:
        plain = isinstance(value, bool | int | float | str | None)
        shown = repr(value)[:60] if plain else f"a value of type {type(value).__name__}"
        raise CheckpointError(
            f"its option --{name} is {shown}, but it must be {expected}. The file is damaged or was changed: download "
            f"it again, or correct the option and save the file again"
        )
    return type(default)(value)


def refuse_options(options: Mapping[str, Any], reasons: Mapping[str, str]) -> None:
    """Raise CheckpointError if one of these options is on, with its reason."""
    for name, reason in reasons.items():
        if option(options, name, False):
            raise CheckpointError(f"it was trained with --{name}, but {reason}")


BASE_SIZE = 256  # pixels: the side of an image before --input_scale_factor
HEAD_DIM = 64  # in every published BERT and ViT, whose weights do not show the width of a head
SCALE = 1.25  # the exponent of VSE+2AD's number of negatives, which adaptive_top_k has as a constant

BIGRU: Names = {"embed.": "encoder.words.", "rnn.": "encoder.gru."}
BERT: Names = {
    "bert.embeddings.position_ids": None,  # older versions of transformers save them
    "bert.": "encoder.backbone.",
    "linear.": "encoder.projection.linear.",
    "fc.": "encoder.projection.linear.",
}
RESIDUAL_MLP: Names = {
    "fc.": "encoder.projection.linear.",
    "mlp.layers.0.": "encoder.projection.mlp.0.",
    "mlp.bns.0.": "encoder.projection.mlp.1.",
    "mlp.layers.1.": "encoder.projection.mlp.3.",
    "mlp.bns.1.": None,  # made, but never called
}
# The extractor holds its network twice, once as a whole and once in two parts, with the same weights.
RESNET: Names = {
    "backbone.resnet.fc.": None,
    "backbone.resnet.": "encoder.backbone.",
    "backbone.base.": None,
    "backbone.top.": None,
}
GPO: Names = {"gpool.gru.": "aggregator.generator.", "gpool.linear.": "aggregator.score."}
EXTERNAL_ATTENTION: Names = {
    "linear1.weight": "aggregator.attention.weight",
    "linear1.bias": None,  # it shifts all logits of a dimension equally
}
ADPOOL: Names = {
    "pool.linear.": "aggregator.token.0.",
    "pool.balance.weight": "aggregator.balance.weight",
    "pool.balance.bias": None,  # it shifts both logits equally
}
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
VIDEO_CNN: Names = {"cnn.": "encoder.backbone.backbone.", "cnn.fc.": None, "rnn.": "encoder.global_projection.gru."}

UNNORMALISED = dict.fromkeys(("no_imgnorm", "no_txtnorm"), "openvse scores with unit vectors")
UNKNOWN_CNN = "the file does not say which CNN it holds: the detector's is assumed (image.encoder.form)"
COUNTING = (
    "captions are pooled without padding, so each embedding equals the released code's for a batch with only "
    "this caption. text.aggregator.count_padding=true repeats the released code in a batch, but cannot be indexed"
)
LEGACY = (
    "the file does not say which states of its GRUs were used: --legacy is assumed, as in the commands of the "
    "repository (otherwise set text.encoder.global_state=final, and for videos image.encoder.global_vector=bigru)"
)
NUM_FRAMES = 8
FRAMES = (
    f"the file does not say how many frames it was trained with: {NUM_FRAMES} are assumed, as for TGIF. Set "
    f"image.encoder.num_frames=4 for MRW, as in the command of the repository"
)


def bert_config(weights: Weights) -> dict[str, Any]:
    """Return the configuration of a BERT whose weights have our names, as ``transformers`` writes it."""
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


def _bigru(weights: Weights, embed_dim: int) -> dict[str, Any]:
    """Return the text encoder of a bidirectional GRU of one layer over words, which NLTK splits."""
    words, word_dim = shape(weights, "embed.weight", axes=2)
    if "rnn.weight_ih_l1" in weights:
        raise CheckpointError("its GRU has several layers: openvse's bigru has one")
    if "rnn.weight_ih_l0_reverse" not in weights:
        raise CheckpointError("its GRU reads in one direction: openvse's bigru reads in both")
    hidden = shape(weights, "rnn.weight_hh_l0", axes=2)[1]
    if hidden not in (embed_dim, embed_dim / 2) or words < 4:
        raise CheckpointError(f"its GRU is {hidden} wide, and its images {embed_dim}: give one of the released code")
    return {"name": "bigru", "word_dim": word_dim, "tokenizer": "nltk", "size_augmentation": "bert_style"}


def _resnet(weights: Weights, begin: str, *, caffe: bool) -> dict[str, Any]:
    """Return the image encoder of a residual network, or of the detector's, by the shapes of its weights."""
    if f"{begin}layer4.0.conv1.weight" not in weights:
        raise CheckpointError("its CNN is neither a ResNet nor a ResNeXt: only these of torchvision are converted")
    inner_dim = shape(weights, f"{begin}layer1.0.conv1.weight", axes=4)[0]
    bottleneck = f"{begin}layer1.0.conv3.weight" in weights
    if caffe and not bottleneck:
        raise CheckpointError("its ResNet has blocks of two convolutions, which the released code does not make")
    return {
        "name": "resnet",
        "blocks": [count(weights, f"{begin}layer{stage}.") for stage in range(1, 5)],
        "bottleneck": bottleneck,
        "form": "caffe" if caffe else "torchvision",
        "stem_dim": shape(weights, f"{begin}conv1.weight", axes=4)[0],
        "inner_dim": inner_dim,
        "groups": inner_dim // shape(weights, f"{begin}layer1.0.conv2.weight", axes=4)[1],
    }


def _plan_pooled(released: ReleasedCheckpoint, name: str, aggregator: Any, pooling: Names) -> ReleasedPlan:
    """Return the plan for the encoders of VSE-infinity, which ESA and VSE+2AD share, with some pooling."""
    options, notes, of_2ad = released.options, list[str](), name == "vse_2ad"
    refuse_options(options, UNNORMALISED)
    if any(each.startswith("vit_model.") for each in released.image):
        raise CheckpointError(
            "its image encoder is a ViT, from which the released code drops a random tenth of the patches at "
            "evaluation. Its embeddings cannot be reproduced: convert another checkpoint"
        )
    grids = "fc.weight" not in released.image
    image = {n.removeprefix("image_encoder.").removeprefix("img_proj."): w for n, w in released.image.items()}
    embed_dim, feature_dim = shape(image, "fc.weight", axes=2)
    residual = not grids and "mlp.layers.0.weight" in image
    if of_2ad:
        notes.append(COUNTING)
        # Its second projection always exists, and is only used for regions.
        residual = residual and option(options, "precomp_enc_type", "basic") == "basic"
    image_encoder: dict[str, Any] = {
        "name": "precomputed",
        "feature_dim": feature_dim,
        "projection": "residual_mlp" if residual else "linear",
    }
    if grids:
        image_encoder = _grids(image, {"backbone_source": "detector", **options} if of_2ad else options, notes)
    model = option(options, "bert_type", "bert-base-uncased") if of_2ad else "bert-base-uncased"
    if uses_bert := any(each.startswith("bert.") for each in released.text):
        # The released code does not cut captions. BERT itself sets the limit.
        longest = shape(released.text, "bert.embeddings.position_embeddings.weight", axes=2)[0]
        text_encoder = {"name": "transformers_text", "model": model, "max_length": longest}
        text_encoder["size_augmentation"] = "bert_style"
    else:
        text_encoder = _bigru(released.text, embed_dim)
    recipe = {
        "name": f"converted/{name}",
        "embed_dim": embed_dim,
        "image": {"encoder": image_encoder, "aggregator": aggregator},
        "text": {"encoder": text_encoder, "aggregator": aggregator},
        "objective": {"ranking": _ranking(options, name, notes)},
        "optimizer": {"multipliers": {"text.encoder.backbone": 0.1} if uses_bert and not of_2ad else {}},
    }
    projection = RESIDUAL_MLP if residual else {"fc.": RESIDUAL_MLP["fc."]} | ({"mlp.": None} if of_2ad else {})
    text_names = {**(BERT if uses_bert else BIGRU), **pooling}
    weights = _joined(renamed(image, {**projection, **RESNET, **pooling}), renamed(released.text, text_names))
    words = "vocab/f30k_precomp_vocab.json or vocab/coco_precomp_vocab.json, from the data of SCAN"
    if of_2ad:
        words = f"data/vocab/{option(options, 'data_name', 'f30k')}_precomp_vocab.json"
    return ReleasedPlan(recipe, weights, model if uses_bert else words, tuple(notes))


def _grids(image: Weights, options: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    source = option(options, "backbone_source", "detector")
    if "backbone_source" not in options:
        notes.append(UNKNOWN_CNN)
    # Two backbones come from other projects. The repository's own have the form of the detector.
    from_the_hub = "wsl" in source or "imagenet_resnext" in source
    return {
        **_resnet(image, "backbone.resnet.", caffe=not from_the_hub),
        "image_size": int(BASE_SIZE * option(options, "input_scale_factor", 1.0)),
        "pixels": "caffe" if "detector" in source else "imagenet",
    }


def _ranking(options: Mapping[str, Any], name: str, notes: list[str]) -> dict[str, Any]:
    """Return the ranking term of VSE-infinity, ESA or VSE+2AD."""
    margin = option(options, "margin", 0.2)
    if name != "vse_2ad":
        # Independent of --max_violation, which the training script turns on after --vse_mean_warmup_epochs.
        term = {"name": "contrast", "miner": "hardest", "criterion": {"name": "hinge", "margin": margin}}
        return term | ({"positives": "hardest"} if name == "esa" else {})
    scale, temperature = option(options, "scale", SCALE), option(options, "tau", 0.05)
    if scale != SCALE:
        notes.append(
            f"it was trained with --scale {scale:g}, but adaptive_top_k counts negatives as with --scale {SCALE}. Its "
            f"embeddings are the same, and only further training differs"
        )
    criterion = {"name": "info_nce", "temperature": temperature, "margin": margin}
    return {"name": "contrast", "miner": "adaptive_top_k", "criterion": criterion, "reduction": "mean"}


def _plan_pvse(released: ReleasedCheckpoint, name: str, aggregator: Any, pooling: Names) -> ReleasedPlan:
    options, image, text = released.options, released.image, released.text
    refuse_options(options, {"order": "openvse has no PIE-Nets whose embeddings are absolute values"})
    heads = [n for side in (image, text) for n in side if n.endswith("attention.w_2.weight")]
    if len(heads) < 2:
        raise CheckpointError("it has no PIE-Net on both sides (--img_attention, --txt_attention), which openvse needs")
    head = next(n for n in heads if n in image)
    embed_dim = shape(image, head.replace("attention.w_2", "fc"), axes=2)[0]
    legacy = option(options, "legacy", not options)
    video = "rnn.weight_ih_l0" in image
    num_embeddings = shape(image, head, axes=2)[0]
    aggregator = {"name": aggregator, "num_embeddings": num_embeddings}
    recipe = {
        "name": f"converted/{name}",
        "embed_dim": embed_dim,
        "image": {"encoder": _pvse_images(released, video=video, legacy=legacy), "aggregator": aggregator},
        "text": {
            "encoder": {
                **_bigru(text, embed_dim),
                "size_augmentation": "none",
                "output": "words",
                "global_state": "last_word" if legacy else "final",
                "freeze_words": not option(options, "txt_finetune", True),
            },
            "aggregator": aggregator,
        },
        "objective": _pvse_objective(options, num_embeddings),
        "optimizer": {
            "name": "adam",
            "amsgrad": True,
            "weight_decay": option(options, "weight_decay", 0.0),
            "learning_rate": option(options, "lr", 2e-4),
        },
    }
    image_names = {**(VIDEO_CNN if video else CNN), **pooling}
    weights = _joined(renamed(image, image_names), renamed(text, {**BIGRU, **pooling}))
    notes = () if options else (LEGACY, FRAMES) if video else (LEGACY,)
    data = option(options, "data_name", "coco") if "data_name" in options else "{coco,mrw,tgif}"
    return ReleasedPlan(recipe, weights, f"vocab/{data}_vocab.pkl", notes)


def _pvse_images(released: ReleasedCheckpoint, *, video: bool, legacy: bool) -> dict[str, Any]:
    options = released.options
    cnn = {
        **_resnet(released.image, "cnn.", caffe=False),
        "image_size": option(options, "crop_size", 224),
        "fit": "crop",
        "fine_tune": option(options, "img_finetune", True),
    }
    if not video:
        return {**cnn, "projection": "none", "augmentation": "none", "global_vector": "mean"}
    return {
        "name": "frames",
        "backbone": cnn,
        "num_frames": option(options, "max_video_length", NUM_FRAMES),
        "projection": "none",
        "global_vector": {"name": "bigru", "at_last": True} if legacy else "bigru",
    }


def _pvse_objective(options: Mapping[str, Any], num_embeddings: int) -> dict[str, Any]:
    hinge = {"name": "hinge", "margin": option(options, "margin", 0.1), "reduction": "mean"}
    miner = "hardest" if option(options, "max_violation", True) else "all"
    ranking = {"name": "contrast", "miner": miner, "criterion": hinge, "reduction": "mean"}
    terms: dict[str, Any] = {"ranking": ranking}
    diversity, mmd = (option(options, f"{name}_weight", 0.0) for name in ("div", "mmd"))
    if num_embeddings > 1 and diversity:  # the released code computes neither term for single embeddings
        terms["diversity"] = {"name": "diversity", "weight": diversity}
    if num_embeddings > 1 and mmd:
        terms["mmd"] = {"name": "mmd", "weight": mmd, "kernel": "legacy_exp"}
    return terms


def _joined(image: Weights, text: Weights) -> Weights:
    """Return the weights of the two towers under the names that a model gives them."""
    return again(image, "", "image.") | again(text, "", "text.")


@dataclass(frozen=True)
class Repository:
    """The way to recognise and read the checkpoints of a repository.

    A weight of the image encoder has one of the names of ``image`` in its own, and the text encoder has the weight
    ``text``. Both sides have the same aggregator, ``pooling`` names its weights, and ``plan`` raises CheckpointError if
    openvse cannot represent the model.
    """

    image: tuple[str, ...]
    text: str
    aggregator: Any
    pooling: Names
    plan: Callable[[ReleasedCheckpoint, str, Any, Names], ReleasedPlan] = _plan_pooled

    def recognises(self, released: ReleasedCheckpoint) -> bool:
        """Return whether a checkpoint seems to come from the repository."""
        return self.text in released.text and any(part in name for name in released.image for part in self.image)


_ADPOOL = {"name": "adpool", "token_weights": "per_dimension"}
REPOSITORIES: Mapping[str, Repository] = {
    "vse_infinity": Repository(("gpool.",), "gpool.linear.weight", "gpo", GPO),
    "pvse": Repository(("pie_net.", "our_model.", "cnn.conv1.weight"), "embed.weight", "pie_net", PIE_NET, _plan_pvse),
    "vse_2ad": Repository(("pool.balance.",), "pool.balance.weight", _ADPOOL, ADPOOL),
    "esa": Repository(("linear1.",), "linear1.weight", "external_attention", EXTERNAL_ATTENTION),
}


# Keys of a plan's recipe that are not part of the model's spec.
OF_THE_TRAINING = ("name", "objective", "optimizer")
SPECIAL_WORDS = tuple(SPECIALS[special] for special in (UNKNOWN, START, END))
SPECIAL_PIECES = ("[UNK]", "[CLS]", "[SEP]")
WORDS = "text.encoder.words.weight"


def convert_released(
    path: Path, vocabulary: str | None, repository: str | None, overrides: Sequence[str]
) -> Conversion:
    """Convert a checkpoint of a repository. See ``Converter``."""
    released = find_encoders(read_checkpoint(path))
    names = list(REPOSITORIES)
    if repository is not None and repository not in names:
        raise CheckpointError(f"unknown kind {repository!r}{nearest(repository, names)} (allowed: {', '.join(names)})")
    tried = names if repository is None else [repository]
    if (name := next((name for name in tried if REPOSITORIES[name].recognises(released)), None)) is None:
        of = f"of {repository}" if repository else "of VSE-infinity (GPO), PVSE (PIE-Net) or VSE+2AD (AdPool)"
        raise CheckpointError(f"it does not hold weights {of}: give a checkpoint that one of their repositories saved")
    each = REPOSITORIES[name]
    plan = each.plan(released, name, each.aggregator, each.pooling)
    progress = ", ".join(f"{key} {value}" for key, value in released.progress.items())
    described = f"converted from {path.name}" + (f" ({progress})" if progress else "")
    return Conversion(name, _build(plan, vocabulary, overrides, described), plan.notes)


def _build(plan: ReleasedPlan, vocabulary: str | None, overrides: Sequence[str], description: str) -> TwoTower:
    """Build the plan's model and fill in every weight."""
    tree: dict[str, Any] = dict(plan.recipe)
    for path, value in map(parse_override, overrides):
        tree = apply_override(tree, path, value)
    stated = {key: tree.pop(key) for key in OF_THE_TRAINING if key in tree}
    spec = validated(TwoTowerSpec, tree)
    expect_own_storage(plan.weights)
    with tempfile.TemporaryDirectory() as folder:
        assets = Path(folder)
        (assets / "text").mkdir()
        write = _write_words if WORDS in plan.weights else _write_pieces
        weights = write(plan, vocabulary, assets / "text", spec.text.encoder.options)
        with torch.device("meta"):  # only names and shapes, without memory
            expect_fit(weights, build_model(spec, assets=assets).state_dict())
        model = build_model(spec, assets=assets)
    fill(model, weights)
    model.provenance = {"recipe": stated.pop("name"), "description": description, **stated}
    return model.eval()


def _write_words(plan: ReleasedPlan, vocabulary: str | None, folder: Path, options: Mapping[str, Any]) -> Weights:
    """Write the vocabulary of a plan, and return its weights with the word embeddings in this order."""
    if vocabulary is None:
        raise CheckpointError(f"the checkpoint has no words: give its vocabulary ({plan.vocabulary}) with --vocabulary")
    words, embedded = read_vocabulary(Path(vocabulary)), plan.weights[WORDS]
    ids = {word: row for row, word in enumerate(words)}
    if len(embedded) == len(words) + 1:  # the training scripts append the mask to the words of the file
        ids.setdefault(SPECIALS[MASK], len(words))
    if len(embedded) != len(ids):
        raise CheckpointError(
            f"{vocabulary} has {len(words)} words, but the model has {len(embedded)}: give the vocabulary of its "
            f"training (in the repository: {plan.vocabulary})"
        )
    needed = SPECIAL_WORDS if options.get("boundaries", True) is not False else SPECIAL_WORDS[:1]
    _expect_specials(vocabulary, ids, needed, plan.vocabulary)
    own = [word for word in ids if word not in SPECIALS]
    Vocabulary(own).save(folder / VOCABULARY_FILE)
    none = torch.zeros_like(embedded[0])  # a vocabulary can lack the padding, and PVSE's lack the mask
    rows = [embedded[ids[word]] if word in ids else none for word in (*SPECIALS, *own)]
    return plan.weights | {WORDS: torch.stack(rows)}


def _write_pieces(plan: ReleasedPlan, vocabulary: str | None, folder: Path, options: Mapping[str, Any]) -> Weights:
    """Write the tokenizer of a plan's BERT and its configuration, and return its weights."""
    config = bert_config(plan.weights)
    source = vocabulary or plan.vocabulary
    if Path(source).is_file():
        try:
            pieces = read_lines(Path(source))
        except (OSError, ValueError) as error:
            raise CheckpointError(
                f"{source} is not a list of word pieces ({error}): give the vocab.txt of the model's BERT"
            ) from error
        # An uncased model drops accents and capitals. Its name contains "uncased".
        described = {"tokenizer_class": "BertTokenizer", "do_lower_case": "uncased" in plan.vocabulary}
        (folder / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
        (folder / "tokenizer_config.json").write_text(json.dumps(described))
    else:
        try:
            tokenizer = load_tokenizer(source)
        except ModelError as error:
            raise CheckpointError(
                f"{error}, or give the vocab.txt of {plan.vocabulary} with --vocabulary, as the checkpoint lacks it"
            ) from error
        tokenizer.save_pretrained(folder)
        pieces = list(tokenizer.get_vocab())
    if len(pieces) != config["vocab_size"]:
        raise CheckpointError(
            f"{source} has {len(pieces)} word pieces, but the model has {config['vocab_size']}: give the vocab.txt of "
            f"{plan.vocabulary} with --vocabulary"
        )
    _expect_specials(source, pieces, SPECIAL_PIECES, plan.vocabulary)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    return plan.weights


def _expect_specials(source: str, known: Container[str], needed: Sequence[str], place: str) -> None:
    if missing := [special for special in needed if special not in known]:
        raise CheckpointError(
            f"{source} has no {', '.join(missing)}, without which captions cannot be read: give the vocabulary that "
            f"the model was trained with ({place})"
        )
