"""Images that clients send, of the sizes and shapes that occur."""

from __future__ import annotations

import io

import pytest
from PIL import Image
from starlette.testclient import TestClient

from openvse.serving.settings import Limits


@pytest.mark.medium
def test_uploads_of_phones_and_of_odd_shapes(client: TestClient) -> None:
    """A phone's 48 megapixels are accepted, and more in a JPEG, which is halved."""
    assert 8064 * 6048 <= Limits().upload_pixels < 9000 * 6000
    for kind, size in (
        ("HEIF", (600, 300)),
        ("TIFF", (90, 60)),
        ("JPEG", (9000, 6000)),
        ("PNG", (1, 65_000)),
    ):
        content = io.BytesIO()
        if kind == "HEIF":
            pytest.importorskip("pillow_heif").register_heif_opener()
        Image.new("RGB", size, (200, 30, 30)).save(content, kind)
        reply = client.post("/api/search/image", files={"image": content.getvalue()})
        assert reply.status_code == 200 and reply.json()["hits"], (kind, reply.text)
