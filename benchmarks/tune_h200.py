"""SM2 and race on real trainings: table 1 of Geißler et al., on the GPU of this machine.

    python benchmarks/tune_h200.py [--scenario NAME ...] [--json FILE]
    python benchmarks/tune_h200.py --from-json FILE ...
    python benchmarks/tune_h200.py --quick

Trainings (benchmarks/scenarios), each once without a search from several seeds, by `sm2` with
alpha 1 and 0.75, and by `race` without power caps, all to the same rule of early stopping. The
GPU is only read: no limit, clock or mode is ever set. Every finished training is written to the
JSON file at once; stored trainings are not repeated, and files of several runs make one page:
those of docs/benchmarks/tune_h200.md are in benchmarks/data/h200.
"""

import argparse
import gzip
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bars import arguments, machine, publish
from tune_h200_course import Clock
from tune_h200_figures import save_figures
from tune_h200_loader import loader_rows
from tune_h200_page import page_of
from tune_h200_runs import scenario_runs

SCENARIOS = ("resnet18", "lstm", "transformer", "transformer-adamw")


def main() -> int:
    chosen = parsed()
    if chosen.from_json:
        page = page_of([_measured(Path(f)) for f in chosen.from_json])
        publish(page, chosen)
        if chosen.figures:
            save_figures(page.details, Path(chosen.figures))
        return 0
    import torch

    if not chosen.quick and not torch.cuda.is_available():
        print(
            "tune_h200: no CUDA GPU here; try it with --quick, or make the page of measured files "
            "with --from-json",
            file=sys.stderr,
        )
        return 2
    device = torch.device("cuda" if torch.cuda.is_available() and not chosen.cpu else "cpu")
    if chosen.quick:
        torch.set_num_threads(1)  # tiny models; other programs may want the rest
    os.environ.setdefault("WATTLOOP_STORE", str(Path(chosen.work) / "runs.db"))
    found = Found(chosen, torch, device)
    clock = Clock(chosen.seconds)
    for name in chosen.scenario or [*SCENARIOS, "loader"]:
        if name == "loader":
            if "loader" not in found.data:
                found.data["loader"] = loader_rows(device, quick=chosen.quick)
                found.write()
            continue
        scenario_runs(name, device, chosen, clock, found)
    publish(page_of([found.data]), chosen)
    return 0


def _measured(path: Path) -> dict[str, Any]:
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        return dict(json.load(file))


def parsed() -> argparse.Namespace:
    parser = arguments("sm2 and race on real trainings against training without a search")
    parser.add_argument(
        "--scenario",
        nargs="+",
        choices=(*SCENARIOS, "loader"),
        help="only these; loader compares ways to batches",
    )
    parser.add_argument("--seeds", type=int, default=2, help="of trainings without a search")
    parser.add_argument(
        "--only", nargs="+", metavar="KIND", help="of vanilla, sm2-0.75, sm2-1, race"
    )
    parser.add_argument("--from-json", nargs="+", metavar="FILE", help="make the page from these")
    parser.add_argument(
        "--figures", metavar="DIR", help="with --from-json: figures 1 and 2 of each scenario"
    )
    parser.add_argument(
        "--seconds", type=float, help="begin no segment after so long; what is done is kept"
    )
    parser.add_argument("--cpu", action="store_true", help="on the CPU, to try the program")
    parser.add_argument(
        "--work", default=tempfile.gettempdir(), help="folder for the journal of the measurement"
    )
    chosen = parser.parse_args()
    chosen.cpu = chosen.cpu or chosen.quick
    return chosen


class Found:
    """All measurements so far, from the JSON file if it exists."""

    def __init__(self, chosen: argparse.Namespace, torch: Any, device: Any) -> None:
        self._path = Path(chosen.json) if chosen.json and chosen.json != "-" else None
        self.data: dict[str, Any] = {"scenarios": {}}
        if self._path is not None and self._path.exists():
            self.data = json.loads(self._path.read_text())
        name = torch.cuda.get_device_name() if device.type == "cuda" else "a CPU"
        self.data["machine"] = f"{name}; {machine()}"
        self.data["versions"] = {"torch": torch.__version__}
        self.data["made"] = time.strftime("%Y-%m-%d")
        self.data["quick"] = chosen.quick

    def write(self) -> None:
        """Write the file, so that an interrupted run loses no finished training."""
        if self._path is not None:
            partly = self._path.with_suffix(".partly")
            partly.write_text(json.dumps(self.data, indent=1, default=str))
            partly.replace(self._path)


if __name__ == "__main__":
    sys.exit(main())
