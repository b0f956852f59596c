"""Recipes from files, names, bases and overrides."""

import re
from pathlib import Path
from typing import Any

import pytest

from openvse.assembly.parts import build_part
from openvse.backbones import BACKBONES
from openvse.errors import ModelError, RecipeError
from openvse.evaluation.report import protocol_named
from openvse.retrieval.recipe import RetrievalRecipe
from openvse.specs.load import about, apply_override, dump_yaml, list_recipes, parse_yaml, read_recipe, validated
from openvse.specs.model import Part
from openvse.tasks.recipes import load_recipe, parse_recipe, shown_recipe
from openvse.training.kind import published_for
from openvse_papers.protocols import PROTOCOLS

MINIMAL = """
name: mine
image: {encoder: {name: precomputed, feature_dim: 8}, aggregator: gpo}
text: {encoder: bigru, aggregator: {name: k_max, k: 3}}
objective: {ranking: {name: contrast, miner: hardest, criterion: {name: hinge, margin: 0.2}}}
training: {phases: [{epochs: 1, objective: {ranking.miner: all}}, {epochs: 2, learning_rate: 5e-5}]}
"""


@pytest.fixture
def minimal(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(MINIMAL)
    return path


def test_defaults_shorthand_and_numbers(minimal: Path) -> None:
    recipe = load_recipe(minimal)
    assert recipe.image.aggregator.name == "gpo"
    assert recipe.text.aggregator.options == {"k": 3}
    assert recipe.training.phases[1].learning_rate == pytest.approx(5e-5)
    assert recipe.similarity.name == "set_max"
    assert parse_recipe(recipe.to_dict()) == recipe


def test_overrides_reach_into_lists_and_open_shorthand(minimal: Path) -> None:
    recipe = load_recipe(
        minimal,
        ["training.phases.0.epochs=7", "image.aggregator.temperature=0.2", "data.source=a=b", "text.aggregator=max"],
    )
    assert recipe.training.phases[0].epochs == 7
    assert (recipe.image.aggregator.name, recipe.image.aggregator.options) == ("gpo", {"temperature": 0.2})
    assert recipe.data.source == "a=b"
    assert (recipe.text.aggregator.name, recipe.text.aggregator.options) == ("max", {})


NUMBERS = {"1e-1": 0.1, "1E5": 1e5, ".5": 0.5, "-1.e+2": -100.0, "010": 10, "0o17": 15, "0x10": 16, "+3": 3, "08": 8}
TEXTS = ("1_000", "1:30", "2024-05-01", "0b1", "yes", "off", "on", "1e", "=")


def test_numbers_are_those_of_yaml_1_2_and_keep_how_they_are_written(tmp_path: Path, minimal: Path) -> None:
    for text, value in NUMBERS.items():
        read = parse_yaml(text)
        assert (read, str(read), type(value)) == (value, text, type(read).__mro__[1])
    assert [parse_yaml(text) for text in TEXTS] == [*TEXTS]
    assert [parse_yaml(text) for text in ("~", "null", "True", "false", "!!float 3")] == [None, None, True, False, 3.0]
    texts = {text: text for text in (*NUMBERS, *TEXTS, "null", "true", "<<", "")}
    assert parse_yaml(dump_yaml(texts)) == texts
    weight = "objective.ranking.weight"
    (tmp_path / "own.yaml").write_text(
        "base: mine.yaml\nobjective: {ranking: {weight: 1e-1}}\ndata: {random_views: off}"
    )
    for recipe in (
        load_recipe(tmp_path / "own.yaml"),
        load_recipe(minimal, [f"{weight}=1e-1", "data.random_views=no"]),
    ):
        assert recipe.objective["ranking"].options["weight"] == 0.1 and recipe.data.random_views is False
        assert parse_recipe(parse_yaml(dump_yaml(recipe.to_dict()))) == recipe


def test_text_stays_text_where_the_schema_asks_for_it(tmp_path: Path, minimal: Path) -> None:
    def read(source: Path, *overrides: str) -> RetrievalRecipe:
        return validated(RetrievalRecipe, read_recipe(source, overrides))

    for text in (*NUMBERS, *TEXTS, "null", "true", "album #1", "*a", "[b", "a: b"):
        recipe = read(minimal, f"data={text}", f"name={text}", f"start={text}")
        assert (recipe.data.source, recipe.name) == (text, text)
        assert recipe.start == (None if text == "null" else text)
    for text in (*NUMBERS, *TEXTS):
        (tmp_path / "own.yaml").write_text(f"base: mine.yaml\nstart: {text}\ndata: {{features: {text}}}")
        recipe = read(tmp_path / "own.yaml", f"image.encoder.made_by={text}")
        backbone = build_part(BACKBONES, recipe.image.encoder, "image.encoder")
        assert {recipe.start, recipe.data.features, backbone.arguments()["made_by"]} == {text}
        with pytest.raises(ModelError, match=f"^{re.escape(text)} "):
            load_recipe(tmp_path / "own.yaml")
    quoted = read(minimal, "data.source='null'", "data.features=null", "start={name: closed_form}")
    assert (quoted.data.source, quoted.data.features, quoted.start_name) == ("null", None, "closed_form")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.bach_size=3", "training.bach_size.*'batch_size'"),
        ("seeed=3", "seeed.*'seed'"),
        ("training.phases.0.epoch=3", "training.phases.0.epoch.*'epochs'"),
        ("training.phases.9.epochs=3", "'9'.*2.*0.*1"),
        ("training.batch_size=one", "training.batch_size.*'one'"),
        ("training.batch_size=1", "training.batch_size.*2.*1"),
        ("seed.x=1", "seed"),
        ("nonsense", "key.path=value"),
        ("seed=[", "YAML"),
        ("training.log_every=1:30", "log_every.*'1:30'"),
        ("data.source={a: 1}", "data.source.*'a'"),
        ("objective.loss=contrast", "'loss'"),
    ],
)
def test_a_wrong_override_is_one_clear_line(minimal: Path, override: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message) as error:
        load_recipe(minimal, [override])
    assert "\n" not in str(error.value)


