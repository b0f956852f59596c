"""Which designs of GPO find known pooling coefficients: the synthetic experiment of VSE-infinity (B.3, Table 11).

    python studies/synthetic_pooling.py --out synthetic.png

Each design learns to reproduce a known pooling on random sets. The tables have the RMSE of its coefficients, with the
published ones in brackets; the figure shows them at every size. It takes about 12 minutes on 2 cores.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from openvse.aggregators import GPO
from openvse.aggregators.gpo import MLP, Interpolation, LearnedPositions
from openvse.functional import position_mask, sort_descending
from openvse.output.figures import import_figure
from openvse.output.table import Table

SEEN, TESTED, SHOWN_SIZE = range(20, 101), range(10, 121), 50
RANGES = {"seen": SEEN, "smaller": range(10, 20), "larger": range(101, 121)}

DESIGNS: Mapping[str, Callable[..., GPO]] = {
    # The number of knots in FSPool; the paper does not give one.
    "interpolation": partial(GPO, generator=Interpolation, num_positions=21),
    "sin/cos + MLP": partial(GPO, generator=MLP),
    "index + BiGRU": partial(GPO, positions=LearnedPositions),
    "sin/cos + BiGRU": GPO,
}
"""The designs of the table, in its order."""


def _mean_of_top(sizes: Tensor, counts: Tensor) -> Tensor:
    return position_mask(counts, int(sizes.max())) / counts.unsqueeze(1)


def _linear_decay(sizes: Tensor) -> Tensor:
    falling = (sizes.unsqueeze(1) - torch.arange(int(sizes.max()))).clamp(min=0)
    return falling / falling.sum(dim=1, keepdim=True)


PATTERNS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "A": lambda sizes: _mean_of_top(sizes, sizes),
    "M-1": lambda sizes: _mean_of_top(sizes, torch.ones_like(sizes)),
    "M-10": lambda sizes: _mean_of_top(sizes, sizes.clamp(max=10)),
    "T-50%": lambda sizes: _mean_of_top(sizes, (sizes + 1) // 2),
    "L": _linear_decay,
}
"""Mean, maximum, mean of the top 10 and of the top half, linear decay.

Each takes set sizes ``[U]`` and returns their coefficients ``[U, max(sizes)]``, largest element first, 0 beyond a size.
"""

_PUBLISHED: Mapping[tuple[str, str], tuple[float, ...]] = {
    ("interpolation", "seen"): (0.0, 0.065, 0.030, 0.011, 0.004),
    ("interpolation", "smaller"): (0.0, 0.017, 0.141, 0.039, 0.016),
    ("interpolation", "larger"): (0.0, 0.070, 0.014, 0.005, 0.002),
    ("sin/cos + MLP", "seen"): (0.012, 0.003, 0.047, 0.032, 0.022),
    ("sin/cos + MLP", "smaller"): (0.054, 0.003, 0.093, 0.096, 0.065),
    ("sin/cos + MLP", "larger"): (0.006, 0.003, 0.030, 0.026, 0.028),
    ("index + BiGRU", "seen"): (0.002, 0.002, 0.026, 0.011, 0.008),
    ("index + BiGRU", "smaller"): (0.006, 0.004, 0.052, 0.049, 0.015),
    ("index + BiGRU", "larger"): (0.003, 0.001, 0.018, 0.007, 0.005),
    ("sin/cos + BiGRU", "seen"): (0.0, 0.005, 0.010, 0.006, 0.0),
    ("sin/cos + BiGRU", "smaller"): (0.002, 0.010, 0.031, 0.046, 0.005),
    ("sin/cos + BiGRU", "larger"): (0.0, 0.004, 0.007, 0.004, 0.001),
}
PUBLISHED = {
    (design, sizes, pattern): value
    for (design, sizes), values in _PUBLISHED.items()
    for pattern, value in zip(PATTERNS, values, strict=True)
}
"""RMSE by design, range of sizes and pattern."""


@dataclass(frozen=True)
class Schedule:
    """How one GPO is trained: steps of Adam on some sets of random features; the rate rises linearly and falls to 0."""

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
    """What one design has learned of one pattern: the RMSE at each size in ``TESTED``, and the coefficients at one."""

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
    """Regress the outputs of a known pooling on random sets.

    The features are standard normal. Both poolings weight the same sorted values, so the outputs differ only by the
    difference of the coefficients on these values.
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
        loss = torch.einsum("bln,bn->bl", ranked, difference).square().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(gpo.parameters(), schedule.clip_norm)
        optimizer.step()
        rates.step()


@torch.inference_mode()
def coefficient_errors(gpo: GPO, pattern: str) -> Tensor:
    """Return the root mean squared error of a GPO's coefficients at each size in ``TESTED``."""
    sizes = torch.tensor(TESTED)
    squares = (gpo.coefficients(sizes) - PATTERNS[pattern](sizes)).square()
    return (squares.sum(dim=1) / sizes).sqrt()


