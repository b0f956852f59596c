"""Fine-tuning of a pretrained network inside a model: all of it, its last blocks, or low-rank adapters (LoRA).

A network has adapters, which are layers of ``peft``, while a run trains it. When the model is saved, they are merged
into its weights, which keep their names, so loading the model does not need ``peft``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from typing import Any, TypeVar, cast

import torch
from jaxtyping import Float
from pydantic import Field, ValidationError
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from openvse.errors import ModelError, RecipeError, install
from openvse.specs.load import describe
from openvse.specs.model import Strict

_STILL = "_kept_still"
_STATES = "hidden_states"  # transformers' name of a block's first argument
ModuleT = TypeVar("ModuleT", bound=nn.Module)


def set_backbone_mode(backbone: nn.Module, *, training: bool, fine_tune: bool) -> None:
    """Put a frozen backbone into evaluation mode, and always BatchNorm layers and modules marked by ``keep_still``.

    The running statistics of the pretraining are kept (VSE-infinity, section 4.1), because a batch of a few large
    images would give poor estimates of them.
    """
    backbone.train(training and fine_tune)
    for module in backbone.modules():
        if isinstance(module, _BatchNorm) or getattr(module, _STILL, False):
            module.eval()


def keep_still(backbone: nn.Module) -> None:
    """Keep the frozen parts of a backbone in evaluation mode for good: no dropout in frozen blocks."""
    for child in backbone.children():
        parameters = list(child.parameters())
        if parameters and not any(parameter.requires_grad for parameter in parameters):
            setattr(child, _STILL, True)
            child.eval()
        else:
            keep_still(child)


def freeze_unreached(backbone: nn.Module, output: Tensor) -> None:
    """Freeze the parameters that have no effect on ``output``, such as an unused pooling head's.

    Otherwise data-parallel training would wait for their gradients forever.
    """
    parameters = [parameter for parameter in backbone.parameters() if parameter.requires_grad]
    gradients = torch.autograd.grad(output.sum(), parameters, allow_unused=True)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.requires_grad_(gradient is not None)


def checkpoint_blocks(backbone: nn.Module) -> None:
    """Make every block drop its activations and recompute them in the backward pass.

    A block is a member of an outermost ``nn.ModuleList``: a layer of a transformer, a stage of a ResNet. Only
    the inputs of the blocks stay in memory. The gradients are the same, at the cost of about one more forward
    pass (Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016).
    """
    blocks = [block for owner, name in _outermost_lists(backbone) for block in getattr(owner, name)]
    if not blocks:
        raise ModelError("this backbone has no list of blocks to checkpoint: set gradient_checkpointing: false")
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)


def _outermost_lists(module: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    for name, child in module.named_children():
        if isinstance(child, nn.ModuleList):
            yield module, name
        else:
            yield from _outermost_lists(child)


class _ReachedError(Exception):
    """Ends a forward pass at the first block that trains."""

    def __init__(self, states: Tensor) -> None:
        super().__init__()
        self.states = states


class TrainedBlocks:
    """The last blocks of a network, which train with the layers after them, and the ``depth`` blocks below.

    The blocks are the members of the network's only outermost ``nn.ModuleList``.
    """

    def __init__(self, network: nn.Module, count: int) -> None:
        lists = list(_outermost_lists(network))
        if len(lists) != 1:
            raise ModelError(
                f"train_blocks needs a network with one list of blocks, but this one has {len(lists)}: leave it out, "
                f"and freeze the other parts in training.phases"
            )
        self._owner, self._name = lists[0]
        blocks = self._blocks
        if not 1 <= count <= len(blocks):
            raise RecipeError(f"train_blocks is {count}: give 1 to {len(blocks)}, the number of blocks")
        self.depth = len(blocks) - count
        self._first = blocks[self.depth]

    @property
    def _blocks(self) -> nn.ModuleList:
        return cast(nn.ModuleList, getattr(self._owner, self._name))

    def freeze_below(self, network: nn.Module, run: Callable[[], Tensor]) -> None:
        """Freeze the parameters that affect the output only through the blocks below, and keep their modules still."""
        with _entering(self._first, Tensor.detach):
            freeze_unreached(network, run())
        keep_still(network)

    def below(self, network: nn.Module) -> set[str]:
        """Return the names of the parameters that come before the first block that trains."""
        own = {id(parameter) for block in self._blocks[self.depth :] for parameter in block.parameters()}
        names: set[str] = set()
        for name, parameter in network.named_parameters():
            if id(parameter) in own:
                break
            names.add(name)
        return names

    def states(self, run: Callable[[], Any]) -> Float[Tensor, "B N C"]:
        """Return the states that enter the first block that trains. Later states are not computed."""

        def leave(states: Tensor) -> Tensor:
            raise _ReachedError(states)

        try:
            with _entering(self._first, leave):
                run()
        except _ReachedError as reached:
            return reached.states
        raise ModelError("the network does not run its blocks in turn: leave train_blocks out")

    def resume(self, states: Float[Tensor, "B N C"], run: Callable[[], Any]) -> Any:
        """Return the result of the forward pass from given states on. The blocks below are not computed."""
        blocks = self._blocks
        setattr(self._owner, self._name, blocks[self.depth :])
        try:
            with _entering(self._first, lambda _: states):
                return run()
        finally:
            setattr(self._owner, self._name, blocks)


@contextmanager
def _entering(block: nn.Module, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Change the states that enter a block inside a ``with``."""

    def hook(_: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        if args:
            return (change(args[0]), *args[1:]), options
        return args, {**options, _STATES: change(options[_STATES])}

    handle = block.register_forward_pre_hook(hook, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


class Lora(Strict):
    """The options of adapters in a recipe. A linear layer W becomes ``W + alpha / rank * B A`` (Hu et al., LoRA, 2022).

    Attributes:
        rank: the rank of B A.
        alpha: the scale. None is twice the rank.
        dropout: the probability that an input of A is dropped in training.
        targets: the last names of the linear layers that get adapters, such as ``[query, value]``. None takes all.
    """

    rank: int = Field(8, ge=1)
    alpha: float | None = Field(None, gt=0)
    dropout: float = Field(0.0, ge=0, lt=1)
    targets: tuple[str, ...] | None = None


def lora_of(options: Mapping[str, Any] | None, *, fine_tune: bool, train_blocks: int | None) -> Lora | None:
    """Check which parts of a network train. Return the options of its adapters, or None if there are none."""
    if train_blocks is not None and not fine_tune:
        raise RecipeError(f"train_blocks is {train_blocks}, but fine_tune false: set fine_tune=true, or leave it out")
    if options is None:
        return None
    if not fine_tune or train_blocks is not None:
        raise RecipeError("lora needs fine_tune=true and no train_blocks: set the one, and leave the other out")
    try:
        return Lora.model_validate(options)
    except ValidationError as error:
        raise RecipeError(f"recipe: {describe(error, Lora, prefix='lora')}") from error


def require_peft() -> None:
    """Raise RecipeError if ``peft`` is not installed."""
    if find_spec("peft") is None:
        raise RecipeError(f"lora needs peft: {install('lora')}, or leave lora out and set train_blocks")


def add_adapters(network: nn.Module, lora: Lora) -> None:
    """Freeze a network and give adapters, which change nothing at first, to its linear layers that train."""
    require_peft()
    from peft import LoraConfig, inject_adapter_in_model

    linear = [
        name for name, layer in network.named_modules() if isinstance(layer, nn.Linear) and layer.weight.requires_grad
    ]
    last = sorted({name.rpartition(".")[2] for name in linear})
    chosen = [name for name in linear if lora.targets is None or name.rpartition(".")[2] in lora.targets]
    if not chosen or not set(lora.targets or ()) <= set(last):
        raise RecipeError(f"lora.targets is {list(lora.targets or ())}: the linear layers are called {', '.join(last)}")
    network.requires_grad_(False)
    scale = 2.0 * lora.rank if lora.alpha is None else lora.alpha
    config = LoraConfig(r=lora.rank, lora_alpha=scale, lora_dropout=lora.dropout, target_modules=chosen)
    inject_adapter_in_model(config, network)


def without_adapters(module: ModuleT) -> ModuleT:
    """Return a copy of a module with its adapters merged into the weights, or the module itself without adapters."""
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
    """Give adapters to the networks of a model whose recipe sets them: the parts with an attribute ``lora``."""
    for part in list(model.modules()):
        lora = getattr(part, "lora", None)
        if isinstance(lora, Lora):
            network = getattr(part, "net", None) or getattr(part, "backbone", None)
            if isinstance(network, nn.Module):
                add_adapters(network, lora)
