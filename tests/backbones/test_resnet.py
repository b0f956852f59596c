import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from openvse.backbones import ResNet
from openvse.backbones.resnet import ResNetNetwork
from openvse.errors import ModelError, RecipeError
from openvse.types import Inputs
from tests.naming import names, refusal
from tests.seeing import see

TINY = {"blocks": (1, 2, 1, 1), "stem_dim": 4, "inner_dim": 4, "image_size": 64}


def make(**options) -> ResNet:
    torch.manual_seed(0)
    return ResNet(**(TINY | options)).eval()


def photo(width: int, height: int) -> Image.Image:
    rng = np.random.default_rng(0)
    return Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))


@pytest.mark.parametrize("bottleneck", [True, False])
def test_equals_the_resnet_of_transformers(bottleneck: bool) -> None:
    from transformers import ResNetConfig, ResNetModel

    ours = make(blocks=(1, 2, 1, 2), bottleneck=bottleneck).net
    widths = [16, 32, 64, 128] if bottleneck else [4, 8, 16, 32]
    layer_type = "bottleneck" if bottleneck else "basic"
    sizes = {"embedding_size": 4, "hidden_sizes": widths, "depths": [1, 2, 1, 2], "layer_type": layer_type}
    theirs = ResNetModel(ResNetConfig(**sizes)).eval()
    # Both hold the same layers in the same order, but for the shortcut, which comes first there.
    own = [*ours.state_dict().items()]
    shortcuts = {name.split(".downsample")[0] for name, _ in own if ".downsample" in name}
    ordered = sorted(
        own,
        key=lambda pair: (
            min(i for i, (n, _) in enumerate(own) if n.split(".")[:2] == pair[0].split(".")[:2]),
            "downsample" not in pair[0],
        ),
    )
    assert len(shortcuts) == (4 if bottleneck else 3)
    theirs.load_state_dict(dict(zip(theirs.state_dict(), (weight for _, weight in ordered), strict=True)))
    pixels = torch.randn(2, 3, 70, 64)
    torch.testing.assert_close(ours(pixels), theirs(pixels).last_hidden_state, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("form", "size", "cells"), [("torchvision", 64, 4), ("caffe", 64, 4), ("caffe", 70, 9)])
def test_a_cell_stands_for_32_pixels(form: str, size: int, cells: int) -> None:
    backbone = make(form=form)
    assert see(backbone, torch.randn(1, 3, size, size)).shape == (1, cells, 128)
    assert backbone.feature_dim == 128


def test_the_forms_differ_in_stride_and_pooling() -> None:
    plain, caffe = (
        ResNetNetwork((1, 1, 1, 1), form=form, stem_dim=4, inner_dim=4) for form in ("torchvision", "caffe")
    )
    caffe.load_state_dict(plain.state_dict())
    pixels = torch.randn(1, 3, 64, 64)
    assert not torch.allclose(plain.eval()(pixels), caffe.eval()(pixels), atol=1e-3)
    second = [network.get_submodule("layer2.0") for network in (plain, caffe)]
    assert [(block.conv1.stride, block.conv2.stride) for block in second] == [((1, 1), (2, 2)), ((2, 2), (1, 1))]
    corner = torch.zeros(1, 1, 8, 8)
    corner[..., 2, 2] = 1.0
    assert plain.maxpool(corner)[0, 0].nonzero().tolist() == [[1, 1]]  # windows from -1, 1, 3
    assert caffe.maxpool(corner)[0, 0].nonzero().tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]  # from 0, 2, 4


@pytest.mark.medium
def test_published_sizes() -> None:
    with torch.device("meta"):
        networks = {
            "resnet18": ResNetNetwork((2, 2, 2, 2), bottleneck=False),
            "resnet50": ResNetNetwork((3, 4, 6, 3)),
            "resnet101": ResNetNetwork((3, 4, 23, 3)),
            "resnet152": ResNetNetwork((3, 8, 36, 3)),
            "resnext101_32x8d": ResNetNetwork((3, 4, 23, 3), inner_dim=256, groups=32),
        }
    # As published, less the classifier's 2,049,000, or 513,000.
    assert {name: sum(p.numel() for p in network.parameters()) for name, network in networks.items()} == {
        "resnet18": 11_689_512 - 513_000,
        "resnet50": 25_557_032 - 2_049_000,
        "resnet101": 44_549_160 - 2_049_000,
        "resnet152": 60_192_808 - 2_049_000,
        "resnext101_32x8d": 88_791_336 - 2_049_000,
    }


def test_stretched_images_are_interpolated_between_nearest_pixels() -> None:
    """Half the size, so each new pixel lies between four old ones; a third, so it lies on one: nothing is averaged."""
    raw = torch.from_numpy(np.asarray(photo(128, 192), dtype=np.float32)).permute(2, 0, 1)
    pixels = make(pixels="caffe").preprocess(photo(128, 192)).flip(0)
    mean = torch.tensor([122.7717, 115.9465, 102.9801]).view(3, 1, 1)
    expected = (raw[:, 1::3, ::2] + raw[:, 1::3, 1::2]) / 2 - mean
    torch.testing.assert_close(pixels, expected, rtol=0, atol=1e-3)


