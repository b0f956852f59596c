"""EfficientNet-Lite0: 7 x 7 cells at its native size of 224 pixels."""

from __future__ import annotations

from typing import ClassVar

from openvse.backbones.efficientnet_lite import EfficientNetLite


class EfficientNetLite0(EfficientNetLite):
    """EfficientNet-Lite0, 7 x 7 cells of width 1280 at 224 px; its options are those of ``EfficientNetLite``.

    Its weights come with openvse.
    """

    number: ClassVar[int] = 0
    native_size: ClassVar[int] = 224
