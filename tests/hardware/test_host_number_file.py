"""Promises of a number file: it is read right, or gives a reason, and recovers."""

import errno
import os
from pathlib import Path

import pytest

from wattloop.core.records import Gap
from wattloop.hardware.host import NumberFile


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "energy_uj"
    file.write_text("123\n")
    return file


def test_follows_a_file_replaced_by_rename(path: Path) -> None:
    """An open descriptor must not read the old file for ever."""
    number = NumberFile(path)
    assert number.read() == 123
    fresh = path.with_name("fresh")
    fresh.write_text("456\n")
    fresh.replace(path)
    assert number.read() == 456


def test_sees_a_value_written_in_place(path: Path) -> None:
    """Reading again gives the new value, not a buffered one."""
    number = NumberFile(path)
    assert number.read() == 123
    path.write_text("124\n")
    assert number.read() == 124


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "is empty"),
        ("\n", "is empty"),
        ("-5\n", "a negative number"),
        ("garbage", "no number"),
        ("1_000", "no number"),
        ("12.5", "no number"),
        ("--5", "negative"),
        ("\x00\x00", "no number"),
    ],
)
def test_an_invalid_count_is_a_gap(path: Path, content: str, reason: str) -> None:
    """Empty, negative and garbled contents are gaps with a reason, never readings."""
    number = NumberFile(path)
    path.write_text(content)
    reading = number.read()
    assert isinstance(reading, Gap)
    assert reason in reading.reason
    assert not reading.lost


def test_a_signed_file_may_be_negative(path: Path) -> None:
    """Battery currents are negative on some machines."""
    path.write_text("-5\n")
    assert NumberFile(path, signed=True).read() == -5


@pytest.mark.parametrize("fault", ["empty", "removed", "directory"])
def test_recovers_after_a_passing_fault(path: Path, fault: str) -> None:
    """One fault must not silence the file for the rest of the run."""
    number = NumberFile(path)
    assert number.read() == 123
    if fault == "empty":
        path.write_text("")
    else:
        path.unlink()
        if fault == "directory":
            path.mkdir()
    assert isinstance(number.read(), Gap)
    if fault == "directory":
        path.rmdir()
    path.write_text("200\n")
    assert number.read() == 200


def test_a_removed_file_is_lost(path: Path) -> None:
    """A device that fell off the bus is reported as lost."""
    number = NumberFile(path)
    number.read()
    path.unlink()
    reading = number.read()
    assert isinstance(reading, Gap) and reading.lost


def test_close_releases_the_descriptor(path: Path) -> None:
    """A closed file holds no descriptor, and closing twice is harmless."""
    before = _open_files()
    number = NumberFile(path)
    number.read()
    assert _open_files() == before + 1
    number.close()
    number.close()
    assert _open_files() == before


def _open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_samples_decode_to_the_result_of_a_read(path: Path) -> None:
    """The cheap way detects changes, replaced files and errors like the other one."""
    file = NumberFile(path)
    path.write_text("41\n")
    assert file.decoded(file.sample()) == 41
    path.write_text("42\n")
    first = file.sample()
    fresh = path.with_name("fresh")
    fresh.write_text("42\n")
    fresh.replace(path)
    path.write_text("43\n")
    assert [file.decoded(first), file.decoded(file.sample())] == [42, 43]
    path.write_text("")
    assert isinstance(file.decoded(file.sample()), Gap)
    path.unlink()
    assert isinstance(file.decoded(file.sample()), Gap)


def test_a_device_asleep_is_a_passing_gap_and_not_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An open file whose driver answers EPERM or EBUSY is read again when the device wakes."""
    awake = os.pread

    def asleep(*_: int) -> bytes:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "pread", asleep)
    file = NumberFile(path)
    reading = file.read()
    assert isinstance(reading, Gap) and not reading.lost
    assert file.refusal() == ""
    monkeypatch.setattr(os, "pread", awake)
    assert not isinstance(file.read(), Gap)
