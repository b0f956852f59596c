"""``openvse synthetic``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from openvse.cli.app import app
from openvse.cli.stopping import going_on


@app.command()
@going_on("the trainings that were finished are kept; run the same command again to go on")
def synthetic(
    out: Annotated[Path, typer.Option(help="Folder for synthetic.json, .md and .png.")] = Path("synthetic"),
    seed: Annotated[int, typer.Option(min=0, help="Seed of the weights and the random sets.")] = 0,
    steps: Annotated[int, typer.Option(min=1, help="Steps of each training.")] = 4000,
    learning_rate: Annotated[
        float, typer.Option(min=0.0, help="The highest learning rate of the schedule.")
    ] = 0.02,
    processes: Annotated[
        int, typer.Option(min=1, help="How many trainings run at a time, each on one core.")
    ] = 2,
) -> None:
    """Let designs of GPO find known pooling coefficients: VSE-infinity's synthetic experiment (Table 11).

    An experiment that was killed goes on when it is started again with the same options.
    """
    from openvse.cli.progress import bar
    from openvse.experiments import (
        DESIGNS,
        PATTERNS,
        Schedule,
        SyntheticReport,
        Unfinished,
        find_all,
        import_figure,
    )

    import_figure()  # what is missing must not be missed after the work
    schedule = Schedule(steps=steps, learning_rate=learning_rate)
    so_far = Unfinished(out, schedule, seed)
    done = {(result.design, result.pattern) for result in so_far.results}
    with bar() as progress:
        task = progress.add_task("training", total=len(DESIGNS) * len(PATTERNS), completed=len(done), note="")
        progress.start()
        for result in find_all(schedule, seed=seed, processes=processes, done=done):
            so_far.add(result)
            progress.update(
                task, advance=1, note=f"{result.design}, {result.pattern}: {result.seconds:.0f} s"
            )
    report = SyntheticReport(so_far.results, schedule, seed)
    typer.echo(report.to_markdown())
    report.save(out)
    so_far.finish()
    typer.echo(
        f"written: {', '.join(str(out / f'synthetic.{end}') for end in ('json', 'md', 'png'))}", err=True
    )
