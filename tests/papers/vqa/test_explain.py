"""What was weighed for an answer, and the page that shows it.

An answerer that begins from another one, or from the towers of a model that compares images and sentences.
"""

import functools
import math
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

from openvse.datasets import open_questions
from openvse.encoders.image_encoder import grid_cells
from openvse.errors import DataError, RecipeError
from openvse.tasks.load import load_as
from openvse.tasks.recipes import parse_recipe
from openvse.tasks.run import run_recipe
from openvse.types import Features, Inputs
from openvse_papers.vqa.answerer import Answerer, Guess, build_answerer
from openvse_papers.vqa.answers import AnswerVocabulary
from openvse_papers.vqa.explain import Explained, answer_page, brightness, explain
from tests.conftest import PhotoMaker
from tests.naming import names, refusal
from tests.tiny import Recorder, read_metrics, tiny_recipe, tiny_tree, write_tiny_corpus
from tests.tiny_questions import COLOURS, answering_recipe, answering_tree, question_only, write_tiny_questions

QUESTIONS = ["what colour is the dog", "is <it> a very big & heavy elephant"]
ENCODER = {"name": "efficientnet_lite0", "pretrained": False, "image_size": 64, "augmentation": "none"}


def build(change: dict[str, Any] | None = None) -> Answerer:
    tree = answering_tree(Path()) | {"image": {"encoder": ENCODER, "aggregator": "tokens"}} | (change or {})
    answers = AnswerVocabulary(COLOURS, votes=False)
    return build_answerer(parse_recipe(tree), questions=["what colour is the dog"], answers=answers).eval()


@pytest.mark.medium
def test_weights_belong_to_cells_and_words(make_photos: PhotoMaker) -> None:
    model, photo = build(), make_photos(1)[0]
    first, second = explain(model, photo, QUESTIONS, top_k=3)
    assert [first.guesses, second.guesses] == model.ask(photo, QUESTIONS, top_k=3)
    assert first.words == ["<start>", "what", "colour", "is", "the", "dog", "<end>"]
    assert second.words[1:6] == ["is", "<it>", "<a>", "<very>", "<big>"]  # unknown words show as such
    assert first.word_weights is not None and first.image_weights is not None and first.boxes is not None
    assert first.word_weights.shape == (2, 7) and first.image_weights.shape == (2, 4)
    for weights in (first.word_weights, first.image_weights):
        torch.testing.assert_close(weights.sum(dim=1), torch.ones(2))
    assert first.boxes.tolist() == [[0, 0, 0.5, 0.5], [0.5, 0, 1, 0.5], [0, 0.5, 0.5, 1], [0.5, 0.5, 1, 1]]


@pytest.mark.medium
def test_one_pass_gives_answers_and_weights(make_photos: PhotoMaker) -> None:
    model, photo = build(), make_photos(1)[0]
    assert model.image is not None and model.fusion is not None
    passes: list[str] = []
    for name in ("image", "image.encoder.backbone", "text", "fusion.image_itself.query", "classifier"):
        model.get_submodule(name).register_forward_hook(lambda *_, name=name: passes.append(name))
    one = explain(model, photo, QUESTIONS)
    assert sorted(passes) == ["classifier", "fusion.image_itself.query", "image", "image.encoder.backbone", "text"]
    passes.clear()
    assert model.ask(photo, QUESTIONS) == [each.guesses for each in one] and len(passes) == 5


