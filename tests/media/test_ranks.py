"""Which source counts where several state a fact: one ranking over the file, its sidecars and its name."""

import re
from datetime import datetime
from pathlib import Path

import pytest
from PIL import ExifTags

from openvse.media.ranks import FactSource as Source
from openvse.media.ranks import Said, differing, first_stated, ranked_facts
from openvse.media.sidecars import read_facts
from photographs import exif_of, jpeg, write_video, xmp_packet
from tests.failures import Failures

DOCS = Path(__file__).parents[2] / "docs" / "reference" / "conditions.md"
BESIDE = {Source.SIDECAR, Source.SHARED_SIDECAR, Source.TAKEOUT}


def shot(source: Source, *dates: str) -> Said:
    return Said(source, shot=dates)


def scanned(source: Source, *dates: str) -> Said:
    return Said(source, scanned=dates)


def named(date: str) -> Said:
    return Said(Source.NAME, named=[date])


CLOCK, OFFSET, MOMENT = "2024-06-01T12:30:00", "2024-06-01T12:30:00+02:00", "2024-06-01T10:30:00Z"
HERE = datetime.fromisoformat(MOMENT).astimezone().isoformat()
# What the sources say, the date that counts, and whether a sidecar that counts differs from the file.
TAKEN: list[tuple[list[Said], str | None, bool]] = [
    ([scanned(Source.SIDECAR, "2020-03-01"), shot(Source.EXIF, "1975-06-14")], "1975-06-14", False),
    ([scanned(Source.SIDECAR, "2020-03-01"), shot(Source.SHARED_SIDECAR, "1975")], "1975", False),
    ([scanned(Source.SIDECAR, "2020"), shot(Source.TAKEOUT, MOMENT), shot(Source.IPTC, CLOCK)], CLOCK, False),
    ([shot(Source.SIDECAR, "1975"), scanned(Source.EXIF, "2020-03-01")], "1975", True),
    ([shot(Source.SIDECAR, "1975"), shot(Source.EXIF, "1985")], "1975", True),
    ([shot(Source.SHARED_SIDECAR, "1985"), shot(Source.SIDECAR, "75"), shot(Source.EXIF, "75-06")], "75-06", False),
    ([scanned(Source.SIDECAR, "2020-03-01"), scanned(Source.EXIF, "2021-03-01")], "2020-03-01", True),
    ([scanned(Source.SIDECAR, "2020-03-01"), named("2019-01-01")], "2020-03-01", False),
    ([named("2019-01-01"), shot(Source.TAKEOUT, MOMENT)], HERE, False),
    ([named(CLOCK), shot(Source.TAKEOUT, MOMENT)], CLOCK, False),
    ([scanned(Source.EXIF, CLOCK), shot(Source.TAKEOUT, MOMENT)], CLOCK, False),
    ([scanned(Source.SIDECAR, "2021-01-01"), shot(Source.CONTAINER, MOMENT)], HERE, False),
    ([shot(Source.SIDECAR, CLOCK), shot(Source.CONTAINER, MOMENT)], CLOCK, False),
    ([shot(Source.CONTAINER, MOMENT), named(CLOCK)], CLOCK, False),
    ([shot(Source.CONTAINER, MOMENT), named("2024-06-01T12:41:00")], HERE, False),
    ([shot(Source.SIDECAR, CLOCK), shot(Source.EXIF, OFFSET)], OFFSET, False),
    ([shot(Source.SIDECAR, "2024-06-01"), shot(Source.CONTAINER, MOMENT)], "2024-06-01", False),
    ([shot(Source.EXIF, "2020"), scanned(Source.EXIF, "2020-03-01")], "2020", False),
    ([shot(Source.EXIF, ""), shot(Source.XMP, "1975")], "1975", False),
    ([shot(Source.SIDECAR, ""), scanned(Source.EXIF, "2020-03-01"), named("2019-01-01")], None, True),
    ([shot(Source.CHANGED_IPTC, "1975"), shot(Source.XMP, "1976")], "1975", False),
    ([shot(Source.IPTC, "1975"), shot(Source.XMP, "1976")], "1976", False),
    ([], None, False),
]  # fmt: skip


def test_the_strongest_kind_of_date_counts_whatever_its_source(failures: Failures) -> None:
    for said, taken, differs in TAKEN:
        with failures.of(said):
            for order in (said, said[::-1]):
                assert ranked_facts(order).get("taken") == taken
                inside = [each for each in order if each.source != Source.NAME]
                own = [each for each in inside if each.source not in BESIDE]
                assert differing(ranked_facts(own), ranked_facts(inside)) == ["taken"] * differs


def test_a_source_comes_before_all_behind_it() -> None:
    for key in ("title", "camera"):
        said = [Said(source, {key: source.value, "description": ""}) for source in Source]
        for number, source in enumerate(Source):
            assert ranked_facts(reversed(said[number:])) == {key: source.value}
    assert first_stated([{"title": None, "size": None}, {"title": "x"}]) == {"title": "x", "size": None}


def test_the_table_of_the_docs_is_the_one_of_the_code() -> None:
    table = DOCS.read_text().partition("| rank | source")[2].partition("## Sidecars")[0].replace("`", "")
    assert re.findall(r"^\| \d+ \| (.*?) \|", table, re.MULTILINE) == [each.value for each in Source]


def test_a_scan_dated_by_its_file_and_its_sidecars(tmp_path: Path, failures: Failures) -> None:
    exif = exif_of("1975:06:14 12:00:00")
    exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.DateTimeDigitized] = "2020:03:01 09:00:00"
    weak = [xmp_packet(f'{name}="2020-03-01T09:00:00"') for name in ("xmp:CreateDate", "exif:DateTimeDigitized")]
    strong, paths = (xmp_packet('photoshop:DateCreated="1975-06-14"'), [tmp_path / "a.jpg.xmp", tmp_path / "a.xmp"])
    for content, beside, taken in (
        (jpeg("red", exif), weak[:1], "1975-06-14T12:00:00"),
        (jpeg("red", exif), weak[1:], "1975-06-14T12:00:00"),
        (jpeg("red", exif, weak[0]), [], "1975-06-14T12:00:00"),
        (jpeg(), [weak[0], strong], "1975-06-14"),
        (jpeg(), weak, "2020-03-01T09:00:00"),
    ):
        with failures.of(taken, beside):
            (tmp_path / "a.jpg").write_bytes(content)
            for path, packet in zip(paths, beside, strict=False):
                path.write_bytes(packet)
            found = read_facts(tmp_path / "a.jpg", paths[: len(beside)])
            assert (found.header, found.differing, found.problems) == ({"taken": taken}, {}, [])


@pytest.mark.medium
def test_a_video_dated_by_its_container_its_sidecar_and_its_name(tmp_path: Path) -> None:
    pytest.importorskip("av")
    video = write_video(tmp_path / "VID_20240601_123000.mp4", {"creation_time": MOMENT})
    beside = tmp_path / f"{video.name}.xmp"
    beside.write_bytes(xmp_packet('xmp:CreateDate="2026-01-01"'))
    assert read_facts(video, [beside]).header == {"taken": CLOCK}
    assert read_facts(video.rename(tmp_path / "a.mp4"), [beside]).header == {"taken": HERE}
