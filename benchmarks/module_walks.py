"""Modules of Wattloop in which a function runs, command by command.

A measure of the code that a newcomer has to read in order to follow a command: `run -- true`,
`predict --model hf:gpt2 --gpu h200` and `cap find` on a virtual GPU. A module counts when one of
its functions is called in the process of the command. Bodies of modules and classes, which run at
import, do not count, nor do other processes.

    python benchmarks/module_walks.py               # print the table
    python benchmarks/module_walks.py --write       # and write it into docs/architecture.md
    python benchmarks/module_walks.py --list predict
"""

import argparse
import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "wattloop"
PAGE = ROOT / "docs" / "architecture.md"
BEGIN = "<!-- module walks: written by benchmarks/module_walks.py -->"
END = "<!-- end of module walks -->"
COMPREHENSIONS = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"})


@dataclass(frozen=True, slots=True)
class Walk:
    """A command, the count before the restructuring and the count aimed for."""

    name: str
    arguments: Sequence[str]
    before: int
    goal: int
    environment: Mapping[str, str]


WALKS = (
    Walk("run", ("run", "--", "true"), 94, 50, {}),
    Walk("predict", ("predict", "--model", "hf:gpt2", "--gpu", "h200"), 106, 60, {}),
    Walk(
        "cap find",
        ("cap", "find", "--metric", "eds", "--", sys.executable, "-m", "wattloop.virtual.train"),
        153,
        80,
        {"WATTLOOP_VIRTUAL_GPUS": "1"},
    ),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write the table into {PAGE.name}")
    parser.add_argument("--list", metavar="WALK", help="print the modules of one walk")
    parser.add_argument("--json", type=Path, help="write the modules of every walk as JSON")
    parser.add_argument("--record", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("command", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.record is not None:
        return _record(options.record, options.command)
    if options.list is not None:
        (walk,) = (each for each in WALKS if each.name == options.list)
        print("\n".join(modules_of(walk)))
        return 0
    found = {walk.name: modules_of(walk) for walk in WALKS}
    table = format_table({name: len(modules) for name, modules in found.items()})
    print(table)
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    if options.write:
        _write(table)
    return 0


def modules_of(walk: Walk) -> Sequence[str]:
    """Run a command in a process of its own and return the modules that it passed through."""
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "modules.json"
        unset = {name: text for name, text in os.environ.items() if name[:9] != "WATTLOOP_"}
        places = {
            "WATTLOOP_STORE": f"{folder}/runs.db",
            "WATTLOOP_STATE_DIR": f"{folder}/state",
            "WATTLOOP_VIRTUAL_STATE": f"{folder}/virtual",
            "XDG_CACHE_HOME": f"{folder}/cache",
            "XDG_CONFIG_HOME": folder,
            "XDG_RUNTIME_DIR": folder,
            "PYTHONPATH": str(ROOT / "src"),
        }
        own = [sys.executable, str(Path(__file__).resolve()), "--record", str(record), "--"]
        done = subprocess.run(
            [*own, *walk.arguments],
            cwd=folder,
            env={**unset, **places, **walk.environment},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        if done.returncode != 0:
            raise SystemExit(f"wattloop {' '.join(walk.arguments)} failed:\n{done.stderr}")
        modules: list[str] = json.loads(record.read_text())
        return modules


def format_table(found: Mapping[str, int]) -> str:
    rows = ["| command | modules before | modules now | goal |", "|---|---|---|---|"]
    for walk in WALKS:
        words = ["COMMAND" if word == sys.executable else word for word in walk.arguments]
        shown = " ".join(words[: words.index("COMMAND") + 1] if "COMMAND" in words else words)
        rows.append(f"| `wattloop {shown}` | {walk.before} | {found[walk.name]} | {walk.goal} |")
    return "\n".join(rows)


def _record(path: Path, command: Sequence[str]) -> int:
    """Run `wattloop` with these arguments and write the modules in which a function ran."""
    from wattloop.cli.main import main as wattloop

    files: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        # Only functions have optimized locals: bodies of modules and classes do not.
        function = code.co_flags & inspect.CO_OPTIMIZED and code.co_name not in COMPREHENSIONS
        if event == "call" and function:
            files.add(code.co_filename)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        status = wattloop(list(command))
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]  # None ends it, as sys.setprofile's
    inside = (Path(file).relative_to(SOURCE) for file in files if Path(file).is_relative_to(SOURCE))
    path.write_text(json.dumps(sorted(str(file.with_suffix("")) for file in inside)))
    return status


def _write(table: str) -> None:
    pattern = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
    text, count = pattern.subn(lambda _: f"{BEGIN}\n\n{table}\n\n{END}", PAGE.read_text("utf-8"))
    if count != 1:
        raise SystemExit(f"{PAGE} has no place for the table: it lies between {BEGIN} and {END}")
    PAGE.write_text(text, "utf-8")


if __name__ == "__main__":
    sys.exit(main())
