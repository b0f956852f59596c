"""What cannot be converted is refused in one line, and leaves nothing behind."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import openvse
import tiny_checkpoints as tiny
from openvse.cli.app import app
from openvse.conversion.convert import convert
from openvse.errors import CheckpointError, RecipeError
from openvse_papers.released import REPOSITORIES
from tests.failures import Failures
from tests.naming import names, refusal


def drop(checkpoint: dict[str, Any], side: int, name: str) -> dict[str, Any]:
    del checkpoint["model"][side][name]
    return checkpoint


def put(checkpoint: dict[str, Any], name: str, value: torch.Tensor | None = None) -> dict[str, Any]:
    model = checkpoint["model"]
    (model[0] if isinstance(model, list) else model)[name] = torch.ones(1) if value is None else value
    return checkpoint


def without(checkpoint: dict[str, Any], part: str) -> dict[str, Any]:
    model = {name: weight for name, weight in checkpoint["model"].items() if part not in name}
    return checkpoint | {"model": model}


CASES: dict[str, tuple[Callable[[], Any], str]] = {
    "nothing": (dict, ""),
    "list": (lambda: [1, 2, 3], ""),
    "one side": (lambda: {"model": {"img_enc.fc.weight": torch.ones(1)}}, ""),
    "VSE++": (
        lambda: {"model": [{"fc.weight": torch.ones(1)}, {"embed.weight": torch.ones(1)}]},
        r"GPO.*PIE-Net.*AdPool",
    ),
    "missing weight": (lambda: drop(tiny.vse_infinity(), 0, "mlp.layers.1.bias"), "1 .*mlp.3.bias"),
    "missing fc": (lambda: drop(tiny.vse_infinity(), 0, "fc.weight"), "'fc.weight'"),
    "new weight": (lambda: put(tiny.vse_infinity(), "extra.weight"), "'extra.weight'"),
    "other shape": (
        lambda: put(tiny.vse_infinity(), "mlp.bns.0.bias", torch.ones(3)),
        r"1 .*mlp.1.bias' \(\(3,\) float32 for \(4,\) float32\)",
    ),
    "a flat matrix": (lambda: put(tiny.vse_infinity(), "fc.weight", torch.ones(8)), r"'fc.weight'.*\(8,\).* 2 "),
    "a matrix of words with one axis": (
        lambda: put(tiny.vse_2ad(text="bert"), "txt_enc.bert.embeddings.word_embeddings.weight"),
        r"word_embeddings.weight'.*\(1,\).* 2 ",
    ),
    "BERT of another width": (
        lambda: put(tiny.vse_2ad(text="bert"), "txt_enc.bert.embeddings.word_embeddings.weight", torch.ones(15, 100)),
        "BERT.*100.*64",
    ),
    "unnormalised": (lambda: tiny.vse_infinity(no_imgnorm=True), "--no_imgnorm"),
    "one direction": (lambda: without(tiny.vse_2ad(), "l0_reverse"), "GRU"),
    "two layers": (lambda: put(tiny.vse_2ad(), "txt_enc.rnn.weight_ih_l1"), "GRU"),
    "ViT": (lambda: put(tiny.vse_2ad(), "img_enc.vit_model.embeddings.cls_token"), "ViT"),
    "order": (lambda: tiny.pvse(order=True), "--order"),
    "no attention": (lambda: without(tiny.pvse(), "txt_enc.pie_net"), "--img_attention, --txt_attention"),
    "basic blocks": (lambda: without(tiny.vse_2ad(grid=True), "conv3"), "ResNet"),
    "VGG": (lambda: without(tiny.pvse(), "cnn.layer"), "ResNet.*ResNeXt"),
}


@pytest.mark.medium
def test_what_has_no_counterpart_is_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    failures = Failures()
    for case, (make, reason) in CASES.items():
        with failures.of(case):
            tmp_path = tmp_path_factory.mktemp("case")
            path = tiny.save(make(), tmp_path / "model.pth")
            vocabulary = tiny.write_vocabulary(tmp_path / "vocab.json")
            with pytest.raises(CheckpointError, match=f"model.pth.*{reason}") as error:
                convert(path, tmp_path / "out", vocabulary=vocabulary)
            assert "\n" not in str(error.value)
            assert not (tmp_path / "out").exists()
    assert not failures, failures


@pytest.mark.parametrize(
    ("make", "place"),
    [
        (tiny.vse_infinity, "vocab/f30k_precomp_vocab.json"),
        (lambda: tiny.pvse(data_name="coco"), "vocab/coco_vocab.pkl"),
        (lambda: tiny.vse_2ad(data_name="coco"), "data/vocab/coco_precomp_vocab.json"),
    ],
)
def test_without_its_vocabulary_the_place_in_the_repository_is_named(
    tmp_path: Path, make: Callable[[], Any], place: str
) -> None:
    path = tiny.save(make(), tmp_path / "model.pth")
    assert names(refusal(CheckpointError, convert, path, tmp_path / "out"), place, "--vocabulary")


def test_another_vocabulary_is_refused_by_its_size(tmp_path: Path) -> None:
    path = tiny.save(tiny.vse_infinity(), tmp_path / "model.pth")
    short = tiny.write_vocabulary(tmp_path / "short.json", tiny.WORDS[:9])
    assert names(refusal(CheckpointError, convert, path, tmp_path / "out", vocabulary=short), "short.json", "9", "16")


def test_word_pieces_of_another_bert_are_refused(tmp_path: Path) -> None:
    path = tiny.save(tiny.vse_infinity(text="bert"), tmp_path / "model.pth")
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n")
    with pytest.raises(CheckpointError, match="2.*15.*vocab.txt"):
        convert(path, tmp_path / "out", vocabulary=tmp_path / "vocab.txt")
    assert names(refusal(CheckpointError, convert, path, tmp_path / "out", vocabulary=tmp_path / "gone"), "vocab.txt")


@pytest.mark.medium
def test_a_tokenizer_folder_serves_as_well_as_its_file(tmp_path: Path) -> None:
    path = tiny.save(tiny.vse_infinity(text="bert"), tmp_path / "model.pth")
    first = convert(path, tmp_path / "a", vocabulary=tiny.write_pieces(tmp_path / "vocab.txt")).model
    second = convert(path, tmp_path / "b", vocabulary=tmp_path / "a" / "text").model
    assert torch.equal(first.encode_text(["a dog"]).vectors, second.encode_text(["a dog"]).vectors)


def test_a_kind_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    path = tiny.save(tiny.pvse(), tmp_path / "model.pth")
    assert names(refusal(CheckpointError, convert, path, tmp_path / "out", repository="vse_2ad"), "vse_2ad")
    assert names(refusal(CheckpointError, convert, path, tmp_path / "out", repository="pvsee"), "'pvsee'", "'pvse'")


@pytest.mark.medium
def test_every_kind_knows_its_own_checkpoints_alone(tmp_path: Path) -> None:
    vocabulary = tiny.write_vocabulary(tmp_path / "vocab.json")
    makers = {"vse_infinity": tiny.vse_infinity, "pvse": tiny.pvse, "vse_2ad": tiny.vse_2ad, "esa": tiny.esa}
    assert makers.keys() == REPOSITORIES.keys()
    for name, make in makers.items():
        path = tiny.save(make(), tmp_path / f"{name}.pth")
        assert convert(path, tmp_path / name, vocabulary=vocabulary).repository == name
        for other in makers.keys() - {name}:
            with pytest.raises(CheckpointError, match=f"{other}"):
                convert(path, tmp_path / other / name, vocabulary=vocabulary, repository=other)


def test_an_override_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tiny.save(tiny.vse_infinity(), tmp_path / "model.pth")
    vocabulary = tiny.write_vocabulary(tmp_path / "vocab.json")
    with pytest.raises(RecipeError, match=r"text\.encoder\.nonsense"):
        convert(path, tmp_path / "out", vocabulary=vocabulary, overrides=["text.encoder.nonsense=1"])
    assert not (tmp_path / "out").exists()


@pytest.mark.medium
def test_the_command_converts_and_says_what_it_took(tmp_path: Path) -> None:
    path = tiny.save(tiny.pvse(legacy=True)["model"], tmp_path / "coco_pvse.pth")
    vocabulary, out = tiny.write_vocabulary(tmp_path / "coco_vocab.pkl"), tmp_path / "model"
    command = ["convert", str(path), str(out), "--vocabulary", str(vocabulary)]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    model = openvse.load(out)
    assert f"pvse, {sum(p.numel() for p in model.parameters()):,} parameters" in done.output
    assert model.fingerprint in done.output and "--legacy" in done.output
    again = CliRunner().invoke(app, command)
    assert again.exit_code == 2
    assert str(out) in again.output.replace("\n", "")


@pytest.mark.medium
def test_the_folder_says_where_the_model_came_from(tmp_path: Path) -> None:
    path = tiny.save(tiny.vse_infinity(), tmp_path / "model_best.pth")
    vocabulary = tiny.write_vocabulary(tmp_path / "vocab.json")
    provenance = convert(path, tmp_path / "out", vocabulary=vocabulary).model.provenance
    assert provenance["recipe"] == "converted/vse_infinity"
    assert provenance["description"] == "converted from model_best.pth (epoch 25, best_rsum 513.25)"
    assert str(tmp_path) not in (tmp_path / "out" / "config.json").read_text()
