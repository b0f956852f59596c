"""Checks of a copy of a data set or of your own data, and their contents in numbers, as in PVSE's Table 1.

Files, counts, splits, images, captions and leakage are checked.
"""

from __future__ import annotations

import inspect
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from openvse.corpus.corpus import Corpus, long_captions
from openvse.corpus.facts import Facts, Form
from openvse.corpus.splits import LEAKAGE, SPLITS, canonical_split, shared_files
from openvse.datasets.registry import DATASETS, open_corpus, parse_source
from openvse.errors import DataError
from openvse.features.arrays import ArrayFeatures
from openvse.media.listing import Problem
from openvse.media.names import escaped
from openvse.media.near_duplicates import SeenImage, duplicate_pairs, see_images
from openvse.output.table import Cell, Table
from openvse.specs.load import read_recipe
from openvse.tokenization.vocabulary import split_words
from openvse.types import OnProgress

_NO_LEAKAGE = f"{LEAKAGE}: no two splits share a file"
_SHORT_LETTERS = 3  # captions with fewer letters carry almost no information


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        mark: the beginning of the line: "ok", "note" for information, or "WRONG" for a fault.
        text: the rest of the line.
        cases: the cases that it covers, one line each.
    """

    mark: Literal["ok", "note", "WRONG"]
    text: str
    cases: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """True unless it is a fault."""
        return self.mark != "WRONG"


def check_data(
    source: str | Path, *, quick: bool = False, allow_outside: bool = False, progress: OnProgress | None = None
) -> list[Finding]:
    """Check a copy of a published data set for completeness, and your own data for faults that harm training.

    For a published data set, each piece and fact gives a finding. A missing piece's finding has its size, source and
    terms. In your own data, faults are data that do not open, captions without their image, broken images, and files
    that are in two splits. Everything else is a note.

    Args:
        source: the data, as for ``open_corpus``. A published data set is ``NAME:ROOT``.
        quick: whether to skip checks that read whole files: for published data, the search for equal files in two
            splits and for features that are not finite, and for your own data, decoding the images. Your own files in
            two splits are still found.
        progress: a function to call while files are read.

    Raises:
        RecipeError: the name of a data set is unknown.
        OpenVSEError: a package that the data need is not installed.
    """
    name, root = parse_source(source)
    if name:
        DATASETS.get(name)  # there is such a data set
    if facts := DATASETS.facts(name):
        return _published(facts, root, quick, progress)
    try:
        corpus = open_corpus(source, allow_outside=allow_outside)
    except DataError as error:
        return [Finding("WRONG", str(error))]
    findings = [Finding("ok", _summary(corpus)), *_enough(corpus)]
    findings += [_problem(problem, fault=getattr(problem, "fault", False)) for problem in corpus.problems]
    findings += _long_captions(corpus)
    findings += [_leakage(corpus, progress)] if quick else _images(corpus, progress)
    return [*findings, _identical_captions(corpus), _short_captions(corpus)]


_FOUND = {0: 121, 20: 121, 50: 146, 100: 167, 200: 198, 400: 226, 800: 262, 2000: 297, 6000: 338}
"""RSUM on the 1,000 test images of Flickr8k, by the number of images with captions (``docs/names.md``)."""


def more_captions(images: int) -> str:
    """Say what captions of more images would bring, from what they bring on Flickr8k."""
    known = np.interp(np.log1p(images), np.log1p(list(_FOUND)), list(_FOUND.values()))
    now = f"on Flickr8k, RSUM is {known:.0f} of 600 from {images:,} captioned images"
    more = next((each for each in _FOUND if each > max(1.25 * images, 20 + images)), None)
    return (
        f"{now}: more were not measured" if more is None else f"more captions help: {now}, {_FOUND[more]} from {more:,}"
    )


def _enough(corpus: Corpus) -> list[Finding]:
    """Compare the number of training images with the number from which the recipe ``folder`` trains networks."""
    count = corpus.split_labels().count("train")
    least = max(phase.get("least_images", 0) for phase in read_recipe("folder")["training"]["phases"])
    what = "trains" if count >= least else "only solves its closed form"
    text = f"{count:,} images for training, with which the recipe folder {what}: it trains with {least:,} or more"
    return [Finding("ok", text), Finding("ok", more_captions(count))]


def describe_data(name: str) -> str:
    """Return the facts of a data set, or its loader's docstring. Raise RecipeError if the name is unknown."""
    opener, facts = DATASETS.loader(name), DATASETS.facts(name)
    if facts:
        return facts.describe()
    reads = (inspect.getdoc(opener) or "").partition("\nArgs:")[0]
    return f"{name}: {reads.strip().replace('``', '')}"


