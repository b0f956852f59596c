"""The choice of the next image to caption, compared with its formula."""

import numpy as np

from openvse.teaching.described import RIDGE, main_directions, next_images


def slow(images, captioned, count, weights):
    """Return the next images by the formula, with a matrix inverted for each."""
    images, captioned, chosen = images.astype(float), [*captioned], []
    whole = (images * weights[:, None]).T @ images / weights.sum()
    for _ in range(count):
        spread = np.linalg.inv(np.eye(images.shape[1]) + images[captioned].T @ images[captioned] / RIDGE)
        gains = [z @ spread @ whole @ spread @ z / (RIDGE + z @ spread @ z) for z in images]
        chosen.append(max(set(range(len(images))) - {*captioned}, key=gains.__getitem__))
        captioned.append(chosen[-1])
    return chosen


def test_the_next_images_are_those_of_the_formula():
    described = np.random.default_rng(0).normal(size=(120, 20)) * np.linspace(2, 0.1, 20)
    images = main_directions(described.astype(np.float16), 8)
    assert images.shape == (120, 8) and np.isclose((images**2).sum(1).mean(), 1)
    assert next_images(images, np.array([3, 4]), 30) == slow(images, [3, 4], 30, np.ones(120))
    weights = np.ones(120, np.float32)
    weights[5:8] = 20
    assert next_images(images, np.array([], int), 9, weights) == slow(images, [], 9, weights)


def test_it_covers_what_is_typical_and_passes_copies_and_captioned_images():
    corners = np.eye(4)[[0] * 6 + [1] * 5 + [2] * 4 + [3]]
    images = main_directions(corners)
    chosen = next_images(images, np.array([], int), 3)
    assert {int(corners[each].argmax()) for each in chosen} == {0, 1, 2}  # the lone one can wait
    assert next_images(images, np.arange(16), 5) == []
    assert set(next_images(images, np.arange(14), 5)) == {14, 15}
    assert next_images(main_directions(np.ones((3, 5))), np.array([0]), 2) == [1, 2]  # all images are the same
