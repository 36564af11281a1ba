"""Commands on pages of the documentation: found, run, and compared with the output shown there.

A ```` ```console ```` block has lines `$ COMMAND` with what they print below. A block of another
language whose first line is a comment with the name of a file (`# train.py`) is that file. The
commands of a page run one after the other in one folder, as a reader follows them.

To write the outputs of today into a page:

    python -m tests.support.transcripts docs/start.md

Pictures of a page that its commands write are copied as well.
"""

import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.support import warm_start
from tests.support.environment import without

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"^# ([\w-]+\.(?:py|yaml|csv))\n")
DIGITS = r"\d+(?:[.,]\d+)*"
NUMBER = rf"[-+]?{DIGITS}(?:e[-+]?\d+)?"
UNIT = r"(?:[µmkM]?J|[µumn]?s|min|h|[mkM]?Wh?|[mk]?g)"
AMOUNT = rf"{NUMBER}\s+{UNIT}(?:\s+\d\d (?:s|min))?"
"""With the second part of `3 min 05 s`, which a slower machine has instead of `41 s`."""
CHANGE = rf"(?:[-+]{DIGITS}%(?: ± (?:< )?{DIGITS}%)?|< ±0\.1%|x {DIGITS}(?: ± {DIGITS})?)"
"""As a percentage, and from tenfold on as a factor."""
IDENTIFIER = r"\d{8}-\d{6}-[0-9a-f]+"
TOKEN = re.compile(
    rf"(?P<rest>\.\.\.)|(?P<identifier>{IDENTIFIER})|(?P<change>{CHANGE})|(?P<amount>{AMOUNT}(?![\w/]))"
    rf"|(?P<number>{NUMBER})|(?P<space>\s+)|(?P<word>[^\s\d]|\d)"
)
ANY = {
    "rest": ".*",
    "identifier": IDENTIFIER,
    "change": CHANGE,
    "number": rf"(?:< )?{NUMBER}",
    "space": r"\s+",
}
MARKS = re.compile(
    r" \(within (?:uncertainty|noise)\)|(?<=\S) [*?](?=\s|$)"
    # only large energies have them: a busy machine takes longer
    r"|(?<=J) \([\d.]+ Wh\)|(?<=Wh) \([\d.]+ [kMG]J\)"
)
VERDICT = re.compile(r"^\S+ (?:is better than|against) \S+: .+$")
"""Which of two runs is better, and whether that is certain, follows from their numbers, too."""
CHOICE = re.compile(r"^(?:best|no setting (?:surely )?beats the default|\.\.\.) ?for (\w+)\b.*$")
"""Which setting of a sweep is best, and how surely."""
NO_ADVICE = "wattloop: nothing to advise"
SLOW_START = "the energy of the start-up beyond 15 s"
"""The only advice that a run gets because the machine is busy."""
SHELL = re.compile(r"[|<>&;*?$`\\]")
QUIET = re.compile(r"wattloop: (?:warning: )?(?:beginning|the machine is not quiet|left out: )")


@dataclass(frozen=True)
class Step:
    """One command and the lines shown below it."""

    command: str
    shown: tuple[str, ...]


def page_parts(text: str) -> Iterator[tuple[str, str]]:
    """Yield ("file", text of a file with its name first) and ("console", block), in order."""
    for language, body in FENCE.findall(text):
        if language == "console":
            yield "console", body
        elif FILE.match(body):
            yield "file", body


def steps_of(block: str) -> list[Step]:
    """Return the commands of a console block; a trailing backslash continues a command."""
    parts = re.split(r"^\$ ", block.replace("\\\n", " "), flags=re.MULTILINE)[1:]
    lines = [part.rstrip("\n").split("\n") for part in parts]
    return [Step(re.sub(r"\s+", " ", first), tuple(rest)) for first, *rest in lines]


def shape(line: str) -> re.Pattern[str]:
    """Return a pattern for lines of the same shape: other numbers, units, widths, names."""
    pieces = []
    for found in TOKEN.finditer(line.rstrip()):
        kind, text = found.lastgroup, found[0]
        if kind == "amount":
            pieces.append(AMOUNT)
        else:
            pieces.append(ANY.get(kind or "", re.escape(text)))
    return re.compile("".join(pieces))


def not_printed(shown: tuple[str, ...], printed: list[str]) -> list[str]:
    """Return the shown lines that match no printed line."""
    printed = [_without_marks(line) for line in printed]
    if shown and shown[0].startswith(NO_ADVICE) and any(SLOW_START in line for line in printed):
        return []
    return [
        line
        for line in shown
        if line.strip() and line.strip() != "..." and not _is_printed(_without_marks(line), printed)
    ]


def _is_printed(line: str, printed: list[str]) -> bool:
    pattern = shape(line)
    return any(line == each or pattern.fullmatch(each) for each in printed)


