"""A tiny WordNet in the format of its own files, for the tests of similarities."""

from collections import defaultdict
from pathlib import Path

# name of the sense: its words, and what it is a kind (or, with "@i", an instance) of
TAXONOMY: dict[str, tuple[list[str], list[tuple[str, str]]]] = {
    "entity": (["entity"], []),
    "object": (["object", "physical_object"], [("@", "entity")]),
    "thing": (["thing"], [("@", "entity")]),
    "artifact": (["artifact"], [("@", "object")]),
    "furniture": (["furniture"], [("@", "artifact")]),
    "seat": (["seat"], [("@", "furniture")]),
    "chair": (["chair"], [("@", "seat")]),
    "sofa": (["sofa", "Couch"], [("@", "seat")]),
    "table": (["table"], [("@", "furniture")]),
    "bench": (["bench"], [("@", "seat"), ("@", "object")]),
    "bin": (["bin", "garbage_bin"], [("@", "artifact")]),
    "person": (["person"], [("@", "object")]),
    "professor": (["professor", "chair"], [("@", "person")]),
    "woman": (["woman"], [("@", "person"), ("@", "thing")]),
    "man": (["man"], [("@", "person"), ("@", "thing")]),
    "foot": (["foot"], [("@", "object")]),
    "t-shirt": (["t-shirt"], [("@", "artifact")]),
    "Eames": (["Eames_chair"], [("@i", "chair")]),
    # a root of its own, which WordNet's nouns do not have
    "idea": (["idea"], []),
}

_LICENCE = "  1 This software and database is being provided to you, the LICENSEE  \n"


def write_wordnet(folder: Path, taxonomy: dict[str, tuple[list[str], list[tuple[str, str]]]] = TAXONOMY) -> Path:
    """Write ``index.noun``, ``data.noun`` and ``noun.exc``."""
    folder.mkdir(parents=True, exist_ok=True)
    offsets = dict.fromkeys(taxonomy, 0)
    for _ in range(2):  # lines have the same length whatever the offsets
        lines, at = [], len(_LICENCE)
        for name, (words, above) in taxonomy.items():
            offsets[name] = at
            spelled = " ".join(f"{word} 0" for word in words)
            pointers = "".join(f" {sign} {offsets[up]:08d} n 0000" for sign, up in above)
            line = f"{at:08d} 03 n {len(words):02x} {spelled} {len(above):03d}{pointers} | what it means  \n"
            lines.append(line)
            at += len(line)
    (folder / "data.noun").write_text(_LICENCE + "".join(lines))
    senses: defaultdict[str, list[int]] = defaultdict(list)
    for name, (words, _) in taxonomy.items():
        for word in words:
            senses[word.lower()].append(offsets[name])
    index = [
        f"{word} n {len(places)} 2 @ ~ {len(places)} 0 {' '.join(f'{place:08d}' for place in places)}  \n"
        for word, places in sorted(senses.items())
    ]
    (folder / "index.noun").write_text(_LICENCE + "".join(index))
    (folder / "noun.exc").write_text("feet foot\n")
    return folder
