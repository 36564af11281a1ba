"""Cost of the tuner itself: around a trial, and with ten thousand trials in its store.

python benchmarks/tune_overhead.py [--quick] [--json FILE] [--seconds S] [--pairs N]
"""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from bars import arguments, publish
from support.power_curves import Constant
from support.powercap_driver import Driver
from support.powercap_tree import PowercapTree
from tune_overhead_page import EPOCHS, REPEATS, TRIAL_S, Cost, Read, page_of
from tune_stores import fill, many_trials_spec
from wattloop.store.database import Store, open_store

HERE = Path(__file__).resolve().parent
READS = {
    "list": ["-m", "wattloop", "tune", "list"],
    "show": ["-m", "wattloop", "tune", "show", "last"],
    "best": ["-m", "wattloop", "tune", "best", "last"],
    "analyze_top": ["-m", "wattloop", "analyze", "top", "last"],
    "analyze_pareto": ["-m", "wattloop", "analyze", "pareto", "last"],
    "analyze_ols": ["-m", "wattloop", "analyze", "ols", "last"],
    "resume": [str(HERE / "tune_resume.py")],
}
QUICK = {name: READS[name] for name in ("list", "resume")}
OPTUNA = ("list", "best", "resume")


def main() -> int:
    parser = arguments("what the tuner itself costs")
    parser.add_argument("--seconds", type=float, default=TRIAL_S, help="length of a trial")
    parser.add_argument("--pairs", type=int, default=2, help="trials of each kind")
    parser.add_argument("--trials", type=int, default=10_000, help="in the store")
    args = parser.parse_args()
    if args.quick:
        args.seconds, args.pairs, args.trials = 0.6, 1, 300
    optuna = not args.quick and importlib.util.find_spec("optuna") is not None
    with tempfile.TemporaryDirectory() as folder, _machine(Path(folder)) as environment:
        bench = Bench(Path(folder), environment, optuna=optuna)
        costs = bench.costs(args.seconds, args.pairs)
        size_mb, reads = bench.reads(args.trials, QUICK if args.quick else READS)
    publish(page_of(costs, reads, args, size_mb), args)
    return 0


# -- around a trial ----------------------------------------------------------------------------


@contextmanager
def _machine(folder: Path) -> Iterator[dict[str, str]]:
    """Make one package that draws 50 W, without the user's own settings."""
    tree = PowercapTree(folder / "sys")
    package = tree.add_package(0, max_power_w=200, limit_w=150)
    kept = {k: v for k, v in os.environ.items() if not k.startswith("WATTLOOP")}
    environment = {
        **kept,
        "HOME": str(folder),
        "PYTHONPATH": os.pathsep.join([str(HERE.parent / "src"), str(HERE)]),
        "WATTLOOP_SYSFS_ROOT": str(folder / "sys"),
        "WATTLOOP_STATE_DIR": str(folder / "state"),
        "WATTLOOP_METERS": "rapl",
        "COLUMNS": "120",
    }
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    with Driver({package: Constant(50.0)}, update_period_s=0.05):
        yield environment


class Bench:
    """Runner of all measurements, each in a process of its own."""

    def __init__(self, folder: Path, environment: dict[str, str], *, optuna: bool) -> None:
        self._folder, self._environment, self._optuna = folder, environment, optuna

    def costs(self, seconds: float, pairs: int) -> dict[str, list[Cost]]:
        """Measure trials of each kind, in turns."""
        ways = ["nothing", "wattloop", *(["optuna"] if self._optuna else [])]
        probe = self._cost("nothing", units=10)
        units = max(1, round(10 * seconds / (EPOCHS * probe.epoch_cpu_s)))
        found: dict[str, list[Cost]] = {way: [] for way in ways}
        for _ in range(pairs):
            for way in ways:
                found[way].append(self._cost(way, units))
        return found

    def reads(
        self, trials: int, wanted: Mapping[str, Sequence[str]]
    ) -> tuple[float, dict[str, dict[str, Read]]]:
        """Return the size of the store in MB, and the times to read it."""
        path = self._folder / "many.db"
        with open_store(path) as store:
            search_id = fill(store, many_trials_spec(), trials)
            rival = self._rival(store, search_id)
        variables = {**self._environment, "WATTLOOP_STORE": str(path)}
        repeats = 1 if wanted is QUICK else REPEATS
        found = {"wattloop": {name: _read(w, variables, repeats) for name, w in wanted.items()}}
        if rival is not None:
            script = str(HERE / "tune_optuna.py")
            found["optuna"] = {
                name: _read([script, name, str(rival)], self._environment, repeats)
                for name in OPTUNA
            }
        return path.stat().st_size / 1e6, found

    def _cost(self, way: str, units: int) -> Cost:
        place = tempfile.mkdtemp(dir=self._folder)
        words = [sys.executable, str(HERE / "tune_cost.py"), way, place]
        words += ["--units", str(units), "--epochs", str(EPOCHS), "--trials", "1"]
        done = subprocess.run(
            words, env=self._environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"{way}: {done.stderr}")
        return Cost(**json.loads(done.stdout.splitlines()[-1]))

    def _rival(self, store: Store, search_id: str) -> Path | None:
        if not self._optuna:
            return None
        import tune_optuna

        tune_optuna.fill(self._folder / "optuna.db", store, search_id)
        return self._folder / "optuna.db"


def _read(words: Sequence[str], environment: dict[str, str], repeats: int) -> Read:
    """Return the shortest time: other load of the machine only makes it longer."""
    found = [_once([sys.executable, *words], environment) for _ in range(repeats)]
    failed = [read for read in found if read.error]
    return failed[0] if failed else min(found)


def _once(words: Sequence[str], environment: dict[str, str]) -> Read:
    with tempfile.TemporaryFile() as errors:
        begin_s = time.perf_counter()
        process = subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=errors)
        _, status, used = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - begin_s
        process.returncode = os.waitstatus_to_exitcode(status)
        errors.seek(0)
        said = errors.read().decode(errors="replace").strip().splitlines()
    error = (said or ["no reason"])[-1] if process.returncode else ""
    return Read(wall_s, used.ru_utime + used.ru_stime, error)


if __name__ == "__main__":
    sys.exit(main())
