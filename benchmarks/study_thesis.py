"""The study of docs/study.md: its five steps as a user types them.

    python benchmarks/study_thesis.py [--docs docs/study.md]

Prints the output of the steps; with `--docs` it replaces the transcript on that page. Everything is
simulated, so that the numbers change only with the simulator, the policies or the estimates.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

STEPS = ("baseline", "characterize", "simulate", "decide", "validate")
TRANSCRIPT = re.compile(r"(?:^    \$ wattloop study .*\n(?:(?:    .*)?\n)*)+", re.MULTILINE)


def main() -> int:
    parser = argparse.ArgumentParser(description="run the study of the documentation again")
    parser.add_argument("--docs", type=Path, help="page whose transcript is replaced")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        transcript = run_steps(Path(folder))
    sys.stdout.write(transcript)
    if args.docs is not None:
        page = args.docs.read_text("utf-8")
        args.docs.write_text(TRANSCRIPT.sub(lambda _: indented(transcript), page, count=1), "utf-8")
    return 0


def run_steps(folder: Path, steps: tuple[str, ...] = STEPS) -> str:
    """Return the output of the steps, each after its command."""
    _wattloop(folder, "init")
    shown = [f"$ wattloop study {step}\n{_wattloop(folder, step)}\n" for step in steps]
    return "".join(shown)


def indented(transcript: str) -> str:
    """Indent as a block of code in Markdown."""
    return "".join(f"    {line}\n" if line else "\n" for line in transcript.splitlines())


def _wattloop(folder: Path, step: str) -> str:
    environment = {
        **os.environ,
        "COLUMNS": "120",
        "WATTLOOP_STORE": str(folder / "runs.db"),
        "WATTLOOP_STATE_DIR": str(folder / "state"),
    }
    done = subprocess.run(
        [sys.executable, "-m", "wattloop.cli.main", "study", step],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("wattloop: beginning "))


if __name__ == "__main__":
    sys.exit(main())
