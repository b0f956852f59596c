"""Builds parts from names and options, and derives these from parts made in Python. One aggregator as a layer.

The signature of a constructor is the schema, and parts may contain parts.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import isclass
from pathlib import Path
from types import UnionType
from typing import Any, Generic, TypeVar, Union, get_args, get_origin, get_type_hints

import torch
from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from torch import Tensor, nn

from openvse.aggregators import AGGREGATORS, Aggregator
from openvse.aggregators.gpo import GENERATORS, POSITIONS, Generator, Positions
from openvse.backbones import BACKBONES, Backbone
from openvse.encoders import TEXT_ENCODERS, ImageEncoder, TextEncoder
from openvse.encoders.augmentations import AUGMENTATIONS, Augmentation
from openvse.encoders.projections import GLOBAL_VECTORS, PROJECTIONS, Encoder, GlobalVector, Projection
from openvse.errors import DataError, ModelError, OpenVSEError, RecipeError, choices, nearest
from openvse.fusion import FUSIONS
from openvse.fusion.base import Fusion
from openvse.objectives import CRITERIA, MINERS, Criterion, Miner
from openvse.registry import Configured, Maker, Registry
from openvse.specs.load import describe
from openvse.specs.model import Part, TowerSpec
from openvse.tokenization.vocabulary import WORD_SPLITTERS, WordSplitter
from openvse.types import EmbeddingSet, Features

PartT = TypeVar("PartT")

KINDS: Mapping[Any, Registry[Any]] = {
    Aggregator: AGGREGATORS,
    Augmentation: AUGMENTATIONS,
    Backbone: BACKBONES,
    Criterion: CRITERIA,
    Fusion: FUSIONS,
    Generator: GENERATORS,
    GlobalVector: GLOBAL_VECTORS,
    Miner: MINERS,
    Positions: POSITIONS,
    Projection: PROJECTIONS,
    WordSplitter: WORD_SPLITTERS,
}
"""The kinds of parts that another part may contain.

