"""HGR (Chen et al., CVPR 2020): role graphs of captions, the levels of videos and sentences, and how they match."""

from __future__ import annotations

import gzip
import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from openvse.aggregators.learned import AttentionPool
from openvse.aggregators.simple import Aggregator, require_same_width
from openvse.encoders.words_encoder import GRUStart, WordsEncoder, opened_text
from openvse.errors import DataError, ModelError, RecipeError, decoded_text, importing
from openvse.files import parse_json
from openvse.functional import MASKED, normalize, places_of
from openvse.layers.attention import checked_dropout
from openvse.layers.recurrence import packed_gru
from openvse.registry import Maker
from openvse.similarities.scores import Similarity, slices
from openvse.tokenization.vocabulary import UNKNOWN, split_words
from openvse.types import EmbeddingSet, Features, Graph, Inputs, moved, on_cpu

ROLES = (
    *("V", "ARG1", "ARG0", "ARG2", "ARG3", "ARG4"),
    *("ARGM-LOC", "ARGM-MNR", "ARGM-TMP", "ARGM-DIR", "ARGM-ADV"),
    *("ARGM-PRP", "ARGM-PRD", "ARGM-COM", "ARGM-MOD", "NOUN"),
)
"""The semantic roles of HGR, in the order of its embeddings. Any other role is read as NOUN."""

VERB = 0
"""The position of V, the role of every action. An entity of the role C-V or R-V has the embedding of V, too."""

_OTHER = len(ROLES) - 1
_ROLE_IDS = {name: number for number, role in enumerate(ROLES) for name in (role, f"C-{role}", f"R-{role}")}
_IN_PHRASE = {"ADJ", "NUM", "NOUN", "PROPN", "PRON"}
_BEFORE_PHRASE = {"DET", "ADJ", "ADP", "NUM"}
_HEADS = {"NOUN", "PROPN", "PRON"}

_logger = logging.getLogger("openvse.hgr.role_graph")  # its warnings are openvse's

GRAPHS_FILE = "role_graphs.json.gz"
_MAX_BYTES = 1 << 29
_MOST_NODES = 30
# A word is its id, 0 and its slots. A node is -1 - its role, its slot and the slots that it reads.
# Sets of slots are bits. So a caption with its graph is a sequence of whole numbers, as captions are everywhere.
_FIELDS = 3


@dataclass(frozen=True)
class Node:
    """An action or an entity: the position of its role in ``ROLES``, and the positions of its words in the caption."""

    role: int
    spans: tuple[int, ...]
    action: bool = False


@dataclass(frozen=True)
class RoleGraph:
    """The graph of a caption, without the event, which is the whole caption and precedes each action.

    Edges are pairs of an action and an entity, by their positions in ``nodes``.
    """

    words: tuple[str, ...]
    nodes: tuple[Node, ...] = ()
    edges: tuple[tuple[int, int], ...] = ()