@pytest.mark.medium
def test_the_mode_does_not_matter_and_stays(make_photos: PhotoMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    model, photo = build(), make_photos(1)[0]
    assert model.image is not None
    expected, raw, modes = explain(model, photo, QUESTIONS), model.image.encoder.local_features, list[bool]()

    def watched(inputs: Inputs) -> Features:
        assert model.image is not None
        modes.append(model.image.encoder.training)
        return raw(inputs)

    monkeypatch.setattr(model.image.encoder, "local_features", watched)
    found = explain(model.train(), photo, QUESTIONS)
    assert model.training and modes and not any(modes)
    for one, other in zip(found, expected, strict=True):
        assert one.guesses == other.guesses and torch.equal(one.image_weights, other.image_weights)


@pytest.mark.medium
@pytest.mark.parametrize("questions", [[], ["", " "]])
def test_empty_questions_are_refused(questions: list[str], make_photos: PhotoMaker) -> None:
    model, photo = build(), make_photos(1)[0]
    for ask in (model.ask, functools.partial(explain, model)):
        refusal(DataError, ask, photo, questions)


@pytest.mark.medium
def test_an_empty_question_and_unknown_words(make_photos: PhotoMaker) -> None:
    model, photo = build(), make_photos(1)[0]
    first, empty = explain(model, photo, ["a zebra", ""])
    assert [unknown.word for unknown in first.unknown_words] == ["a", "zebra"] and first.guesses
    assert (empty.guesses, empty.words, empty.word_weights) == ([], [], None)
    assert answer_page(photo, [first, empty]).count("<section>") == 2


def test_boxes_of_an_encoder_that_knows_them(make_photos: PhotoMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    model, photo = build(), make_photos(1)[0]
    boxes = torch.tensor([[0.1, 0.1, 0.4, 0.9], [0.0, 0.0, 1.0, 0.5]])

    def regions(self: Any, inputs: Inputs) -> Features:
        return Features(torch.ones(1, 2, 1280), torch.tensor([[True, False]]), boxes=boxes.unsqueeze(0))

    monkeypatch.setattr("openvse.backbones.EfficientNetLite0.see", regions)
    (one,) = explain(model, photo, QUESTIONS[:1])
    assert one.boxes is not None and torch.equal(one.boxes, boxes)
    assert one.image_weights is not None and one.image_weights.tolist() == [[1, 0], [1, 0]]
    page = answer_page(photo, [one])
    assert page.count('class="box"') == 3 * 2 and 'class="veil"' not in page


@pytest.mark.medium
def test_a_model_without_weights_or_images(make_photos: PhotoMaker) -> None:
    photo = make_photos(1)[0]
    pooled = {"name": "pooled", "aggregator": "mean", "num_heads": 2}
    for model in (build({"fusion": pooled}), build(question_only(answering_tree(Path())))):
        (one,) = explain(model, photo, QUESTIONS[:1])
        assert (one.word_weights, one.image_weights, one.boxes) == (None, None, None)
        assert len(one.guesses) == 5
        page = answer_page(photo, [one])
        assert "shows no weights" in page and "<rect" not in page


def test_the_page_shades_by_weight_and_escapes(make_photos: PhotoMaker) -> None:
    photo = make_photos(1, folder="a & b")[0]
    cells = torch.tensor([[0, 0, 0.5, 1], [0.5, 0, 1, 1]])
    one = Explained(
        "is it <b>?",
        [Guess("a & b", 0.5), Guess("\N{SNOWMAN}", 0.25)],
        ["is", "<it>"],
        word_weights=torch.tensor([[0.25, 0.75], [0.75, 0.25]]),
        boxes=cells,
        image_weights=torch.tensor([[0.2, 0.8], [0.4, 0.6]]),
    )
    page = answer_page(photo, [one])
    assert page.isascii() and page.count("data:image/webp") == 1
    body = ElementTree.fromstring(re.sub(r"(?s)^.*?(<main>.*</main>).*$", r"\1", page))
    assert body.find(".//h2").text == "is it <b>?"  # type: ignore[union-attr]
    veils = [float(each.get("fill-opacity", "nan")) for each in body.iter("rect")]
    # Of the mean and of each reduction: half the veil at the even share, none at four times of it, all at a quarter.
    ratios = (0.6, 1.4, 0.4, 1.6, 0.8, 1.2)
    assert veils == [pytest.approx(0.82 * (0.5 - math.log2(ratio) / 4), abs=1e-3) for ratio in ratios]
    captions = ["".join(each.itertext()) for each in body.iter("figcaption")]
    assert names(captions[0], "70.0 %", 1.4, "50.0 %")
    assert captions[1].startswith("1: at most 80.0 %")
    assert [cell.text for cell in body.findall(".//td") if cell.text] == ["a & b", "50.0 %", "\N{SNOWMAN}", "25.0 %"]
    shades = [style for each in body.iter("span") if "rgba" in (style := each.get("style", ""))]
    assert "0.188)" in shades[2] and "0.485)" in shades[3]  # 0.75 of 1/4 and of 0.79, at 0.5 and 1.5 even shares


def test_even_attention_looks_even(make_photos: PhotoMaker) -> None:
    even = torch.full((1, 4), 0.25)
    one = Explained("is it?", [], ["is", "it"], even[:, :2] * 2, torch.rand(4, 4), even * 1.01)
    page = answer_page(make_photos(1)[0], [one])
    assert re.findall(r'fill-opacity="([\d.]+)"', page) == ["0.410"] * 4
    assert names(page, "25.2 %", 1.0, "25.0 %")
    assert page.count('class="legend"') == 1 and "a quarter of the even share" in page


def test_the_scale_of_weights() -> None:
    weights = torch.tensor([0.0, 1.0, 4.0, 11.0]) / 16
    assert brightness(weights).tolist() == pytest.approx([0, 0, 0.5, 0.5 + math.log2(2.75) / 4])
    assert brightness(torch.ones(1)).tolist() == [1.0]
    assert brightness(torch.zeros(2)).tolist() == [1.0, 1.0]


@pytest.mark.medium
def test_windows_of_an_image_are_parts_that_overlap(make_photos: PhotoMaker) -> None:
    encoder = {"name": "crops", "backbone": {"pretrained": False, "image_size": 32}, "windows": [[1, 1.0], [2, 0.6]]}
    model, photo = build({"image": {"encoder": encoder, "aggregator": "tokens"}}), make_photos(1)[0]
    (one,) = explain(model, photo, QUESTIONS[:1])
    assert one.boxes is not None and one.image_weights is not None and not one.tiled
    assert one.image_weights.shape == (2, 5)
    torch.testing.assert_close(one.boxes[:2], torch.tensor([[0, 0, 1, 1], [0, 0, 0.6, 0.6]]))


def test_a_token_before_the_cells_stands_for_the_whole_image() -> None:
    assert grid_cells(6) is None
    with_token = grid_cells(5)
    assert with_token is not None and with_token[0].tolist() == [0, 0, 1, 1] and len(with_token) == 5


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_tiny_questions(tmp_path_factory.mktemp("questions"))
    run_recipe(answering_recipe(folder), folder / "base")
    return folder


@pytest.mark.medium
def test_it_goes_on_with_an_answerer(questions: Path, tmp_path: Path) -> None:
    tree = answering_tree(questions, phases=[{"epochs": 1}])
    left_out = {"embed_dim", "image", "text", "fusion"}
    tree = {key: value for key, value in tree.items() if key not in left_out} | {"start": str(questions / "base")}
    watcher = Recorder()
    run_recipe(parse_recipe(tree), tmp_path / "run", watcher=watcher)
    records = {record["kind"]: record for record in read_metrics(tmp_path / "run")}
    own = [r for r in read_metrics(questions / "base") if r["kind"] == "validation"]
    assert records["before"]["accuracy"] == pytest.approx(max(record["accuracy"] for record in own))
    assert records["difference"]["accuracy"] == pytest.approx(
        records["validation"]["accuracy"] - records["before"]["accuracy"]
    )
    assert {"  fusion: taken", "  classifier: taken", "  text_layer: taken"} <= set(watcher.notes)


@pytest.mark.medium
def test_answers_keep_their_rows_in_another_order(questions: Path, tmp_path: Path) -> None:
    lines = (questions / "metadata.jsonl").read_text().splitlines()
    doubled = [line for line in lines if "black" in line] * 3
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "metadata.jsonl").write_text("\n".join(lines + doubled).replace("white", "pink") + "\n")
    tree = answering_tree(folder, phases=[{"epochs": 1}])
    tree |= {"start": str(questions / "base"), "optimizer": {"learning_rate": 1e-12}}
    tree["data"]["features"] = str(questions / "features")
    watcher = Recorder()
    run_recipe(parse_recipe(tree), tmp_path / "run", watcher=watcher)
    assert "  classifier: taken (1 answers added to 4)" in watcher.notes
    old = load_as(Answerer, questions / "base" / "best")
    state = torch.load(tmp_path / "run" / "last.pt", weights_only=True)["model"]
    asked = open_questions(f"question_folder:{folder}", require_images=False).split("train").questions
    answers = AnswerVocabulary.from_answers([question.answers for question in asked], min_count=1).answers
    assert set(answers) - set(old.answers.answers) == {"pink"}
    assert [answer for answer in answers if answer != "pink"] != [a for a in old.answers.answers if a != "white"]
    for row, answer in enumerate(answers):
        if answer in old.answers.answers:
            theirs = old.classifier.weight[old.answers.answers.index(answer)].detach()
            torch.testing.assert_close(state["classifier.weight"][row], theirs, rtol=0, atol=1e-8)


@pytest.mark.medium
def test_its_towers_come_from_a_model_of_retrieval(questions: Path, tmp_path: Path) -> None:
    corpus = write_tiny_corpus(tmp_path / "pairs")
    run_recipe(tiny_recipe(corpus, phases=[{"epochs": 1}]), corpus / "run")
    tree = answering_tree(questions, phases=[{"epochs": 1}])
    del tree["embed_dim"]
    tree |= {"image": {"aggregator": "tokens"}, "text": {"aggregator": "tokens"}, "start": str(corpus / "run")}
    watcher = Recorder()
    run_recipe(parse_recipe(tree), tmp_path / "run", watcher=watcher)
    assert {"  image.encoder: taken", "  fusion: new (the start has none)"} <= set(watcher.notes)
    assert any(note.startswith("  text.encoder: taken (") and "words added" in note for note in watcher.notes)
    assert any(names(note, "start", "validation") for note in watcher.notes)
    assert load_as(Answerer, tmp_path / "run" / "best").provenance["start"]["name"] == "run"


@pytest.mark.medium
def test_a_side_that_the_start_lacks_is_refused(questions: Path, tmp_path: Path) -> None:
    tree = answering_tree(questions, phases=[{"epochs": 1}])
    own = {"image": None, "fusion": None, "start": str(questions / "base")}
    blind = {**tree, **own, "text": {"aggregator": {"name": "score_attention", "num_heads": 2}}}
    run_recipe(parse_recipe(blind), tmp_path / "blind")
    with pytest.raises(RecipeError, match="image.*blind"):
        parse_recipe({key: value for key, value in tree.items() if key != "image"} | {"start": str(tmp_path / "blind")})
    retrieval = {key: tiny_tree(tmp_path)[key] for key in ("name", "objective", "data", "training")}
    with pytest.raises(RecipeError, match="similarity.*'start'"):
        parse_recipe({**retrieval, "start": str(questions / "base"), "similarity": "start"})
