"""A converted model embeds as the released code does: against slow forward passes from the checkpoint's weights."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import released_forward as slow
import torch
from PIL import Image
from torch import Tensor

import openvse
import tiny_checkpoints as tiny
from openvse.conversion.convert import convert
from openvse.functional import pad
from openvse.model.two_tower import TwoTower

pytestmark = pytest.mark.medium

# The tokens that NLTK makes of tiny.CAPTIONS, and those of BERT; what a vocabulary lacks is unknown.
SPLIT = ("a dog runs on the mat .", "two cats", "the dog 's mat . a cat !", "zebra", "the cat runs")
PIECES = ("a dog runs on the mat .", "two cat ##s", "the dog ' [UNK] mat . a cat !", "zebra", "the cat runs")


@pytest.fixture
def run(tmp_path: Path) -> Any:
    """Return a converter of checkpoints in memory: what the command does, read back from disk."""

    def convert_it(checkpoint: Any, *overrides: str, words: str = "vocab.json", **options: Any) -> TwoTower:
        vocabulary = tmp_path / words
        tiny.write_pieces(vocabulary) if words.endswith(".txt") else tiny.write_vocabulary(vocabulary)
        path = tiny.save(checkpoint, tmp_path / "model_best.pth", **options)
        out = tmp_path / "-".join(("converted", *overrides))
        convert(path, out, vocabulary=vocabulary, overrides=overrides)
        return openvse.load(out)

    return convert_it


def word_ids(sentence: str) -> Tensor:
    ids = {word: index for index, word in enumerate(tiny.WORDS)}
    return torch.tensor([ids["<start>"], *(ids.get(w, ids["<unk>"]) for w in sentence.split()), ids["<end>"]])


def piece_ids(sentence: str) -> Tensor:
    ids = {piece: index for index, piece in enumerate(tiny.PIECES)}
    return torch.tensor([ids["[CLS]"], *(ids.get(p, ids["[UNK]"]) for p in sentence.split()), ids["[SEP]"]])


def averaged(weights: slow.Weights, sentence: str) -> Tensor:
    forward, backward = slow.bigru(weights, "rnn", weights["embed.weight"][word_ids(sentence)])
    return (forward + backward) / 2


def region_batch() -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(size, tiny.REGION, generator=generator) for size in (7, 3, 7)]


def embed_regions(model: TwoTower, batch: list[Tensor]) -> Tensor:
    with torch.inference_mode():
        return model.image(pad(batch)).vectors


def photo(size: tuple[int, int] = (90, 60), seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))


def assert_equal(actual: Tensor, expected: list[Tensor]) -> None:
    torch.testing.assert_close(actual, torch.stack(expected).view(actual.shape), rtol=0, atol=1e-5)


@pytest.mark.parametrize("zipped", [True, False])
def test_vse_infinity_with_regions_and_bigru(run: Any, zipped: bool) -> None:
    checkpoint = tiny.vse_infinity()
    image, text = checkpoint["model"]
    model = run(checkpoint, zipped=zipped)
    batch = region_batch()
    assert_equal(embed_regions(model, batch), [slow.gpo(image, slow.regions(image, rows)) for rows in batch])
    assert_equal(model.encode_text(tiny.CAPTIONS).vectors, [slow.gpo(text, averaged(text, s)) for s in SPLIT])
    assert model.indexable


def test_vse_infinity_with_bert(run: Any) -> None:
    checkpoint = tiny.vse_infinity(text="bert")
    text = slow.below(checkpoint["model"][1], "")
    model = run(checkpoint, words="vocab.txt")
    expected = [slow.gpo(text, slow.apply(text, "linear", slow.bert(text, piece_ids(s), layers=2))) for s in PIECES]
    assert_equal(model.encode_text(tiny.CAPTIONS).vectors, expected)


@pytest.mark.parametrize("text", ["bigru", "bert"])
def test_esa_with_regions(run: Any, text: str) -> None:
    checkpoint = tiny.esa(text=text)
    image, sentence = (slow.below(side, "") for side in checkpoint["model"])
    model = run(checkpoint, words="vocab.json" if text == "bigru" else "vocab.txt")
    pooled = slow.external_attention
    batch = region_batch()
    assert_equal(embed_regions(model, batch), [pooled(image, slow.regions(image, rows)) for rows in batch])
    if text == "bigru":
        local = [averaged(sentence, each) for each in SPLIT]
    else:
        states = [slow.bert(sentence, piece_ids(each), layers=2) for each in PIECES]
        local = [slow.apply(sentence, "linear", each) for each in states]
    assert_equal(model.encode_text(tiny.CAPTIONS).vectors, [pooled(sentence, each) for each in local])
    assert model.indexable


@pytest.mark.parametrize(
    ("source", "caffe", "groups"),
    [("detector", True, 1), ("wsl", False, 2), ("imagenet_res152", True, 1), ("imagenet_resnext", False, 4)],
)
def test_vse_infinity_with_grids(run: Any, source: str, caffe: bool, groups: int) -> None:
    checkpoint = tiny.vse_infinity(grid=True, groups=groups, backbone_source=source, input_scale_factor=0.25)
    cnn = slow.below(checkpoint["model"][0], "backbone.resnet.")
    head = slow.below(checkpoint["model"][0], "image_encoder.")
    model = run(checkpoint)
    assert model.image.encoder.backbone.image_size == 64
    pixels = model.image.encoder.backbone.preprocess(photo())
    cells = slow.resnet(cnn, "", pixels, caffe=caffe)
    assert_equal(model.encode_image([photo()]).vectors, [slow.gpo(head, slow.apply(head, "fc", cells))])
    other = slow.resnet(cnn, "", pixels, caffe=not caffe)
    assert other.shape != cells.shape or not torch.allclose(other, cells, atol=1e-3)
    assert model.image.encoder.backbone.pixels == ("caffe" if source == "detector" else "imagenet")


@pytest.mark.parametrize("text", ["rnn", "bert"])
def test_vse_2ad_of_each_caption_alone(run: Any, text: str) -> None:
    checkpoint = tiny.vse_2ad(text=text)
    image, sentence = (slow.below(checkpoint["model"], side) for side in ("img_enc.", "txt_enc."))
    model = run(checkpoint, words="vocab.json" if text == "rnn" else "vocab.txt")
    batch = region_batch()[:1] * 2
    assert_equal(embed_regions(model, batch), [slow.adpool(image, slow.regions(image, rows)) for rows in batch])
    local = local_of_2ad(sentence, text)
    assert_equal(model.encode_text(tiny.CAPTIONS).vectors, [slow.adpool(sentence, each) for each in local])
    assert model.indexable


def test_vse_2ad_in_a_batch_with_padding(run: Any) -> None:
    checkpoint = tiny.vse_2ad()
    sentence = slow.below(checkpoint["model"], "txt_enc.")
    model = run(checkpoint, "text.aggregator.count_padding=true")
    local = local_of_2ad(sentence, "rnn")
    longest = max(map(len, local))
    expected = [slow.adpool(sentence, each, padding=longest - len(each)) for each in local]
    assert_equal(model.encode_text(tiny.CAPTIONS).vectors, expected)
    assert not model.indexable


def local_of_2ad(text: slow.Weights, kind: str) -> list[Tensor]:
    if kind == "rnn":
        return [averaged(text, s) for s in SPLIT]
    return [slow.apply(text, "fc", slow.bert(text, piece_ids(s), layers=2)) for s in PIECES]


def test_vse_2ad_with_grids_projects_them_once(run: Any) -> None:
    checkpoint = tiny.vse_2ad(grid=True, input_scale_factor=0.25)
    head = slow.below(checkpoint["model"], "img_enc.img_proj.")
    cnn = slow.below(checkpoint["model"], "img_enc.backbone.resnet.")
    model = run(checkpoint)
    cells = slow.resnet(cnn, "", model.image.encoder.backbone.preprocess(photo()), caffe=True)
    assert_equal(model.encode_image([photo()]).vectors, [slow.adpool(head, slow.apply(head, "fc", cells))])


@pytest.mark.parametrize("num_embeddings", [1, 3])
@pytest.mark.parametrize("legacy", [True, False])
def test_pvse(run: Any, num_embeddings: int, legacy: bool) -> None:
    checkpoint = tiny.pvse(num_embeddings=num_embeddings, legacy=legacy, crop_size=64)
    image, text = (slow.below(checkpoint["model"], side) for side in ("img_enc.", "txt_enc."))
    model = run(checkpoint, words="coco_vocab.pkl")
    pixels = model.image.encoder.backbone.preprocess(photo())
    cells = slow.resnet(image, "cnn.", pixels, caffe=False)
    pooled = slow.apply(image, "fc", cells.mean(dim=0))
    assert_equal(model.encode_image([photo()]).vectors, [slow.pie_net(image, pooled, cells)])
    expected = []
    for sentence in SPLIT:
        words = text["embed.weight"][word_ids(sentence)]
        forward, backward = slow.bigru(text, "rnn", words)
        pooled = torch.cat((forward[-1], backward[-1 if legacy else 0]))
        expected.append(slow.pie_net(text, pooled, words))
    assert_equal(model.encode_text(tiny.CAPTIONS).vectors, expected)
    assert model.encode_text(["a dog"]).vectors.shape == (1, num_embeddings, tiny.EMBED)


@pytest.mark.parametrize("legacy", [True, False])
def test_pvse_of_clips(run: Any, tmp_path: Path, legacy: bool) -> None:
    checkpoint = tiny.pvse(video=True, legacy=legacy, crop_size=64, max_video_length=3)
    image = slow.below(checkpoint["model"], "img_enc.")
    model = run(checkpoint, words="mrw_vocab.pkl")
    images = [photo(seed=seed) for seed in range(3)]
    clip = tmp_path / "clip.gif"
    images[0].save(clip, save_all=True, append_images=images[1:], duration=200)
    pixels = model.image.encoder.backbone.read(clip)
    assert pixels.shape == (3, 3, 64, 64)
    frames = torch.stack([slow.resnet(image, "cnn.", frame, caffe=False).mean(dim=0) for frame in pixels])
    forward, backward = slow.bigru(image, "rnn", frames)
    pooled = torch.cat((forward[-1], backward[-1 if legacy else 0]))
    assert_equal(model.encode_image([clip]).vectors, [slow.pie_net(image, pooled, frames)])


def test_a_published_file_of_clips_is_taken_for_tgif(run: Any) -> None:
    config = run(tiny.pvse(video=True)["model"]).spec.image.encoder.options
    assert (config["num_frames"], config["global_vector"]) == (8, {"name": "bigru", "at_last": True})


def test_the_released_files_of_pvse_hold_weights_alone(run: Any) -> None:
    checkpoint = tiny.pvse(legacy=True)
    released = tiny.parallel({n.replace("pie_net", "our_model"): w for n, w in checkpoint["model"].items()})
    from_training, from_release = run(checkpoint), run(released, "name=released")
    captions = list(tiny.CAPTIONS)
    assert torch.equal(from_release.encode_text(captions).vectors, from_training.encode_text(captions).vectors)
    assert from_release.spec.text.encoder.options["global_state"] == "last_word"


def test_a_converted_model_can_be_trained_further(run: Any) -> None:
    model = run(tiny.vse_infinity(), "embed_dim=8").train()
    with torch.enable_grad():
        vectors = model.image(pad(region_batch())).vectors
        texts = model.text(pad(model.text.encoder.tokenize(tiny.CAPTIONS))).vectors
        (vectors.sum() + texts.pow(3).sum()).backward()
    assert model.text.encoder.words.weight.grad.abs().sum() > 0
    assert model.image.encoder.projection.linear.weight.grad.abs().sum() > 0
