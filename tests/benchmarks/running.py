"""Benchmarks run as users run them: as programs, from the repository."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support import warm_start

REPOSITORY = Path(__file__).resolve().parents[2]


def run_benchmark(
    name: str, *words: str, cwd: Path = REPOSITORY, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run `benchmarks/NAME.py` with these arguments and additional environment variables."""
    command = [sys.executable, str(REPOSITORY / "benchmarks" / f"{name}.py"), *words]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src"), **variables}
    return warm_start.run(command, env=environment, cwd=cwd)


def quick_bars(name: str, folder: Path, *words: str, **variables: str) -> dict[str, dict[str, Any]]:
    """Return the bars of a successful quick run, by name."""
    target = folder / "bars.json"
    done = run_benchmark(name, "--quick", "--json", str(target), *words, **variables)
    assert done.returncode == 0, done.stderr
    return {bar["name"]: bar for bar in json.loads(target.read_text())["bars"]}
