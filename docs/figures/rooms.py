"""Draw the rooms of the package as an SVG: floors, files, lines, and which room imports which.

    python docs/figures/rooms.py docs/images/rooms.svg openvse=.

The halves stand side by side. They are read from ``openvse/halves.py`` of a checkout, the floors from its
``tests/test_floors.py``, and the imports from its source. A package beside openvse is one room. To compare two
checkouts side by side, give both: ``before=PATH after=.``
"""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path

# Pixels: width of the search half and of the training half, of the number of a floor, height of a step, space between
# rooms, height of a room.
HALVES, LABEL, ROW, GAP, BOX = (500, 720), 20, 74, 14, 42
WIDTH = sum(HALVES)
NARROWEST, PIXELS_PER_LINE = 106, 0.055
# Arrows to these rooms are not drawn, because nearly all rooms use them.
EVERYWHERE = {"errors", "types", "functional", "registry", "files"}


@dataclass(frozen=True)
class Room:
    """A folder or a single file of the package."""

    name: str
    files: int
    lines: int
    imports: frozenset[str]


def read_rooms(package: Path) -> dict[str, Room]:
    """Measure the rooms of a package."""
    found: dict[str, list[Path]] = {}
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package).parts[0].removesuffix(".py")
        if not name.startswith("__"):
            found.setdefault(name, []).append(path)
    return {
        name: Room(
            name,
            len(paths),
            sum(len(path.read_text().splitlines()) for path in paths),
            frozenset(room for path in paths for room in imported(path) if room in found and room != name),
        )
        for name, paths in found.items()
    }


def read_packages(source: Path) -> list[Room]:
    """Measure the packages beside openvse, each as one room."""
    found = []
    for package in sorted(each for each in source.glob("openvse_*") if each.is_dir()):
        paths = sorted(package.rglob("*.py"))
        lines = sum(len(path.read_text().splitlines()) for path in paths)
        found.append(Room(package.name, len(paths), lines, frozenset().union(*map(imported, paths))))
    return found


def imported(path: Path) -> set[str]:
    """Return the rooms that a file imports."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "openvse":
            inner = [alias.name for alias in node.names] if node.module == "openvse" else []
            names |= {*inner} or {(node.module or "").split(".")[1]}
    return names


def read_steps(tests: Path) -> list[tuple[int, list[str]]]:
    """Return the floors and their rooms in the test of the floors, from the ground up."""
    tree = ast.parse((tests / "test_floors.py").read_text())
    (value,) = (n.value for n in tree.body if isinstance(n, ast.AnnAssign) and n.target.id == "STEPS")  # type: ignore[union-attr]
    steps = []
    for step in value.elts:  # type: ignore[union-attr]
        floor, rooms = step.elts  # type: ignore[attr-defined]
        steps.append((floor.value, sorted(ast.literal_eval(rooms.args[0]))))
    return steps


def read_search_half(package: Path) -> set[str]:
    """Return the rooms of the search half."""
    tree = ast.parse((package / "halves.py").read_text())
    (value,) = (
        each.value for each in tree.body if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "SEARCH"
    )
    return {each.value for each in ast.walk(value) if isinstance(each, ast.Constant)}


def panel(title: str, checkout: Path, left: int) -> tuple[str, int]:
    """Return the drawing of one checkout and its height."""
    rooms, steps = read_rooms(checkout / "src" / "openvse"), read_steps(checkout / "tests")
    search, beside = read_search_half(checkout / "src" / "openvse"), read_packages(checkout / "src")
    for each in beside:
        rooms[each.name] = replace(each, imports=each.imports & rooms.keys())
        search |= {each.name} if each.imports & rooms.keys() <= search else set()
    steps.append((steps[-1][0] + 1, [each.name for each in beside]))
    height_of = {name: number for number, (_, names) in enumerate(steps) for name in names}
    arrows = [(room.name, other) for room in rooms.values() for other in sorted(room.imports)]
    upward = sum(height_of[other] >= height_of[name] for name, other in arrows)
    place: dict[str, tuple[float, float]] = {}
    boxes, top = [], 76
    for row, (floor, names) in enumerate(reversed(steps)):
        y = top + row * ROW
        boxes.append(f'<text x="{left}" y="{y + 27}" class="floor">{floor}</text>')
        for half, width in enumerate(HALVES):
            own = [name for name in names if (name not in search) == half]
            widths = [max(NARROWEST, rooms[name].lines * PIXELS_PER_LINE) for name in own]
            middle = left + LABEL + sum(HALVES[:half]) + width / 2
            x = middle - (sum(widths) + GAP * (len(own) - 1)) / 2
            for name, share in zip(own, widths, strict=True):
                room = rooms[name]
                place[name] = (x + share / 2, y)
                boxes.append(
                    f'<rect x="{x:.0f}" y="{y}" width="{share:.0f}" height="{BOX}" rx="4"/>'
                    f'<text x="{x + share / 2:.0f}" y="{y + 18}" class="name">{escape(name)}</text>'
                    f'<text x="{x + share / 2:.0f}" y="{y + 35}" class="size">'
                    f"{room.files} / {room.lines:,}</text>"
                )
                x += share + GAP
    height = top + len(steps) * ROW
    middles = (left + LABEL + HALVES[0] / 2, left + LABEL + HALVES[0] + HALVES[1] / 2)
    for middle, heading in zip(middles, ("search half", "training half"), strict=True):
        boxes.append(f'<text x="{middle:.0f}" y="62" class="half">{heading}</text>')
    line = left + LABEL + HALVES[0]
    boxes.append(f'<path d="M{line} 50 V{height}" class="border"/>')
    lines = [
        f'<path d="M{place[a][0]:.0f} {place[a][1] + BOX} C{place[a][0]:.0f} {place[a][1] + BOX + 30} '
        f'{place[b][0]:.0f} {place[b][1] - 30} {place[b][0]:.0f} {place[b][1]}"/>'
        for a, b in arrows
        if b not in EVERYWHERE
    ]
    total = f"{sum(r.files for r in rooms.values())} files, {sum(r.lines for r in rooms.values()):,} lines, "
    total += f"{len(rooms)} rooms, {len(arrows)} arrows, {upward} of them upward"
    head = f'<text x="{left}" y="22" class="title">{escape(title)}</text>'
    head += f'<text x="{left}" y="42" class="note">{total}</text>'
    return head + "".join(lines) + "".join(boxes), height


def main() -> None:
    """Draw the checkouts of the command line side by side."""
    out, *named = sys.argv[1:]
    drawn = [
        panel(title, Path(path), 20 + number * (WIDTH + 30))
        for number, (title, path) in enumerate(argument.split("=", 1) for argument in named)
    ]
    width, height = len(drawn) * (WIDTH + 30) + 20, max(height for _, height in drawn)
    style = (
        "text{font:13px sans-serif;fill:#1f2933}.title{font:bold 17px sans-serif}"
        ".note,.size{font-size:11px;fill:#52606d}"
        ".half{font:bold 14px sans-serif;text-anchor:middle}.border{stroke-dasharray:6 4;stroke-opacity:1}"
        ".name,.size{text-anchor:middle}.floor{font:bold 13px sans-serif;fill:#9aa5b1}"
        "rect{fill:#eef4fb;stroke:#3e6fa3}path{fill:none;stroke:#7b8794;stroke-opacity:.35}"
    )
    body = "".join(svg for svg, _ in drawn)
    Path(out).write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"><style>{style}</style>'
        f'<rect width="{width}" height="{height}" style="fill:#fff;stroke:none"/>{body}</svg>\n'
    )


if __name__ == "__main__":
    main()
