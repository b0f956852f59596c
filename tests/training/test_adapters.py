"""Low-rank adapters: nothing changes at first, they alone train, and a saved model has them merged into its weights."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from openvse.backbones import fine_tuning
from openvse.backbones.fine_tuning import Lora, adapt, add_adapters, without_adapters
from openvse.backbones.pretrained import TransformersVision
from openvse.encoders.transformers_text import TransformersText
from openvse.errors import RecipeError
from openvse.functional import pad
from openvse.model.two_tower import TwoTower
from openvse.tasks.load import load_as
from openvse.tasks.recipes import parse_recipe
from openvse.tasks.run import run_recipe
from openvse.types import Inputs
from tests.tiny import Recorder, Stop, are_same
from training.test_text_features import recipe_of

LORA: dict[str, Any] = {"fine_tune": True, "size_augmentation": "none", "lora": {"rank": 2}}


def test_without_peft_the_command_that_installs_it_is_named(
    corpus: Path, bert: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fine_tuning, "find_spec", lambda name: None)
    with pytest.raises(RecipeError, match=r"pip install"):
        run_recipe(recipe_of(corpus, bert, None, **LORA), tmp_path / "run")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fine_tune": False, "lora": {}}, "lora.*fine_tune=true"),
        ({"train_blocks": 1, "lora": {}}, "train_blocks"),
        ({"lora": {"rank": 0}}, "lora.rank"),
        ({"lora": {"ranks": 4}}, "lora.ranks.*'rank'"),
    ],
)
def test_options_that_cannot_be_are_refused(bert: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        TransformersText(embed_dim=8, model=bert, **options)


@pytest.mark.medium
def test_they_change_nothing_at_first_and_merge_into_the_weights(bert: str) -> None:
    pytest.importorskip("peft")
    encoder = TransformersText(embed_dim=8, model=bert, **LORA).eval()
    inputs = pad(encoder.tokenize(["red dog runs", "cat"]))
    before, names = encoder(inputs).local.detach(), list(encoder.state_dict())
    with pytest.raises(RecipeError, match="nothing"):
        add_adapters(encoder.backbone, Lora(targets=("nothing",)))
    add_adapters(encoder.backbone, Lora(rank=2))
    torch.testing.assert_close(encoder(inputs).local, before)
    trained = [name for name, weight in encoder.backbone.named_parameters() if weight.requires_grad]
    assert trained and all("lora_" in name for name in trained) and not any("pooler" in name for name in trained)
    encoder(inputs).local.square().sum().backward()
    with torch.no_grad():
        for name, weight in encoder.named_parameters():
            if "lora_B" in name:
                assert weight.grad is not None
                weight.normal_()
    merged = without_adapters(encoder)
    assert list(merged.state_dict()) == names and without_adapters(merged) is merged
    torch.testing.assert_close(merged(inputs).local, encoder(inputs).local, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(merged(inputs).local, before)


@pytest.mark.medium
def test_a_run_with_adapters_saves_a_plain_model_and_resumes(corpus: Path, bert: str, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    tree = recipe_of(corpus, bert, None, **LORA).to_dict()
    tree["training"] |= {"phases": [{"epochs": 2}], "checkpoint_every_s": 1e-6}
    recipe = parse_recipe(tree)
    run_recipe(recipe, tmp_path / "whole")
    with pytest.raises(Stop):
        run_recipe(recipe, tmp_path / "parts", watcher=Recorder(5))
    run_recipe(recipe, tmp_path / "parts", resume=True)
    assert are_same(tmp_path / "whole", tmp_path / "parts")
    assert not any("lora" in name for name in load_file(tmp_path / "whole" / "best" / "model.safetensors"))
    model = load_as(TwoTower, tmp_path / "whole" / "best")
    plain = TransformersText(embed_dim=16, model=bert, fine_tune=True)
    query = "encoder.layer.0.attention.self.query.weight"
    change = model.text.encoder.backbone.state_dict()[query] - plain.backbone.state_dict()[query]
    assert 0 < int(torch.linalg.matrix_rank(change, atol=1e-6)) <= 2
    embedding = "embeddings.word_embeddings.weight"
    assert torch.equal(model.text.encoder.backbone.state_dict()[embedding], plain.backbone.state_dict()[embedding])


def test_a_vision_transformer_too(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    import json

    from transformers import ViTConfig, ViTModel

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    ViTModel(ViTConfig(**sizes, image_size=32, patch_size=16)).save_pretrained(tmp_path)
    processor = {"image_processor_type": "ViTImageProcessor", "size": {"height": 32, "width": 32}}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(processor))
    backbone = TransformersVision(model=str(tmp_path), fine_tune=True, lora={"rank": 2})
    names = set(backbone.state_dict())
    linear = [name for name, layer in backbone.named_modules() if isinstance(layer, torch.nn.Linear)]
    targets = sorted(name.rpartition(".")[2] for name in linear if "pooler" not in name)
    backbone.lora = Lora(rank=2, targets=(targets[0],))
    adapt(torch.nn.ModuleList([backbone]))
    assert all("lora_" in name for name, weight in backbone.named_parameters() if weight.requires_grad)
    pixels = Inputs(torch.rand(1, 3, 32, 32), None)
    with torch.no_grad():
        for name, weight in backbone.named_parameters():
            if "lora_B" in name:
                weight.normal_()
    merged = without_adapters(backbone)
    assert set(merged.state_dict()) == names
    torch.testing.assert_close(merged.eval()(pixels).local, backbone.eval()(pixels).local, rtol=1e-4, atol=1e-5)
