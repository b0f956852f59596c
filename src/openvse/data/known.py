"""The published data sets by name. A further one adds a table of facts and a line here."""

from __future__ import annotations

from collections.abc import Mapping

from openvse.data.facts import Facts
from openvse.data.image_facts import COCO, FLICKR8K, FLICKR30K, PRECOMPUTED

FACTS: Mapping[str, Facts] = {facts.name: facts for facts in (COCO, FLICKR8K, FLICKR30K, PRECOMPUTED)}
"""Facts by the name that ``DATASETS`` has for the loader."""
