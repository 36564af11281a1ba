"""Promises of headers: those that Wattloop writes have the shape that a server requires."""

import subprocess
import sys
from pathlib import Path

import pytest

from wattloop.store.run_record import header_fault, identity_fault

PROGRAM = """
import sys, wattloop
from pathlib import Path
from wattloop.store.journal import read_header
from wattloop.store.run_record import header_fault

store = Path(sys.argv[1])
with wattloop.measure("x", store=str(store), tags={"a": "b"}, virtual_gpus=2, zone="FRA"):
    (path,) = store.with_name(f"{store.name}.journals").glob("*.journal")
    header = read_header(path)
print(len(header["feeds"]), repr(header_fault(header)))
"""


def test_the_header_of_a_measured_program_is_sound(tmp_path: Path) -> None:
    """With every meter of this machine, and virtual GPUs."""
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "runs.db")]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert int(said[0]) > 0 and said[1] == "''"


@pytest.mark.parametrize("form", ["x", [1], {}, None, True, 0, -1, 1.0])
def test_a_format_is_a_number_from_one(form: object) -> None:
    """Any other value is named, and never compared."""
    assert "format" in identity_fault({"run_id": "r", "format": form})
    assert identity_fault({"run_id": "r", "format": 1}) == ""
    assert identity_fault({"run_id": "r"}) == ""
    assert identity_fault([]) and identity_fault({"run_id": 7})
    assert header_fault({"run_id": "r", "name": {"x": 1}}) == "header.name: not text"
