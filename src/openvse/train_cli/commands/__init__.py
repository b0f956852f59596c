"""The commands of the training half; each file registers its own, and imports what is heavy only when it runs."""

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
