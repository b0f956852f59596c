"""The data sets by name. A new one takes a file with its loader and its facts, and one line here."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping

from openvse.corpus.corpus import Corpus
from openvse.corpus.facts import Facts
from openvse.corpus.questions import QuestionSet
from openvse.datasets.coco import COCO, open_coco
from openvse.datasets.csv_file import open_csv
from openvse.datasets.daquar import DAQUAR, open_daquar
from openvse.datasets.flickr8k import FLICKR8K, open_flickr8k
from openvse.datasets.flickr30k import FLICKR30K, open_flickr30k
from openvse.datasets.folder import open_folder
from openvse.datasets.hf import open_hub
from openvse.datasets.loader import DataSets, Loader
from openvse.datasets.msr_vtt import MSR_VTT, MSR_VTT_1K_A, open_msr_vtt, open_msr_vtt_1k_a
from openvse.datasets.msvd import MSVD, open_msvd
from openvse.datasets.openmoji import open_openmoji
from openvse.datasets.parquet import open_parquet
from openvse.datasets.precomputed import PRECOMPUTED, open_precomputed
from openvse.datasets.question_folder import open_question_folder
from openvse.datasets.sidecars import open_sidecars
from openvse.datasets.table import open_table
from openvse.datasets.tgif import MRW, TGIF, open_mrw, open_tgif
from openvse.datasets.vatex import VATEX, open_vatex
from openvse.datasets.vqa2 import VQA2, open_vqa2
from openvse.datasets.webdataset import open_webdataset

DATASETS: DataSets[Corpus] = DataSets(
    "data set",
    {
        "coco": (open_coco, COCO),
        "csv": (open_csv, None),
        "hf": (open_hub, None),
        "flickr30k": (open_flickr30k, FLICKR30K),
        "flickr8k": (open_flickr8k, FLICKR8K),
        "folder": (open_folder, None),
        "mrw": (open_mrw, MRW),
        "msr_vtt": (open_msr_vtt, MSR_VTT),
        "msr_vtt_1k_a": (open_msr_vtt_1k_a, MSR_VTT_1K_A),
        "msvd": (open_msvd, MSVD),
        "openmoji": (open_openmoji, None),
        "parquet": (open_parquet, None),
        "precomputed": (open_precomputed, PRECOMPUTED),
        "sidecars": (open_sidecars, None),
        "table": (open_table, None),
        "tgif": (open_tgif, TGIF),
        "vatex": (open_vatex, VATEX),
        "webdataset": (open_webdataset, None),
    },
)
"""Images or clips with captions."""

QUESTION_SETS: DataSets[QuestionSet] = DataSets(
    "question set",
    {
        "daquar": (open_daquar, DAQUAR),
        "question_folder": (open_question_folder, None),
        "vqa2": (open_vqa2, VQA2),
    },
)
"""Questions about images."""

FACTS: Mapping[str, Facts] = ChainMap(DATASETS.facts, QUESTION_SETS.facts)
"""The facts of all published data sets by name, including those of plug-ins."""


def find_loader(name: str) -> Loader[Corpus | QuestionSet]:
    """Return the loader of a data set or question set; raise RecipeError, which lists both kinds, for other names."""
    loaders: dict[str, Loader[Corpus | QuestionSet]] = {known: DATASETS.get(known) for known in DATASETS}
    loaders |= {known: QUESTION_SETS.get(known) for known in QUESTION_SETS}
    return DataSets(DATASETS.kind, {known: (loader, None) for known, loader in loaders.items()}).get(name)
