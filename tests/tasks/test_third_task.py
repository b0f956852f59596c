"""A task of one's own: its room and one registration; loop, folder, load and evaluate come with it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.utils.data import Dataset

import openvse
from openvse.assembly.parts import build_aggregator, build_text_encoder, describe_tower, joint_width
from openvse.batches.pairs import BatchKey
from openvse.datasets import open_corpus
from openvse.errors import ModelError, RecipeError
from openvse.functional import pad
from openvse.model.base import Model
from openvse.model.two_tower import Tower, TwoTower, evaluating
from openvse.specs import RunRecipe
from openvse.specs.model import ModelSpec
from openvse.tasks import TASKS, task_kind
from openvse.tasks.load import load_as
from openvse.tasks.recipes import parse_recipe
from openvse.tasks.run import run_recipe
from openvse.training.inputs import RunInputs, data_of, source_of
from openvse.training.kind import Request, TaskKind
from openvse.training.task import Step, Task
from openvse.types import Inputs
from tests.naming import names, refusal
from tests.tiny import read_metrics, tiny_tree, write_tiny_corpus


class CountingSpec(ModelSpec):
    """A sentence's length in words, from its embedding."""

    image: None = None


class CountingRecipe(CountingSpec, RunRecipe):
    task: Literal["counting"] = "counting"


class Counter(Model):
    task: ClassVar[str] = "counting"
    purpose: ClassVar[str] = "counts words"

    def __init__(self, text: Tower[Any], spec: CountingSpec | None = None) -> None:
        super().__init__(spec)
        self.text = text
        self.head = nn.Linear(joint_width(text.encoder), 1)

    def forward(self, texts: Inputs) -> Tensor:
        return self.head(self.text(texts).vectors[:, 0]).squeeze(1)

    def describe(self) -> CountingSpec:
        tower = describe_tower("text", self.text.encoder, self.text.aggregator)
        return CountingSpec(embed_dim=joint_width(self.text.encoder), text=tower)

    def save_assets(self, folder: Path) -> None:
        self.text.encoder.save_assets(folder / "text")


def build(spec: CountingSpec, captions: Sequence[str] = (), assets: Path | None = None) -> Counter:
    torch.manual_seed(0)
    encoder = build_text_encoder(spec.text, spec.embed_dim, captions, assets)
    return Counter(
        Tower(encoder, build_aggregator(spec.text, spec.embed_dim, "text", encoder)), CountingSpec.of(dict(spec))
    )


@dataclass
class Sentences:
    texts: Inputs
    lengths: Tensor
    description: str = "sentences"

    def to(self, device: torch.device) -> Sentences:
        return Sentences(self.texts.to(device), self.lengths.to(device))


class SentenceDataset(Dataset[Sentences]):
    def __init__(self, tokens: Sequence[Tensor]) -> None:
        self.tokens = tokens

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, key: BatchKey) -> Sentences:
        chosen = [self.tokens[number] for number in key.pairs]
        return Sentences(pad(chosen), torch.tensor([float(len(ids)) for ids in chosen]))


class CountingTask(Task[Sentences]):
    metric: ClassVar[str] = "minus_error"
    unit: ClassVar[str] = "sentences"
    collapse: ClassVar[str] = "it counts nothing"

    def __init__(
        self, recipe: CountingRecipe, model: Counter, data: Mapping[str, Any], accelerator: Accelerator
    ) -> None:
        self.corpus = open_corpus(source_of(recipe), require_images=False)
        tokens = model.text.encoder.tokenize(self.corpus.split("train").captions)
        super().__init__(recipe, model, (), SentenceDataset(tokens), data, accelerator)

    def step(self, wrapped: nn.Module, batch: Sentences, phase: int) -> Step:
        loss = (wrapped(batch.texts) - batch.lengths).square().mean()
        return Step({"loss": loss}, batch.description, at_collapse=lambda: torch.zeros(()), diagnostics=dict)

    def validate(self) -> dict[str, float]:
        tokens = self.model.text.encoder.tokenize(self.corpus.split("validation").captions)
        with evaluating(self.model), torch.inference_mode():
            error = self.model(pad(tokens)) - torch.tensor([float(len(ids)) for ids in tokens])
        return {"minus_error": 100 - float(error.abs().mean())}

    def summary(self, metrics: Mapping[str, float]) -> str:
        return f"error {100 - metrics['minus_error']:.2f}"


