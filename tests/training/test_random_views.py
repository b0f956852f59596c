"""Training from images sees random views of them, whatever the task; stored features and validation see none."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from torch import Tensor

from openvse.batches.pairs import PixelImages, RandomView
from openvse.retrieval.training import RetrievalTask, open_retrieval
from openvse.tasks.recipes import parse_recipe
from openvse.tasks.run import run_recipe
from openvse.training.inputs import RunInputs
from openvse.training.records import Silent
from openvse_papers.vqa.answerer import question_batches
from openvse_papers.vqa.training import AnsweringTask, open_answering
from tests.conftest import PhotoMaker
from tests.tiny import read_metrics, tiny_tree, write_tiny_corpus
from tests.tiny_questions import answering_tree, write_tiny_questions

ENCODER = {"name": "efficientnet_lite0", "pretrained": False, "image_size": 32, "augmentation": "none"}
TASKS = {"retrieval": (tiny_tree, open_retrieval), "vqa": (answering_tree, open_answering)}


@pytest.fixture
def photos(make_photos: PhotoMaker) -> Path:
    """Return a folder of five images with captions, questions and answers; the last is for validation."""
    paths = make_photos(5)
    told = {"caption": "a red thing", "question": "what is it", "answer": "red"}
    lines = [{"file_name": path.name, "split": "train", **told} for path in paths]
    lines[-1]["split"] = "validation"
    (paths[0].parent / "metadata.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    return paths[0].parent


def opened(task: str, folder: Path, change: dict[str, Any] | None = None) -> AnsweringTask | RetrievalTask:
    """Open a task that decodes the images of a folder; the change goes into the recipe's data section."""
    tree_of, open_task = TASKS[task]
    tree = tree_of(folder, batch_size=4)
    tree["image"] = {**tree["image"], "encoder": ENCODER}
    kind = "question_folder" if task == "vqa" else "folder"
    tree["data"] = {"source": f"{kind}:{folder}", **(change or {})}
    return open_task(parse_recipe(tree), RunInputs(folder, Accelerator(cpu=True), Silent()))


def images_of(task: AnsweringTask | RetrievalTask, epoch: int) -> Tensor:
    """Return the images of an epoch's only batch, in the order of the set."""
    (batch,) = task.epoch(epoch, 0)
    assert batch.images is not None
    return batch.images.values


@pytest.mark.medium
@pytest.mark.parametrize("name", TASKS)
def test_each_epoch_sees_other_views(name: str, photos: Path) -> None:
    task = opened(name, photos)
    assert not torch.equal(images_of(task, 0), images_of(task, 1))
    assert torch.equal(images_of(task, 1), images_of(opened(name, photos), 1))
    assert task.model.image is not None
    loader = PixelImages(sorted(photos.glob("*.jpg"))[:4], task.model.image.encoder.backbone, augment=True)
    expected, _ = loader.load(np.arange(4), RandomView(seed=0, epoch=1))
    assert torch.equal(images_of(task, 1), expected.values)


@pytest.mark.parametrize("name", TASKS)
def test_without_random_views_training_sees_the_whole_images(name: str, photos: Path) -> None:
    task = opened(name, photos, {"random_views": False})
    assert torch.equal(images_of(task, 0), images_of(task, 1))
    assert task.model.image is not None
    loader = PixelImages(sorted(photos.glob("*.jpg"))[:4], task.model.image.encoder.backbone)
    assert torch.equal(images_of(task, 0), loader.load(np.arange(4))[0].values)


def test_questions_of_validation_are_about_whole_images(photos: Path) -> None:
    task = opened("vqa", photos)
    assert isinstance(task, AnsweringTask) and task.model.image is not None
    ((_, batch),) = question_batches(task._validation, 8)
    loader = PixelImages([photos / "photo_4.jpg"], task.model.image.encoder.backbone)
    assert batch.images is not None
    assert torch.equal(batch.images.values, loader.load(np.arange(1))[0].values)


@pytest.mark.medium
@pytest.mark.parametrize("name", TASKS)
def test_stored_features_have_no_views(name: str, tmp_path: Path) -> None:
    folder = (write_tiny_questions if name == "vqa" else write_tiny_corpus)(tmp_path / "data")
    tree = TASKS[name][0](folder)
    for wanted in (True, False):
        tree["data"]["random_views"] = wanted
        run_recipe(parse_recipe(tree), tmp_path / str(wanted))
    assert read_metrics(tmp_path / "True") == read_metrics(tmp_path / "False")
