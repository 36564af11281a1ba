"""`wattloop run --metrics-port`: a run can be scraped while its program runs."""

import socket
import sys
from pathlib import Path

from tests.cli.conftest import Machine, machine  # noqa: F401 - a fixture
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


def test_a_port_in_use_stops_before_the_program(machine: Machine) -> None:  # noqa: F811
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        mark = machine.folder / "ran"
        done = machine.wattloop("run", "--metrics-port", str(port), "--", "touch", str(mark))
    assert done.returncode != 0
    assert b"choose another port" in done.stderr
    assert not mark.exists()


def test_a_unit_ends_the_name_of_its_metric() -> None:
    """Promise: Prometheus takes the answer, which it refuses as a whole otherwise (OpenMetrics)."""
    one = [MetricSample({}, 1.0)]
    families = [
        MetricFamily("wattloop_run_energy_joules_total", "Energy.", one, "joules"),
        MetricFamily("wattloop_run_seconds_since_step", "Time.", one, "seconds"),
    ]
    text = render_families(families, openmetrics=True)
    units = [line.split()[2:] for line in text.splitlines() if line.startswith("# UNIT")]
    assert units == [["wattloop_run_energy_joules", "joules"]]
    assert "wattloop_run_seconds_since_step 1.0" in text
