"""The encoder of clips in a recipe: its backbone is a part, whose faults are placed."""

from pathlib import Path
from typing import Any

import pytest

from openvse.backbones import EfficientNetLite0
from openvse.encoders import ImageEncoder
from openvse.errors import RecipeError
from openvse.model.two_tower import TwoTower
from openvse.retrieval.build import build_model
from openvse.tasks.load import load_as
from openvse.tasks.recipes import load_recipe, parse_recipe
from tests.seeing import image_encoder

BACKBONE = {"name": "efficientnet_lite0", "pretrained": False, "image_size": 32}


def build(**options: Any) -> ImageEncoder:
    return image_encoder("frames", embed_dim=6, **options)


def test_the_backbone_is_a_part_with_options() -> None:
    built = build(backbone=BACKBONE, fps=4)
    frames = built.backbone.inner
    assert isinstance(frames, EfficientNetLite0) and frames.image_size == 32
    assert built.fingerprint == "frames:efficientnet_lite0:random:32:1x1:4fps:64"
    assert [name for name, weight in built.named_parameters() if weight.requires_grad] == [
        "projection.linear.weight",
        "projection.linear.bias",
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backbone": "resnett"}, r"^image\.encoder\.backbone: .*'resnett'.*'resnet'"),
        ({"backbone": BACKBONE | {"image_size": 8}}, r"^image\.encoder\.backbone: image_size.* 8 "),
        ({"backbone": BACKBONE | {"projection": "linear"}}, r"image\.encoder\.backbone\.projection"),
        ({"backbone": {"name": "precomputed", "feature_dim": 4}}, r"^image\.encoder: backbone"),
        ({"sampling": "first"}, r"image\.encoder\.sampling"),
    ],
)
def test_faults_name_their_place(options: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        build(**options)


@pytest.mark.medium
def test_a_model_of_clips_is_saved_whole(tmp_path: Path) -> None:
    tree = load_recipe("vse_infinity/clips_cpu", ["embed_dim=8", "text.encoder.min_count=1"]).to_dict()
    tree["image"]["encoder"]["backbone"] = BACKBONE
    model = build_model(parse_recipe(tree), captions=["a dog"])
    again = load_as(TwoTower, model.save(tmp_path / "model"))
    assert again.reads_videos and again.fingerprint == model.fingerprint
    assert again.image.encoder.fingerprint == model.image.encoder.fingerprint


@pytest.mark.medium
@pytest.mark.parametrize(("name", "views"), [("tgif", 3), ("mrw", 5)])
def test_pvses_recipes_are_the_papers(name: str, views: int) -> None:
    recipe = load_recipe(f"pvse/{name}_frames_bigru")
    model = build_model(recipe, captions=["my reaction when"] * 4)
    assert model.image.aggregator.fixed_k and recipe.image.aggregator.options == {"num_embeddings": views}
    assert recipe.text.aggregator == recipe.image.aggregator
    encoder = model.image.encoder
    assert encoder.backbone.frame_limit.num_frames == 8 and encoder.local_dim == 2048
    assert encoder.global_projection.gru.hidden_size == 512
    assert [figures.metrics["i2t_r1"] for figures in recipe.published] == [{"tgif": 2.32, "mrw": 0.16}[name]]
    assert recipe.optimizer.amsgrad and sum(phase.epochs for phase in recipe.training.phases) == 50
