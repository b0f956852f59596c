"""From pretrained towers to a model of one's own: what each way to train gains, by the number of captioned images.

python studies/start_study.py FLICKR8K --grids grids --texts texts --blocks blocks --out study
python studies/start_study.py FLICKR8K --out study --draw start_study.png

FLICKR8K is a folder as ``openvse data check flickr8k:FOLDER`` wants it. The images to learn from are drawn from its
training split; validation and test are whole. The ways to train, each with every seed:

- words: GPO and AdOpt on stored grids, with a BiGRU that learns its words from the captions;
- frozen: the same with a pretrained MiniLM; the networks of both sides are frozen, and the layers behind them learn;
- adapters: from the frozen one, low-rank adapters in MiniLM as well;
- everything: from the frozen one, EfficientNet-Lite0 and the last two blocks of MiniLM as well.

``rows.csv`` gets a row for each run that is finished, with its validation RSUM before and after, and its test RSUM; the
test is read once. A run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from _commands import (
    ROWS,
    append_row,
    cost_of,
    draw_line,
    openvse,
    options_to_train,
    read_rows,
    train_to_the_end,
    validations,
)
from openvse.training.records import METRICS, read_records

COLUMNS = (
    *("way", "images", "seed", "rate", "epochs", "validation_before", "validation_after", "best_epoch"),
    *("test_before", "test_rsum", "test_i2t_r1", "test_t2i_r1", "minutes", "memory_mb", "commit"),
)
FROZEN = "frozen"
WAYS: dict[str, dict[str, Any] | str] = {
    "words": "gpo_adopt/flickr8k_grids_cpu",
    FROZEN: "gpo_adopt/flickr8k_grids_minilm_cpu",
    "adapters": {"image": "start", "text": {"encoder": {"fine_tune": True, "lora": {"rank": 8}}}},
    "everything": {
        "image": {"encoder": {"fine_tune": True}},
        "text": {"encoder": {"fine_tune": True, "train_blocks": 2}},
    },
}
"""A recipe, or what a recipe that begins from the frozen run changes about its model."""
SHARED: dict[str, Any] = {
    "objective": {
        "ranking": {
            "name": "contrast",
            "miner": "adaptive_top_k",
            "criterion": {"name": "info_nce", "temperature": 0.1, "margin": 0.2},
            "reduction": "mean",
        }
    },
    "optimizer": {"name": "adamw", "weight_decay": 0.01},
    "training": {"clip_norm": 2.0, "precision": "auto"},
}
LABELS = {
    "words": "BiGRU, words of the captions",
    FROZEN: "MiniLM, frozen",
    "adapters": "MiniLM with adapters",
    "everything": "both networks fine-tuned",
}
CAREFUL = {"image.encoder.backbone": 0.15, "text.encoder.backbone": 0.1}


@dataclass(frozen=True)
class Case:
    """One training: which way, how many images, which seed."""

    way: str
    images: int
    seed: int

    @property
    def name(self) -> str:
        """The folder of the run."""
        return f"{self.way}_{self.images}_s{self.seed}"


def main(arguments: Sequence[str]) -> None:
    """Make the runs that are not finished, and add their rows; or draw the rows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("flickr8k", type=Path, help="folder of the data set")
    parser.add_argument("--grids", type=Path, help="feature store of its images: efficientnet_lite0")
    parser.add_argument("--texts", type=Path, help="feature store of its texts: MiniLM")
    parser.add_argument("--blocks", type=Path, help="the same with train_blocks=2")
    parser.add_argument("--ways", nargs="+", choices=tuple(WAYS), default=[*WAYS])
    parser.add_argument("--sizes", type=int, nargs="+", default=[10, 100, 1000, 6000])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument(
        "--epochs", type=int, nargs=2, default=[5, 2], help="of adapters and everything: at the full rate, at a tenth"
    )
    parser.add_argument("--rate", type=float, default=3.0e-4, help="of adapters and everything: the learning rate")
    if (options := options_to_train(parser, arguments, draw, needed=("grids", "texts", "blocks"))) is None:
        return
    rows = options.out / ROWS
    for images in options.sizes:
        for seed in options.seeds:
            data = draw_images(options.flickr8k, images, seed, options.out / "data")
            # Two ways begin from the frozen run.
            for way in dict.fromkeys([*([FROZEN] if {*options.ways} - {"words"} else []), *options.ways]):
                case = Case(way, images, seed)
                if case in {Case(row["way"], int(row["images"]), int(row["seed"])) for row in read_rows(rows)}:
                    continue
                train(case, data, options)
                append_row(rows, COLUMNS, row := measure(case, options))
                print(*row, flush=True)


