"""The facts of all published data sets, by name."""

from openvse.datasets import DATASETS

FACTS = {name: facts for name in DATASETS if (facts := DATASETS.facts(name))}
