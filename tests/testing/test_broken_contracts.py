"""The checks that plug-in authors run find what is broken, and say what it is."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from openvse.aggregators import Aggregator, Mean, Pooling, Tokens
from openvse.corpus import Corpus, Record, build_corpus
from openvse.errors import DataError, RecipeError
from openvse.functional import masked_max, masked_mean
from openvse.similarities import SIMILARITIES, SetMax, Similarity
from openvse.types import EmbeddingSet, Features, Relevance
from openvse_testing import BrokenContractError, check_aggregator, check_dataset, check_part
from tests.conftest import PhotoMaker
from tests.failures import Failures


class Unmasked(Pooling):
    def pool(self, local: Tensor, mask: Tensor) -> Tensor:
        return local.mean(dim=1)


class Multiplied(Pooling):
    def pool(self, local: Tensor, mask: Tensor) -> Tensor:
        weights = mask.unsqueeze(-1).to(local.dtype)
        return (local * weights).sum(dim=1) / weights.sum(dim=1)


class Standardised(Pooling):
    def pool(self, local: Tensor, mask: Tensor) -> Tensor:
        pooled = masked_mean(local, mask)
        return pooled - pooled.mean(dim=0)


class FirstOnes(Pooling):
    def pool(self, local: Tensor, mask: Tensor) -> Tensor:
        return local[:, 0]


class Idle(Pooling):
    def __init__(self, *, input_dim: int, embed_dim: int) -> None:
        super().__init__(input_dim=input_dim, embed_dim=embed_dim)
        self.unused = nn.Parameter(torch.zeros(3))

    def pool(self, local: Tensor, mask: Tensor) -> Tensor:
        return masked_max(local, mask)


class Unsaved(Pooling):
    def __init__(self, *, input_dim: int, embed_dim: int) -> None:
        super().__init__(input_dim=input_dim, embed_dim=embed_dim)
        self.scale = float(torch.rand(()))

    def pool(self, local: Tensor, mask: Tensor) -> Tensor:
        return self.scale * masked_max(local, mask)


class DeclaredInOrder(Mean):
    order_aware = True


class DeclaredFixed(Tokens):
    fixed_k = True


class DeclaredResidual(Mean):
    yields_residual = True


class Narrow(Aggregator):
    def __init__(self, *, input_dim: int, embed_dim: int) -> None:
        super().__init__()
        self.map = nn.Linear(input_dim, embed_dim // 2)

    def forward(self, features: Features) -> EmbeddingSet:
        vectors = self.map(masked_mean(features.local, features.mask)).unsqueeze(1)
        return EmbeddingSet(vectors, torch.ones(vectors.shape[:2], dtype=torch.bool))


@pytest.mark.medium
def test_a_broken_aggregator_is_found() -> None:
    failures = Failures()
    for part, message in [
        (Unmasked, "Unmasked.*'padding'"),
        (Unmasked, "'batch mates'.*5"),
        (Multiplied, "'nan'.*NaN.*masked_fill"),
        (Standardised, "'batch mates'"),
        (FirstOnes, "'order'.*order_aware.*False"),
        (DeclaredInOrder, "'order'.*order_aware.*True"),
        (Idle, "'gradient'.*unused"),
        (Unsaved, "'state'"),
        (DeclaredFixed, "'count'.*fixed_k.*1.*3.*5.*9"),
        (DeclaredResidual, "'residual'.*yields_residual.*True"),
        (Narrow, "'embeddings'.*4.*1.*4.*4.*1.*8"),
    ]:
        with failures.of(part, message):
            with pytest.raises(BrokenContractError, match=message) as caught:
                check_aggregator(part)
            assert isinstance(caught.value, AssertionError)
            assert all(line.startswith(part.__name__) for line in str(caught.value).splitlines())
    assert not failures, failures


@pytest.mark.medium
def test_a_sound_aggregator_passes_at_any_width() -> None:
    check_aggregator("gpo", width=6)
    check_aggregator(Mean)
    with pytest.raises(RecipeError, match="Mean.k"):
        check_aggregator(Mean, options={"k": 2})


class Scaled(SetMax):
    def forward(self, images: EmbeddingSet, texts: EmbeddingSet) -> Tensor:
        return 2 * super().forward(images, texts)


class Centred(SetMax):
    indexable = False

    def forward(self, images: EmbeddingSet, texts: EmbeddingSet) -> Tensor:
        scores = super().forward(images, texts)
        return scores - scores.mean()


class Averaged(SetMax):
    indexable = True

    def forward(self, images: EmbeddingSet, texts: EmbeddingSet) -> Tensor:
        return images.vectors.mean(dim=1) @ texts.vectors.mean(dim=1).T


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (Scaled, "Scaled.*'cosine'.*is_cosine"),
        (Scaled, "'pairs'"),
        (Centred, "'blocks'.*1"),
        (Averaged, "'masked'"),
        (Averaged, "'indexable'"),
    ],
)
def test_a_broken_similarity_is_found(part: type[Similarity], message: str) -> None:
    with pytest.raises(BrokenContractError, match=message):
        check_part(SIMILARITIES, part)


class Detached(SetMax):
    indexable = False

    def forward(self, images: EmbeddingSet, texts: EmbeddingSet) -> Tensor:
        return super().forward(images, EmbeddingSet(texts.vectors.detach(), texts.mask)) + 0 * texts.vectors.sum()


def test_a_similarity_that_one_side_cannot_learn_from_is_found() -> None:
    with pytest.raises(BrokenContractError, match="'gradient'.*0"):
        check_part(SIMILARITIES, Detached)


@pytest.fixture
def copy(tmp_path: Path, make_photos: PhotoMaker) -> Path:
    """Write three photos with lines of captions, as ``open_lines`` reads them."""
    (tmp_path / "captions.txt").write_text("".join(f"{photo.name}\ta dog\n" for photo in make_photos(3)))
    return tmp_path


def open_lines(root: Path, *, require_images: bool = True) -> Corpus:
    lines = [line.split("\t") for line in (root / "captions.txt").read_text().splitlines()]
    records = [Record(name, root / "photos" / name, [caption], "train") for name, caption in lines]
    return build_corpus("mine", records, require_images=require_images)


Change = Callable[[Corpus], Corpus]


def changed(change: Change) -> Callable[..., Corpus]:
    def opened(root: Path, *, require_images: bool = True) -> Corpus:
        return change(open_lines(root, require_images=require_images))

    return opened


def shuffled() -> Callable[..., Corpus]:
    generator = np.random.default_rng(0)
    return changed(lambda corpus: corpus.select(generator.permutation(3)))


def forgets_without_images(root: Path, *, require_images: bool = True) -> Corpus:
    corpus = open_lines(root)
    return corpus if require_images else corpus.select(np.array([0]))


def opens_anything(root: Path, *, require_images: bool = True) -> Corpus:
    if not (root / "captions.txt").exists():
        raise KeyError("captions")
    return open_lines(root, require_images=require_images)


@pytest.mark.parametrize(
    ("loader", "message"),
    [
        (shuffled(), "'again'.*image_ids"),
        (changed(lambda c: replace(c, image_ids=("a", "b", "a"))), "'identifiers'"),
        (changed(lambda c: replace(c, image_ids=c.image_ids[:2])), "'identifiers'"),
        (changed(lambda c: replace(c, relevance=Relevance(np.array([0, 0, 1]), np.arange(3), 3, 3))), "'partners'.*2"),
        (changed(lambda c: replace(c, captions=("a", " ", "b"))), "'partners'.*1"),
        (changed(lambda c: replace(c, splits=("learn",) * 3)), "'splits'.* .'learn'"),
        (
            changed(lambda c: replace(c, image_paths=(c.image_paths[0].parents[1] / "captions.txt",) * 3)),
            "'images': .*captions.txt",
        ),
        (forgets_without_images, "'without images'.*require_images=False.*2"),
        (opens_anything, "'empty'.*KeyError"),
    ],
)
def test_a_broken_data_set_is_found(copy: Path, loader: Callable[..., Corpus], message: str) -> None:
    with pytest.raises(BrokenContractError, match=message):
        check_dataset(loader, copy)


def test_a_sound_data_set_passes(copy: Path) -> None:
    check_dataset(open_lines, copy)
    (copy / "metadata.jsonl").write_text('{"file_name": "photos/photo_0.jpg", "text": "a dog"}\n')
    check_dataset("folder", copy)


def test_a_copy_that_does_not_open_is_broken(tmp_path: Path) -> None:
    with pytest.raises(BrokenContractError, match="folder.*metadata"):
        check_dataset("folder", tmp_path)
    with pytest.raises(BrokenContractError, match="open_lines.*captions.txt"):
        check_dataset(open_lines, tmp_path)


def test_an_empty_folder_may_not_open(copy: Path) -> None:
    corpus = open_lines(copy)
    with pytest.raises(BrokenContractError, match="DataError"):
        check_dataset(lambda root, /, *, require_images: corpus, copy)

    def tells_long(root: Path, *, require_images: bool = True) -> Corpus:
        if not (root / "captions.txt").exists():
            raise DataError("there is\nnothing")
        return open_lines(root, require_images=require_images)

    with pytest.raises(BrokenContractError, match="'empty'"):
        check_dataset(tells_long, copy)