def draw_images(source: Path, images: int, seed: int, out: Path) -> Path:
    """Write a copy of the data set with fewer training images; the images themselves are linked."""
    folder = out / f"{images}_s{seed}"
    (folder / "splits").mkdir(parents=True, exist_ok=True)
    splits = {name: (source / f"splits/{name}.txt").read_text().split() for name in ("train", "dev", "test")}
    if images < len(splits["train"]):
        splits["train"] = random.Random(seed).sample(splits["train"], images)
    for name, ids in splits.items():
        (folder / f"splits/{name}.txt").write_text("\n".join(ids) + "\n")
    kept = {image for ids in splits.values() for image in ids}
    lines = (source / "captions.txt").read_text().splitlines()
    (folder / "captions.txt").write_text("".join(f"{line}\n" for line in lines if line.split("#")[0] in kept))
    if not (folder / "images").exists():
        (folder / "images").symlink_to((source / "images").resolve())
    return folder


def train(case: Case, data: Path, options: argparse.Namespace) -> None:
    """Train a model, or go on with it."""
    run, way = options.out / case.name, WAYS[case.way]
    batch = 128 if case.images > 1000 and case.way != "everything" else 32
    stores = {
        "words": [f"data.features={options.grids}"],
        FROZEN: [f"data.features={options.grids}", f"data.text_features={options.texts}"],
        "adapters": [f"data.features={options.grids}", "data.text_features=null"],
        "everything": [f"data.text_features={options.blocks}", "data.random_views=true"],
    }[case.way]
    if isinstance(way, str):
        recipe = way
    else:
        first, last = options.epochs
        phases = [{"epochs": first, "warmup_epochs": 0.5}, {"epochs": last, "learning_rate": options.rate / 10}]
        training = {**SHARED["training"], "phases": phases}
        optimizer = {**SHARED["optimizer"], "learning_rate": options.rate}
        tree = {"name": case.way, **way, **SHARED, "optimizer": optimizer, "training": training}
        tree["data"] = {"source": str(data)}
        if case.way == "everything":
            optimizer["multipliers"] = CAREFUL
            stores.append("data.captions_per_image=all")
        stores.append(f"start={options.out / Case(FROZEN, case.images, case.seed).name}")
        recipe = str(run.with_suffix(".yaml"))
        Path(recipe).write_text(yaml.safe_dump(tree))
    source = f"data.source=flickr8k:{data}"
    train_to_the_end(run, recipe, source, *stores, f"seed={case.seed}", f"training.batch_size={batch}")


def measure(case: Case, options: argparse.Namespace) -> tuple[object, ...]:
    """Read the test once, and return the row of a run."""
    run = options.out / case.name
    reached = validations(run)
    before = [record["rsum"] for record in read_records(run / METRICS).of("before")]
    best = max([0] * bool(before) + [*reached], key=lambda epoch: reached.get(epoch, *before))
    after = reached.get(best, *before)
    # Where no epoch is better, the best is the start, whose networks are frozen.
    tuned = case.way == "everything" and best > 0
    grids = [] if tuned else ["--features", str(options.grids)]
    texts = ["--text-features", str(options.blocks if tuned else options.texts)]
    said = openvse(
        "evaluate", str(run / "best"), "--on", f"flickr8k:{options.flickr8k}", *grids, *texts, "--json", "-q"
    )
    test = json.loads(said)["result"]["report"]["metrics"]
    known = {(row["way"], row["images"], row["seed"]): row for row in read_rows(options.out / ROWS)}
    start = known.get((FROZEN, str(case.images), str(case.seed)), {}) if before else {}
    tuning = (f"{options.rate:g}", "+".join(map(str, options.epochs))) if before else ("", "")
    return (
        *(case.way, case.images, case.seed, *tuning),
        *(f"{before[0]:.2f}" if before else "", f"{after:.2f}", best),
        start.get("test_rsum", ""),
        *(f"{test[name]:.2f}" for name in ("rsum", "i2t_r1", "t2i_r1")),
        *cost_of(run),
    )


def draw(rows: Sequence[dict[str, str]], target: Path) -> None:
    """Draw test RSUM by the number of images, and beside it what fine-tuning adds to its start; bars are spreads."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.2), layout="constrained")
    whole, gain = figure.subplots(1, 2)
    colours = dict(zip(WAYS, ("#8a8a8a", "#1f6f8b", "#d98324", "#8c2f39"), strict=True))
    for way in WAYS:
        reached: dict[float, list[float]] = {}
        gained: dict[float, list[float]] = {}
        for row in rows:
            if row["way"] == way:
                test = float(row["test_rsum"])
                reached.setdefault(int(row["images"]), []).append(test)
                if row["test_before"]:
                    gained.setdefault(int(row["images"]), []).append(test - float(row["test_before"]))
        draw_line(whole, reached, LABELS[way], colours[way])
        draw_line(gain, gained, LABELS[way], colours[way])
    gain.axhline(0, color="#444444", linewidth=0.8)
    for axes, title in ((whole, "test RSUM"), (gain, "gain over the start, test RSUM")):
        ticks = sorted({int(row["images"]) for row in rows})
        axes.set(xscale="log", xlabel="captioned images to learn from", ylabel=title)
        axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, loc="upper left")
    figure.savefig(target, dpi=150)


if __name__ == "__main__":
    main(sys.argv[1:])