def test_a_base_is_merged_key_by_key_and_a_part_is_replaced_whole(tmp_path: Path, minimal: Path) -> None:
    child = tmp_path / "deep" / "child.yaml"
    child.parent.mkdir()
    child.write_text("base: ../mine.yaml\nname: child\nseed: 3\ntext: {aggregator: {name: max}}\n")
    recipe = load_recipe(child)
    assert (recipe.name, recipe.seed) == ("child", 3)
    assert recipe.text.aggregator.options == {}  # k belonged to the part that was replaced
    assert recipe.text.encoder.name == "bigru"


def test_options_join_a_part_that_the_base_names_in_short(tmp_path: Path, minimal: Path) -> None:
    (tmp_path / "short.yaml").write_text("base: mine.yaml\ntext: {aggregator: k_max}\n")
    (tmp_path / "child.yaml").write_text("base: short.yaml\ntext: {aggregator: {k: 3}}\n")
    assert load_recipe(tmp_path / "child.yaml").text.aggregator == Part(name="k_max", k=3)


def test_a_base_is_a_shipped_recipe_by_its_name_wherever_the_file_is(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("base: vse_infinity/folder_cpu\nname: mine\nimage: {aggregator: mean}\n")
    recipe, shipped = load_recipe(path, ["seed=3"]), load_recipe("vse_infinity/folder_cpu")
    assert (recipe.name, recipe.seed, recipe.image.aggregator.name) == ("mine", 3, "mean")
    assert recipe.text == shipped.text and recipe.objective == shipped.objective


def test_a_file_beside_a_recipe_is_its_base_before_a_shipped_one(tmp_path: Path, minimal: Path) -> None:
    (tmp_path / "vse_infinity").mkdir()
    minimal.rename(tmp_path / "vse_infinity" / "folder_cpu")
    (tmp_path / "child.yaml").write_text("base: vse_infinity/folder_cpu\n")
    assert load_recipe(tmp_path / "child.yaml").name == "mine"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("base: gone.yaml", "bad.yaml: .*gone.yaml"),
        ("base: vse_infinity/folder_cp", "bad.yaml: .*'vse_infinity/folder_cpu'"),
        ("base: bad.yaml", "bad.yaml"),
        ("- a", "bad.yaml.*list"),
        ("a: [", "bad.yaml.*YAML"),
        ("rows: [1]", r"rows .*\[1\]"),
        ("rows: {a: 3}", "rows .*3"),
        ("rows: {a: {}, b: {}}", "bad_a.*bad_b"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(RecipeError, match=message):
        load_recipe(path)


ROWS = (
    MINIMAL
    + """
description: of the file
rows:
  mean:
    image: {aggregator: mean}
    rows: {small: {embed_dim: 64, description: of the row}}
  clip: {base: vse_infinity/folder_cpu, name: my_clip}
"""
)


def test_a_row_is_what_a_file_with_the_file_as_its_base_would_be(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(ROWS)
    (tmp_path / "a.yaml").write_text("base: mine.yaml\nname: mine_mean\nimage: {aggregator: mean}\n")
    (tmp_path / "b.yaml").write_text("base: a.yaml\nname: mine_mean_small\nembed_dim: 64\ndescription: of the row\n")
    assert read_recipe(tmp_path / "mine_mean") == read_recipe(tmp_path / "a.yaml")
    assert read_recipe(tmp_path / "mine_mean_small.yaml") == read_recipe(tmp_path / "b.yaml")
    (tmp_path / "c.yaml").write_text("base: mine_mean_small\nseed: 3\n")
    assert read_recipe(tmp_path / "c.yaml")["embed_dim"] == 64
    assert list_recipes(str(tmp_path / "mine.yaml")) == [
        str(tmp_path / name) for name in ("mine.yaml", "mine_mean", "mine_mean_small", "mine_clip")
    ]
    assert "description" not in read_recipe(tmp_path / "mine_mean")
    assert read_recipe(tmp_path / "mine.yaml")["description"] == "of the file"


def test_rows_of_a_folder_are_called_like_files_of_it(tmp_path: Path) -> None:
    folder, named = tmp_path / "small", tmp_path / "named"
    folder.mkdir()
    named.mkdir()
    (folder / "rows.yaml").write_text("rows: {mean: {base: gpo}, gpo: {seed: 3, rows: {more: {embed_dim: 4}}}}")
    (named / "rows.yaml").write_text("name: mine\nrows: {a: {base: b}, b: {name: other}, c/d: {seed: 1}}")
    assert read_recipe(folder / "mean") == {"name": "mean", "seed": 3}
    assert read_recipe(folder / "gpo_more.yaml") == {"name": "gpo_more", "seed": 3, "embed_dim": 4}
    assert read_recipe(named / "a")["name"] == "mine_a"
    assert read_recipe(named / "b")["name"] == "other"
    assert list_recipes(str(folder / "rows.yaml")) == [str(folder / each) for each in ("mean", "gpo", "gpo_more")]
    with pytest.raises(RecipeError, match=str(folder / "gpo_more")):
        read_recipe(folder / "men")
    with pytest.raises(RecipeError, match="allowed: vse_0/coco_1crop_gru, vse_0/flickr30k_1crop_gru"):
        read_recipe("vse_0/coco_2crop_gru")


def test_a_file_called_rows_where_one_works_is_no_folder_of_recipes(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "rows.yaml").write_text("[no recipe]")
    monkeypatch.chdir(tmp_path)
    assert read_recipe("folder_lite2")["name"] == "folder_lite2"


def test_a_recipe_is_shown_with_the_notes_of_its_file_and_of_its_row() -> None:
    told, described = about("folder_lite2")
    assert "# openvse train folder data.source=FOLDER" in told
    assert "\n# It reads an image" in told
    assert "folder_finetuned" not in told
    assert described == read_recipe("folder")["description"]


def test_a_base_of_a_row_comes_below_the_keys_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(ROWS)
    row = read_recipe(tmp_path / "mine_clip")
    assert (row["name"], row["text"]["aggregator"]) == ("my_clip", {"name": "k_max", "k": 3})
    assert row["training"]["batch_size"] == read_recipe("vse_infinity/folder_cpu")["training"]["batch_size"]


def test_an_unknown_row_names_the_rows_there_are(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(ROWS)
    with pytest.raises(RecipeError, match="mine_mean.*mine_mean_small"):
        read_recipe(tmp_path / "mine_men")
    with pytest.raises(RecipeError, match="coco_regions_bigru_gcn'.*'openvse list recipes vse_infinity/coco'"):
        read_recipe("vse_infinity/coco_regions_bigru_gnc")


def test_what_was_read_can_be_changed() -> None:
    read_recipe("folder")["training"]["phases"].clear()
    assert read_recipe("folder")["training"]["phases"]


def test_the_folder_of_recipes_stays_small() -> None:
    folder = Path(__file__).parents[2] / "recipes"
    assert len([*folder.rglob("*.yaml")]) <= 55


def test_an_unknown_recipe_names_the_nearest() -> None:
    with pytest.raises(RecipeError, match="'vse_infinity/flickr8k_grids_cpu'"):
        load_recipe("vse_infinity/flickr8k_grid_cpu")


WHOLE = [
    name for name in list_recipes() if "text" in (tree := read_recipe(name)) and not isinstance(tree.get("start"), str)
]


@pytest.mark.medium
def test_every_shipped_recipe_is_valid_and_calls_itself_by_its_name() -> None:
    assert list_recipes()
    wrong = {}
    for name in list_recipes():
        try:
            shown = shown_recipe(name)
            if shown["name"] != name:
                wrong[name] = f"it calls itself {shown['name']}"
            if not shown["description"]:
                wrong[name] = "it does not say what it is"
            if name in WHOLE and shown != load_recipe(name).to_dict():
                wrong[name] = "it is shown other than it is loaded"
        except RecipeError as error:
            wrong[name] = str(error)
    assert wrong == {}


def test_a_recipe_is_shown_without_the_model_that_it_begins_from() -> None:
    shown = shown_recipe("clip/folder_cpu")
    assert shown["image"]["encoder"] == {"name": "start"}
    assert shown["text"]["aggregator"]["base"] == shown["embed_dim"] == shown["similarity"] == "start"


def test_methods_of_the_comparison_differ_in_the_aggregator_alone() -> None:
    def rest(name: str) -> dict[str, Any]:
        tree = load_recipe(f"{name}/flickr8k_grids_cpu").to_dict()
        del tree["name"], tree["description"], tree["image"]["aggregator"], tree["text"]["aggregator"]
        return tree

    methods = ["vse_pp", "max_pool", "k_max_pool", "vse_infinity"]
    assert all(rest(method) == rest("vse_pp") for method in methods)


def test_override_leaves_the_original_alone() -> None:
    tree = {"a": {"b": [1, 2]}}
    assert apply_override(tree, "a.b.1", 5) == {"a": {"b": [1, 5]}}
    assert tree == {"a": {"b": [1, 2]}}


def test_published_figures_are_those_of_the_same_protocol() -> None:
    provenance = {"published": load_recipe("vse_infinity/coco_regions_bigru").to_dict()["published"]}
    both = ("coco_1k", "coco_5k")
    (one_k,) = published_for(provenance, {"num_images": 5000, "folds": 5}, both).items()
    (five_k,) = published_for(provenance, {"num_images": 5000, "folds": 1}, both).items()
    assert one_k[0] == "VSE-infinity, Table 2: COCO, 1K test, mean of 5 folds"
    assert (one_k[1]["rsum"], five_k[1]["rsum"]) == (520.8, 421.9)
    assert published_for(provenance, {"num_images": 1000, "folds": 1}, both) == {}
    assert published_for(provenance, {"num_images": 5000, "folds": 1}, ["coco_5k_all"]) == {}


@pytest.mark.parametrize("published", [None, 3, {"source": "a"}, ["a", {"source": "b"}, {"metrics": {}}]])
def test_provenance_of_another_form_has_no_figures(published: Any) -> None:
    assert published_for({"published": published}, {"num_images": 1, "folds": 1}) == {}


@pytest.mark.medium
def test_published_recalls_add_up() -> None:
    off = {
        name: (told.source, told.metrics)
        for name in WHOLE
        for told in load_recipe(name).published
        if len(told.metrics) == 7
        and "add up to" not in told.source
        and sum(told.metrics.values()) != pytest.approx(2 * told.metrics["rsum"], abs=0.35)
    }
    assert off == {}


@pytest.mark.medium
def test_recipes_name_the_protocol_of_their_figures() -> None:
    """Where the sentences of a data set are read in several ways, each published row says in which."""
    for name in list_recipes():
        data = name.partition("/")[2]
        several = {each.data for each in PROTOCOLS.values() if each.pool != "all"}
        mine = max((one for one in several if data.startswith(f"{one}_") or data == one), key=len, default="")
        for told in read_recipe(name).get("published") or () if mine else ():
            protocol = protocol_named(told["protocol"])
            assert (protocol.data, protocol.items) == (mine, told["num_images"]), name
            assert protocol.folds == told.get("folds", 1), name
            assert protocol.pool != "all", name


def test_a_model_saved_without_figures_still_loads() -> None:
    tree = load_recipe("vse_pp/flickr8k_grids_cpu").to_dict()
    assert parse_recipe(tree | {"published": None}).published == ()
