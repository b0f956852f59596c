"""Role graphs of captions: their actions and entities, from the published annotations of HGR or from word classes."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openvse.errors import DataError, ModelError

ROLES = (
    *("V", "ARG1", "ARG0", "ARG2", "ARG3", "ARG4"),
    *("ARGM-LOC", "ARGM-MNR", "ARGM-TMP", "ARGM-DIR", "ARGM-ADV"),
    *("ARGM-PRP", "ARGM-PRD", "ARGM-COM", "ARGM-MOD", "NOUN"),
)
"""The semantic roles of HGR, in the order of its embeddings; any other role is read as NOUN."""

ACTION = 0
_OTHER = len(ROLES) - 1
_ROLE_IDS = {name: number for number, role in enumerate(ROLES) for name in (role, f"C-{role}", f"R-{role}")}


@dataclass(frozen=True)
class Node:
    """An action or an entity.

    Attributes:
        role: its position in ``ROLES``; ``ACTION`` for an action.
        spans: the positions of its words in the caption.
    """

    role: int
    spans: tuple[int, ...]


@dataclass(frozen=True)
class RoleGraph:
    """The graph of a caption, without the event, which is the whole caption and precedes each action.

    Attributes:
        words: the words that spans count.
        nodes: actions and entities.
        edges: pairs of an action and an entity, by their positions in ``nodes``.
    """

    words: tuple[str, ...]
    nodes: tuple[Node, ...] = ()
    edges: tuple[tuple[int, int], ...] = ()


def read_role_graphs(path: Path) -> dict[str, RoleGraph]:
    """Read role graphs in the format that the authors of HGR published (``sent2rolegraph.augment.json``).

    The file maps each sentence to a list of nodes and edges: a node has a ``role`` (ROOT, V, ARG0 ..) and the ``spans``
    of its words, counted in the sentence cut at spaces; an edge names the ids of two nodes and a role.

    Args:
        path: the file, plain or compressed by gzip.

    Returns:
        The graphs by ``key_of`` their sentences.

    Raises:
        DataError: the file cannot be read, or does not have this format.
    """
    try:
        raw = path.read_bytes()
        tree = json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)
        return {key_of(sentence): _graph(sentence, *graph) for sentence, graph in tree.items()}
    except OSError as error:
        raise DataError(f"role graphs {path} cannot be read ({error.strerror}): give a JSON file") from error
    except (ValueError, KeyError, TypeError, AttributeError, EOFError) as error:
        raise DataError(
            f"role graphs {path} are not in the format of HGR, {{sentence: [nodes, edges]}} ({error!r}): give its "
            f"sent2rolegraph file"
        ) from error


def write_role_graphs(path: Path, graphs: Mapping[str, RoleGraph]) -> None:
    """Write graphs in the same format, compressed; the same graphs give the same bytes."""
    tree = {
        " ".join(graph.words): [
            {
                str(place): {"role": ROLES[node.role], "spans": node.spans}
                for place, node in enumerate(graph.nodes)
            },
            [[str(action), str(entity), ""] for action, entity in graph.edges],
        ]
        for graph in graphs.values()
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(json.dumps(tree, ensure_ascii=False).encode(), mtime=0))


def key_of(caption: str) -> str:
    """Return what two spellings of a caption share: words in lower case, without a final period.

    Examples:
        >>> key_of("A dog  runs.") == key_of("a dog runs")
        True
    """
    return " ".join(caption.lower().split()).rstrip(" .")


def _graph(sentence: str, nodes: Mapping[str, Any], edges: Sequence[Sequence[str]]) -> RoleGraph:
    words = tuple(sentence.split())
    kept: dict[str, int] = {}
    made: list[Node] = []
    for name, node in nodes.items():
        spans = tuple(int(place) for place in node["spans"] if 0 <= int(place) < len(words))
        if node["role"] != "ROOT" and spans:
            kept[str(name)] = len(made)
            made.append(Node(_ROLE_IDS.get(node["role"], _OTHER), spans))
    pairs = [(kept[str(a)], kept[str(b)]) for a, b, *_ in edges if str(a) in kept and str(b) in kept]
    return RoleGraph(
        words,
        tuple(made),
        tuple((a, b) for a, b in pairs if made[a].role == ACTION and made[b].role != ACTION),
    )


def tag_words(words: Sequence[str]) -> list[str]:
    """Return the universal word class of each word (NOUN, VERB ..), by the tagger of ``denckring-en-pos``.

    Raises:
        ModelError: the tagger is not installed.
    """
    try:
        from denckring_en_pos import tagger
    except ImportError as error:
        raise ModelError(
            "graphs of captions without annotation need a tagger: pip install 'openvse[graphs]', or set tagger: none"
        ) from error
    return [str(label).partition("|")[0] for label in tagger().tag(list(words))] if words else []


_IN_PHRASE = {"ADJ", "NUM", "NOUN", "PROPN", "PRON"}
_BEFORE_PHRASE = {"DET", "ADJ", "ADP", "NUM"}
_HEADS = {"NOUN", "PROPN", "PRON"}


def graph_of_tags(words: Sequence[str], tags: Sequence[str]) -> RoleGraph:
    """Make a role graph from word classes by rules.

    Each verb is an action; auxiliaries are not, nor are verbs between an article, adjective or preposition and a noun
    ("a swimming pool"), which count as adjectives. Each longest run of adjectives, numerals, nouns and pronouns that
    ends in a noun or pronoun is an entity. An entity behind a preposition is a place (ARGM-LOC) of the action before
    it, or of the first one. Another entity before the first verb is the agent (ARG0) of that and all later verbs;
    one behind a verb is its patient (ARG1).

    What the rules cannot know: whether a preposition says where, how or of what; passives, whose patient they call the
    agent; relative clauses.

    Args:
        words: the words of a caption.
        tags: the universal class of each.
    """
    nodes: list[Node] = []
    edges: list[tuple[int, int]] = []
    agents: list[int] = []
    action: int | None = None
    waiting: list[int] = []  # entities before the first verb
    for start, end, kind, behind in _phrases(_without_modifiers(tags)):
        place = len(nodes)
        if kind == "VERB":
            nodes.append(Node(ACTION, (start,)))
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
    """Return the classes, with verbs that stand in a noun phrase as adjectives."""
    before, after = ["", *tags], [*tags[1:], ""]
    return [
        "ADJ" if tag == "VERB" and left in _BEFORE_PHRASE and right in _IN_PHRASE - {"PRON"} else tag
        for left, tag, right in zip(before, tags, after, strict=False)
    ]


def _phrases(tags: Sequence[str]) -> list[tuple[int, int, str, bool]]:
    """Return start, end and kind of each verb and noun phrase, and whether a preposition precedes it."""
    found: list[tuple[int, int, str, bool]] = []
    behind, place = False, 0
    while place < len(tags):
        if tags[place] == "VERB":
            found.append((place, place + 1, "VERB", False))
            behind = False
        elif tags[place] == "ADP":
            behind = True
        elif tags[place] in _IN_PHRASE:
            end = place
            while end < len(tags) and tags[end] in _IN_PHRASE:
                end += 1
            last = max((spot for spot in range(place, end) if tags[spot] in _HEADS), default=None)
            if last is not None:
                found.append((place, last + 1, "NOUN", behind))
            behind = False
            place = end
            continue
        place += 1
    return found
