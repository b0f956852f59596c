"""The text encoder of HGR: word states of a caption, and its role graph, annotated or made from word classes."""

from __future__ import annotations

import gzip
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from openvse.encoders.words_encoder import GRUStart, WordsEncoder, opened_text
from openvse.errors import DataError, ModelError, RecipeError, decoded_text, install
from openvse.files import parse_json
from openvse.layers.recurrence import packed_gru
from openvse.tokenization.vocabulary import UNKNOWN
from openvse.tokenization.word_splitters import split_words
from openvse.types import Features, Graph, Inputs, moved, on_cpu

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
        self.gru = self.make_gru(
            word_dim, embed_dim, vectors, freeze=freeze_words, dropout=dropout, start=gru_start
        )
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
        names = [f"{ROLES[node.role]}({' '.join(graph.words[s] for s in node.spans)})" for node in nodes]
        return [piece for piece in (*shown, *names) for _ in range(_FIELDS)]

    def forward(self, inputs: Inputs) -> Features:
        """Encode captions: ``local [B, N, D]`` has a state for each word, and ``graph`` holds the nodes and edges."""
        if inputs.mask is None or inputs.values.shape[1] % _FIELDS:
            raise ModelError(
                "captions came without a mask or not from tokenize: collate the output of tokenize"
            )
        device = inputs.values.device
        rows = on_cpu(inputs.values).reshape(len(inputs), -1, _FIELDS)
        there = on_cpu(inputs.mask)[:, ::_FIELDS]
        is_word, is_node = there & (rows[..., 0] >= 0), there & (rows[..., 0] < 0)
        length = int(is_word.sum(dim=1).max())
        mask = is_word[:, :length]
        graph = self._graph(rows, mask, is_node).to(device)
        embedded, mask = self.embedded(moved(rows[:, :length, 0].where(mask, 0), device)), moved(mask, device)
        return Features(packed_gru(self.gru, embedded, mask)[0].mean(dim=0), mask, graph=graph)

    def save_assets(self, folder: Path) -> None:
        """Write the vocabulary, and the role graphs if a file gave some."""
        super().save_assets(folder)
        if self.annotated:
            write_role_graphs(folder / GRAPHS_FILE, self.annotated)

    def _graph(
        self, rows: Int[Tensor, "B M 3"], mask: Bool[Tensor, "B N"], is_node: Bool[Tensor, "B M"]
    ) -> Graph:
        """Put the nodes into their slots."""
        places = torch.arange(self.slots, device=rows.device)
        members = _bits(rows[:, : mask.shape[1], 2].where(mask, 0), self.slots).mT.contiguous()
        members[:, 0] = mask
        items, which = is_node.nonzero(as_tuple=True)
        kinds, slots, reads = rows[items, which].unbind(1)
        roles = rows.new_zeros(len(rows), len(places))
        roles[items, slots] = -1 - kinds
        edges = torch.zeros(len(rows), len(places), len(places), dtype=torch.bool, device=rows.device)
        edges[items, slots] = _bits(reads, self.slots)
        return Graph(members, roles, edges)

    def _read(self, graph: RoleGraph) -> tuple[list[tuple[str, int]], list[_Placed]]:
        """Return the words that are read, each with its position in the spans, and the nodes with their slots."""
        words = [(part, place) for place, word in enumerate(graph.words) for part in split_words(word)]
        words = words[: self.max_words]
        seen = {place for _, place in words}
        nodes: list[_Placed] = []
        counts = [0, 0]
        for number, node in enumerate(graph.nodes):
            kind = int(not node.action)
            spans = tuple(place for place in node.spans if place in seen)
            if spans and counts[kind] < self.most[kind]:
                nodes.append(_Placed(node, spans, number, 1 + kind + 2 * counts[kind]))
                counts[kind] += 1
        return words, nodes

    def _rows(self, graph: RoleGraph) -> list[tuple[int, int, int]]:
        words, nodes = self._read(graph)
        slot_of = {node.number: node.slot for node in nodes}
        # An action reads the event, which is bit 0.
        reads = {node.slot: int(node.action) for node in nodes}
        for action, entity in graph.edges:
            if action in slot_of and entity in slot_of:
                reads[slot_of[action]] |= 1 << slot_of[entity]
                reads[slot_of[entity]] |= 1 << slot_of[action]
        rows = [
            (self.vocabulary.id_of(word), 0, sum(1 << node.slot for node in nodes if place in node.spans))
            for word, place in words
        ] or [(UNKNOWN, 0, 0)]
        return rows + [(-1 - node.role, node.slot, reads[node.slot]) for node in nodes]


class _Placed:
    """A node with its slot."""

    def __init__(self, node: Node, spans: tuple[int, ...], number: int, slot: int) -> None:
        self.role, self.action = node.role, node.action
        self.spans, self.number, self.slot = spans, number, slot


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
            f"role graphs {path} are not in the format of HGR, {{sentence: [nodes, edges]}} ({error!r}): give its "
            f"sent2rolegraph file"
        ) from error


def write_role_graphs(path: Path, graphs: Mapping[str, RoleGraph]) -> None:
    """Write graphs in the same format, compressed. The same graphs give the same bytes."""
    tree = {
        " ".join(graph.words): [
            {
                str(place): {"role": _name_of(node), "spans": node.spans}
                for place, node in enumerate(graph.nodes)
            },
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
    pairs = [
        (numbers[str(a)], numbers[str(b)]) for a, b, *_ in edges if str(a) in numbers and str(b) in numbers
    ]
    return RoleGraph(
        words,
        tuple(made),
        tuple((a, b) for a, b in pairs if made[a].action and not made[b].action),
    )


def tag_words(words: Sequence[str]) -> list[str]:
    """Return the universal word class of each word. Raise ModelError if ``denckring-en-pos`` is not installed."""
    try:
        from denckring_en_pos import tagger
    except ImportError as error:
        raise ModelError(
            f"graphs of captions without annotation need a tagger: {install('graphs')}, or set tagger: none"
        ) from error
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
    for start, end, kind, behind in _phrases(_without_modifiers(tags)):
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


def _without_modifiers(tags: Sequence[str]) -> list[str]:
    """Return the classes, with verbs inside a noun phrase as adjectives."""
    before, after = ["", *tags], [*tags[1:], ""]
    return [
        "ADJ" if tag == "VERB" and left in _BEFORE_PHRASE and right in _IN_PHRASE - {"PRON"} else tag
        for left, tag, right in zip(before, tags, after, strict=False)
    ]


def _phrases(tags: Sequence[str]) -> list[tuple[int, int, str, bool]]:
    """Return start, end and kind of each verb and noun phrase, and whether a preposition precedes it."""
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
