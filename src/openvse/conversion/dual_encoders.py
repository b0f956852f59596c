"""The conversion of a published dual encoder (CLIP, SigLIP and related models) to a model folder."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from openvse.backbones.pretrained import FINGERPRINT_FILE, identify, load_or_explain, load_processor
from openvse.conversion.dual_files import (
    CONFIG,
    OPEN_CLIP_CONFIG,
    OPEN_CLIP_WEIGHTS,
    WEIGHTS,
    LocalFolder,
    find_weights,
    read_json,
    read_weights,
)
from openvse.conversion.dual_plans import ARCHITECTURES, DualPlan, expect_architecture, plan_dual
from openvse.conversion.hub import HubFolder, open_hub
from openvse.conversion.open_clip import open_clip_files
from openvse.conversion.weights import Weights, expect_fit, single_precision
from openvse.errors import CheckpointError, ModelError
from openvse.model import TwoTower
from openvse.retrieval.build import build_model
from openvse.specs import TwoTowerSpec, apply_override, parse_override, validated

_COMMIT_DIGITS = 12
TOKENIZER_FILES = (
    "tokenizer.json",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tokenizer.model",
)


def open_dual(source: str) -> LocalFolder | HubFolder:
    """Return the place of a dual encoder: a folder of this machine, or the hub.

    Raises:
        CheckpointError: neither has the model.
    """
    folder = Path(source).expanduser()
    if folder.is_dir():
        return LocalFolder(folder, folder.resolve().name)
    return open_hub(source)


def convert_dual(
    place: LocalFolder | HubFolder, *, tokenizer: str | None = None, overrides: Sequence[str] = ()
) -> tuple[str, TwoTower]:
    """Build the model of a dual encoder, with its weights.

    Args:
        place: the place of the checkpoint's files.
        tokenizer: the folder or hub id of the tokenizer; None uses the one among the files.
        overrides: settings of the model's spec as ``key.path=value``, such as ``text.encoder.fine_tune=true``.

    Returns:
        The name of the architecture, and the model.

    Raises:
        CheckpointError: the files are not a dual encoder that can be converted, or are incomplete or damaged.
    """
    with tempfile.TemporaryDirectory() as temporary:
        made = Path(temporary) / "transformers"
        files, weights = _as_transformers(place, made, tokenizer)
        config = _read_config(files)
        plan = plan_dual(config, weights)
        assets = Path(temporary) / "assets"
        _write_assets(files, tokenizer, config, plan, assets, _identity(place, config))
        if files == made:  # OpenCLIP preprocesses images with torchvision
            plan.spec["image"]["encoder"]["round_crop"] = True
        model = _build(plan, place.name, overrides, assets)
    _fill(model, plan.weights)
    kind = str(config.model_type)
    model.provenance = {
        "description": f"{ARCHITECTURES[kind].what}, converted from {place.name}",
        "converted": {"source": place.name, "revision": place.revision, "architecture": kind},
    }
    return kind, model.eval()


def _as_transformers(
    place: LocalFolder | HubFolder, folder: Path, tokenizer: str | None
) -> tuple[Path, Weights]:
    """Return a folder with the files that ``transformers`` reads, and the weights by its names."""
    config = place.find(CONFIG)
    if config is not None and read_json(config).get("model_type") in ARCHITECTURES:
        return config.parent, read_weights(find_weights(place, WEIGHTS))
    open_clip = place.find(OPEN_CLIP_CONFIG)
    if open_clip is not None:
        weights = read_weights(find_weights(place, OPEN_CLIP_WEIGHTS))
        return open_clip_files(read_json(open_clip), weights, open_clip.parent, folder, tokenizer)
    if config is None:
        raise CheckpointError(
            f"it is not a dual encoder (it has neither {CONFIG} nor {OPEN_CLIP_CONFIG}): give a hub id, or a folder "
            f"with all files of a model such as openai/clip-vit-base-patch32"
        )
    expect_architecture(read_json(config))
    raise AssertionError("refused above")


def _read_config(folder: Path) -> Any:
    from transformers import AutoConfig

    try:
        return load_or_explain(
            lambda: AutoConfig.from_pretrained(folder), what="the configuration", source=folder.name
        )
    except ModelError as error:
        raise CheckpointError(str(error)) from error


def _identity(place: LocalFolder | HubFolder, config: Any) -> str:
    """Return the name of the image tower in feature stores."""
    if place.revision is not None:
        return f"{place.name}@{place.revision[:_COMMIT_DIGITS]}"
    return identify(str(place.folder), config.vision_config)


def _write_assets(
    files: Path, tokenizer: str | None, config: Any, plan: DualPlan, folder: Path, identity: str
) -> None:
    """Write the files that the two encoders need in addition to their weights, as the encoders write them."""
    towers = {"image": config.vision_config, "text": config.text_config}
    for (side, own), kind in zip(towers.items(), plan.classes, strict=True):
        (folder / side).mkdir(parents=True)
        own.architectures = [kind]
        own.save_pretrained(folder / side)
    (folder / "image" / FINGERPRINT_FILE).write_text(f"{identity}\n", encoding="utf-8")
    try:
        load_processor(str(files)).save_pretrained(folder / "image")
        _load_tokenizer(files, tokenizer, config.text_config.vocab_size).save_pretrained(folder / "text")
    except ModelError as error:
        raise CheckpointError(str(error)) from error


def _load_tokenizer(files: Path, named: str | None, num_words: int) -> Any:
    """Return the tokenizer that the user named, or the one among the files.

    Raises:
        CheckpointError: there is no tokenizer, or it has words that the model does not know.
        ModelError: the tokenizer cannot be loaded.
    """
    from transformers import AutoTokenizer

    # Without these files, transformers would make a tokenizer without words.
    if named is None and not any((files / name).is_file() for name in TOKENIZER_FILES):
        raise CheckpointError(
            f"it has no tokenizer (none of {', '.join(TOKENIZER_FILES)}): download all files of the model, or give the "
            f"folder or hub id of its tokenizer with --vocabulary"
        )
    source = named or str(files)
    tokenizer: Any = load_or_explain(
        lambda: AutoTokenizer.from_pretrained(source), what="the tokenizer", source=Path(source).name
    )
    highest = max(tokenizer.get_vocab().values(), default=0)
    if highest >= num_words:
        raise CheckpointError(
            f"its tokenizer has {highest + 1:,} words, but the model {num_words:,}: give the tokenizer that the model "
            f"was trained with"
        )
    return tokenizer


def _build(plan: DualPlan, name: str, overrides: Sequence[str], assets: Path) -> TwoTower:
    tree = dict(plan.spec)
    for side in ("image", "text"):
        tree[side] = tree[side] | {"encoder": {**tree[side]["encoder"], "model": name}}
    for path, value in map(parse_override, overrides):
        tree = apply_override(tree, path, value)
    return build_model(validated(TwoTowerSpec, tree), assets=assets)


def _fill(model: TwoTower, weights: Weights) -> None:
    """Copy the weights into a model one at a time, so that memory never holds a second copy of all."""
    wanted = model.state_dict()
    weights = {_known(name, wanted): weight for name, weight in weights.items()}
    expect_fit(weights, wanted)
    with torch.no_grad():
        for name, weight in weights.items():
            wanted[name].copy_(single_precision({name: weight})[name])


def _known(name: str, wanted: Weights) -> str:
    """Return the name of a weight in this version of ``transformers``, which renamed the layers of AltCLIP."""
    swapped = name.replace(".layer.", ".layers.")
    return swapped if name not in wanted and swapped in wanted else name
