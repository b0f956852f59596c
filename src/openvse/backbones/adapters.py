"""Low-rank adapters (LoRA) for networks of ``transformers``, by ``peft``: they train instead of the weights.

A network has adapters while a run trains it. When the model is saved, they are merged into its weights, which keep
their names, so loading the model does not need ``peft``.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any, TypeVar

from pydantic import Field, ValidationError
from torch import nn

from openvse.errors import RecipeError
from openvse.specs import Strict, describe

ModuleT = TypeVar("ModuleT", bound=nn.Module)


class Lora(Strict):
    """The options of adapters in a recipe: a linear layer W becomes ``W + alpha / rank * B A`` (Hu et al., LoRA, 2022).

    Attributes:
        rank: the rank of B A.
        alpha: the scale; None is twice the rank.
        dropout: the probability that an input of A is dropped in training.
        targets: the last names of the linear layers that get adapters, such as ``[query, value]``; None takes all.
    """

    rank: int = Field(8, ge=1)
    alpha: float | None = Field(None, gt=0)
    dropout: float = Field(0.0, ge=0, lt=1)
    targets: tuple[str, ...] | None = None


def lora_of(options: Mapping[str, Any] | None, *, fine_tune: bool, train_blocks: int | None) -> Lora | None:
    """Check the options of adapters; return None if there are none.

    Raises:
        RecipeError: an option is wrong, the network does not train, or only its last blocks do.
    """
    if options is None:
        return None
    if not fine_tune or train_blocks is not None:
        raise RecipeError(
            "lora needs fine_tune=true, and cannot be combined with train_blocks: set fine_tune=true and leave out "
            "train_blocks"
        )
    try:
        return Lora.model_validate(options)
    except ValidationError as error:
        raise RecipeError(f"recipe: {describe(error, Lora, prefix='lora')}") from error


def require_peft() -> None:
    """Raise RecipeError if ``peft`` is not installed."""
    if find_spec("peft") is None:
        raise RecipeError(
            "lora needs peft: pip install 'openvse[lora]', or leave lora out and set train_blocks"
        )


def add_adapters(network: nn.Module, lora: Lora) -> None:
    """Freeze a network and give adapters, which change nothing at first, to its linear layers that train.

    Args:
        network: a network whose parameters require gradients if its output depends on them.
        lora: the rank, scale and layers.

    Raises:
        RecipeError: ``peft`` is not installed, or no layer has one of the names.
    """
    require_peft()
    from peft import LoraConfig, inject_adapter_in_model

    linear = [
        name
        for name, layer in network.named_modules()
        if isinstance(layer, nn.Linear) and layer.weight.requires_grad
    ]
    last = sorted({name.rpartition(".")[2] for name in linear})
    chosen = [name for name in linear if lora.targets is None or name.rpartition(".")[2] in lora.targets]
    if not chosen or not set(lora.targets or ()) <= set(last):
        raise RecipeError(
            f"lora.targets is {list(lora.targets or ())}: the linear layers are called {', '.join(last)}"
        )
    network.requires_grad_(False)
    scale = 2.0 * lora.rank if lora.alpha is None else lora.alpha
    config = LoraConfig(r=lora.rank, lora_alpha=scale, lora_dropout=lora.dropout, target_modules=chosen)
    inject_adapter_in_model(config, network)


def without_adapters(module: ModuleT) -> ModuleT:
    """Return a copy of a module with its adapters merged into the weights; the module itself where it has none."""
    if not any(True for _ in _adapted(module)):
        return module
    merged = copy.deepcopy(module)
    for parent, name, layer in list(_adapted(merged)):
        layer.merge()
        setattr(parent, name, layer.base_layer)
    return merged


def _adapted(module: nn.Module) -> Iterator[tuple[nn.Module, str, Any]]:
    """Yield each layer with an adapter, with its parent and its name there."""
    for parent in module.modules():
        for name, child in parent.named_children():
            if hasattr(child, "lora_A") and hasattr(child, "base_layer"):
                yield parent, name, child


def adapt(model: nn.Module) -> None:
    """Give adapters to those networks of a model whose recipe asks for them: the parts with an attribute ``lora``."""
    for part in list(model.modules()):
        lora = getattr(part, "lora", None)
        if isinstance(lora, Lora):
            network = getattr(part, "net", None) or getattr(part, "backbone", None)
            if isinstance(network, nn.Module):
                add_adapters(network, lora)
