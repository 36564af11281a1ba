"""Draw the packages in docs/images/packages.svg and refresh the table in docs/architecture.md.

The layers come from the import rules in pyproject.toml, the figures of the table from
`scripts/ratchet.py`. Run it after a package was added, moved or removed.
"""

import re
import runpy
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "architecture.md"
PICTURE = ROOT / "docs" / "images" / "packages.svg"
BEGIN = "<!-- sizes: written by scripts/make_architecture.py -->"
END = "<!-- end of sizes -->"

# A few words per package. docs/map.md has the sentences.
LABELS = {
    "testing": "contracts of plug-ins",
    "cli": "the wattloop command",
    "serve": "the dashboard",
    "study": "six steps to a saving",
    "report": "HTML, PDF, figures, cards",
    "check": "energy as a CI gate",
    "advise": "what a run wasted",
    "schedule": "policies, simulator, Slurm",
    "tune": "hyper-parameter searches",
    "sweep": "levers varied",
    "cap": "best power cap",
    "bench": "kernel benchmark",
    "predict": "time, power, energy",
    "trials": "the resumable runner",
    "integrations": "training loops",
    "kernels": "six kernels",
    "analyze": "statistics over tables",
    "fleet": "node agent, delivery",
    "virtual": "the virtual GPU",
    "control": "levers, restore, daemon",
    "measure": "sessions, windows, sampling",
    "accounting": "carbon, cost, idle, metrics",
    "meters": "one module per sensor",
    "store": "journals, database",
    "hardware": "facts with sources",
    "core": "units, clock, errors, records",
}
# The question that a layer answers: the colour and the caption of its rows.
GROUPS = (
    ("show", "#dbe7f5", ("testing", "cli", "serve", "study", "report", "check", "advise")),
    ("decide", "#dff0e0", ("schedule", "tune", "sweep", "cap", "bench", "predict", "trials")),
    ("connect", "#f7ecd4", ("integrations", "kernels", "analyze", "fleet", "virtual")),
    ("measure and set", "#f6dfdc", ("control", "measure", "accounting", "meters")),
    ("record and know", "#e8e4f2", ("store", "hardware", "core")),
)
# At commit 84a5fc2f, counted by the same rules.
BEFORE = {
    "modules": 1200,
    "lines": 140245,
    "folders_over_20": 20,
    "homonyms": 113,
    "banned": 1194,
    "readme": 278,
}
GOALS = {
    "modules": 600,
    "lines": 115000,
    "folders_over_20": 0,
    "homonyms": 20,
    "banned": 20,
    "readme": 200,
}

WIDTH, ROW, GAP, LEFT, TOP = 900, 38, 6, 130, 34


def main() -> int:
    PICTURE.write_text(picture(layers()), "utf-8")
    text = PAGE.read_text("utf-8")
    pattern = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
    PAGE.write_text(pattern.sub(lambda _: f"{BEGIN}\n\n{sizes()}\n\n{END}", text), "utf-8")
    return 0


def layers() -> Sequence[Sequence[str]]:
    """Return packages from top to bottom; those in one row do not import each other."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    (rows,) = (each["layers"] for each in contracts if each["type"] == "layers")
    return [row.split(" | ") for row in rows]


def picture(rows: Sequence[Sequence[str]]) -> str:
    height = TOP + len(rows) * (ROW + GAP) + 10
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="13">',
        "<title>Packages of Wattloop: each imports only from rows below its own</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="21" fill="#333333">imports point down only</text>',
    ]
    for group, colour, members in GROUPS:
        inside = [number for number, row in enumerate(rows) if row[0] in members]
        top, bottom = TOP + inside[0] * (ROW + GAP), TOP + (inside[-1] + 1) * (ROW + GAP) - GAP
        middle = (top + bottom) / 2 + 4
        parts.append(
            f'<rect x="8" y="{top}" width="{LEFT - 18}" height="{bottom - top}" rx="4" '
            f'fill="{colour}"/><text x="{8 + (LEFT - 18) / 2}" y="{middle}" '
            f'text-anchor="middle" fill="#333333">{escape(group)}</text>'
        )
        for number in inside:
            parts.extend(_row(rows[number], TOP + number * (ROW + GAP), colour))
    return "\n".join([*parts, "</svg>", ""])


def _row(packages: Sequence[str], top: float, colour: str) -> Sequence[str]:
    width = (WIDTH - LEFT - 8 - GAP * (len(packages) - 1)) / len(packages)
    boxes = []
    for number, package in enumerate(packages):
        left = LEFT + number * (width + GAP)
        boxes.append(
            f'<rect x="{left:.1f}" y="{top}" width="{width:.1f}" height="{ROW}" rx="4" '
            f'fill="{colour}" stroke="#7a7a7a"/>'
            f'<text x="{left + width / 2:.1f}" y="{top + 16}" text-anchor="middle" '
            f'font-weight="bold" fill="#111111">{package}/</text>'
            f'<text x="{left + width / 2:.1f}" y="{top + 31}" text-anchor="middle" '
            f'font-size="11" fill="#333333">{escape(LABELS[package])}</text>'
        )
    return boxes


def sizes() -> str:
    ratchet = runpy.run_path(str(ROOT / "scripts" / "ratchet.py"))
    found = ratchet["measure_tree"]()
    source = ROOT / "src" / "wattloop"
    folders = [path for path in (source, *source.rglob("*")) if path.is_dir()]
    now = {
        "modules": found["modules"],
        "lines": found["lines"],
        "folders_over_20": sum(
            len([file for file in folder.glob("*.py") if file.name != "__init__.py"]) > 20
            for folder in folders
        ),
        "homonyms": found["class_names_with_several_meanings"],
        "banned": found["banned_words_in_src"] + found["banned_words_in_docs"],
        "readme": found["readme_lines"],
    }
    names = {
        "modules": "modules in `src`",
        "lines": "lines in `src`",
        "folders_over_20": "folders with more than 20 modules",
        "homonyms": "public class names with several meanings",
        "banned": "banned words in `src` and `docs`",
        "readme": "lines of README.md",
    }
    rows = [f"| {names[key]} | {BEFORE[key]:,} | {now[key]:,} | {GOALS[key]:,} |" for key in names]
    return "\n".join(["| | before | now | goal |", "|---|---|---|---|", *rows])


if __name__ == "__main__":
    sys.exit(main())