def _published(facts: Facts, root: Path, quick: bool, progress: OnProgress | None) -> list[Finding]:
    """Compare a copy with the facts of its data set."""
    findings = _pieces(facts, root)
    missing = [piece for piece in facts.pieces if piece.required and not piece.find(root)]
    has_images = not any(piece.media for piece in missing)
    try:
        corpus = open_corpus(f"{facts.name}:{root}", require_images=has_images)
    except DataError as error:
        if all(piece.media for piece in missing):  # otherwise the findings say why
            findings.append(Finding("WRONG", str(error)))
    else:
        findings += _contents(corpus, facts)
        if not quick and has_images and corpus.features is None:
            findings.append(_leakage(corpus, progress))
        if not quick and isinstance(corpus.features, ArrayFeatures):
            findings += _features(corpus.features)
    if not all(finding.ok for finding in findings):
        findings.append(Finding("note", f"terms: {facts.licence}"))
    return findings


def _pieces(facts: Facts, root: Path) -> list[Finding]:
    findings = []
    for piece in facts.pieces:
        if path := piece.find(root):
            findings.append(Finding("ok", f"{piece.what}: {path}"))
        else:
            text = f"{piece.what}: none of {', '.join(piece.paths)} in {root}: get {piece.source}"
            findings.append(Finding("WRONG" if piece.required else "note", text))
    return findings


def _contents(corpus: Corpus, facts: Facts) -> list[Finding]:
    """Compare the opened data with the facts."""
    counts = _facts(corpus, facts) if facts.forms else [Finding("ok", _summary(corpus))]
    # The original list of Flickr8k names a missing image: with the right counts this is not a fault.
    complete = all(finding.ok for finding in counts)
    counts += _long_captions(corpus)
    return counts + [_problem(each, fault=not complete or each.startswith(LEAKAGE)) for each in corpus.problems]


def _problem(problem: str, *, fault: bool) -> Finding:
    """Return a problem of opening the data, with all its cases."""
    mark: Literal["note", "WRONG"] = "WRONG" if fault else "note"
    if isinstance(problem, Problem):
        return Finding(mark, problem.summary, problem.cases)
    return Finding(mark, problem)


def _facts(corpus: Corpus, facts: Facts) -> list[Finding]:
    """Compare a corpus with the nearest published form."""
    copy = _form(corpus)
    have = *copy.splits, copy.outside
    form = min(facts.forms, key=lambda form: np.abs(np.subtract((*form.splits, form.outside), have)).sum())
    findings = [
        _count(facts.items, copy.num_items, form.num_items, form, shrinks=facts.shrinks),
        _count(facts.texts, copy.num_captions, form.num_captions, form, shrinks=facts.shrinks),
    ]
    findings += [
        _count(split, have, expected, form, shrinks=facts.shrinks)
        for split, have, expected in zip(SPLITS, copy.splits, form.splits, strict=True)
    ]
    if facts.captions_each is not None:
        counts = np.bincount(corpus.relevance.images, minlength=len(corpus))
        uneven = np.flatnonzero(counts != facts.captions_each).tolist()
        text = f"captions of each of the {facts.items}: {facts.captions_each}"
        if uneven:
            text += f" expected, {len(uneven):,} have another number"
        cases = tuple(f"{corpus.image_ids[number]} with {counts[number]}" for number in uneven)
        findings.append(Finding("WRONG" if uneven else "ok", text, cases))
    return [*findings, *(_ends(corpus, split, *ends) for split, ends in form.ends.items())]


def _form(corpus: Corpus) -> Form:
    in_split = Counter(corpus.splits)
    train, validation, test = (in_split[split] for split in SPLITS)
    return Form(corpus.name, (train, validation, test), len(corpus.captions), in_split[""])


