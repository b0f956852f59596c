"""What a folder holds, and what is left out of it, by kind."""

import os
import re
import sys
from pathlib import Path

import pytest
from PIL import Image

from openvse.errors import DataError
from openvse.media.images import read_image
from openvse.media.listing import AGAIN, IgnoreRules, each_once, list_folders, list_media
from openvse.media.names import escaped
from tests.failures import Failures
from tests.naming import names, refusal


def touch(root, *names):
    for name in names:
        (root / name).parent.mkdir(exist_ok=True, parents=True)
        (root / name).touch()


def test_what_is_left_out_is_counted_by_kind(tmp_path):
    touch(tmp_path, "a.jpg", "b/c.mp4", "b/d.MOV", "logo.svg", "scan.pdf", "x.tga", "notes.txt", ".hidden.mp4")
    listing = list_media(tmp_path)
    assert [path.name for path in listing.paths] == ["a.jpg"]
    line = listing.left_out.describe()
    assert names(line, 2) and "1 SVG" in line and "1 PDF" in line
    assert "PNG" in line and str(tmp_path / "b" / "c.mp4") in line
    assert "notes" not in line and "hidden" not in line


def test_videos_are_taken_where_they_are_wanted(tmp_path):
    touch(tmp_path, "a.jpg", "c.mp4", "x.svg")
    listing = list_media(tmp_path, videos=True)
    assert [path.name for path in listing.paths] == ["a.jpg", "c.mp4"]
    assert listing.left_out.counts() == "1 SVG"


def test_a_name_with_a_line_break_is_counted_and_escaped(tmp_path):
    touch(tmp_path, "a.jpg", "two\nlines.jpg", "two\nlines.txt")
    listing = list_media(tmp_path)
    assert len(listing.paths) == 1
    line = listing.left_out.describe()
    assert names(line, 1) and "\n" not in line
    assert r"two\nlines.jpg" in line


def test_nothing_is_left_out(tmp_path):
    touch(tmp_path, "a.jpg", "a.txt")
    assert not list_media(tmp_path).left_out
    assert names(refusal(DataError, list_media, tmp_path / "gone"), "gone")


ESCAPES = [
    ("a b.jpg", "a b.jpg"),
    ("é\u202f1.png", "é\u202f1.png"),
    ("a\x1b[2Jb", r"a\x1b[2Jb"),
    ("\udce9", r"\udce9"),
    ("a\u202egpj", r"a\u202egpj"),
]


def test_odd_characters_are_escaped(failures: Failures):
    for name, shown in ESCAPES:
        with failures.of(name, shown):
            assert escaped(name) == shown


def test_the_order_is_that_of_the_parts_of_the_paths(tmp_path):
    touch(tmp_path, "b/a.jpg", "b.jpg", "a b/c.jpg", "a/z.jpg", "a.jpg", "a/b/c.jpg", "a/b.jpg", "a-b/c.jpg")
    paths = list_media(tmp_path).paths
    assert len(paths) == 8 and paths == sorted(paths)


def test_links_are_listed_if_they_are_files_and_not_followed_into_folders(tmp_path):
    touch(tmp_path, "real/a.jpg", "gone.jpg")
    (tmp_path / "file.jpg").symlink_to(tmp_path / "real" / "a.jpg")
    (tmp_path / "folder.jpg").symlink_to(tmp_path / "real")
    (tmp_path / "dangling.jpg").symlink_to(tmp_path / "nowhere")
    assert [path.name for path in list_media(tmp_path).paths] == ["dangling.jpg", "file.jpg", "gone.jpg", "a.jpg"]


