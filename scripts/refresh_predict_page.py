"""Run the commands of docs/predict.md and write their output below them, and in the README.

python scripts/refresh_predict_page.py, from the root of the repository; needs the extras torch, hf
and figures. Constants that ship with the package change the numbers, not the page.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "predict.md"
README = ROOT / "README.md"
WHOLE, TABLE = 99, 6
KEPT = {
    "save-workload": WHOLE,
    "inspect": 14,
    "--node": 17,
    "--model models.py:make --batch": TABLE,
    "--input": TABLE,
}
"""Lines of output to keep, by what is in the command; all of them for tables of sweeps."""
SAID = (
    "note: input:",
    "note: loss:",
    "note: node: assumed",
    "note: 'a100'",
    "note: energy",
    "wattloop:",
)
"""Messages worth showing."""


def main() -> None:
    """Rewrite both files."""
    text = PAGE.read_text()
    with tempfile.TemporaryDirectory() as folder:
        own = next(c for c in _blocks("python", text) if "def make" in c)
        Path(folder, "models.py").write_text(own)
        PAGE.write_text(
            re.sub(
                r"^```console\n\$ (.*?)\n.*?^```$",
                lambda found: f"```console\n$ {found[1]}\n{_output(found[1], folder)}\n```",
                text,
                flags=re.MULTILINE | re.DOTALL,
            )
        )

    readme = README.read_text()
    for block in _blocks("console", PAGE.read_text()):
        command, *shown = block.splitlines()
        beginning = re.escape(f"    {command}\n")
        below = "".join(f"    {line}\n" for line in shown[:TABLE])
        readme = re.sub(
            f"({beginning})(?:    .*\n)*", lambda found, below=below: found[1] + below, readme
        )
    README.write_text(readme)


def _blocks(language: str, text: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def _output(command: str, folder: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "wattloop", *shlex.split(command)[1:]],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT / "src"),
            "HOME": folder,
            "XDG_CONFIG_HOME": folder,
        },
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.rstrip("\n").splitlines()
    if "inspect" in command:
        lines = lines[next(i for i, line in enumerate(lines) if line.startswith("module")) :]
    most = next((count for what, count in KEPT.items() if what in command), WHOLE)
    shown = lines[:most] + (["..."] if len(lines) > most else [])
    said = [line for line in done.stderr.splitlines() if line.startswith(SAID)]
    return "\n".join([*shown, *said])


if __name__ == "__main__":
    main()
