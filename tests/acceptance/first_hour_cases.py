"""What ``first_hour.py`` tries: what shows in a process, a terminal or on a disk of its own. Tests have the rest."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import stat
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.acceptance.stage import ONE_EPOCH, TWO_PHASES, Outcome, Stage, digest

FULL, MEGABYTE = 400, 1_000_000
MANY_EPOCHS = "training.phases=[{epochs: 4000}]"
SPINNER = " ⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


def rare_words(stage: Stage) -> Outcome:
    captions = [caption for entry in stage.entries if entry["split"] == "train" for caption in entry["captions"]]
    counts = Counter(word for caption in captions for word in set(re.findall(r"[a-z]{4,}", caption.lower())))
    one, other = [word for word, count in counts.items() if count == 1][:2]
    answer = stage.search(one, other, "-k", 3)
    hits = answer.out.replace(other, one).split(f"{one}\n")[1:]
    told = answer.told(one)
    if not told.good:
        return told
    same = hits[0] == hits[1]
    return Outcome(not same, "two such words find " + ("the same images with the same scores" if same else "their own"))


def opened(stage: Stage, folder: Path) -> Outcome:
    """Judge whether a folder opens as captioned images: two of them, with two captions."""
    answer = stage.check(folder)
    found = answer.told("2 items, 2 captions")
    return found if found.good else Outcome(False, f"`{(answer.line('WRONG  ') or answer.end).strip()}`")


def lone_csv(stage: Stage) -> Outcome:
    folder = stage.few("lone_csv", 2)
    (folder / "captions.csv").write_text("image,caption\n00.png,a red thing\n01.png,another thing\n")
    return opened(stage, folder)


def broken_images(stage: Stage) -> Outcome:
    folder = stage.copy(stage.album, "broken")
    broken = folder / str(stage.entries[3]["file_name"])
    broken.write_bytes(broken.read_bytes()[:60])
    shutil.copy(folder / str(stage.entries[0]["file_name"]), folder / str(stage.entries[1]["file_name"]))
    answer = stage.check(folder)
    if broken.name not in answer.out:
        return Outcome(False, f"exit status {answer.code}: `{answer.end}`")
    both = bool(answer.line("are the same"))
    return answer.told("WRONG", "are broken", code=1, also=both, otherwise="the same image twice is not noticed")


def progress_in_a_pipe(stage: Stage) -> Outcome:
    told, first_epoch = stage.trained.err, stage.trained.err.find("epoch   1/")
    line = stage.trained.line(" of ", "took") or stage.trained.line("extracting")
    in_order = told.find("extracting") < first_epoch  # a short extraction says nothing
    return Outcome(in_order and "took" in line, f"`{line.strip()}`" + ("" if in_order else ", after the epochs"))


def columns(stage: Stage) -> Outcome:
    drawn = stage.terminal(*stage.training(TWO_PHASES, "data.features=auto", out=stage.place / "terminal_run"))
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", drawn)
    bars = [line.strip(SPINNER) for line in re.split(r"[\r\n]+", plain) if "━" in line]
    cut = [line for line in bars if "…" in line or "..." in line or len(line) > 80]
    if not bars:
        return Outcome(False, f"no bar is drawn: `{plain[-100:]}`")
    return Outcome(not cut, f"`{re.sub('━+', '━━', (cut or bars)[-1])}`")


def no_colour(stage: Stage) -> Outcome:
    with_colours, without = (stage.terminal("--help", env=env) for env in ({}, {"NO_COLOR": "1"}))
    colour = re.compile(r"\x1b\[[0-9;]*3[1-7]m")
    good = bool(colour.search(with_colours)) and not colour.search(without) and "Usage" in without
    return Outcome(good, "no colour is printed" if good else "colours are printed")


def moved_folder(stage: Stage) -> Outcome:
    folder, index = stage.few("to_move"), stage.place / "to_move_index"
    stage.openvse("index", stage.run / "best", folder, "--out", index)
    folder.rename(stage.place / "moved")
    answer = stage.openvse("search", stage.run / "best", index, "a red thing", "-k", 1)
    found = answer.told("warning", "no longer in")
    return found if found.good or answer.code else Outcome(False, f"no warning: `{answer.end.strip()}`")


def did_you_mean(stage: Stage) -> Outcome:
    answer = stage.openvse("train", "vse_infinity/folder", f"data.source={stage.album}")
    names = len(set(re.findall(r"\w+/\w+", answer.err))) - 1
    return Outcome(answer.code == 2 and 1 <= names <= 3, f"{names} names: `{answer.end}`")


def completion(stage: Stage) -> Outcome:
    words = {"_OPENVSE_COMPLETE": "complete_bash", "COMP_WORDS": "openvse train vse_inf", "COMP_CWORD": "2"}
    answer = stage.openvse(env={**words, "_TYPER_COMPLETE_ARGS": "openvse train vse_inf"})
    names = [name for name in answer.out.split() if name.startswith("vse_infinity/")]
    return Outcome(len(names) > 1, f"{len(names)} names of recipes")


def chance(stage: Stage) -> Outcome:
    few = bool(stage.trained.line("validation has only"))
    return stage.trained.told("epoch   1", "chance", also=few, otherwise="nothing said of so few images")


def full_disk_in_train(stage: Stage) -> Outcome:
    run = stage.place / "full_run"
    answer = stage.openvse(*stage.training(ONE_EPOCH, out=run), most_bytes=MEGABYTE)
    half = (run / "best").exists() and not (run / "best/model.safetensors").exists()
    return answer.told("File too large", code=2, also=not half, otherwise="best/ is half-written")


def full_disk_in_index(stage: Stage) -> Outcome:
    index = stage.copy(stage.index, "full_index")
    before = digest(index)
    words = ("index", stage.run / "best", stage.few("full_few"), "--out", index)
    overwrite = ["--overwrite"] if "--overwrite" in stage.openvse("index", "--help").out else []
    answer = stage.openvse(*words, *overwrite, most_bytes=FULL)
    whole = digest(index) == before
    return answer.told("File too large", code=2, also=whole, otherwise="the old index is not whole")


def index_stopped(stage: Stage) -> Outcome:
    folder, index = stage.few("many"), stage.place / "many_index"
    for number in range(3000):
        (folder / f"more{number}.png").hardlink_to(folder / f"{number % 6:02d}.png")
    words = ["index", str(stage.run / "best"), str(folder), "--out", str(index), "--batch-size", "1"]
    stopped = stage.stop(words, (index / "unfinished.json").exists, signal.SIGINT, most_s=20)
    again = stage.openvse(*words)
    if stopped.code != 130:
        return Outcome(False, f"it does not stop with status 130 but {stopped.code}: `{stopped.end}`")
    found = again.told("3006 images", "kept by the stopped run")
    return found if found.good or again.code else Outcome(False, f"nothing was kept: `{again.end}`")


def mode_of_weights(stage: Stage) -> Outcome:
    mask = os.umask(0)
    os.umask(mask)
    mode = stat.S_IMODE((stage.run / "best/model.safetensors").stat().st_mode)
    return Outcome(mode == 0o666 & ~mask, f"{mode:04o} under a umask of {mask:04o}")


def stopped_by(stage: Stage, number: signal.Signals) -> Outcome:
    """Judge whether a training that a signal stops says how to continue."""
    run = stage.place / f"stopped_by_{number.name}"
    words = stage.training(MANY_EPOCHS, out=run)
    answer = stage.stop(words, (run / "best/model.safetensors").exists, number)
    return answer.told(f"interrupted by {number.name}", "--resume", code=128 + number)


def sigterm(stage: Stage) -> Outcome:
    return stopped_by(stage, signal.SIGTERM)


def sighup(stage: Stage) -> Outcome:
    return stopped_by(stage, signal.SIGHUP)


def validations(log: Path) -> int:
    """Return how many lines of a log are of a validation."""
    return log.read_text().count('"validation"') if log.exists() else 0


def metrics_after_kills(stage: Stage) -> Outcome:
    run = stage.place / "killed"
    words = stage.training("training.phases=[{epochs: 5}]", "training.checkpoint_every_s=0.001", out=run)
    log = run / "metrics.jsonl"
    for epoch in (1, 2, 3):
        resume = ["--resume"] if (run / "last.pt").exists() else []
        stage.stop([*words, *resume], lambda epoch=epoch: validations(log) >= epoch, signal.SIGKILL)
    answer = stage.openvse(*words, "--resume")
    if answer.code:
        return answer.told("best")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    counts = Counter((line["kind"], line["epoch"], line["global_step"]) for line in lines)
    repeated = {key for key, count in counts.items() if count > 1}
    return Outcome(not repeated, f"{len(repeated)} of {len(counts)} lines stand there twice")


def mistyped_path(stage: Stage) -> Outcome:
    run = stage.place / "mistyped_run"
    answer = stage.train(ONE_EPOCH, "data.source=phtos", out=run)
    left = ", ".join(path.name for path in run.iterdir()) if run.exists() else ""
    return answer.told(
        "phtos", code=2, also=not run.exists(), otherwise=f"a run folder is left, with {left or 'nothing'}"
    )


CASES: dict[str, Callable[[Stage], Outcome]] = {
    "Words: two words that stand once in the captions": rare_words,
    "Data: a lone captions.csv in the folder": lone_csv,
    "Data: `data check` with a truncated and a repeated image": broken_images,
    "Terminal: training in a pipe": progress_in_a_pipe,
    "Terminal: bars in 80 columns": columns,
    "Terminal: NO_COLOR": no_colour,
    "Terminal: the folder of images was moved": moved_folder,
    "Terminal: a mistyped recipe": did_you_mean,
    "Terminal: completion of `openvse train vse_inf`": completion,
    "Terminal: chance beside validation, and a small split": chance,
    "Disk full in `train`": full_disk_in_train,
    "Disk full in `index`, over an index": full_disk_in_index,
    "`index` stopped by Ctrl-C, and again": index_stopped,
    "The mode of the weights": mode_of_weights,
    "SIGTERM in `train`": sigterm,
    "SIGHUP in `train`": sighup,
    "`metrics.jsonl` after three kills": metrics_after_kills,
    "A mistyped path of the data": mistyped_path,
}
"""What is tried, by the point of the table."""
