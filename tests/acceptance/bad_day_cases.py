"""What ``first_hour.py`` tries when disks are full, files are damaged, and work is stopped."""

from __future__ import annotations

import json
import os
import signal
import stat
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.acceptance.stage import ONE_EPOCH, Outcome, Stage, digest

FULL, MEGABYTE = 400, 1_000_000
MANY_EPOCHS = "training.phases=[{epochs: 4000}]"


def full_disk_in_train(stage: Stage) -> Outcome:
    run = stage.place / "full_run"
    answer = stage.openvse(*stage.training(ONE_EPOCH, out=run), most_bytes=MEGABYTE)
    half = (run / "best").exists() and not (run / "best/model.safetensors").exists()
    return answer.told(
        "cannot be written", "make room", code=2, also=not half, otherwise="best/ is half-written"
    )


def full_disk_in_index(stage: Stage) -> Outcome:
    index = stage.copy(stage.index, "full_index")
    before = digest(index)
    words = ("index", stage.run / "best", stage.few("full_few"), "--out", index)
    overwrite = ["--overwrite"] if "--overwrite" in stage.openvse("index", "--help").out else []
    answer = stage.openvse(*words, *overwrite, most_bytes=FULL)
    whole = digest(index) == before
    return answer.told(
        "cannot be written", "make room", code=2, also=whole, otherwise="the old index is not whole"
    )


def full_disk_in_html(stage: Stage) -> Outcome:
    page, words = (
        stage.place / "full.html",
        ("search", stage.run / "best", stage.index, "a red thing", "--html"),
    )
    page.write_text("the one before")
    answer = stage.openvse(*words, page, most_bytes=FULL)
    whole = page.read_text() == "the one before"
    return answer.told(
        "cannot be written", "make room", code=2, also=whole, otherwise="the old page is not whole"
    )


def last_checkpoint_deleted(stage: Stage) -> Outcome:
    run = stage.copy(stage.run, "without_last")
    (run / "last.pt").unlink()
    before = digest(run / "best")
    answer = stage.train(ONE_EPOCH, "seed=5", out=run)
    if digest(run / "best") != before:
        return Outcome(False, f"best/ is replaced: `{answer.end}`")
    return answer.told("last.pt", "--overwrite", code=2)


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


def stored_features(stage: Stage) -> Outcome:
    found = stage.indexed.told("from stored features")
    return found if found.good else Outcome(False, f"computed again: `{stage.indexed.end}`")


def another_model(stage: Stage) -> Outcome:
    index, second = (
        stage.copy(stage.index, "others_index"),
        stage.place / "second/best" if stage.second else None,
    )
    before = digest(index)
    answer = stage.openvse("index", second, stage.album, "--out", index)
    if digest(index) != before:
        return Outcome(False, f"the index is replaced: `{answer.end}`")
    return answer.told("made by model", "--overwrite", code=2)


def vectors(index: Path) -> Path:
    """Return the file of an index's embeddings."""
    (path,) = index.glob("vectors*.npy")
    return path


def empty_vectors(stage: Stage) -> Outcome:
    index = stage.copy(stage.index, "empty_index")
    vectors(index).write_bytes(b"")
    found = stage.openvse("search", stage.run / "best", index, "a red thing").told("damaged", code=2)
    repaired = stage.openvse("index", stage.run / "best", stage.album, "--out", index)
    again = f"; `index` again: `{repaired.end}`"
    return Outcome(found.good and repaired.code == 0, found.seen + again)


def nan_row(stage: Stage) -> Outcome:
    index = stage.copy(stage.index, "nan_index")
    rows = np.load(vectors(index))
    rows[3] = np.nan
    np.save(vectors(index), rows)
    return damage_told(stage, index)


def flipped_byte(stage: Stage) -> Outcome:
    index = stage.copy(stage.index, "flipped_index")
    content = bytearray(vectors(index).read_bytes())
    content[-1] ^= 1
    vectors(index).write_bytes(content)
    return damage_told(stage, index)


def damage_told(stage: Stage, index: Path) -> Outcome:
    """Judge a search in an index whose numbers were changed."""
    answer = stage.openvse("search", stage.run / "best", index, "a red thing", "-k", 1)
    found = answer.told("checksum", code=2)
    return found if answer.code else Outcome(False, f"not noticed: `{answer.end.strip()}`")


