"""``openvse synthetic``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from openvse.cli.app import app
from openvse.cli.options import Quiet
from openvse.cli.stopping import going_on


@app.command()
@going_on("the trainings that were finished are kept; run the same command again to continue")
def synthetic(
    out: Annotated[
        Path, typer.Option(help="Folder in which synthetic.json, .md and .png are written.")
    ] = Path("synthetic"),
    seed: Annotated[int, typer.Option(min=0, help="Random seed of the weights and the random sets.")] = 0,
    steps: Annotated[int, typer.Option(min=1, help="Number of steps of each training.")] = 4000,
    learning_rate: Annotated[
        float, typer.Option(min=0.0, help="Highest learning rate of the schedule.")
    ] = 0.02,
    processes: Annotated[
        int, typer.Option(min=1, help="Number of trainings that run at the same time, each on one core.")
    ] = 2,
    quiet: Quiet = False,
) -> None:
    """Train designs of GPO to find known pooling coefficients: the synthetic experiment of VSE-infinity (Table 11).

    To continue an experiment that was stopped, run it again with the same options.
    """
    from openvse.cli.progress import bar, note
    from openvse.experiments import (
        DESIGNS,
        PATTERNS,
        Schedule,
        SyntheticReport,
        Unfinished,
        find_all,
    )
    from openvse.output.figures import import_figure

    import_figure()  # fails before the work if Matplotlib is missing
    schedule = Schedule(steps=steps, learning_rate=learning_rate)
    so_far = Unfinished(out, schedule, seed)
    done = {(result.design, result.pattern) for result in so_far.results}
    with bar() as progress:
        total = len(DESIGNS) * len(PATTERNS)
        progress.show("training", len(done), total)
        trainings = find_all(schedule, seed=seed, processes=processes, done=done)
        for number, result in enumerate(trainings, start=len(done) + 1):
            so_far.add(result)
            last = f"{result.design}, {result.pattern}: {result.seconds:.0f} s"
            progress.show("training", number, total, note=last)
    report = SyntheticReport(so_far.results, schedule, seed)
    typer.echo(report.to_markdown())
    report.save(out)
    so_far.finish()
    note(f"written: {', '.join(str(out / f'synthetic.{end}') for end in ('json', 'md', 'png'))}")
