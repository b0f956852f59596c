"""Batches of questions: images once, targets of the batch, shares of processes, and what cannot be read."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from openvse.backbones import EfficientNetLite0
from openvse.batches.pairs import BatchKey, PixelImages, RandomView, TokenTable, image_loader
from openvse.errors import DataError
from openvse_papers.vqa.answerer import QuestionDataset, question_batches
from openvse_papers.vqa.answers import AnswerVocabulary, Question, QuestionSet
from tests.conftest import PhotoMaker

ANSWERS = ("red", "2", "blue")


def asked(paths: list[Path]) -> QuestionSet:
    """Two questions about each image, the second ones behind all first ones."""
    questions = [
        Question(f"{path.stem}#{number}", path.name, path, f"question {number}", [ANSWERS[position % 3]])
        for number in range(2)
        for position, path in enumerate(paths)
    ]
    return QuestionSet("toy", tuple(questions))


def dataset(questions: QuestionSet, *, with_images: bool = True, augment: bool = False) -> QuestionDataset:
    backbone = EfficientNetLite0(pretrained=False, image_size=32)
    images = image_loader(backbone, questions.as_corpus(), None, augment=augment) if with_images else None
    tokens = TokenTable([torch.arange(1, 3 + number) for number in range(len(questions))])
    return QuestionDataset(questions, images, tokens, AnswerVocabulary(ANSWERS, votes=False))


def test_an_image_stands_in_a_batch_once(make_photos: PhotoMaker) -> None:
    batch = dataset(asked(make_photos(3)))[BatchKey(np.array([3, 0, 2]))]
    assert batch.images is not None and len(batch.images) == 2  # of questions 0 and 3, and of 2
    assert batch.image_of.tolist() == [0, 0, 1]
    assert batch.questions.mask is not None
    assert batch.questions.mask.sum(dim=1).tolist() == [5, 2, 4]  # in the order of the key
    assert batch.targets.tolist() == [[1, 0, 0], [1, 0, 0], [0, 0, 1]]
    assert batch.divisor == 3
    assert batch.description == "3 questions: photo_0#1 to photo_2#0"
    assert torch.equal(batch.to("cpu").targets, batch.targets)


@pytest.mark.medium
def test_training_sees_the_random_view_that_the_key_asks_for(make_photos: PhotoMaker) -> None:
    questions, view = asked(make_photos(3)), RandomView(seed=1, epoch=2)

    def pixels(view: RandomView | None, *, augment: bool) -> Tensor:
        images = dataset(questions, augment=augment)[BatchKey(np.array([2, 3, 5]), view)].images
        assert images is not None
        return images.values

    backbone = EfficientNetLite0(pretrained=False, image_size=32)
    expected = PixelImages(questions.as_corpus().image_paths, backbone, augment=True).load(np.array([0, 2]), view)
    assert torch.equal(pixels(view, augment=True), expected[0].values)
    whole = pixels(None, augment=False)
    assert torch.equal(pixels(view, augment=False), whole) and torch.equal(pixels(None, augment=True), whole)
    assert not torch.equal(pixels(view, augment=True), whole)


def test_without_images_there_are_none(make_photos: PhotoMaker) -> None:
    batch = dataset(asked(make_photos(2)), with_images=False)[BatchKey(np.arange(4))]
    assert batch.images is None and batch.image_of.tolist() == [0, 0, 0, 0]


def test_processes_share_the_images_and_their_mean_is_that_of_the_batch(make_photos: PhotoMaker) -> None:
    whole = dataset(asked(make_photos(3)))
    key = np.arange(6)
    parts = [whole[BatchKey(key, rank=rank, num_processes=2)] for rank in range(2)]
    assert [len(part.questions) for part in parts] == [4, 2]
    # Data parallelism takes the mean over the processes of each one's sum by its divisor.
    mean = sum(part.targets[:, 0].sum() / part.divisor for part in parts) / 2
    assert mean == pytest.approx(float(whole[BatchKey(key)].targets[:, 0].mean()))
    with pytest.raises(DataError, match="6.*4"):
        _ = whole[BatchKey(key, rank=3, num_processes=4)]


def test_unreadable_images_take_their_questions_along(
    make_photos: PhotoMaker, caplog: pytest.LogCaptureFixture
) -> None:
    photos = make_photos(3)
    photos[1].write_bytes(b"no image")
    found = list(question_batches(dataset(asked(photos)), batch_size=2))
    assert [positions.tolist() for positions, _ in found] == [[0, 3], [2, 5]]  # by image
    assert all(len(batch.questions) == len(positions) for positions, batch in found)
    assert "photo_1.jpg" in caplog.text
    (_, mixed), *_ = list(question_batches(dataset(asked(photos)), batch_size=6))
    assert mixed.image_of.tolist() == [0, 0, 1, 1] and mixed.divisor == 4


def test_frequencies_are_the_mean_of_the_targets(make_photos: PhotoMaker) -> None:
    several = dataset(asked(make_photos(4)))
    expected = several[BatchKey(np.arange(8))].targets.mean(dim=0)
    for block_size in (3, 100):
        torch.testing.assert_close(several.frequencies(block_size), expected)


def test_parts_of_different_sets_are_refused(make_photos: PhotoMaker) -> None:
    questions = asked(make_photos(2))
    backbone = EfficientNetLite0(pretrained=False, image_size=32)
    vocabulary = AnswerVocabulary(ANSWERS, votes=False)
    with pytest.raises(DataError, match="toy.*4.*2.*1"):
        QuestionDataset(questions, None, TokenTable([torch.tensor([1])]), vocabulary)
    with pytest.raises(DataError, match="toy"):
        QuestionDataset(questions, PixelImages([], backbone), TokenTable([torch.tensor([1])] * 4), vocabulary)
