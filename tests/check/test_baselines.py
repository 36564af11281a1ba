"""Promises of the baselines file: it reads back as written, and incomparable figures are named."""

import json
import math
from pathlib import Path

import pytest

from wattloop.check.baselines import Baseline, Baselines, Machine, NotComparable
from wattloop.check.figures import FigureKind, FigureSeries
from wattloop.check.verdict import compare
from wattloop.core.errors import ConfigError

XEON = Machine("Xeon", 8, "x86_64", "aaa")
EPYC = Machine("EPYC", 8, "x86_64", "bbb")
JOULES = FigureSeries(FigureKind.ENERGY, (10.0, 10.1), 0.1, "measured", ("cpu:0/package",))
SECONDS = FigureSeries(FigureKind.CPU_TIME, (1.0, 1.1))


def baseline(machine: Machine = XEON, **series: FigureSeries) -> Baseline:
    found = {one.kind: one for one in (series or {"j": JOULES, "s": SECONDS}).values()}
    return Baseline(machine, next(iter(found)), found, 123.0, "0.1.0")


def test_the_file_reads_back_as_written(tmp_path: Path) -> None:
    """Promise: a file reads back as written, for several names and kinds of machine."""
    known = Baselines()
    known.put("train", baseline())
    known.put("train", baseline(EPYC))
    known.put("eval", baseline())
    file = tmp_path / "b.json"
    file.write_text(known.to_text())
    again = Baselines.read(file)
    assert again.to_text() == known.to_text()
    assert again.find("train", EPYC).machine == EPYC


def test_a_new_one_replaces_only_that_of_its_kind_of_machine() -> None:
    """Promise: --update on one runner leaves the baselines of the others."""
    known = Baselines()
    for machine in (XEON, EPYC, XEON._replace(specimen="ccc")):
        known.put("train", baseline(machine))
    assert [one.machine.specimen for one in known.entries["train"]] == ["bbb", "ccc"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "--update"),
        ("{", "not JSON"),
        ("[]", "not a baselines file"),
        ('{"format": "wattloop-baselines", "version": 2, "entries": {}}', "upgrade wattloop"),
        ('{"format": "wattloop-baselines", "version": 1}', "damaged"),
        ('{"format": "wattloop-baselines", "version": 1, "entries": {"a": [{}]}}', "damaged"),
    ],
)
def test_files_that_cannot_be_used(content: str | None, said: str, tmp_path: Path) -> None:
    """Promise: for a missing, torn, foreign, newer or damaged file the error has path and
    remedy.
    """
    file = tmp_path / "b.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigError, match=said) as caught:
        Baselines.read(file)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize("values", [[], [math.nan], [1.0, math.inf], [-1.0], "x", None])
def test_a_figure_without_values_is_damage(values: object, tmp_path: Path) -> None:
    """Promise: missing or impossible repeats are an error: a comparison with NaN would always
    pass.
    """
    known = Baselines()
    known.put("x", baseline())
    data = json.loads(known.to_text())
    data["entries"]["x"][0]["figures"]["energy"]["values"] = values
    file = tmp_path / "b.json"
    file.write_text(json.dumps(data))
    with pytest.raises(ConfigError, match="damaged"):
        Baselines.read(file)


def test_another_kind_of_machine_is_compared_on_request_with_a_note() -> None:
    """Promise: figures of another kind of machine are never compared without a message."""
    known = Baselines()
    known.put("x", baseline(EPYC))
    with pytest.raises(NotComparable, match="another machine"):
        known.find("x", XEON)
    before = known.find("x", XEON, other_machine=True)
    now = {one.kind: one for one in (JOULES, SECONDS)}
    found = compare("x", before, now, FigureKind.ENERGY, machine=XEON, tolerance=0.05)
    assert "another kind of machine" in found.notes[0]


def test_another_machine_of_the_kind_is_compared_with_a_note() -> None:
    """Promise: two machines of one kind are compared, with a note that they differ."""
    now = {one.kind: one for one in (JOULES, SECONDS)}
    other = XEON._replace(specimen="zzz")
    found = compare("x", baseline(other), now, FigureKind.ENERGY, machine=XEON, tolerance=0.05)
    assert "of the same kind" in found.notes[0]
    assert [one.kind for one in found.others] == [FigureKind.CPU_TIME]


def test_another_kind_of_figure_is_not_compared_unless_asked() -> None:
    """Promise: a comparison of joules with seconds is an error that names both and the remedy."""
    now = {FigureKind.CPU_TIME: SECONDS}
    with pytest.raises(NotComparable, match="judges energy, and here it would be CPU time"):
        compare("x", baseline(), now, FigureKind.CPU_TIME, machine=XEON, tolerance=0.05)
    found = compare(
        "x", baseline(), now, FigureKind.CPU_TIME, machine=XEON, tolerance=0.05, chosen=True
    )
    assert found.judged.kind is FigureKind.CPU_TIME


def test_joules_of_other_sensors_are_not_compared() -> None:
    """Promise: an additional or simulated GPU makes another figure."""
    for other in (
        FigureSeries(
            FigureKind.ENERGY, (10.0,), 0.1, "measured", ("cpu:0/package", "gpu:0 (H200)")
        ),
        FigureSeries(FigureKind.ENERGY, (10.0,), 0.1, "simulated", ("cpu:0/package",)),
    ):
        with pytest.raises(NotComparable, match="here it would be"):
            compare(
                "x",
                baseline(),
                {FigureKind.ENERGY: other},
                FigureKind.ENERGY,
                machine=XEON,
                tolerance=0.05,
            )


def test_a_name_that_is_not_there_names_those_that_are() -> None:
    """Promise: the error for an unknown name lists the existing ones."""
    known = Baselines()
    known.put("train", baseline())
    with pytest.raises(NotComparable, match="'train'"):
        known.find("trian", XEON)


def test_this_machine_is_identified_without_its_name() -> None:
    """Promise: a baseline that is published with the code names no host."""
    here = Machine.here()
    assert here.cpus >= 1
    assert here == Machine.from_dict(here.to_dict())
    import os

    assert os.uname().nodename not in json.dumps(here.to_dict())
