import pytest
import torch

from encoders.references import collate
from openvse.encoders.transformers_text import TransformersText
from openvse.errors import ModelError, RecipeError
from tests.naming import names, refusal

PAD, UNKNOWN, CLS, SEP, MASK = range(5)
CAPTIONS = ["a dog runs on the mat", "two cats", ""]


def test_tokens_are_word_pieces_between_special_tokens(bert_checkpoint) -> None:
    encoder = TransformersText(embed_dim=8, model=bert_checkpoint)
    ids = encoder.tokenize(["Two cats", ""])
    pieces = encoder.tokenizer.convert_ids_to_tokens(ids[0].tolist())
    assert pieces == ["[CLS]", "two", "cat", "##s", "[SEP]"]
    assert ids[1].tolist() == [CLS, SEP]
    assert ids[0].dtype == torch.int64
    assert encoder.pieces("Two cats") == pieces


def test_long_captions_are_cut(bert_checkpoint) -> None:
    encoder = TransformersText(embed_dim=8, model=bert_checkpoint, max_length=6)
    ids = encoder.tokenize(["dog " * 50])[0]
    assert len(ids) == 6 and ids[-1] == SEP


def test_local_features_are_projected_last_states(bert_checkpoint) -> None:
    encoder = TransformersText(embed_dim=8, model=bert_checkpoint).eval()
    batch = collate(encoder.tokenize(CAPTIONS[:1]))
    states = encoder.backbone(input_ids=batch.values).last_hidden_state
    features = encoder(batch)
    torch.testing.assert_close(features.local, encoder.projection.linear(states))
    assert features.pooled is None and encoder.local_dim == 8


def test_a_frozen_text_model_only_trains_its_projection(bert_checkpoint) -> None:
    encoder = TransformersText(embed_dim=8, model=bert_checkpoint, fine_tune=False)
    assert encoder.training and not encoder.backbone.training
    assert not any(module.training for module in encoder.train().backbone.modules())
    encoder(collate(encoder.tokenize(CAPTIONS))).local.sum().backward()
    assert {n for n, p in encoder.named_parameters() if p.grad is not None} == {
        "projection.linear.weight",
        "projection.linear.bias",
    }


def test_fine_tuning_uses_dropout_in_training_only(bert_checkpoint) -> None:
    encoder = TransformersText(embed_dim=8, model=bert_checkpoint, size_augmentation="none")
    batch = collate(encoder.tokenize(CAPTIONS))
    assert not torch.equal(encoder(batch).local, encoder(batch).local)
    encoder.eval()
    assert torch.equal(encoder(batch).local, encoder(batch).local)


@pytest.mark.parametrize("mode", ["drop", "bert_style"])
def test_augmentation_never_touches_special_tokens(mode: str, bert_checkpoint) -> None:
    torch.manual_seed(0)
    encoder = TransformersText(embed_dim=8, model=bert_checkpoint, size_augmentation=mode, augmentation_rate=0.9)
    batch = collate(encoder.tokenize(["a dog runs on the red mat"] * 50))
    ids, mask = encoder.augmentation(batch.values, batch.mask)
    assert mask.sum() < batch.mask.sum()
    assert (ids[:, 0] == CLS).all()
    assert (ids.gather(1, mask.sum(dim=1, keepdim=True) - 1) == SEP).all()
    assert bool((ids == MASK).any()) is (mode == "bert_style")
    features = encoder(batch)
    assert features.local.shape[:2] == features.mask.shape


def test_random_tokens_are_words(bert_checkpoint) -> None:
    encoder = TransformersText(embed_dim=8, model=bert_checkpoint)
    assert encoder.augmentation.replacements.tolist() == list(range(5, 16))
    assert sorted(encoder.augmentation.protected.tolist()) == [PAD, UNKNOWN, CLS, SEP, MASK]


def test_words_lose_their_pieces_together(bert_checkpoint) -> None:
    torch.manual_seed(0)
    encoder = TransformersText(
        embed_dim=8, model=bert_checkpoint, size_augmentation="drop", augmentation_rate=0.5, augment="words"
    )
    cat, piece = encoder.tokenizer.convert_tokens_to_ids(["cat", "##s"])
    batch = collate(encoder.tokenize(["cats cats zebra"] * 200))
    assert batch.values[0].tolist() == [CLS, cat, piece, cat, piece, UNKNOWN, SEP]
    ids, mask = encoder.augmentation(batch.values, batch.mask)
    rows = [row[kept].tolist() for row, kept in zip(ids, mask, strict=True)]
    whole = {(CLS, *([cat, piece] * cats), *([UNKNOWN] * known), SEP) for cats in range(3) for known in (0, 1)}
    assert {tuple(row) for row in rows} == whole  # an unknown word may go, too
    pieces = TransformersText(embed_dim=8, model=bert_checkpoint, size_augmentation="drop", augmentation_rate=0.5)
    ids, _ = pieces.augmentation(batch.values, batch.mask)
    assert ((ids == cat).sum(dim=1) != (ids == piece).sum(dim=1)).any()


def test_words_need_a_tokenizer_that_marks_them(gpt2_checkpoint: str) -> None:
    with pytest.raises(RecipeError, match="'##'"):
        TransformersText(embed_dim=8, model=gpt2_checkpoint, size_augmentation="drop", augment="words")


def test_the_projection_may_start_as_pytorch_does(bert_checkpoint) -> None:
    xavier, uniform = (
        TransformersText(embed_dim=200, model=bert_checkpoint, projection_start=start).projection.linear
        for start in ("xavier", "uniform")
    )
    wide, bound = (6 / 216) ** 0.5, 16**-0.5
    assert xavier.bias.abs().max() == 0 and 0.95 * wide < xavier.weight.abs().max() <= wide
    assert 0.9 * bound < uniform.bias.abs().max() <= bound
    assert 0.95 * bound < uniform.weight.abs().max() <= bound


@pytest.fixture
def gpt2_checkpoint(tmp_path) -> str:
    """Return a text model whose tokenizer has neither a mask token nor marks on the pieces of a word."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, GPT2Model, PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"<unk>": 0, "dog": 1}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>").save_pretrained(tmp_path)
    GPT2Model(GPT2Config(vocab_size=2, n_embd=8, n_layer=1, n_head=2, n_positions=16)).save_pretrained(tmp_path)
    return str(tmp_path)


def test_bert_style_needs_a_mask_token(gpt2_checkpoint: str) -> None:
    assert names(refusal(RecipeError, TransformersText, embed_dim=8, model=gpt2_checkpoint), "'drop'")
    encoder = TransformersText(embed_dim=8, model=gpt2_checkpoint, size_augmentation="drop").eval()
    assert [row.tolist() for row in encoder.tokenize(["dog dog", ""])] == [[1, 1], [0]]
    assert encoder(collate(encoder.tokenize(["dog dog", ""]))).local.shape == (2, 2, 8)


def test_what_is_no_checkpoint_is_named_in_one_line(tmp_path) -> None:
    assert names(refusal(ModelError, TransformersText, embed_dim=8, model=str(tmp_path / "missing")), "missing")
