from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import config

from openvse.encoders.augmentations import TokenAugmentation
from openvse.errors import RecipeError
from openvse.functional import position_mask

PAD, HIDDEN, START, END = 0, 2, 3, 4


def full(items: int, size: int) -> torch.Tensor:
    return torch.ones(items, size, dtype=torch.bool)


def tokens(mode: str, rate: float = 0.2, **more: Any) -> TokenAugmentation:
    options = {"mask_id": HIDDEN, "replacements": range(1000, 1010), "protected": (START, END)} | more
    return TokenAugmentation(mode, rate=rate, **options)


@pytest.mark.medium
@given(
    lengths=st.lists(st.integers(1, 7), min_size=1, max_size=5),
    rate=st.sampled_from([0.0, 0.2, 0.99]),
    mode=st.sampled_from(["none", "drop", "bert_style"]),
    seed=st.integers(0, 1000),
)
def test_what_is_left_of_a_caption_is_a_subsequence_with_replacements(lengths, rate, mode, seed) -> None:
    torch.manual_seed(seed)
    mask = position_mask(torch.tensor(lengths), 7)
    ids = torch.arange(10, 17).expand(len(lengths), -1).masked_fill(~mask, PAD)
    new_ids, new_mask = tokens(mode, rate)(ids, mask)
    assert new_ids.shape == new_mask.shape
    for row, kept, before in zip(new_ids, new_mask, lengths, strict=True):
        after = int(kept.sum())
        assert 1 <= after <= before
        assert kept[:after].all() and (row[after:] == PAD).all()
        original = [i for i in row[:after].tolist() if 10 <= i < 17]
        assert original == sorted(original)
        replaced = [i for i in row[:after].tolist() if not 10 <= i < 17]
        assert all(i == HIDDEN or 1000 <= i < 1010 for i in replaced)
        assert mode == "bert_style" or replaced == []


def test_drop_deletes_a_fifth() -> None:
    torch.manual_seed(0)
    ids = torch.randint(10, 100, (500, 40))
    _, mask = tokens("drop")(ids, full(500, 40))
    assert abs(mask.sum().item() / ids.numel() - 0.8) < 0.01


def test_bert_style_shares_are_half_a_tenth_and_the_rest() -> None:
    torch.manual_seed(0)
    ids = torch.randint(10, 100, (1000, 50))
    new_ids, mask = tokens("bert_style")(ids, full(1000, 50))
    total = ids.numel()
    assert abs((new_ids[mask] == HIDDEN).sum().item() / total - 0.2 * 0.5) < 0.005
    assert abs((new_ids[mask] >= 1000).sum().item() / total - 0.2 * 0.1) < 0.003
    assert abs(1 - mask.sum().item() / total - 0.2 * 0.4) < 0.005
    assert set(new_ids[mask & (new_ids >= 1000)].tolist()) == set(range(1000, 1010))


@pytest.mark.parametrize("mode", ["drop", "bert_style"])
def test_protected_tokens_stay_in_place(mode: str) -> None:
    torch.manual_seed(0)
    ids = torch.tensor([[START, 10, 11, 12, END]]).repeat(200, 1)
    new_ids, mask = tokens(mode, rate=0.9)(ids, full(200, 5))
    lengths = mask.sum(dim=1)
    assert (new_ids[:, 0] == START).all()
    assert (new_ids.gather(1, (lengths - 1).unsqueeze(1)) == END).all()
    assert lengths.min() == 2


def test_without_protection_every_token_may_go() -> None:
    torch.manual_seed(0)
    ids = torch.tensor([[START, 10, END]]).repeat(200, 1)
    new_ids, _ = tokens("drop", rate=0.9, protected=())(ids, full(200, 3))
    assert (new_ids[:, 0] != START).any()


WORD = (10, 20, 21)  # a first piece and two that continue it


def words(mode: str, rate: float = 0.2) -> TokenAugmentation:
    return tokens(mode, rate, continuing=(20, 21))


def fates(augmentation: TokenAugmentation, items: int, count: int) -> list[list[int]]:
    """Augment captions of so many words of three pieces between boundaries, and return what is left of them."""
    ids = torch.tensor([[START, *WORD * count, END]]).repeat(items, 1)
    new_ids, mask = augmentation(ids, full(items, 3 * count + 2))
    return [row[kept].tolist() for row, kept in zip(new_ids, mask, strict=True)]


def test_the_pieces_of_a_word_share_its_fate() -> None:
    torch.manual_seed(0)
    seen = set()
    for left in fates(words("bert_style", rate=0.8), 500, 2):
        assert (left[0], left[-1], len(left) % 3) == (START, END, 2)
        for start in range(1, len(left) - 1, 3):
            word = left[start : start + 3]
            kind = "random" if word[0] >= 1000 else "masked" if word[0] == HIDDEN else "whole"
            fate = {"random": min(word) >= 1000, "masked": set(word) == {HIDDEN}, "whole": word == [*WORD]}
            assert fate[kind]
            seen.add(kind)
        seen.add(len(left))
    assert seen == {"random", "masked", "whole", 2, 5, 8}
    drawn = [left[1:4] for left in fates(words("bert_style", rate=0.8), 500, 1) if max(left) >= 1000]
    assert any(len(set(word)) > 1 for word in drawn)  # each piece of a random word is drawn for itself


@pytest.mark.medium
@pytest.mark.parametrize(("make", "spread"), [(words, 3 * 0.543), (tokens, 0.940)])
def test_lengths_spread_more_where_words_go_as_a_whole(make, spread: float) -> None:
    """Of 4 words of 3 pieces 8 % are deleted: the deviation is 3 sqrt(4 p q) in place of sqrt(12 p q)."""
    torch.manual_seed(0)
    lengths = torch.tensor([float(len(left)) for left in fates(make("bert_style"), 20_000, 4)])
    assert abs(lengths.mean() - (14 - 12 * 0.08)) < 0.05
    assert abs(lengths.std() - spread) < 0.03


def test_evaluation_changes_nothing() -> None:
    mask, ids = full(3, 9), torch.arange(27).view(3, 9)
    same_ids, same_mask = tokens("bert_style", rate=0.9).eval()(ids, mask)
    assert same_ids is ids and same_mask is mask and tokens("bert_style").state_dict() == {}


def test_the_global_seed_decides() -> None:
    draws = []
    for seed in (5, 5, 6):
        torch.manual_seed(seed)
        draws.append(tokens("drop")(torch.arange(60).view(2, 30), full(2, 30))[0])
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


@pytest.fixture
def without_type_checks():
    """Switch the tests' run-time type checks off: they would speak before the message that users meet."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tokens("bert_styl"), "'bert_style'.*none, drop"),
        (lambda: tokens("drop", rate=-0.1), "augmentation_rate.*-0.1"),
        (lambda: TokenAugmentation("bert_style", mask_id=None, replacements=[5]), "'bert_style'.*'drop'"),
    ],
)
def test_bad_options_say_what_is_allowed(make, message: str, without_type_checks) -> None:
    with pytest.raises(RecipeError, match=message):
        make()