def _without_marks(line: str) -> str:
    """Remove the marks of the best value and of chance: they follow from the numbers."""
    return CHOICE.sub(r"(best for \1)", VERDICT.sub("(verdict)", MARKS.sub("", line).rstrip()))


@dataclass
class Session:
    """A reader's shell: one folder, one store, the machine's estimate and virtual GPUs."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        kept = without("WATTLOOP_", "SLURM_")
        self.environment = {
            **kept,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT / "src"),
            "HOME": str(self.folder),
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "100",
            "NO_COLOR": "1",
            "WATTLOOP_STORE": str(self.folder / ".wattloop" / "runs.db"),
            "WATTLOOP_STATE_DIR": str(self.folder / ".wattloop" / "state"),
            "WATTLOOP_VIRTUAL_STATE": str(self.folder / ".wattloop" / "virtual"),
            "XDG_CONFIG_HOME": str(self.folder / ".config"),
            "XDG_CACHE_HOME": str(self.folder / ".cache"),
            "XDG_RUNTIME_DIR": str(self.folder),
            **self.environment,
        }
        examples = self.folder / "examples"
        if not examples.exists():
            examples.symlink_to(ROOT / "examples")

    def write(self, body: str) -> None:
        """Write a file that a page shows."""
        found = FILE.match(body)
        assert found is not None
        (self.folder / found[1]).write_text(body)

    def run(self, command: str) -> list[str]:
        """Run one command line and return its output.

        Raises:
            AssertionError: it failed, and does not end with `|| true`.
        """
        words = shlex.split(command)
        if words[0] == "export":
            self.environment.update(word.split("=", 1) for word in words[1:])
            return []
        if words[0] == "wattloop" and not SHELL.search(command):
            line = [sys.executable, "-m", *words]
        else:
            line = ["/bin/sh", "-c", _with_interpreter(command)]
        done = warm_start.run(line, env=self.environment, cwd=self.folder, merged=True, timeout=600)
        assert done.returncode == 0, f"$ {command}\n{done.stdout}"
        return done.stdout.splitlines()


def _with_interpreter(command: str) -> str:
    program = f"{shlex.quote(sys.executable)} -m wattloop "
    return re.sub(r"^((?:\w+=\S+ )*)wattloop ", lambda found: found[1] + program, command)


def follow(text: str, session: Session, changes: Mapping[str, str] | None = None) -> list[str]:
    """Run a page; return its shown lines that were not printed, each with its command.

    Args:
        text: the page.
        session: where to run it.
        changes: parts of commands that are replaced, so that less work is done.
    """
    wrong = []
    for kind, body in page_parts(text):
        if kind == "file":
            session.write(body)
            continue
        for step in steps_of(body):
            command = step.command
            for old, new in (changes or {}).items():
                command = command.replace(old, new)
            printed = session.run(command)
            wrong += [
                f"$ {command}\n  shown: {line}\n  printed: " + "\n           ".join(printed)
                for line in not_printed(step.shown, printed)
            ]
    return wrong


def refreshed(text: str, session: Session) -> str:
    """Return a page with the outputs of today; lines around `...` stay unchanged."""

    def again(found: re.Match[str]) -> str:
        language, body = found[1], found[2]
        if language != "console":
            if FILE.match(body):
                session.write(body)
            return found[0]
        lines = []
        for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
            (step,) = steps_of("$ " + part)
            printed = [line.rstrip() for line in session.run(step.command)]
            shown = "\n".join(line for line in printed if not QUIET.match(line)).strip("\n")
            command = part[: len(part) - len("\n".join(step.shown)) - 1].rstrip("\n")
            if any(line.strip() == "..." or "..." in line for line in step.shown):
                shown = "\n".join(step.shown).rstrip("\n")
            lines.append(f"$ {command}" + (f"\n{shown}" if shown else ""))
        return "```console\n" + "\n".join(lines) + "\n```"

    return FENCE.sub(again, text)


def pictures(text: str, folder: Path) -> dict[str, Path]:
    """Return pictures of a page that its commands write: `images/gallery/a-b.svg` is `a/b.svg`.

    Raises:
        FileNotFoundError: no command wrote one of them.
    """
    names = re.findall(r"\]\((images/gallery/[\w-]+\.svg)\)", text)
    written = {
        "-".join(each.relative_to(folder).parts): each
        for each in folder.rglob("*.svg")
        if not each.is_relative_to(folder / "examples")
    }
    missing = [name for name in names if Path(name).name not in written]
    if missing:
        raise FileNotFoundError(f"no command of the page wrote {', '.join(missing)}")
    return {name: written[Path(name).name] for name in names}


def main(pages: list[str]) -> None:
    """Write the outputs of today into pages."""
    import tempfile

    for page in pages:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(page)
            text = refreshed(path.read_text("utf-8"), Session(Path(folder)))
            path.write_text(text)
            for picture, source in pictures(text, Path(folder)).items():
                (path.parent / picture).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, path.parent / picture)


if __name__ == "__main__":
    main(sys.argv[1:])