def test_a_large_image_is_stretched_to_the_same_pixels(monkeypatch) -> None:
    for size in ((130, 300), (300, 40), (50, 64)):
        ordinary = make().preprocess(photo(*size))
        with monkeypatch.context() as patch:
            patch.setattr("openvse.backbones.resnet._LARGE", 0)
            torch.testing.assert_close(make().preprocess(photo(*size)), ordinary, rtol=0, atol=1e-5)


def test_cropped_images_keep_their_shape() -> None:
    backbone, wide = make(fit="crop", image_size=56), photo(128, 64)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    raw = torch.from_numpy(np.asarray(wide, dtype=np.float32)).permute(2, 0, 1) / 255
    expected = (raw[:, 4:60, 36:92] - mean.view(3, 1, 1)) / std.view(3, 1, 1)
    torch.testing.assert_close(backbone.preprocess(wide), expected)
    assert backbone.preprocess(photo(37, 301)).shape == (3, 56, 56)


def test_training_views_follow_their_generator() -> None:
    backbone, image = make(), photo(80, 60)
    views = [backbone.read(image, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)]
    assert torch.equal(views[0], views[1])
    assert not torch.equal(views[0], views[2])
    assert views[0].shape == (3, 64, 64) and not torch.equal(views[0], backbone.preprocess(image))


def test_fine_tuning_leaves_the_statistics_alone() -> None:
    backbone = make().train()
    before = backbone.net.bn1.running_mean.clone()
    backbone(Inputs(torch.randn(2, 3, 64, 64), None)).local.sum().backward()
    assert torch.equal(backbone.net.bn1.running_mean, before)
    assert backbone.net.conv1.weight.grad.abs().sum() > 0


@pytest.mark.parametrize(
    ("name", "value", "others"),
    [
        ("image_size", 31, {}),
        ("blocks", (1, 0, 1, 1), {}),
        ("groups", 3, {}),
        ("stem_dim", 0, {}),
        ("form", "caffe", {"bottleneck": False}),
    ],
)
def test_sizes_that_make_no_network_are_refused(name: str, value: object, others) -> None:
    assert names(refusal(RecipeError, make, **{name: value}, **others), name, value)


def detector_file(state: dict[str, torch.Tensor]) -> dict[str, dict[str, torch.Tensor]]:
    """Weights as VSE-infinity publishes the detector's: stem and three stages in one part, the last in another."""
    numbers = {"conv1": ("base", 0), "bn1": ("base", 1), "layer1": ("base", 4), "layer2": ("base", 5)}
    numbers |= {"layer3": ("base", 6), "layer4": ("top", 0)}
    parts: dict[str, dict[str, torch.Tensor]] = {"base": {}, "top": {}}
    for name, weight in state.items():
        first, _, rest = name.partition(".")
        part, number = numbers[first]
        parts[part][f"{number}.{rest}"] = weight
    return parts


@pytest.mark.parametrize("name", ["r.safetensors", "r.pth", "updown.pth", "old.pth"])
def test_starts_from_a_file(tmp_path, name: str) -> None:
    source, path = make(), tmp_path / name
    state = source.net.state_dict() | {"fc.weight": torch.ones(5, 128)}  # a classifier is left out
    if name == "r.safetensors":
        save_file(state, path)
    elif name == "updown.pth":
        torch.save(detector_file(source.net.state_dict()), path)
    else:  # PyTorch before 0.4.1 did not count batches
        torch.save({n: w for n, w in state.items() if name != "old.pth" or "num_batches" not in n}, path)
    torch.manual_seed(1)
    backbone = ResNet(**TINY, weights=str(path)).eval()
    pixels = torch.randn(1, 3, 64, 64)
    assert torch.equal(see(backbone, pixels), see(source, pixels))
    assert backbone.fingerprint != source.fingerprint


def test_the_fingerprint_follows_the_weights_into_the_model_folder(tmp_path) -> None:
    path = tmp_path / "r.safetensors"
    save_file(make().net.state_dict(), path)
    backbone = make(weights=str(path), fine_tune=False)
    backbone.save_assets(tmp_path / "image")
    path.unlink()
    assert make(weights=str(path), fine_tune=False, assets=tmp_path / "image").fingerprint == backbone.fingerprint
    assert make(weights=None, fine_tune=False, assets=tmp_path).fingerprint.startswith("resnet@unknown:")


@pytest.mark.parametrize("content", ["missing", "text", "cut", "other", "code"])
def test_weights_that_do_not_fit_are_named(tmp_path, content: str) -> None:
    path = tmp_path / "r.pth"
    if content == "text":
        path.write_text("no weights")
    elif content == "cut":
        torch.save(make().net.state_dict(), path)
        path.write_bytes(path.read_bytes()[:500])
    elif content == "other":
        torch.save(make(blocks=(1, 1, 1, 1)).net.state_dict(), path)
    elif content == "code":
        torch.save(make(), path)  # a whole module is code as well as tensors
    refused = refusal(ModelError, make, weights=str(path))
    assert names(refused, "r.pth", *["layer2.1"] * (content == "other"))
