"""Promises of Intel GPUs through Level Zero, against a stub of its loader, never a real GPU."""

import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from wattloop.core.errors import MeterUnavailable
from wattloop.core.records import Gap
from wattloop.hardware.host import Host
from wattloop.meters import level_zero
from wattloop.meters.base import Context, Meter

SOURCE = Path(__file__).parent / "system_stubs" / "level_zero.c"
Detect = Callable[[str], Sequence[Meter]]


@pytest.fixture
def detect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Detect:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    library = tmp_path / "libze_loader.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, SOURCE], check=True)
    monkeypatch.setattr(level_zero, "LIBRARY", str(library))

    def detected(cards: str) -> Sequence[Meter]:
        monkeypatch.setenv("ZE_STUB", cards)
        return level_zero.detect(Context(Host(sysfs=tmp_path)))

    return detected


def test_discrete_cards_are_read_by_their_own_domain(detect: Detect) -> None:
    """Promise: the counter is that of the whole card, not of its tiles; an integrated GPU is in
    its CPU.
    """
    (meter,) = detect("did")
    assert [(d.name, d.device, d.tdp_w) for d in meter.domains] == [
        ("gpu:intel0", "Intel(R) Data Center GPU Max 1550", 600.0),
        ("gpu:intel1", "Intel(R) Data Center GPU Max 1550", 600.0),
    ]
    first, second = meter.read()
    assert not isinstance(first, Gap) and not isinstance(second, Gap)
    assert (round(first), round(second)) == (5, 15)


@pytest.mark.parametrize("cards", ["i", "t", "n", ""])
def test_no_card_with_a_counter_is_a_refusal(detect: Detect, cards: str) -> None:
    with pytest.raises(MeterUnavailable, match="no discrete Intel GPU"):
        detect(cards)


def test_a_driver_that_does_not_start_is_said(detect: Detect) -> None:
    with pytest.raises(MeterUnavailable, match="not initialised") as refusal:
        detect("!")
    assert "driver" in refusal.value.remedy


def test_a_card_that_is_lost_is_a_gap_for_good(detect: Detect) -> None:
    (meter,) = detect("x")
    (reading,) = meter.read()
    assert isinstance(reading, Gap)
    assert reading.lost
    assert "lost" in reading.reason


def test_without_the_loader_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(level_zero, "LIBRARY", str(tmp_path / "libze_loader.so.1"))
    with pytest.raises(MeterUnavailable, match="no Level Zero"):
        level_zero.detect(Context(Host(sysfs=tmp_path)))


def test_the_kernels_counter_is_not_read_twice(
    detect: Detect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(level_zero, "intel_gpus", lambda host: iter([object()]))
    with pytest.raises(MeterUnavailable, match="kernel's own counter"):
        detect("d")
