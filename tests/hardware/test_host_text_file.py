"""Promises of `text_file`: for any content, reading gives a value or None."""

from pathlib import Path

import pytest

from wattloop.hardware.host import read_text, read_whole


@pytest.mark.parametrize(
    "content", [b"", b"-5", b"1.5", b"0x10", "²".encode(), b"\xff\xfe", b"9" * 5000, b"12 34"]
)
def test_other_text_than_a_kernel_number_is_none(tmp_path: Path, content: bytes) -> None:
    """Garbage never raises, superscripts and endless digits included."""
    path = tmp_path / "value"
    path.write_bytes(content)
    assert read_whole(path) is None


def test_number_and_text_are_stripped(tmp_path: Path) -> None:
    """The newline at the end is not part of the value."""
    path = tmp_path / "value"
    path.write_text("262143328850\n")
    assert read_whole(path) == 262_143_328_850
    assert read_text(path) == "262143328850"


def test_a_file_that_is_not_there_is_empty(tmp_path: Path) -> None:
    """Missing files and directories are not an error."""
    assert read_text(tmp_path / "nothing") == ""
    assert read_whole(tmp_path) is None
