"""Checks of images in your own data: which are broken, equal or look alike, also across splits."""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from openvse.corpus.corpus import Corpus
from openvse.corpus.splits import LEAKAGE
from openvse.datasets.finding import Finding
from openvse.datasets.near_duplicates import Look, look_of, near_pairs
from openvse.errors import OpenVSEError
from openvse.media.images import read_image
from openvse.media.names import escaped
from openvse.media.packed import ImageFile
from openvse.media.videos import is_video, read_poster
from openvse.types import OnProgress

_AT_ONCE = 256


@dataclass(frozen=True)
class Decoded:
    """An image that was decoded.

    Attributes:
        digest: the hash of its bytes; "" if it is broken.
        look: its appearance; None if it is broken.
        reason: why it is broken.
    """

    digest: bytes
    look: Look | None
    reason: str = ""


def check_images(corpus: Corpus, progress: OnProgress | None = None) -> list[Finding]:
    """Decode all images of a corpus, and report broken ones, duplicates and leakage.

    Args:
        corpus: the images; for a clip, its middle frame is checked.
        progress: a function that is called after every image.
    """
    seen: list[Decoded] = []
    for image in _decoded(corpus.image_paths):
        seen.append(image)
        if progress is not None:
            progress("decoding images", len(seen), len(corpus))
    same = _same(seen)
    near = _near(seen)
    return [
        _broken(corpus, seen),
        *_twice(corpus, same, "the same", exact=True),
        *_twice(corpus, near, "alike", exact=False),
    ]


def decode(image: ImageFile) -> Decoded:
    """Decode one image, and hash its bytes."""
    try:
        content = image.read_bytes()
        poster = read_poster(image) if is_video(image.name) else read_image(content)
    except OSError as error:
        return Decoded(b"", None, error.strerror or "it cannot be read")
    except OpenVSEError as error:
        return Decoded(b"", None, str(error).partition(": ")[2] or str(error))
    return Decoded(hashlib.blake2b(content, digest_size=16).digest(), look_of(poster))


def _decoded(images: Sequence[ImageFile]) -> Iterator[Decoded]:
    """Yield the images in their order; decoders release Python's lock, so threads share the work."""
    with ThreadPoolExecutor(
        os.process_cpu_count() if hasattr(os, "process_cpu_count") else os.cpu_count()
    ) as pool:
        for start in range(0, len(images), _AT_ONCE):
            yield from pool.map(decode, images[start : start + _AT_ONCE])


def _same(seen: Sequence[Decoded]) -> list[tuple[int, int]]:
    """Return pairs of images with equal bytes: the first one with each of the others."""
    first: dict[bytes, int] = {}
    pairs = []
    for number, image in enumerate(seen):
        if image.look is not None:
            earlier = first.setdefault(image.digest, number)
            if earlier != number:
                pairs.append((earlier, number))
    return pairs


def _near(seen: Sequence[Decoded]) -> list[tuple[int, int]]:
    """Return pairs of images that look alike and have different bytes."""
    distinct: dict[bytes, int] = {}
    for number, image in enumerate(seen):
        if image.look is not None:
            distinct.setdefault(image.digest, number)
    numbers = list(distinct.values())
    looks = [look for number in numbers if (look := seen[number].look) is not None]
    return [(numbers[one], numbers[other]) for one, other in near_pairs(looks)]


def _broken(corpus: Corpus, seen: Sequence[Decoded]) -> Finding:
    cases = tuple(
        f"{escaped(name)}: {image.reason}"
        for name, image in zip(corpus.image_ids, seen, strict=True)
        if image.look is None
    )
    if not cases:
        return Finding(True, f"all {len(seen):,} images decode")
    return Finding(False, f"{len(cases):,} of {len(seen):,} images are broken", cases=cases)


def _twice(corpus: Corpus, pairs: Sequence[tuple[int, int]], how: str, *, exact: bool) -> list[Finding]:
    """Report pairs within a split, and separately those in two splits, which are leakage."""
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
    if exact and not leaked:
        findings.append(Finding(True, f"{LEAKAGE}: no two splits share a file"))
    if leaked:
        text = f"{LEAKAGE}: {len(leaked):,} pair(s) of images in two splits are {how}"
        findings.append(Finding(not exact, text, note=not exact, cases=leaked))
    if within:
        findings.append(
            Finding(True, f"{len(within):,} pair(s) of images are {how}", note=True, cases=within)
        )
    elif not leaked:
        findings.append(Finding(True, f"no two images are {how}"))
    return findings
