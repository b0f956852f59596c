"""The published data sets by name. A further one adds a table of facts and a line here."""

from __future__ import annotations

from collections.abc import Mapping

from openvse.corpus.facts import Facts
from openvse.datasets.image_facts import COCO, FLICKR8K, FLICKR30K, PRECOMPUTED
from openvse.datasets.question_facts import DAQUAR, VQA2
from openvse.datasets.video_facts import MRW, MSR_VTT, MSR_VTT_1K_A, MSVD, TGIF, VATEX

_IMAGES = (COCO, FLICKR8K, FLICKR30K, PRECOMPUTED)
_CLIPS = (MRW, MSR_VTT, MSR_VTT_1K_A, MSVD, TGIF, VATEX)
_QUESTIONS = (DAQUAR, VQA2)

FACTS: Mapping[str, Facts] = {facts.name: facts for facts in (*_IMAGES, *_CLIPS, *_QUESTIONS)}
"""Facts by the name that ``DATASETS`` or ``QUESTION_SETS`` has for the loader."""
