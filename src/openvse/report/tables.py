"""Reported runs, and their figures and the rows of a comparison as tables for a page, a paper or a README."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from shlex import quote
from statistics import fmean, stdev
from string import ascii_uppercase
from textwrap import fill
from typing import Any

from openvse.corpus.splits import LEAKAGE
from openvse.errors import OpenVSEError, RecipeError, message_of
from openvse.evaluation.comparison import POWER, Comparison, RowContrast
from openvse.evaluation.metrics import metric_names
from openvse.evaluation.report import Findings, metric_title
from openvse.files import read_text
from openvse.model.base import Model, ModelConfig, read_config
from openvse.output.documents import CONFIDENCE
from openvse.output.table import COLUMNS, Table
from openvse.specs.load import parse_yaml
from openvse.specs.model import section
from openvse.tasks import task_kind
from openvse.tasks.load import folder_of_model, load
from openvse.tasks.run import RECIPE
from openvse.tasks.runs import NamedRun, find_run
from openvse.training.inputs import AUTO
from openvse.training.kind import Request
from openvse.training.records import METRICS, RunRecords, read_records


@dataclass(frozen=True)
class ReportedRun:
    """A run, or a model without its run, which has neither recipe nor records."""

    named: NamedRun
    model: Path
    config: ModelConfig
    recipe: Mapping[str, Any] | None = None
    records: RunRecords | None = None

    @property
    def name(self) -> str:
        """The name of the run in titles and legends."""
        return self.named.name

    @property
    def best_epoch(self) -> int | None:
        """The epoch of its best model."""
        epoch = section(self.config.provenance, "validation").get("epoch")
        return epoch if isinstance(epoch, int) else None

    def data(self) -> str:
        """Return the source of the data that it was trained on. Raise OpenVSEError if the recipe names none."""
        source = section(self.recipe, "data").get("source")
        if not isinstance(source, str):
            raise OpenVSEError(f"{self.named.source} does not name its data: give --on DATA, or --no-test")
        return source

    def store(self) -> Path | None:
        """Return the feature store that it was trained with, or None. Raise OpenVSEError if it is gone."""
        stated = section(self.recipe, "data").get("features")
        if not isinstance(stated, str):
            return None
        places = [Path(stated)]
        if self.named.folder is not None:
            places = [self.named.folder / "features"] if stated == AUTO else [*places, self.named.folder / stated]
        store = next((place for place in places if place.exists()), None)
        if store is None and stated != AUTO:
            raise OpenVSEError(f"the store {stated} of {self.named.source} is gone: give --features or --no-test")
        return store

    def command(self) -> str | None:
        """Return the command that trains the same again."""
        if self.named.folder is None or self.recipe is None:
            return None
        return f"openvse train {quote(str(self.named.folder / RECIPE))} --out AGAIN"


def read_run(source: str) -> ReportedRun:
    """Read the files of a run about itself."""
    named = find_run(source)
    model = folder_of_model(named.model)
    recipe, records = None, None
    if named.folder is not None and (named.folder / RECIPE).is_file():
        recipe = _read_recipe(named.folder / RECIPE)
        records = read_records(named.folder / METRICS)
    return ReportedRun(named, model, read_config(model), recipe, records)


def _read_recipe(path: Path) -> Mapping[str, Any]:
    try:
        tree = parse_yaml(read_text(path))
    except (OSError, ValueError, RecipeError) as error:
        raise OpenVSEError(f"{path} cannot be read ({message_of(error)}): restore it, or name another run") from error
    if not isinstance(tree, dict):
        raise OpenVSEError(f"{path} is not a recipe: restore it, or name another run")
    return tree


FIRST_HITS = 10
"""The number of first results kept of each query, more than an image of most data sets has captions."""


@dataclass(frozen=True)
class MeasuredReport:
    """A run, how many weights its model has and may have changed, and its results on the test set, if measured."""

    run: ReportedRun
    parameters: int
    trained: int
    fingerprint: str
    findings: Findings | None = None

    @property
    def leaks(self) -> tuple[str, ...]:
        """The lines about test images that the model was trained on."""
        if self.findings is None:
            return ()
        lines = (line for line in self.findings.problems if line.startswith(LEAKAGE))
        return tuple(line.replace("the model", self.run.name, 1) for line in lines)


def weighed(model: Model) -> tuple[int, int, str]:
    """Return the number of weights of a model, the number that may have been trained, and its fingerprint."""
    weights = [*model.parameters()]
    learned = sum(weight.numel() for weight in weights if weight.requires_grad)
    return sum(weight.numel() for weight in weights), learned, model.fingerprint


def measure_run(run: ReportedRun, request: Request | None, *, examples: int, device: str = "cpu") -> MeasuredReport:
    """Load the best model of a run and evaluate it."""
    model = load(run.model, device=device)
    measured = MeasuredReport(run, *weighed(model))
    if request is None:
        return measured
    evaluation = task_kind(model.task).evaluate([model], replace(request, keep=FIRST_HITS if examples else 0))
    return replace(measured, findings=evaluation.findings(examples))


def shown_metrics(findings: Findings) -> list[str]:
    """Return the metrics that tables show: RSUM, recalls and the ranks for retrieval, all scores for answers."""
    there = [*findings.metrics]
    return [name for name in metric_names(1) if name in there] if "rsum" in there else there


def table_with_notes(table: Table, notes: Sequence[str], form: str) -> str:
    """Return a table as text or Markdown with its notes as a list below, or in LaTeX with them as comments above."""
    if form == "latex":
        return table.to_latex(notes)
    shown = table.to_text() if form == "text" else table.to_markdown()
    return "\n\n".join([shown, "\n".join(f"- {line}" for line in notes)]) + "\n"


def remarks(measured: MeasuredReport) -> list[str]:
    """Return the notes to the table, a line at a time, leakage first."""
    if measured.findings is None:
        return []
    size, *others = measured.findings.notes or ("",)
    leaks = {line.replace(measured.run.name, "the model", 1) for line in measured.leaks}
    problems = [line for line in measured.findings.problems if line not in leaks]
    sides = any(name.startswith(("i2t_", "t2i_")) for name in measured.findings.metrics)
    return [
        *measured.leaks,
        f"on {measured.findings.data}: {size}",
        *others,
        *problems,
        *(["i2t: images ask for texts. t2i: texts ask for images"] if sides else []),
    ]


@dataclass(frozen=True)
class RowFacts:
    """The validation metrics and training minutes that a row's runs have recorded, empty if one run has none."""

    validation: tuple[Mapping[str, float], ...] = ()
    minutes: tuple[float, ...] = ()


