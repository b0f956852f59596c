"""The commands of the training half. Each file registers its own, and imports heavy modules only when it runs."""

from __future__ import annotations

from openvse.train_cli.commands import (  # noqa: F401 - each registers itself
    analyze,
    ask,
    compare,
    convert,
    data,
    encode,
    evaluate,
    extract,
    lists,
    sweep,
    train,
)
