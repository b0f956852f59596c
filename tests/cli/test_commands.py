"""Every command from end to end, on images."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest
import yaml
from PIL import Image
from torch.multiprocessing.spawn import ProcessExitedException

from openvse import __version__
from openvse.aggregators import AGGREGATORS
from openvse.evaluation.metrics import RECALL_AT
from openvse.features.extract import FeatureStoreWriter
from openvse.retrieval.build import build_model
from openvse.specs.load import list_recipes
from openvse.tasks.recipes import load_recipe
from tests.naming import names


def test_train_leaves_a_run(trained: Path) -> None:
    run = trained / "run"
    files = {"last.pt", "metrics.jsonl", "recipe.yaml", "writer.lock"}
    assert {path.name for path in run.iterdir()} == files | {"best", "features", "tensorboard"}
    assert {path.name for path in (run / "best").iterdir()} >= {"config.json", "model.safetensors", "text"}
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [record["epoch"] for record in records if record["kind"] == "validation"] == [1, 2]


@pytest.mark.medium
def test_a_finished_run_resumes_to_its_end(trained: Path, works) -> None:
    result = works("train", trained / "tiny.yaml", "--out", trained / "run", "--resume")
    assert result.stdout == f"{trained / 'run' / 'best'}\n"


@pytest.mark.medium
def test_the_default_folder_names_recipe_and_seed(recipe: Path, tmp_path: Path, works, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    works("train", recipe, "seed=3", "training.phases.0.epochs=1")
    assert (tmp_path / "runs" / "tiny-s3" / "best" / "model.safetensors").is_file()


def test_processes_end_with_the_code_of_the_one_that_failed(recipe: Path, tmp_path: Path, invoke, monkeypatch) -> None:
    def fail(run, nprocs: int, join: bool, start_method: str) -> None:
        raise ProcessExitedException("failed", 0, 0, exit_code=2)

    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(sys.modules[ProcessExitedException.__module__], "start_processes", fail)
    result = invoke("train", recipe, "--out", tmp_path / "run", "--processes", 2)
    assert (result.exit_code, result.output) == (2, "")


@pytest.mark.medium
def test_evaluate_prints_the_table_and_writes_reports(trained: Path, tmp_path: Path, works) -> None:
    result = works("evaluate", trained / "run" / "best", "--on", trained / "album", "--out", tmp_path / "report")
    assert result.stdout.startswith("# Retrieval on album/test\n")
    assert re.search(r"^\| \*\*this model\*\* \|", result.stdout, flags=re.MULTILINE)
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    assert (report["protocol"]["num_images"], report["protocol"]["num_texts"]) == (4, 8)
    assert {f"{side}_r{k}" for side in ("i2t", "t2i") for k in RECALL_AT} < report["metrics"].keys()
    assert (tmp_path / "report" / "report.md").read_text() == result.stdout.removesuffix("\n")


@pytest.mark.medium
def test_published_figures_stand_beside_those_of_the_same_protocol(trained: Path, tmp_path: Path, invoke) -> None:
    model = shutil.copytree(trained / "run" / "best", tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    figures = {"i2t_r1": 12.3, "rsum": 456.7}
    config["provenance"]["published"] = [
        {"source": "a paper, four images", "num_images": 4, "metrics": figures},
        {"source": "a paper, five images", "num_images": 5, "metrics": figures},
    ]
    (model / "config.json").write_text(json.dumps(config))
    shown = invoke("evaluate", model, "--on", trained / "album").stdout
    assert "| a paper, four images | 12.3 |" in shown and "456.7" in shown
    assert "five images" not in shown
    together = invoke("evaluate", model, model, "--on", trained / "album").stdout
    assert "a paper" not in together  # the figures are of one model


@pytest.mark.medium
def test_hubs_out_stand_beside_the_scores_as_they_are(trained: Path, invoke, result_of, refused) -> None:
    words = ("evaluate", trained / "run" / "best", "--on", trained / "album", "--query-bank")
    own = result_of(*words[:-1])["report"]
    named = result_of(*words, "train")["report"]
    assert own["metrics"] == named["metrics"]
    for report in (own, named):
        found = report["hubs_out"]
        assert (found["num_images"], found["num_texts"]) == (12, 20)
        assert found["metrics"] == own["hubs_out"]["metrics"]
    assert "| hubs out |" in invoke(*words, "train").stdout
    assert result_of(*words[:-1], "--split", "train")["report"]["hubs_out"] is None
    assert names(refused(*words, "test"), "test", "test")
    assert names(refused(*words, "train", "--split", "training"), "train", "train")
    assert result_of(*words, "train", "--split", "val")["report"]["hubs_out"] is not None
    assert "--every" in refused(*words, "train", "--every")


@pytest.mark.medium
@pytest.mark.parametrize(
    ("split", "num_images", "num_texts"), [("train", 12, 20), ("val", 4, 8), ("all", 20, 24)]
)  # captions that several images have are one text
def test_evaluate_other_splits(split: str, num_images: int, num_texts: int, trained: Path, result_of) -> None:
    words = ("evaluate", trained / "run" / "best", "--on", trained / "album")
    report = result_of(*words, "--split", split)["report"]
    protocol = report["protocol"]
    assert (protocol["num_images"], protocol["num_texts"]) == (num_images, num_texts)


@pytest.mark.medium
def test_evaluation_from_a_store_needs_no_images(trained: Path, tmp_path: Path, invoke, works) -> None:
    model, album = trained / "run" / "best", trained / "album"
    (tmp_path / "album").mkdir()
    (tmp_path / "album" / "metadata.jsonl").write_text((album / "metadata.jsonl").read_text())
    stored = ("--features", trained / "run" / "features", "--split", "all")
    without = works("evaluate", model, "--on", tmp_path / "album", *stored)
    assert without.stdout == invoke("evaluate", model, "--on", album, *stored).stdout


@pytest.mark.medium
def test_several_models_are_averaged(trained: Path, other: Path, result_of) -> None:
    first, second = trained / "run" / "best", other / "best"
    one, own = (("--features", run / "features") for run in (trained / "run", other))

    def metrics(*models: Path, stores: tuple[object, ...] = ()) -> dict[str, float]:
        report = result_of("evaluate", *models, "--on", trained / "album", "--split", "all", *stores)["report"]
        fingerprints.append(report["model"].split(", "))
        return report["metrics"]

    fingerprints: list[list[str]] = []
    metrics(first, second, first, stores=(*one, *own, *one))
    ((same, another, again),) = fingerprints
    assert same == again != another
    for_all = metrics(first, second, stores=one)
    assert for_all == metrics(first, second, stores=(*one, *one))
    assert for_all != metrics(first, second, stores=(*one, *own))  # another random CNN
    assert metrics(first, first) == metrics(first)


@pytest.mark.medium
def test_a_folder_of_stores_stands_for_the_one_that_fits(trained: Path, tmp_path: Path, invoke) -> None:
    words = ("evaluate", trained / "run" / "best", "--on", trained / "album", "--features")
    shutil.copytree(trained / "run" / "features", tmp_path / "grid")
    with FeatureStoreWriter(tmp_path / "regions", fingerprint="butd", dim=2048):
        pass
    assert invoke(*words, tmp_path).stdout == invoke(*words, trained / "run" / "features").stdout != ""
    shutil.copytree(tmp_path / "grid", tmp_path / "other")
    result = invoke(*words, tmp_path)
    assert result.exit_code == 2
    assert names(result.stderr, 2, "grid", "other")


@pytest.mark.medium
def test_extract_does_only_what_is_new(album: Path, tmp_path: Path, works) -> None:
    words = ("extract", "efficientnet_lite0", album, tmp_path / "store", "pretrained=false", "image_size=64")

    def extract() -> list[str]:
        told = works(*words).stdout.removeprefix(f"{tmp_path / 'store'}: ")
        return re.findall(r"\d+", told)[:3]  # new, there before, unreadable

    assert extract() == ["20", "0", "0"]
    Image.new("RGB", (50, 50), "white").save(album / "20.png")
    (album / "bad.png").write_text("not an image")
    with (album / "metadata.jsonl").open("a") as metadata:
        for name in ("20", "bad"):
            metadata.write(json.dumps({"file_name": f"{name}.png", "text": "a page"}) + "\n")
    assert extract() == ["1", "20", "1"]
    assert extract() == ["0", "21", "1"]


@pytest.mark.medium
def test_search_says_what_it_does_not_know_and_answers_the_rest(trained: Path, invoke, works, caplog) -> None:
    words = ("search", trained / "run" / "best", trained / "index")
    result = works(*words, "a red elephant", " ", "a zebra under something blue", "-k", 1)
    assert result.stdout.count(".png") == 2
    empty, unknown = caplog.messages
    assert names(empty, 1, 3) and names(unknown, "'elephant'", "'zebra'")
    assert result.stderr.splitlines() == [f"warning: {message}" for message in caplog.messages]
    document = json.loads(invoke(*words, "a red elephant", "--json").stdout)
    assert names(*document["warnings"], "'elephant'")
    (asked,) = document["result"]["queries"]
    assert asked["unknown_words"] == [{"word": "elephant", "read_as": None}]


@pytest.mark.medium
def test_search_ranks_images_for_each_query(trained: Path, tmp_path: Path, works) -> None:
    queries = ("red sky above green ground", "a blue field")
    page = tmp_path / "new" / "hits.html"
    result = works("search", trained / "run" / "best", trained / "index", *queries, "-k", 3, "--html", page)
    lines = result.stdout.splitlines()
    assert lines[0::4] == list(queries)
    for first in (1, 5):
        hits = [line.split(maxsplit=2) for line in lines[first : first + 3]]
        assert [rank for rank, _, _ in hits] == ["1", "2", "3"]
        assert sorted((float(score) for _, score, _ in hits), reverse=True) == [float(s) for _, s, _ in hits]
        assert all(Path(path.split("  (")[0]).is_file() for _, _, path in hits)
    assert page.read_text().count("<img ") == 6


@pytest.mark.medium
def test_recipes_and_parts_are_listed(invoke, result_of) -> None:
    lines = invoke("list", "recipes").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    listed = {line.split()[0] for line in lines if line[:2] == "  " and line[2] != " "}
    rows = {name: result_of("list", "recipes", name)["listed"] for name in listed - {*list_recipes()}}
    assert sorted([*(listed - {*rows}), *[row["name"] for each in rows.values() for row in each]]) == list_recipes()
    assert {"folder", "vse_infinity/coco"} <= listed
    parts = invoke("list", "parts").stdout.splitlines()
    assert f"aggregator: {', '.join(AGGREGATORS.names())}" in parts
    kinds = [line.partition(":")[0] for line in parts]
    assert len(kinds) == len(set(kinds)) == 15 and kinds[0] == "backbone" and "image encoder" not in kinds


def test_the_rows_of_a_paper_are_listed_with_their_figures(invoke, result_of) -> None:
    lines = invoke("list", "recipes", "vse_infinity/coco").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert sum(line.startswith("  vse_infinity/coco_") for line in lines) == 27
    assert any("rsum 520.8" in line for line in lines)
    recipe = invoke("list", "recipes", "vse_infinity/coco_regions_bigru").stdout
    assert recipe.startswith("# openvse train vse_infinity/coco_regions_bigru ")
    assert yaml.safe_load(recipe) == result_of("list", "recipes", "vse_infinity/coco_regions_bigru")["listed"]
    for name, reads, last in (
        ("folder", "--on FOLDER", "index"),
        ("vse_infinity/flickr30k_regions_bert", "--on flickr30k:ROOT --features FEATURES", "compare"),
        ("score_attention/vqa2_regions_bigru", "--on vqa2:ROOT --features FEATURES", "compare"),
        ("score_attention/daquar_grids_cpu", "--on daquar:ROOT --features features", "ask"),
        ("score_attention/flickr8k_grids_cpu", "--on flickr8k:ROOT --features features", "search"),
        ("finetune", "--on FOLDER", "index"),
    ):
        *_, train, evaluate, use = invoke("list", "recipes", name).stdout.splitlines()
        words = shlex.split(train.removeprefix("# openvse train "))
        assert words[0] in (name, "--start") and words[-2:] == ["--out", "runs/mine"], train
        assert evaluate == f"# openvse evaluate runs/mine {reads}"
        assert shlex.split(use)[2] == last and ("runs/mine" in use), use


def test_terms_of_the_papers_are_listed(invoke) -> None:
    lines = invoke("list", "terms").stdout.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("AdOpt"))
    assert lines[start + 1] == "  objective term contrast, miner adaptive_top_k, criterion info_nce"
    assert max(map(len, lines)) <= 80


@pytest.mark.medium
@pytest.mark.parametrize("kind", ["recipes", "parts", "terms", "models", "data", "protocols"])
def test_every_kind_is_listed_as_json(kind: str, result_of, refused) -> None:
    result = result_of("list", kind)
    assert (result["kind"], result["name"]) == (kind, None) and len(result["listed"]) > 3
    if kind in ("terms", "models", "protocols"):
        assert kind in refused("list", kind, "gpo")


@pytest.mark.medium
def test_version_and_help(invoke) -> None:
    assert invoke("--version").stdout == f"openvse {__version__}\n"
    for command in ("train", "evaluate", "extract", "index", "search", "list", "data", "demo"):
        assert invoke(command, "--help").exit_code == 0
        assert command in invoke("--help").stdout
    for command in ("search", "index", "evaluate"):
        text = invoke(command, "--help").stdout
        assert max(map(len, text.splitlines())) <= 80
        panels = {panel[0]: panel[1] for panel in re.findall(r"^╭─ (.+?) ─+╮\n(.*?)^╰", text, re.M | re.S)}
        shown = {name: re.findall(r"^│ +\*? *(--[a-z-]+)", each, re.M) for name, each in panels.items()}
        assert len({*shown.pop("Options")} - {"--help"}) == 6, command
        assert len(shown) >= 3 and all(len(options) <= 8 for options in shown.values()), shown


@pytest.mark.medium
def test_another_model_ranks_again(trained: Path, tmp_path: Path, invoke, works) -> None:
    tree = yaml.safe_load((trained / "tiny.yaml").read_text())
    tree["image"]["encoder"]["projection"] = "linear"
    for side in ("image", "text"):
        tree[side]["aggregator"] = "tokens"
    tree["similarity"] = {"name": "fused", "fusion": {"name": "score_attention", "num_heads": 2}}
    (tmp_path / "fused.yaml").write_text(yaml.safe_dump(tree))
    assert invoke("train", tmp_path / "fused.yaml", "--out", tmp_path / "run").exit_code == 0
    first, second = trained / "run" / "best", tmp_path / "run" / "best"
    again = ("--rerank", f"{second},top=2")

    words = ("evaluate", first, "--on", trained / "album", "--out", tmp_path / "report")
    report = works(*words, "--rerank", f"{second},top=2,weight=0.5")
    assert names(report.stdout, 2, 0.5)
    reranked = json.loads((tmp_path / "report" / "report.json").read_text())["reranked"]
    assert (reranked["top"], reranked["weight"]) == (2, 0.5)

    query = "red sky above green ground"
    plain = invoke("search", first, trained / "index", query, "-k", 4).stdout.splitlines()[1:]
    shown = invoke("search", first, trained / "index", query, "-k", 4, *again).stdout.splitlines()[1:]
    assert [line.split()[0] for line in shown] == ["1", "2", "3", "4"]
    assert {line.split()[2] for line in shown[:2]} == {line.split()[2] for line in plain[:2]}
    assert shown[2:] == plain[2:]
    stored = ("--rerank", f"{second},top=2,features={tmp_path / 'run' / 'features'}")
    assert invoke("search", first, trained / "index", query, "-k", 2, *stored).stdout.count("\n") == 3


@pytest.mark.medium
def test_no_index_for_a_model_of_pairs(trained: Path, tmp_path: Path, refused) -> None:
    tree = yaml.safe_load((trained / "tiny.yaml").read_text())
    tree["similarity"] = {"name": "fused", "fusion": {"name": "score_attention", "num_heads": 2}}
    tree["data"] = {}
    (tmp_path / "fused.yaml").write_text(yaml.safe_dump(tree))
    build_model(load_recipe(tmp_path / "fused.yaml"), captions=["red sky"]).save(tmp_path / "model")
    refused("index", tmp_path / "model", trained / "album", "--out", tmp_path / "index")
    assert not (tmp_path / "index").exists()


def test_the_umask_decides_who_may_read_what_is_written(trained: Path) -> None:
    umask = os.umask(0)
    os.umask(umask)
    modes = {path: path.stat().st_mode & 0o777 for path in trained.rglob("*") if path.is_file()}
    assert {path.name for path in modes} >= {"model.safetensors", "last.pt", "index.json", "features.npy"}
    assert [path for path, mode in modes.items() if mode != 0o666 & ~umask] == []


@pytest.mark.medium
def test_extract_counts_very_long_captions(album: Path, tmp_path: Path, works) -> None:
    with (album / "metadata.jsonl").open("a") as lines:
        Image.new("RGB", (64, 64)).save(album / "long.png")
        lines.write(json.dumps({"file_name": "long.png", "captions": ["red " * 300], "split": "train"}) + "\n")
    words = ("extract", "efficientnet_lite0", album, tmp_path / "store", "pretrained=false", "image_size=64")
    result = works(*words)
    assert names(result.stderr, "warning: ", 1, 256, 300)
