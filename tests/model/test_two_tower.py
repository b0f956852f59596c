"""A model in use: encoding, scoring, its folder and its fingerprint."""

import copy
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import openvse
from openvse.errors import BadImageError, DataError, ModelError, OpenVSEError
from openvse.model.two_tower import TwoTower
from openvse.retrieval.build import build_model
from openvse.similarities import SetMax
from openvse.tasks.load import load_as
from openvse.tasks.recipes import parse_recipe
from openvse.tokenization.vocabulary import UnknownWord
from openvse.types import EmbeddingSet
from tests.conftest import PhotoMaker
from tests.naming import names, refusal
from tests.tiny import tiny_tree

CAPTIONS = ["red dog runs", "green cat sleeps on the grass", "blue bird"]


@pytest.fixture(scope="module")
def model() -> TwoTower:
    tree = tiny_tree(Path())
    tree["image"]["encoder"] = {"name": "efficientnet_lite0", "pretrained": False, "image_size": 64}
    return build_model(parse_recipe(tree), captions=CAPTIONS).eval()


@pytest.mark.medium
def test_images_may_be_paths_bytes_images_or_arrays(model: TwoTower, make_photos: PhotoMaker) -> None:
    path = make_photos(1)[0]
    image = Image.open(path).convert("RGB")
    embedded = model.encode_image(each for each in (path, str(path), path.read_bytes(), image, np.asarray(image)))
    assert embedded.vectors.shape == (5, 1, 16)
    torch.testing.assert_close(embedded.vectors, embedded.vectors[:1].expand(5, -1, -1))
    torch.testing.assert_close(embedded.vectors.norm(dim=-1), torch.ones(5, 1))
    shown = repr(model)
    assert "\n" not in shown and len(shown) < 200
    for part in (model.fingerprint, "16", type(model.similarity).__name__, type(model.text.encoder).__name__):
        assert part in shown


def test_sentences_keep_their_order_whatever_their_length(model: TwoTower) -> None:
    together = model.encode_text(CAPTIONS, batch_size=2)
    for position, caption in enumerate(CAPTIONS):
        alone = model.encode_text([caption])
        torch.testing.assert_close(together.vectors[position], alone.vectors[0], rtol=0, atol=1e-6)


@pytest.mark.medium
def test_one_item_by_itself_is_one_item(model: TwoTower, make_photos: PhotoMaker) -> None:
    texts = model.encode_text("red dog runs")
    assert torch.equal(texts.vectors, model.encode_text(["red dog runs"]).vectors)
    path = make_photos(1)[0]
    image = Image.open(path).convert("RGB")
    expected = model.encode_image([path]).vectors
    for one in (path, str(path), path.read_bytes(), image, np.asarray(image)):
        torch.testing.assert_close(model.encode_image(one).vectors, expected)


def test_unknown_words_are_named_in_one_warning(model: TwoTower, caplog: pytest.LogCaptureFixture) -> None:
    model.encode_text(["red zebra", "blue bird", "a zebra"])
    assert caplog.messages == ["the model does not know the words 'zebra', 'a'"]
    assert model.unknown_words(["red zebra", "blue bird"]) == [[UnknownWord("zebra")], []]
    assert model.unknown_words("red zebra") == [[UnknownWord("zebra")]]
    caplog.clear()
    model.encode_text(CAPTIONS)
    assert caplog.messages == []


def test_scores_are_cosines(model: TwoTower, make_photos: PhotoMaker) -> None:
    images, texts = model.encode_image(make_photos(2)), model.encode_text(CAPTIONS)
    scores = model.score(images, texts)
    torch.testing.assert_close(scores, images.vectors[:, 0] @ texts.vectors[:, 0].T)
    assert scores.shape == (2, 3) and scores.abs().max() <= 1 + 1e-6
    assert model.indexable