@dataclass(frozen=True)
class Counted:
    error: float
    warnings: tuple[str, ...] = ()

    def to_markdown(self) -> str:
        return f"mean error {self.error:.2f}"

    def to_json(self) -> str:
        return json.dumps({"error": self.error})

    def write(self, folder: Path) -> list[Path]:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "report.json").write_text(json.dumps({"error": self.error}))
        return [folder / "report.json"]


class Counting(TaskKind):
    recipe: ClassVar[type[RunRecipe]] = CountingRecipe
    spec: ClassVar[type[ModelSpec]] = CountingSpec

    def build(self, tree: Mapping[str, Any], folder: Path) -> Counter:
        return build(CountingSpec.of(tree), assets=folder)

    def open(self, recipe: CountingRecipe, inputs: RunInputs) -> CountingTask:
        corpus = open_corpus(source_of(recipe), require_images=False)
        model = build(recipe, corpus.split("train").captions)
        return CountingTask(recipe, model, data_of(corpus), inputs.accelerator)

    def evaluate(self, models: Sequence[Counter], request: Request) -> Counted:
        captions = open_corpus(request.data, require_images=False).split(request.split).captions
        tokens = models[0].text.encoder.tokenize(captions)
        with torch.inference_mode():
            error = models[0](pad(tokens)) - torch.tensor([float(len(ids)) for ids in tokens])
        return Counted(float(error.abs().mean()))


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the task for one test."""
    monkeypatch.setattr(TASKS, "_parts", dict(TASKS._parts))
    TASKS.add("counting", Counting)


def recipe_of(folder: Path) -> dict[str, Any]:
    tree = tiny_tree(folder)
    training = {**tree["training"], "phases": [{"epochs": 2}]}
    kept = {key: tree[key] for key in ("embed_dim", "text", "optimizer")}
    return {
        "task": "counting",
        "name": "tiny",
        **kept,
        "data": {"source": tree["data"]["source"]},
        "training": training,
    }


@pytest.mark.medium
def test_it_trains_resumes_loads_and_evaluates(counting: None, tmp_path: Path) -> None:
    corpus = write_tiny_corpus(tmp_path / "data")
    recipe = parse_recipe(recipe_of(corpus))
    best = run_recipe(recipe, tmp_path / "run").best
    assert [r["kind"] for r in read_metrics(tmp_path / "run")].count("validation") == 2
    assert run_recipe(recipe, tmp_path / "run", resume=True).progress.epoch == 2
    model = openvse.load(best)
    assert isinstance(model, Counter)
    assert model.provenance["data"]["splits"] == {"train": 32, "validation": 8}
    assert Counter(model.text).spec == model.spec
    kind = task_kind(model.task)
    counted = kind.evaluate([model], Request(str(corpus / "tiny.csv"), "validation"))
    assert isinstance(counted, Counted)
    assert names(refusal(ModelError, load_as, TwoTower, best), "best")


@pytest.mark.medium
def test_without_its_plugin_the_task_is_named(counting: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = write_tiny_corpus(tmp_path / "data")
    best = run_recipe(parse_recipe(recipe_of(corpus)), tmp_path / "run").best
    monkeypatch.setattr(TASKS, "_parts", {name: TASKS.get(name) for name in ("retrieval", "vqa")})
    assert names(refusal(ModelError, openvse.load, best), "'counting'", "--plugin")
    assert names(refusal(RecipeError, lambda: parse_recipe(recipe_of(corpus))), "'counting'")