def find(design: str, pattern: str, schedule: Schedule, seed: int) -> DesignResult:
    """Train one design on one pattern from random sets, and measure its coefficients at every size."""
    started = time.perf_counter()
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        gpo = DESIGNS[design](input_dim=schedule.width, embed_dim=schedule.width)
    learn(gpo, pattern, schedule, seed)
    seconds = time.perf_counter() - started
    with torch.inference_mode():
        known = gpo.coefficients(torch.tensor([SHOWN_SIZE]))[0]
    return DesignResult(design, pattern, coefficient_errors(gpo, pattern).tolist(), known.tolist(), seconds)


def find_all(schedule: Schedule, seed: int, processes: int) -> Iterator[DesignResult]:
    """Train every design on every pattern; the results do not depend on the number of processes, of a thread each."""
    with ProcessPoolExecutor(
        processes, multiprocessing.get_context("spawn"), initializer=torch.set_num_threads, initargs=(1,)
    ) as pool:
        # The slowest designs come first, so that the processes end at about the same time.
        every = [(design, pattern) for design in reversed([*DESIGNS]) for pattern in PATTERNS]
        futures = [pool.submit(find, design, pattern, schedule, seed) for design, pattern in every]
        for future in as_completed(futures):
            yield future.result()


def tables(results: Iterable[DesignResult]) -> str:
    """Return the tables in Markdown, with the published results in brackets."""
    by_run = {(result.design, result.pattern): result for result in results}
    sections = []
    for title, ranges in (("Seen sizes", ["seen"]), ("Unseen sizes", ["smaller", "larger"])):
        rows = []
        for design in DESIGNS:
            cells = []
            for pattern in PATTERNS:
                ours = " / ".join(_short(by_run[design, pattern].rmse(RANGES[sizes])) for sizes in ranges)
                theirs = " / ".join(_short(PUBLISHED[design, sizes, pattern]) for sizes in ranges)
                cells.append(f"{ours} ({theirs})")
            rows.append([design, *cells])
        spans = " / ".join(f"{RANGES[r].start} to {RANGES[r].stop - 1}" for r in ranges)
        sections += [f"{title}, {spans}:", Table(["", *PATTERNS], rows).to_markdown()]
    return "\n\n".join(sections)


def _short(value: float) -> str:
    return f"{value:.3f}".removeprefix("0") if value >= 0.0005 else "0"


def draw(results: Sequence[DesignResult], out: Path) -> None:
    """Draw, for each pattern, the coefficients at one size and the error at every size."""
    by_run = {(result.design, result.pattern): result for result in results}
    figure = import_figure()(figsize=(16, 6.5), layout="constrained")
    grid = figure.subplots(2, len(PATTERNS), squeeze=False)
    for (upper, lower), pattern in zip(grid.T, PATTERNS, strict=True):
        truth = PATTERNS[pattern](torch.tensor([SHOWN_SIZE]))[0].tolist()
        positions = range(1, SHOWN_SIZE + 1)
        upper.plot(positions, truth, color="black", linewidth=4, alpha=0.25, label="truth")
        for design in DESIGNS:
            result = by_run[design, pattern]
            upper.plot(positions, result.coefficients, linewidth=1.2, label=design)
            # The error of a softmax of equal values is exactly 0, which a logarithmic axis cannot show.
            lower.plot(TESTED, [max(error, 1e-6) for error in result.errors], linewidth=1.2)
        upper.set(title=pattern, xlabel=f"position, of {SHOWN_SIZE}")
        upper.set_ylim(bottom=0)
        lower.axvspan(SEEN.start, SEEN.stop - 1, color="black", alpha=0.06, linewidth=0)
        lower.set(yscale="log", xlabel="size of the set (trained on: grey)")
    grid[0, 0].set_ylabel("coefficient")
    grid[1, 0].set_ylabel("RMSE")
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    figure.savefig(out, dpi=120)


def main() -> None:
    """Print the tables, and draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("synthetic.png"), help="the figure")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=Schedule.steps)
    parser.add_argument("--learning-rate", type=float, default=Schedule.learning_rate)
    parser.add_argument("--processes", type=int, default=2, help="trainings at a time, each on one core")
    given = parser.parse_args()
    schedule = Schedule(steps=given.steps, learning_rate=given.learning_rate)
    results = []
    for result in find_all(schedule, given.seed, given.processes):
        results.append(result)
        print(f"{result.design}, {result.pattern}: {result.seconds:.0f} s", flush=True)
    print(tables(results))
    draw(results, given.out)


if __name__ == "__main__":
    main()
