"""Promises of `wattloop run --metrics-port`: a run can be scraped while its program runs."""

import json
import re
import socket
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Machine, machine  # noqa: F401 - a fixture
from tests.integrations.step_hook.test_hard_processes import FRAMEWORK
from wattloop.measure.run_journal import PHASES, PROGRESS_FILE, RunProgress
from wattloop.store.formats.prometheus import MetricFamily, MetricSample, render_families

SCRAPE = """
import time, urllib.request
url = "http://127.0.0.1:{port}/metrics"
while True:
    text = urllib.request.urlopen(url, timeout=600).read().decode()
    lines = [l for l in text.splitlines() if l.startswith("wattloop_run_energy_joules_total")]
    if lines and float(lines[0].rsplit(" ", 1)[1]) > 0:
        break
    time.sleep(0.05)
open({path!r}, "w").write(text)
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def test_the_program_itself_can_scrape_its_run(machine: Machine) -> None:  # noqa: F811
    port, target = free_port(), machine.folder / "scraped"
    code = SCRAPE.format(port=port, path=str(target))
    done = machine.wattloop(
        "run", "--name", "night", "--metrics-port", str(port), "--", sys.executable, "-c", code
    )
    assert done.returncode == 0, done.stderr
    text = Path(target).read_text()
    assert 'name="night"' in text
    assert 'provenance="measured"' in text
    assert "wattloop_run_power_watts{" in text
    assert "wattloop_run_steps_total{" in text
    assert "# TYPE wattloop_run_energy_joules_total counter" in text


TRAINING = """
import os, re, time, urllib.request
from keras.src.callbacks.callback_list import CallbackList
calls, step = CallbackList(), iter(range(10**9))
def train(count):
    for _ in range(count):
        time.sleep(0.01)
        calls.on_train_batch_end(next(step))
def scrape():
    return urllib.request.urlopen("http://127.0.0.1:{port}/metrics", timeout=600).read().decode()
first = scrape()
train(60)
calls.on_test_begin(); time.sleep(0.6); calls.on_test_end()
evaluation = r'phase_seconds_total.*phase="evaluation".* ([0-9.]+)'
before, now = None, 0.0
while now != before or now < 0.6:  # the whole evaluation is known
    train(20)
    text = scrape()
    before, now = now, float(re.search(evaluation, text)[1])
known = open(os.environ["WATTLOOP_STEPS"] + "/{progress}").read()
open("scraped", "w").write(first + "====" + text)
open("known", "w").write(known)
"""


def test_phases_of_a_program_that_trains(machine: Machine) -> None:  # noqa: F811
    """Promise: a live run shows the phases that its record will have, from zero on, with the user,
    project and job it belongs to; the agent of its node finds the same in a file.
    """
    port = free_port()
    folder = machine.folder / "keras/src/callbacks"
    folder.mkdir(parents=True)
    for each in (folder, *folder.parents[:2]):
        (each / "__init__.py").touch()
    (folder / "callback_list.py").write_text(FRAMEWORK)
    program = machine.folder / "train.py"
    program.write_text(TRAINING.replace("{port}", str(port)).replace("{progress}", PROGRESS_FILE))
    done = machine.wattloop(
        "run", "--metrics-port", str(port), "--json", "run.json", "--", sys.executable,
        str(program), SLURM_JOB_ID="41", SLURM_JOB_USER="ada", SLURM_JOB_ACCOUNT="phys",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, _, last = (machine.folder / "scraped").read_text().partition("====")
    labels = r'user="ada",project="phys",job_id="41"'
    for phase in PHASES:
        assert re.search(rf'run_phase_seconds_total{{.*{labels},phase="{phase}"}} 0\.0\n', first)

    def amounts(name: str) -> dict[str, float]:
        found = re.findall(rf'wattloop_run_phase_{name}{{.*phase="([^"]*)".*}} (\S+)\n', last)
        return {phase: float(value) for phase, value in found}

    seconds, joules = amounts("seconds_total"), amounts("energy_joules_total")
    assert 'phase="training",provenance="measured"' in last
    data = json.loads((machine.folder / "run.json").read_text())
    stored = {p["name"]: p for p in data["step_totals"]["phases"]}
    assert seconds["evaluation"] == pytest.approx(stored["evaluation"]["time_s"], abs=0.01)
    assert seconds["start-up"] == pytest.approx(stored["start-up"]["time_s"], abs=0.01)
    assert joules["evaluation"] == pytest.approx(stored["evaluation"]["energy_j"], rel=0.1)
    assert 0 < joules["training"] <= stored["training"]["energy_j"] * 1.05
    assert joules["tail"] == seconds["tail"] == 0.0
    progress = json.loads((machine.folder / "known").read_text())
    assert set(progress["phases"]) == set(PHASES)
    assert 0 < progress["steps"] <= data["step_totals"]["steps"]


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", "null", "[" * 9_000,
        '{"steps": -1, "samples": null, "tokens": null, "last_step_s": null, "phases": {}, '
        '"until_s": 0, "local_rank": 0}',
        '{"steps": 1, "samples": 1e999, "tokens": null, "last_step_s": null, "phases": {}, '
        '"until_s": 0, "local_rank": 0}',
        '{"steps": 1, "samples": null, "tokens": null, "last_step_s": null, '
        '"phases": {"training": 7}, "until_s": 0, "local_rank": 0}',
    ],
)  # fmt: skip
def test_progress_that_makes_no_sense_is_not_read(tmp_path: Path, text: str) -> None:
    (tmp_path / PROGRESS_FILE).write_text(text)
    assert RunProgress.read(tmp_path, tmp_path.stat().st_uid) is None


def test_progress_of_another_user_and_links_are_not_read(tmp_path: Path) -> None:
    """Promise: an agent that runs as root shows a user nothing but the user's own numbers."""
    uid = tmp_path.stat().st_uid
    told = RunProgress(3, None, 7.0, 1.0, {"training": (1.0, None), "invented": (2.0, 2.0)}, 5.0)
    told.write(tmp_path)
    known = RunProgress.read(tmp_path, uid)
    assert known == told._replace(phases={"training": (1.0, None)})
    assert RunProgress.read(tmp_path, uid + 1) is None
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / PROGRESS_FILE).symlink_to(tmp_path / PROGRESS_FILE)
    assert RunProgress.read(tmp_path / "links", uid) is None


def test_a_port_in_use_stops_before_the_program(machine: Machine) -> None:  # noqa: F811
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        mark = machine.folder / "ran"
        done = machine.wattloop("run", "--metrics-port", str(port), "--", "touch", str(mark))
    assert done.returncode != 0
    assert b"choose another port" in done.stderr
    assert not mark.exists()


def test_a_unit_ends_the_name_of_its_metric() -> None:
    """Promise: a strict OpenMetrics parser accepts the whole answer."""
    one = [MetricSample({}, 1.0)]
    families = [
        MetricFamily("wattloop_run_energy_joules_total", "Energy.", one, "joules"),
        MetricFamily("wattloop_run_seconds_since_step", "Time.", one, "seconds"),
    ]
    text = render_families(families, openmetrics=True)
    units = [line.split()[2:] for line in text.splitlines() if line.startswith("# UNIT")]
    assert units == [["wattloop_run_energy_joules", "joules"]]
    assert "wattloop_run_seconds_since_step 1.0" in text
