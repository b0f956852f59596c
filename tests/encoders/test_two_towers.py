"""The towers of CLIP and SigLIP, each on its own, from a whole checkpoint in the hub's format."""

import pytest
import torch
from PIL import Image
from torch.nn import functional as F

from openvse.backbones import TransformersVision
from openvse.encoders import TransformersText
from openvse.errors import ModelError, RecipeError
from openvse.functional import pad
from openvse.types import Inputs
from tests.seeing import see

pytestmark = pytest.mark.medium

CAPTIONS = ["a dog", "a dog on the mat", "dog"]
END = 55  # of CLIP's little vocabulary


def whole(folder: str):
    from transformers import AutoModel

    return AutoModel.from_pretrained(folder).eval()


def text(folder: str, **options) -> TransformersText:
    torch.manual_seed(0)
    fixed = {"embed_dim": 8, "model": folder, "fine_tune": False, "size_augmentation": "none"}
    return TransformersText(**(fixed | options)).eval()


@pytest.mark.parametrize("family", ["clip", "siglip"])
def test_the_vision_tower_gives_its_patches(family: str, two_tower_checkpoint, make_photos) -> None:
    folder = two_tower_checkpoint(family)
    backbone = TransformersVision(model=folder)
    pixels = backbone.preprocess(Image.open(make_photos(1)[0])).unsqueeze(0)
    with torch.no_grad():
        tokens = whole(folder).vision_model(pixel_values=pixels).last_hidden_state
    assert torch.equal(see(backbone, pixels), tokens[:, -16:])
    assert not any("text" in name for name, _ in backbone.named_parameters())
    assert not any(parameter.requires_grad for parameter in backbone.parameters())


def test_clips_class_token_comes_first_and_siglip_has_none(two_tower_checkpoint) -> None:
    folder = two_tower_checkpoint("clip")
    backbone = TransformersVision(model=folder, class_token=True)
    pixels = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        state = whole(folder).vision_model(pixel_values=pixels)
        local = see(backbone, pixels)
        first = backbone.net.post_layernorm(local[:, 0])
    assert local.shape == (2, 17, 16)
    torch.testing.assert_close(first, state.pooler_output)
    with pytest.raises(ModelError, match="class_token"):
        TransformersVision(model=two_tower_checkpoint("siglip"), class_token=True)


@pytest.mark.parametrize("family", ["clip", "siglip"])
def test_a_towers_fingerprint_follows_the_whole_checkpoint(family: str, two_tower_checkpoint) -> None:
    folder = two_tower_checkpoint(family)
    prints = {TransformersVision(model=folder).fingerprint for _ in range(2)}
    assert len(prints) == 1 and f"{family}_vision_model@" in prints.pop()


@pytest.mark.parametrize("family", ["clip", "siglip"])
def test_a_saved_tower_is_built_without_the_other_one(family: str, two_tower_checkpoint, tmp_path) -> None:
    folder = two_tower_checkpoint(family)
    images, sentences = TransformersVision(model=folder), text(folder)
    images.save_assets(tmp_path / "image")
    sentences.save_assets(tmp_path / "text")
    again = TransformersVision(model="gone", assets=tmp_path / "image")
    again.load_state_dict(images.state_dict())
    assert again.fingerprint == images.fingerprint
    pixels = torch.randn(1, 3, 32, 32)
    assert torch.equal(see(again, pixels), see(images, pixels))
    spoken = text("gone", assets=tmp_path / "text")
    spoken.load_state_dict(sentences.state_dict())
    batch = pad(sentences.tokenize(CAPTIONS))
    assert torch.equal(spoken(batch).local, sentences(batch).local)


def test_clip_reads_captions_between_its_own_ends(two_tower_checkpoint) -> None:
    encoder = text(two_tower_checkpoint("clip"))
    ids = encoder.tokenize(["A dog", "dog " * 40])
    pieces = encoder.tokenizer.convert_ids_to_tokens(ids[0].tolist())
    assert pieces == ["<|startoftext|>", "a</w>", "dog</w>", "<|endoftext|>"]
    assert len(ids[1]) == 16 and ids[1][-1] == END, "cut to what the model reads"


