"""Texts that are given by themselves, in a column or a generator; tables and other things are refused in a line."""

from __future__ import annotations

import inspect
import math
from functools import partial
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

import openvse
from openvse.errors import BadImageError, DataError
from openvse.features.store import FeatureStore
from openvse.files import given_path, several
from openvse.media.images import one_or_many, one_or_several, read_image
from openvse.registry import load_plugin
from openvse.retrieval.hit_reranker import HitReranker
from openvse.search import Index, Page, Query, build_index
from openvse.search.updating import IndexSettings
from openvse.serving.settings import Limits, Settings
from tests.naming import names, refusal


class Table:
    """A table, as pandas has it: an iterable of the names of its columns."""

    columns = ("caption",)

    def __iter__(self) -> Any:
        return iter(self.columns)


def test_texts_in_any_form_are_a_list() -> None:
    for given in ("a dog", ["a dog"], ("a dog",), np.array(["a dog"]), (text for text in ["a dog"])):
        assert several(given, "captions") == ["a dog"]
    assert several([], "captions") == []


NO_TEXTS = [None, 3, b"a dog", bytearray(b"a dog"), np.array("a dog"), Table(), {"caption": "a dog"}]


@pytest.mark.parametrize("given", [*NO_TEXTS, ["a dog", None], [math.nan]])
def test_what_is_no_list_of_texts_is_refused_in_a_line(given: object) -> None:
    refused = refusal(DataError, several, given, "captions")
    assert names(refused, "captions") and len(refused) < 150


def test_a_text_is_a_sequence_of_one_in_queries() -> None:
    assert Query("an animal", avoid="dog") == Query("an animal", avoid=("dog",))
    assert Page(where="kind = image") == Page(where=("kind = image",))


@pytest.mark.parametrize("number", [math.nan, math.inf, "5", [5], 2.5, True, np.True_, None])
def test_numbers_of_a_search_are_numbers(number: object) -> None:
    def made(kind: Any, **given: object) -> None:
        kind(**given)

    for name in ("top_k", "skip"):
        assert names(refusal(DataError, made, Page, **{name: number}), name)
    unchecked = inspect.unwrap(HitReranker.__init__)  # __wrapped__ has no types to refuse before
    assert names(refusal(DataError, unchecked, SimpleNamespace(), None, top=number), "top")
    if number in (2.5, None):
        return
    for name in ("min_score", "min_precision", "expected"):
        assert names(refusal(DataError, made, Page, **{name: number}), name)
    for name in ("image_weight", "avoid_weight"):
        assert names(refusal(DataError, made, Query, text="a dog", **{name: number}), name)


def test_settings_refuse_a_number_outside_of_the_range_that_they_name() -> None:
    for kind, name, wrong, right in (
        (Page, "top_k", (0, -1), (1, 3)),
        (Page, "skip", (-1,), (0, 7)),
        (Page, "min_score", (math.nan, -math.inf), (-3.0, 0.0)),
        (Page, "min_precision", (0.0, 1.1, -0.5, 2.0), (1.0, 1e-9)),
        (Page, "expected", (0.0, -1.0, math.inf), (0.1, 1e9)),
        (partial(Query, "a dog", like="a.jpg"), "image_weight", (-0.1, 1.1), (0.0, 1.0)),
        (partial(Query, "a dog", avoid=("b",)), "avoid_weight", (-0.1, math.inf), (0.0, 9.0)),
        (IndexSettings, "segment_seconds", (0.05, 1e9, -1.0, math.nan), (0.0, 0.1, None)),
        (Settings, "port", (-1, 65536), (0, 65535)),
        (Settings, "rerank_top", (0,), (1,)),
        (Settings, "reload_s", (0.0, math.nan), (0.5,)),
        (Limits, "uploads", (-1,), (1,)),
        (Limits, "timeout", (-1.0, math.inf), (0.5,)),
    ):
        for number in wrong:
            assert names(refusal(DataError, kind, **{name: number}), name, repr(number))
        for number in right:
            made = kind(**{name: number})
            assert getattr(made, name) == number


@pytest.mark.parametrize("given", [None, 3, b"x", "", []])
def test_what_is_no_path_is_refused_in_a_line(given: object) -> None:
    assert names(refusal(DataError, given_path, given, "the index"), "the index")
    for opened in (Index.open, FeatureStore, openvse.load):
        refusal(DataError, opened, "")


@pytest.mark.parametrize("given", ["", ["photos", ""]])
def test_no_index_is_made_of_the_folder_of_work(given: Any, tmp_path: Path) -> None:
    model = SimpleNamespace(indexable=True)
    assert names(refusal(DataError, build_index, model, given, tmp_path / "index"), "folder", "''")
    assert not (tmp_path / "index").exists()


def test_bytes_in_any_form_are_one_image() -> None:
    file = BytesIO()
    Image.new("RGB", (4, 3), "red").save(file, "PNG")
    content = file.getvalue()
    for given in (bytearray(content), memoryview(content), BytesIO(content)):
        assert one_or_many(given) == one_or_many(given) == one_or_several(given, "items") == [content]
        assert one_or_several([given, given], "items") == [content, content]
    refusal(BadImageError, read_image, Image.new("RGB", (0, 3)))


@pytest.mark.parametrize("given", [[], {"path": "a.png"}, Table()])
def test_what_holds_no_images_is_named_in_a_line(given: Any) -> None:
    assert names(refusal(DataError, one_or_many, given), type(given).__name__)


def test_a_plug_in_replaces_no_module(tmp_path: Path, monkeypatch) -> None:
    import copy
    import sys

    plugin = tmp_path / "copy.py"
    plugin.write_text("from copy import deepcopy\nassert deepcopy([1]) == [1]\n")
    monkeypatch.setattr("openvse.registry._plugins", [])

    def loaded() -> list[str]:
        return [name for name in sys.modules if name.endswith("plugin_copy")]

    load_plugin(plugin)
    assert sys.modules["copy"] is copy and len(loaded()) == 1
    for name in loaded():
        monkeypatch.delitem(sys.modules, name)
    plugin.write_text("raise ValueError('broken')\n")
    assert names(refusal(Exception, load_plugin, plugin), "broken")
    assert loaded() == []
