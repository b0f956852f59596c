"""Derives a spec from modules: the names and options that a recipe would use for parts made in Python."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from inspect import isclass
from typing import Any

from openvse.aggregators import AGGREGATORS, Aggregator
from openvse.assembly.parts import KINDS, PartMaker, parameters
from openvse.backbones import BACKBONES
from openvse.encoders import TEXT_ENCODERS, ImageEncoder, TextEncoder
from openvse.errors import ModelError
from openvse.registry import Configured, Registry
from openvse.specs.model import Part, TowerSpec

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
        describe_image_encoder(encoder)
        if isinstance(encoder, ImageEncoder)
        else describe_part(TEXT_ENCODERS, encoder)
    )
    return TowerSpec(encoder=part, aggregator=describe_part(AGGREGATORS, aggregator))


def joint_width(encoder: ImageEncoder | TextEncoder) -> int:
    """Return D, the joint width of an encoder. Raise ModelError if it was made without one."""
    width = encoder.arguments().get("embed_dim")
    if not isinstance(width, int):
        raise ModelError(
            f"{type(encoder).__name__} takes no embed_dim: give the model its spec when you make it"
        )
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
    raise ModelError(
        f"{where} is {value!r}, which a recipe cannot express: give the model its spec when you make it, or use an "
        f"option of plain values"
    )


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