class RoleGraphEncoder(WordsEncoder):
    """A bidirectional GRU over the words of a caption, with averaged directions, and the caption's role graph (HGR).

    The graph has the caption as its event, actions below the event, and entities below actions. It comes from the
    annotations that HGR's authors published, or from rules on word classes. A caption without one has only its event.
    A log line counts the three.

    Args:
        graphs: a file of role graphs in the format of HGR's authors (``sent2rolegraph.augment.json``).
        tagger: the tagger for captions that the file lacks: ``perceptron``, the tagger of the package
            ``denckring-en-pos``, or ``none``, which leaves them with their event alone.
        max_actions: the largest number of actions read from a caption. 4 in the released code.
        max_entities: the largest number of entities read from a caption. 6 in the released code.
        max_words: the largest number of words read from a caption. 30 in the released code.

    The other options are the same as for ``bigru``.

    Raises:
        ModelError: the assets are damaged, or the tagger is not installed.
        RecipeError: a number of nodes or words is out of range, or dropout is not in [0, 1).
        DataError: the graphs or the word vectors cannot be used, or no word occurs often enough.
    """

    def __init__(
        self,
        *,
        embed_dim: int,
        captions: Sequence[str] = (),
        assets: Path | None = None,
        grow: bool = False,
        graphs: str | None = None,
        tagger: Literal["none", "perceptron"] = "none",
        max_actions: int = 4,
        max_entities: int = 6,
        min_count: int = 4,
        word_dim: int = 300,
        word_vectors: str | None = None,
        freeze_words: bool = False,
        max_words: int | None = 30,
        dropout: float = 0.0,
        gru_start: GRUStart = "uniform",
    ) -> None:
        super().__init__(min_count=min_count, boundaries=False, max_words=max_words)
        for name, count in (("max_actions", max_actions), ("max_entities", max_entities)):
            if not 1 <= count <= _MOST_NODES:
                raise RecipeError(f"{name} is {count}: give a number from 1 to {_MOST_NODES}")
        self.local_dim = embed_dim
        self.most, self.tagger = (max_actions, max_entities), tagger
        self.slots = 1 + 2 * max(max_actions, max_entities)
        self.read_vocabulary(captions, assets, grow=grow, split=split_words, nearest=False)
        vectors = None if assets else word_vectors
        self.gru = self.make_gru(word_dim, embed_dim, vectors, freeze=freeze_words, dropout=dropout, start=gru_start)
        file = Path(graphs) if graphs and assets is None else assets and assets / GRAPHS_FILE
        has_file = file is not None and (assets is None or file.is_file())
        self.annotated = read_role_graphs(file) if file is not None and has_file else {}
        if tagger != "none":
            tag_words(())  # refuse a missing tagger at once

    def tokenize(self, captions: Sequence[str]) -> list[Tensor]:
        """Return each caption with its graph as whole numbers, three for each word and node."""
        tokens: list[Tensor] = []
        counts = {"annotated": 0, "tagged": 0, "event alone": 0}
        for caption in captions:
            graph, source = self.graph_of(caption)
            counts[source if graph.nodes else "event alone"] += 1
            tokens.append(torch.tensor(self._rows(graph), dtype=torch.int64).flatten())
        _logger.info(
            "of %d captions, %d have an annotated role graph, %d one from word classes, and %d only their event",
            len(captions),
            *counts.values(),
        )
        return tokens

    def graph_of(self, caption: str) -> tuple[RoleGraph, str]:
        """Return the role graph of a caption, and where it is from: ``annotated``, ``tagged`` or ``event alone``."""
        if (graph := self.annotated.get(key_of(caption))) is not None:
            return graph, "annotated"
        words = split_words(caption)
        if self.tagger == "none":
            return RoleGraph(tuple(words)), "event alone"
        return graph_of_tags(words, tag_words(words)), "tagged"

    def pieces(self, caption: str) -> list[str]:
        """Return the words, and each node as its role with its words, such as ``V(runs)``, three times each."""
        graph, _ = self.graph_of(caption)
        words, nodes = self._read(graph)
        shown = [word for word, _ in words] or [""]
        names = [f"{ROLES[n.role]}({' '.join(graph.words[s] for s in n.spans)})" for _, _, n in nodes]
        return [piece for piece in (*shown, *names) for _ in range(_FIELDS)]

    def forward(self, inputs: Inputs) -> Features:
        """Encode captions: ``local [B, N, D]`` has a state for each word, and ``graph`` holds the nodes and edges."""
        if inputs.mask is None or inputs.values.shape[1] % _FIELDS:
            raise ModelError("captions came without a mask or not from tokenize: collate the output of tokenize")
        device = inputs.values.device
        rows = on_cpu(inputs.values).reshape(len(inputs), -1, _FIELDS)
        there = on_cpu(inputs.mask)[:, ::_FIELDS]
        is_word, is_node = there & (rows[..., 0] >= 0), there & (rows[..., 0] < 0)
        length = int(is_word.sum(dim=1).max())
        mask = is_word[:, :length]
        graph = self._graph(rows, mask, is_node).to(device)
        embedded, mask = self.embedded(moved(rows[:, :length, 0].where(mask, 0), device)), moved(mask, device)
        return Features(packed_gru(self.gru, embedded, mask).mean(dim=0), mask, graph=graph)

    def save_assets(self, folder: Path) -> None:
        """Write the vocabulary, and the role graphs if a file gave some."""
        super().save_assets(folder)
        if self.annotated:
            write_role_graphs(folder / GRAPHS_FILE, self.annotated)

    def _graph(self, rows: Int[Tensor, "B M 3"], mask: Bool[Tensor, "B N"], is_node: Bool[Tensor, "B M"]) -> Graph:
        """Put the nodes into their slots."""
        members = _bits(rows[:, : mask.shape[1], 2].where(mask, 0), self.slots).mT.contiguous()
        members[:, 0] = mask
        items, which = is_node.nonzero(as_tuple=True)
        kinds, slots, reads = rows[items, which].unbind(1)
        roles = rows.new_zeros(len(rows), self.slots)
        roles[items, slots] = -1 - kinds
        edges = torch.zeros(len(rows), self.slots, self.slots, dtype=torch.bool, device=rows.device)
        edges[items, slots] = _bits(reads, self.slots)
        return Graph(members, roles, edges)

    def _read(self, graph: RoleGraph) -> tuple[list[tuple[str, int]], list[tuple[int, int, Node]]]:
        """Return the words that are read, each with its place in the spans, and the nodes with slot and number."""
        words = [(part, place) for place, word in enumerate(graph.words) for part in split_words(word)]
        words = words[: self.max_words]
        seen = {place for _, place in words}
        nodes: list[tuple[int, int, Node]] = []
        counts = [0, 0]
        for number, node in enumerate(graph.nodes):
            kind = int(not node.action)
            spans = tuple(place for place in node.spans if place in seen)
            if spans and counts[kind] < self.most[kind]:
                nodes.append((1 + kind + 2 * counts[kind], number, replace(node, spans=spans)))
                counts[kind] += 1
        return words, nodes

    def _rows(self, graph: RoleGraph) -> list[tuple[int, int, int]]:
        words, nodes = self._read(graph)
        slot_of = {number: slot for slot, number, _ in nodes}
        # An action reads the event, which is bit 0.
        reads = {slot: int(node.action) for slot, _, node in nodes}
        for action, entity in graph.edges:
            if action in slot_of and entity in slot_of:
                reads[slot_of[action]] |= 1 << slot_of[entity]
                reads[slot_of[entity]] |= 1 << slot_of[action]
        rows = [
            (self.vocabulary.id_of(word), 0, sum(1 << slot for slot, _, node in nodes if place in node.spans))
            for word, place in words
        ] or [(UNKNOWN, 0, 0)]
        return rows + [(-1 - node.role, slot, reads[slot]) for slot, _, node in nodes]


