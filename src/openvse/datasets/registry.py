"""The data sets by name: the contract of a loader, and the registries. A new one takes a file and one line here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Protocol, runtime_checkable

from openvse.corpus.corpus import Corpus
from openvse.corpus.facts import Facts
from openvse.corpus.questions import QuestionSet
from openvse.datasets.clips import (
    MRW,
    MSR_VTT,
    MSR_VTT_1K_A,
    MSVD,
    TGIF,
    VATEX,
    open_mrw,
    open_msr_vtt,
    open_msr_vtt_1k_a,
    open_msvd,
    open_tgif,
    open_vatex,
)
from openvse.datasets.coco import COCO, open_coco
from openvse.datasets.daquar import DAQUAR, open_daquar
from openvse.datasets.flickr import FLICKR8K, FLICKR8K_LAYOUT, FLICKR30K, FLICKR30K_LAYOUT
from openvse.datasets.folder import open_folder
from openvse.datasets.hf import open_hf
from openvse.datasets.openmoji import open_openmoji
from openvse.datasets.parquet import open_parquet
from openvse.datasets.precomputed import PRECOMPUTED, open_precomputed
from openvse.datasets.question_folder import open_question_folder
from openvse.datasets.sidecars import open_sidecars
from openvse.datasets.table import open_table
from openvse.datasets.vqa2 import VQA2, open_vqa2
from openvse.datasets.webdataset import open_webdataset
from openvse.errors import RecipeError
from openvse.registry import Registry


@runtime_checkable
class Loader(Protocol):
    """A function that opens a data set."""

    def __call__(self, root: Path, /, *, require_images: bool) -> Corpus | QuestionSet:
        """Return the data at a place: images or clips with captions, or questions about images.

        Args:
            root: the folder or file of the data set.
            require_images: whether to leave out images without a file. False if stored features replace the files.

        Raises:
            DataError: the data are missing or cannot be used.
        """
        ...


class DataSets(Registry[Corpus | QuestionSet]):
    """Data sets by name: the loader of each, and the facts of published ones.

    To add your own data set, put one line in your own file: ``DATASETS.add("mine", open_mine)``. With ``facts=MINE``,
    ``openvse list data`` and ``openvse data check`` describe and check it like the built-in ones.

    Args:
        known: by name, the loader of each built-in data set, and the facts of its published copy if there are any.

    Raises:
        RecipeError: the name in the facts differs from the name of the data set.
    """

    listed_by: ClassVar[str] = "openvse list data"

    def __init__(self, known: Mapping[str, tuple[Loader, Facts | None]]) -> None:
        super().__init__("data set", {})
        self.facts: dict[str, Facts] = {}
        for name, (loader, facts) in known.items():
            self.add(name, loader, facts=facts)

    def add(self, name: str, part: Loader, *, facts: Facts | None = None) -> None:
        """Register a loader under a name, with the facts of the published copy, which have the same name."""
        if facts is not None and facts.name != name:
            raise RecipeError(
                f"{self.kind} {name!r} comes with the facts of {facts.name!r}: give both one name"
            )
        super().add(name, part)
        if facts is not None:
            self.facts[name] = facts


DATASETS = DataSets(
    {
        "coco": (open_coco, COCO),
        "daquar": (open_daquar, DAQUAR),
        "hf": (open_hf, None),
        "flickr30k": (FLICKR30K_LAYOUT.open, FLICKR30K),
        "flickr8k": (FLICKR8K_LAYOUT.open, FLICKR8K),
        "folder": (open_folder, None),
        "mrw": (open_mrw, MRW),
        "msr_vtt": (open_msr_vtt, MSR_VTT),
        "msr_vtt_1k_a": (open_msr_vtt_1k_a, MSR_VTT_1K_A),
        "msvd": (open_msvd, MSVD),
        "openmoji": (open_openmoji, None),
        "parquet": (open_parquet, None),
        "precomputed": (open_precomputed, PRECOMPUTED),
        "question_folder": (open_question_folder, None),
        "sidecars": (open_sidecars, None),
        "table": (open_table, None),
        "tgif": (open_tgif, TGIF),
        "vatex": (open_vatex, VATEX),
        "vqa2": (open_vqa2, VQA2),
        "webdataset": (open_webdataset, None),
    },
)
"""All data sets. ``daquar``, ``question_folder`` and ``vqa2`` hold questions."""

FACTS: Mapping[str, Facts] = DATASETS.facts
"""The facts of all published data sets by name, including those of plug-ins."""


def parse_source(source: str | Path) -> tuple[str, Path]:
    """Split ``NAME:ROOT``, with "" as the name if the source is a path.

    A path may hold a colon: a word before it that is no registered name counts as a name only if no such path exists.
    """
    name, colon, root = str(source).partition(":")
    if colon and (name in DATASETS or (name.isidentifier() and len(name) > 1 and not Path(source).exists())):
        return name, Path(root).expanduser()
    return "", Path(source).expanduser()