A constructor's argument of one of these types is built from the recipe before the constructor runs. One of the type
``Maker[Kind]`` becomes a ``PartMaker``, which the constructor calls itself. ``| None`` may follow either type.
"""


class _PlacedError(RecipeError):
    """An error of an inner part, whose message already has its path in the recipe."""


@dataclass(frozen=True)
class PartMaker(Generic[PartT]):
    """Makes a part inside a part. The outer part calls it, once or more, with arguments that only it knows."""

    registry: Registry[PartT]
    part: Part
    where: str

    def __post_init__(self) -> None:
        resolve(self.registry, self.part, self.where)

    def __call__(self, **context: Any) -> PartT:
        """Make a new part. Arguments that its constructor does not have are ignored."""
        try:
            return build_part(self.registry, self.part, self.where, context)
        except OpenVSEError as error:
            raise _PlacedError(str(error)) from error


def build_part(registry: Registry[PartT], part: Part, where: str, context: Mapping[str, Any] | None = None) -> PartT:
    """Construct a part.

    Args:
        part: name and options, as in the recipe.
        where: the part's path in the recipe, for messages.
        context: arguments that the build decides (widths, a vocabulary), passed to parts that have them.

    Raises:
        RecipeError: a part or option is unknown, a value has the wrong type, or the part refuses the combination.
    """
    return construct(resolve(registry, part, where), part.options, where, context or {})


def construct(factory: Maker[PartT], options: Mapping[str, Any], where: str, context: Mapping[str, Any]) -> PartT:
    """Construct a part of a known class. Arguments and errors are the same as for ``build_part``."""
    given = {key: value for key, value in context.items() if key in parameters(factory)}
    checked = _check_options(factory, options, given, where)
    try:
        return factory(**given, **checked)
    except _PlacedError:
        raise
    except OpenVSEError as error:
        raise type(error)(f"{where}: {error}") from error


def parameters(factory: Maker[Any]) -> dict[str, inspect.Parameter]:
    """Return the named parameters. A module without its own constructor has none."""
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {n: p for n, p in inspect.signature(factory).parameters.items() if p.kind not in variadic}


def option_types(factory: Maker[Any]) -> dict[str, Any]:
    """Return the type of each parameter. Raise RecipeError if an annotation cannot be resolved."""
    while isinstance(factory, partial):
        factory = factory.func
    try:
        hints = get_type_hints(factory.__init__ if inspect.isclass(factory) else factory)
    except NameError as error:
        name = getattr(factory, "__name__", repr(factory))
        raise RecipeError(
            f"the types of {name}'s options cannot be read ({error}): import that name outside of 'if TYPE_CHECKING'"
        ) from error
    return {name: hints.get(name, Any) for name in parameters(factory)}


def resolve(registry: Registry[PartT], part: Part, where: str) -> Maker[PartT]:
    """Return the class behind the name of a part. Raise RecipeError with its path if the name is unknown."""
    try:
        return registry.get(part.name)
    except RecipeError as error:
        raise RecipeError(f"{where}: {error}") from error


def _check_options(
    factory: Maker[Any], options: Mapping[str, Any], given: Mapping[str, Any], where: str
) -> dict[str, Any]:
    """Validate options against the signature. Options that are parts are built, or become ``PartMaker`` objects."""
    hints = option_types(factory)
    fields: dict[str, Any] = {}
    inside: dict[str, tuple[Registry[Any], bool]] = {}
    signature = parameters(factory)
    for name, parameter in signature.items():
        if name in given:
            continue
        hint = hints[name]
        if (kind := part_inside(hint)) is not None:
            inside[name], hint = kind, (Part | None if type(None) in get_args(hint) else Part)
        fields[name] = (hint, ... if parameter.default is parameter.empty else parameter.default)
    config = ConfigDict(extra="forbid", coerce_numbers_to_str=True)
    schema: type[BaseModel] = create_model("Options", __config__=config, **fields)
    given_options = {
        name: _named(value, inside[name][0], signature[name].default) if name in inside else value
        for name, value in options.items()
    }
    try:
        checked = schema.model_validate(given_options)
    except ValidationError as error:
        told = describe(error, schema, where, "openvse list parts NAME", given_options)
        raise RecipeError(f"recipe: {told}") from error
    values = {name: getattr(checked, name) for name in fields}
    for name in checked.model_fields_set & inside.keys():
        if values[name] is not None:
            registry, is_made_later = inside[name]
            make = PartMaker if is_made_later else build_part
            values[name] = make(registry, values[name], f"{where}.{name}")
    return values


def _named(value: Any, registry: Registry[Any], default: Any) -> Any:
    """Return a part inside a part. Options without a name change the options of the default part."""
    if not isinstance(value, Mapping) or "name" in value:
        return value
    made_by, implied = (default.func, default.keywords) if isinstance(default, partial) else (default, {})
    name = registry.name_of(made_by) if callable(made_by) else None
    return value if name is None else {"name": name, **implied, **value}


def part_inside(hint: Any) -> tuple[Registry[Any], bool] | None:
    """Return the registry of an argument that is itself a part, and whether the constructor needs its factory."""
    if get_origin(hint) in (Union, UnionType):
        (hint, *others) = [each for each in get_args(hint) if each is not type(None)]
        if others:
            return None
    made_later = get_origin(hint) is Callable
    kind = get_args(hint)[1] if made_later else hint
    registry = KINDS.get(kind) if isinstance(kind, type) else None
    return None if registry is None else (registry, made_later)


_DECIDED = {"backbone", "embed_dim"}  # arguments of the encoder that are not in a recipe


def build_image_encoder(part: Part, embed_dim: int, assets: Path | None) -> ImageEncoder:
    """Build a backbone and the encoder around it. The part has the options of both."""
    where = "image.encoder"
    of_backbone = parameters(resolve(BACKBONES, part, where)).keys() - {"assets"}
    of_encoder = parameters(ImageEncoder).keys() - _DECIDED - of_backbone
    for key in part.options:
        if key not in (allowed := sorted(of_backbone | of_encoder)):
            listed = choices(allowed, f"openvse list parts {part.name}")
            raise RecipeError(f"recipe: unknown key {where}.{key}{nearest(key, allowed)}{listed}")
    inner, outer = (
        {key: value for key, value in part.options.items() if key in side} for side in (of_backbone, of_encoder)
    )
    backbone = build_part(BACKBONES, Part(name=part.name, **inner), where, {"assets": assets})
    return construct(ImageEncoder, outer, where, {"backbone": backbone, "embed_dim": embed_dim})


def build_text_encoder(
    spec: TowerSpec, embed_dim: int, captions: Sequence[str], assets: Path | None, *, grow: bool = False
) -> TextEncoder:
    """Build the text encoder, with a vocabulary from the training captions or the files of a saved model.

    With ``grow``, the words of the captions are added to the vocabulary of the saved model.
    """
    folder = assets and assets / "text"
    context = {"embed_dim": embed_dim, "assets": folder, "captions": captions, "grow": grow}
    return build_part(TEXT_ENCODERS, spec.encoder, "text.encoder", context)


def build_aggregator(spec: TowerSpec, embed_dim: int, side: str, encoder: Encoder) -> Aggregator:
    """Build the aggregator of a side, image or text. Raise RecipeError if its encoder lacks a needed output."""
    context = {"input_dim": encoder.local_dim, "embed_dim": embed_dim, "side": side}
    aggregator = build_part(AGGREGATORS, spec.aggregator, f"{side}.aggregator", context)
    if aggregator.needs_pooled and not encoder.gives_pooled:
        raise RecipeError(
            f"{side}.aggregator: {spec.aggregator.name} needs a global vector, and {side}.encoder "
            f"{spec.encoder.name} yields none: set its global_vector: mean (images) or output: words (bigru)"
        )
    return aggregator


_GIVEN = ("assets", "captions", "embed_dim", "grow", "input_dim", "side")
"""Arguments that the build decides, so that they are not in a recipe."""


def describe_part(registry: Registry[Any], made: Configured) -> Part:
    """Return the name of a part and its options. Raise ModelError if a recipe cannot express them."""
    name = _name(registry, type(made))
    return Part(name=name, **_values(_chosen(made), name))


def describe_image_encoder(encoder: ImageEncoder) -> Part:
    """Return the backbone's name with the options of the backbone and of the encoder around it."""
    backbone = describe_part(BACKBONES, encoder.backbone)
    stated = {key: value for key, value in encoder.arguments().items() if value is not None}
    around = {key: value for key, value in stated.items() if key not in ("backbone", *_GIVEN)}
    return Part(name=backbone.name, **backbone.options, **_values(around, "image.encoder"))