def _bits(sets: Int[Tensor, "*b"], count: int) -> Bool[Tensor, "*b S"]:
    """Return the bits of whole numbers, the lowest first."""
    return (sets.unsqueeze(-1) >> torch.arange(count, device=sets.device) & 1).bool()


def read_role_graphs(path: Path) -> dict[str, RoleGraph]:
    """Read the role graphs that the authors of HGR published (``sent2rolegraph.augment.json``), by ``key_of``.

    The file maps each sentence to a list of nodes and edges. A node has a ``role`` (ROOT, V, ARG0 ..) and the ``spans``
    of its words, counted in the sentence cut at spaces. An edge names the ids of two nodes and a role. As in the
    released code, only V is an action: C-V and R-V are entities with the embedding of V.
    """
    try:
        with opened_text(path) as file:
            content = file.read(_MAX_BYTES + 1)  # a few bytes may stand for gigabytes
        tree = parse_json(decoded_text(content, path), most=_MAX_BYTES)
        return {key_of(sentence): _graph(sentence, *graph) for sentence, graph in tree.items()}
    except OSError as error:
        raise DataError(f"role graphs {path} cannot be read ({error.strerror}): give a JSON file") from error
    except (ValueError, KeyError, TypeError, AttributeError, EOFError) as error:
        raise DataError(
            f"{path} is not {{sentence: [nodes, edges]}} ({error!r}): give the sent2rolegraph file of HGR"
        ) from error


