"""HGR: levels of matching, graph reasoning and the whole model, against loops over the equations."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from openvse.aggregators import AGGREGATORS
from openvse.errors import RecipeError
from openvse.functional import pad
from openvse.similarities import SetMax
from openvse.types import EmbeddingSet, Features, Graph
from openvse_papers import hgr as hierarchical
from openvse_papers.hgr import FrameLevels, GraphLevels, Hierarchical, RoleGraphEncoder
from tests.naming import names, refusal


def cosine(a: Tensor, b: Tensor) -> Tensor:
    return a @ b / (a.norm() * b.norm())


def level(frames: list[Tensor], nodes: list[Tensor], sharpness: float, attend: str) -> Tensor:
    """Match the nodes of one level with the frames, number by number."""
    scores = []
    for node in nodes:
        cosines = [cosine(frame, node) for frame in frames]
        positive = [each.clamp(min=0) for each in cosines]
        length = sum(each**2 for each in positive) ** 0.5
        powers = [(sharpness * each / length if length > 0 else each * 0).exp() for each in positive]
        weights = [power / sum(powers) for power in powers]
        if attend == "vectors":
            scores.append(cosine(sum(w * f for w, f in zip(weights, frames, strict=True)), node))
        else:
            scores.append(sum(w * c for w, c in zip(weights, cosines, strict=True)))
    return sum(scores) / len(scores)  # type: ignore[return-value]


def by_hand(image: EmbeddingSet, text: EmbeddingSet, sharpness: float, attend: str, missing: str) -> Tensor:
    """Score the single item of each set."""
    parts = [cosine(image.vectors[0, 0], text.vectors[0, 0])]
    for start in (1, 2):
        frames = [v for v, m in zip(image.vectors[0, start::2], image.mask[0, start::2], strict=True) if m]
        nodes = [v for v, m in zip(text.vectors[0, start::2], text.mask[0, start::2], strict=True) if m]
        if frames and nodes:
            parts.append(level(frames, nodes, sharpness, attend))
    return sum(parts) / (len(parts) if missing == "skip" else 3)  # type: ignore[return-value]


def sides() -> tuple[EmbeddingSet, EmbeddingSet]:
    """Three clips of 4, 1 and 2 frames; five texts, the last without a node, another without an action."""
    torch.manual_seed(0)
    frames = torch.arange(9) < torch.tensor([[9], [3], [5]])
    nodes = torch.ones(5, 5, dtype=torch.bool)
    nodes[1, 3] = nodes[2, 1] = nodes[2, 3] = nodes[3, 2] = nodes[3, 4] = False
    nodes[4, 1:] = False
    vectors = torch.randn(3, 9, 6, dtype=torch.float64), torch.randn(5, 5, 6, dtype=torch.float64)
    return EmbeddingSet(vectors[0], frames), EmbeddingSet(vectors[1], nodes)


@pytest.mark.parametrize("attend", ["vectors", "scores"])
@pytest.mark.parametrize("missing", ["skip", "zero"])
def test_scores_are_those_of_the_equations(attend: Any, missing: Any) -> None:
    images, texts = sides()
    score = Hierarchical(sharpness=3.0, attend=attend, missing=missing)
    scores = score(images, texts)
    for i in range(3):
        for t in range(5):
            expected = by_hand(images[i : i + 1], texts[t : t + 1], 3.0, attend, missing)
            torch.testing.assert_close(scores[i, t], expected)
    rows, columns = torch.tensor([0, 2, 1]), torch.tensor([4, 0, 0])
    torch.testing.assert_close(score.pairs(images, texts, rows, columns), scores[rows, columns])


@pytest.mark.medium
@pytest.mark.parametrize("attend", ["vectors", "scores"])
def test_tiles_change_neither_scores_nor_gradients(attend: Any, monkeypatch: Any) -> None:
    score, found = Hierarchical(attend=attend), []
    weights = torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for cosines in (1 << 21, 1):
        monkeypatch.setattr(hierarchical, "_COSINES", cosines)
        images, texts = sides()
        leaves = [images.vectors.requires_grad_(), texts.vectors.requires_grad_()]
        scores = score(images, texts)
        found.append([scores, *torch.autograd.grad((scores * weights).sum(), leaves)])
        assert all(each.isfinite().all() for each in found[-1])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.medium
def test_only_one_tile_is_in_memory(monkeypatch: Any) -> None:
    """No tensor that the scoring makes has more cosines than a tile may have, whatever the number of pairs."""
    monkeypatch.setattr(hierarchical, "_COSINES", 4 * 3 * 25)
    torch.manual_seed(0)
    images = EmbeddingSet(torch.randn(40, 9, 6), torch.ones(40, 9, dtype=torch.bool))
    texts = EmbeddingSet(torch.randn(40, 7, 6), torch.ones(40, 7, dtype=torch.bool))
    largest = 0
    crossed = hierarchical._crossed

    def watched(one: Tensor, other: Tensor) -> Tensor:
        nonlocal largest
        made = crossed(one, other)
        largest = max(largest, made.numel())
        return made

    monkeypatch.setattr(hierarchical, "_crossed", watched)
    Hierarchical()(images, texts)
    assert 0 < largest <= 4 * 3 * 25


def reason(layer: Any, nodes: list[Tensor], reads: dict[int, list[int]]) -> list[Tensor]:
    """Run a layer of graph reasoning node by node."""
    made = []
    for place, node in enumerate(nodes):
        neighbours = reads.get(place, [])
        logits = [(layer.query(node) @ layer.key(nodes[j])) / layer.query.out_features**0.5 for j in neighbours]
        powers = [logit.exp() for logit in logits]
        update = sum(
            (power / sum(powers) * nodes[j] for power, j in zip(powers, neighbours, strict=True)),
            torch.zeros_like(node),
        )
        changed = node + layer.message.weight @ update
        made.append(torch.nn.functional.layer_norm(changed, changed.shape, layer.norm.weight, layer.norm.bias))
    return made


def test_nodes_are_pooled_and_read_their_neighbours() -> None:
    torch.manual_seed(0)
    encode = GraphLevels(input_dim=6, embed_dim=6).eval()
    local, members = torch.randn(1, 4, 6), torch.zeros(1, 5, 4, dtype=torch.bool)
    members[0, 0], members[0, 1, 1], members[0, 2, :2], members[0, 4, 2:] = True, True, True, True
    edges = torch.zeros(1, 5, 5, dtype=torch.bool)
    reads = {1: [0, 2, 4], 2: [1], 4: [1]}
    for place, neighbours in reads.items():
        edges[0, place, neighbours] = True
    roles = torch.tensor([[0, 0, 2, 0, 6]])
    made = encode(Features(local, torch.ones(1, 4, dtype=torch.bool), graph=Graph(members, roles, edges)))
    weights = (local[0] @ encode.aggregator.weight.weight[0]).exp()  # type: ignore[union-attr, operator]
    nodes = [(weights / weights.sum()) @ local[0]]
    for place in range(1, 5):
        words = local[0, members[0, place]]
        largest = torch.stack([column.max() for column in words.T]) if len(words) else torch.zeros(6)
        nodes.append(largest * encode.roles.weight[roles[0, place]])
    expected = reason(encode.layers[0], nodes, reads)
    assert made.mask.tolist() == [[True, True, True, False, True]]
    for place in (0, 1, 2, 4):
        torch.testing.assert_close(made.vectors[0, place], expected[place])


def test_a_clip_has_a_global_vector_and_each_frame_twice() -> None:
    torch.manual_seed(0)
    encode = FrameLevels(input_dim=3, embed_dim=4).eval()
    local, mask = torch.randn(1, 2, 3), torch.ones(1, 2, dtype=torch.bool)
    made = encode(Features(local, mask)).vectors[0]
    whole, action, entity = (local[0] @ each.weight.T + each.bias for each in encode.levels)  # type: ignore[union-attr, operator]
    weights = (whole @ encode.aggregator.weight.weight[0]).exp()  # type: ignore[union-attr, operator]
    torch.testing.assert_close(made[0], (weights / weights.sum()) @ whole)
    torch.testing.assert_close(made[1:], torch.stack([action[0], entity[0], action[1], entity[1]]))


CAPTION = "a brown dog runs on grass and a cat sits"
NODES = {
    "1": {"role": "V", "spans": [3]},
    "2": {"role": "ARG0", "spans": [0, 1, 2]},
    "3": {"role": "ARGM-LOC", "spans": [4, 5]},
    "4": {"role": "V", "spans": [9]},
    "5": {"role": "ARG0", "spans": [7, 8]},
}
EDGES = [["1", "2", ""], ["1", "3", ""], ["4", "5", ""]]


def embedded(graph: Any, path: Path, **options: Any) -> EmbeddingSet:
    path.write_text(json.dumps({CAPTION: graph}))
    torch.manual_seed(0)
    encoder = RoleGraphEncoder(embed_dim=6, word_dim=4, min_count=1, captions=[CAPTION], graphs=str(path)).eval()
    torch.manual_seed(1)
    levels = GraphLevels(input_dim=6, embed_dim=6, **options).eval()
    made: EmbeddingSet = levels(encoder(pad(encoder.tokenize([CAPTION, "a cat"]))))
    return made


def test_permuted_nodes_score_the_same(tmp_path: Path) -> None:
    images = sides()[0]
    clips = EmbeddingSet(images.vectors.float(), images.mask)
    scores = [
        Hierarchical()(clips, embedded([{name: NODES[name] for name in order}, edges], tmp_path / "graphs.json"))
        for order, edges in (("12345", EDGES), ("53142", EDGES[::-1]), ("45321", EDGES))
    ]
    torch.testing.assert_close(scores[1], scores[0])
    torch.testing.assert_close(scores[2], scores[0])


def test_without_reasoning_it_is_the_plain_global_model(tmp_path: Path) -> None:
    """The event alone, without reasoning, scores as the cosine of two attention-pooled vectors."""
    torch.manual_seed(0)
    frames = FrameLevels(input_dim=3, embed_dim=6).eval()
    seen = Features(torch.randn(4, 5, 3), torch.arange(5) < torch.tensor([[5], [1], [3], [2]]))
    texts = embedded([NODES, EDGES], tmp_path / "graphs.json", num_layers=0)
    alone = EmbeddingSet(texts.vectors[:, :1], texts.mask[:, :1])
    plain = AGGREGATORS.get("attention_pool")(input_dim=6, embed_dim=6)
    plain.load_state_dict(frames.aggregator.state_dict())
    pooled = plain(Features(frames.levels[0](seen.local), seen.mask))
    unit = [EmbeddingSet(torch.nn.functional.normalize(s.vectors, dim=2), s.mask) for s in (pooled, alone)]
    torch.testing.assert_close(Hierarchical()(frames(seen), alone), SetMax()(*unit))


def test_odd_options_are_refused() -> None:
    assert names(refusal(RecipeError, Hierarchical, sharpness=0.0), "sharpness", "0.0")
    with pytest.raises(RecipeError, match="Tokens"):
        FrameLevels(input_dim=4, embed_dim=4, aggregator=AGGREGATORS.get("tokens"))
    assert names(refusal(RecipeError, GraphLevels, input_dim=4, embed_dim=4, num_layers=-1), "num_layers", "-1")
