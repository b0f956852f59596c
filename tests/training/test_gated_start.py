"""Runs with a gated pooling begin with the scores of their start, for CLIP, SigLIP and a model of openvse."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import openvse
from openvse.conversion.convert import convert
from openvse.model.start import Start
from openvse.model.two_tower import TwoTower
from openvse.retrieval.build import build_model
from openvse.retrieval.recipe import RetrievalRecipe
from openvse.specs.load import inherited
from openvse.tasks.load import load_as
from openvse.tasks.recipes import load_recipe, parse_recipe
from openvse.tasks.run import run_recipe
from tests.conftest import draw_photo
from tests.dual_checkpoints import WORDS, save_dual
from tests.tiny import Recorder, read_metrics, tiny_recipe, tiny_tree, write_tiny_corpus

FIELDS = ("embed_dim", "image", "text", "similarity")
SPLITS = {"train": 24, "validation": 12}
pytestmark = pytest.mark.medium


@pytest.fixture(scope="module")
def album(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("album")
    captions = (" ".join(words) for words in itertools.permutations(WORDS[1:10], 3))
    lines = []
    for number, split in enumerate(split for split, count in SPLITS.items() for _ in range(count)):
        draw_photo(number).save(folder / f"{number:02d}.jpg")
        said = [next(captions) for _ in range(2)]
        lines.append(json.dumps({"file_name": f"{number:02d}.jpg", "captions": said, "split": split}))
    (folder / "metadata.jsonl").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="module")
def start_of(tmp_path_factory: pytest.TempPathFactory) -> Any:
    root = tmp_path_factory.mktemp("starts")

    def make(family: str) -> Path:
        folder = root / "models" / family
        if not folder.exists():
            convert(save_dual(family, root / family), folder)
        return folder

    return make


def heads(start: Path, source: Path, *, image: Any = "gpo", text: Any = "gpo", **training: Any) -> RetrievalRecipe:
    """Return a recipe with gated heads over the frozen towers of a start."""
    tree = tiny_tree(source, **{"phases": [{"epochs": 1}], **training})
    sides = {
        side: {"aggregator": {"name": "gated", "pool": pool, "share_projection": False}}
        for side, pool in (("image", image), ("text", text))
    }
    kept = {key: tree[key] for key in ("name", "objective", "training")}
    data = {"source": str(source), "features": "auto"}
    return parse_recipe({**kept, "start": str(start), "data": data, **sides})


@pytest.mark.parametrize("pool", ["adpool", {"name": "pie_net", "num_embeddings": 3}], ids=["adpool", "pie_net"])
@pytest.mark.parametrize("family", ["clip", "siglip", "align"])
def test_step_0_scores_as_the_start(family: str, pool: Any, start_of: Any, album: Path) -> None:
    start = load_as(TwoTower, start_of(family))
    begun = Start("start", start, start_of(family))
    model = build_model(heads(start_of(family), album, image=pool, text=pool), start=begun)
    begun.give(model)
    model.eval()
    photos = sorted(album.glob("*.jpg"))[:5]
    captions = [" ".join(WORDS[n : n + 4]) for n in range(6)]
    mine, theirs = ((each.encode_image(photos), each.encode_text(captions)) for each in (model, start))
    for ours, own in zip(mine, theirs, strict=True):
        assert torch.equal(ours.vectors, own.vectors.expand_as(ours.vectors))
    torch.testing.assert_close(model.score(*mine), start.score(*theirs), rtol=0, atol=1e-6)
    assert model.similarity.scale == start.similarity.scale


@pytest.mark.parametrize("family", ["clip", "siglip"])
def test_a_run_on_stored_tokens_of_both_sides(family: str, start_of: Any, album: Path, tmp_path: Path) -> None:
    """A phase may name the image encoder of SigLIP, of which nothing trains anyway."""
    watcher = Recorder()
    recipe = heads(start_of(family), album, phases=[{"epochs": 2, "frozen": ["image.encoder"]}])
    frozen = recipe.training.phases[0].model_copy(update={"learning_rate": 1e-12})
    recipe = recipe.model_copy(update={"training": recipe.training.model_copy(update={"phases": (frozen,)})})
    run_recipe(recipe, tmp_path / "run", watcher=watcher)
    records = read_metrics(tmp_path / "run")
    (before,) = (record for record in records if record["kind"] == "before")
    for record in (record for record in records if record["kind"] == "validation"):
        assert {key: record[key] for key in ("rsum", "i2t_r1", "t2i_r1")} == {
            key: before[key] for key in ("rsum", "i2t_r1", "t2i_r1")
        }
    assert {"  image.aggregator.pool: new (GPO behind a gate)", "  image.encoder: taken"} <= set(watcher.notes)
    assert ("  image.aggregator.base: taken" in watcher.notes) == (family == "siglip")
    for side in ("features", "text_features"):
        assert (tmp_path / "run" / side).is_dir()


def test_what_the_run_has_learned_is_behind_the_gate(start_of: Any, album: Path, tmp_path: Path) -> None:
    encoders = ["image.encoder", "text.encoder"]
    recipe = heads(start_of("clip"), album, phases=[{"epochs": 2, "frozen": encoders, "learning_rate": 0.01}])
    run_recipe(recipe, tmp_path / "run")
    learned = torch.load(tmp_path / "run" / "last.pt", weights_only=True)["model"]
    start = load_as(TwoTower, start_of("clip")).state_dict()
    assert all(torch.equal(learned[name], weight) for name, weight in start.items())
    assert learned["image.aggregator.gate"] != 0 and learned["text.aggregator.gate"] != 0
    curves = [record for record in read_metrics(tmp_path / "run") if record["kind"] == "curves"]
    assert curves[-1]["image.gate"] == [pytest.approx(learned["image.aggregator.gate"].item())]


def test_a_model_of_openvse_is_a_base_like_any(tmp_path: Path) -> None:
    corpus = write_tiny_corpus(tmp_path / "tiny")
    run_recipe(tiny_recipe(corpus, phases=[{"epochs": 2}]), corpus / "base")
    start = load_as(TwoTower, corpus / "base" / "best")
    tree = tiny_tree(corpus, phases=[{"epochs": 1}])
    gated = {"aggregator": {"name": "gated", "pool": {"name": "multi_view", "num_views": 2}}}
    kept = {key: tree[key] for key in ("name", "objective", "data", "training")}
    recipe = parse_recipe({**kept, "start": str(corpus / "base"), "image": gated, "text": gated})
    assert recipe.image.aggregator.options["base"] == {"name": "gpo"}
    begun = Start("base", start, corpus / "base" / "best")
    model = build_model(recipe, captions=["a dog"], start=begun)
    origins = [str(origin) for origin in begun.give(model)]
    assert "text.aggregator.base: taken" in origins
    assert "text.aggregator.pool: new (MultiView behind a gate)" in origins
    texts = ["red dog runs", "blue cat sits on the water"]
    mine, theirs = (each.eval().encode_text(texts).vectors for each in (model, start))
    assert torch.equal(mine, theirs.expand_as(mine))
    again = load_as(TwoTower, model.save(tmp_path / "saved"))
    assert torch.equal(again.encode_text(texts).vectors, mine)
    assert openvse.load(tmp_path / "saved").spec == model.spec


def spec(aggregator: Any) -> dict[str, Any]:
    tower = {"encoder": {"name": "bigru"}, "aggregator": aggregator}
    return {"embed_dim": 8, "image": tower, "text": tower, "similarity": "set_max"}


@pytest.mark.parametrize(
    ("said", "theirs", "becomes"),
    [
        ({"name": "gated", "pool": "max"}, "gpo", {"name": "gated", "pool": "max", "base": "gpo"}),
        ({"name": "gated", "base": "start"}, {"name": "gpo"}, {"name": "gated", "base": {"name": "gpo"}}),
        ("gated", "gpo", {"name": "gated", "base": "gpo"}),
        ({"name": "gated", "base": "max"}, "gpo", {"name": "gated", "base": "max"}),
        (
            {"name": "gated", "pool": "max"},
            {"name": "gated", "pool": {"name": "max"}, "base": "mean"},
            {"name": "gated", "pool": {"name": "max"}, "base": "mean"},
        ),
        (
            {"name": "gated", "pool": "gpo"},
            {"name": "gated", "pool": "max", "base": "mean"},
            {"name": "gated", "pool": "gpo", "base": {"name": "gated", "pool": "max", "base": "mean"}},
        ),
    ],
)
def test_the_base_is_the_start_s_aggregator(said: Any, theirs: Any, becomes: Any) -> None:
    tree = {"name": "mine", "image": {"aggregator": said}}
    filled = inherited(tree, spec(theirs), FIELDS, "runs/base")
    assert filled["image"] == {"encoder": {"name": "bigru"}, "aggregator": becomes}


@pytest.mark.parametrize("family", ["clip", "siglip"])
def test_a_model_of_two_sides_is_adapted_in_closed_form(
    family: str, start_of: Any, album: Path, tmp_path: Path
) -> None:
    watcher = Recorder()
    recipe = load_recipe("clip/adapted", [f"start={start_of(family)}", f"data.source={album}"])
    result = run_recipe(recipe, tmp_path / "run", watcher=watcher)
    model, start = load_as(TwoTower, result.best), load_as(TwoTower, start_of(family))
    images, texts = [draw_photo(number) for number in range(4)], WORDS[1:5]
    both = [each.score(each.encode_image(images), each.encode_text(texts)) for each in (model, start)]
    weight = model.image.aggregator.linear.weight
    assert torch.allclose(*both, atol=1e-5) == (not weight.any())
    assert not model.text.aggregator.linear.weight.any()
    assert result.progress.best_epoch == 0
    assert watcher.notes
