"""Promises of `wattloop watch` and `wattloop idle`."""

import json
import math
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import POWER_W, Machine
from wattloop.cli.commands.watch import GpuView, gpu_lines, gpu_table, sparkline
from wattloop.cli.main import main


def test_once_shows_power_now(machine: Machine) -> None:
    """--once prints one plain report and its JSON holds the known power."""
    out = machine.folder / "watch.json"

    def shown_w() -> float:
        done = machine.wattloop("watch", "--once", "--json", str(out))
        assert done.returncode == 0
        assert "cpu:0/package" in done.stdout.decode()
        return float(json.loads(out.read_text())["total_w"])

    # a look is so short that a counter which a busy machine moves late may spoil some
    assert any(shown_w() == pytest.approx(POWER_W, rel=0.3) for _ in range(20))


def test_plain_lines_without_a_terminal(machine: Machine) -> None:
    """Elsewhere than on a terminal: one line per look, then the end."""
    done = machine.wattloop("watch", "--seconds", "0.9", "--refresh", "0.3")
    lines = done.stdout.decode().splitlines()
    assert 2 <= len(lines) <= 3
    assert all("total" in line and "\x1b" not in line for line in lines)


def test_names_stay_whole_on_a_narrow_terminal(machine: Machine) -> None:
    """The curve gives way, not what people read."""
    text = machine.on_terminal("watch", "--seconds", "0.5", columns=60)
    assert "cpu:0/package" in text
    assert "measured" in text


def test_attaches_to_a_running_run(machine: Machine) -> None:
    """A live run is followed through its journal until it ends."""
    run = subprocess.Popen(
        machine.command("run", "-q", "--", "sh", "-c", "echo up; read go"),
        env=machine.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert run.stdin is not None
    assert run.stdout is not None
    assert run.stdout.readline() == b"up\n"
    (journal,) = Path(f"{machine.store}.journals").glob("*.journal")
    out = machine.folder / "watch.json"
    words = (journal.stem[:20], "--refresh", "0.2", "--seconds", "20", "--json", str(out))
    watch = subprocess.Popen(
        machine.command("watch", *words), env=machine.environment, stdout=subprocess.PIPE
    )
    assert watch.stdout is not None
    assert b"total" in watch.stdout.readline()
    run.communicate(b"go\n")
    watch.communicate()
    assert (run.returncode, watch.returncode) == (0, 0)
    data = json.loads(out.read_text())
    assert data["ended"] == "finished"
    assert data["energy_j"] == machine.about_j(data["duration_s"])


def test_unknown_run_is_explained(here: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    """A run that is not live: code 2, what is live, and where ended runs are shown."""
    assert main(["watch", "20990101"]) == 2
    text = capsys.readouterr().err
    assert "measured now: none" in text
    assert "wattloop runs show 20990101" in text


def test_sparkline_keeps_flat_lines_flat_and_gaps_visible() -> None:
    """Small noise is not blown up; a missing second is a dot; the highest is the highest bar."""
    assert set(sparkline([100.0, 100.1, 100.2])) <= {"▁", "▂"}
    assert sparkline([0.0, math.nan, 10.0]) == "▁·█"
    assert sparkline([]) == ""
    assert len(sparkline([1.0] * 100)) == 60


def test_idle_fits_and_keeps_the_line(machine: Machine) -> None:
    """The idle power of a machine that draws 50 W is 50 W, and it is written next to the store."""
    done = machine.wattloop("idle", "--windows", "0.2,0.4,0.8", "--json", "-")
    assert done.returncode == 0
    data = json.loads(done.stdout)
    (domain,) = data["domains"]
    assert machine.driver is not None
    late = 2 * machine.driver.longest_s / (0.8 - 0.2)  # at both ends of a window
    assert domain["idle_power_w"] == pytest.approx(POWER_W, rel=0.1 + late)
    assert Path(data["kept"]).exists()


def test_idle_without_sensors_is_an_error_with_advice(
    here: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing readable: code 2 and where to look, not a line of zeros."""
    assert main(["idle", "--windows", "0.1,0.2,0.3"]) == 2
    assert "wattloop devices" in capsys.readouterr().err
    assert main(["idle", "--windows", "1,1,1"]) == 2
    assert "at least 3 different lengths" in capsys.readouterr().err


BUSY = GpuView(
    "gpu:0", "NVIDIA H200", "measured", 4_560.0, 665.0, 700.0, 0.63, 34e9, 141e9, 1_755.0, 2_619.0,
    54.0, "run night", 0.0593, tuple(float(w) for w in range(400, 460)),
)  # fmt: skip
UNKNOWN = GpuView(
    "gpu:1", "", "measured", None, None, None, None, None, None, None, None, None, "", None, ()
)


@pytest.mark.parametrize("room", [60, 80, 200])
def test_a_gpu_is_shown_whole_at_every_width(room: int) -> None:
    """Promise: power against its limit, use, memory, clocks, user, J/step and a curve, none cut."""
    lines = ["".join(text for text, _ in line) for line in gpu_lines(BUSY, room)]
    assert max(map(len, lines)) <= room
    text = "\n".join(lines)
    for part in (
        "NVIDIA H200", "4.56 kJ", "(measured)", "665 W of 700 W", "63%", "of 131 GiB", "1,755 MHz",
        "2,619 MHz", "54 °C", "run night, 59.3 mJ per step", "last minute ",
    ):  # fmt: skip
        assert part in text
    styles = {style for line in gpu_lines(BUSY, room) for _, style in line}
    assert "red" in styles  # 95% of the limit
    assert len(lines) <= 6


def test_a_gpu_that_tells_nothing_is_a_line() -> None:
    """Promise: a value that a meter lacks is left out, or a dash, never zero."""
    assert ["".join(text for text, _ in line) for line in gpu_lines(UNKNOWN, 60)] == [
        "gpu:1  (measured)"
    ]
    *_, row = gpu_table([BUSY, UNKNOWN], None).splitlines()
    assert row.split() == ["gpu:1", *"--------"]


def test_virtual_gpus_and_the_run_on_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Promise: `watch --once -j` has each GPU with its limit and the memory of its model."""
    monkeypatch.setenv("WATTLOOP_VIRTUAL_GPUS", "2")
    monkeypatch.setenv("WATTLOOP_VIRTUAL_STATE", str(tmp_path / "gpus"))
    monkeypatch.setenv("WATTLOOP_STORE", str(tmp_path / "runs.db"))
    assert main(["watch", "--once", "-j"]) == 0
    gpus = json.loads(capsys.readouterr().out)["gpus"]
    assert [gpu["name"] for gpu in gpus] == ["gpu:0", "gpu:1"]
    assert all(gpu["provenance"] == "simulated" for gpu in gpus)
    assert all(gpu["power_w"] < gpu["limit_w"] for gpu in gpus)
    assert all(gpu["memory_used_b"] < gpu["memory_b"] for gpu in gpus)
