"""What a GPU computes and how fast: agreement with the CPU, training, pooling, evaluation, indexing.

python benchmarks/gpu.py                                  # about four minutes, at most eight
python benchmarks/gpu.py --only steps --json table.json   # one section, also as JSON
python benchmarks/gpu.py --device cpu --share 0.02        # tries the script where there is no GPU

It reads no data and no network: features, pictures, sentences and weights are drawn. A row is printed as soon as it is
measured. A section that fails, or takes longer than its limit, is a row that says so. Training goes through
``run_recipe`` on stored features (CLIP: on JPEG files). The plain loop beside it has the same modules, and its one
batch is on the device.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import signal
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor

from _measure import environment, table
from everyday import PREPROCESSING, draw
from openvse.aggregators import GPO, Max
from openvse.conversion.convert import convert
from openvse.evaluation.report import evaluate_sets
from openvse.features.extract import FeatureStoreWriter
from openvse.functional import normalize, pad, position_mask
from openvse.indexing import build_index
from openvse.model.start import Start
from openvse.model.two_tower import TwoTower
from openvse.objectives.base import Objective
from openvse.pipeline import DECODERS, decoded
from openvse.retrieval.build import build_model, build_objective
from openvse.retrieval.recipe import RetrievalRecipe
from openvse.retrieval.training import open_retrieval
from openvse.similarities import SetMax
from openvse.tasks.load import load_as
from openvse.tasks.recipes import load_recipe
from openvse.tasks.run import run_recipe
from openvse.training.environment import source_commit
from openvse.training.inputs import RunInputs
from openvse.training.records import Silent, StepReport
from openvse.types import Batch, EmbeddingSet, Features, Inputs, Relevance, ScoredBatch

REGIONS, WIDTH, BATCH = 36, 2048, 128
SIDES = ("image", "text")
LINE = 20  # steps between two lines of the log
TIMED, TRACED = 3, 1  # lines; the first of those timed is not counted
STORED = "{name: precomputed, feature_dim: 2048}"
WHOLE = "{name: precomputed, feature_dim: 2048, augmentation: none, projection: none, global_vector: mean}"
UNCHANGED = "{name: precomputed, feature_dim: 2048, augmentation: none, projection: linear}"


@dataclass(frozen=True)
class Model:
    """A recipe whose training is timed, and what is set in it."""

    name: str
    recipe: str
    changes: tuple[str, ...]
    precisions: tuple[str, ...] = ("bf16",)


MODELS = (
    Model("VSE-infinity, BiGRU", "vse_infinity/coco_regions_bigru", (f"image.encoder={STORED}",), ("fp32", "bf16")),
    Model(
        "VSE-infinity, BERT", "vse_infinity/coco_regions_bert", (f"image.encoder={STORED}", "text.encoder.model=<bert>")
    ),
    Model(
        "VSE-infinity, BiGRU, a process that reads",
        "vse_infinity/coco_regions_bigru",
        (f"image.encoder={STORED}", "data.num_workers=1"),
    ),
    Model("PVSE", "pvse/coco_grids_bigru", (f"image.encoder={WHOLE}",)),
    Model("score attention", "score_attention/coco_regions_bigru", ()),
    Model("CLIP B/32, fine-tuned", "clip/coco", ("start=<clip>", "data.num_workers=<workers>")),
)


class LateError(Exception):
    """A section has taken longer than its limit."""


@contextmanager
def limited(what: str, seconds: int, to: Results) -> Iterator[None]:
    """Stop after some seconds, with a row that says so, so that the sections after it still have their time."""

    def stop(*_: object) -> None:
        raise LateError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    except LateError:
        to.add(what, f"stopped after its {seconds} s")
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@dataclass
class Results:
    """The rows of the table; each is printed when it is known."""

    rows: list[list[str]] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)
    started: float = field(default_factory=time.perf_counter)

    def add(self, what: str, value: str, goal: str = "") -> None:
        """Add a row, and print it with the seconds since the start."""
        self.rows.append([what, value, goal])
        print(f"{time.perf_counter() - self.started:6.1f} s  {what}: {value}", flush=True)

    @contextmanager
    def guarded(self, what: str) -> Iterator[None]:
        """Turn an error into a row, so that the others are still measured."""
        try:
            yield
        except LateError:  # ends the whole section
            raise
        except Exception as error:
            traceback.print_exc()
            self.add(what, f"failed: {type(error).__name__}: {str(error)[:200]}")


@dataclass(frozen=True)
class Place:
    """Where things are measured and kept, and at which share of their sizes."""

    device: torch.device
    folder: Path
    share: float

    def size(self, whole: int, least: int) -> int:
        """Return a share of a size."""
        return max(least, int(whole * self.share))

    @property
    def is_gpu(self) -> bool:
        """Whether it is a GPU, and none that tests emulate."""
        return self.device.type == "cuda" and torch.cuda.is_available()

    def wait(self) -> None:
        """Wait for what the device still computes."""
        if self.is_gpu:
            torch.cuda.synchronize()

    def seconds(self, function: Callable[[], object], repeats: int, warmup: int = 3) -> float:
        """Return the seconds of a call, of some that follow one another without waiting."""
        for _ in range(warmup):
            function()
        self.wait()
        started = time.perf_counter()
        for _ in range(repeats):
            function()
        self.wait()
        return (time.perf_counter() - started) / repeats


# What is drawn.


def captions(count: int, words: Sequence[str], seed: int = 0) -> list[str]:
    """Draw sentences of 7 to 17 words."""
    random = np.random.default_rng(seed)
    return [" ".join(random.choice(words, random.integers(7, 18))) for _ in range(count)]


def write_captions(folder: Path, count: int, words: Sequence[str]) -> Path:
    """Write a CSV with five sentences an image; the last twentieth is for validation."""
    folder.mkdir(parents=True, exist_ok=True)
    held_out, said = max(4, count // 20), iter(captions(5 * count, words))
    lines = ["file_name,caption,split"]
    for number in range(count):
        split = "train" if number < count - held_out else "validation"
        lines += [f"{number:06}.jpg,{next(said)},{split}" for _ in range(5)]
    path = folder / "captions.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def write_regions(folder: Path, count: int) -> None:
    """Draw a store of regions in float16."""
    generator = torch.Generator().manual_seed(0)
    with FeatureStoreWriter(folder / "features", fingerprint="drawn", dim=WIDTH) as writer:
        for number in range(count):
            writer.add(f"{number:06}.jpg", torch.randn(REGIONS, WIDTH, generator=generator))


def write_pictures(folder: Path, count: int) -> None:
    """Write JPEG files of 500 x 375, which differ: some that are drawn, with a comment of their own each."""
    drawn = [path.read_bytes() for path in draw(folder.with_name(f"{folder.name}_drawn"), (500, 375), min(count, 64))]
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        comment = f"{number:06}".encode()
        marker = b"\xff\xfe" + (len(comment) + 2).to_bytes(2, "big") + comment
        data = drawn[number % len(drawn)]
        (folder / f"{number:06}.jpg").write_bytes(data[:2] + marker + data[2:])


def write_bert(folder: Path, words: Sequence[str], small: bool) -> Path:
    """Write BERT-base with random weights, as the hub has it, and a tokenizer of some words."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    size = {"num_hidden_layers": 1, "hidden_size": 48, "intermediate_size": 96} if small else {}
    BertModel(BertConfig(**size)).save_pretrained(folder)
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "##s", *words]
    (folder / "vocab.txt").write_text("\n".join(pieces))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))
    return folder


