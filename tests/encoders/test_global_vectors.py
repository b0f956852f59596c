"""The global vector beside the local features: off by default, and what PVSE says when it is on."""

from functools import partial
from typing import Any

import pytest
import torch

from encoders.references import gru_states
from openvse.encoders import BiGRU, ImageEncoder
from openvse.encoders.projections import GLOBAL_VECTORS, BiGRUVector, MeanVector
from openvse.errors import RecipeError
from openvse.functional import pad
from openvse.types import Inputs
from tests.seeing import image_encoder, precomputed

CAPTIONS = ["a dog runs on the red mat", "two cats", "a"]


def images(pooled: bool) -> ImageEncoder:
    torch.manual_seed(0)
    return precomputed(6, 4, global_vector="mean" if pooled else None)


def stored() -> Inputs:
    inputs = pad([torch.randn(5, 6), torch.randn(2, 6), torch.randn(1, 6)])
    return Inputs(inputs.values.masked_fill(~inputs.mask.unsqueeze(-1), 7.0), inputs.mask)


def texts(**options) -> BiGRU:
    torch.manual_seed(0)
    return BiGRU(embed_dim=6, captions=CAPTIONS, min_count=1, word_dim=5, size_augmentation="none", **options)


def test_it_is_off_by_default_and_costs_no_weight() -> None:
    assert not images(pooled=False).gives_pooled and not texts().gives_pooled
    assert images(pooled=False)(stored()).pooled is None
    assert texts()(pad(texts().tokenize(CAPTIONS))).pooled is None
    assert [name for name, _ in images(pooled=False).named_parameters()] == []


def test_an_image_gives_a_linear_layer_of_its_mean_raw_feature() -> None:
    encoder, inputs = images(pooled=True).double(), stored()
    inputs = Inputs(inputs.values.double(), inputs.mask)
    features = encoder(inputs)
    assert encoder.gives_pooled and encoder.local_dim == 6
    for item, mask in enumerate(inputs.mask):
        mean = sum(inputs.values[item, place] for place in mask.nonzero()[:, 0]) / mask.sum()
        slow = encoder.global_projection.weight @ mean + encoder.global_projection.bias
        torch.testing.assert_close(features.pooled[item], slow, rtol=0, atol=1e-10)
    features.pooled.sum().backward()
    assert all(weight.grad.abs().max() > 0 for weight in encoder.parameters())


def test_the_mean_is_over_what_augmentation_left() -> None:
    encoder = precomputed(6, 4, augmentation={"name": "region", "rate": 0.6}, global_vector="mean")
    inputs = Inputs(torch.randn(3, 8, 6), torch.ones(3, 8, dtype=torch.bool))
    features = encoder(inputs)
    assert not features.mask.all()
    mean = torch.stack([row[mask].mean(dim=0) for row, mask in zip(inputs.values, features.mask, strict=True)])
    torch.testing.assert_close(
        features.pooled, encoder.global_projection(mean.unsqueeze(1), torch.ones(3, 1, dtype=torch.bool))
    )


def test_images_have_it_too() -> None:
    options = {"pretrained": False, "image_size": 32, "projection": "none", "global_vector": "mean"}
    encoder = image_encoder("efficientnet_lite0", embed_dim=4, **options)
    features = encoder.eval()(Inputs(torch.randn(2, 3, 32, 32), None))
    assert features.pooled.shape == (2, 4)
    assert features.pooled.requires_grad and not features.local.requires_grad


def test_a_caption_gives_its_words_and_the_last_states_of_both_directions() -> None:
    encoder = texts(output="words").double()
    tokens = encoder.tokenize(CAPTIONS)
    features = encoder(pad(tokens))
    assert encoder.gives_pooled and encoder.local_dim == 5
    for item, ids in enumerate(tokens):
        words = encoder.words.weight[ids]
        assert torch.equal(features.local[item, : len(ids)], words)
        backward = gru_states(encoder.gru, words.flip(0), "_reverse")
        slow = torch.cat([gru_states(encoder.gru, words)[-1], backward[-1]])
        torch.testing.assert_close(features.pooled[item], slow, rtol=0, atol=1e-10)
    (features.pooled.sum() + features.local.sum()).backward()
    assert all(weight.grad.abs().max() > 0 for weight in encoder.parameters())


@pytest.mark.parametrize("at_last", [False, True])
def test_frames_give_the_last_states_of_both_directions(at_last: bool) -> None:
    torch.manual_seed(0)
    encoder = precomputed(6, 4, global_vector={"name": "bigru", "at_last": at_last}).double()
    inputs = stored()
    inputs = Inputs(inputs.values.double(), inputs.mask)
    pooled = encoder(inputs).pooled
    for item, mask in enumerate(inputs.mask):
        rows, gru = inputs.values[item][mask], encoder.global_projection.gru
        read = rows[-1:] if at_last else rows  # by the backward direction
        slow = torch.cat([gru_states(gru, rows)[-1], gru_states(gru, read.flip(0), "_reverse")[-1]])
        torch.testing.assert_close(pooled[item], slow, rtol=0, atol=1e-10)
    pooled.sum().backward()
    still = [name for name, weight in encoder.named_parameters() if weight.grad.abs().max() == 0]
    # The backward direction's only step starts from nothing.
    assert still == (["global_projection.gru.weight_hh_l0_reverse"] if at_last else [])


@pytest.mark.parametrize("vector", [MeanVector, BiGRUVector, partial(BiGRUVector, at_last=True)])
def test_hidden_frames_are_as_if_they_were_not_there(vector: Any) -> None:
    vector = vector(input_dim=6, embed_dim=4)
    rows, mask = torch.randn(1, 5, 6), torch.tensor([[True, False, True, True, False]])
    torch.testing.assert_close(vector(rows, mask), vector(rows[:, [0, 2, 3]], torch.ones(1, 3, dtype=torch.bool)))


def test_an_odd_width_cannot_be_split_over_two_directions() -> None:
    with pytest.raises(RecipeError, match="embed_dim.*7"):
        BiGRU(embed_dim=7, captions=CAPTIONS, min_count=1, output="words")
    with pytest.raises(RecipeError, match="embed_dim.*7"):
        GLOBAL_VECTORS.get("bigru")(input_dim=6, embed_dim=7)