def row_facts(runs: Sequence[NamedRun]) -> RowFacts:
    """Return the records in the folders of a row's runs. Ensembles and models without their run have none."""
    validation: list[Mapping[str, float]] = []
    minutes: list[float] = []
    for run in runs:
        if len(run.models) > 1:
            continue
        try:
            read = read_run(run.source)
        except OpenVSEError:  # a model without its records can still be compared
            continue
        if measured := section(read.config.provenance, "validation", "metrics"):
            validation.append(measured)
        if read.records is not None and (seconds := read.records.seconds()) is not None:
            minutes.append(seconds / 60)
    count = len(runs)
    return RowFacts(
        tuple(validation) if len(validation) == count else (), tuple(minutes) if len(minutes) == count else ()
    )


def compared_table(comparison: Comparison, facts: Mapping[str, RowFacts]) -> Table:
    """Return the rows of a comparison: seeds, validation, each metric, the difference to the first row, minutes.

    A column that would be empty in every row is left out.
    """
    main, names = _metrics(comparison)
    against = {each.second: each.differences[main] for each in comparison.contrasts}
    columns: dict[str, list[str]] = {"": [row.name for row in comparison.rows]}
    columns["seeds"] = [str(len(row.runs)) for row in comparison.rows]
    columns[f"validation {metric_title(main)}"] = [
        _spread([each[main] for each in facts[row.name].validation if main in each]) for row in comparison.rows
    ]
    for name in names:
        columns[metric_title(name)] = [_spread([run.metrics[name] for run in row.runs]) for row in comparison.rows]
    columns[f"{metric_title(main)}, difference"] = [
        f"{contrast.change:+.1f} ({contrast.interval[0]:+.1f} to {contrast.interval[1]:+.1f})"
        if (contrast := against.get(row.name)) is not None
        else ""
        for row in comparison.rows
    ]
    columns["minutes"] = [_range(facts[row.name].minutes) for row in comparison.rows]
    return Table.of({title: cells for title, cells in columns.items() if any(cells)})