def _count(what: str, counted: int, expected: int, form: Form, *, shrinks: bool) -> Finding:
    if counted == expected:
        return Finding("ok", f"{what}: {counted:,}")
    vanished = shrinks and 0 < counted < expected
    reason = "; what is missing is no longer published" if vanished else f" ({form.name})"
    return Finding("note" if vanished else "WRONG", f"{what}: {counted:,}, expected {expected:,}{reason}")


def _ends(corpus: Corpus, split: str, first: str, last: str) -> Finding:
    """Compare the first and last identifier of a split."""
    ids = [item for item, where in zip(corpus.image_ids, corpus.splits, strict=True) if split in ("", where)]
    ends = (min(ids, default="nothing"), max(ids, default="nothing"))
    text = f"identifiers{f' of {split}' if split else ''}: {ends[0]} to {ends[1]}"
    ok = ends == (first, last)
    return Finding("ok" if ok else "WRONG", text if ok else f"{text}, expected {first} to {last}")


def _summary(corpus: Corpus) -> str:
    """Count items, captions and splits. Without stated splits, it counts the splits that training takes."""
    form, labels = _form(corpus), Counter(corpus.split_labels())
    counts = f"{form.num_items:,} items, {form.num_captions:,} captions; "
    splits = " / ".join(f"{labels[split]:,}" for split in SPLITS)
    if form.outside == labels[""]:
        return f"{counts}splits {splits}, in no split {form.outside:,}"
    if any(corpus.splits):
        return f"{counts}some splits are stated, a hash of the names of the others makes {splits}"
    return f"{counts}no splits are stated, a hash of the names makes {splits}"


def _features(features: ArrayFeatures) -> list[Finding]:
    """Read all features, and report their shape and faults."""
    shapes = [
        f"{part.rows.path.name} {list(part.rows.shape)}, {part.repeats} row(s) an image" for part in features.parts
    ]
    return [Finding("ok", f"features: {'; '.join(shapes)}"), *(Finding("WRONG", fault) for fault in features.faults())]


def _leakage(corpus: Corpus, progress: OnProgress | None) -> Finding:
    """Look for equal files in two splits."""
    shared = shared_files(corpus.image_ids, corpus.image_paths, corpus.split_labels(), progress=progress)
    return _problem(shared[0], fault=True) if shared else Finding("ok", _NO_LEAKAGE)


def leakage_between_splits(corpus: Corpus, split: str = "") -> tuple[Problem, ...]:
    """Return a line about equal files in different splits that the data state, as ``check_data`` finds them.

    The split by hash keeps equal files together. Published data have the splits of their papers.

    Args:
        corpus: all splits of the data.
        split: the split to evaluate. Only its images count. "" or "all" takes all.
    """
    if DATASETS.facts(corpus.name) or not any(corpus.splits):
        return ()
    about = canonical_split(split) if split not in ("", "all") else ""
    return shared_files(corpus.image_ids, corpus.image_paths, corpus.splits, about=about)


def _long_captions(corpus: Corpus) -> list[Finding]:
    remark = long_captions(corpus.captions)
    return [Finding("note", remark)] if remark else []


def _identical_captions(corpus: Corpus) -> Finding:
    """Count captions that several images share: training treats the other images as wrong answers."""
    images: defaultdict[str, set[int]] = defaultdict(set)
    for image, text in zip(corpus.relevance.images.tolist(), corpus.relevance.texts.tolist(), strict=True):
        images[corpus.captions[text].casefold()].add(image)
    shared = sorted((each for each in images.items() if len(each[1]) > 1), key=lambda each: -len(each[1]))
    if not shared:
        return Finding("ok", "no two images have the same caption")
    count = len(set().union(*(owners for _, owners in shared)))
    return Finding(
        "note",
        f"{count:,} of {len(corpus):,} images share a caption with another one ({len(shared):,} captions)",
        cases=tuple(f"{len(owners)} images: {escaped(caption)}" for caption, owners in shared),
    )


