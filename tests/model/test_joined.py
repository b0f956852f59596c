"""Joined models: their score is the weighted mean of the members', live and from a folder, and an index serves it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from openvse.errors import ModelError, RecipeError
from openvse.index import Index, build_index
from openvse.model import TwoTower, join
from openvse.retrieval.build import build_model
from openvse.search import SearchEngine
from openvse.tasks.load import load_as
from openvse.tasks.recipes import parse_recipe
from tests.conftest import PhotoMaker
from tests.tiny import tiny_tree

CAPTIONS = ["red dog runs", "green cat sleeps on the grass", "blue bird", "a"]
PLAIN = {"name": "efficientnet_lite0", "pretrained": False, "image_size": 64}
WINDOWS = {
    "name": "crops",
    "windows": [[1, 1.0], [2, 0.5]],
    "backbone": {"name": "efficientnet_lite0", "pretrained": False, "image_size": 32},
}


def made(encoder: dict[str, Any], captions: list[str], seed: int = 0, **changes: Any) -> TwoTower:
    tree = tiny_tree(Path()) | changes
    tree["image"]["encoder"] = encoder
    return build_model(parse_recipe(tree), captions=captions, seed=seed).eval()


@pytest.fixture(scope="module")
def members() -> list[TwoTower]:
    """Return two models with other pixels, words and widths."""
    return [made(PLAIN, CAPTIONS), made(WINDOWS, CAPTIONS[:2], seed=1, embed_dim=24)]


def scores(model: TwoTower, photos: list[Path]) -> torch.Tensor:
    return model.score(model.encode_image(photos), model.encode_text(CAPTIONS))


@pytest.mark.medium
def test_the_score_is_the_weighted_mean_also_after_loading(
    members: list[TwoTower], make_photos: PhotoMaker, tmp_path: Path
) -> None:
    photos = make_photos(3)
    Image.open(photos[1]).resize((90, 40)).save(photos[1])
    first, second = (scores(member, photos) for member in members)
    joined = join(members, [3.0, 1.0])
    torch.testing.assert_close(scores(joined, photos), 0.75 * first + 0.25 * second, rtol=0, atol=1e-6)
    loaded = load_as(TwoTower, joined.save(tmp_path / "joined"))
    assert loaded.fingerprint == joined.fingerprint and loaded.spec.embed_dim == 16 + 24
    assert loaded.image.encoder.fingerprint == joined.image.encoder.fingerprint
    assert torch.equal(scores(loaded, photos), scores(joined, photos))
    assert [each["model"] for each in loaded.provenance["joined"]] == [each.fingerprint for each in members]
    again = load_as(TwoTower, join([loaded, members[0]]).save(tmp_path / "again"))
    torch.testing.assert_close(scores(again, photos), 0.875 * first + 0.125 * second, rtol=0, atol=1e-6)


@pytest.mark.medium
def test_neither_padding_nor_the_batch_changes_a_vector(
    members: list[TwoTower], make_photos: PhotoMaker
) -> None:
    joined, photos = join(members), make_photos(3)
    together = joined.encode_text(CAPTIONS)
    for position, caption in enumerate(CAPTIONS):
        torch.testing.assert_close(joined.encode_text(caption).vectors[0], together.vectors[position])
    alone = torch.cat([joined.encode_image(photo).vectors for photo in photos])
    torch.testing.assert_close(alone, joined.encode_image(photos).vectors)


@pytest.mark.medium
def test_words_are_unknown_where_no_member_knows_them(members: list[TwoTower]) -> None:
    joined = join(members[::-1])
    assert [each.word for each in joined.unknown_words("a blue zebra")[0]] == ["zebra"]
    (tokens,) = joined.text.encoder.tokenize(["blue bird"])
    assert len(joined.text.encoder.pieces("blue bird")) == len(tokens)


@pytest.mark.medium
def test_an_index_serves_it(members: list[TwoTower], make_photos: PhotoMaker, tmp_path: Path) -> None:
    photos, joined = make_photos(3), join(members)
    build_index(joined, photos[0].parent, tmp_path / "index")
    (hits,) = SearchEngine(joined, Index.open(tmp_path / "index")).search(["blue bird"], 3)
    expected = scores(joined, photos)[:, 2]
    assert [hit.score for hit in hits] == pytest.approx(sorted(expected.tolist(), reverse=True), abs=1e-5)


@pytest.mark.parametrize(
    ("shares", "told"),
    [([1.0], "1 shares are given for 2"), ([1.0, 0.0], "above 0"), ([1.0, float("nan")], "above 0")],
)
def test_wrong_shares_are_refused(members: list[TwoTower], shares: list[float], told: str) -> None:
    with pytest.raises(ModelError, match=told):
        join(members, shares)


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({"similarity": {"name": "order"}}, "model 2 does not compare two vectors by their cosine"),
        ({"several": 2}, "model 2 has 2 vectors for each item"),
        ({"stored": True}, "model 2 cannot be joined: encoder 'precomputed' cannot read images"),
    ],
)
def test_other_models_are_refused(members: list[TwoTower], other: dict[str, Any], told: str) -> None:
    encoder = {"name": "precomputed", "feature_dim": 8} if other.pop("stored", False) else PLAIN
    number = other.pop("several", 1)
    if number > 1:
        views = {"name": "multi_view", "num_views": number}
        tree = tiny_tree(Path())
        other = {side: {**tree[side], "aggregator": views} for side in ("image", "text")}
    with pytest.raises(ModelError, match=told):
        join([members[0], made(encoder, CAPTIONS, **other)])


@pytest.mark.medium
def test_one_model_is_refused_and_a_recipe_cannot_name_it(members: list[TwoTower]) -> None:
    with pytest.raises(ModelError, match="least"):
        join(members[:1])
    tree = tiny_tree(Path())
    tree["image"]["encoder"] = "joined"
    with pytest.raises(ModelError, match="recipes"):
        build_model(parse_recipe(tree), captions=CAPTIONS)
    with pytest.raises(RecipeError, match="trained"):
        build_model(join(members).spec, captions=CAPTIONS)
