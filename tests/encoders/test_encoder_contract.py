"""What every registered encoder promises, whatever it is made of."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from encoders.references import collate
from openvse.backbones import BACKBONES
from openvse.encoders import TEXT_ENCODERS
from openvse.encoders.projections import Encoder
from openvse.types import Inputs
from tests.seeing import image_encoder, see

CAPTIONS = ["a dog runs on the red mat", "two cats", "the dog", "a", ""]
Maker = Callable[..., Encoder]


@pytest.fixture
def make_encoder(vision_checkpoint, bert_checkpoint) -> Maker:
    """Return a maker of encoders by name; further options replace or join those given here."""
    options: dict[str, dict[str, Any]] = {
        "precomputed": {"feature_dim": 12},
        "efficientnet_lite0": {"pretrained": False, "image_size": 32},
        "efficientnet_lite2": {"pretrained": False, "scales": [32, 64]},
        "resnet": {"blocks": (1, 1, 1, 1), "stem_dim": 2, "inner_dim": 2, "image_size": 32, "fine_tune": False},
        "transformers_vision": {"model": vision_checkpoint("convnext")},
        "crops": {"backbone": {"pretrained": False, "image_size": 32}, "windows": [[1, 1.0], [2, 0.6]]},
        "frames": {"backbone": {"name": "efficientnet_lite0", "pretrained": False, "image_size": 32}},
        "bag_of_words": {"captions": CAPTIONS, "min_count": 1, "word_dim": 5, "freeze_words": False},
        "bigru": {"captions": CAPTIONS, "min_count": 1, "word_dim": 5},
        "transformers_text": {"model": bert_checkpoint},
    }

    def make(name: str, **more: Any) -> Encoder:
        torch.manual_seed(0)
        given = {"embed_dim": 8} | options[name] | more
        return image_encoder(name, **given) if name in BACKBONES else TEXT_ENCODERS.get(name)(**given)

    return make


def items(name: str, encoder: Any) -> list[torch.Tensor]:
    """Return five items of different sizes: token ids, or stored features; one has a single element."""
    if name in TEXT_ENCODERS:
        return encoder.tokenize(CAPTIONS)
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(size, encoder.feature_dim, generator=generator) for size in (7, 3, 1, 5, 7)]


# A caption with its graph is longer than its words: tests/encoders/test_role_graph.py has these promises for it.
ALL = [*BACKBONES, *(name for name in TEXT_ENCODERS if name != "role_graph")]


@pytest.mark.medium
@pytest.mark.parametrize("name", ALL)
def test_an_item_does_not_depend_on_its_batch_mates(name: str, make_encoder: Maker) -> None:
    encoder = make_encoder(name).eval()
    rows = items(name, encoder)
    together = encoder(collate(rows))
    assert together.local.shape == (len(rows), max(map(len, rows)), encoder.local_dim)
    for index, row in enumerate(rows):
        alone = encoder(collate([row]))
        assert int(together.mask[index].sum()) == len(row) == int(alone.mask.sum())
        torch.testing.assert_close(together.local[index, : len(row)], alone.local[0], rtol=0, atol=1e-5)


@pytest.mark.medium
@pytest.mark.parametrize("name", ALL)
def test_padding_means_nothing(name: str, make_encoder: Maker) -> None:
    encoder = make_encoder(name).eval()
    rows = items(name, encoder)
    clean, garbage = encoder(collate(rows)), encoder(collate(rows, padding=3))
    assert torch.equal(clean.mask, garbage.mask)
    torch.testing.assert_close(clean.local[clean.mask], garbage.local[clean.mask], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ALL)
def test_padding_means_nothing_in_training_either(name: str, make_encoder: Maker) -> None:
    options = {"fine_tune": False} if name == "transformers_text" else {}  # its dropout draws by shape
    key = "augmentation" if name in BACKBONES else "size_augmentation"
    encoder = make_encoder(name, **{key: "none"}, **options)
    rows = items(name, encoder)
    clean, garbage = encoder(collate(rows)), encoder(collate(rows, padding=3))
    torch.testing.assert_close(clean.local[clean.mask], garbage.local[clean.mask], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ALL)
def test_gradient_reaches_every_trainable_parameter(name: str, make_encoder: Maker) -> None:
    encoder = make_encoder(name)
    features = encoder(collate(items(name, encoder)))
    features.local[features.mask].pow(2).sum().backward()
    trainable = {key: p for key, p in encoder.named_parameters() if p.requires_grad}
    assert trainable
    assert [key for key, p in trainable.items() if p.grad is None] == []


@pytest.mark.parametrize("name", ALL)
def test_every_item_keeps_an_element_in_training(name: str, make_encoder: Maker) -> None:
    of_image = {"augmentation": {"name": "region", "rate": 0.95}}
    encoder = make_encoder(name, **of_image if name in BACKBONES else {"augmentation_rate": 0.95})
    for _ in range(5):
        assert encoder(collate(items(name, encoder))).mask.any(dim=1).all()


@pytest.mark.medium
@pytest.mark.parametrize("name", ALL)
def test_assets_and_weights_are_all_that_a_model_needs(name: str, make_encoder: Maker, tmp_path: Path) -> None:
    saved = make_encoder(name).eval()
    saved.save_assets(tmp_path / "assets")
    nothing_else = {
        "bag_of_words": {"captions": ()},
        "bigru": {"captions": ()},
        "transformers_text": {"model": "gone"},
        "transformers_vision": {"model": "gone"},
    }
    takes_assets = {} if name == "precomputed" else {"assets": tmp_path / "assets"}
    loaded = make_encoder(name, **takes_assets, **nothing_else.get(name, {})).eval()
    loaded.load_state_dict(saved.state_dict())
    batch = collate(items(name, saved))
    assert torch.equal(loaded(batch).local, saved(batch).local)
    if name in BACKBONES:
        assert loaded.fingerprint == saved.fingerprint
    else:
        assert [i.tolist() for i in loaded.tokenize(CAPTIONS)] == [i.tolist() for i in saved.tokenize(CAPTIONS)]


@pytest.mark.medium
@pytest.mark.parametrize("name", [name for name in BACKBONES if name != "precomputed"])
def test_pixels_and_their_stored_features_agree(name: str, make_encoder: Maker, make_photos, tmp_path: Path) -> None:
    from PIL import Image

    encoder = make_encoder(name).eval()
    encoder.save_assets(tmp_path)
    pixels = torch.stack([encoder.backbone.preprocess(Image.open(path)) for path in make_photos(3)])
    direct = encoder(Inputs(pixels, None))
    raw = see(encoder.backbone, pixels)
    assert raw.shape == (3, direct.mask.shape[1], encoder.feature_dim)
    assert not raw.requires_grad
    torch.testing.assert_close(encoder(collate(list(raw))).local, direct.local)
    alone = encoder(Inputs(pixels[1:2], None))
    torch.testing.assert_close(alone.local[0], direct.local[1], rtol=0, atol=1e-5)


@pytest.mark.slow
def test_importing_encoders_imports_no_heavy_library() -> None:
    heavy = "{'transformers', 'torchvision', 'timm', 'efficientnet_lite_pytorch', 'tokenizers'}"
    script = f"import sys, openvse.encoders; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
