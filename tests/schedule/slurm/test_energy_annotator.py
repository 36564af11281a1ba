"""Promises of the energy of ended jobs: written once all nodes have reported, without delays."""

import json
from pathlib import Path

import pytest

from wattloop.core.errors import SlurmAway, SlurmError
from wattloop.schedule.driver.event_log import DriverLog
from wattloop.schedule.slurm.client import SlurmClient
from wattloop.schedule.slurm.energy_annotator import EnergyAnnotator, MeasuredEnergy

from .slurm_world import NOW_S, job

FAKE = """#!/bin/sh
echo "$0 $*" >>"{folder}/said"
case "$0" in
*scontrol) echo "Job has already finished" >&2; exit 1;;
*sacctmgr) {answer};;
esac
"""


def slurm(folder: Path, answer: str = "exit 0") -> SlurmClient:
    """Programs that refuse like those of 22.05, and record their calls."""
    for name in ("scontrol", "sacctmgr"):
        path = folder / name
        path.write_text(FAKE.format(folder=folder, answer=answer))
        path.chmod(0o755)
    return SlurmClient(environment={"PATH": str(folder)})


def test_the_energy_of_an_ended_job_goes_into_the_accounts(tmp_path: Path) -> None:
    """All its nodes must have delivered; other text in AdminComment stays."""
    known: dict[str, MeasuredEnergy] = {}
    log = DriverLog(tmp_path / "log")
    found = EnergyAnnotator(slurm(tmp_path), known.get, log)
    runs = job("7", "RUNNING", number="7", admin_comment="ticket", placed=(("n1", 1), ("n2", 1)))
    found.update({"7": runs}, NOW_S)
    found.update({}, NOW_S + 1)
    known["7"] = MeasuredEnergy(500.0, 300.0, "measured", nodes=1)
    found.write(NOW_S + 2)
    assert not (tmp_path / "said").exists()
    known["7"] = MeasuredEnergy(1000.04, 600.0, "measured", nodes=2)
    found.write(NOW_S + 3)
    found.write(NOW_S + 4)
    said = (tmp_path / "said").read_text().splitlines()
    notes = 'ticket wattloop:{"energy_j":1000.0,"gpu_j":600.0,"provenance":"measured"}'
    assert [line.partition(" ")[2] for line in said] == [
        f"update JobId=7 AdminComment={notes}",
        f"--immediate modify job where JobID=7 set AdminComment={notes}",
    ]
    assert [json.loads(line)["event"] for line in (tmp_path / "log").read_text().splitlines()] == [
        "energy"
    ]


def test_without_accounts_it_is_said_once(tmp_path: Path) -> None:
    """The energy is in the store, and the attempt is not repeated."""
    client = slurm(
        tmp_path, "echo 'You are not running a supported accounting_storage' >&2; exit 1"
    )
    log = DriverLog(tmp_path / "log")
    found = EnergyAnnotator(client, lambda number: MeasuredEnergy(1.0, None, "measured", 1), log)
    for key in ("7", "8"):
        found.update({key: job(key, "RUNNING", number=key)}, NOW_S)
    found.update({}, NOW_S)
    found.write(NOW_S)
    assert not found.may_write
    assert log.counts == {"energy": 2, "warning": 1}
    assert len((tmp_path / "said").read_text().splitlines()) == 2


def test_an_unmeasured_job_is_given_up(tmp_path: Path) -> None:
    """After an hour its node is taken to have no agent."""
    asked = []
    found = EnergyAnnotator(slurm(tmp_path), asked.append, DriverLog(None))
    found.update({"7": job("7", "RUNNING", number="7")}, NOW_S)
    found.update({}, NOW_S)
    for later_s in (10, 4_000, 4_010):
        found.write(NOW_S + later_s)
    assert asked == ["7", "7"]


def test_commands_that_fail_say_what_and_hang_no_longer_than_allowed(tmp_path: Path) -> None:
    """Refused and unreachable are different errors, and neither is a traceback."""
    client = slurm(tmp_path)
    with pytest.raises(SlurmError, match="already finished") as refused:
        client.text("scontrol", "update")
    assert not isinstance(refused.value, SlurmAway)
    (tmp_path / "sacctmgr").write_text(
        "#!/bin/sh\necho 'Unable to contact slurm controller' >&2; exit 1"
    )
    with pytest.raises(SlurmAway):
        client.text("sacctmgr")
    client.timeout_s = 0.2
    (tmp_path / "scontrol").write_text("#!/bin/sh\nexec /bin/sleep 5")
    with pytest.raises(SlurmAway, match="no answer to scontrol"):
        client.text("scontrol", "ping")
