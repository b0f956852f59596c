"""What the profile of a JPEG costs: the same photograph without one, with sRGB and with Display P3.

python benchmarks/profiles.py
"""

from __future__ import annotations

import argparse
import io
import struct
from functools import partial

import numpy as np
from PIL import Image, ImageCms

from _measure import median_times, table
from openvse.media.images import read_image

P3 = ((0.51512, 0.2412, -0.00105), (0.29198, 0.69225, 0.04189), (0.1571, 0.06657, 0.78407))
SIDES = {"whole": None, "at least 448 pixels": 224}


def display_p3(srgb: bytes) -> bytes:
    """Return the profile of sRGB with the colorants of Display P3, which has the same curve."""
    profile = bytearray(srgb)
    for number in range(int.from_bytes(srgb[128:132], "big")):
        name, at, _ = struct.unpack(">4sII", srgb[132 + 12 * number : 144 + 12 * number])
        if name in (b"rXYZ", b"gXYZ", b"bXYZ"):
            colorant = P3[b"rgb".index(name[:1])]
            profile[at + 8 : at + 20] = struct.pack(">3i", *(round(65536 * value) for value in colorant))
    return bytes(profile)


def photograph(width: int, height: int) -> Image.Image:
    """Return a drawn image with the details of a photograph, about a quarter of a byte for each pixel as JPEG."""
    draw = np.random.default_rng(0)
    image = Image.new("RGB", (width, height), "grey")
    for detail, share in ((64, 0.7), (16, 0.4), (3, 0.15)):
        noise = draw.integers(0, 256, (height // detail, width // detail, 3)).astype(np.uint8)
        image = Image.blend(image, Image.fromarray(noise).resize(image.size, Image.Resampling.BICUBIC), share)
    return image


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--repeats", type=int, default=21)
    options = parser.parse_args()
    srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    profiles = {"none": b"", "sRGB": srgb, "Display P3": display_p3(srgb)}
    rows = []
    for width, height in ((4000, 3000), (640, 480)):
        image, files = photograph(width, height), []
        for profile in profiles.values():
            file = io.BytesIO()
            image.save(file, "JPEG", quality=85, icc_profile=profile)
            files.append(file.getvalue())
        for decoded, side in SIDES.items():
            reads = [partial(read_image, content, shorter_side=side) for content in files]
            plain, *others = median_times(reads, options.repeats)
            ratios = [seconds / plain for seconds in others]
            rows.append([f"{width} x {height}", decoded, 1000 * plain, *ratios])
    print(table(["JPEG", "decoded", "no profile, ms", "sRGB / none", "Display P3 / none"], rows))


if __name__ == "__main__":
    main()
