"""`wattloop run --metrics-port`: a run can be scraped while its program runs."""

import socket
import sys
from pathlib import Path

from tests.cli.conftest import Machine, machine  # noqa: F401 - a fixture

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
