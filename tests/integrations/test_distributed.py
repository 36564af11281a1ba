import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.conftest import Machine
from tests.support.synthetic_energy import about_j
from wattloop.integrations.distributed import measured_together
from wattloop.integrations.training_meter import TrainingMeter

SCRIPT = Path(__file__).with_name("rank_script.py")
RANKS = 2


def run_ranks(command: list[str], machine: Machine, output: Path) -> list[dict[str, Any]]:
    source = str(Path(__file__).parents[2] / "src")
    environment = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((output / f"{rank}.json").read_text()) for rank in range(RANKS)]


def check(facts: list[dict[str, Any]], machine: Machine) -> None:
    assert all(f["fault"] is None and f["steps"] == 10 for f in facts)
    assert [f["counted"] for f in facts].count(True) == 1
    # They began and ended together: no rank went ahead of the last one.
    assert min(f["begin_s"] for f in facts) >= max(f["arrived_s"] for f in facts)
    assert min(f["end_s"] for f in facts) >= max(f["done_s"] for f in facts)
    (node,) = facts[0]["job"]["nodes"]
    assert node["ranks"] == RANKS
    counting_s = next(f["end_s"] - f["begin_s"] for f in facts if f["counted"])
    assert node["energy_j"] == about_j(machine.power_w, counting_s, machine.driver, rel=0.2)
    assert node["columns"]["Pkg (J)"] > node["columns"]["RAM (J)"] > 0
    assert all("job" not in f for f in facts[1:])


def test_torchrun_counts_devices_once(machine: Machine, tmp_path: Path) -> None:
    """Promise: ranks under torchrun begin and end together; one counts; rank 0 has the table."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone",
        f"--nproc-per-node={RANKS}", str(SCRIPT), "torch", str(tmp_path),
    ]  # fmt: skip
    check(run_ranks(command, machine, tmp_path), machine)
    ends = [j.end for j in machine.journals()]
    assert [e["counted"] for e in ends if e is not None].count(True) == 1


def test_mpirun_counts_devices_once(machine: Machine, tmp_path: Path) -> None:
    """Promise: the same under mpirun, through mpi4py."""
    mpirun_of_python = Path(sys.executable).with_name("mpirun")
    mpirun = str(mpirun_of_python) if mpirun_of_python.exists() else shutil.which("mpirun")
    if mpirun is None:
        pytest.skip("mpirun is not installed")
    if importlib.util.find_spec("mpi4py") is None:
        pytest.skip("mpi4py is not installed")
    command = [mpirun, "--oversubscribe", "--allow-run-as-root", "-n", str(RANKS)]
    command += [sys.executable, str(SCRIPT), "mpi", str(tmp_path)]
    check(run_ranks(command, machine, tmp_path), machine)


def test_a_job_of_one_process_has_its_table_too(machine: Machine) -> None:
    """Promise: the same program runs unchanged without a launcher."""
    with measured_together(TrainingMeter()) as job:
        job.meter.step_done()
    assert job.energy is not None
    assert len(job.energy.nodes) == 1
    assert job.energy.energy_j == job.meter.run.energy_j if job.meter.run else False
