"""The report of the synthetic experiment: a table with the published results, and a plot."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import torch

from openvse.experiments.patterns import PATTERNS
from openvse.experiments.synthetic import DESIGNS, SEEN, SHOWN_SIZE, TESTED, DesignResult, Schedule
from openvse.files import replacing
from openvse.output.documents import markdown_table, write_report
from openvse.output.figures import import_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RANGES: Mapping[str, range] = MappingProxyType(
    {
        "seen": SEEN,
        "smaller": range(TESTED.start, SEEN.start),
        "larger": range(SEEN.stop, TESTED.stop),
    }
)

_PUBLISHED: dict[tuple[str, str], tuple[float, ...]] = {
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
PUBLISHED: Mapping[tuple[str, str, str], float] = MappingProxyType(
    {
        (design, sizes, pattern): value
        for (design, sizes), values in _PUBLISHED.items()
        for pattern, value in zip(PATTERNS, values, strict=True)
    }
)
"""RMSE by design, range of sizes and pattern (VSE-infinity, Table 11)."""


@dataclass(frozen=True)
class SyntheticReport:
    """The results of all designs on all patterns.

    Attributes:
        results: one result for each design and pattern, in any order.
        schedule: the training schedule.
        seed: the seed of the weights and the sets.
    """

    results: Sequence[DesignResult]
    schedule: Schedule
    seed: int

    def rmse(self) -> dict[tuple[str, str, str], float]:
        """Return the RMSE by design, range of sizes and pattern, in the form of ``PUBLISHED``."""
        by_run = {(result.design, result.pattern): result for result in self.results}
        return {key: by_run[key[0], key[2]].rmse(RANGES[key[1]]) for key in PUBLISHED}

    def of_pattern(self, pattern: str) -> dict[str, DesignResult]:
        """Return the results for a pattern by design, in the order of ``DESIGNS``."""
        by_design = {result.design: result for result in self.results if result.pattern == pattern}
        return {design: by_design[design] for design in DESIGNS}

    def to_markdown(self) -> str:
        """Return the tables, with the published results in brackets."""
        schedule = self.schedule
        sections = ["# Known pooling coefficients, found by GPO"]
        for title, ranges in (("Seen sizes", ["seen"]), ("Unseen sizes", ["smaller", "larger"])):
            spans = " / ".join(f"{RANGES[r].start} to {RANGES[r].stop - 1}" for r in ranges)
            sections += [f"## {title}, {spans}", markdown_table(["", *PATTERNS], self._rows(ranges))]
        sections.append(
            "RMSE of the coefficients, in brackets as published (VSE-infinity, Table 11). A: mean; M-k: mean of the "
            "top k; T-50%: of the top half; L: linear decay.\n\n"
            f"{schedule.steps:,} steps of {schedule.num_sets} sets of width {schedule.width}, learning rate "
            f"{schedule.learning_rate:g}, seed {self.seed}; "
            f"{sum(result.seconds for result in self.results):.0f} s of training over all processes."
        )
        return "\n\n".join(sections) + "\n"

    def to_json(self) -> str:
        """Return everything: tables, and the errors at each size."""
        figures = [
            {"design": key[0], "sizes": key[1], "pattern": key[2], "rmse": ours, "published": PUBLISHED[key]}
            for key, ours in self.rmse().items()
        ]
        runs = [asdict(result) for pattern in PATTERNS for result in self.of_pattern(pattern).values()]
        content = {"seed": self.seed, "schedule": asdict(self.schedule), "table": figures}
        sizes = {"tested_sizes": list(TESTED), "shown_size": SHOWN_SIZE}
        return json.dumps(content | sizes | {"runs": runs}, indent=2) + "\n"

    def plot(self) -> Figure:
        """Draw, for each pattern, the coefficients at one size and the error at every size.

        Raises:
            OpenVSEError: matplotlib is not installed.
        """
        figure_type = import_figure()
        figure = figure_type(figsize=(16, 6.5), layout="constrained")
        axes = figure.subplots(2, len(PATTERNS), squeeze=False)
        for column, pattern in enumerate(PATTERNS):
            by_design = self.of_pattern(pattern)
            _draw_coefficients(axes[0, column], pattern, by_design)
            _draw_errors(axes[1, column], by_design)
        axes[0, 0].set_ylabel("coefficient")
        axes[1, 0].set_ylabel("RMSE")
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
        return figure

    def save(self, folder: str | Path) -> Path:
        """Write ``synthetic.json``, ``.md`` and ``.png``, each by write-then-rename, and return the folder."""
        target = write_report(folder, "synthetic", markdown=self.to_markdown(), json=self.to_json())
        with replacing(target / "synthetic.png") as partial:
            self.plot().savefig(partial, format="png", dpi=120)
        return target

    def _rows(self, ranges: Sequence[str]) -> Iterable[list[str]]:
        ours = self.rmse()
        for design in DESIGNS:
            keys = [[(design, sizes, pattern) for sizes in ranges] for pattern in PATTERNS]
            yield [
                design,
                *(
                    f"{' / '.join(_short(ours[key]) for key in cell)} "
                    f"({' / '.join(_short(PUBLISHED[key]) for key in cell)})"
                    for cell in keys
                ),
            ]


def _draw_coefficients(axes: Axes, pattern: str, by_design: Mapping[str, DesignResult]) -> None:
    positions = range(1, SHOWN_SIZE + 1)
    truth = PATTERNS[pattern](torch.tensor([SHOWN_SIZE]))[0]
    axes.plot(positions, truth.tolist(), color="black", linewidth=4, alpha=0.25, label="truth")
    for design, result in by_design.items():
        axes.plot(positions, result.coefficients, linewidth=1.2, label=design)
    axes.set_title(pattern)
    axes.set_xlabel(f"position, of {SHOWN_SIZE}")
    axes.set_ylim(bottom=0)


def _draw_errors(axes: Axes, by_design: Mapping[str, DesignResult]) -> None:
    for result in by_design.values():
        # The error of a softmax of equal values is exactly 0, which a logarithmic axis cannot show.
        axes.plot(TESTED, [max(error, 1e-6) for error in result.errors], linewidth=1.2)
    axes.axvspan(SEEN.start, SEEN.stop - 1, color="black", alpha=0.06, linewidth=0)
    axes.set_yscale("log")
    axes.set_xlabel("size of the set (trained on: grey)")


def _short(value: float) -> str:
    return f"{value:.3f}".removeprefix("0") if value >= 0.0005 else "0"