def write_role_graphs(path: Path, graphs: Mapping[str, RoleGraph]) -> None:
    """Write graphs in the same format, compressed. The same graphs give the same bytes."""
    tree = {
        " ".join(graph.words): [
            {str(place): {"role": _name_of(node), "spans": node.spans} for place, node in enumerate(graph.nodes)},
            [[str(action), str(entity), ""] for action, entity in graph.edges],
        ]
        for graph in graphs.values()
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(json.dumps(tree, ensure_ascii=False).encode(), mtime=0))


def _name_of(node: Node) -> str:
    """Return a role from which a node is read again with the same kind."""
    name = ROLES[node.role]
    return f"C-{name}" if node.role == VERB and not node.action else name


def key_of(caption: str) -> str:
    """Return the common form of a caption's spellings: words in lower case, without a final period.

    Examples:
        >>> key_of("A dog  runs.") == key_of("a dog runs")
        True
    """
    return " ".join(caption.lower().split()).rstrip(" .")


def _graph(sentence: str, nodes: Mapping[str, Any], edges: Sequence[Sequence[str]]) -> RoleGraph:
    words = tuple(sentence.split())
    numbers: dict[str, int] = {}
    made: list[Node] = []
    for name, node in nodes.items():
        spans = tuple(int(place) for place in node["spans"] if 0 <= int(place) < len(words))
        if node["role"] != "ROOT" and spans:
            numbers[str(name)] = len(made)
            made.append(Node(_ROLE_IDS.get(node["role"], _OTHER), spans, node["role"] == ROLES[VERB]))
    known = [(str(a), str(b)) for a, b, *_ in edges]
    pairs = [(numbers[a], numbers[b]) for a, b in known if a in numbers and b in numbers]
    kept = tuple((a, b) for a, b in pairs if made[a].action and not made[b].action)
    return RoleGraph(words, tuple(made), kept)


def tag_words(words: Sequence[str]) -> list[str]:
    """Return the universal word class of each word. Raise ModelError if ``denckring-en-pos`` is not installed."""
    with importing(
        "graphs of captions without annotation need a tagger", "graphs", ModelError, more=", or set tagger: none"
    ):
        from denckring_en_pos import tagger
    return [str(label).partition("|")[0] for label in tagger().tag(list(words))] if words else []


def graph_of_tags(words: Sequence[str], tags: Sequence[str]) -> RoleGraph:
    """Make a role graph from the universal classes of words by rules.

    Each verb is an action, except auxiliaries and verbs between an article, adjective or preposition and a noun ("a
    swimming pool"), which count as adjectives. Each longest run of adjectives, numerals, nouns and pronouns that ends
    in a noun or pronoun is an entity. An entity after a preposition is a place (ARGM-LOC) of the action before it, or
    of the first action. Another entity before the first verb is the agent (ARG0) of this and all later verbs. An entity
    after a verb is its patient (ARG1).

    The rules cannot know whether a preposition says where, how or of what. They call the patient of a passive the
    agent, and they do not understand relative clauses.
    """
    nodes: list[Node] = []
    edges: list[tuple[int, int]] = []
    agents: list[int] = []
    action: int | None = None
    waiting: list[int] = []  # entities before the first verb
    for start, end, kind, behind in _phrases(tags):
        place = len(nodes)
        if kind == "VERB":
            nodes.append(Node(VERB, (start,), action=True))
            edges += [(place, entity) for entity in (waiting if action is None else agents)]
            action = place
            continue
        role = "ARGM-LOC" if behind else "ARG0" if action is None else "ARG1"
        nodes.append(Node(_ROLE_IDS[role], tuple(range(start, end))))
        if action is None:
            waiting.append(place)
            agents += [] if behind else [place]
        else:
            edges.append((action, place))
    return RoleGraph(tuple(words), tuple(nodes), tuple(edges))


