"""Steps that are captured are those of a CPU: on an emulated device, or on a GPU where there is one."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch

import openvse_cuda_graphs

ROOT = Path(__file__).parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks"), str(Path(__file__).parent)]

from emulated_graph import Graph, emulated_graphs  # noqa: E402

from gpu import write_bert  # noqa: E402
from openvse.specs import RunRecipe  # noqa: E402
from openvse.specs.recipe import AverageSpec  # noqa: E402
from openvse.tasks.run import run_recipe  # noqa: E402
from openvse.training import trainer  # noqa: E402
from tests.device.small_recipes import small  # noqa: E402
from tests.naming import names, refusal  # noqa: E402
from tests.tiny import Recorder, Stop, write_tiny_corpus  # noqa: E402

HERE = EntryPoint("steps", "openvse_cuda_graphs:captured_steps", "openvse.plugins")
ON_GPU = torch.cuda.is_available()
CAPTURED = ("vse_infinity/coco_regions_bigru", "pvse/coco_grids_bigru", "mv_vse/coco_regions_bigru")
CAPTURED += ("vse_2ad/coco_regions_bert", "vse_0/coco_1crop_gru", "order/coco_10crop_gru")
CAPTURED += ("fs_pool/flickr8k_grids_cpu", "gem_pool/flickr8k_grids_cpu", "k_max_pool/flickr8k_grids")
CAPTURED += ("gpo_adopt/flickr8k_crops_minilm_cpu", "pcmepp/flickr8k_crops_minilm_cpu")
AS_EVER = {"esa/coco_regions_bigru": "several captions", "devise/mrw_frames": "image encoder"}
AS_EVER |= {"hgr/clips_cpu": "text encoder", "score_attention/flickr8k_grids_cpu": "pairs that have a gradient"}


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Let the package be installed, on a GPU or an emulated device, and count graphs, replays and waits."""
    counts, capture = Counter[str](), openvse_cuda_graphs.CapturedSteps._capture

    def counting(steps: openvse_cuda_graphs.CapturedSteps, *given: object) -> openvse_cuda_graphs.Captured:
        captured = capture(steps, *given)
        counts["graphs"] += 1
        return replace(captured, replay=lambda: counts.update(["replays"]) or captured.replay())

    monkeypatch.setattr(openvse_cuda_graphs.CapturedSteps, "_capture", counting)
    monkeypatch.setattr(trainer, "installed", lambda _: {"steps": HERE})
    with contextlib.nullcontext() if ON_GPU else emulated_graphs() as waits:
        train = trainer.Trainer._train_epoch

        def epoch(of: trainer.Trainer, log: object) -> None:
            with contextlib.nullcontext() if waits is None else waits.counted():
                train(of, log)
            counts["waits"] = 0 if waits is None else waits.counts.total()

        monkeypatch.setattr(trainer.Trainer, "_train_epoch", epoch)
        yield counts


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a BERT without dropout, whose draws depend on padding."""
    folder = write_bert(tmp_path_factory.mktemp("bert") / "bert", ["a", "red", "dog"], small=True)
    config = folder / "config.json"
    config.write_text(config.read_text().replace('dropout_prob": 0.1', 'dropout_prob": 0.0'))
    return str(folder)


def captured(name: str, corpus: Path, bert: str, device: str) -> RunRecipe:
    """Return a small recipe with graphs, a rate that changes with each step, and a mean of the weights."""
    recipe = small(name, corpus, bert, device)
    phase = recipe.training.phases[0].model_copy(update={"warmup_epochs": 1})
    changes = {"graphs": "on", "phases": (phase,), "batch_size": 4, "log_every": 1, "average": AverageSpec()}
    return recipe.model_copy(update={"training": recipe.training.model_copy(update=changes)})


@pytest.mark.parametrize("name", CAPTURED)
def test_replayed_steps_are_those_of_a_cpu(name: str, bert: str, tmp_path: Path, counted: Counter[str]) -> None:
    """The first batch of a shape has no graph, and nothing waits but the log."""
    corpus, losses, weights = write_tiny_corpus(tmp_path / "tiny", train=32, validation=4), [], []
    for device in ("cpu", "cuda"):
        watcher = Recorder()
        run_recipe(captured(name, corpus, bert, device), tmp_path / device, watcher=watcher)
        losses.append([step.terms["loss"] for step in watcher.steps])
        state = torch.load(tmp_path / device / "last.pt", weights_only=False, map_location="cpu")
        weights.append([*state["model"].values(), *state["average"]["means"].values()])
    assert losses[1] == pytest.approx(losses[0], rel=2e-3 if ON_GPU else 1e-4)
    # Adam divides a gradient by its size, also one that is only rounding.
    apart = max((one - other).abs().max() for one, other in zip(*weights, strict=True))
    assert ON_GPU or apart < 5e-4, apart
    assert (counted["graphs"], counted["replays"]) == (1, 15)
    assert counted["waits"] <= len(losses[1]) == 16


@pytest.mark.parametrize("name", AS_EVER)
def test_what_has_no_graph_says_so_once(name: str, bert: str, tmp_path: Path, counted: Counter[str]) -> None:
    corpus, watcher = write_tiny_corpus(tmp_path / "tiny", train=32, validation=4), Recorder(stop=3)
    refusal(Stop, run_recipe, captured(name, corpus, bert, "cuda"), tmp_path / "run", watcher=watcher)
    (said,) = (note for note in watcher.notes if note.startswith("training.graphs"))
    assert names(said, AS_EVER[name]) and not counted["graphs"]


def test_a_run_resumes_and_a_batch_with_an_image_twice_has_no_graph(
    bert: str, tmp_path: Path, counted: Counter[str]
) -> None:
    """Three of the twelve batches have one."""
    recipe = captured(CAPTURED[0], write_tiny_corpus(tmp_path / "tiny", train=24, validation=4), bert, "cuda")
    whole, first, rest = Recorder(), Recorder(stop=6), Recorder()
    often = recipe.model_copy(update={"training": recipe.training.model_copy(update={"checkpoint_every_s": 1e-6})})
    run_recipe(often, tmp_path / "whole", watcher=whole)
    assert (counted["graphs"], counted["replays"]) == (1, 8)
    refusal(Stop, run_recipe, often, tmp_path / "cut", watcher=first)
    run_recipe(often, tmp_path / "cut", resume=True, watcher=rest)
    losses = [step.terms["loss"] for step in (*first.steps[:5], *rest.steps)]
    assert losses == pytest.approx([step.terms["loss"] for step in whole.steps], rel=1e-3 if ON_GPU else 1e-5)


@pytest.mark.skipif(ON_GPU, reason="a GPU is not usable after a refused capture")
@pytest.mark.parametrize(
    "asked",
    [
        lambda x: x.sum().item(),
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: x.cpu(),
        lambda x: x + torch.ones(3).to("cuda"),
        lambda x: torch.arange(3),
        lambda x: x + torch.rand(()),
    ],
)
def test_the_emulated_device_refuses_what_a_capture_refuses(asked: Callable[[torch.Tensor], object]) -> None:
    with emulated_graphs():
        x = torch.ones(3).to("cuda")
        asked(x)
        with pytest.raises(RuntimeError, match=r"captur|again"), torch.cuda.graph(torch.cuda.CUDAGraph()):
            asked(x)
    assert Graph.now() is None