def test_the_end_of_text_is_clips_own_embedding(two_tower_checkpoint) -> None:
    folder = two_tower_checkpoint("clip")
    encoder, model = text(folder, pooled="last"), whole(folder)
    ids = encoder.tokenize(CAPTIONS)
    features = encoder(pad(ids))
    for row, one in enumerate(ids):
        with torch.no_grad():
            own = model.text_model(input_ids=one.unsqueeze(0))
        torch.testing.assert_close(features.pooled[row], encoder.global_projection(own.pooler_output[0]))
        local = encoder.projection.linear(own.last_hidden_state[0])
        torch.testing.assert_close(features.local[row, : len(one)], local, rtol=0, atol=1e-5)


def test_siglip_reads_captions_padded_to_its_length(two_tower_checkpoint) -> None:
    """As it was trained: no attention mask, all positions filled, its embedding at the last of them."""
    folder = two_tower_checkpoint("siglip")
    encoder, model = text(folder, pooled="last"), whole(folder)
    ids = encoder.tokenize(CAPTIONS)
    padded = torch.stack([F.pad(one, (0, 16 - len(one)), value=1) for one in ids])
    with torch.no_grad():
        states = model.text_model(input_ids=padded).last_hidden_state
    features = encoder(pad(ids))
    assert features.mask.sum(dim=1).tolist() == [len(one) for one in ids]
    torch.testing.assert_close(features.pooled, encoder.global_projection(states[:, -1]))
    local = encoder.projection.linear(states[:, : features.mask.shape[1]])
    torch.testing.assert_close(features.local[features.mask], local[features.mask])


@pytest.mark.parametrize("family", ["clip", "siglip"])
@pytest.mark.parametrize("pooled", ["first", "last", "mean"])
def test_a_caption_does_not_depend_on_its_batch_mates(family: str, pooled: str, two_tower_checkpoint) -> None:
    encoder = text(two_tower_checkpoint(family), pooled=pooled)
    ids = encoder.tokenize(CAPTIONS)
    together = encoder(pad(ids))
    for row, one in enumerate(ids):
        alone = encoder(pad([one]))
        torch.testing.assert_close(together.local[row, : len(one)], alone.local[0], rtol=0, atol=1e-5)
        torch.testing.assert_close(together.pooled[row], alone.pooled[0], rtol=0, atol=1e-5)


def test_the_global_vector_is_the_state_that_was_asked_for(bert_checkpoint) -> None:
    encoder = text(bert_checkpoint, pooled="first")
    batch = pad(encoder.tokenize(["a dog runs", "cat"]))
    states = encoder.backbone(input_ids=batch.values, attention_mask=batch.mask.long()).last_hidden_state
    layer = encoder.global_projection
    torch.testing.assert_close(encoder(batch).pooled, layer(states[:, 0]))
    encoder.pooled = "last"
    torch.testing.assert_close(encoder(batch).pooled, layer(torch.stack([states[0, 4], states[1, 2]])))
    encoder.pooled = "mean"
    means = torch.stack([states[0].mean(dim=0), states[1, :3].mean(dim=0)])
    torch.testing.assert_close(encoder(batch).pooled, layer(means))
    assert not text(bert_checkpoint).gives_pooled and encoder.gives_pooled


def test_dropped_words_leave_the_end_of_text(two_tower_checkpoint) -> None:
    torch.manual_seed(0)
    encoder = text(two_tower_checkpoint("clip"), size_augmentation="drop", augmentation_rate=0.9).train()
    batch = pad(encoder.tokenize(["a dog on the mat"] * 20))
    ids, mask = encoder.augmentation(batch.values, batch.mask)
    assert mask.sum() < batch.mask.sum()
    assert (ids.gather(1, mask.sum(dim=1, keepdim=True) - 1) == END).all()


def test_only_a_model_that_reads_its_padding_has_a_last_position(two_tower_checkpoint) -> None:
    with pytest.raises(RecipeError, match="last_position"):
        text(two_tower_checkpoint("clip"), last_position=True)


def test_dropped_states_leave_the_last_position(two_tower_checkpoint) -> None:
    torch.manual_seed(0)
    encoder = text(two_tower_checkpoint("siglip"), last_position=True, size_augmentation="drop", augmentation_rate=0.9)
    batch = pad(encoder.tokenize(["a dog on the mat"] * 20))
    stored = encoder.token_states(batch)
    assert "and the last position" in encoder.fingerprint
    mask = encoder.train()(Inputs(stored.local, stored.mask)).mask
    assert mask.sum() < stored.mask.sum()
    assert mask[:, -2:].all(), "neither the end of the caption nor the last position is hidden"
