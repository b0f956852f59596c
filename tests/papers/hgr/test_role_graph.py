"""Role graphs: the published format, the rules on word classes, and captions that carry their graph."""

import gzip
import json
import logging
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from openvse.errors import DataError, ModelError, RecipeError
from openvse.functional import pad
from openvse.types import Inputs
from openvse_papers.hgr import (
    ROLES,
    RoleGraphEncoder,
    graph_of_tags,
    key_of,
    read_role_graphs,
    tag_words,
    write_role_graphs,
)
from tests.naming import names, refusal

DOG = "a brown dog runs on grass and barks"
ANNOTATION = {
    DOG: [
        {
            "0": {"role": "ROOT", "spans": list(range(8)), "words": DOG.split()},
            "1": {"role": "V", "spans": [3]},
            "2": {"role": "ARG0", "spans": [0, 1, 2]},
            "3": {"role": "ARGM-LOC", "spans": [4, 5]},
            "4": {"role": "V", "spans": [7]},
            "5": {"role": "ARG0", "spans": [0, 1, 2]},
            "6": {"role": "ARG9", "spans": [5]},
        },
        [["0", "1", "V"], ["1", "2", "ARG0"], ["1", "3", "ARGM-LOC"], ["0", "4", "V"], ["4", "5", "ARG0"]],
    ]
}
CAPTIONS = ["A brown dog runs on grass and barks.", "two cats", "the dog", ""]


@pytest.fixture
def annotation(tmp_path: Path) -> str:
    path = tmp_path / "sent2rolegraph.json"
    path.write_text(json.dumps(ANNOTATION))
    return str(path)


def made(**options: Any) -> RoleGraphEncoder:
    torch.manual_seed(0)
    return RoleGraphEncoder(embed_dim=6, word_dim=4, min_count=1, **{"captions": CAPTIONS, **options}).eval()


def test_the_published_format_is_read(annotation: str, tmp_path: Path) -> None:
    graph = read_role_graphs(Path(annotation))[key_of(CAPTIONS[0])]
    assert [(ROLES[node.role], node.spans) for node in graph.nodes] == [
        ("V", (3,)),
        ("ARG0", (0, 1, 2)),
        ("ARGM-LOC", (4, 5)),
        ("V", (7,)),
        ("ARG0", (0, 1, 2)),
        ("NOUN", (5,)),  # a role that HGR has no embedding for
    ]
    assert graph.edges == ((0, 1), (0, 2), (3, 4))
    packed = tmp_path / "graphs.json.gz"
    packed.write_bytes(gzip.compress(Path(annotation).read_bytes()))
    assert read_role_graphs(packed)[key_of(DOG)] == graph


def test_a_continued_verb_is_an_entity_with_the_role_of_verbs(tmp_path: Path) -> None:
    """As in HGR's release: only V is an action; C-V keeps its edge. A saved model reads its graphs alike."""
    path, said = tmp_path / "graphs.json", "a boy takes his red shoes off"
    nodes = {
        "0": {"role": "ROOT", "spans": [0]},
        "1": {"role": "V", "spans": [2]},
        "2": {"role": "C-V", "spans": [6]},
        "3": {"role": "R-V", "spans": [5]},
        "4": {"role": "C-ARG1", "spans": [4]},
    }
    path.write_text(json.dumps({said: [nodes, [["0", "1", ""], ["1", "2", ""], ["1", "3", ""], ["2", "4", ""]]]}))
    graph = read_role_graphs(path)[said]
    roles = [(node.role, node.action) for node in graph.nodes]
    assert roles == [(0, True), (0, False), (0, False), (1, False)]
    assert graph.edges == ((0, 1), (0, 2))
    write_role_graphs(tmp_path / "again.json.gz", {said: graph})
    assert read_role_graphs(tmp_path / "again.json.gz")[said] == graph
    encoder = made(graphs=str(path), max_actions=2, max_entities=3)
    slots = encoder(pad(encoder.tokenize([said]))).graph
    assert slots is not None
    assert slots.members[0].any(dim=1).tolist() == [True, True, True, False, True, False, True]
    assert slots.roles[0].tolist() == [0, 0, 0, 0, 0, 0, 1]
    assert sorted(map(tuple, slots.edges[0].nonzero().tolist())) == [(1, 0), (1, 2), (1, 4), (2, 1), (4, 1)]


