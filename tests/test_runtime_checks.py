"""The tests' own footing: wrong shapes raise, and the images that tests use are images."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
import torch
from jaxtyping import TypeCheckError
from PIL import Image

from openvse import functional
from openvse.types import EmbeddingSet, Features, Inputs


def test_a_wrong_number_of_axes_raises() -> None:
    with pytest.raises(TypeCheckError):
        functional.masked_mean(torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.bool))


def test_axes_of_one_name_must_agree_across_arguments() -> None:
    with pytest.raises(TypeCheckError):
        functional.masked_mean(torch.zeros(2, 3, 4), torch.ones(2, 5, dtype=torch.bool))


def test_a_mask_must_be_bool() -> None:
    with pytest.raises(TypeCheckError):
        functional.masked_max(torch.zeros(2, 3, 4), torch.ones(2, 3))


def test_dataclasses_are_checked_too() -> None:
    with pytest.raises(TypeCheckError):
        Features(torch.zeros(2, 3, 4), torch.ones(2, 4, dtype=torch.bool))
    with pytest.raises(TypeCheckError):
        EmbeddingSet(torch.zeros(2, 4), torch.ones(2, 1, dtype=torch.bool))
    assert [field.name for field in fields(Inputs)] == ["values", "mask", "boxes"]


def test_right_shapes_pass() -> None:
    mask = torch.tensor([[True, True, False]])
    local = torch.tensor([[[1.0], [3.0], [99.0]]])
    assert functional.masked_mean(local, mask).tolist() == [[2.0]]
    assert len(Features(local, mask).local) == 1


def test_photos_are_distinct_readable_images(make_photos) -> None:
    paths = make_photos(3, size=(40, 30))
    images = [Image.open(path) for path in paths]
    assert [image.size for image in images] == [(40, 30)] * 3
    assert {image.mode for image in images} == {"RGB"}
    arrays = [np.asarray(image, dtype=float) for image in images]
    assert all(array.std() > 5 for array in arrays)
    assert abs(arrays[0] - arrays[1]).mean() > 5


def test_photos_are_the_same_every_time(make_photos) -> None:
    first, second = make_photos(1, folder="a"), make_photos(1, folder="b")
    assert first[0].read_bytes() == second[0].read_bytes()


def test_workers_use_one_thread() -> None:
    assert torch.get_num_threads() == 1
