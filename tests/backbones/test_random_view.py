import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from openvse.backbones.base import random_view


def ramp(width: int = 100, height: int = 60) -> Image.Image:
    """Return an image whose red is its column and whose green is its row."""
    rows, columns = np.mgrid[:height, :width].astype(np.uint8)
    return Image.fromarray(np.stack([columns, rows, np.zeros_like(rows)], axis=-1))


def views(count: int) -> list[np.ndarray]:
    generator = torch.Generator().manual_seed(0)
    return [np.asarray(random_view(ramp(), generator)).astype(int) for _ in range(count)]


def test_a_view_is_a_window_of_the_image_perhaps_mirrored() -> None:
    for view in views(50):
        columns = view[0, :, 0] if view[0, 0, 0] < view[0, -1, 0] else view[0, ::-1, 0]
        assert (np.diff(columns) == 1).all()
        assert (np.diff(view[:, 0, 1]) == 1).all()


def test_windows_keep_the_shape_and_reach_from_06_to_1() -> None:
    shares = np.array([(view.shape[1] / 100, view.shape[0] / 60) for view in views(300)])
    assert np.abs(shares[:, 0] - shares[:, 1]).max() < 0.02
    assert 0.6 <= shares[:, 0].min() < 0.62 and 0.98 < shares[:, 0].max() <= 1
    assert abs(shares[:, 0].mean() - 0.8) < 0.02


def test_half_are_mirrored_and_windows_reach_every_rim() -> None:
    seen = views(300)
    mirrored = np.mean([view[0, 0, 0] > view[0, -1, 0] for view in seen])
    assert abs(mirrored - 0.5) < 0.1
    assert min(view[..., 0].min() for view in seen) == 0
    assert max(view[..., 0].max() for view in seen) == 99
    assert max(view[..., 1].max() for view in seen) == 59


def test_the_generator_decides_alone() -> None:
    torch.manual_seed(1)
    first = views(3)
    torch.manual_seed(2)
    for one, other in zip(first, views(3), strict=True):
        assert np.array_equal(one, other)


@given(width=st.integers(1, 9), height=st.integers(1, 9), seed=st.integers(0, 99))
def test_tiny_images_survive(width: int, height: int, seed: int) -> None:
    view = random_view(ramp(width, height), torch.Generator().manual_seed(seed))
    assert 1 <= view.width <= width and 1 <= view.height <= height
