"""Time of `wattloop run -- PROGRAM` before the program starts and after it has ended.

    python benchmarks/run_startup.py                      # this tree
    python benchmarks/run_startup.py --before OTHER_TREE  # runs of two trees, in turn

Medians of processor time and wall time. The program prints when it starts and how much processor
time wattloop had used by then.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parents[1]
PAGE = HERE / "docs" / "benchmarks" / "run_startup.md"
PROGRAM = ["sh", "-c", "read cpu rest < /proc/$PPID/schedstat; echo $cpu; date +%s%N"]


class Trial(NamedTuple):
    """Milliseconds of one run."""

    before_cpu: float
    before_wall: float
    after_cpu: float
    after_wall: float


def main() -> None:
    """Measure, print and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", metavar="TREE", help="an older source tree to compare with")
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--page", action="store_true", help=f"write {PAGE.relative_to(HERE)}")
    options = parser.parse_args()
    trees = {"now": HERE, **({"before": Path(options.before)} if options.before else {})}
    trials: dict[str, list[Trial]] = {name: [] for name in trees}
    with tempfile.TemporaryDirectory() as bytecode:
        for turn in range(options.runs + 1):
            for name, tree in trees.items():
                trial = one_run(tree, bytecode)
                if turn:  # the first one compiles, as an installation does
                    trials[name].append(trial)
    text = table(trials)
    print(text)
    if options.page:
        PAGE.write_text(page(text, options.runs), "utf-8")


def one_run(tree: Path, bytecode: str) -> Trial:
    """Run the program once under the wattloop of a tree."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        environment["PYTHONPYCACHEPREFIX"] = bytecode
        environment |= {"WATTLOOP_STORE": f"{folder}/runs.db", "XDG_RUNTIME_DIR": folder}
        command = [sys.executable, "-m", "wattloop.cli.main", "run", "-q", "--", *PROGRAM]
        began_ns = time.time_ns()
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, cwd=folder)
        assert process.stdout is not None
        told = process.stdout.read().split()
        _, status, used = os.wait4(process.pid, 0)
        ended_ns = time.time_ns()
        process.returncode = os.waitstatus_to_exitcode(status)
        process.stdout.close()
    cpu_ns, started_ns = (int(word) for word in told)
    total_ms = (used.ru_utime + used.ru_stime) * 1e3
    return Trial(
        cpu_ns / 1e6,
        (started_ns - began_ns) / 1e6,
        total_ms - cpu_ns / 1e6,
        (ended_ns - started_ns) / 1e6,
    )


def table(trials: dict[str, list[Trial]]) -> str:
    """Table of medians, one row per tree."""
    lines = [
        "| tree | before it starts: CPU | wall | after it ended: CPU | wall |",
        "|---|---|---|---|---|",
    ]
    for name in sorted(trials):
        medians = [statistics.median(column) for column in zip(*trials[name], strict=True)]
        lines.append(f"| {name} | " + " | ".join(f"{m:.0f} ms" for m in medians) + " |")
    return "\n".join(lines)


def page(text: str, runs: int) -> str:
    """Make the page of the documentation."""
    load = os.getloadavg()[0]
    return (
        "# What `wattloop run` takes around a program\n\n"
        f"Medians of {runs} alternating runs of a program that does nothing, each with a new "
        f"store, on {os.cpu_count()} cores with a load of {load:.0f}. Written by "
        "`python benchmarks/run_startup.py --page`.\n\n"
        f"{text}\n\n"
        "The modules are compiled beforehand, as an installation does. After the program, the run "
        "is put into a SQLite store through the standard library (`store/sqlite_import`): loading "
        "SQLAlchemy took 200 ms, longer than everything else. The rows are built by the same "
        "functions for both ways, and a test compares every table. Everything but a new or "
        "current store and a run of its own job is left to the full importer. An import in the "
        "background was rejected: it only hides the time, and `wattloop runs show last` right "
        "after a run would not find it. Leaving the journal to the next command was rejected for "
        "the same reason: other programs read the store.\n"
    )


if __name__ == "__main__":
    main()
