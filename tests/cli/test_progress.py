"""What the terminal shows while something runs."""

from __future__ import annotations

from openvse.cli.progress import TrainingBar, bar, counted, warn
from openvse.training.records import EpochReport, StepReport, Watcher

METRICS = {"rsum": 412.34, "i2t_r1": 40.0, "t2i_r1": 31.26}


def test_nothing_is_drawn_before_there_is_something_to_draw(capsys) -> None:
    with bar() as progress:
        counted(progress, "extracting")
        TrainingBar(progress)
    assert capsys.readouterr() == ("", "")


def test_a_hidden_display_draws_nothing(capsys) -> None:
    with bar(shown=False) as progress:
        counted(progress, "extracting")(1, 2, 3.0)
    assert "extracting" not in capsys.readouterr().err


def test_counting_is_one_bar(capsys) -> None:
    with bar() as progress:
        show = counted(progress, "extracting")
        for done in (1, 2, 3):
            show(done, 3, 12.3)
        assert len(progress.tasks) == 1
    shown = capsys.readouterr().err
    assert "extracting" in shown and "3/3" in shown and "12 images/s" in shown
    with bar() as progress:
        counted(progress, "extracting", "texts")(1, 1, 5.0)
    assert "5 texts/s" in capsys.readouterr().err


def test_training_shows_each_term_and_a_line_an_epoch(capsys) -> None:
    with bar() as progress:
        watcher = TrainingBar(progress)
        assert isinstance(watcher, Watcher)
        watcher.started(total_steps=20, done_steps=10, num_epochs=2)
        watcher.step(StepReport(2, 5, 15, {"ranking": 1.25, "loss": 1.25}, 1e-3, 99.7))
        (task,) = progress.tasks
        assert (task.completed, task.total, task.description) == (15, 20, "epoch 2/2")
        assert task.fields["note"] == "loss 1.250  100 pairs/s"
        watcher.step(StepReport(2, 10, 20, {"ranking": 1.0, "mmd": 0.5, "loss": 1.5}, 1e-3, 100.0))
        assert task.fields["note"] == "loss 1.500  100 pairs/s  (ranking 1  mmd 0.5)"
        watcher.epoch(EpochReport(2, 1.5, METRICS, True, 60.0, "rsum 412.3  i2t R@1 40.0  t2i R@1 31.3"))
    expected = "epoch   2/2  loss    1.500  validation: rsum 412.3  i2t R@1 40.0  t2i R@1 31.3  best\n"
    assert expected in capsys.readouterr().err


def test_a_warning_is_one_line_and_its_brackets_are_text(capsys) -> None:
    message = "skipped photos/[red]dog[/].jpg: " + "it is not an image we read " * 8
    warn(message)
    assert capsys.readouterr().err == f"warning: {message}\n"