@pytest.mark.parametrize("content", ["[1]", "{", '{"a dog": [{"1": {"spans": [0]}}, []]}', '{"a dog": [1]}'])
def test_other_files_are_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "graphs.json").write_text(content)
    assert names(refusal(DataError, read_role_graphs, tmp_path / "graphs.json"), "graphs.json")
    assert names(refusal(DataError, read_role_graphs, tmp_path / "gone.json"), "gone.json")


@pytest.mark.parametrize(
    ("tagged", "nodes", "edges"),
    [
        (
            "a/DET brown/ADJ dog/NOUN is/AUX running/VERB on/ADP wet/ADJ grass/NOUN",
            [("ARG0", "brown dog"), ("V", "running"), ("ARGM-LOC", "wet grass")],
            {("running", "brown dog"), ("running", "wet grass")},
        ),
        (
            "a/DET man/NOUN in/ADP red/ADJ and/CCONJ a/DET boy/NOUN throw/VERB balls/NOUN and/CCONJ laugh/VERB",
            [("ARG0", "man"), ("ARG0", "boy"), ("V", "throw"), ("ARG1", "balls"), ("V", "laugh")],
            {("throw", "man"), ("throw", "boy"), ("throw", "balls"), ("laugh", "man"), ("laugh", "boy")},
        ),
        (
            "two/NUM boys/NOUN at/ADP a/DET swimming/VERB pool/NOUN",
            [("ARG0", "two boys"), ("ARGM-LOC", "swimming pool")],
            set(),
        ),
        ("red/ADJ and/CCONJ blue/ADJ", [], set()),
    ],
)
def test_rules_make_a_graph(tagged: str, nodes: list[Any], edges: set[Any]) -> None:
    words, tags = zip(*(pair.split("/") for pair in tagged.split()), strict=True)
    graph = graph_of_tags(words, tags)
    names = [" ".join(words[place] for place in node.spans) for node in graph.nodes]
    assert [(ROLES[node.role], name) for node, name in zip(graph.nodes, names, strict=True)] == nodes
    assert {(names[action], names[entity]) for action, entity in graph.edges} == edges
    assert all(graph.nodes[action].action for action, _ in graph.edges)


def test_the_slots_hold_the_graph(annotation: str) -> None:
    """Event, then alternately actions and entities; an action reads the event, and edges go both ways."""
    encoder = made(graphs=annotation, max_actions=2, max_entities=3)
    graph = encoder(pad(encoder.tokenize(CAPTIONS))).graph
    assert graph is not None
    members = [sorted(row.nonzero().flatten().tolist()) for row in graph.members[0]]
    assert members == [list(range(8)), [3], [0, 1, 2], [7], [4, 5], [], [0, 1, 2]]
    assert graph.roles[0].tolist() == [0, 0, 2, 0, 6, 0, 2]
    edges = sorted(map(tuple, graph.edges[0].nonzero().tolist()))
    assert edges == [(1, 0), (1, 2), (1, 4), (2, 1), (3, 0), (3, 6), (4, 1), (6, 3)]
    assert graph.members[1:, 1:].any() == graph.edges[1:].any() == False  # noqa: E712 - captions with their event alone


def test_padding_and_batch_mates_mean_nothing(annotation: str) -> None:
    encoder = made(graphs=annotation)
    tokens = encoder.tokenize(CAPTIONS)
    together = encoder(pad(tokens))
    dirty = Inputs(torch.nn.utils.rnn.pad_sequence(tokens, batch_first=True, padding_value=3), pad(tokens).mask)
    for row, ids in enumerate(tokens):
        alone = encoder(pad([ids]))
        length = alone.local.shape[1]
        for batch in (together, encoder(dirty)):
            torch.testing.assert_close(batch.local[row, :length], alone.local[0])
            assert int(batch.mask[row].sum()) == length
            assert torch.equal(batch.graph.members[row, :, :length], alone.graph.members[0])  # type: ignore[union-attr]
            assert not batch.graph.members[row, :, length:].any()  # type: ignore[union-attr]
            assert torch.equal(batch.graph.edges[row], alone.graph.edges[0])  # type: ignore[union-attr]


