"""What a model folder says: the spec, where the model comes from, and nothing about the machine."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

import openvse
from openvse.errors import ModelError
from openvse.model.base import CONFIG, FORMAT_VERSION, WEIGHTS, model_card
from openvse.retrieval.build import build_model
from openvse.tasks.load import load
from openvse.tasks.recipes import parse_recipe
from openvse.tasks.run import run_recipe
from openvse.tasks.runs import NamedRun, differing_data, differing_keys
from tests.tiny import tiny_tree, write_tiny_corpus
from tests.tiny_questions import answering_tree, write_tiny_questions


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train the tiny recipe, with figures of a paper beside it."""
    folder = tmp_path_factory.mktemp("trained")
    tree = tiny_tree(write_tiny_corpus(folder / "data"))
    published = [{"source": "a paper", "num_images": 8, "metrics": {"rsum": 400.0}}]
    return run_recipe(parse_recipe({**tree, "published": published, "seed": 3}), folder / "run").best


def config_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())


@pytest.mark.medium
def test_the_spec_and_the_provenance(trained: Path) -> None:
    config = config_of(trained)
    assert config.keys() == {"library_name", "format_version", "task", "model", "provenance"}
    assert (config["format_version"], config["task"]) == (2, "retrieval")
    assert config["model"].keys() == {"embed_dim", "image", "text", "similarity"}
    provenance = config["provenance"]
    assert (provenance["openvse"], provenance["recipe"], provenance["seed"]) == (openvse.__version__, "tiny", 3)
    assert provenance["data"].pop("trained_on")["images"] == 32
    assert provenance["data"].pop("digests").keys() == {"train", "validation"}
    assert provenance["data"] == {"name": "tiny", "splits": {"train": 32, "validation": 8}}
    metrics, intervals = (provenance["validation"][key] for key in ("metrics", "intervals"))
    low, high = intervals["rsum"]
    assert low <= metrics["rsum"] <= high and 1 <= provenance["validation"]["epoch"] <= 3
    assert provenance["published"][0]["metrics"] == {"rsum": 400.0}


@pytest.mark.medium
def test_nothing_of_the_machine_is_published_and_the_run_keeps_it(trained: Path) -> None:
    source = yaml.safe_load((trained.parent / "recipe.yaml").read_text())["data"]["source"]
    assert Path(source).is_absolute()
    assert str(Path(source).parent) not in (trained / "config.json").read_text()


@pytest.mark.medium
def test_answers_have_intervals_too(tmp_path: Path) -> None:
    tree = answering_tree(write_tiny_questions(tmp_path / "data"))
    config = config_of(run_recipe(parse_recipe(tree), tmp_path / "run").best)
    assert config["model"].keys() == {"embed_dim", "image", "text", "fusion", "head", "answers"}
    low, high = config["provenance"]["validation"]["intervals"]["accuracy"]
    assert 0 <= low <= config["provenance"]["validation"]["metrics"]["accuracy"] <= high <= 100


@pytest.mark.medium
def test_provenance_of_any_form_does_not_keep_a_model_from_loading(trained: Path, tmp_path: Path) -> None:
    model = load(trained)
    for provenance in (None, 3, {"data": "x", "validation": [], "published": "none"}):
        folder = model.save(tmp_path)
        (folder / "config.json").write_text(json.dumps({**config_of(folder), "provenance": provenance}))
        loaded = load(folder)
        assert loaded.fingerprint == model.fingerprint
        assert model_card("me/tiny", loaded.task, loaded.spec, loaded.provenance).startswith("---\n")


@pytest.mark.parametrize("version", [1, 3])
def test_a_folder_of_another_format_is_refused_with_what_to_do(trained: Path, tmp_path: Path, version: int) -> None:
    folder = load(trained).save(tmp_path)
    (folder / "config.json").write_text(json.dumps({**config_of(folder), "format_version": version}))
    with pytest.raises(ModelError, match=f"{version}.*2"):
        load(folder)


class TestCard:
    def test_it_says_what_whoever_loads_the_model_asks(self, trained: Path) -> None:
        model = load(trained)
        card = model_card("me/tiny", model.task, model.spec, model.provenance)
        header = yaml.safe_load(card.split("---\n")[1])
        assert header["library_name"] == "openvse" and "retrieval" in header["tags"]
        assert 'openvse.load("me/tiny")' in card
        assert "- Data: tiny (32 train, 8 validation)" in card
        assert "| rsum |" in card and "95 % interval" in card and "## Limits" in card

    def test_the_terms_of_a_known_data_set_are_in_it(self) -> None:
        data = {"name": "flickr8k", "splits": {"train": 6000}, "licence": "for research only"}
        model = build_model(parse_recipe(tiny_tree(Path())), captions=["a dog"])
        card = model_card("me/f8k", "retrieval", model.spec, {"recipe": "mine", "data": data})
        assert "- Terms of the data: for research only" in card and "## Figures" not in card

    def test_it_goes_to_the_hub_with_the_model(
        self, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Api:
            def __init__(self, token: str | None = None) -> None: ...

            def create_repo(self, repo_id: str, *, private: bool, exist_ok: bool) -> None: ...

            def upload_folder(self, *, repo_id: str, folder_path: Path) -> str:
                (tmp_path / "card.md").write_text((Path(folder_path) / "README.md").read_text())
                return f"https://hub/{repo_id}"

        monkeypatch.setattr("huggingface_hub.HfApi", Api)
        load(trained).push_to_hub("me/tiny")
        assert "# me/tiny" in (tmp_path / "card.md").read_text()


def run_of(folder: Path, train: str | None, validation: str | None) -> NamedRun:
    """Write the config of a model that names the hashes of its data."""
    named = {"train": train, "validation": validation}
    digests = {split: digest for split, digest in named.items() if digest is not None}
    provenance: dict[str, Any] = {"data": {"name": "some", **({"digests": digests} if digests else {})}}
    config = {"format_version": FORMAT_VERSION, "task": "retrieval", "model": {}, "provenance": provenance}
    folder.mkdir()
    (folder / WEIGHTS).touch()
    (folder / CONFIG).write_text(json.dumps({"library_name": "openvse", **config}))
    return NamedRun(str(folder), str(folder))


def test_runs_on_different_data_are_told(tmp_path: Path) -> None:
    one, same, other, old = (
        run_of(tmp_path / name, *digests)
        for name, digests in {"one": ("a", "v"), "same": ("a", "v"), "other": ("b", "w"), "old": (None, None)}.items()
    )
    assert differing_data({"one": [one], "same": [same], "old": [old]}) == []
    trained, validated = differing_data({"one": [one, same], "other": [other], "old": [old]})
    assert "trained" in trained and "(one; other)" in trained
    assert "validation" in validated
    base = {"image": {"aggregator": {"name": "gpo", "k": 5}}, "training": {"phases": [{"epochs": 9}]}}
    pooled = base | {"image": {"aggregator": {"name": "mean", "k": 1}}}
    longer = pooled | {"training": {"phases": [{"epochs": 3}]}}
    made = [replace(one, recipe=json.dumps(tree)) for tree in (base, pooled, longer)]
    lines = differing_keys(dict(zip("ABC", ([each] for each in made), strict=True)))
    assert [line.startswith(f"{name} differs from A in ") for name, line in zip("BC", lines, strict=True)]
    assert [line.count("image.aggregator.") for line in lines] == [2, 2]
    assert ["any of" in line for line in lines] == [False, True]  # a part with its options is one difference

    mixed = differing_data({"both": [one, other], "same": [same]})
    assert [line.startswith("both: its runs were ") for line in mixed] == [True, False, True, False]
