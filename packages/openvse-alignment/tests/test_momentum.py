"""The moving average and its queues equal plain loops, survive a kill, and leave the model that is saved alone."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import load_file
from torch import Tensor

import openvse
from openvse.errors import RecipeError
from openvse.retrieval.training import RetrievalTask
from openvse.tasks import task_kind
from openvse.tasks.recipes import load_recipe
from openvse.tasks.run import run_recipe
from openvse.training.inputs import RunInputs
from openvse.training.records import Silent, StepReport
from openvse.types import Batch, EmbeddingSet, Relevance
from openvse_alignment.momentum import Unified, groups
from openvse_testing import check_part

SMALL = (
    *("embed_dim=16", "text.encoder.word_dim=8", "image.encoder.pretrained=false", "image.encoder.image_size=64"),
    *("training.batch_size=4", "training.device=cpu", "training.threads=1", "training.log_every=1"),
)


def test_the_criterion_and_the_task_keep_their_contracts() -> None:
    check_part("criterion", "unified", options={"positive": 0.5})
    check_part("task", "momentum")


def test_unified_is_its_formula() -> None:
    scores = torch.tensor([[0.4, 0.7, 0.1], [0.6, -0.2, 0.3]], dtype=torch.float64)
    negatives = torch.tensor([[False, True, True], [True, False, False]])
    loss = Unified(scale=9.0, positive=0.5).pair_loss(torch.tensor([0.4, -0.2]).double(), scores, negatives)
    expected = [np.log(1 + np.exp(9 * 0.2) + np.exp(9 * -0.4)) / 9 - 0.5 * np.log(1.4), np.log(1 + np.exp(9 * 0.1)) / 9]
    torch.testing.assert_close(loss, torch.tensor(expected))


def test_groups_are_linked_by_shared_texts() -> None:
    pairs = [(0, 0), (1, 1), (1, 2), (2, 3), (3, 2), (3, 3), (4, 4)]
    images, texts = np.array(pairs).T
    assert groups(Relevance(images, texts, 5, 5)).tolist() == [0, 1, 1, 1, 4]


class Looped:
    """The average and the queues as lists, and the loss as loops over pairs and negatives."""

    def __init__(self, task: RetrievalTask, decay: float, queue: int) -> None:
        self.model, self.decay, self.queue = copy.deepcopy(task.model), decay, queue
        self.average = copy.deepcopy(self.model)
        self.images: list[tuple[EmbeddingSet, int]] = []
        self.texts: list[tuple[EmbeddingSet, int]] = []

    def loss(self, batch: Batch, numbers: list[int]) -> Tensor:
        """Return the loss of a batch whose images, and the image of each caption, have these numbers."""
        with torch.no_grad():
            for mean, weight in zip(self.average.parameters(), self.model.parameters(), strict=True):
                mean.copy_(self.decay * mean + (1 - self.decay) * weight)
            images, texts = self.average(batch.images, batch.texts)
        own = self.model(batch.images, batch.texts)
        of_texts = [numbers[int(batch.positives[:, text].nonzero()[0])] for text in range(len(texts))]
        losses = []
        for image, text in batch.positives.nonzero().tolist():
            v, t = own[0][image : image + 1], own[1][text : text + 1]
            far = [self.model.similarity(v, each) for each, of in self.texts if of != numbers[image]]
            losses.append(self.contrast(self.model.similarity(v, texts[text : text + 1]), far))
            far = [self.model.similarity(each, t) for each, of in self.images if of != numbers[image]]
            losses.append(self.contrast(self.model.similarity(images[image : image + 1], t), far))
        self.images += [(images[row : row + 1], number) for row, number in enumerate(numbers)]
        self.texts += [(texts[row : row + 1], number) for row, number in enumerate(of_texts)]
        self.images, self.texts = self.images[-self.queue :], self.texts[-self.queue :]
        return sum(losses) / (len(losses) / 2)  # type: ignore[return-value]

    def contrast(self, positive: Tensor, negatives: list[Tensor]) -> Tensor:
        """Return InfoNCE at 0.05."""
        total = (positive / 0.05).exp() + sum((each / 0.05).exp() for each in negatives)
        return total.log().squeeze() - positive.squeeze() / 0.05


def opened(recipe: str, album: Path, folder: Path, *options: str) -> RetrievalTask:
    """Return a task without random drops."""
    plain = (f"{part}=none" for part in ("image.encoder.augmentation", "text.encoder.size_augmentation"))
    words = (f"data.source={album}", "task=momentum", *SMALL, *plain, *options)
    task = task_kind("momentum").open(load_recipe(recipe, words), RunInputs(folder, Accelerator(cpu=True), Silent()))
    assert isinstance(task, RetrievalTask)
    return task


def double(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


@pytest.mark.medium
@pytest.mark.parametrize("recipe", ["vse_infinity/folder_cpu", "chan/folder_cpu"])
def test_twelve_steps_equal_loops(recipe: str, album: Path, tmp_path: Path) -> None:
    """On ragged captions, several of an image and one of two images, with a queue shorter than an epoch."""
    words = ("momentum={queue: 7, decay: 0.9, weight: 0.5}", "image.encoder.projection=linear")
    task = opened(recipe, album, tmp_path, *words)
    task.model.double().train()
    looped = Looped(task, 0.9, 7)
    models = task.model, looped.model
    ours, theirs = ([weight for weight in each.parameters() if weight.requires_grad] for each in models)
    batches = [batch.map(double) for epoch in range(2) for batch in task.epoch(epoch, 0)]
    assert len(batches) == 12 and any(bool((batch.positives.sum(dim=0) > 1).any()) for batch in batches)
    for step, batch in enumerate(batches):
        term = task.step(task.model, batch, 1).terms["momentum"]
        # The sixth image for training shares a caption with the fifth.
        expected = 0.5 * looped.loss(batch, [key - (key == 4) for key in batch.image_keys.tolist()])
        torch.testing.assert_close(term, expected, rtol=1e-6, atol=1e-6)
        assert (term.item() > 0.01) is (step > 0)  # the first queue is empty
        sides = ((term, ours), (expected, theirs))
        found = [torch.autograd.grad(loss, weights, allow_unused=True) for loss, weights in sides]
        for one, other, *weights in zip(*found, ours, theirs, strict=True):
            if one is not None:
                torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)
                for weight in weights:
                    weight.data -= 0.1 * one


class StopsAt(Silent):
    """Is stopped by Ctrl-C after a step."""

    def __init__(self, global_step: int) -> None:
        self.at = global_step

    def step(self, report: StepReport) -> None:
        """Stop at the step."""
        if report.global_step == self.at:
            raise KeyboardInterrupt


@pytest.mark.medium
@pytest.mark.parametrize("recipe", ["vse_infinity/folder_cpu", "chan/folder_cpu"])
def test_a_stopped_run_ends_at_the_same_bits(recipe: str, album: Path, tmp_path: Path) -> None:
    """With drops, in a phase that freezes some weights and behind it, where the second phase is added later."""
    first, second = "{epochs: 1, frozen: [text.encoder]}", "{epochs: 2, objective: {ranking.miner: all}}"
    words = (f"data.source={album}", "task=momentum", "momentum.queue=9", *SMALL, "training.checkpoint_every_s=1e-6")
    both = load_recipe(recipe, (*words, f"training.phases=[{first}, {second}]"))
    run_recipe(both, tmp_path / "whole")
    for step, planned in ((2, load_recipe(recipe, (*words, f"training.phases=[{first}]"))), (9, both)):
        with pytest.raises(KeyboardInterrupt):
            run_recipe(planned, tmp_path / "stopped", watcher=StopsAt(step), resume=step > 2)
    run_recipe(both, tmp_path / "stopped", resume=True)
    one, other = (torch.load(tmp_path / name / "last.pt", weights_only=True) for name in ("whole", "stopped"))
    terms = [state["objectives"]["1.terms.momentum._extra_state"] for state in (one, other)]
    assert terms[0].keys() == {"weights", "images", "texts"}
    assert {"image.encoder.projection.linear.weight", "text.encoder.words.weight"} <= terms[0]["weights"].keys()
    assert not any("backbone" in name and "weight" in name for name in terms[0]["weights"])  # frozen: the model's own
    for key in ("model", "objectives"):
        torch.testing.assert_close(one[key], other[key], rtol=0, atol=0)


@pytest.mark.medium
def test_the_saved_model_is_the_one_that_trains(album: Path, tmp_path: Path) -> None:
    """Without a queue, a run equals the wrapped task's bit for bit. With one, its model has the same names."""
    words, runs = (*SMALL, "training.phases=[{epochs: 1}]"), {}
    for name, more in (
        ("plain", []),
        ("none", ["task=momentum", "momentum={queue: 0, decay: 0.3}"]),
        ("queue", ["task=momentum"]),
    ):
        run = openvse.train("vse_infinity/folder_cpu", album, tmp_path / name, [*words, *more])
        runs[name] = load_file(run.best / "model.safetensors")
        assert openvse.load(run.best).task == "retrieval"
    torch.testing.assert_close(runs["plain"], runs["none"], rtol=0, atol=0)
    assert runs["plain"].keys() == runs["queue"].keys()
    assert any(not weight.equal(runs["queue"][name]) for name, weight in runs["plain"].items())


def test_what_does_not_fit_is_refused(album: Path, tmp_path: Path) -> None:
    for word, message in (
        ("objective.momentum={name: contrast, miner: all, criterion: hinge}", "name it otherwise"),
        ("training.graphs=on", "set it to off"),
        ("momentum.criterion=hings", "hinge"),
        ("momentum.decay=1.5", "less than or equal to 1"),
    ):
        with pytest.raises(RecipeError, match=message):
            opened("vse_infinity/folder_cpu", album, tmp_path, word)