def write_clip(folder: Path, words: Sequence[str], small: bool) -> Path:
    """Write CLIP B/32 with random weights, as the hub has it, and a tokenizer of letters."""
    from transformers import CLIPConfig, CLIPModel

    torch.manual_seed(0)
    letters = [*"abcdefghijklmnopqrstuvwxyz0123456789"]
    pieces = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    ends = {name: len(pieces) - 1 for name in ("eos_token_id", "pad_token_id")}
    text = {"bos_token_id": len(pieces) - 2, **ends}
    vision: dict[str, Any] = {"patch_size": 32}
    if small:
        text |= {"num_hidden_layers": 1, "hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 64}
        vision |= {"num_hidden_layers": 1, "hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 64}
    config = CLIPConfig(text_config=text, vision_config=vision)
    CLIPModel(config).save_pretrained(folder)
    (folder / "vocab.json").write_text(json.dumps({piece: place for place, piece in enumerate(pieces)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    special = {"bos_token": "<|startoftext|>", "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}
    kind = {"tokenizer_class": "CLIPTokenizer", "unk_token": "<|endoftext|>", "model_max_length": 77}
    (folder / "tokenizer_config.json").write_text(json.dumps(special | kind))
    (folder / "preprocessor_config.json").write_text(json.dumps(PREPROCESSING))
    return folder


# Training.


class Enough(Exception):  # noqa: N818
    """A run was watched for long enough."""


class Clock(Silent):
    """Remembers the speed at each line of the log, then records what the device does, and ends the run."""

    def __init__(self, place: Place) -> None:
        self.place, self.speeds, self.lines = place, list[float](), 0
        self.busy: float | None = None
        self.details: dict[str, Any] = {}
        self._profile: Any = None

    def step(self, report: StepReport) -> None:
        """Take the next reading; the log has just waited for the device."""
        self.lines += 1
        if self.lines <= TIMED:
            self.speeds.append(report.images_per_s)
            if self.lines < TIMED:
                return
            if not self.place.is_gpu:
                raise Enough
            self._record()
        elif self.lines == TIMED + TRACED:
            self.busy, self.details = self._end(TRACED * LINE)
            self._record(cpu=True)
        elif self.lines == TIMED + TRACED + 1:
            _, more = self._end(LINE)
            self.details |= {"calls_ms_a_step": more["calls_ms_a_step"], "operators": more["operators"]}
            raise Enough

    def _record(self, cpu: bool = False) -> None:
        from torch.profiler import ProfilerActivity, profile

        self._profile = profile(activities=[ProfilerActivity.CUDA, *([ProfilerActivity.CPU] if cpu else [])])
        self._profile.__enter__()

    def _end(self, steps: int) -> tuple[float, dict[str, Any]]:
        """Return the share of time in which a kernel ran, and what took the time."""
        self.place.wait()
        self._profile.__exit__(None, None, None)
        path = self.place.folder / "trace.json"
        self._profile.export_chrome_trace(str(path))
        events = [event for event in json.loads(path.read_text())["traceEvents"] if event.get("ph") == "X"]
        kernels = [event for event in events if event.get("cat") == "kernel"]
        spans = sorted((float(event["ts"]), float(event["ts"]) + float(event["dur"])) for event in kernels)
        busy, reached = 0.0, spans[0][0]
        for start, end in spans:
            busy += max(0.0, end - max(start, reached))
            reached = max(reached, end)
        details = {
            "kernels_a_step": len(kernels) / steps,
            "kernels_ms_a_step": busy / steps / 1000,
            "longest": _longest(kernels, steps),
            "calls_ms_a_step": _longest([each for each in events if each.get("cat") == "cuda_runtime"], steps),
            "operators": _longest([each for each in events if each.get("cat") == "cpu_op"], steps, 40),
        }
        return busy / (reached - spans[0][0]), details


def _longest(events: Sequence[dict[str, Any]], steps: int, most: int = 15) -> dict[str, list[float]]:
    """Return milliseconds and calls a step by name, of those names that take longest."""
    took, calls = Counter[str](), Counter[str]()
    for event in events:
        took[event["name"][:80]] += float(event["dur"]) / 1000 / steps
        calls[event["name"][:80]] += 1
    return {name: [round(ms, 3), calls[name] / steps] for name, ms in took.most_common(most)}


class PlainLoop:
    """Training steps as research code writes them, on one batch that is on the device."""

    def __init__(
        self, model: TwoTower, objective: Objective, batch: Batch, device: torch.device, precision: str
    ) -> None:
        self.model, self.objective = model.to(device).train(), objective.to(device)
        self.batch, self.device, self.precision = batch.to(device), device, precision
        self.learned = [p for p in (*model.parameters(), *objective.parameters()) if p.requires_grad]
        self.optimizer = torch.optim.AdamW(self.learned, lr=1e-4, fused=True)

    def loss(self) -> Tensor:
        """Return the loss of the batch."""
        low = self.precision == "bf16"
        with torch.autocast(self.device.type, torch.bfloat16) if low else nullcontext():
            images, texts = self.model(self.batch.images, self.batch.texts)
            scores = self.model.similarity(images, texts)
        scored = ScoredBatch(scores.float(), self.batch.positives, images, texts)
        loss: Tensor = self.objective(scored)["loss"]
        return loss

    def __call__(self) -> Tensor:
        """Take a step."""
        self.optimizer.zero_grad()
        loss = self.loss()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.learned, 2.0)
        self.optimizer.step()
        return loss.detach()


def recipe_of(model: Model, names: dict[str, str], precision: str, place: Place) -> RetrievalRecipe:
    """Return the recipe of a timed run."""
    stored = "clip" not in model.recipe
    changes = [
        *model.changes,
        f"data.source={names['stored' if stored else 'pictures']}/captions.csv",
        f"training.batch_size={place.size(BATCH, 8)}",
        f"training.device={place.device.type}",
        f"training.precision={precision if place.is_gpu else 'fp32'}",
        f"training.log_every={LINE}",
        "training.phases=[{epochs: 1}]",
        "training.plateau=null",
        *([f"data.features={names['stored']}/features"] if stored else []),
    ]
    for name, value in names.items():
        changes = [change.replace(f"<{name}>", value) for change in changes]
    if "bigru" in model.recipe:
        changes += ["text.encoder.min_count=1", "text.encoder.tokenizer=words"]
    if place.share < 1:
        changes += ["embed_dim=64"] if stored else []
    return load_recipe(model.recipe, changes)  # type: ignore[return-value]


def _pytorch_as_it_is() -> None:
    """Undo what training sets for the whole process."""
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = False, True
    torch.backends.cuda.enable_cudnn_sdp(True)


def time_training(model: Model, precision: str, names: dict[str, str], place: Place, to: Results) -> None:
    """Time a run beside the plain loop."""
    recipe, what = recipe_of(model, names, precision, place), f"{model.name}, {precision}"
    accelerator = Accelerator(cpu=place.device.type == "cpu")
    run = place.folder / "run"
    start = None
    if recipe.start is not None:
        start = Start("start", load_as(TwoTower, names["clip"]), Path(names["clip"]))
    task = open_retrieval(recipe, RunInputs(place.folder / "plain", accelerator, Silent(), start=start))
    batches = iter(task.epoch(0, 0))
    batch, began = next(batches), time.perf_counter()
    read = sum(1 for _, _ in zip(range(LINE), batches, strict=False))
    ahead = read * len(batch.images) / (time.perf_counter() - began)
    to.add(f"{what}: batches read ahead alone, pairs a second", f"{ahead:,.0f}")
    del batches
    _pytorch_as_it_is()
    loop = PlainLoop(task.model, task.objectives[-1], batch, place.device, precision)
    plain = len(batch.images) / place.seconds(loop, 2 * LINE if place.is_gpu else 2, 10)
    del task, loop
    if place.is_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    clock = Clock(place)
    with suppress(Enough):
        run_recipe(recipe, run, overwrite=True, watcher=clock)
    ours = float(np.median(clock.speeds[1:]))
    to.add(f"{what}: training, pairs a second", f"{ours:,.0f}")
    to.add(f"{what}: plain loop, pairs a second", f"{plain:,.0f}")
    to.add(f"{what}: training / plain loop", f"{ours / plain:.2f}")
    if clock.busy is not None:
        to.add(f"{what}: GPU busy", f"{clock.busy:.0%}", "90 %")
        memory = torch.cuda.max_memory_allocated() / 2**20
        to.add(f"{what}: peak memory, MiB", f"{memory:,.0f}")
        to.details[what] = clock.details


def gpo_beside_max(place: Place, names: dict[str, str], to: Results) -> None:
    """Time a whole step with GPO in both towers beside one with the maximum."""
    times = []
    for pool in ("gpo", "max"):
        model = replace(MODELS[0], changes=(*MODELS[0].changes, *(f"{side}.aggregator={pool}" for side in SIDES)))
        recipe = recipe_of(model, names, "bf16", place)
        accelerator = Accelerator(cpu=place.device.type == "cpu")
        task = open_retrieval(recipe, RunInputs(place.folder / "plain", accelerator, Silent()))
        loop = PlainLoop(task.model, task.objectives[-1], next(iter(task.epoch(0, 0))), place.device, "bf16")
        times.append(place.seconds(loop, 2 * LINE if place.is_gpu else 2))
    to.add("GPO / max, a step of VSE-infinity, bf16", f"{times[0] / times[1]:.2f}", "1.2")
    to.details["step with GPO, with max, ms"] = [1000 * each for each in times]


def steps(place: Place, names: dict[str, str], to: Results) -> None:
    """Time the training of each model."""
    with limited("GPO / max, a step", MODEL_S, to), to.guarded("GPO / max, a step"):
        gpo_beside_max(place, names, to)
    for model in MODELS:
        for precision in model.precisions if place.is_gpu else ("fp32",):
            what = f"{model.name}, {precision}"
            with limited(what, MODEL_S, to), to.guarded(what):
                time_training(model, precision, names, place, to)


# Agreement.


def agreement(place: Place, to: Results) -> None:
    """Compare the first loss, its gradients, and the loss after 50 steps with those of the CPU in fp32."""
    width, size, count = place.size(1024, 16), place.size(BATCH, 8), place.size(50, 2)
    words = [f"word{number}" for number in range(2000)]
    changes = [f"embed_dim={width}", "text.encoder.min_count=1", "text.encoder.tokenizer=words"]
    changes += ["text.encoder.size_augmentation=none", f"image.encoder={UNCHANGED}"]
    recipe: Any = load_recipe("vse_infinity/coco_regions_bigru", changes)
    said = captions(size, words)
    model = build_model(recipe, captions=said, seed=0)
    generator = torch.Generator().manual_seed(0)
    images = pad([torch.randn(REGIONS, WIDTH, generator=generator) for _ in range(size)])
    pairs = torch.arange(size)
    positives = torch.eye(size, dtype=torch.bool)
    batch = Batch(images, pad(model.text.encoder.tokenize(said)), positives, pairs, torch.stack([pairs, pairs], 1))

    def found(device: torch.device, precision: str) -> tuple[Tensor, Tensor, Tensor]:
        """Return the losses, the first gradients, and how far the weights have moved."""
        objective = build_objective(recipe, recipe.training.phases[0], model=model)
        loop = PlainLoop(copy.deepcopy(model), objective, batch, device, precision)
        loop.loss().backward()
        slope = torch.cat([p.grad.flatten().cpu() for p in loop.learned if p.grad is not None])
        losses = torch.stack([loop() for _ in range(count)]).cpu()
        weights = torch.cat([weight.detach().flatten().cpu() for weight in loop.model.parameters()])
        return (losses, slope, weights - torch.cat([weight.detach().flatten() for weight in model.parameters()]))

    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False  # for the GRU; PyTorch's default rounds its products to 10 bits
    try:
        here = found(torch.device("cpu"), "fp32")
        for precision, goal in (("fp32", "1e-4"), ("bf16", "")):
            with to.guarded(f"agreement, {precision}"):
                there = found(place.device, precision)
                first = float(here[0][0])
                apart = {
                    "loss": abs(float(there[0][0]) / first - 1),
                    "gradients": float((there[1] - here[1]).norm() / here[1].norm()),
                    f"losses of {count} steps": float((there[0] - here[0]).abs().max()) / first,
                    f"change of the weights in {count} steps": float((there[2] - here[2]).norm() / here[2].norm()),
                }
                for name, value in apart.items():
                    to.add(f"{name}, {precision}, relative difference from the CPU", f"{value:.1e}", goal)
    finally:
        torch.backends.cudnn.allow_tf32 = before


# Pooling, evaluation, index.


def pooling(place: Place, to: Results) -> None:
    """Time GPO beside the maximum, forward and backward."""
    width, size = place.size(1024, 16), place.size(BATCH, 8)
    for precision in (torch.float32, torch.bfloat16):
        local = torch.randn(size, REGIONS, width, device=place.device, dtype=precision, requires_grad=True)
        lengths = torch.full((size,), REGIONS)
        features = Features(local, position_mask(lengths, REGIONS).to(place.device))
        times = []
        for part in (Max(input_dim=width, embed_dim=width), GPO(input_dim=width, embed_dim=width)):
            part.to(place.device)

            step = partial(_pooled, part, features, precision)
            times.append(place.seconds(step, 50 if place.is_gpu else 3))
        name = str(precision).removeprefix("torch.")
        to.add(f"GPO / max, forward and backward, {name}", f"{times[1] / times[0]:.2f}", "1.2")
        to.details[f"pooling {name}, ms"] = [1000 * each for each in times]


def _pooled(part: Any, features: Features, precision: torch.dtype) -> None:
    with torch.autocast(features.local.device.type, torch.bfloat16, enabled=precision != torch.float32):
        vectors = part(features).vectors
    vectors.float().sum().backward()


def evaluation(place: Place, to: Results) -> None:
    """Time a report on images and five texts of each, from embeddings on the CPU, as validation makes it."""
    count, width = place.size(5000, 20), place.size(1024, 16)
    images, texts = (
        EmbeddingSet(normalize(torch.randn(number, 1, width)), torch.ones(number, 1, dtype=torch.bool))
        for number in (count, 5 * count)
    )
    pairs = np.arange(5 * count)
    relevance = Relevance(pairs // 5, pairs, count, 5 * count)
    for device in dict.fromkeys((place.device, torch.device("cpu"))):
        ranked = partial(evaluate_sets, images, texts, relevance, SetMax().to(device))
        took = [place.seconds(ranked, 1, 1), place.seconds(partial(ranked, resamples=0), 1, 0)]
        name = f"evaluation of {count:,} x {5 * count:,} x {width}, {device.type}"
        to.add(f"{name}, s", f"{took[0]:.2f}")
        to.add(f"{name}, without intervals, s", f"{took[1]:.2f}")


def index(place: Place, names: dict[str, str], to: Results) -> None:
    """Time the index of JPEG files by CLIP B/32 beside sentence-transformers with the same weights."""
    model = load_as(TwoTower, names["clip"], device=place.device)
    pictures = place.folder / "to_index"
    count = place.size(2048, 32)
    write_pictures(pictures, count)
    paths = [str(path) for path in sorted(pictures.iterdir())]
    backbone = model.image.encoder.backbone
    began = time.perf_counter()
    for _ in decoded([paths], lambda path: backbone.read(Path(path), exact=False), str):
        to.add(f"pictures read in {DECODERS} threads, a second", f"{count / (time.perf_counter() - began):,.0f}")
    build_index(model, [pictures], place.folder / "index")  # kernels are loaded
    began = time.perf_counter()
    build_index(model, [pictures], place.folder / "index2")
    to.add("index by CLIP B/32, pictures a second", f"{count / (time.perf_counter() - began):,.0f}")
    pixels = Inputs(torch.randn(place.size(256, 4), 3, 224, 224, device=place.device), None)
    with torch.inference_mode():
        rate = len(pixels) / place.seconds(lambda: model.image(pixels), 3)
    to.add("CLIP B/32 alone, pixels on the device, pictures a second", f"{rate:,.0f}")
    try:
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.base.modules.transformer import Transformer
    except ImportError as error:
        to.add("sentence-transformers, pictures a second", f"not run: {error}")
        return
    peer = SentenceTransformer(modules=[Transformer(names["clip_hub"])], device=place.device.type)
    peer.encode(paths[:64], batch_size=64, show_progress_bar=False)
    began = time.perf_counter()
    vectors = peer.encode(paths, batch_size=64, normalize_embeddings=True, show_progress_bar=False)
    to.add("sentence-transformers, pictures a second", f"{count / (time.perf_counter() - began):,.0f}")
    ours = normalize(torch.from_numpy(np.asarray(model_vectors(model, paths[:64]))))
    cosine = float((ours * torch.from_numpy(vectors[:64])).sum(dim=1).min())
    to.add("lowest cosine of the vectors of both", f"{cosine:.5f}")


def model_vectors(model: TwoTower, paths: Sequence[str]) -> np.ndarray:
    """Return the vectors of pictures by our model, read exactly."""
    pixels = torch.stack([model.image.encoder.backbone.read(Path(path)) for path in paths])
    with torch.inference_mode():
        return model.image(Inputs(pixels.to(model.device), None)).vectors.flatten(1).float().cpu().numpy()


def prepare(place: Place, chosen: set[str]) -> dict[str, str]:
    """Draw what the chosen sections read; return its places."""
    words, small = [f"word{number}" for number in range(8000)], place.share < 1
    names = {"workers": str(min(14, max(0, (os.cpu_count() or 1) - 2)))}
    count = max(64, int(3072 * place.share))
    if "steps" in chosen:
        names["stored"] = str(place.folder / "stored")
        write_captions(place.folder / "stored", count, words)
        write_regions(place.folder / "stored", count)
        names["bert"] = str(write_bert(place.folder / "bert", words, small))
        names["pictures"] = str(place.folder / "pictures")
        write_pictures(place.folder / "pictures", count)
        write_captions(place.folder / "pictures", count, ("a", "dog", "cat", "runs", "on", "red", "mat"))
    if chosen & {"steps", "index"}:
        names["clip_hub"] = str(write_clip(place.folder / "clip_hub", words, small))
        names["clip"] = str(place.folder / "clip")
        convert(names["clip_hub"], names["clip"])
    return names


SECTIONS = {"agreement": 40, "pooling": 30, "evaluation": 40, "index": 80}
"""The most seconds of each section. Together with 30 for what is drawn and ``MODEL_S`` for each of seven rows of steps,
and as much for GPO beside the maximum, they stay below eight minutes."""
MODEL_S = 30
FREE = nullcontext()  # steps, whose rows have limits of their own


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--share", type=float, default=1.0, help="of the sizes, to try the script")
    parser.add_argument(
        "--only", nargs="+", choices=(*SECTIONS, "steps"), default=(*SECTIONS, "steps"), metavar="SECTION"
    )
    parser.add_argument("--json", type=Path, help="a file for the rows, and for what took the time of a step")
    given = parser.parse_args()
    device = torch.device(given.device)
    if device.type == "cuda" and not torch.accelerator.is_available():
        print("not run: PyTorch finds no GPU here (torch.accelerator.is_available() is False)")
        return
    to, chosen = Results(), set(given.only)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
    print(f"{name}: {environment()}, commit {source_commit()}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        place = Place(device, Path(folder), given.share)
        names: dict[str, str] = {}
        with limited("drawing", 30, to), to.guarded("drawing"):
            names = prepare(place, chosen)
        for section, run in (
            ("agreement", lambda: agreement(place, to)),
            ("pooling", lambda: pooling(place, to)),
            ("evaluation", lambda: evaluation(place, to)),
            ("index", lambda: index(place, names, to)),
            ("steps", lambda: steps(place, names, to)),
        ):
            if section in chosen:
                with (
                    to.guarded(section),
                    limited(section, SECTIONS[section], to) if section in SECTIONS else nullcontext(),
                ):
                    run()
                if given.json is not None:
                    facts = {"device": name, "environment": environment(), "commit": source_commit()}
                    found = {**facts, "rows": to.rows, "details": to.details}
                    given.json.write_text(json.dumps(found, indent=1))
    print(f"\n{table(['what', name, 'goal'], to.rows)}")


if __name__ == "__main__":
    main()
