"""Photographs with EXIF, XMP and IPTC, and videos with a time and a place, made on the spot."""

from __future__ import annotations

import io
import struct
from pathlib import Path
from xml.sax.saxutils import escape

from PIL import ExifTags, Image

from openvse.media.headers import said_by
from openvse.media.ranks import Header, ranked_facts

PACKET = """<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?><x:xmpmeta xmlns:x="adobe:ns:meta/">
<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#"><rdf:Description rdf:about=""
 xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title><rdf:Alt><rdf:li xml:lang="x-default">{title}</rdf:li></rdf:Alt>
</dc:title><dc:subject><rdf:Bag>{keywords}</rdf:Bag></dc:subject></rdf:Description></rdf:RDF></x:xmpmeta>"""

SPACES = {
    "dc": "http://purl.org/dc/elements/1.1/",
    "xmp": "http://ns.adobe.com/xap/1.0/",
    "exif": "http://ns.adobe.com/exif/1.0/",
    "lr": "http://ns.adobe.com/lightroom/1.0/",
    "digiKam": "http://www.digikam.org/ns/1.0/",
    "mwg-rs": "http://www.metadataworkinggroup.com/schemas/regions/",
    "Iptc4xmpExt": "http://iptc.org/std/Iptc4xmpExt/2008-02-29/",
    "photoshop": "http://ns.adobe.com/photoshop/1.0/",
    "Iptc4xmpCore": "http://iptc.org/std/Iptc4xmpCore/1.0/xmlns/",
    "MicrosoftPhoto": "http://ns.microsoft.com/photo/1.0/",
    "darktable": "http://darktable.sf.net/",
}


def read_header(path: Path) -> Header:
    """Return the facts in a file and its name."""
    return ranked_facts(said_by(path))


def xmp_packet(attributes: str = "", inside: str = "") -> bytes:
    """Return XMP with attributes and elements of its description."""
    spaces = " ".join(f'xmlns:{name}="{space}"' for name, space in SPACES.items())
    rdf = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
    return (
        f'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="{rdf}"><rdf:Description rdf:about="" {spaces} '
        f"{attributes}>{inside}</rdf:Description></rdf:RDF></x:xmpmeta>"
    ).encode()


def bag(name: str, *values: str) -> str:
    """Return an element with a list of values."""
    return f"<{name}><rdf:Bag>{''.join(f'<rdf:li>{each}</rdf:li>' for each in values)}</rdf:Bag></{name}>"


def exif_of(
    taken: object = "", offset: str = "", maker: object = "", model: object = "", place: object = None
) -> Image.Exif:
    """Return EXIF; a place is latitude and longitude in degrees, or a directory of GPS as it is written."""
    exif = Image.Exif()
    exif[ExifTags.Base.Make], exif[ExifTags.Base.Model] = maker, model
    camera = exif.get_ifd(ExifTags.IFD.Exif)
    camera[ExifTags.Base.DateTimeOriginal] = taken
    if offset:
        camera[ExifTags.Base.OffsetTimeOriginal] = offset
    if isinstance(place, tuple):
        (north, east) = place
        place = {1: "NS"[north < 0], 2: _sixtieths(north), 3: "EW"[east < 0], 4: _sixtieths(east)}
    if isinstance(place, dict):
        exif.get_ifd(ExifTags.IFD.GPSInfo).update(place)
    return exif


def _sixtieths(degrees: float) -> tuple[float, float, float]:
    whole = abs(degrees)
    return float(int(whole)), float(int(whole * 60 % 60)), whole * 3600 % 60


def xmp_of(title: str, *keywords: str) -> bytes:
    listed = "".join(f"<rdf:li>{escape(word)}</rdf:li>" for word in keywords)
    return PACKET.format(title=escape(title), keywords=listed).encode()


def photoshop(iptc: dict[int, list[bytes]], coded: bytes = b"", digest: bytes = b"") -> bytes:
    """Return Photoshop's resources: the texts of each data set of IPTC, its coded character set, and its digest."""
    data = b"\x1c\x01\x5a" + struct.pack(">H", len(coded)) + coded if coded else b""
    data += b"".join(
        b"\x1c\x02" + struct.pack(">BH", number, len(text)) + text for number, texts in iptc.items() for text in texts
    )
    return b"".join(
        b"8BIM" + struct.pack(">HHI", number, 0, len(each)) + each + b"\0" * (len(each) % 2)
        for number, each in ((0x0404, data), (0x0425, digest))
        if each
    )


def jpeg(
    picture: str | Image.Image = "red",
    exif: Image.Exif | None = None,
    xmp: bytes = b"",
    iptc: dict[int, list[bytes]] | None = None,
    coded: bytes = b"",
    digest: bytes = b"",
) -> bytes:
    """Return a JPEG of an image, or of a colour. See ``photoshop``."""
    file = io.BytesIO()
    image = Image.new("RGB", (64, 48), picture) if isinstance(picture, str) else picture
    image.save(file, "JPEG", exif=exif or b"", xmp=xmp)
    content = file.getvalue()
    if not iptc:
        return content
    block = b"Photoshop 3.0\0" + photoshop(iptc, coded, digest)
    return content[:2] + b"\xff\xed" + struct.pack(">H", len(block) + 2) + block + content[2:]


def write_video(path: Path, metadata: dict[str, str]) -> Path:
    """Write a video of half a second; needs PyAV."""
    import av

    with av.open(str(path), "w", options={"movflags": "use_metadata_tags"}) as video:
        video.metadata.update(metadata)
        stream = video.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for _ in range(5):
            video.mux(stream.encode(av.VideoFrame.from_image(Image.new("RGB", (64, 48), "red"))))
        video.mux(stream.encode())
    return path
