"""The text encoder of HGR: word states of a caption, and its role graph."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from openvse.encoders.role_graphs import (
    ACTION,
    ROLES,
    RoleGraph,
    graph_of_tags,
    key_of,
    read_role_graphs,
    tag_words,
    write_role_graphs,
)
from openvse.encoders.vocabulary import UNKNOWN
from openvse.encoders.word_splitters import split_words
from openvse.encoders.words_encoder import WordsEncoder
from openvse.errors import ModelError, RecipeError
from openvse.layers.recurrence import packed_gru
from openvse.types import Features, Graph, Inputs

_logger = logging.getLogger(__name__)

GRAPHS_FILE = "role_graphs.json.gz"
_MOST_NODES = 30
# A word is its id, 0 and the slots that it belongs to; a node is -1 - its role, its slot and the slots that it reads.
# Sets of slots are bits. So a caption with its graph is a sequence of whole numbers, as captions are everywhere.
_FIELDS = 3


class RoleGraphEncoder(WordsEncoder):
    """A bidirectional GRU over the words of a caption, with averaged directions, and the caption's role graph (HGR).

    The graph has the caption as its event, actions below the event, and entities below actions. It comes from the
    annotations that HGR's authors published, or from rules on word classes; a caption without one has only its event.
    A log line counts the three.

    Args:
        embed_dim: D, the width of each direction and of the local features.
        captions: all training captions, from which the vocabulary is built; if there are assets, only ``grow`` reads
            them.
        assets: a folder that ``save_assets`` wrote: its vocabulary and graphs are used, and no other file is read.
        grow: whether to add the words of the captions to the vocabulary of the assets, behind its own words.
        graphs: a file of role graphs in the format of HGR's authors (``sent2rolegraph.augment.json``).
        tagger: what tags the words of captions that the file does not have: ``perceptron``, the tagger of the package
            ``denckring-en-pos``, or ``none``, which leaves them with their event alone.
        max_actions: the number of actions that are read; 4 in the released code.
        max_entities: the number of entities that are read; 6 in the released code.
        min_count: the number of occurrences in the captions below which a word is unknown.
        word_dim: the width of a word embedding.
        word_vectors: a file of pretrained word vectors, or ``package:NAME``; see ``bigru``.
        freeze_words: whether to keep the initial word embeddings.
        max_words: the number of words of a caption that are read; 30 in the released code.

    Raises:
        ModelError: the assets are damaged, or the tagger is not installed.
        RecipeError: a number of nodes or words is out of range.
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
    ) -> None:
        super().__init__(min_count=min_count, boundaries=False, max_words=max_words)
        for name, count in (("max_actions", max_actions), ("max_entities", max_entities)):
            if not 1 <= count <= _MOST_NODES:
                raise RecipeError(f"{name} is {count}: give a number from 1 to {_MOST_NODES}")
        self.local_dim = embed_dim
        self.most, self.tagger = (max_actions, max_entities), tagger
        self.slots = 1 + 2 * max(max_actions, max_entities)
        self.read_vocabulary(captions, assets, grow=grow, split=split_words, nearest=False)
        self.make_words(word_dim, None if assets else word_vectors, freeze=freeze_words)
        self.gru = nn.GRU(word_dim, embed_dim, batch_first=True, bidirectional=True)
        file = Path(graphs) if graphs and assets is None else assets and assets / GRAPHS_FILE
        kept = file is not None and (assets is None or file.is_file())
        self.annotated = read_role_graphs(file) if file is not None and kept else {}
        if tagger != "none":
            tag_words(())  # a tagger that is not installed is refused at once

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
        if (found := self.annotated.get(key_of(caption))) is not None:
            return found, "annotated"
        words = split_words(caption)
        if self.tagger == "none":
            return RoleGraph(tuple(words)), "event alone"
        return graph_of_tags(words, tag_words(words)), "tagged"

    def pieces(self, caption: str) -> list[str]:
        """Return the words, and each node as its role with its words, such as ``V(runs)``; three times each."""
        graph, _ = self.graph_of(caption)
        words, nodes = self._read(graph)
        shown = [word for word, _ in words] or [""]
        names = [f"{ROLES[node.role]}({' '.join(graph.words[s] for s in node.spans)})" for node in nodes]
        return [piece for piece in (*shown, *names) for _ in range(_FIELDS)]

    def forward(self, inputs: Inputs) -> Features:
        """Encode captions: ``local [B, N, D]`` has a state for each word, and ``graph`` says what belongs together."""
        if inputs.mask is None or inputs.values.shape[1] % _FIELDS:
            raise ModelError(
                "captions came without a mask or not from tokenize: collate what tokenize returned"
            )
        rows = inputs.values.reshape(len(inputs), -1, _FIELDS)
        there = inputs.mask[:, ::_FIELDS]
        is_word, is_node = there & (rows[..., 0] >= 0), there & (rows[..., 0] < 0)
        length = int(is_word.sum(dim=1).max())
        mask = is_word[:, :length]
        embedded = self.words(rows[:, :length, 0].where(mask, 0))
        states = packed_gru(self.gru, embedded, mask)[0].mean(dim=0)
        return Features(states, mask, graph=self._graph(rows, mask, is_node))

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
        """Return the words that are read, each with the position that spans count, and the nodes with their slots."""
        words = [(part, place) for place, word in enumerate(graph.words) for part in split_words(word)]
        words = words[: self.max_words]
        seen = {place for _, place in words}
        nodes: list[_Placed] = []
        counts = [0, 0]
        for number, node in enumerate(graph.nodes):
            kind = int(node.role != ACTION)
            spans = tuple(place for place in node.spans if place in seen)
            if spans and counts[kind] < self.most[kind]:
                nodes.append(_Placed(node.role, spans, number, 1 + kind + 2 * counts[kind]))
                counts[kind] += 1
        return words, nodes

    def _rows(self, graph: RoleGraph) -> list[tuple[int, int, int]]:
        words, nodes = self._read(graph)
        slot_of = {node.number: node.slot for node in nodes}
        reads = {
            node.slot: int(node.role == ACTION) for node in nodes
        }  # an action reads the event, which is bit 0
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

    def __init__(self, role: int, spans: tuple[int, ...], number: int, slot: int) -> None:
        self.role, self.spans, self.number, self.slot = role, spans, number, slot


def _bits(sets: Int[Tensor, "*b"], count: int) -> Bool[Tensor, "*b S"]:
    """Return the bits of whole numbers, the lowest first."""
    places = torch.arange(count, device=sets.device)
    return (sets.unsqueeze(-1) >> places & 1).bool()
