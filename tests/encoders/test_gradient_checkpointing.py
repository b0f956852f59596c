"""Checkpointing changes what stays in memory between the two passes, and nothing else."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from openvse.backbones.fine_tuning import checkpoint_blocks
from openvse.encoders import TEXT_ENCODERS
from openvse.encoders.projections import Encoder
from openvse.errors import ModelError
from openvse.functional import pad
from openvse.types import Inputs
from tests.seeing import image_encoder

IMAGES = {"vit": 32, "dinov2": 28, "resnet": 64, "convnext": 64, "swin": 32, "clip_vision": 32}
Made = tuple[Encoder, Inputs]


@pytest.fixture
def make(vision_checkpoint, bert_checkpoint) -> Callable[..., Made]:
    """Return a maker of an encoder that trains its backbone, and of a batch for it."""

    def of(family: str, **options) -> Made:
        torch.manual_seed(0)
        options |= {"fine_tune": True, "size_augmentation" if family == "bert" else "augmentation": "none"}
        if family == "bert":
            encoder = TEXT_ENCODERS.get("transformers_text")(embed_dim=8, model=bert_checkpoint, **options)
            return encoder, pad(encoder.tokenize(["a dog runs on the red mat", "two cats"]))
        if family == "efficientnet":
            options |= {"pretrained": False, "image_size": 64}
            return image_encoder("efficientnet_lite0", **options), Inputs(torch.randn(5, 3, 64, 64), None)
        if family == "own_resnet":
            options |= {"blocks": (1, 2, 1, 1), "stem_dim": 4, "inner_dim": 4, "image_size": 64}
            return image_encoder("resnet", **options), Inputs(torch.randn(3, 3, 64, 64), None)
        side = IMAGES[family]
        encoder = image_encoder("transformers_vision", model=vision_checkpoint(family), **options)
        return encoder, Inputs(torch.randn(3, 3, side, side), None)

    return of


def step(encoder: Encoder, batch: Inputs) -> tuple[torch.Tensor, dict[str, torch.Tensor], int]:
    """Return the features, every gradient, and the bytes that the forward pass kept for the backward pass."""
    kept: dict[int, int] = {}

    def remember(tensor: torch.Tensor) -> torch.Tensor:
        if not isinstance(tensor, nn.Parameter):
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    torch.manual_seed(1)  # dropout
    with torch.autograd.graph.saved_tensors_hooks(remember, lambda tensor: tensor):
        local = encoder(batch).local
    local.pow(2).sum().backward()
    return (local.detach(), {n: p.grad for n, p in encoder.named_parameters() if p.requires_grad}, sum(kept.values()))


@pytest.mark.medium
@pytest.mark.parametrize("family", [*IMAGES, "own_resnet", "efficientnet", "bert"])
def test_equal_gradients_from_less_memory(family: str, make) -> None:
    (plain, batch), (saving, _) = make(family), make(family, gradient_checkpointing=True)
    saving.load_state_dict(plain.state_dict())
    assert plain.fingerprint == saving.fingerprint
    local, gradients, memory = step(plain, batch)
    saved_local, saved_gradients, saved_memory = step(saving, batch)
    assert torch.equal(local, saved_local)
    assert gradients.keys() == saved_gradients.keys() and len(gradients) > 10
    for name, gradient in gradients.items():
        assert gradient is not None and torch.equal(gradient, saved_gradients[name]), name
    assert saved_memory < 0.9 * memory


@pytest.mark.medium
def test_running_statistics_stay_through_the_second_pass(make) -> None:
    encoder, batch = make("resnet", gradient_checkpointing=True)
    before = {name: buffer.clone() for name, buffer in encoder.backbone.named_buffers()}
    step(encoder, batch)
    assert len(before) > 10
    assert all(torch.equal(before[name], buffer) for name, buffer in encoder.backbone.named_buffers())


def test_a_phase_that_freezes_the_backbone_trains_the_rest(make) -> None:
    """As in VSE-infinity's first epoch."""
    encoder, batch = make("resnet", gradient_checkpointing=True)
    encoder.backbone.requires_grad_(False)
    encoder(batch).local.sum().backward()
    assert encoder.projection.linear.weight.grad is not None
    encoder.backbone.requires_grad_(True)
    encoder(batch).local.sum().backward()
    assert encoder.backbone.encoder.stages[0].layers[0].layer[0].convolution.weight.grad is not None


def test_a_frozen_backbone_is_left_alone(vision_checkpoint) -> None:
    encoder = image_encoder("transformers_vision", model=vision_checkpoint("vit"), gradient_checkpointing=True)
    assert all("forward" not in vars(module) for module in encoder.backbone.modules())


def test_only_the_outermost_blocks_are_checkpointed() -> None:
    inner = nn.ModuleList([nn.Linear(2, 2)])
    block = nn.Module()
    block.inner = inner
    network = nn.Sequential(nn.Linear(2, 2), nn.ModuleList([block]))
    checkpoint_blocks(network)
    assert "forward" in vars(block) and "forward" not in vars(inner[0])


def test_a_network_without_blocks_is_refused() -> None:
    with pytest.raises(ModelError, match="gradient_checkpointing"):
        checkpoint_blocks(nn.Sequential(nn.Linear(2, 2)))