def compared_notes(comparison: Comparison, facts: Mapping[str, RowFacts]) -> list[str]:
    """Return the notes to the table, a line at a time."""
    lines = [f"on {comparison.name}: {comparison.about()}"]
    if any(row.spread for row in comparison.rows):
        lines.append("±: standard deviation over the seeds of a row")
    lines.append(
        f"difference: to {comparison.rows[0].name}, with its {CONFIDENCE:.0%} interval (paired bootstrap over images, "
        f"{comparison.resamples:,} resamples, seed {comparison.seed}). An interval that holds 0 shows no difference"
    )
    if any(row.spread for row in comparison.rows):
        lines.append("the bootstrap also draws the seeds of a row again")
    if any(len(row.runs) == 1 for row in comparison.rows):
        lines.append("a row of one seed: its interval leaves out how far another seed would move it")
    if any(facts[row.name].minutes for row in comparison.rows):
        lines.append("minutes: training time of a run, from the fastest to the slowest of a row")
    return [*lines, *dict.fromkeys(comparison.warnings())]


def _metrics(comparison: Comparison) -> tuple[str, list[str]]:
    """Return the metric that rows are compared by, and all metrics of the table. RSUM comes after its recalls."""
    names = compared_metrics(comparison)
    return names[0], [*names[1:], names[0]] if names[0] == "rsum" else names


def _spread(values: Sequence[float]) -> str:
    """Return the mean, and the standard deviation (divided by n - 1) of several values, or "" for none."""
    if len(values) < 2:
        return "".join(f"{value:.1f}" for value in values)
    return f"{fmean(values):.1f} ± {stdev(values):.1f}"


