"""A model that answers: what it depends on, what it can learn, its folder, and what it refuses."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import openvse
from openvse.batches.pairs import BatchKey, FeatureImages, TokenTable
from openvse.datasets import open_questions
from openvse.errors import BadImageError, DataError, ModelError, RecipeError
from openvse.features.store import FeatureStore
from openvse.functional import pad
from openvse.model.two_tower import TwoTower
from openvse.retrieval.build import build_model
from openvse.tasks.load import load, load_as
from openvse.tasks.recipes import parse_recipe
from openvse.tokenization.vocabulary import UnknownWord
from openvse.types import Inputs, QuestionBatch
from openvse_papers.vqa.answerer import Answerer, Guess, QuestionDataset, build_answerer
from openvse_papers.vqa.answers import AnswerVocabulary
from tests.conftest import PhotoMaker
from tests.naming import names, refusal
from tests.tiny import tiny_tree
from tests.tiny_questions import COLOURS, FEATURE_DIM, answering_tree, question_only, write_tiny_questions

QUESTIONS = ["what colour is the dog", "what colour is the big cat over there", "is it a ball"]
BASELINES = [
    {"name": "score_attention", "num_heads": 2, "num_vectors": 3},
    {"name": "pooled", "aggregator": "mean", "num_heads": 2},
    {"name": "pooled", "aggregator": "max", "num_heads": 2},
    {"name": "pooled", "aggregator": "log_sum_exp", "num_heads": 2},
    {"name": "pooled", "aggregator": "first_token", "class_token": True, "num_heads": 2},
]


def build(change: dict[str, Any] | None = None, *, alone: bool = False) -> Answerer:
    tree = answering_tree(Path())
    tree = question_only(tree) if alone else tree
    answers = AnswerVocabulary(COLOURS, votes=False)
    return build_answerer(parse_recipe(tree | (change or {})), questions=QUESTIONS, answers=answers).eval()


def seeing() -> Answerer:
    """A model that decodes images."""
    encoder = {"name": "efficientnet_lite0", "pretrained": False, "image_size": 64, "augmentation": "none"}
    return build({"image": {"encoder": encoder, "aggregator": "tokens"}})


def some_images(count: int = 3) -> Inputs:
    generator = torch.Generator().manual_seed(0)
    return pad([torch.randn(3 + number, FEATURE_DIM, generator=generator) for number in range(count)])


def logits_of(model: Answerer, images: Inputs | None, image_of: list[int], questions: list[str]) -> Tensor:
    with torch.inference_mode():
        return model(images, torch.tensor(image_of), model.read_questions(questions))


@pytest.mark.parametrize("fusion", BASELINES, ids=lambda fusion: fusion.get("aggregator", fusion["name"]))
def test_batch_mates_and_padding_change_nothing(fusion: dict[str, Any]) -> None:
    model, images = build({"fusion": fusion}), some_images()
    together = logits_of(model, images, [0, 1, 2, 0], [*QUESTIONS, QUESTIONS[1]])
    assert together.shape == (4, len(COLOURS))
    assert images.mask is not None
    for row, (image, question) in enumerate(zip([0, 1, 2, 0], [*QUESTIONS, QUESTIONS[1]], strict=True)):
        length = int(images.mask[image].sum())
        alone = Inputs(images.values[image : image + 1, :length], images.mask[image : image + 1, :length])
        torch.testing.assert_close(logits_of(model, alone, [0], [question])[0], together[row], rtol=0, atol=1e-5)
    garbage = Inputs(images.values.masked_fill(~images.mask.unsqueeze(-1), 1e3), images.mask)
    torch.testing.assert_close(
        logits_of(model, garbage, [0, 1, 2, 0], [*QUESTIONS, QUESTIONS[1]]), together, rtol=0, atol=1e-5
    )


def test_without_images_only_the_question_counts() -> None:
    model = build(alone=True)
    (answered,) = model.answer(None, QUESTIONS[:1])
    assert not model.sees and answered.attended is None
    together = logits_of(model, None, [0, 0, 0], QUESTIONS)
    torch.testing.assert_close(logits_of(model, None, [0], QUESTIONS[1:2])[0], together[1], rtol=0, atol=1e-6)
    assert not torch.allclose(together[0], together[1])


def test_it_equals_its_definition() -> None:
    """Mean of the k vectors, feed-forward with residual and LayerNorm a side, concatenation, one linear layer."""
    model, images = build(), some_images(1)
    tokens = model.read_questions(QUESTIONS[:1])
    assert model.fusion is not None and model.image is not None and model.image_layer is not None
    with torch.no_grad():
        x, z, _ = model.fusion(*model.fusion.prepare(model.image(images), model.text(tokens)))
        sides = []
        for vectors, layer in ((x, model.image_layer), (z, model.text_layer)):
            mean = sum(vectors[0]) / len(vectors[0])
            hidden = (layer.inner.weight @ mean + layer.inner.bias).clamp(min=0)
            raw = mean + layer.outer.weight @ hidden + layer.outer.bias
            sides.append((raw - raw.mean()) / (raw.var(unbiased=False) + 1e-5).sqrt())
        expected = model.classifier.weight @ torch.cat(sides) + model.classifier.bias
    torch.testing.assert_close(logits_of(model, images, [0], QUESTIONS[:1])[0], expected, rtol=1e-4, atol=1e-5)


def all_questions(folder: Path, model: Answerer) -> QuestionBatch:
    asked = open_questions(f"question_folder:{folder}", require_images=False).split("train")
    images = FeatureImages(FeatureStore(folder / "features"), asked.image_ids) if model.sees else None
    tokens = model.text.encoder.tokenize([question.text for question in asked.questions])
    dataset = QuestionDataset(asked, images, TokenTable(tokens), model.answers)
    return dataset[BatchKey(dataset.by_image())]


@pytest.mark.medium
@pytest.mark.parametrize("alone", [False, True])
def test_32_questions_are_learned_by_heart_if_the_images_are_seen(tmp_path: Path, alone: bool) -> None:
    folder = write_tiny_questions(tmp_path)
    model = build(alone=alone)
    batch = all_questions(folder, model)
    assert len(batch.questions) == 32
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(60):
        logits = model(batch.images, batch.image_of, batch.questions)
        loss = F.binary_cross_entropy_with_logits(logits, batch.targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    right = batch.targets.gather(1, logits.argmax(dim=1, keepdim=True)).mean()
    assert right < 0.75 if alone else right == 1.0


class TestAsking:
    def test_several_questions_about_one_image(self, make_photos: PhotoMaker) -> None:
        model, photo = seeing(), make_photos(1)[0]
        found = model.ask(photo, QUESTIONS, top_k=2, batch_size=2)
        assert [len(guesses) for guesses in found] == [2, 2, 2]
        assert all(isinstance(guess, Guess) and 0 < guess.probability < 1 for guesses in found for guess in guesses)
        assert found[1] == [
            Guess(answer, pytest.approx(chance, abs=1e-5))
            for answer, chance in model.ask(photo, [QUESTIONS[1]], top_k=2)[0]
        ]
        everything = model.ask(photo, QUESTIONS[:1], top_k=99)[0]
        assert {guess.answer for guess in everything} == set(COLOURS)
        assert everything == sorted(everything, key=lambda guess: -guess.probability)

    def test_each_question_has_the_weights_of_its_own_pass(self) -> None:
        model, images = build(), some_images(1)
        for answered, question in zip(model.answer(images, QUESTIONS, batch_size=2), QUESTIONS, strict=True):
            tokens = model.read_questions([question])
            logits, attended = model.with_attention(images, torch.zeros(1, dtype=torch.int64), tokens)
            assert attended is not None and answered.attended is not None
            chances = {guess.answer: guess.probability for guess in answered.guesses}
            expected = dict(zip(model.answers.answers, logits[0].sigmoid().tolist(), strict=True))
            assert chances == pytest.approx(expected, abs=1e-6)
            torch.testing.assert_close(answered.attended.image, attended.image[0], rtol=0, atol=1e-6)
            words = answered.attended.words[:, : len(tokens.values[0])]
            torch.testing.assert_close(words, attended.words[0], rtol=0, atol=1e-6)

    def test_the_mode_stays_and_does_not_matter(self, make_photos: PhotoMaker) -> None:
        model, photo = seeing(), make_photos(1)[0]
        asked = model.ask(photo, QUESTIONS)
        assert model.train().ask(photo, QUESTIONS) == asked and model.training

    def test_one_question_by_itself(self, make_photos: PhotoMaker) -> None:
        model, photo = seeing(), make_photos(1)[0]
        assert model.ask(photo, QUESTIONS[0]) == model.ask(photo, QUESTIONS[:1])

    def test_an_empty_question_does_not_cancel_the_others(self, caplog: pytest.LogCaptureFixture) -> None:
        model = build(alone=True)
        first, second, third = model.ask(None, [QUESTIONS[0], " ", QUESTIONS[1]], top_k=1)
        assert [first, third] == model.ask(None, QUESTIONS[:2], top_k=1) and second == []
        assert caplog.messages == ["an empty question has no answer (1 of 3 are empty)"]

    def test_unknown_words_are_named(self, caplog: pytest.LogCaptureFixture) -> None:
        model = build(alone=True)
        asked = [QUESTIONS[0], f"{QUESTIONS[0]} zebra", "zebra tractor"]
        known, one, both = model.answer(None, asked)
        assert (known.unknown_words, one.unknown_words) == ((), (UnknownWord("zebra"),))
        assert [unknown.word for unknown in both.unknown_words] == ["zebra", "tractor"]
        assert caplog.messages == ["the model does not know the words 'zebra', 'tractor'"]

    def test_bad_input_is_named(self, make_photos: PhotoMaker, tmp_path: Path) -> None:
        model = seeing()
        (tmp_path / "bad.jpg").write_bytes(b"no image")
        assert names(refusal(BadImageError, model.ask, tmp_path / "bad.jpg", QUESTIONS), "bad.jpg")
        refusal(ModelError, model.ask, None, QUESTIONS)
        refusal(DataError, lambda: build(alone=True).ask(None, ["", " "]))
        refusal(DataError, lambda: build(alone=True).ask(None, []))
        assert names(refusal(ModelError, lambda: build().ask(make_photos(1)[0], QUESTIONS)), "precomputed")


def test_weights_add_up_to_one_for_each_reduction() -> None:
    model = build()
    asked = some_images(), torch.tensor([0, 2]), model.read_questions(QUESTIONS[:2])
    logits, attended = model.with_attention(*asked)
    assert torch.equal(logits, model(*asked)) and attended is not None
    assert attended.image.shape == (2, 2, 5) and attended.words.shape[:2] == (2, 2)
    for side in attended:
        torch.testing.assert_close(side.sum(dim=-1), torch.ones(2, 2))
    assert (attended.image[0, :, 3:] == 0).all()  # the first image has three cells


class TestFolder:
    def test_it_comes_back_the_same(self, tmp_path: Path) -> None:
        model = build()
        folder = model.save(tmp_path / "model")
        assert {path.name for path in folder.iterdir()} == {"config.json", "model.safetensors", "text", "answers.json"}
        loaded = openvse.load(folder)
        assert isinstance(loaded, Answerer) and not loaded.training
        assert (loaded.fingerprint, loaded.answers.answers) == (model.fingerprint, COLOURS)
        assert torch.equal(
            logits_of(loaded, some_images(), [0, 1, 2], QUESTIONS),
            logits_of(model, some_images(), [0, 1, 2], QUESTIONS),
        )

    def test_a_model_of_the_other_task_is_refused(self, tmp_path: Path) -> None:
        answers = build(alone=True).save(tmp_path / "answers")
        ranks = build_model(parse_recipe(tiny_tree(Path())), captions=["a dog"]).save(tmp_path / "ranks")
        assert names(refusal(ModelError, load_as, TwoTower, answers), "answers")
        assert names(refusal(ModelError, load_as, Answerer, ranks), "ranks")
        assert type(load(answers)) is not type(load(ranks))

    def test_damage_is_named(self, tmp_path: Path) -> None:
        folder = build(alone=True).save(tmp_path)
        (folder / "answers.json").write_text("{")
        assert names(refusal(ModelError, load, folder), "answers.json")


def test_a_new_model_needs_answers() -> None:
    refusal(RecipeError, lambda: build_answerer(parse_recipe(answering_tree(Path())), questions=QUESTIONS))
