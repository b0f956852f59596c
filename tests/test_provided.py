"""The seam of the halves: mypy reads this file, too, so each function has the type under which it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import openvse.search.provided as asked
from openvse.conversion.weights import megabytes_of
from openvse.encoding.run import bank_sentences
from openvse.exporting.write import write_towers
from openvse.features.extract import find_stored_features
from openvse.indexing.embedding import StoredImages
from openvse.model.two_tower import TwoTower
from openvse.registry import Provided, installed
from openvse.retrieval.hit_reranker import HitReranker, ModelComparison, captions_below
from openvse.retrieval.names import write_model_of_names
from openvse.runtime.model import MODEL_LOADER, ModelLoader, WholeModel
from openvse.search.exact import ItemComparison
from openvse.tasks.load import load_same, load_two_tower
from openvse.tasks.looking import look_as_json
from openvse.teaching.described import describe_folder
from openvse.teaching.teacher import Teacher
from openvse_engines.catalogue import StoreCatalogue, read_address
from openvse_papers.vqa.explain import load_served


def test_every_function_that_is_asked_for_is_provided() -> None:
    wanted: dict[str, object] = {"answerer": load_served, "captions": captions_below}
    wanted |= {"comparison": ModelComparison, "explainer": look_as_json, "model_size": megabytes_of}
    wanted |= {"model_of_names": write_model_of_names, "describer": describe_folder, "teacher": Teacher}
    wanted |= {"reranker": HitReranker, "same_model": load_same, "sentences": bank_sentences}
    wanted |= {"stored_features": find_stored_features, "towers": write_towers}
    wanted |= {"store_address": read_address, "store_catalogue": StoreCatalogue}
    found = [each for each in vars(asked).values() if isinstance(each, Provided)]
    assert {each.name: each.get() for each in found} == wanted
    assert {"model_loader", *wanted} == {*installed("provider")}
    assert MODEL_LOADER.get() is load_two_tower


def check_types(model: TwoTower) -> None:
    """Never called: what mypy compares."""
    loader: ModelLoader = load_two_tower
    whole: WholeModel = model
    towers: asked.WritesTowers = write_towers
    answerer: asked.AnswersQuestions = load_served("model", "cpu")
    reranker: asked.MakesReranker = HitReranker
    ranks: asked.RanksAgain = HitReranker(model)
    comparison: Callable[[Any, bool], ItemComparison] = ModelComparison
    explainer: Callable[[Any, Any, str], dict[str, Any]] = look_as_json
    stored: Callable[[Any, str, Path | None], StoredImages | None] = find_stored_features
    catalogue: asked.MakesCatalogue = StoreCatalogue
    teacher: asked.MakesTeacher = Teacher
    describer: Callable[[Any, Path, Path, Any], StoredImages | None] = describe_folder
    print(
        teacher, describer, loader, whole, towers, answerer, reranker, ranks, comparison, explainer, stored, catalogue
    )
