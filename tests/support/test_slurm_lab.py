"""Promises of a real Slurm for tests: fake GPUs, hooks, users, and daemons that can be killed."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.slurm_lab import SlurmLab, why_no_slurm
from wattloop.core.errors import CommandError

pytestmark = pytest.mark.skipif(bool(why_no_slurm()), reason=why_no_slurm() or "-")

LUA = """
function slurm_job_submit(job, parts, uid)
    if job.name == "refused" then
        slurm.log_user("no such name here")
        return slurm.ERROR
    end
    return slurm.SUCCESS
end
function slurm_job_modify(job, record, parts, uid) return slurm.SUCCESS end
"""
HOOK = '#!/bin/sh\necho "$WATTLOOP_NODE $SLURM_JOB_GPUS" >"$NOTES/{name}.$SLURM_JOB_ID"\n'


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmLab]:
    folder = tmp_path_factory.mktemp("lab")
    hooks = {name: folder / name for name in ("prolog", "epilog")}
    for name, hook in hooks.items():
        hook.write_text(HOOK.format(name=name))
        hook.chmod(0o755)
    with SlurmLab(
        folder,
        nodes=2,
        gpus=2,
        **hooks,
        lua=LUA,
        extra="MinJobAge=77",
        environment={"NOTES": "{folder}/virtual"},
    ) as lab:
        (lab.folder / "virtual").chmod(0o777)
        yield lab


def test_a_job_gets_gpus_and_the_environment_of_its_node(lab: SlurmLab) -> None:
    """A job sees its fake GPUs, and the virtual GPUs of the node it runs on."""
    command = "echo $CUDA_VISIBLE_DEVICES $WATTLOOP_VIRTUAL_STATE >$NOTES/job"
    lab.submit(command, "--gres=gpu:2", "-w", "n2")
    lab.wait_for_jobs()
    assert _note(lab, "job") == f"0,1 {lab.folder}/virtual/n2.state"
    assert lab.environment_of("n2")["WATTLOOP_VIRTUAL_STATE"] == f"{lab.folder}/virtual/n2.state"


def test_a_job_of_another_user_runs_as_that_user(lab: SlurmLab) -> None:
    """Jobs of several Unix users can be submitted."""
    lab.submit("id -un -g >$NOTES/who; id -un >>$NOTES/who", user="games")
    lab.wait_for_jobs()
    assert _note(lab, "who").split()[-1] == "games"


def test_prolog_and_epilog_know_node_job_and_gpus(lab: SlurmLab) -> None:
    """Hooks run with the environment of their node."""
    number = lab.submit("true", "--gres=gpu:1", "-w", "n1")
    lab.wait_for_jobs()
    assert _note(lab, f"prolog.{number}") == "n1 0"
    assert _note(lab, f"epilog.{number}") == "n1 0"


def test_the_submit_script_and_extra_lines_are_in_force(lab: SlurmLab) -> None:
    """A job_submit.lua can refuse a job, and lines of slurm.conf replace the lab's own."""
    with pytest.raises(CommandError, match="no such name here"):
        lab.submit("true", "--job-name=refused")
    assert "MinJobAge               = 77 sec" in lab.run("scontrol", "show", "config")


def test_daemons_can_be_killed_and_started_again(lab: SlurmLab, tmp_path: Path) -> None:
    """A running job survives the end of its node's slurmd and of the controller."""
    up = tmp_path / "up"
    number = lab.submit(f"touch {up}; sleep 1000", "--gres=gpu:1", "-w", "n1")
    # Slurm calls it running before its node has started it; killed by then, it is queued again.
    lab.wait(up.exists, "the job does not begin")
    lab.kill("n1")
    lab.start("n1")
    lab.restart("slurmctld")
    lab.wait_until_idle()
    assert lab.job_state(number) == "RUNNING"
    lab.run("scancel", str(number))
    lab.wait_for_jobs()


def test_nothing_outlives_a_test_that_is_killed(lab: SlurmLab, tmp_path: Path) -> None:
    """After SIGKILL of the process that made a lab, its daemons, jobs and folder are gone."""
    script = tmp_path / "script.py"
    script.write_text(
        "from tests.support.slurm_lab import SlurmLab\n"
        "lab = SlurmLab(nodes=1, gpus=1).__enter__()\n"
        "lab.wait_for_state(lab.submit('sleep 1000', '--export=NONE'), 'RUNNING')\n"
        "print(lab.folder, lab.port, flush=True)\n"
        "input()\n"
    )
    with subprocess.Popen(
        [sys.executable, str(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
    ) as process:
        assert process.stdout is not None
        folder, port = process.stdout.readline().split()
        assert _processes_of(folder, port)
        process.send_signal(signal.SIGKILL)
        process.wait()
    lab.wait(lambda: not Path(folder).exists(), "the other lab's folder stays")
    assert not _processes_of(folder, port)


def _note(lab: SlurmLab, name: str) -> str:
    return (lab.folder / "virtual" / name).read_text().strip()


def _processes_of(folder: str, port: str) -> list[str]:
    """Return the commands whose environment or arguments name the lab."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            text = (process / "environ").read_bytes() + (process / "cmdline").read_bytes()
        except OSError:
            continue
        keeper = b"KEEPER_FOLDER=" in text  # it is about to end by itself
        if not keeper and (folder.encode() in text or f"lab{port}".encode() in text):
            found.append(process.name)
    return found