def test_the_states_are_those_of_the_bigru() -> None:
    from openvse.encoders import BiGRU

    encoder = made()
    plain = BiGRU(embed_dim=6, captions=CAPTIONS, word_dim=4, min_count=1, boundaries=False).eval()
    plain.load_state_dict(encoder.state_dict())
    torch.testing.assert_close(
        encoder(pad(encoder.tokenize(CAPTIONS))).local, plain(pad(plain.tokenize(CAPTIONS))).local
    )


def test_dropout_takes_features_of_word_embeddings(annotation: str) -> None:
    """As in HGR's release: before the GRU, at the scale 1 / (1 - p); what the GRU returns is not dropped."""
    encoder = made(graphs=annotation, dropout=0.5)
    inputs = pad(encoder.tokenize(CAPTIONS))
    assert torch.equal(encoder(inputs).local, made(graphs=annotation)(inputs).local)
    encoder.train()
    torch.manual_seed(1)
    dropped = encoder(inputs).local
    rows = inputs.values.reshape(len(inputs), -1, 3)
    there = inputs.mask[:, ::3] & (rows[..., 0] >= 0)  # type: ignore[index]
    torch.manual_seed(1)
    words = encoder.words(rows[:, : dropped.shape[1], 0].where(there[:, : dropped.shape[1]], 0))
    words = torch.nn.functional.dropout(words, 0.5)
    for row, length in enumerate(there.sum(dim=1).tolist()):
        states = encoder.gru(words[row : row + 1, :length])[0].unflatten(2, (2, -1)).mean(dim=2)
        torch.testing.assert_close(dropped[row, :length], states[0])
    assert names(refusal(RecipeError, made, dropout=1.0), "dropout", "1")


def test_the_start_of_hgr_is_orthogonal() -> None:
    torch.manual_seed(0)
    encoder = RoleGraphEncoder(embed_dim=6, word_dim=25, min_count=1, captions=CAPTIONS, gru_start="orthogonal")
    for name, weight in encoder.gru.named_parameters():
        if name.startswith("bias"):
            assert not weight.any()
        else:
            square = weight @ weight.T if weight.shape[0] < weight.shape[1] else weight.T @ weight
            torch.testing.assert_close(square, torch.eye(len(square)))
    assert 0.15 < float(encoder.words.weight.abs().max()) <= 0.2  # 1 / sqrt(25)


def test_assets_are_all_that_a_model_needs(annotation: str, tmp_path: Path) -> None:
    saved = made(graphs=annotation)
    saved.save_assets(tmp_path / "assets")
    loaded = made(graphs="gone.json", captions=(), assets=tmp_path / "assets")
    assert [ids.tolist() for ids in loaded.tokenize(CAPTIONS)] == [ids.tolist() for ids in saved.tokenize(CAPTIONS)]
    first = (tmp_path / "assets" / "role_graphs.json.gz").read_bytes()
    loaded.save_assets(tmp_path / "again")
    assert (tmp_path / "again" / "role_graphs.json.gz").read_bytes() == first
    assert len(saved.pieces(CAPTIONS[0])) == len(saved.tokenize(CAPTIONS[:1])[0])


def test_a_log_line_counts_the_captions(annotation: str, monkeypatch: Any, caplog: Any) -> None:
    classes = {"two": "NUM|-", "cats": "NOUN|-", "the": "DET|-", "dog": "NOUN|-"}
    tagger = SimpleNamespace(tag=lambda words: [classes.get(word, "X|-") for word in words])
    monkeypatch.setitem(sys.modules, "denckring_en_pos", SimpleNamespace(tagger=lambda: tagger))
    encoder = made(graphs=annotation, tagger="perceptron")
    with caplog.at_level(logging.INFO, logger="openvse"):
        encoder.tokenize(CAPTIONS)
    assert re.search("4.*1.*2.*1", caplog.text)


def test_a_missing_tagger_and_odd_numbers_are_refused(monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "denckring_en_pos", None)
    assert names(refusal(ModelError, made, tagger="perceptron"), "pip install")
    assert names(refusal(RecipeError, made, max_actions=0), "max_actions", "0")


@pytest.mark.medium
def test_the_tagger_of_the_extra_knows_word_classes() -> None:
    tags = tag_words(["a", "man", "rides", "a", "brown", "horse"])
    assert tags == ["DET", "NOUN", "VERB", "DET", "ADJ", "NOUN"]