def _phrases(tags: Sequence[str]) -> list[tuple[int, int, str, bool]]:
    """Return start, end and kind of each verb and noun phrase, and whether a preposition precedes it.

    Verbs inside a noun phrase count as adjectives.
    """
    before, after = ["", *tags], [*tags[1:], ""]
    tags = [
        "ADJ" if tag == "VERB" and left in _BEFORE_PHRASE and right in _IN_PHRASE - {"PRON"} else tag
        for left, tag, right in zip(before, tags, after, strict=False)
    ]
    phrases: list[tuple[int, int, str, bool]] = []
    behind, place = False, 0
    while place < len(tags):
        if tags[place] == "VERB":
            phrases.append((place, place + 1, "VERB", False))
            behind = False
        elif tags[place] == "ADP":
            behind = True
        elif tags[place] in _IN_PHRASE:
            end = place
            while end < len(tags) and tags[end] in _IN_PHRASE:
                end += 1
            last = max((spot for spot in range(place, end) if tags[spot] in _HEADS), default=None)
            if last is not None:
                phrases.append((place, last + 1, "NOUN", behind))
            behind = False
            place = end
            continue
        place += 1
    return phrases


class FrameLevels(Aggregator):
    """Three linear maps of the raw local features, one for each level of HGR (Chen et al., CVPR 2020).

    The embeddings of an item with N elements are, in this order, its global vector and, for each element, its vector
    for actions and its vector for entities: K = 1 + 2 N. The similarity ``hierarchical`` reads this order.

    Args:
        input_dim: C, the width of the raw local features, which the encoder does not project.
        aggregator: the pooling of the global level, over the projected elements: ``attention_pool`` is HGR, and ``gpo``
            HGR-infinity (VSE-infinity, Table 4).
        dropout: the probability that a feature of a projected element is dropped in training.

    Raises:
        RecipeError: dropout is not in [0, 1), or the aggregator does not make one embedding of the local features.
    """

    order_aware = True
    indexable = False
    fixed_k = False
    unit_length = False

    def __init__(
        self, *, input_dim: int, embed_dim: int, aggregator: Maker[Aggregator] = AttentionPool, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.levels = nn.ModuleList(nn.Linear(input_dim, embed_dim) for _ in range(3))
        self.dropout = nn.Dropout(checked_dropout(dropout))
        self.aggregator = global_pooling(aggregator, embed_dim)

    def forward(self, features: Features) -> EmbeddingSet:
        padding = ~features.mask.unsqueeze(-1)
        local = features.local.masked_fill(padding, 0.0)
        whole, actions, entities = (self.dropout(level(local)) for level in self.levels)
        pooled = self.aggregator(Features(whole, features.mask)).vectors
        both: Tensor = torch.stack([actions, entities], dim=2).masked_fill(padding.unsqueeze(-1), 0.0)
        mask = features.mask.repeat_interleave(2, dim=1)
        return EmbeddingSet(torch.cat([pooled, both.flatten(1, 2)], dim=1), nn.functional.pad(mask, (1, 0), value=True))


def global_pooling(aggregator: Maker[Aggregator], width: int) -> Aggregator:
    """Make the pooling of a global level. Raise RecipeError unless it makes one vector from local features alone."""
    made = aggregator(input_dim=width, embed_dim=width)
    probe = Features(torch.zeros(1, 2, width), torch.ones(1, 2, dtype=torch.bool))
    with torch.no_grad():
        if not made.needs_pooled and made.fixed_k and made(probe).vectors.shape[1] == 1:
            return made
    raise RecipeError(
        f"the global level is one vector, and {type(made).__name__} makes another number or needs a global vector: "
        f"take attention_pool, gpo, mean or another pooling"
    )


class GraphLevels(Aggregator):
    """Graph reasoning over the event, the actions and the entities of a caption (HGR, Chen et al., CVPR 2020).

    The event is the pooled caption. An action or entity is the maximum of its words in each dimension, times the
    embedding of its role. Each layer of reasoning then lets the nodes read their neighbours (``GraphReasoning``). The
    embeddings are, in this order, the event and alternately an action and an entity. The mask marks the existing ones.
    A caption without a graph has only its event.

    Args:
        aggregator: the pooling of the event: ``attention_pool`` is HGR, ``gpo`` HGR-infinity (VSE-infinity, Table 4).
        num_layers: the number of layers of reasoning. 0 turns it off, with its normalisation.
        dropout: the probability that a feature of a word's state is dropped in training. The released code drops
            features of word embeddings instead: ``dropout`` of the encoder ``role_graph``.
        reasoning_dropout: the same for the updates of the reasoning.

    Raises:
        RecipeError: the widths differ, the number of layers is below 0, a probability is not in [0, 1), or the
            aggregator does not make one embedding of the words.
    """

    order_aware = True
    indexable = False
    unit_length = False

    def __init__(
        self,
        *,
        input_dim: int,
        embed_dim: int,
        aggregator: Maker[Aggregator] = AttentionPool,
        num_layers: int = 1,
        dropout: float = 0.0,
        reasoning_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        require_same_width("graph_levels", input_dim, embed_dim)
        if num_layers < 0:
            raise RecipeError(f"graph_levels got num_layers = {num_layers}: give 0 or more (usual: 1)")
        checked_dropout(reasoning_dropout)
        self.aggregator = global_pooling(aggregator, embed_dim)
        self.roles = nn.Embedding(len(ROLES), embed_dim)
        self.layers = nn.ModuleList(GraphReasoning(embed_dim, reasoning_dropout) for _ in range(num_layers))
        self.dropout = nn.Dropout(checked_dropout(dropout))

    def forward(self, features: Features) -> EmbeddingSet:
        local = self.dropout(features.local.masked_fill(~features.mask.unsqueeze(-1), 0.0))
        nodes: Tensor = self.aggregator(Features(local, features.mask)).vectors
        there = torch.ones(nodes.shape[:2], dtype=torch.bool, device=nodes.device)
        edges = torch.zeros(nodes.shape[0], 1, 1, dtype=torch.bool, device=nodes.device)
        if features.graph is not None:
            there, edges = features.graph.members.any(dim=2), features.graph.edges
            # Memory grows with the number of existing nodes.
            members, roles = features.graph.members[:, 1:], features.graph.roles[:, 1:]
            items, slots = places_of(on_cpu(features.graph.members)[:, 1:].any(dim=2), members.device)
            inside = members[items, slots].unsqueeze(-1)
            vectors = local[items].masked_fill(~inside, MASKED).amax(dim=1) * self.roles(roles[items, slots])
            made = local.new_zeros(*members.shape[:2], local.shape[2])
            others = made.index_put((items, slots), vectors.to(made.dtype))  # all slots except the event's
            nodes = torch.cat([nodes, others], dim=1)
        for layer in self.layers:
            nodes = layer(nodes, edges)
        return EmbeddingSet(nodes.masked_fill(~there.unsqueeze(-1), 0.0), there)


class GraphReasoning(nn.Module):
    """``x_i + W sum_j b_ij x_j``, layer-normalised, with ``b_i = softmax_j( (Q x_i) . (K x_j) / sqrt(d) )``.

    j runs over the neighbours of i. A node without neighbours keeps its vector, layer-normalised (HGR, section 3.1).
    Keys have no bias, as it would shift all logits of a node alike.

    Args:
        dropout: the probability that a feature of the update is dropped in training.
    """

    def __init__(self, width: int, dropout: float = 0.0) -> None:
        super().__init__()
        hidden = max(1, width // 2)
        self.query, self.key = nn.Linear(width, hidden), nn.Linear(width, hidden, bias=False)
        self.message = nn.Linear(width, width, bias=False)
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)
        self.scale = 1 / math.sqrt(hidden)

    def forward(self, nodes: Float[Tensor, "B S D"], edges: Bool[Tensor, "B S S"]) -> Float[Tensor, "B S D"]:
        """Let each node read its neighbours. If ``edges[b, i, j]`` is True, i reads j."""
        logits = (self.query(nodes) @ self.key(nodes).mT * self.scale).masked_fill(~edges, MASKED)
        weights = torch.softmax(logits, dim=2).masked_fill(~edges, 0.0)
        return cast(Tensor, self.norm(nodes + self.dropout(self.message(weights @ nodes))))


# The most cosines of elements and nodes, and the most numbers of gathered items, in memory at a time.
_COSINES = 1 << 21
_NUMBERS = 1 << 24
_LEVELS = (slice(1, None, 2), slice(2, None, 2))
_SMALL = 1e-9


class Hierarchical(Similarity):
    """The mean of three cosines: of the whole items, of actions and of entities (HGR, Chen et al., CVPR 2020).

    Both sides carry a global vector first, and then alternately a vector for actions and one for entities. An image has
    one of each for every element n (``frame_levels``), a text one for every node p of its role graph (``role_graph``).

    - global level: ``cos(v, t)``,
    - each of the other two: the mean over the nodes p of ``cos(sum_n a_pn x_n, z_p)``, where
      ``a_p = softmax_n( sharpness * [c_pn]_+ / |[c_p]_+| )`` and ``c_pn = cos(x_n, z_p)``.

    The attended vectors are never made: their cosines follow from c and from the inner products of the elements. So a
    pair needs the memory of its cosines c, whatever D is. Pairs are scored in tiles, computed again backward.

    A text without a node of a level has no score there. An index cannot serve the score: an indexable model proposes
    items, and this one reranks them (``openvse search --rerank``).

    Args:
        sharpness: the factor in the softmax. 4 in the released code.
        attend: ``vectors`` compares a node with the attended vector, as in the released code. ``scores`` takes
            ``sum_n a_pn c_pn`` in place of its cosine.
        missing: ``skip`` averages the levels that a pair has, so that a text with only a global vector has the plain
            cosine. ``zero`` counts a missing level as 0, as in the released code.

    Raises:
        RecipeError: the sharpness is not above 0.
    """

    indexable: ClassVar[bool] = False
    is_cosine: bool = True
    reads_unit_vectors: ClassVar[bool] = False

    def __init__(
        self,
        *,
        sharpness: float = 4.0,
        attend: Literal["vectors", "scores"] = "vectors",
        missing: Literal["skip", "zero"] = "skip",
    ) -> None:
        super().__init__()
        if not (math.isfinite(sharpness) and sharpness > 0):
            raise RecipeError(f"hierarchical got sharpness = {sharpness}: it must be above 0 (usual: 4)")
        self.sharpness, self.attend, self.missing = sharpness, attend, missing
        self.is_cosine = missing == "skip"

    def forward(self, images: EmbeddingSet, texts: EmbeddingSet) -> Float[Tensor, "I T"]:
        """Score all pairs. Memory holds the scores and one tile of pairs."""
        cosines = max(1, images.mask.shape[1] // 2) * max(1, texts.mask.shape[1] // 2)
        side = max(1, math.isqrt(_COSINES // cosines))  # the number of images and of texts in a tile
        columns = [
            torch.cat([self._tile(images[i], texts[t]) for i in slices(len(images), side)])
            for t in slices(len(texts), side)
        ]
        return torch.cat(columns, dim=1)

    @torch.no_grad()
    def pairs(
        self, images: EmbeddingSet, texts: EmbeddingSet, rows: Int[Tensor, "P"], columns: Int[Tensor, "P"]
    ) -> Float[Tensor, "P"]:
        size = max(1, _NUMBERS // (images.vectors[0].numel() + texts.vectors[0].numel()))
        parts = [self._score(images[rows[some]], texts[columns[some]], _aligned) for some in slices(len(rows), size)]
        return torch.cat(parts) if parts else images.vectors.new_zeros(0)

    def _tile(self, images: EmbeddingSet, texts: EmbeddingSet) -> Float[Tensor, "i t"]:
        if not torch.is_grad_enabled():
            return self._score(images, texts, _crossed)

        def score(of_images: Tensor, of_texts: Tensor) -> Tensor:
            sides = EmbeddingSet(of_images, images.mask), EmbeddingSet(of_texts, texts.mask)
            return self._score(*sides, _crossed)

        return cast(Tensor, checkpoint(score, images.vectors, texts.vectors, use_reentrant=False))

    def _score(self, images: EmbeddingSet, texts: EmbeddingSet, align: Align) -> Float[Tensor, "*p"]:
        """Average the levels of the pairs that ``align`` makes of the two sides."""
        whole = align(normalize(images.vectors[:, :1]), normalize(texts.vectors[:, :1]))[..., 0, 0]
        total, count = whole, torch.ones_like(whole)
        for places in _LEVELS:
            elements, nodes = images.mask[:, places], texts.mask[:, places]
            if not elements.shape[1] or not nodes.shape[1]:
                continue
            x = images.vectors[:, places].masked_fill(~elements.unsqueeze(-1), 0.0)
            z = texts.vectors[:, places].masked_fill(~nodes.unsqueeze(-1), 0.0)
            # The elements and nodes that each pair has, and the number of nodes.
            both = align(elements.to(x.dtype).unsqueeze(-1), nodes.to(x.dtype).unsqueeze(-1)) > 0
            cosines = align(normalize(x), normalize(z))
            matched = self._matched(cosines, both, x)
            there = both.any(dim=-1)
            level = (matched * there).sum(dim=-1) / there.sum(dim=-1).clamp(min=1)
            total = total + level
            count = count + there.any(dim=-1)
        return total / (count if self.missing == "skip" else len(_LEVELS) + 1)

    def _matched(
        self, cosines: Float[Tensor, "*p K N"], both: Bool[Tensor, "*p K N"], x: Float[Tensor, "i N D"]
    ) -> Float[Tensor, "*p K"]:
        """Return the score of each node."""
        positive = cosines.clamp(min=0).masked_fill(~both, 0.0)
        length = positive.square().sum(dim=-1, keepdim=True).clamp(min=_SMALL**2).sqrt()
        logits = (self.sharpness * positive / length).masked_fill(~both, MASKED)
        weights = logits.softmax(dim=-1).masked_fill(~both, 0.0)
        if self.attend == "scores":
            return (weights * cosines).sum(dim=-1)
        products = x @ x.mT
        # A root of 0 would have no finite slope.
        lengths = products.diagonal(dim1=1, dim2=2).clamp(min=_SMALL**2).sqrt().unsqueeze(1)
        if cosines.ndim > x.ndim:  # pairs of all images and texts
            products, lengths = products.unsqueeze(1), lengths.unsqueeze(1)
        inner = (weights * cosines * lengths).sum(dim=-1)
        squares = ((weights @ products) * weights).sum(dim=-1)
        return inner / squares.clamp(min=_SMALL**2).sqrt()


Align = Callable[[Tensor, Tensor], Tensor]
"""Inner products ``[*p, K, N]`` of the K vectors of each text and the N vectors of each image of the pairs p."""


def _crossed(images: Float[Tensor, "i N D"], texts: Float[Tensor, "t K D"]) -> Float[Tensor, "i t K N"]:
    """Pair every image with every text."""
    products = images.flatten(0, 1) @ texts.flatten(0, 1).T
    return products.view(*images.shape[:2], *texts.shape[:2]).permute(0, 2, 3, 1)


def _aligned(images: Float[Tensor, "p N D"], texts: Float[Tensor, "p K D"]) -> Float[Tensor, "p K N"]:
    """Pair image p with text p."""
    return texts @ images.mT