class Remote(SetMax):
    """Its weight lies on another device than the embeddings; it says how far they came."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones((), device="meta"))

    def forward(self, images: EmbeddingSet, texts: EmbeddingSet) -> torch.Tensor:
        assert images.vectors.device == texts.mask.device == self.scale.device
        return torch.zeros(len(images), len(texts))


def test_scores_are_computed_where_the_similarity_has_its_weights(model: TwoTower) -> None:
    texts = model.encode_text(CAPTIONS)
    other = TwoTower(model.image, model.text, Remote(), model.spec)
    scores = other.score(texts, texts)
    assert scores.shape == (3, 3) and scores.device == texts.vectors.device


def test_encoding_leaves_the_mode_as_it_was(model: TwoTower) -> None:
    model.train()
    first, second = model.encode_text(CAPTIONS), model.encode_text(CAPTIONS)
    assert model.text.training
    model.eval()
    assert torch.equal(first.vectors, second.vectors)  # no augmentation although it was in training mode


def test_a_bad_image_leaves_the_mode_as_it_was(model: TwoTower, make_photos: PhotoMaker, tmp_path: Path) -> None:
    (tmp_path / "bad.jpg").write_bytes(b"no image")
    model.train()
    try:
        with pytest.raises(BadImageError, match="bad.jpg"):
            model.encode_image([*make_photos(1), tmp_path / "bad.jpg"], batch_size=1)
        assert model.image.training
    finally:
        model.eval()


def test_bad_input_is_named(model: TwoTower, tmp_path: Path) -> None:
    (tmp_path / "bad.jpg").write_bytes(b"no image")
    assert names(refusal(BadImageError, model.encode_image, [tmp_path / "bad.jpg"]), "bad.jpg")
    assert names(refusal(DataError, model.encode_text, []), "captions")


def test_bf16_is_taken_by_a_large_network_whose_embeddings_agree(
    model: TwoTower, make_photos: PhotoMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    pixels = [model.read_image(photo) for photo in make_photos(2)]
    single = model.encode_image(make_photos(2)).vectors
    monkeypatch.setattr("openvse.model.two_tower.computes_bf16", lambda device: device == "cpu")
    for large, cosine, taken in ((10**9, 0.5, False), (1, 1.1, False), (1, 0.5, True)):
        monkeypatch.setattr("openvse.model.two_tower._LARGE", large)
        monkeypatch.setattr("openvse.model.two_tower._COSINE", cosine)
        monkeypatch.setattr(model, "bf16", None)
        vectors = model.encode_pixels(pixels).vectors
        assert model.bf16 is taken and torch.equal(vectors, single) is not taken
        assert vectors.dtype == torch.float32
        torch.testing.assert_close(vectors, single, atol=0.05, rtol=0)


@pytest.mark.medium
def test_saved_and_loaded_it_scores_the_same(model: TwoTower, make_photos: PhotoMaker, tmp_path: Path) -> None:
    folder = model.save(tmp_path / "model")
    assert {path.name for path in folder.iterdir()} == {"config.json", "model.safetensors", "text"}
    loaded = openvse.load(folder)
    photos = make_photos(2)
    assert torch.equal(loaded.encode_image(photos).vectors, model.encode_image(photos).vectors)
    assert torch.equal(loaded.encode_text(CAPTIONS).vectors, model.encode_text(CAPTIONS).vectors)
    assert loaded.fingerprint == model.fingerprint
    assert not loaded.training


def test_weights_in_one_piece_of_memory_are_saved_each_by_itself(model: TwoTower, tmp_path: Path) -> None:
    """So cuDNN keeps the weights of a GRU on a GPU; one with two names is written once."""
    other = copy.deepcopy(model)
    weights = list(other.text.encoder.gru.parameters())
    memory = torch.cat([torch.zeros(5), *(weight.detach().flatten() for weight in weights)])
    at = 5
    for weight in weights:
        weight.data = memory[at : at + weight.numel()].view_as(weight)
        at += weight.numel()
    other.save(tmp_path / "together")
    model.save(tmp_path / "apart")
    together, apart = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("together", "apart"))
    assert together == apart


def change_in_place(model: TwoTower) -> None:
    with torch.no_grad():
        model.text.encoder.get_parameter("gru.weight_hh_l0").add_(1e-3)


def change_order(model: TwoTower) -> None:
    """Leave every number as it is, but in another place."""
    with torch.no_grad():
        weight = model.text.encoder.get_parameter("gru.weight_hh_l0")
        weight.copy_(weight.flip(0))


def change_data(model: TwoTower) -> None:
    model.text.encoder.get_parameter("gru.weight_hh_l0").data[0, 0] += 1


def train_a_step(model: TwoTower) -> None:
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=1e-3, fused=True)
    sum(weight.sum() for weight in weights).backward()
    optimizer.step()


def load_others(model: TwoTower) -> None:
    model.load_state_dict({name: weight * 2 for name, weight in model.state_dict().items()})


@pytest.mark.medium
@pytest.mark.parametrize(
    "change", [change_in_place, change_order, change_data, train_a_step, load_others, TwoTower.double]
)
def test_the_fingerprint_follows_the_weights(
    model: TwoTower, tmp_path: Path, change: Callable[[TwoTower], object]
) -> None:
    other = load_as(TwoTower, model.save(tmp_path))
    before = other.fingerprint
    change(other)
    assert other.fingerprint != before == model.fingerprint
    assert other.fingerprint == copy.deepcopy(other).fingerprint, "as if it had never been known"


def test_weights_are_hashed_once(model: TwoTower, monkeypatch: pytest.MonkeyPatch) -> None:
    known = model.fingerprint
    monkeypatch.setattr("openvse.model.base.without_adapters", lambda _: pytest.fail("they are hashed again"))
    model.encode_text(CAPTIONS)
    assert model.fingerprint == known


class TestDamagedFolders:
    @pytest.fixture
    def folder(self, model: TwoTower, tmp_path: Path) -> Path:
        return model.save(tmp_path / "model")

    @pytest.mark.parametrize("missing", ["config.json", "model.safetensors"])
    def test_a_missing_file(self, folder: Path, missing: str) -> None:
        (folder / missing).unlink()
        assert names(refusal(ModelError, load_as, TwoTower, folder), missing)

    def test_truncated_weights(self, folder: Path) -> None:
        weights = folder / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:1000])
        assert names(refusal(ModelError, load_as, TwoTower, folder), "model.safetensors")

    def test_weights_of_another_model(self, folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        config["model"]["embed_dim"] = 8
        (folder / "config.json").write_text(json.dumps(config))
        assert names(refusal(ModelError, load_as, TwoTower, folder), "config.json")

    @pytest.mark.parametrize(
        "content",
        [
            "{",
            "[]",
            '{"format_version": 2, "task": "retrieval", "model": 3}',
            '{"format_version": 2, "task": "retrieval"}',
            '{"format_version": 2, "task": "retrieval", "model": {"embed_dim": 0}}',
        ],
    )
    def test_a_damaged_config(self, folder: Path, content: str) -> None:
        (folder / "config.json").write_text(content)
        assert names(refusal(ModelError, load_as, TwoTower, folder), "config.json")

    def test_a_missing_vocabulary(self, folder: Path) -> None:
        (folder / "text" / "vocabulary.json").unlink()
        assert names(refusal(OpenVSEError, load_as, TwoTower, folder), "vocabulary.json")


class TestHub:
    def test_upload_sends_a_model_folder(
        self, model: TwoTower, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        sent: dict[str, Path] = {}

        class Api:
            def __init__(self, token: str | None = None) -> None:
                self.token = token

            def create_repo(self, repo_id: str, *, private: bool, exist_ok: bool) -> None:
                assert (repo_id, private, exist_ok) == ("me/tiny", True, True)

            def upload_folder(self, *, repo_id: str, folder_path: Path) -> str:
                sent[repo_id] = Path(folder_path).rename(tmp_path / "hub")
                Path(folder_path).mkdir()
                return f"https://hub/{repo_id}"

        monkeypatch.setattr("huggingface_hub.HfApi", Api)
        assert model.push_to_hub("me/tiny", private=True) == "https://hub/me/tiny"
        assert load_as(TwoTower, sent["me/tiny"]).fingerprint == model.fingerprint

    def test_download_from_the_cache_offline(
        self, model: TwoTower, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        # The layout of the hub's cache, as a download would leave it.
        commit = "0" * 40
        repository = tmp_path / "models--me--tiny"
        (repository / "refs").mkdir(parents=True)
        (repository / "refs" / "main").write_text(commit)
        model.save(repository / "snapshots" / commit)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        monkeypatch.setattr("huggingface_hub._snapshot_download.HF_HUB_CACHE", str(tmp_path), raising=False)
        monkeypatch.setattr("huggingface_hub.constants.is_offline_mode", lambda: True, raising=False)
        assert load_as(TwoTower, "me/tiny").fingerprint == model.fingerprint

    @pytest.mark.parametrize("name", ["no/such-model", "not a valid id!"])
    def test_neither_folder_nor_hub_id(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        (tmp_path / "runs" / "mine").mkdir(parents=True)
        monkeypatch.chdir(tmp_path)
        asked: list[str] = []

        def hub(repo_id: str, *_: object, **__: object) -> str:
            asked.append(repo_id)
            raise ValueError("no route")

        for slip, meant in (("runs/mien", "no route.*'runs/mine'"), ("clip-b23", "clip-b32")):
            with monkeypatch.context() as patch, pytest.raises(ModelError, match=meant):
                patch.setattr("huggingface_hub.hf_hub_download", hub)
                load_as(TwoTower, slip)
        assert asked == ["runs/mien"]  # a folder called like an owner hides none of the owner's models
        with pytest.raises(ModelError, match="not a valid id|no/such-model") as error:
            load_as(TwoTower, name)
        assert "\n" not in str(error.value)
