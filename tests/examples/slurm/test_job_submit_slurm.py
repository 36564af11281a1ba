"""Promises of job_submit.lua in a real slurmctld, with a real `wattloop serve`."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="FastAPI is not installed")
pytest.importorskip("uvicorn", reason="uvicorn is not installed")

from tests.examples.slurm.lua_jobs import ROOT, plugin_for
from tests.support.slurm_lab import SlurmLab, why_no_slurm

pytestmark = [
    pytest.mark.skipif(bool(why_no_slurm()), reason=why_no_slurm() or "-"),
    pytest.mark.skipif(not Path("/usr/bin/curl").exists(), reason="curl is not installed"),
]

FLEET = "cluster: {groups: [{gpu: a100-sxm-40, type: a100, nodes: 1, gpus_per_node: 4, host_w: 0}]}"
TAG = "wattloop:model=resnet-50,precision=tf32,batch=128,samples=1e7"
NOBODY_UID = 65534


class Service:
    """A server of this checkout."""

    def __init__(self, folder: Path) -> None:
        (folder / "fleet.yaml").write_text(FLEET)
        words = ["serve", "--port", "0", "--cluster", str(folder / "fleet.yaml")]
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT / "src"),
            "WATTLOOP_STORE": str(folder / "runs.db"),
            "XDG_CACHE_HOME": str(folder),
            "OMP_NUM_THREADS": "1",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "wattloop", *words],
            env=environment, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stderr is not None
        said = ""
        while "http://" not in said:
            said = self.process.stderr.readline()
            assert said, "the server ended"
        found = re.search(r"http://[^/ ]+", said)
        assert found is not None
        self.url = found[0]

    def wait_until_warm(self) -> None:
        """Wait until the service has an answer for the tests' job."""
        body = json.dumps({"gpus": 2, "comment": TAG}).encode()
        give_up_s = time.monotonic() + 120
        while time.monotonic() < give_up_s:
            request = urllib.request.Request(f"{self.url}/api/v1/predict/submit", body)
            with urllib.request.urlopen(request, timeout=300) as answer:
                if json.load(answer)["energy_j"]:
                    return
            time.sleep(0.1)
        raise AssertionError("the service does not come to an answer")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    found = Service(tmp_path_factory.mktemp("service"))
    try:
        found.wait_until_warm()
        yield found
    finally:
        found.process.kill()
        found.process.wait()


@pytest.fixture(scope="module")
def lab(service: Service, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmLab]:
    # a generous bound: the machine of the tests may be busy
    lua = plugin_for(service.url, BOUND_S="10", REST_S="1")
    with SlurmLab(tmp_path_factory.mktemp("lab"), nodes=1, gpus=4, lua=lua) as found:
        yield found


def _submit(lab: SlurmLab, *options: str) -> tuple[str, str]:
    """Submit a held job and return its number and the messages to its user."""
    done = subprocess.run(
        [
            *("sbatch", "--parsable", "--hold", "--output=/dev/null", "--chdir=/"),
            *(f"--uid={NOBODY_UID}", f"--gid={NOBODY_UID}", *options, "--wrap=true"),
        ],
        env=lab.environment, cwd=lab.folder, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.strip(), done.stderr


def _admin_comment(lab: SlurmLab, job: str) -> str:
    found = re.search(r"^ *AdminComment=(.*)$", lab.run("scontrol", "show", "job", job), re.M)
    return found[1].strip() if found else ""


def test_sbatch_shows_the_energy_and_the_job_is_tagged(lab: SlurmLab) -> None:
    """The energy is on the terminal, and the same figure is in AdminComment."""
    job, told = _submit(lab, "--gpus=2", "--time=30", f"--comment=mine {TAG}")
    assert re.search(r"expected to use \d+ Wh \(.* to .*\) in .* on 2 a100 GPUs", told), told
    assert "time limit of 30 min 00 s is likely too short" in told
    written = _admin_comment(lab, job)
    assert written.startswith("wattloop:{")
    tag = json.loads(written.removeprefix("wattloop:"))
    assert tag["predicted_by"] == "comment" and 1e6 < tag["predicted_j"] < 1e7
    assert f"Comment=mine {TAG}" in lab.run("scontrol", "show", "job", job)


def test_a_job_without_gpus_is_left_alone(lab: SlurmLab) -> None:
    """The job gets neither a message nor a tag."""
    job, told = _submit(lab, f"--comment={TAG}")
    assert told == "" and _admin_comment(lab, job) == ""


@pytest.mark.parametrize(
    "text",
    [
        "wattloop:model=$(touch {folder}/pwned)", "'; touch {folder}/pwned; '", "a\nAdminComment=b",
        '"\\u0000', "x" * 1_000, "wattloop:model=resnet-50,priority=99999",
    ],
)  # fmt: skip
def test_hostile_comments_change_nothing(lab: SlurmLab, tmp_path: Path, text: str) -> None:
    """The job is submitted unchanged: no tag, no program run, no priority, no field of the
    comment used.
    """
    text = text.replace("{folder}", str(tmp_path))
    job, told = _submit(lab, "--gpus=1", f"--comment={text}")
    shown = lab.run("scontrol", "show", "job", job)
    assert "predicted_j" not in shown
    assert "Priority=0" in shown  # held, as requested
    assert not (tmp_path / "pwned").exists()
    assert all(line.startswith("sbatch: wattloop:") for line in told.splitlines())


def test_users_cannot_write_admin_comment(lab: SlurmLab) -> None:
    """Slurm refuses it after submission; sbatch has no option for it."""
    job, _ = _submit(lab, "--gpus=1", f"--comment={TAG}")
    before = _admin_comment(lab, job)
    done = subprocess.run(
        ["scontrol", "update", f"JobId={job}", 'AdminComment=wattloop:{"cap_w":9}'],
        env=lab.environment, cwd="/", user=NOBODY_UID, group=NOBODY_UID, extra_groups=[],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert _admin_comment(lab, job) == before != ""


def test_predict_job_explains_a_job_of_slurms(lab: SlurmLab, tmp_path: Path) -> None:
    """`predict job --slurm N` shows the job's estimate and its sources."""
    job, _ = _submit(lab, "--gpus=2", f"--comment={TAG},caps=0.7|1")
    (tmp_path / "fleet.yaml").write_text(FLEET)
    words = ["predict", "job", "--cluster", str(tmp_path / "fleet.yaml"), "--slurm", job]
    environment = {**lab.environment, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "wattloop", *words, "--store", str(tmp_path / "runs.db")],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "resnet-50 tf32: known from comment" in done.stderr
    assert len(re.findall(r"^2 x a100 ", done.stdout, re.M)) == 2


def test_without_the_service_jobs_are_submitted_as_they_are(
    lab: SlurmLab, service: Service
) -> None:
    """Whether stopped or removed, the job is accepted without a tag, and the log says why."""
    service.process.send_signal(signal.SIGSTOP)
    (lab.folder / "job_submit.lua").write_text(plugin_for(service.url, BOUND_S="0.5"))
    lab.run("scontrol", "reconfigure")
    job, told = _submit(lab, "--gpus=1", f"--comment={TAG}1")
    assert told == "" and _admin_comment(lab, job) == ""
    log = (lab.folder / "log" / "slurmctld.log").read_text()
    assert "no answer within 0.5 s" in log
    service.process.kill()
    job, told = _submit(lab, "--gpus=1", f"--comment={TAG}2")
    assert told == "" and _admin_comment(lab, job) == ""
