"""Published dual encoders as model folders: pixels, embeddings and logits are those of ``transformers``."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import openvse
from openvse.conversion.convert import convert
from openvse.errors import CheckpointError, ModelError
from openvse.functional import pad
from openvse.types import Inputs
from tests.dual_checkpoints import CAPTIONS, FAMILIES, save_dual
from tests.naming import names, refusal

EXACT = {"rtol": 0, "atol": 1e-5}
pytestmark = pytest.mark.medium


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: Any) -> Any:
    root = tmp_path_factory.mktemp("dual")

    def make(family: str) -> Path:
        folder = root / family
        return folder if folder.exists() else save_dual(family, folder)

    return make


def own(folder: Path, images: list[Image.Image]) -> Any:
    """Return what ``transformers`` makes of images and captions, as its documentation says."""
    from transformers import AutoImageProcessor, AutoModel, AutoTokenizer

    model = AutoModel.from_pretrained(folder).float().eval()
    pixels = AutoImageProcessor.from_pretrained(folder, backend="pil")(images, return_tensors="pt")
    siglip = model.config.model_type == "siglip"
    padding: dict[str, Any] = {"padding": "max_length", "max_length": 16} if siglip else {"padding": True}
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        made = model(**pixels, **tokenizer(list(CAPTIONS), return_tensors="pt", **padding))
    return pixels["pixel_values"], made


def expect_own(folder: Path, model: Any, paths: list[Path]) -> None:
    """Compare pixels, embeddings, scores and logits."""
    pixels, theirs = own(folder, [Image.open(path) for path in paths])
    torch.testing.assert_close(model.read_images(paths).values, pixels, **EXACT)
    images, texts = model.encode_image(paths), model.encode_text(CAPTIONS)
    torch.testing.assert_close(images.vectors[:, 0], theirs.image_embeds, **EXACT)
    torch.testing.assert_close(texts.vectors[:, 0], theirs.text_embeds, **EXACT)
    torch.testing.assert_close(model.score(images, texts), theirs.image_embeds @ theirs.text_embeds.T, **EXACT)
    torch.testing.assert_close(model.logits(images, texts), theirs.logits_per_image, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_pixels_embeddings_and_logits_are_the_librarys_own(
    family: str, checkpoint: Any, make_photos: Any, tmp_path: Path
) -> None:
    done = convert(checkpoint(family), tmp_path / "model")
    assert done.repository == family
    model = openvse.load(tmp_path / "model")
    expect_own(checkpoint(family), model, [*make_photos(2), *make_photos(1, "upright", (60, 91))])
    assert model.similarity.link == ("sigmoid" if family == "siglip" else "softmax")
    assert model.indexable


@pytest.mark.parametrize("form", [{"half": True}, {"safe": False}, {"shards": True}], ids=str)
def test_other_forms_of_the_weights_are_read(form: Any, make_photos: Any, tmp_path: Path) -> None:
    folder = save_dual("clip", tmp_path / "clip", **form)
    convert(folder, tmp_path / "model")
    expect_own(folder, openvse.load(tmp_path / "model"), make_photos(2))


def test_siglip_follows_a_tokenizer_that_pads_on_the_left(make_photos: Any, tmp_path: Path) -> None:
    folder = save_dual("siglip", tmp_path / "siglip")
    convert(folder, tmp_path / "right")
    settings = folder / "tokenizer_config.json"
    settings.write_text(settings.read_text().replace('"right"', '"left"'))
    convert(folder, tmp_path / "left")
    right, left = (openvse.load(tmp_path / side) for side in ("right", "left"))
    expect_own(folder, left, make_photos(2))
    assert not torch.allclose(left.encode_text(CAPTIONS).vectors, right.encode_text(CAPTIONS).vectors, atol=1e-3)
    for caption in CAPTIONS:  # tokens of a batch stay where they are alone
        alone = left.text.encoder(pad(left.text.encoder.tokenize([caption]))).local[0]
        batch = left.text.encoder(pad(left.text.encoder.tokenize([caption, CAPTIONS[1]]))).local[0]
        torch.testing.assert_close(batch[: len(alone)], alone, **EXACT)


@pytest.mark.parametrize("family", ["clip", "siglip"])
def test_the_tokens_of_both_sides_can_be_stored(family: str, checkpoint: Any, make_photos: Any, tmp_path: Path) -> None:
    convert(checkpoint(family), tmp_path / "model")
    model = openvse.load(tmp_path / "model")
    with torch.no_grad():
        seen = model.image.encoder.local_features(model.read_images(make_photos(2)))
        read = model.text.encoder.token_states(model.read_texts(CAPTIONS))
        stored = model.image(Inputs(seen.local, seen.mask)), model.text(Inputs(read.local, read.mask))
    assert seen.local.shape[1] == (17 if family == "clip" else 16)
    for from_store, made in zip(stored, (model.encode_image(make_photos(2)), model.encode_text(CAPTIONS)), strict=True):
        torch.testing.assert_close(from_store.vectors, made.vectors, **EXACT)
    tokens = [len(ids) for ids in model.text.encoder.tokenize(CAPTIONS)]
    assert read.mask.sum(dim=1).tolist() == [count + (family == "siglip") for count in tokens]
    features = model.text.encoder(model.read_texts(CAPTIONS))
    assert features.local.shape[-1] == model.spec.embed_dim, "words can be pooled in the joint space"


def with_its_own_tokenizer(folder: Path) -> Path:
    """Let a SigLIP name the class of the published tokenizers, without its words yet."""
    save_dual("siglip", folder)
    for path in folder.glob("tokenizer*"):
        path.unlink()
    named = {"tokenizer_class": "SiglipTokenizer", "model_max_length": 16, "model_input_names": ["input_ids"]}
    ends = {"pad_token": "</s>", "eos_token": "</s>", "unk_token": "<unk>", "do_lower_case": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(named | ends))
    return folder


def test_siglips_own_tokenizer_is_kept(tmp_path: Path) -> None:
    """It leaves punctuation and capitals out, and its words are in a file of SentencePiece."""
    from transformers import AutoModel, AutoTokenizer

    pieces = pytest.importorskip("sentencepiece")
    folder = with_its_own_tokenizer(tmp_path / "siglip")
    (tmp_path / "text.txt").write_text("a dog runs on the mat\ntwo cats sit on the red mat\nthe zebra is here\n" * 20)
    pieces.SentencePieceTrainer.train(
        input=str(tmp_path / "text.txt"), model_prefix=str(folder / "spiece"), vocab_size=60,
        hard_vocab_limit=False, unk_id=0, pad_id=1, eos_id=2, bos_id=-1, minloglevel=2,
    )  # fmt: skip
    convert(folder, tmp_path / "model")
    captions = ["A Dog runs, on the mat!", "two cats", "the zebra is here. " * 9]
    ids = AutoTokenizer.from_pretrained(folder)(captions, padding="max_length", truncation=True, return_tensors="pt")
    with torch.no_grad():
        theirs = AutoModel.from_pretrained(folder).eval().get_text_features(**ids).pooler_output
    ours = openvse.load(tmp_path / "model").encode_text(captions).vectors[:, 0]
    torch.testing.assert_close(ours, torch.nn.functional.normalize(theirs, dim=1), **EXACT)


def test_a_tokenizer_that_lacks_its_library_says_what_to_install(tmp_path: Path, monkeypatch: Any) -> None:
    from transformers import AutoTokenizer

    def lacking(source: str, **options: object) -> None:
        raise ImportError("\nSiglipTokenizer requires the SentencePiece library but it was not found")

    folder = with_its_own_tokenizer(tmp_path / "siglip")
    (folder / "spiece.model").write_text("words")
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", lacking)
    assert names(refusal(CheckpointError, convert, folder, tmp_path / "model"), "SentencePiece", "pip install")


def test_the_folder_needs_nothing_else(checkpoint: Any, make_photos: Any, tmp_path: Path) -> None:
    source = tmp_path / "my_clip"
    shutil.copytree(checkpoint("clip"), source)
    done = convert(source, tmp_path / "model")
    shutil.rmtree(source)
    texts = [path.read_text() for path in (tmp_path / "model").rglob("*.json")]
    assert not any(str(tmp_path) in text for text in texts)
    model = openvse.load(tmp_path / "model")
    assert model.fingerprint == done.model.fingerprint
    assert model.provenance["converted"] == {"source": "my_clip", "revision": None, "architecture": "clip"}
    model.save(tmp_path / "again")
    assert openvse.load(tmp_path / "again").fingerprint == model.fingerprint
    assert openvse.load(tmp_path / "again").image.encoder.fingerprint == model.image.encoder.fingerprint


def test_options_of_the_model_can_be_given(checkpoint: Any, tmp_path: Path) -> None:
    done = convert(
        checkpoint("clip"), tmp_path / "m", overrides=["text.encoder.fine_tune=true", "text.encoder.max_length=5"]
    )
    assert any(weight.requires_grad for weight in done.model.text.encoder.backbone.parameters())
    assert not any(weight.requires_grad for weight in done.model.image.encoder.backbone.parameters())
    assert len(done.model.text.encoder.tokenize(["a dog on the red mat"])[0]) == 5


def test_other_models_have_no_logits(checkpoint: Any, make_photos: Any, tmp_path: Path) -> None:
    plain = convert(checkpoint("clip"), tmp_path / "m", overrides=["similarity=set_max"]).model
    images, texts = plain.encode_image(make_photos(1)), plain.encode_text("a dog")
    assert plain.score(images, texts).shape == (1, 1)
    assert names(refusal(ModelError, plain.logits, images, texts), "scaled_cosine")


def test_from_checkpoint_to_search_on_the_command_line(
    checkpoint: Any, make_photos: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    from openvse.cli.app import app

    make_photos(3)
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> str:
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
        return done.output

    assert "m: siglip, " in run("convert", str(checkpoint("siglip")), "m")
    assert "index: 3 images" in run("index", "m", "photos")
    found = run("search", "m", "index", "a dog", "-k", "2")
    assert found.count("photo_") == 2
    refused = CliRunner().invoke(app, ["index", str(checkpoint("clip")), "photos"])
    assert refused.exit_code == 2 and "openvse convert" in refused.output


def test_siglip_2_reads_small_letters_whatever_its_tokenizer(tmp_path: Path) -> None:
    model = convert(str(save_dual("siglip", tmp_path / "siglip")), tmp_path / "model").model
    assert json.loads((tmp_path / "model/config.json").read_text())["model"]["text"]["encoder"]["cleaning"] == "lower"
    for each in (model, openvse.load(tmp_path / "model")):
        upper, lower = each.text.encoder.tokenize(["A Red DOG", "a red dog"])
        assert upper.tolist() == lower.tolist() and each.text.encoder.unknown_words("Red DOG") == []