@pytest.mark.medium
def test_folders_may_be_deeper_than_python_can_call(tmp_path):
    depth = sys.getrecursionlimit() + 100
    folder = os.open(tmp_path, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=folder)
        inner = os.open("d", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    os.close(os.open("a.jpg", os.O_CREAT, dir_fd=folder))
    os.close(folder)
    (image,) = list_media(tmp_path).paths
    assert len(image.relative_to(tmp_path).parts) == depth + 1
    image.unlink()
    for parent in list(image.parents)[:depth]:  # pytest could not remove them
        parent.rmdir()


RULES = [  # as git check-ignore says
    (["thumbs/"], {"thumbs", "a/thumbs"}),
    (["/a.gif"], {"a.gif"}),
    (["a/*.gif"], {"a/b.gif"}),
    (["**/b.gif"], {"a/b.gif", "a/b/b.gif"}),
    (["a/**"], {"a/b.gif", "a/thumbs", "a/b/b.gif"}),
    (["a/**/b.gif"], {"a/b.gif", "a/b/b.gif"}),
    (["*", "!*/", "!*.gif"], {"c.txt", "#d"}),
    (["*.gif", "!b.gif"], {"a.gif"}),
    (["[ab].gif"], {"a.gif", "a/b.gif", "a/b/b.gif"}),
    (["[!a].gif"], {"a/b.gif", "a/b/b.gif"}),
    (["A.gif", " a.gif", "# c.txt", ""], set()),
    ([r"\#d", "c.txt  "], {"#d", "c.txt"}),
]


def test_rules_skip_what_git_ignores(failures: Failures):
    for rules, skipped in RULES:
        with failures.of(rules, skipped):
            files, folders = ("a.gif", "c.txt", "#d", "a/b.gif", "a/b/b.gif"), ("thumbs", "a/thumbs")
            skip = IgnoreRules(rules)
            assert {path for path in files if skip(path, False)} | {
                path for path in folders if skip(path, True)
            } == skipped


NO_RULES = ["[z-a]", "[a", "a\\", "!"]


def test_a_rule_that_cannot_be_understood(failures: Failures):
    for rule in NO_RULES:
        with failures.of(rule), pytest.raises(DataError, match=re.escape(repr(rule))):
            IgnoreRules([rule])


UNREAD_SUFFIXES = [
    "jxl",
    "tga",
    "ico",
    "jxr",
    "srw",
    "pef",
    "nrw",
    "x3f",
    "3fr",
    "iiq",
    "rwl",
    "raw",
    "dcr",
    "nef",
    "CR3",
    "icns",
    "psd",
    "ai",
    "exr",
    "bpg",
    "qoi",
    "dds",
    "kra",
    "mxf",
    "rmvb",
]


def test_formats_that_are_not_read_are_counted(tmp_path, monkeypatch, failures: Failures):
    for suffix in UNREAD_SUFFIXES:
        with failures.of(suffix):
            monkeypatch.setattr("openvse.media.formats.is_installed", lambda package: False)
            folder = tmp_path / suffix
            touch(folder, f"a.{suffix}", f"notes.{suffix}.txt")
            listing = list_media(folder, videos=True)
            assert listing.names == [] and [len(paths) for paths in listing.left_out.files.values()] == [1]
            assert f"a.{suffix}" in listing.left_out.describe()


RARE_SUFFIXES = {
    **dict.fromkeys(("jpe", "JIF", "jfif", "pjpeg"), "JPEG"),
    **{"mpo": "MPO", "apng": "PNG", "pbm": "PPM", "pnm": "PPM", "j2k": "JPEG2000", "jpx": "JPEG2000"},
}


def test_rare_suffixes_of_formats_that_are_read(tmp_path, failures: Failures):
    for suffix, kind in RARE_SUFFIXES.items():
        with failures.of(suffix):
            folder = tmp_path / suffix
            folder.mkdir()
            Image.new("RGB", (9, 7)).save(folder / f"a.{suffix}", kind)
            (path,) = list_media(folder).paths
            assert read_image(path).size == (9, 7)


def transport_stream(packet=188, before=b""):
    return before + (b"\x47" + bytes(packet - 1)) * 20


@pytest.mark.parametrize("suffix", ["ts", "TS", "mts"])
def test_typescript_is_no_video(suffix, tmp_path):
    (tmp_path / f"code.{suffix}").write_text("import { GIF } from './GIF';\n" * 200)
    (tmp_path / f"qt.{suffix}").write_bytes(b"\0\1\2" * 999)
    for number, content in enumerate(
        [
            transport_stream(),
            transport_stream(192, b"\0" * 4),
            transport_stream(204),
            transport_stream(188, b"?" * 99),
            transport_stream()[:400],
        ]
    ):
        (tmp_path / f"{number}.{suffix}").write_bytes(content)
    assert list_media(tmp_path).left_out.counts() == "5 videos"
    assert [name[0] for name in list_media(tmp_path, videos=True).names] == ["0", "1", "2", "3", "4"]


def test_clips_of_motion_photographs_are_videos(tmp_path):
    for name in ("a.MP", "a.MP~2", "a.MV"):
        (tmp_path / name).write_bytes(b"\0\0\0\x18ftypmp42")
    touch(tmp_path, "figure.mp")
    assert list_media(tmp_path, videos=True).names == ["a.MP", "a.MP~2", "a.MV"]
    assert list_media(tmp_path).left_out.counts() == "3 videos"


def test_images_and_videos_without_their_suffix_are_counted(tmp_path):
    touch(tmp_path, "README", "go.mod", "a.dat", "empty")
    (tmp_path / "cached").write_bytes(b"\xff\xd8\xff\xe0")
    (tmp_path / "MOV001.MOD").write_bytes(b"\0\0\1\xba")
    (tmp_path / "AVSEQ01.DAT").write_bytes(b"RIFF\1\2\3\4CDXA")
    os.mkfifo(tmp_path / "pipe")
    listing = list_media(tmp_path)
    assert listing.names == [] and names(listing.left_out.counts(), 3)


def test_linked_folders_are_counted_and_not_followed(tmp_path):
    touch(tmp_path, "photos/a.jpg", "far/b.jpg", "far/deep/c.jpg")
    (tmp_path / "photos" / "2023").symlink_to(tmp_path / "far")
    (tmp_path / "photos" / "loop").symlink_to(tmp_path / "photos")
    listing = list_media(tmp_path / "photos")
    assert listing.names == ["a.jpg"] and listing.left_out.counts() == "2 linked folders"
    (line,) = listing.problems(used=[tmp_path / "photos" / "2023" / "b.jpg"])
    assert names(line, 1, "loop")


def test_a_skipped_link_is_not_counted(tmp_path):
    (tmp_path / "2023").symlink_to("/")
    assert not list_media(tmp_path, ignored=IgnoreRules(["2023/"])).left_out


SYSTEM_FOLDERS = [
    "@eaDir",
    "#recycle",
    ".Trashes",
    ".Trash-1000",
    ".thumbnails",
    "$Recycle.bin",
    "lost+found",
    ".Spotlight-V100",
]


def test_system_folders_are_left_out_and_counted(tmp_path):
    touch(tmp_path, "a.jpg", "b/@eaDir/a.jpg/thumb.jpg", ".git/c.jpg", "lost+found.jpg", "x/#snapshot")
    touch(tmp_path, *(f"{name}/d.jpg" for name in SYSTEM_FOLDERS))
    listing = list_media(tmp_path)
    assert listing.names == ["a.jpg", "lost+found.jpg"]
    assert listing.left_out.counts() == f"{len(SYSTEM_FOLDERS) + 1} system folders"
    assert "!@eaDir/" in listing.left_out.describe()


ENTERING_RULES = [
    (["!@eaDir/"], {"@eaDir/a.jpg", "b/@eaDir/a.jpg"}),
    (["!/@eaDir"], {"@eaDir/a.jpg"}),
    (["!#recycle/", "!.git/"], {"#recycle/a.jpg", ".git/a.jpg"}),
    (["!#recycle/", "\\#recycle/"], set()),
    (["*", "!*/", "!*.jpg"], set()),
    (["!.*/"], set()),
    ([], set()),
]


def test_a_rule_enters_a_system_folder_by_its_name(tmp_path, failures: Failures):
    for rules, entered in ENTERING_RULES:
        with failures.of(rules, entered):
            touch(tmp_path, *(f"{name}/a.jpg" for name in ("@eaDir", "b/@eaDir", "#recycle", ".git", "c")))
            assert set(list_media(tmp_path, ignored=IgnoreRules(rules)).names) == entered | {"c/a.jpg"}


def followed(*folders, rules=None):
    return list_folders(folders, [rules] * len(folders), videos=False, follow_links=True)


def test_links_are_followed_once_and_never_in_circles(tmp_path):
    touch(tmp_path, "photos/a.jpg", "photos/z/b.jpg", "far/c.jpg", "far/deep/d.jpg", "other/e.jpg")
    photos = tmp_path / "photos"
    for name, target in (
        ("circle", photos),
        ("y", tmp_path / "far" / "deep"),
        ("x", tmp_path / "far"),
        ("again", photos / "z"),
        ("b.jpg", tmp_path / "other" / "e.jpg"),
        ("c.jpg", tmp_path / "other" / "e.jpg"),
        ("d.jpg", photos / "a.jpg"),
        ("gone.jpg", tmp_path / "nowhere.jpg"),
        ("drive", tmp_path / "nowhere"),
    ):
        (photos / name).symlink_to(target)
    (tmp_path / "far" / "back").symlink_to(photos / "z")
    (tmp_path / "far" / "on").symlink_to(tmp_path / "other")
    (listing,) = followed(photos)
    assert listing.names == ["a.jpg", "b.jpg", "gone.jpg", "x/c.jpg", "x/deep/d.jpg", "z/b.jpg"]
    assert listing.unreadable == [photos / "drive"]
    again = [str(path.relative_to(photos)) for path in listing.left_out.files[AGAIN]]
    assert again == ["again", "c.jpg", "circle", "d.jpg", "y", "x/back", "x/on/e.jpg"]
    assert list(listing.left_out.files) == [AGAIN]


def test_links_between_folders_and_rules_of_their_names(tmp_path):
    touch(tmp_path, "a/1.jpg", "b/c/2.jpg", "far/3.jpg", "far/4.jpg")
    (tmp_path / "a" / "link").symlink_to(tmp_path / "b" / "c")
    (tmp_path / "a" / "skipped").symlink_to(tmp_path / "far")
    (tmp_path / "b" / "far").symlink_to(tmp_path / "far")
    first, second = followed(tmp_path / "a", tmp_path / "b", rules=IgnoreRules(["skipped/", "far/4.*"]))
    assert (first.names, second.names) == (["1.jpg"], ["c/2.jpg", "far/3.jpg"])


def test_each_file_has_one_name_and_links_come_last(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    touch(tmp_path, "first/a.jpg", "first/c.jpg", "second/b.jpg", "far.jpg")
    (first / "hard.jpg").hardlink_to(first / "a.jpg")
    (second / "a.jpg").hardlink_to(first / "a.jpg")
    (first / "0.jpg").symlink_to(second / "b.jpg")
    (first / "far.jpg").symlink_to(tmp_path / "far.jpg")
    (second / "far.jpg").symlink_to(tmp_path / "far.jpg")
    (second / "gone.jpg").symlink_to(tmp_path / "gone.jpg")
    listings = each_once([list_media(first), list_media(second)])
    assert [each.names for each in listings] == [["a.jpg", "c.jpg", "far.jpg"], ["b.jpg", "gone.jpg"]]
    again = [path.relative_to(tmp_path).as_posix() for each in listings for path in each.left_out.files[AGAIN]]
    assert again == ["first/0.jpg", "first/hard.jpg", "second/a.jpg", "second/far.jpg"]
    (plain,) = each_once([list_media(second / "..", ignored=IgnoreRules(["first/", "second/"]))])
    assert (plain.names, plain.left_out.files) == (["far.jpg"], {})
