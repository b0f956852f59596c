"""The loss of correspondence autoencoders against loops over the equations of the paper."""

import pytest
import torch

from openvse.aggregators import Autoencoder
from openvse.errors import RecipeError
from openvse.objectives import Correspondence
from openvse.objectives.base import Objective
from openvse.types import EmbeddingSet, Features, ScoredBatch
from tests.objectives.set_batches import embeddings, scored


def by_hand(term: Correspondence, batch: ScoredBatch, alpha: float, terms: list[tuple[int, int]]) -> float:
    """Add up a loop over the pairs; a term (i, j) decodes side i from the code of side j."""
    losses = []
    for image, text in batch.positives.nonzero().tolist():
        codes = [batch.images.residual[image, 0], batch.texts.residual[text, 0]]  # type: ignore[index]
        sources = [batch.images.source[image], batch.texts.source[text]]  # type: ignore[index]
        error = torch.zeros((), dtype=torch.float64)
        for side, read in terms:
            decoder = (term.own if side == read else term.other)[side]  # type: ignore[index]
            for value, weight, bias in zip(sources[side], decoder.weight, decoder.bias, strict=True):
                error = error + (value - weight @ codes[read] - bias) ** 2
        distance = sum((a - b) ** 2 for a, b in zip(*codes, strict=True))
        losses.append((1 - alpha) * error + alpha * distance)
    return float(sum(losses) / len(losses))


@pytest.mark.parametrize(
    ("reconstruct", "terms"),
    [("own", [(0, 0), (1, 1)]), ("other", [(0, 1), (1, 0)]), ("both", [(0, 0), (1, 1), (0, 1), (1, 0)])],
)
def test_the_loss_is_that_of_the_equation(reconstruct: str, terms: list[tuple[int, int]]) -> None:
    torch.manual_seed(0)
    term = Correspondence(embed_dim=5, image_dim=5, text_dim=5, reconstruct=reconstruct, alpha=0.3).double()
    batch = scored(embeddings(3, 1, seed=0), embeddings(4, 1, seed=1))
    assert float(term(batch)) == pytest.approx(by_hand(term, batch, 0.3, terms))


def test_the_code_is_a_sigmoid_of_the_mean() -> None:
    torch.manual_seed(0)
    encode = Autoencoder(input_dim=3, embed_dim=2)
    local, mask = torch.randn(2, 4, 3), torch.tensor([[True] * 4, [True, True, False, False]])
    made = encode(Features(local, mask))
    for row, size in enumerate((4, 2)):
        mean = sum(local[row, place] for place in range(size)) / size
        torch.testing.assert_close(made.source[row], mean)  # type: ignore[index]
        expected = 1 / (1 + (-(encode.code.weight @ mean + encode.code.bias)).exp())
        torch.testing.assert_close(made.vectors[row, 0], expected)
        torch.testing.assert_close(made.residual[row, 0], expected)  # type: ignore[index]


@pytest.mark.medium
def test_a_model_learns_to_reconstruct_and_to_agree() -> None:
    """The loss falls far below that of equal codes, which the collapse detector compares with."""
    torch.manual_seed(0)
    x = torch.randn(8, 1, 6)
    sides = [Autoencoder(input_dim=6, embed_dim=8) for _ in range(2)]
    term = Correspondence(embed_dim=8, image_dim=6, text_dim=6, alpha=0.5)
    weights = [weight for part in (*sides, term) for weight in part.parameters()]
    optimizer = torch.optim.Adam(weights, lr=0.05)
    mask = torch.ones(8, 1, dtype=torch.bool)
    for _ in range(150):
        made = [side(Features(x, mask)) for side in sides]
        batch = ScoredBatch(torch.eye(8), torch.eye(8, dtype=torch.bool), *made)
        loss = term(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert float(loss) < 0.3 * Objective({"it": term}, {"it": 1.0}).at_collapse(batch)


def test_missing_sources_and_other_widths_are_refused() -> None:
    term = Correspondence(embed_dim=5, image_dim=4, text_dim=5).double()
    with pytest.raises(RecipeError, match="4.*image_dim.*5"):
        term(scored(embeddings(2, 1, seed=0), embeddings(2, 1, seed=1)))
    bare = EmbeddingSet(torch.ones(2, 1, 5), torch.ones(2, 1, dtype=torch.bool))
    with pytest.raises(RecipeError, match="4.*image_dim"):
        term(ScoredBatch(torch.eye(2), torch.eye(2, dtype=torch.bool), bare, bare))
    with pytest.raises(RecipeError, match="0.*1"):
        Correspondence(embed_dim=5, image_dim=4, text_dim=5, alpha=1.5)


def test_a_set_keeps_its_source_wherever_it_goes() -> None:
    one, two = embeddings(3, 1, seed=0), embeddings(2, 2, seed=1)
    joined = EmbeddingSet.concatenate([one, two])
    torch.testing.assert_close(joined[torch.tensor([3, 0])].source, torch.stack([two.source[0], one.source[0]]))  # type: ignore[index]
    assert EmbeddingSet.concatenate([one, EmbeddingSet(two.vectors, two.mask)]).source is None