def nan_without_checksum(stage: Stage) -> Outcome:
    index = stage.copy(stage.index, "old_nan_index")
    rows = np.load(vectors(index))
    rows[3] = np.nan
    np.save(vectors(index), rows)
    manifest = json.loads((index / "index.json").read_text())
    (index / "index.json").write_text(
        json.dumps(manifest | {"checksums": None} if "checksums" in manifest else manifest)
    )
    answer = stage.openvse("search", stage.run / "best", index, "a red thing", "-k", 1)
    first = bool(answer.line("1  ", "nan"))
    return Outcome(not first and "NaN" in answer.err, f"`{(answer.line('NaN') or answer.end).strip()}`")


def huge_width(stage: Stage) -> Outcome:
    return stage.train(ONE_EPOCH, "embed_dim=1000000000", out=stage.place / "huge_run").told(
        "embed_dim", code=2
    )


def zero_length(stage: Stage) -> Outcome:
    store = stage.copy(stage.run / "features", "zero_store")
    lengths = np.load(store / "lengths.npy")
    lengths[3:5] = 0, lengths[3] + lengths[4]
    np.save(store / "lengths.npy", lengths)
    answer = stage.train(ONE_EPOCH, f"data.features={store}", out=stage.place / "zero_run")
    return answer.told("lengths.npy", code=2)


def mode_of_weights(stage: Stage) -> Outcome:
    mask = os.umask(0)
    os.umask(mask)
    mode = stat.S_IMODE((stage.run / "best/model.safetensors").stat().st_mode)
    return Outcome(mode == 0o666 & ~mask, f"{mode:04o} under a umask of {mask:04o}")


def sigterm(stage: Stage) -> Outcome:
    return stopped_by(stage, signal.SIGTERM)


def sighup(stage: Stage) -> Outcome:
    return stopped_by(stage, signal.SIGHUP)


def stopped_by(stage: Stage, number: signal.Signals) -> Outcome:
    """Judge whether a training that a signal stops says how to continue."""
    run = stage.place / f"stopped_by_{number.name}"
    words = stage.training(MANY_EPOCHS, out=run)
    answer = stage.stop(words, (run / "best/model.safetensors").exists, number)
    return answer.told(f"interrupted by {number.name}", "--resume", code=128 + number)


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


def validations(log: Path) -> int:
    """Return how many lines of a log are of a validation."""
    return log.read_text().count('"validation"') if log.exists() else 0


def resume_without_checkpoint(stage: Stage) -> Outcome:
    answer = stage.openvse(*stage.training(ONE_EPOCH, out=stage.place / "begun"), "--resume")
    return answer.told("best: epoch 1")


def mistyped_path(stage: Stage) -> Outcome:
    run = stage.place / "mistyped_run"
    answer = stage.train(ONE_EPOCH, "data.source=phtos", out=run)
    left = ", ".join(path.name for path in run.iterdir()) if run.exists() else ""
    return answer.told(
        "phtos", code=2, also=not run.exists(), otherwise=f"a run folder is left, with {left or 'nothing'}"
    )


BAD_DAY: dict[str, Callable[[Stage], Outcome]] = {
    "Disk full in `train`": full_disk_in_train,
    "Disk full in `index`, over an index": full_disk_in_index,
    "Disk full in `search --html`": full_disk_in_html,
    "`last.pt` deleted, the same `train` again": last_checkpoint_deleted,
    "`index` stopped by Ctrl-C, and again": index_stopped,
    "`index` after training by stored features": stored_features,
    "Another model into the same index": another_model,
    "Damage: an empty file of vectors": empty_vectors,
    "Damage: a row of NaN": nan_row,
    "Damage: a row of NaN in an index without checksums": nan_without_checksum,
    "Damage: a flipped byte of the vectors": flipped_byte,
    "Damage: a 0 in `lengths.npy`": zero_length,
    "`embed_dim=1000000000`": huge_width,
    "The mode of the weights": mode_of_weights,
    "SIGTERM in `train`": sigterm,
    "SIGHUP in `train`": sighup,
    "`metrics.jsonl` after three kills": metrics_after_kills,
    "`train --resume` without a run": resume_without_checkpoint,
    "A mistyped path of the data": mistyped_path,
}
