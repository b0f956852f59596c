"""Two processes compute what one does on the whole batch, gradient included."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

from batches.test_pairs import dataset_of, texts_of
from openvse.batches.pairs import BatchKey
from openvse.functional import pad, set_max_scores
from openvse.fusion import ScoreAttentionFusion
from openvse.objectives import Contrast, Hardest, Hinge
from openvse.retrieval.training import gather_batch
from openvse.similarities import Fused
from openvse.types import EmbeddingSet, ScoredBatch
from toy_data import make_corpus

IMAGES = 5
# Image 1 has two texts; process 0 holds images 0 and 1, process 1 the other three.
TEXT_IMAGES = torch.tensor([0, 1, 1, 2, 3, 4])
SHARES = [(torch.tensor([0, 1]), torch.tensor([0, 1, 2])), (torch.tensor([2, 3, 4]), torch.tensor([3, 4, 5]))]


def data() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(IMAGES, 1, 4, dtype=torch.float64, generator=generator)
    texts = torch.randn(len(TEXT_IMAGES), 1, 4, dtype=torch.float64, generator=generator)
    weight = torch.randn(4, 4, dtype=torch.float64, generator=generator)
    return images, texts, weight


def loss_of(images: Tensor, texts: Tensor, weight: Tensor, positives: Tensor, keys: Tensor) -> Tensor:
    """Embed with one shared weight, gather, and rank."""

    def embed(vectors: Tensor) -> EmbeddingSet:
        return EmbeddingSet(vectors @ weight, torch.ones(vectors.shape[:2], dtype=torch.bool))

    images, texts, positives = gather_batch(embed(images), embed(texts), positives, keys)
    scores = set_max_scores(images, texts)
    term = Contrast(miner=Hardest(), criterion=Hinge(margin=5.0))
    return term(ScoredBatch(scores, positives, images, texts))


def positives_of(images: Tensor, texts: Tensor) -> Tensor:
    return images.unsqueeze(1) == TEXT_IMAGES[texts].unsqueeze(0)


def ranked_work(rank: int) -> dict[str, Any]:
    """Rank the share of a process; return its loss and the gradient."""
    images, texts, weight = data()
    own_images, own_texts = SHARES[rank]
    weight.requires_grad_()
    loss = loss_of(
        images[own_images], texts[own_texts], weight, positives_of(own_images, own_texts), own_images.clone()
    )
    loss.backward()
    assert weight.grad is not None
    dist.all_reduce(weight.grad)  # data parallelism takes the mean over the processes
    return {"loss": loss.detach(), "gradient": weight.grad / 2}


def work(rank: int, folder: str) -> None:
    """Do all that the tests look at, so that two processes are started once."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    found = {"ranked": ranked_work(rank), "fused": fused_work(rank), "shared": shared_work(rank)}
    torch.save(found, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two processes found."""
    folder = tmp_path_factory.mktemp("two")
    mp.start_processes(work, args=(str(folder),), nprocs=2, start_method="fork")
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.slow
def test_two_processes_equal_one(two: list[dict[str, Any]]) -> None:
    images, texts, weight = data()
    weight.requires_grad_()
    keys = torch.arange(IMAGES)
    loss = loss_of(images, texts, weight, positives_of(keys, torch.arange(len(TEXT_IMAGES))), keys)
    loss.backward()
    for found in (each["ranked"] for each in two):
        torch.testing.assert_close(found["loss"], loss.detach(), rtol=0, atol=1e-10)
        torch.testing.assert_close(found["gradient"], weight.grad, rtol=0, atol=1e-10)


def fused_loss(images: Tensor, texts: Tensor, similarity: Fused, positives: Tensor, keys: Tensor) -> Tensor:
    """Gather sets of tokens, as long as a process's longest, and score pairs with weights of their own."""

    def tokens(vectors: Tensor) -> EmbeddingSet:
        items = [vectors[n].repeat(1 + int(10 * vectors[n, 0, 0].abs()) % 3, 1) for n in range(len(vectors))]
        padded = pad([torch.cat([item, item.cumsum(0)]) for item in items])
        assert padded.mask is not None
        return EmbeddingSet(padded.values, padded.mask)

    images, texts, positives = gather_batch(tokens(images), tokens(texts), positives, keys)
    scores = similarity(images, texts)
    term = Contrast(miner=Hardest(), criterion=Hinge(margin=5.0))
    return term(ScoredBatch(scores, positives, images, texts))


def fused() -> Fused:
    torch.manual_seed(0)
    return Fused(embed_dim=4, fusion=partial(ScoreAttentionFusion, num_heads=2)).double().eval()


def fused_work(rank: int) -> dict[str, Any]:
    """Score the share of a process with a fusion; return its loss and gradients."""
    images, texts, _ = data()
    own_images, own_texts = SHARES[rank]
    similarity = fused()
    loss = fused_loss(
        images[own_images], texts[own_texts], similarity, positives_of(own_images, own_texts), own_images.clone()
    )
    loss.backward()
    gradients = [p.grad for p in similarity.parameters()]
    for gradient in gradients:
        dist.all_reduce(gradient)  # data parallelism takes the mean over the processes
    return {"loss": loss.detach(), "gradients": [gradient / 2 for gradient in gradients]}


@pytest.mark.slow
def test_a_similarity_with_weights_learns_the_same_from_two_processes(two: list[dict[str, Any]]) -> None:
    images, texts, _ = data()
    similarity = fused()
    everything = torch.arange(IMAGES), torch.arange(len(TEXT_IMAGES))
    loss = fused_loss(images, texts, similarity, positives_of(*everything), everything[0])
    loss.backward()
    for found in (each["fused"] for each in two):
        torch.testing.assert_close(found["loss"], loss.detach(), rtol=0, atol=1e-10)
        for gradient, parameter in zip(found["gradients"], similarity.parameters(), strict=True):
            torch.testing.assert_close(gradient, parameter.grad, rtol=0, atol=1e-10)


def test_one_process_gathers_nothing() -> None:
    vectors = EmbeddingSet(torch.randn(2, 1, 3), torch.ones(2, 1, dtype=torch.bool))
    images, texts, _ = gather_batch(vectors, vectors, torch.eye(2, dtype=torch.bool), torch.arange(2))
    assert images is vectors and texts is vectors


def shared_work(rank: int) -> tuple[list[int], list[int], Tensor]:
    """Draw pairs of which texts 1 and 2 belong to images of both processes, and only text 1 was drawn with both."""
    corpus = make_corpus([(0, 0), (1, 1), (2, 1), (3, 2), (0, 2)], 4, 3)
    batch = dataset_of(corpus)[BatchKey(np.arange(4), rank=rank, num_processes=2)]

    def vectors(count: int) -> EmbeddingSet:
        return EmbeddingSet(torch.zeros(count, 1, 4), torch.ones(count, 1, dtype=torch.bool))

    embedded = vectors(len(batch.images)), vectors(len(batch.texts))
    *_, positives = gather_batch(*embedded, batch.positives, batch.image_keys, batch.partners)
    return batch.image_keys.tolist(), texts_of(batch), positives


@pytest.mark.slow
def test_a_text_is_positive_to_its_images_on_all_processes(two: list[dict[str, Any]]) -> None:
    told = [each["shared"] for each in two]
    images, texts = ([item for each in told for item in each[part]] for part in (0, 1))
    assert images == [0, 2, 1, 3] and texts == [0, 1, 1, 2]
    relevant = {(0, 0), (1, 1), (2, 1), (3, 2), (0, 2)}
    expected = [[(image, text) in relevant for text in texts] for image in images]
    assert all(each[2].tolist() == expected for each in told)
