"""Maps over images: attention of heads, cosines of views, pairs, and answers."""

from pathlib import Path

import numpy as np
import pytest
import torch

from openvse.datasets import open_corpus
from openvse.errors import DataError, OpenVSEError
from openvse.features.extract import FeatureStoreWriter
from openvse.functional import normalize
from openvse.model.two_tower import TwoTower
from openvse.tasks.recipes import parse_recipe
from openvse.training.kind import Request
from openvse.types import Features
from openvse_papers.analysis.attention import (
    Gallery,
    ImageMap,
    Subjects,
    analyze_attention,
    gallery_of,
    heat_of,
    look_at,
    map_answers,
    map_images,
    pick_images,
)
from openvse_papers.analysis.hits import shown_image
from openvse_papers.vqa.answerer import Answerer, build_answerer
from openvse_papers.vqa.answers import AnswerVocabulary
from tests.cli.album import write_album
from tests.naming import names, refusal
from tests.papers.analysis.small import CAPTIONS, ENCODER, WORDS, is_png, plain, small_model
from tests.tiny_questions import COLOURS, answering_tree

CELLS = [[0, 0, 0.5, 0.5], [0.5, 0, 1, 0.5], [0, 0.5, 0.5, 1], [0.5, 0.5, 1, 1]]


@pytest.fixture(scope="module")
def album(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_album(tmp_path_factory.mktemp("drawn") / "album", 6)


def maps_of(model: TwoTower, album: Path, gallery: Gallery | None = None) -> list[ImageMap]:
    corpus = open_corpus(album)
    images = list(zip(corpus.image_ids, corpus.image_paths, strict=True))[:2]
    return map_images("model", model, images, gallery or gallery_of(corpus, corpus))


def seen(model: TwoTower, path: Path) -> Features:
    with torch.inference_mode():
        features: Features = model.image.encoder(model.read_images([path]))
    return features


@pytest.mark.medium
def test_a_single_embedding_has_cosines(album: Path) -> None:
    model = plain()
    first, second = maps_of(model, album)
    local = normalize(seen(model, album / "00.png").local[0])
    vector = model.encode_image([album / "00.png"]).vectors[0, 0]
    torch.testing.assert_close(first.weights, local @ vector)
    assert (first.view, first.kind, first.boxes.tolist()) == ("embedding", "cosine", CELLS)
    texts = model.encode_text(list(open_corpus(album).captions))
    best = int(model.score(model.encode_image([album / "00.png"]), texts)[0].argmax())
    assert first.caption == open_corpus(album).captions[best] and first.right is (best < 2)
    assert second.image_id == "01.png"


@pytest.mark.medium
def test_each_view_has_a_map_and_a_caption(album: Path) -> None:
    model = small_model({"name": "multi_view", "num_views": 2})
    maps = maps_of(model, album)[:2]
    assert [one.view for one in maps] == ["view 1", "view 2"]
    vectors = model.encode_image([album / "00.png"]).vectors[0]
    local = normalize(seen(model, album / "00.png").local[0])
    torch.testing.assert_close(maps[1].weights, local @ vectors[1])
    texts = model.encode_text(list(open_corpus(album).captions)).vectors[:, 0]
    assert maps[1].caption == open_corpus(album).captions[int((texts @ vectors[1]).argmax())]


@pytest.mark.medium
@pytest.mark.parametrize("name", ["pie_net", "score_attention"])
def test_heads_attend(album: Path, name: str) -> None:
    if name == "pie_net":
        encoder = {**ENCODER, "projection": "none", "global_vector": "mean"}
        text = {"encoder": {**WORDS, "output": "words"}, "aggregator": {"name": "pie_net", "num_embeddings": 2}}
        image = {"encoder": encoder, "aggregator": {"name": "pie_net", "num_embeddings": 2}}
        model = small_model(image=image, text=text)
    else:
        model = small_model({"name": "score_attention", "num_heads": 2, "num_vectors": 2})
    maps = maps_of(model, album)
    assert [(one.view, one.kind) for one in maps[:2]] == [("head 1", "attention"), ("head 2", "attention")]
    for one in maps:
        assert float(one.weights.sum()) == pytest.approx(1.0, abs=1e-5)
    features = seen(model, album / "00.png")
    aggregator = model.image.aggregator
    with torch.inference_mode():
        torch.testing.assert_close(maps[0].weights, aggregator.attended(features)[0, 0])
        if name == "pie_net":  # the weights are those of the sum behind the embedding
            looked = aggregator.attended(features) @ features.local
            expected = aggregator.norm(features.pooled.unsqueeze(1) + aggregator.residual(looked).sigmoid())
            torch.testing.assert_close(aggregator(features).vectors, expected)


@pytest.mark.medium
def test_pairs_weigh_image_and_words(album: Path) -> None:
    tokens = {"name": "tokens"}
    fused = {"name": "fused", "fusion": {"name": "score_attention", "num_heads": 2, "num_vectors": 2}}
    model = small_model(tokens, tokens, similarity=fused)
    maps = maps_of(model, album)
    assert [one.view for one in maps] == ["reduction 1", "reduction 2"] * 2
    assert all(one.right for one in maps) and maps[0].caption in open_corpus(album).captions[:2]
    assert sum(weight for _, weight in maps[0].words) == pytest.approx(1.0, abs=1e-5)
    assert float(maps[0].weights.sum()) == pytest.approx(1.0, abs=1e-5)
    assert maps[0].words[1][0] in ("red", "<red>", "a")


@pytest.mark.medium
def test_boxes_come_from_the_store(album: Path, tmp_path: Path) -> None:
    corpus = open_corpus(album)
    encoder = {"name": "precomputed", "feature_dim": 12, "projection": "linear"}
    model = small_model(image={"encoder": encoder, "aggregator": "gpo"})
    boxes = torch.rand(5, 4).sort(dim=1).values
    with FeatureStoreWriter(tmp_path / "s", fingerprint="x", dim=12, dtype="float32", boxes=True) as writer:
        for image_id in corpus.image_ids:
            writer.add(image_id, torch.randn(5, 12), boxes)
    request = Request(str(album), "all", (tmp_path / "s",))
    maps = look_at({"m": model}, request, Subjects(count=2))
    assert len(maps) == 2 and not maps[0].tiled
    torch.testing.assert_close(maps[0].boxes, boxes, atol=1e-3, rtol=0)
    with FeatureStoreWriter(tmp_path / "t", fingerprint="x", dim=12, dtype="float32") as writer:
        for image_id in corpus.image_ids:
            writer.add(image_id, torch.randn(5, 12))
    with pytest.raises(OpenVSEError, match="05.png"):
        look_at({"m": model}, Request(str(album), "all", (tmp_path / "t",)), Subjects(count=1))


def answerer() -> Answerer:
    tree = answering_tree(Path()) | {"image": {"encoder": ENCODER, "aggregator": "tokens"}}
    answers = AnswerVocabulary(COLOURS, votes=False)
    return build_answerer(parse_recipe(tree), questions=["what colour is the dog"], answers=answers).eval()


@pytest.mark.medium
def test_answers_have_maps(album: Path) -> None:
    model = answerer()
    maps = map_answers("m", model, ("00.png", album / "00.png"), ["what colour is the dog"])
    assert [one.view for one in maps] == ["reduction 1", "reduction 2"]
    answer = model.ask(album / "00.png", "what colour is the dog", top_k=1)[0][0]
    assert maps[0].caption == f"what colour is the dog → {answer.answer} ({round(100 * answer.probability)} %)"
    assert maps[0].boxes.tolist() == CELLS
    asked_again = ("m", model, ("00.png", album / "00.png"), ["what colour is the dog"])
    right, wrong = (map_answers(*asked_again, [["other", each]]) for each in (answer.answer, "odd"))
    assert (maps[0].right, right[0].right, wrong[0].right) == (None, True, False)
    assert wrong[0].caption.endswith(", truth: other") and "truth" not in right[0].caption
    asked = Subjects(images=(album / "01.png",), captions=("what colour is the cat",))
    assert look_at({"m": model}, Request(""), asked)[0].image_id == "01.png"
    with pytest.raises(OpenVSEError, match="--caption"):
        look_at({"m": model}, Request(""), Subjects(images=(album / "01.png",)))


def test_widths_that_differ_are_refused(album: Path) -> None:
    views = {"name": "multi_view", "aggregator": "mean", "num_views": 2, "share_projection": False}
    model = small_model(image={"encoder": {**ENCODER, "projection": "none"}, "aggregator": views})
    assert names(refusal(OpenVSEError, lambda: maps_of(model, album, Gallery(CAPTIONS))), "1280", "16")


def test_broken_images_are_not_drawn(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = write_album(tmp_path / "broken", 5)
    (folder / "01.png").write_bytes(b"no image")
    drawn = pick_images(open_corpus(folder), 5)
    assert drawn.image_ids == ("00.png", "02.png", "03.png", "04.png") and "01.png" in caplog.text
    assert shown_image(folder / "01.png").shape == (1, 1, 3)
    assert names(refusal(DataError, lambda: pick_images(open_corpus(folder).select(np.array([1])), 1)), "broken")


def test_heat_is_the_mean_of_the_parts() -> None:
    weights = torch.tensor([0.0, 1.0, 3.0])
    boxes = torch.tensor([[0.0, 0, 1, 1], [0, 0, 0.5, 0.5], [0.5, 0.5, 1, 1]])
    heat = heat_of(weights, boxes, 4, 4)
    assert heat[0, 0] == pytest.approx((0 + 1 / 3) / 2) and heat[3, 3] == pytest.approx(0.5)
    assert heat[0, 3] == 0
    even = heat_of(torch.ones(2), boxes[1:], 4, 4)
    assert even[0, 0] == 0.5 and even[0, 3] == 0  # nothing covers the last place


@pytest.mark.medium
def test_the_figure_and_its_numbers(album: Path, tmp_path: Path) -> None:
    model = small_model({"name": "multi_view", "num_views": 2})
    found = analyze_attention(maps_of(model, album))
    written = found.write(tmp_path / "out")
    assert [path.name for path in written] == [
        "attention.csv", "attention_captions.csv", "attention.png", "attention.svg"
    ]  # fmt: skip
    assert is_png(written[2])
    assert len(found.tables[""].rows) == 2 * 2 * 4
    shares = [row[-1] for row in found.tables["captions"].rows]
    assert all(0 < share <= 1 for share in shares)
    assert "view 2 (cosine)" in written[3].read_text()


@pytest.mark.medium
def test_what_all_maps_of_an_image_share_stands_once(album: Path) -> None:
    maps = map_answers("m", answerer(), ("00.png", album / "00.png"), ["what colour"], [["odd"]])
    figure = analyze_attention(maps).figures[""]()
    image, *others = figure.axes[:3]
    said = image.get_xlabel().replace("\n", " ").replace("\N{NO-BREAK SPACE}", " ")
    assert said == f"✗ {maps[0].caption}"
    assert [axes.get_xlabel() for axes in others] == ["", ""]
