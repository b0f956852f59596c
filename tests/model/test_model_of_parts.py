"""A model put together in Python, without a recipe, saves, loads and is found again like any other."""

import copy
import json
import pickle
from functools import partial
from pathlib import Path

import pytest
import torch

import openvse
from openvse.aggregators import AGGREGATORS, GPO, Aggregator, Mean, MultiView, Tokens
from openvse.backbones import Frames, Precomputed, ResNet
from openvse.encoders import BiGRU, ImageEncoder
from openvse.encoders.projections import ResidualMLP
from openvse.errors import ModelError
from openvse.fusion import ScoreAttentionFusion
from openvse.indexing import Index, build_index
from openvse.model.two_tower import Tower, TwoTower
from openvse.search import SearchEngine
from openvse.similarities import Fused, SetMax
from openvse_papers.vqa.answerer import Answerer
from openvse_papers.vqa.answers import AnswerVocabulary
from tests.conftest import PhotoMaker
from tests.naming import names, refusal

CAPTIONS = ["a red dog", "two cats"]
TINY = {"blocks": (1, 1, 1, 1), "stem_dim": 4, "inner_dim": 4, "image_size": 32, "fine_tune": False}


def text_tower(embed_dim: int = 8, aggregator: type[Aggregator] = GPO) -> Tower[BiGRU]:
    encoder = BiGRU(embed_dim=embed_dim, captions=CAPTIONS, min_count=1, word_dim=6)
    return Tower(encoder, aggregator(input_dim=encoder.local_dim, embed_dim=embed_dim))


def image_tower(aggregator: Aggregator | None = None) -> Tower[ImageEncoder]:
    projection = partial(ResidualMLP, count_padding=True)
    encoder = ImageEncoder(backbone=ResNet(**TINY), embed_dim=8, projection=projection)
    return Tower(encoder, aggregator or MultiView(input_dim=8, embed_dim=8, aggregator=GPO, num_views=2))


@pytest.mark.medium
def test_it_saves_loads_indexes_and_searches(make_photos: PhotoMaker, tmp_path: Path) -> None:
    model = TwoTower(image_tower(), text_tower(), SetMax()).eval()
    loaded = openvse.load(model.save(tmp_path / "model"))
    assert loaded.fingerprint == model.fingerprint
    photos = make_photos(3)
    assert torch.equal(loaded.encode_image(photos).vectors, model.encode_image(photos).vectors)
    assert torch.equal(loaded.encode_text(CAPTIONS).vectors, model.encode_text(CAPTIONS).vectors)
    build_index(loaded, photos[0].parent, tmp_path / "index")
    assert len(SearchEngine(model, Index.open(tmp_path / "index")).search(["a red dog"], 2)[0]) == 2


def test_it_reads_the_batches_of_a_loop_of_ones_own(make_photos: PhotoMaker) -> None:
    model = TwoTower(image_tower(), text_tower(), SetMax())
    photos = make_photos(2)
    images, texts = model(model.read_images(photos), model.read_texts(CAPTIONS))
    openvse.losses.triplet()(images, texts).backward()
    assert all(weight.grad is not None for weight in model.image.aggregator.parameters())
    model.eval()
    torch.testing.assert_close(model.image(model.read_images(photos)).vectors, model.encode_image(photos).vectors)
    assert model.read_texts(["a red dog", "two"]).mask.sum(dim=1).tolist() == [5, 3]


def test_its_spec_says_what_a_recipe_would() -> None:
    spec = TwoTower(image_tower(), text_tower(), SetMax()).spec.model_dump(mode="json")
    assert spec == {
        "embed_dim": 8,
        "image": {
            "encoder": {
                "name": "resnet",
                **{**TINY, "blocks": [1, 1, 1, 1]},
                "projection": {"name": "residual_mlp", "count_padding": True},
            },
            "aggregator": {"name": "multi_view", "num_views": 2},
        },
        "text": {"encoder": {"name": "bigru", "min_count": 1, "word_dim": 6}, "aggregator": {"name": "gpo"}},
        "similarity": {"name": "set_max"},
    }


