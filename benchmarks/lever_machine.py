"""A machine with levers of several kinds, for programs that are killed on it."""

import os
import random
import shutil
from pathlib import Path

from support.cpufreq_tree import GOVERNORS, CpufreqTree
from support.nvml_stub import StubNvml
from support.nvml_stub.state import SEGMENTS
from support.powercap_tree import PowercapTree

SRC = Path(__file__).resolve().parent.parent / "src"
GPUS = 2


class LeverMachine:
    """Two stub GPUs, two cpufreq policies that differ, and two packages with power limits."""

    def __init__(self, folder: Path, library: Path) -> None:
        self.folder = folder
        root = folder / "sys"
        self.cpufreq = CpufreqTree(root)
        self.cpufreq.add_policy()
        self.cpufreq.add_policy()
        tree = PowercapTree(root)
        self.packages = [
            tree.add_package(i, max_power_w=250, limit_w=150).directory for i in range(2)
        ]
        self.stub = StubNvml(library, gpus=GPUS)
        self.state = folder / "state"

    def __enter__(self) -> "LeverMachine":
        self.stub.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.stub.__exit__(None, None, None)

    @property
    def environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("WATTLOOP", "XDG"))}
        return {
            **kept,
            **self.stub.environment,
            "PYTHONPATH": str(SRC),
            "HOME": str(self.folder),
            "WATTLOOP_SYSFS_ROOT": str(self.folder / "sys"),
            "WATTLOOP_STATE_DIR": str(self.state),
            "WATTLOOP_STORE": str(self.folder / "runs.db"),
            "WATTLOOP_METERS": "nvidia",
        }

    def shuffle(self, rng: random.Random) -> None:
        """Set other previous values than last time, so that a leftover value is detected."""
        for index in range(GPUS):
            card = self.stub.gpu(index)
            now = card.segments[(card.segment_count - 1) % SEGMENTS]
            now.limit_w = float(rng.randrange(400, 701))
        for policy in self.cpufreq.policies:
            policy.put("scaling_governor", rng.choice(GOVERNORS.split()))
            policy.put("scaling_min_freq", rng.randrange(800, 1500) * 1_000)
            policy.put("scaling_max_freq", rng.randrange(2500, 3501) * 1_000)
        for package in self.packages:
            limit = package / "constraint_0_power_limit_uw"
            limit.write_text(f"{rng.randrange(160, 251) * 1_000_000}\n")

    def settings(self) -> dict[str, object]:
        """Return every setting as the machine has it, read without wattloop."""
        found: dict[str, object] = {}
        for index in range(GPUS):
            found |= {f"gpu:{index} {k}": v for k, v in self.stub.settings(index)._asdict().items()}
        for policy in self.cpufreq.policies:
            for leaf in ("scaling_governor", "scaling_min_freq", "scaling_max_freq"):
                found[f"{policy.directory.name} {leaf}"] = policy.read(leaf)
        for package in self.packages:
            limit = package / "constraint_0_power_limit_uw"
            found[f"{package.name} limit"] = limit.read_text().strip()
        return found

    def forget_runs(self) -> None:
        """Make a new store for each program."""
        for path in self.folder.glob("runs.db*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
