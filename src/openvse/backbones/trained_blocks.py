"""Training only the last blocks of a transformer: the others run without a graph, and their states can be stored."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from openvse.backbones.fine_tuning import freeze_unreached, keep_still
from openvse.errors import ModelError, RecipeError

_STATES = "hidden_states"  # what transformers calls the first argument of a block


class _ReachedError(Exception):
    """Ends a forward pass at the first block that trains."""

    def __init__(self, states: Tensor) -> None:
        super().__init__()
        self.states = states


class TrainedBlocks:
    """The last blocks of a network, which train, and what lies below them, which does not.

    Args:
        network: a network whose blocks are the members of its only outermost ``nn.ModuleList``.
        count: the number of the last blocks that train; what follows them trains, too.

    Attributes:
        depth: the number of blocks that do not train.

    Raises:
        ModelError: the network has no such list, or several.
        RecipeError: there are not so many blocks.
    """

    def __init__(self, network: nn.Module, count: int) -> None:
        found = list(_outermost_lists(network))
        if len(found) != 1:
            raise ModelError(
                f"train_blocks needs a network with one list of blocks, and this one has {len(found)}: leave it out, "
                f"and freeze what should not train in training.phases"
            )
        self._owner, self._name = found[0]
        blocks = self._blocks
        if not 1 <= count <= len(blocks):
            raise RecipeError(f"train_blocks is {count}: give 1 to {len(blocks)}, the number of blocks")
        self.depth = len(blocks) - count
        self._first = blocks[self.depth]

    @property
    def _blocks(self) -> nn.ModuleList:
        blocks: nn.ModuleList = getattr(self._owner, self._name)
        return blocks

    def freeze_below(self, network: nn.Module, run: Callable[[], Tensor]) -> None:
        """Freeze the parameters that affect the output only through the blocks below, and keep their modules still.

        Args:
            network: the network.
            run: computes some output of it.
        """
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
        """Return the states that enter the first block that trains; the others are not computed.

        Args:
            run: the forward pass.
        """

        def leave(states: Tensor) -> Tensor:
            raise _ReachedError(states)

        try:
            with _entering(self._first, leave):
                run()
        except _ReachedError as reached:
            return reached.states
        raise ModelError("the network does not run its blocks in turn: leave train_blocks out")

    def resume(self, states: Float[Tensor, "B N C"], run: Callable[[], Any]) -> Any:
        """Return what the forward pass returns from given states on; the blocks below are not computed.

        Args:
            states: as ``states`` returned them.
            run: the forward pass, on any input of the same shape and mask.
        """
        blocks = self._blocks
        setattr(self._owner, self._name, blocks[self.depth :])
        try:
            with _entering(self._first, lambda _: states):
                return run()
        finally:
            setattr(self._owner, self._name, blocks)


def require_fine_tune(train_blocks: int | None, *, fine_tune: bool) -> None:
    """Raise RecipeError if some blocks shall train but the network is frozen."""
    if train_blocks is not None and not fine_tune:
        raise RecipeError(
            f"train_blocks is {train_blocks}, and fine_tune is false: set fine_tune=true, or leave train_blocks out"
        )


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


def _outermost_lists(module: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    for name, child in module.named_children():
        if isinstance(child, nn.ModuleList):
            yield module, name
        else:
            yield from _outermost_lists(child)


def same_result(one: Tensor, other: Tensor) -> bool:
    """Return whether two ways to compute the same states agree to rounding."""
    return one.shape == other.shape and torch.allclose(one, other, rtol=1e-3, atol=1e-4)