def describe_tower(side: str, encoder: ImageEncoder | TextEncoder, aggregator: Aggregator) -> TowerSpec:
    """Return the spec of a side, image or text.

    Raise ModelError if the two parts were made for widths, or a side, that a build would not give them.
    """
    needed = {"input_dim": encoder.local_dim, "embed_dim": joint_width(encoder), "side": side}
    made_with = _defaults(aggregator) | aggregator.arguments()
    for key, value in needed.items():
        if made_with.get(key, value) != value:
            raise ModelError(
                f"{side}: the aggregator was made with {key} {made_with[key]}, but with this encoder it must be "
                f"{value}: make it so, or a saved model could not be built again"
            )
    part = (
        describe_image_encoder(encoder) if isinstance(encoder, ImageEncoder) else describe_part(TEXT_ENCODERS, encoder)
    )
    return TowerSpec(encoder=part, aggregator=describe_part(AGGREGATORS, aggregator))


def joint_width(encoder: ImageEncoder | TextEncoder) -> int:
    """Return D, the joint width of an encoder. Raise ModelError if it was made without one."""
    width = encoder.arguments().get("embed_dim")
    if not isinstance(width, int):
        raise ModelError(f"{type(encoder).__name__} takes no embed_dim: give the model its spec when you make it")
    return width


