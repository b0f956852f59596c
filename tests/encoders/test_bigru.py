import pytest
import torch

from encoders.references import collate, gru_states
from openvse.encoders.words_encoder import BiGRU
from openvse.errors import DataError, ModelError, RecipeError
from openvse.tokenization.vocabulary import END, START, UNKNOWN
from openvse.types import Inputs
from tests.naming import names, refusal

CAPTIONS = ["a dog runs on the grass", "a cat sits", "two dogs and a cat play on the mat"]


def make(**options) -> BiGRU:
    torch.manual_seed(0)
    return BiGRU(**({"embed_dim": 6, "captions": CAPTIONS, "min_count": 1, "word_dim": 5} | options))


def test_equals_a_slow_loop_on_ragged_captions() -> None:
    encoder = make().double().eval()
    ids = encoder.tokenize(["cat", "a dog runs on the mat", "two dogs"])
    features = encoder(collate(ids))
    for row, local in zip(ids, features.local, strict=True):
        words = encoder.words(row)
        backward = gru_states(encoder.gru, words.flip(0), "_reverse").flip(0)
        expected = (gru_states(encoder.gru, words) + backward) / 2
        torch.testing.assert_close(local[: len(row)], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("global_state", ["final", "last_word"])
def test_the_global_vector_equals_a_slow_loop(global_state: str) -> None:
    encoder = make(output="words", global_state=global_state).double().eval()
    ids = encoder.tokenize(["cat", "a dog runs on the mat", "two dogs"])
    features = encoder(collate(ids))
    torch.testing.assert_close(features.local[1, : len(ids[1])], encoder.words(ids[1]))
    for row, pooled in zip(ids, features.pooled, strict=True):
        words = encoder.words(row)
        forward = gru_states(encoder.gru, words)[-1]
        # From the end to the start; the first of its states has read the last word alone.
        place = -1 if global_state == "final" else 0
        backward = gru_states(encoder.gru, words.flip(0), "_reverse")[place]
        torch.testing.assert_close(pooled, torch.cat((forward, backward)), rtol=0, atol=1e-12)


def test_the_global_vector_may_average_directions_of_full_width() -> None:
    encoder = make(output="words", directions="averaged").double().eval()
    (ids,) = encoder.tokenize(["a cat on the mat"])
    features = encoder(collate([ids]))
    words = encoder.words(ids)
    ends = gru_states(encoder.gru, words)[-1], gru_states(encoder.gru, words.flip(0), "_reverse")[-1]
    assert encoder.gru.hidden_size == features.pooled.shape[1]
    torch.testing.assert_close(features.pooled[0], (ends[0] + ends[1]) / 2, rtol=0, atol=1e-12)


def test_tokenize_puts_boundaries_around_words() -> None:
    a, dog = make().vocabulary.id_of("a"), make().vocabulary.id_of("dog")
    ids = make().tokenize(["A dog!", "", "zebra"])
    assert [row.tolist() for row in ids] == [[START, a, dog, END], [START, UNKNOWN, END], [START, UNKNOWN, END]]
    assert [row.tolist() for row in make(boundaries=False).tokenize(["a dog", ""])] == [[a, dog], [UNKNOWN]]


def test_long_sentences_are_cut_between_their_boundaries() -> None:
    a, dog = make().vocabulary.id_of("a"), make().vocabulary.id_of("dog")
    assert [ids.tolist() for ids in make(max_words=2).tokenize(["a dog a dog"])] == [[START, a, dog, END]]
    assert [ids.tolist() for ids in make(max_words=1, boundaries=False).tokenize(["a dog"])] == [[a]]
    assert names(refusal(RecipeError, make, max_words=0), "max_words", "0", "1")


@pytest.mark.parametrize("options", [{}, {"boundaries": False}, {"max_words": 2}])
def test_each_token_has_a_piece_to_show(options) -> None:
    encoder = make(**options)
    for caption in ("a dog sees a zebra", "", "!"):
        assert len(encoder.pieces(caption)) == len(encoder.tokenize([caption])[0])
    assert make(boundaries=False).pieces("A zebra") == ["a", "<zebra>"]
    assert make().pieces("") == ["<start>", "<unk>", "<end>"]


def test_min_count_prunes_the_vocabulary() -> None:
    assert make(min_count=2).vocabulary.words == ("a", "cat", "on", "the")
    assert BiGRU(embed_dim=2, captions=["dog"] * 4 + ["cat"] * 3).vocabulary.words == ("dog",)


def test_no_captions_and_no_assets_is_refused() -> None:
    assert names(refusal(DataError, BiGRU, embed_dim=4), "4", "min_count")


def test_embeddings_start_small_and_uniform() -> None:
    weight = make(word_dim=300).words.weight
    assert 0.0999 < weight.abs().max() <= 0.1
    assert abs(weight.var().item() - 0.01 / 3) < 2e-4


def test_word_vectors_fill_their_rows_only(tmp_path) -> None:
    path = tmp_path / "glove.txt"
    path.write_text("dog 1 2 3 4 5\nzebra 9 9 9 9 9\ncat 5 4 3 2 1\n")
    plain, encoder = make(), make(word_vectors=str(path))
    dog, cat = encoder.vocabulary.id_of("dog"), encoder.vocabulary.id_of("cat")
    assert encoder.words.weight[dog].tolist() == [1, 2, 3, 4, 5]
    others = [i for i in range(len(encoder.vocabulary)) if i not in (dog, cat)]
    assert torch.equal(encoder.words.weight[others], plain.words.weight[others])


def test_word_vectors_without_a_known_word_are_refused(tmp_path) -> None:
    path = tmp_path / "glove.txt"
    path.write_text("zebra 9 9 9 9 9\n")
    with pytest.raises(DataError, match=r"glove\.txt.* \d+ "):
        make(word_vectors=str(path))


def test_frozen_words_do_not_train() -> None:
    encoder = make(freeze_words=True)
    encoder(collate(encoder.tokenize(CAPTIONS))).local.sum().backward()
    assert encoder.words.weight.grad is None
    assert encoder.gru.weight_ih_l0.grad is not None


def test_augmentation_shortens_captions_in_training_only() -> None:
    encoder = make(augmentation_rate=0.9)
    batch = collate(encoder.tokenize(CAPTIONS))
    features = encoder(batch)
    assert features.local.shape[:2] == features.mask.shape
    assert features.mask.sum() < batch.mask.sum()
    assert (features.mask.sum(dim=1) >= 2).all()  # the boundaries are never dropped
    assert torch.equal(encoder.eval()(batch).mask, batch.mask)


@pytest.mark.medium
def test_boundaries_may_go_like_words_where_they_are_not_protected() -> None:
    """Of 14 tokens 92 % stay, boundaries among them; protected ones stay always (bert_style deletes 8 %)."""
    kept = {}
    for protect in (True, False):
        encoder = make(size_augmentation="bert_style", protect_boundaries=protect)
        batch = collate(encoder.tokenize([" ".join(["dog"] * 12)]) * 10_000)
        ids, mask = encoder.augmentation(batch.values, batch.mask)
        assert bool((ids[:, 0] == START).all()) is protect
        kept[protect] = float(mask.sum(dim=1).float().mean())
    assert abs(kept[True] - (12 * 0.92 + 2)) < 0.03
    assert abs(kept[False] - 14 * 0.92) < 0.03


def test_autocast_to_bfloat16_runs_forward_and_backward() -> None:
    encoder = make(size_augmentation="none")
    batch = collate(encoder.tokenize(CAPTIONS))
    exact = encoder(batch).local[batch.mask]
    with torch.autocast("cpu", torch.bfloat16):
        rough = encoder(batch).local[batch.mask]
    torch.testing.assert_close(rough.float(), exact, rtol=0.05, atol=0.02)
    rough.float().sum().backward()
    assert encoder.gru.weight_ih_l0_reverse.grad.isfinite().all()


def test_assets_replace_captions_and_word_vectors(tmp_path) -> None:
    saved = make(min_count=2)
    saved.save_assets(tmp_path / "text")
    loaded = make(captions=(), assets=tmp_path / "text", word_vectors=str(tmp_path / "gone.txt"))
    assert loaded.vocabulary.words == saved.vocabulary.words


def test_token_ids_need_a_mask() -> None:
    assert names(refusal(ModelError, lambda: make()(Inputs(torch.zeros(1, 2, dtype=torch.int64), None))), "mask")


def test_a_word_without_a_vector_takes_that_of_its_trimmed_form(tmp_path) -> None:
    """Released code of PVSE, DivE and ESA: without "-", "." and "'", and of that what stands before the first "/"."""
    (path := tmp_path / "glove.txt").write_text("tshirt 1 0\nand 0 1\nU-turn 9 9\nu-turn 1 1\nuturn 5 5\n. 3 3\n")
    words = ["t-shirt", "and/or", "u-turn", ".", "o'clock"]
    options = {"embed_dim": 2, "word_dim": 2, "min_count": 1, "tokenizer": lambda: str.split}
    for lookup, expected in {
        "trimmed": [[1, 0], [0, 1], [1, 1], [3, 3], None],
        "exact": [None, None, [1, 1], [3, 3], None],
    }.items():
        encoder = BiGRU(captions=[" ".join(words)], word_vectors=str(path), word_lookup=lookup, **options)
        rows = {word: encoder.words.weight[encoder.vocabulary.id_of(word)].tolist() for word in words}
        assert [row if max(row) >= 1 else None for row in rows.values()] == expected
