"""Promises of sweep files: errors name line, field and remedy."""

from pathlib import Path
from typing import Any

import pytest

from wattloop.core.errors import ConfigError
from wattloop.core.units import expanded, seconds
from wattloop.core.yaml_spec import read_yaml
from wattloop.sweep.spec import SweepSpec, parse_sweep_spec

WHOLE = """\
name: caps
command: python train.py --gpus {gpus}
levers:
  gpu/power_limit: {from: 100, to: 260, step: 10}
  cpu/governor: [performance, powersave]
combine: each
gpus: [1, 2, 4, 8]
repeats: {min: 3, max: 10, target: 1%}
warmup: 2
cooldown: {within: 5, limit: 2 min}
seed: 7
timeout: 10 min
scope: node
metric: eds
k: 1.5
"""


def read(tmp_path: Path, text: str) -> SweepSpec:
    path = tmp_path / "caps.yaml"
    path.write_text(text)
    source = read_yaml(str(path))
    return parse_sweep_spec(source.data, source)


def test_a_whole_file_is_understood(tmp_path: Path) -> None:
    """Every field is read, with units, and is the same after storing."""
    spec = read(tmp_path, WHOLE)
    assert spec.command == ["python", "train.py", "--gpus", "{gpus}"]
    assert spec.levers["gpu/power_limit"] == [float(w) for w in range(100, 270, 10)]
    assert (spec.repeats.least, spec.repeats.most, spec.repeats.target_pct) == (3, 10, 1.0)
    assert (spec.timeout_s, spec.cooldown.limit_s) == (600.0, 120.0)
    assert parse_sweep_spec(spec.to_dict()) == spec


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("repeets: 3", r"caps\.yaml:1: unknown field 'repeets'; did you mean 'repeats'\?"),
        ("\nrepeats: {min: 5, maks: 6}", r":2: unknown field 'repeats\.maks'; did you mean 'max'"),
        ("repeats: {min: 5, max: 2}", r":1: repeats: min is 5, above max, which is 2"),
        ("gpus: [1, zwei]", r":1: gpus\.1: .*integer.*'zwei'"),
        ("gpus: [0]", r":1: gpus\.0: .*greater than or equal to 1"),
        ("levers:\n  gpu/power_limit: {from: 1, to: 2}", r":2: levers\.gpu/power_limit: .*step"),
        ("levers: [1]", r":1: levers: .*dictionary"),
        ("metric: edpp", r":1: metric: unknown metric 'edpp'; did you mean 'edp'\?"),
        ("timeout: soon", r":1: timeout: 'soon' is not a time"),
        ("scope: cpus", r":1: scope: .*'gpu'.*'cpus'"),
        ("k: 1", r":1: k: .*greater than 1"),
        ("seed: 1\nseed: 2", r":2: 'seed' is given twice, first on line 1"),
        ("a: [1", r"not valid YAML"),
        ("- a\n- b", r":1: write 'key: value' lines"),
    ],
)
def test_a_fault_names_its_line_and_what_to_write(tmp_path: Path, line: str, said: str) -> None:
    """The error has file, line, field, the fault and the allowed values."""
    with pytest.raises(ConfigError, match=said):
        read(tmp_path, line)


def test_all_faults_are_said_at_once(tmp_path: Path) -> None:
    """A user can correct all errors of a file at once."""
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, "seed: x\nwarmup: -1\nordre: listed\n")
    said = str(caught.value).splitlines()
    assert [line.partition(".yaml:")[2][0] for line in said] == ["1", "2", "3"]


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    """The error names the file."""
    with pytest.raises(ConfigError, match=r"none\.yaml: cannot be read: No such file"):
        read_yaml(str(tmp_path / "none.yaml"))


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ({"from": 100, "to": 130, "step": 10}, [100.0, 110.0, 120.0, 130.0]),
        ({"from": 130, "to": 100, "step": 10}, [130.0, 120.0, 110.0, 100.0]),
        ("0.8:1.0:0.1", [0.8, 0.9, 1.0]),
        ("50%:100%:25%", ["50 %", "75 %", "100 %"]),
        ("100, 150", ["100", "150"]),
        ([100, "70%", "default"], [100.0, "70%", "default"]),
        (250, [250.0]),
        ("powersave", ["powersave"]),
    ],
)
def test_values_as_people_write_them(written: Any, meant: list[Any]) -> None:
    """Lists, ranges with and without units, single values."""
    assert expanded(written) == meant


@pytest.mark.parametrize("written", [[], [True], "1:2:0", "1:9e9:1", "1:2:x", "10%:20:5 W"])
def test_values_that_make_no_sense_are_refused(written: Any) -> None:
    """Each error says what is wrong."""
    with pytest.raises(ValueError, match=r"no value|neither|step|values|not a number|units"):
        expanded(written)


def test_times_have_units() -> None:
    """The default unit is the second."""
    assert [seconds(t) for t in (90, "90", "90 s", "1.5 min", "2h")] == [90, 90, 90, 90, 7_200]