def _chosen(made: Configured) -> dict[str, Any]:
    """Return the arguments that a recipe must give: they have no default, and the build does not decide them."""
    defaults = _defaults(made)
    return {
        key: value
        for key, value in made.arguments().items()
        if key not in _GIVEN and not (value is defaults.get(key) or value == defaults.get(key))
    }


def _defaults(made: Configured) -> dict[str, Any]:
    return {name: parameter.default for name, parameter in parameters(type(made)).items()}


def _name(registry: Registry[Any], part: Any) -> str:
    if (name := registry.name_of(part)) is None:
        raise _unregistered(part, registry.kind)
    return name


def _unregistered(part: Any, kind: str) -> ModelError:
    shown = getattr(part, "__name__", repr(part))
    return ModelError(
        f"{shown} is not registered ({kind}), so that a saved model could not be built again: add it to the registry "
        f"of its kind before you save the model, and load it with the same --plugin"
    )


def option_as_said(value: Any, where: str) -> Any:
    """Return an option of a part as a recipe would write it: plain values, and parts by their names."""
    if isinstance(value, PartMaker | partial | Configured) or isclass(value):
        return _inner_part(value, where)
    if isinstance(value, list | tuple):
        return [option_as_said(each, where) for each in value]
    if isinstance(value, Mapping):
        return _values(value, where)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ModelError(f"{where} is {value!r}, which no recipe can express: make the model with its spec")


def _inner_part(value: Any, where: str) -> Any:
    """Return a part inside a part: a built one, or its factory (a class, perhaps with some options)."""
    if isinstance(value, PartMaker):
        return value.part.model_dump()
    if isinstance(value, partial):
        return {"name": _name(_registry(value.func, where), value.func), **_values(value.keywords, where)}
    if isclass(value):
        return _name(_registry(value, where), value)
    return describe_part(_registry(type(value), where), value).model_dump()


def _values(options: Mapping[str, Any], where: str) -> dict[str, Any]:
    return {key: option_as_said(value, f"{where}.{key}") for key, value in options.items()}


def _registry(part: Any, where: str) -> Registry[Any]:
    """Return the registry for the kind of a class."""
    registries = (registry for registry in KINDS.values() if registry.name_of(part) is not None)
    if (registry := next(registries, None)) is None:
        raise _unregistered(part, where)
    return registry