def test_a_part_in_a_part_in_a_part(tmp_path: Path) -> None:
    frames = Frames(backbone=partial(ResNet, **TINY), num_frames=2)
    image = Tower(ImageEncoder(backbone=frames, embed_dim=8), Tokens(input_dim=8, embed_dim=8))
    fused = Fused(embed_dim=8, fusion=partial(ScoreAttentionFusion, num_heads=2, num_vectors=3))
    model = TwoTower(image, text_tower(aggregator=Tokens), fused).eval()
    loaded = openvse.load(model.save(tmp_path))
    assert loaded.fingerprint == model.fingerprint
    assert isinstance(loaded.similarity, Fused)
    assert model.spec.similarity.options == {"fusion": {"name": "score_attention", "num_heads": 2, "num_vectors": 3}}


def test_a_model_that_answers(tmp_path: Path) -> None:
    answers = AnswerVocabulary(["red", "two"], votes=False)
    seen = ImageEncoder(backbone=Precomputed(feature_dim=4), embed_dim=8)
    image = Tower(seen, Tokens(input_dim=8, embed_dim=8))
    fusion = ScoreAttentionFusion(embed_dim=8, num_heads=2)
    model = Answerer(image, text_tower(aggregator=Tokens), fusion, answers, embed_dim=8, dropout=0.2).eval()
    loaded = openvse.load(model.save(tmp_path))
    assert loaded.fingerprint == model.fingerprint
    assert isinstance(loaded, Answerer) and loaded.dropout == 0.2


class OfMyOwn(Mean):
    """A pooling that nobody registered."""


def test_an_unregistered_part_says_how_to_register_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = TwoTower(image_tower(OfMyOwn(input_dim=8, embed_dim=8)), text_tower(), SetMax())
    assert names(refusal(ModelError, model.save, tmp_path / "model"), "OfMyOwn", "--plugin")
    assert not (tmp_path / "model").exists()
    monkeypatch.setattr(AGGREGATORS, "_parts", {**AGGREGATORS._parts, "of_my_own": OfMyOwn})
    assert openvse.load(model.save(tmp_path / "model")).spec.image.aggregator.name == "of_my_own"


def test_widths_that_no_build_would_give_are_refused(tmp_path: Path) -> None:
    text = text_tower()
    text.aggregator = GPO(input_dim=16, embed_dim=16)
    assert names(refusal(ModelError, TwoTower(image_tower(), text, SetMax()).save, tmp_path), "input_dim", "16", "8")
    with pytest.raises(ModelError, match="embed_dim.*8.*16"):
        TwoTower(image_tower(), text_tower(embed_dim=16), SetMax()).save(tmp_path)


def test_copies_remember_what_they_were_made_of() -> None:
    made = MultiView(input_dim=8, embed_dim=8, num_views=2)
    for again in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert again.arguments() == {"input_dim": 8, "embed_dim": 8, "num_views": 2}


def test_no_path_of_this_machine_goes_into_the_folder(tmp_path: Path) -> None:
    vectors = tmp_path / "vectors.txt"
    vectors.write_text("dog 1 2 3 4 5 6\n")
    encoder = BiGRU(embed_dim=8, captions=CAPTIONS, min_count=1, word_dim=6, word_vectors=str(vectors))
    text = Tower(encoder, GPO(input_dim=8, embed_dim=8))
    model = TwoTower(image_tower(), text, SetMax()).eval()
    folder = model.save(tmp_path / "model")
    config = (folder / "config.json").read_text()
    assert str(tmp_path) not in config
    assert json.loads(config)["model"]["text"]["encoder"]["word_vectors"] == "vectors.txt"
    assert openvse.load(folder).fingerprint == model.fingerprint
