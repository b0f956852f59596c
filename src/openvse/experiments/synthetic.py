"""The synthetic experiment of VSE-infinity, which tests which designs of GPO learn known pooling coefficients."""

from __future__ import annotations

import math
import multiprocessing
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import torch
from jaxtyping import Float
from torch import Tensor, nn

from openvse.aggregators import GPO
from openvse.aggregators.gpo import MLP, Interpolation, LearnedPositions
from openvse.errors import TrainingError
from openvse.experiments.patterns import PATTERNS
from openvse.functional import position_mask, sort_descending

SEEN = range(20, 101)
TESTED = range(10, 121)
SHOWN_SIZE = 50

Designs = Mapping[str, Callable[..., GPO]]
DESIGNS: Designs = MappingProxyType(
    {
        # The number of knots in FSPool; the paper does not give one.
        "interpolation": partial(GPO, generator=Interpolation, num_positions=21),
        "sin/cos + MLP": partial(GPO, generator=MLP),
        "index + BiGRU": partial(GPO, positions=LearnedPositions),
        "sin/cos + BiGRU": GPO,
    }
)
"""The designs of VSE-infinity, Table 11, in the order of the table."""


@dataclass(frozen=True)
class Schedule:
    """The training schedule of one GPO.

    Attributes:
        steps: the number of steps of Adam.
        learning_rate: the highest learning rate, which is reached linearly in the first twentieth of the steps and
            falls to 0 along a cosine.
        num_sets: the number of sets per step, each with its own size.
        width: L, the width of the random features.
        clip_norm: the largest norm of the gradient.
    """

    steps: int = 4000
    learning_rate: float = 0.02
    num_sets: int = 16
    width: int = 128
    clip_norm: float = 0.1

    def rate_factor(self, step: int) -> float:
        """Return the share of the learning rate at a step, counted from 0."""
        warmup = max(self.steps // 20, 1)
        if step < warmup:
            return (step + 1) / warmup
        return (1 + math.cos(math.pi * (step - warmup) / max(self.steps - warmup, 1))) / 2


@dataclass(frozen=True)
class DesignResult:
    """The result of training one design on one pattern.

    Attributes:
        design: a name in ``DESIGNS``.
        pattern: a name in ``PATTERNS``.
        errors: the root mean squared error of the coefficients, for each size in ``TESTED``.
        coefficients: the coefficients at ``SHOWN_SIZE``.
        seconds: the seconds of training.
    """

    design: str
    pattern: str
    errors: Sequence[float]
    coefficients: Sequence[float]
    seconds: float

    def rmse(self, sizes: range) -> float:
        """Return the root mean squared error over set sizes, with equal weights."""
        squares = [error**2 for size, error in zip(TESTED, self.errors, strict=True) if size in sizes]
        return float((sum(squares) / len(squares)) ** 0.5)


def learn(gpo: GPO, pattern: str, schedule: Schedule, seed: int) -> None:
    """Regress the outputs of a known pooling on random sets (VSE-infinity, B.3).

    The features are standard normal. Both poolings weight the same sorted values, so the outputs differ only by the
    difference of the coefficients on these values.

    Args:
        gpo: the aggregator that learns.
        pattern: a name in ``PATTERNS``.
        schedule: the training schedule.
        seed: the seed of the sets.
    """
    random = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(gpo.parameters(), lr=schedule.learning_rate)
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule.rate_factor)
    for _ in range(schedule.steps):
        sizes = torch.randint(SEEN.start, SEEN.stop, (schedule.num_sets,), generator=random)
        longest = int(sizes.max())
        features = torch.randn(len(sizes), longest, schedule.width, generator=random)
        ranked = sort_descending(features, position_mask(sizes, longest))
        difference = gpo.coefficients(sizes) - PATTERNS[pattern](sizes)
        loss: Tensor = torch.einsum("bln,bn->bl", ranked, difference).square().mean()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(gpo.parameters(), schedule.clip_norm)
        optimizer.step()
        rates.step()


@torch.inference_mode()
def coefficient_errors(gpo: GPO, pattern: str) -> Float[Tensor, "U"]:
    """Return the root mean squared error of a GPO's coefficients at each size in ``TESTED``."""
    sizes = torch.tensor(TESTED)
    squares = (gpo.coefficients(sizes) - PATTERNS[pattern](sizes)).square()
    return (squares.sum(dim=1) / sizes).sqrt()


def find(design: str, pattern: str, schedule: Schedule, seed: int) -> DesignResult:
    """Train one design on one pattern from random sets, and measure its coefficients at every size.

    Args:
        design: a name in ``DESIGNS``.
        pattern: a name in ``PATTERNS``.
        schedule: the training schedule.
        seed: the seed of the weights and the sets.
    """
    started = time.perf_counter()
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        gpo = DESIGNS[design](input_dim=schedule.width, embed_dim=schedule.width)
    learn(gpo, pattern, schedule, seed)
    seconds = time.perf_counter() - started
    with torch.inference_mode():
        shown = gpo.coefficients(torch.tensor([SHOWN_SIZE]))[0]
    return DesignResult(design, pattern, coefficient_errors(gpo, pattern).tolist(), shown.tolist(), seconds)


def find_all(
    schedule: Schedule, *, seed: int, processes: int, done: Collection[tuple[str, str]] = ()
) -> Iterator[DesignResult]:
    """Train every design on every pattern, and yield each result when it is done.

    The result does not depend on the number of processes, each of which uses one thread.

    Args:
        schedule: the schedule of each training.
        seed: the seed of every training, so that every design sees the same sets.
        processes: the number of processes that train at a time.
        done: the pairs of a design and a pattern to leave out.

    Raises:
        TrainingError: a process was killed from outside.
    """
    # The slowest designs come first, so that the processes end at about the same time.
    every = [(design, pattern) for design in reversed([*DESIGNS]) for pattern in PATTERNS]
    runs = [run for run in every if run not in done]
    with ProcessPoolExecutor(
        processes,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=torch.set_num_threads,
        initargs=(1,),
    ) as pool:
        futures = [pool.submit(find, design, pattern, schedule, seed) for design, pattern in runs]
        for future in as_completed(futures):
            try:
                yield future.result()
            except BrokenProcessPool as error:
                raise TrainingError(
                    f"one of {processes} training processes was killed, perhaps for its memory: run fewer at a time"
                ) from error