class Pool(nn.Module):
    """An aggregator as an ordinary module, which turns a padded batch and its mask into embeddings.

    The embeddings equal the aggregator's. They do not have unit length: call ``torch.nn.functional.normalize(pooled,
    dim=-1)`` if you need cosines. (The losses of ``openvse.losses`` and ``openvse.evaluate`` do this themselves.)

    Args:
        aggregator: any aggregator of ``openvse.aggregators``.

    Examples:
        >>> from openvse.aggregators import KMax
        >>> pool = Pool(KMax(input_dim=4, embed_dim=4, k=2))
        >>> pool(torch.randn(3, 7, 4)).shape
        torch.Size([3, 4])
    """

    def __init__(self, aggregator: Aggregator) -> None:
        super().__init__()
        self.aggregator = aggregator

    def forward(self, local: Tensor, mask: Tensor | None = None, global_vector: Tensor | None = None) -> Tensor:
        """Pool a batch.

        Args:
            local: float ``[B, N, L]``, the local features of each item. The values of the padding do not matter.
            mask: ``[B, N]``, True (or 1) where an element is real, as in an ``attention_mask`` of ``transformers``. It
                is the opposite of PyTorch's ``key_padding_mask``. None means that every element is real.
            global_vector: float ``[B, D]``, one vector for each whole item, for aggregators that need it (pie_net).

        Returns:
            Float ``[B, D]``, or ``[B, K, D]`` from an aggregator that makes several embeddings per item. If their
            number differs (tokens), missing embeddings of an item are 0.

        Raises:
            DataError: a tensor has another shape or type, an item has no real element, or the global vector is missing.
        """
        real = self._real(local, mask)
        embedded: EmbeddingSet = self.aggregator(Features(local, real, self._whole(local, global_vector)))
        if not self.aggregator.fixed_k:
            return embedded.vectors.masked_fill(~embedded.mask.unsqueeze(-1), 0.0)
        return embedded.vectors.squeeze(1) if embedded.vectors.shape[1] == 1 else embedded.vectors

    def _whole(self, local: Tensor, global_vector: Tensor | None) -> Tensor | None:
        """Check and return the global vector."""
        if global_vector is None and not self.aggregator.needs_pooled:
            return None
        width = self.aggregator.arguments().get("embed_dim")
        wanted = f"float [{len(local)}, {width or 'D'}]"
        if global_vector is None:
            raise DataError(f"{type(self.aggregator).__name__} needs global vectors as third argument: give {wanted}")
        shape = list(global_vector.shape)
        if len(shape) != 2 or shape[0] != len(local) or width not in (None, shape[1]):
            raise DataError(f"the global vector is {global_vector.dtype} {shape}: give {wanted}")
        return global_vector

    def _real(self, local: Tensor, mask: Tensor | None) -> Tensor:
        """Check both tensors, and return the mask as bool."""
        width = self.aggregator.arguments().get("input_dim")
        if local.dim() != 3 or not local.is_floating_point() or width not in (None, local.shape[2]):
            raise DataError(
                f"the features are {local.dtype} {list(local.shape)}: give floats [items, elements, {width or 'width'}]"
            )
        if mask is None:
            mask = torch.ones(local.shape[:2], dtype=torch.bool, device=local.device)
        if mask.shape != local.shape[:2] or mask.is_floating_point():
            raise DataError(
                f"the mask is {mask.dtype} {list(mask.shape)}: give bool {list(local.shape[:2])}, True for an element"
            )
        mask = mask.bool()
        empty = (~mask.any(dim=1)).nonzero().flatten()
        if len(empty):
            raise DataError(
                f"item {int(empty[0])} of the batch has no real element, so there is nothing to pool: leave such items "
                f"out, or check that the mask is True where an element is real"
            )
        return mask


def pooling(part: str | Mapping[str, Any], dim: int, out_dim: int | None = None) -> Pool:
    """Make a pooling layer from the name of an aggregator, as in a recipe.

    Args:
        part: the name of an aggregator, such as ``"gpo"``, or a mapping of its name and options, such as
            ``{"name": "k_max", "k": 5}``. ``openvse list parts`` lists the names.
        dim: L, the width of the local features.
        out_dim: D, the width of the embeddings, by default the same. Most aggregators cannot change the width.

    Raises:
        RecipeError: the name, an option or a width is not allowed.

    Examples:
        >>> pool = pooling("gpo", dim=8)
        >>> pool(torch.randn(2, 5, 8), torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])).shape
        torch.Size([2, 8])
    """
    if dim < 1 or (out_dim is not None and out_dim < 1):
        raise RecipeError(f"pooling got dim = {dim}, out_dim = {out_dim}: give widths of at least 1")
    if not isinstance(part, str) and "name" not in part:
        raise RecipeError(f'pooling got {dict(part)!r}: give a name too, such as {{"name": "k_max", "k": 5}}')
    chosen = Part.model_validate(part)
    widths = {"input_dim": dim, "embed_dim": out_dim or dim}
    return Pool(build_part(AGGREGATORS, chosen, "pooling", widths))
