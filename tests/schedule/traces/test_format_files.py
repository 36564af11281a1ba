"""Promises of the user's own mappings: read from YAML, with errors by line."""

import pytest

from wattloop.core.errors import ConfigError
from wattloop.schedule.traces.formats import read_format
from wattloop.schedule.traces.reader import read_trace

MINE = """columns:
  arrival: t0
  duration: hours
  gpus: [cards, gpus]
  state: state
units:
  arrival: date
  duration: h
separator: semicolon
leave_out:
  state: [queued, run*]
empty:
  gpus: 1
unusable: leave_out
"""


def test_a_mapping_of_the_user_s_own(tmp_path) -> None:
    """One file has all features of a format."""
    (tmp_path / "mine.yaml").write_text(MINE)
    (tmp_path / "t.csv").write_text(
        "t0;hours;cards;state\n2024-01-01;1.5;;done\n2024-01-02;x;2;done\n2024-01-03;1;2;running\n"
    )
    trace = read_trace(tmp_path / "t.csv", form=str(tmp_path / "mine.yaml"))
    assert trace.duration_s.tolist() == [5400] and trace.gpus.tolist() == [1]
    assert "read as mine" in trace.notes[0]
    assert "1 with state running" in trace.notes[1]
    assert "1 with hours that is not a number" in trace.notes[1]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("separator: semicolon", "seperator: ;", ":9: seperator: is unknown; did you mean"),
        ("  arrival: t0", "  arival: t0", ":2: columns.arival: is unknown; did you mean 'arrival'"),
        ("  duration: h\n", "  duration: weeks\n", ":8: units.duration: must be one of s, ms"),
        ("separator: semicolon", "separator: '::'", ":9: separator: must be one of comma, tab"),
        ("  gpus: 1", "  gpus: one", ":13: empty.gpus: must be a number"),
        ("unusable: leave_out", "unusable: drop", ":14: unusable: must be refuse or leave_out"),
        ("[cards, gpus]", "[]", ":4: columns.gpus: must be a name, or a list of names"),
        ("leave_out:\n  state:", "leave_out:\n  user:", ":11: leave_out.user: is unknown"),
    ],
)
def test_a_typo_in_a_mapping_is_named_by_line(tmp_path, old, new, said) -> None:
    """This covers each kind of error."""
    file = tmp_path / "mine.yaml"
    assert old in MINE
    file.write_text(MINE.replace(old, new))
    with pytest.raises(ConfigError) as refused:
        read_format(str(file))
    assert str(refused.value).startswith(f"{file}{said}")


def test_a_mapping_without_columns_is_refused(tmp_path) -> None:
    """It would map nothing."""
    (tmp_path / "mine.yaml").write_text("about: nothing\n")
    with pytest.raises(ConfigError, match="the mapping is missing"):
        read_format(str(tmp_path / "mine.yaml"))
    (tmp_path / "mine.yaml").write_text("columns: 3\n")
    with pytest.raises(ConfigError, match=r"mine.yaml:1: columns: must be 'field: value' lines"):
        read_format(str(tmp_path / "mine.yaml"))
    (tmp_path / "mine.yaml").write_text("columns: {arrival: a}\nlayouts: [a, b]\n")
    with pytest.raises(ConfigError, match=r"mine.yaml:2: layouts: must be a list of lists"):
        read_format(str(tmp_path / "mine.yaml"))
