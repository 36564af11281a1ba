"""Promises of tables of measured curves."""

import pytest

from wattloop.cap.evaluation import COLUMNS, read_curves
from wattloop.core.errors import ConfigError

HEADER = ",".join(COLUMNS)
GOOD = "d,n,8,sgd,{cap},{time},{power}"


def table(folder, *rows, header=HEADER):
    path = folder / "power.csv"
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def row(cap, time, power):
    return GOOD.format(cap=cap, time=time, power=power)


def test_rows_become_curves_sorted_by_cap_and_duplicates_are_averaged(tmp_path):
    """Promise: the order of rows does not matter, and measurements of one cap are averaged."""
    path = table(tmp_path, row(200, 1.0, 190), row(100, 2.0, 95), row(100, 4.0, 105))
    (curve,) = read_curves(path)
    assert curve.key == ("d", "n", "8", "sgd")
    assert curve.caps_w == (100, 200)
    assert curve.time_s == (3.0, 1.0)
    assert curve.power_w == (100, 190)
    assert curve.responsive


@pytest.mark.parametrize(
    ("rows", "header", "message"),
    [
        ([], HEADER, "no rows"),
        ([row(100, 1, 90)], HEADER, "one power limit only"),
        ([row(100, "fast", 90)], HEADER, "line 2: time_per_epoch is 'fast'"),
        ([row(100, 1, -3)], HEADER, "average_power is '-3'"),
        ([row(100, 1, 90)], HEADER.replace("power_limit", "powerlimit"), "power_limit missing"),
        (["d,n,8"], HEADER, "power_limit is 'None'"),
    ],
)
def test_a_bad_table_says_where(tmp_path, rows, header, message):
    """Promise: the error names file, line and column."""
    with pytest.raises(ConfigError, match=message):
        read_curves(table(tmp_path, *rows, header=header))


def test_no_table_at_all(tmp_path):
    """Promise: a missing or unreadable file is one message."""
    with pytest.raises(ConfigError, match="no such file"):
        read_curves(tmp_path / "absent.csv")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_curves(tmp_path / "binary.csv")
