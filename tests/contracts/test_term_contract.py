"""What every registered term of an objective must hold."""

from __future__ import annotations

import pytest
import torch

from openvse.objectives import TERMS
from openvse_testing.parts import check_part, made_part
from tests.objectives.set_batches import embeddings, scored


@pytest.mark.parametrize("name", TERMS)
def test_the_term_keeps_its_promises(name: str) -> None:
    check_part(TERMS, name)


@pytest.mark.parametrize("name", TERMS)
def test_images_and_texts_both_learn(name: str) -> None:
    images, texts = embeddings(4, 3, seed=0), embeddings(6, 2, seed=1)
    sides = [[side.vectors.requires_grad_(), side.residual.requires_grad_()] for side in (images, texts)]  # type: ignore[union-attr]
    value = made_part(TERMS, name)(scored(images, texts))
    for side in sides:
        gradients = torch.autograd.grad(value, side, allow_unused=True, materialize_grads=True, retain_graph=True)
        assert any(gradient.abs().max() > 0 for gradient in gradients)