def _range(values: Sequence[float]) -> str:
    if not values:
        return ""
    low, high = (f"{value:.0f}" if value >= 1 else "< 1" for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


SIDES = {"i2t": "images asking for texts", "t2i": "texts asking for images", "questions": "questions"}


def letters(comparison: Comparison) -> dict[str, str]:
    """Return a letter for each row, or a number if there are more rows than letters."""
    many = len(comparison.rows) > len(ascii_uppercase)
    return {
        row.name: str(number + 1) if many else ascii_uppercase[number] for number, row in enumerate(comparison.rows)
    }


def compared_metrics(comparison: Comparison) -> list[str]:
    """Return the metrics that tables show: RSUM and recalls, or all others with resamples."""
    there = comparison.contrasts[0].differences
    return [name for name in metric_names() if name in there] or [name for name in there if not name.endswith("meanr")]


def row_table(comparison: Comparison) -> Table:
    """Return the table of rows. A line of spreads follows a row of several runs."""
    names = compared_metrics(comparison)
    lines = []
    for name, row in zip(letters(comparison).values(), comparison.rows, strict=True):
        lines.append([name, str(len(row.runs)), *(f"{row.mean[metric]:.1f}" for metric in names)])
        if row.spread:
            lines.append(["", "", *(f"±{row.spread[metric]:.1f}" for metric in names)])
    return Table(["", "seeds", *map(metric_title, names)], lines)


def difference_table(comparison: Comparison, contrast: RowContrast) -> Table:
    """Return the table of differences."""
    name = letters(comparison)
    first, second = name[contrast.first], name[contrast.second]
    lines = []
    for metric in compared_metrics(comparison):
        difference = contrast.differences[metric]
        low, high = difference.interval
        cells = f"{difference.change:+.1f}", f"{low:+.1f} to {high:+.1f}", f"{difference.smallest:.1f}"
        verdict = {1: f"{second} is better", -1: f"{first} is better", 0: "not shown"}[difference.verdict]
        lines.append([metric_title(metric), *cells, verdict])
    return Table([f"{second} - {first}", "difference", f"{CONFIDENCE:.0%} interval", "would show", ""], lines)


def sign_table(comparison: Comparison, contrast: RowContrast) -> Table:
    """Return the table of the sign tests."""
    name = letters(comparison)
    first, second = name[contrast.first], name[contrast.second]
    lines = []
    for side, test in contrast.signs.items():
        p = f"{test.p:.3f}" if test.p >= 0.001 else f"{test.p:.0e}" if test.p > 0 else "< 1e-300"
        lines.append([SIDES.get(side, side), f"{test.better:,}", f"{test.worse:,}", f"{test.equal:,}", p])
    return Table(["queries", f"{second} better", f"{first} better", "equal", "p"], lines)


def row_remarks(comparison: Comparison) -> Iterator[str]:
    """Yield the notes to the figures, a sentence or two at a time."""
    yield (
        f"interval: paired bootstrap over images, {comparison.resamples:,} resamples, seed {comparison.seed}. "
        f'"not shown" means that it holds 0'
    )
    yield (
        f"would show: the smallest true difference that such a test set shows in {POWER:.0%} of cases. "
        f'"not shown" does not exclude smaller ones'
    )
    counts = [len(row.runs) for row in comparison.rows]
    if max(counts) == 1:
        yield (
            "one run a row: an interval says how far other test images would move the difference, not how far "
            "another seed would"
        )
    else:
        yield "±: standard deviation over the seeds of a row, which the bootstrap draws again, too"
        if min(counts) == 1:
            yield "a row of one run has no spread: an interval leaves out how far another seed would move it"
    if "t2i" in comparison.contrasts[0].signs:
        yield "p: exact sign test. The texts of an image are not independent, so their p is too small"
    if len(comparison.contrasts) > 1:
        yield f"{len(comparison.contrasts)} comparisons: intervals and p are not corrected for their number"


def comparison_text(comparison: Comparison) -> str:
    """Return the comparison for a terminal: rows by letter, their metrics, and each row against the first."""
    blocks = ["\n".join(f"{letter}  {name}" for name, letter in letters(comparison).items())]
    blocks.append(f"on {comparison.name}: {comparison.about()}")
    blocks.append(row_table(comparison).to_text())
    for contrast in comparison.contrasts:
        blocks.append(difference_table(comparison, contrast).to_text())
        blocks.append(sign_table(comparison, contrast).to_text())
    wrapped = partial(fill, width=COLUMNS - 1, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    blocks.append("\n".join(map(wrapped, (*row_remarks(comparison), *comparison.warnings()))))
    return "\n\n".join(blocks)


def comparison_values(comparison: Comparison) -> dict[str, Any]:
    """Return the comparison as plain values, which docs/json.md describes."""
    return {
        "data": comparison.name,
        "size": dict(comparison.size),
        "folds": comparison.folds,
        "seed": comparison.seed,
        "resamples": comparison.resamples,
        "rows": [
            {
                "name": row.name,
                "runs": [
                    {"source": run.source, "model": run.model, "metrics": run.metrics, "warnings": [*run.warnings]}
                    for run in row.runs
                ],
                "mean": row.mean,
                "spread": row.spread,
            }
            for row in comparison.rows
        ],
        "contrasts": [
            {
                "first": each.first,
                "second": each.second,
                "differences": {
                    name: {**asdict(value), "interval": [*value.interval], "shown": value.verdict != 0}
                    for name, value in each.differences.items()
                },
                "signs": {side: asdict(value) for side, value in each.signs.items()},
            }
            for each in comparison.contrasts
        ],
        "problems": [*comparison.problems],
    }
