from pathlib import Path

import pytest

from wattloop.core.clock import RealClock
from wattloop.core.errors import MeterUnavailable
from wattloop.core.records import Gap
from wattloop.core.settings import Settings
from wattloop.meters.base import Context
from wattloop.meters.ipmi import Ipmi, detect, parse_power_w
from wattloop.testing.meter_contract import check_meter

ANSWER = """
    Instantaneous power reading:                   220 Watts
    Minimum during sampling period:                 10 Watts
    Maximum during sampling period:                600 Watts
    Average power reading over sample period:      218 Watts
    IPMI timestamp:                           Thu Jan  1 00:00:00 2026
    Sampling period:                          00000001 Seconds.
    Power reading state is:                   activated
"""


def tool(folder: Path, script: str) -> str:
    path = folder / "ipmitool"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def first_reading(path: str, **options):
    meter = Ipmi(path, RealClock(), **options)
    try:
        assert meter.wait(120)
        return meter.read()[0]
    finally:
        meter.close()


def test_the_controllers_answer_is_read_through_a_real_program(tmp_path) -> None:
    """Promise: `ipmitool dcmi power reading` is run and understood."""
    check = '[ "$*" = "dcmi power reading" ] || exit 9\n'
    assert first_reading(tool(tmp_path, f"{check}cat <<'X'{ANSWER}X")) == 220.0


def test_contract(tmp_path) -> None:
    """Promise: it keeps the contract of every meter."""
    path = tool(tmp_path, f"cat <<'X'{ANSWER}X")

    def make() -> Ipmi:
        meter = Ipmi(path, RealClock())
        assert meter.wait(120)
        return meter

    check_meter(make)


def test_a_failing_or_hanging_tool_is_a_gap_with_its_message(tmp_path) -> None:
    """Promise: missing permission and a missing answer are gaps, not zeros."""
    refused = first_reading(
        tool(tmp_path, "echo 'Could not open device at /dev/ipmi0' >&2; exit 1")
    )
    assert isinstance(refused, Gap)
    assert "Could not open device" in refused.reason
    hung = first_reading(tool(tmp_path, "exec sleep 30"), timeout_s=0.2)
    assert isinstance(hung, Gap)
    assert "no answer within" in hung.reason


@pytest.mark.parametrize(
    "text", ["", "rubbish", ANSWER.replace("220", "0"), ANSWER.replace("activated", "deactivated")]
)
def test_an_answer_without_power_is_a_gap(text) -> None:
    """Promise: 0 W and invalid text are never reported as power."""
    assert isinstance(parse_power_w(text), Gap)


def test_it_runs_only_on_request(tmp_path, monkeypatch) -> None:
    """Promise: a controller is polled only on request; a missing tool has a remedy."""
    with pytest.raises(MeterUnavailable, match="WATTLOOP_IPMI"):
        detect(Context())
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MeterUnavailable, match="install"):
        detect(Context(settings=Settings(ipmi=True)))