def _short_captions(corpus: Corpus) -> Finding:
    """Count captions with very few letters. Empty ones are skipped and counted when a corpus is opened."""
    pairs = zip(corpus.relevance.images.tolist(), corpus.relevance.texts.tolist(), strict=True)
    cases = tuple(
        f"{escaped(corpus.image_ids[image])}: {escaped(corpus.captions[text])}"
        for image, text in pairs
        if sum(map(str.isalnum, corpus.captions[text])) < _SHORT_LETTERS
    )
    if not cases:
        return Finding("ok", f"no caption has fewer than {_SHORT_LETTERS} letters")
    return Finding("note", f"{len(cases):,} caption(s) have fewer than {_SHORT_LETTERS} letters", cases)


def _images(corpus: Corpus, progress: OnProgress | None) -> list[Finding]:
    """Decode all images, or the middle frames of clips, and report broken ones, duplicates and leakage."""
    seen = see_images(corpus.image_paths, partial(progress, "decoding images") if progress else None)
    head: dict[int, int] = {}  # the image that stands for a group of images that look alike
    same, alike = duplicate_pairs(seen, lambda one, other: head.get(one, one) != head.get(other, other))
    pairs = []
    for one, other in alike:
        pairs.append((one, other))
        head.setdefault(other, head.get(one, one))
    return [
        _broken(corpus, seen),
        _leakage(corpus, None),
        *_twice(corpus, same, "the same", exact=True),
        *_twice(corpus, pairs, "alike", exact=False),
    ]


def _broken(corpus: Corpus, seen: Sequence[SeenImage]) -> Finding:
    cases = tuple(
        f"{escaped(name)}: {image.reason}"
        for name, image in zip(corpus.image_ids, seen, strict=True)
        if image.look is None
    )
    if not cases:
        return Finding("ok", f"all {len(seen):,} images decode")
    return Finding("WRONG", f"{len(cases):,} of {len(seen):,} images are broken", cases)


def _twice(corpus: Corpus, pairs: Sequence[tuple[int, int]], how: str, *, exact: bool) -> list[Finding]:
    """Report pairs within a split, and separately leakage, which is pairs across two splits."""
    splits = corpus.split_labels()
    by_kind: defaultdict[bool, list[str]] = defaultdict(list)
    for one, other in pairs:
        leaks = splits[one] != splits[other] and bool(splits[one]) and bool(splits[other])
        names = [escaped(corpus.image_ids[number]) for number in (one, other)]
        if leaks:
            names = [f"{name} ({splits[number]})" for name, number in zip(names, (one, other), strict=True)]
        by_kind[leaks].append(" = ".join(names) if exact else " ~ ".join(names))
    leaked, within = tuple(by_kind[True]), tuple(by_kind[False])
    findings = []
    if leaked and not exact:
        text = f"{LEAKAGE}: {len(leaked):,} pair(s) of images in two splits are {how}"
        findings.append(Finding("note", text, leaked))
    if within:
        findings.append(Finding("note", f"{len(within):,} pair(s) of images are {how}", within))
    elif not leaked:
        findings.append(Finding("ok", f"no two images are {how}"))
    return findings


COLUMNS = ("split", "items", "sentences", "per item", "words", "per sentence", "longest", "vocabulary")


def data_statistics(corpus: Corpus) -> Table:
    """Count a data set: one row for each split, and one for all.

    Items are images, videos or other clips. Words are the runs of letters and digits of a sentence in lower case, and
    the vocabulary is the number of different ones, however rare. A tokenizer that keeps punctuation counts more.
    The sentences of a set of questions are its questions.
    """
    labels = corpus.split_labels()
    there = [name for name in ("train", "validation", "test") if name in labels]
    rows = [_row(name, corpus.split(name)) for name in there]
    return Table(COLUMNS, [*rows, _row("all", corpus)], ruled=frozenset({len(rows)}))


def _row(name: str, corpus: Corpus) -> list[Cell]:
    sentences = [split_words(caption) for caption in corpus.captions]
    lengths, known = [len(words) for words in sentences], {word for words in sentences for word in words}
    per_item, total = len(corpus.relevance.texts) / max(len(corpus), 1), sum(lengths)
    about_words = total, total / max(len(sentences), 1), max(lengths, default=0), len(known)
    return [name, len(corpus), len(sentences), per_item, *about_words]
