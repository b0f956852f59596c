"""One part from its name and options: the constructor's signature is the schema."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from openvse.aggregators import AGGREGATORS, Aggregator
from openvse.aggregators.base import AggregatorFactory
from openvse.encoders import IMAGE_ENCODERS, ImageEncoder, ImageEncoderFactory
from openvse.encoders.size_augmentation import FeatureMode
from openvse.errors import OpenVSEError, RecipeError
from openvse.fusion import FUSIONS, Fusion, FusionFactory
from openvse.objectives import CRITERIA, MINERS, Criterion, Miner
from openvse.registry import Registry
from openvse.specs import Part, describe

PartT = TypeVar("PartT")

# A constructor's argument of one of these types is itself a part.
NESTED: Mapping[type, Registry[Any]] = {Miner: MINERS, Criterion: CRITERIA}


class _PlacedError(RecipeError):
    """A fault of a part that another part makes: it names its own path already."""


def build_part(
    registry: Registry[PartT], part: Part, where: str, context: Mapping[str, Any] | None = None
) -> PartT:
    """Construct a part.

    Args:
        registry: the parts of its kind.
        part: name and options, as in the recipe.
        where: the part's path in the recipe, for messages.
        context: arguments that the build decides (widths, a vocabulary), passed to those that take them.

    Raises:
        RecipeError: an unknown part or option, a value of the wrong type, or a combination the part refuses.
    """
    try:
        factory = registry.get(part.name)
    except RecipeError as error:
        raise RecipeError(f"{where}: {error}") from error
    given = {key: value for key, value in (context or {}).items() if key in _parameters(factory)}
    options = _check_options(factory, part.options, given, where)
    try:
        return factory(**given, **options)
    except _PlacedError:
        raise
    except OpenVSEError as error:
        raise type(error)(f"{where}: {error}") from error


def _parameters(factory: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the named parameters; a module without a constructor of its own has none."""
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {n: p for n, p in inspect.signature(factory).parameters.items() if p.kind not in variadic}


def _check_options(
    factory: Callable[..., Any], options: Mapping[str, Any], given: Mapping[str, Any], where: str
) -> dict[str, Any]:
    """Validate options against the signature, and build those that are parts themselves."""
    hints = get_type_hints(factory.__init__ if inspect.isclass(factory) else factory)
    fields: dict[str, Any] = {}
    for name, parameter in _parameters(factory).items():
        if name in given:
            continue
        hint = Part if hints[name] in (*NESTED, *FACTORIES) else hints[name]
        fields[name] = (hint, ... if parameter.default is parameter.empty else parameter.default)
    schema: type[BaseModel] = create_model("Options", __config__=ConfigDict(extra="forbid"), **fields)
    try:
        checked = schema.model_validate(dict(options))
    except ValidationError as error:
        raise RecipeError(f"recipe: {describe(error, schema, prefix=where)}") from error
    values = {name: getattr(checked, name) for name in fields}
    built = {name: _nested(hints[name], values[name], f"{where}.{name}") for name in checked.model_fields_set}
    return values | built


def _nested(hint: Any, value: Any, where: str) -> Any:
    """Build what a recipe gave for an argument that is itself a part."""
    if hint in NESTED:
        return build_part(NESTED[hint], value, where)
    return FACTORIES[hint](value, where) if hint in FACTORIES else value


def _aggregator_factory(part: Part, where: str) -> AggregatorFactory:
    """Leave the building of an aggregator to the part around it."""

    def make(*, input_dim: int, embed_dim: int) -> Aggregator:
        return _placed(AGGREGATORS, part, where, {"input_dim": input_dim, "embed_dim": embed_dim})

    return make


def _fusion_factory(part: Part, where: str) -> FusionFactory:
    """Leave the building of a fusion to the part around it."""

    def make(*, embed_dim: int) -> Fusion:
        return _placed(FUSIONS, part, where, {"embed_dim": embed_dim})

    return make


def _image_encoder_factory(part: Part, where: str) -> ImageEncoderFactory:
    """Leave the building of an image encoder to the part around it."""

    def make(
        *, embed_dim: int, assets: Path | None, projection: str, size_augmentation: FeatureMode
    ) -> ImageEncoder:
        context = {
            "embed_dim": embed_dim,
            "assets": assets,
            "projection": projection,
            "size_augmentation": size_augmentation,
        }
        return _placed(IMAGE_ENCODERS, part, where, context)

    return make


def _placed(registry: Registry[PartT], part: Part, where: str, context: Mapping[str, Any]) -> PartT:
    try:
        return build_part(registry, part, where, context)
    except OpenVSEError as error:
        raise _PlacedError(str(error)) from error


# An argument of one of these types makes parts itself, as many as it likes, and decides their context.
FACTORIES: Mapping[type, Callable[[Part, str], Callable[..., Any]]] = {
    AggregatorFactory: _aggregator_factory,
    FusionFactory: _fusion_factory,
    ImageEncoderFactory: _image_encoder_factory,
}
