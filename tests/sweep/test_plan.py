"""Promises of axes and plans: every point, the default among them, and a fair order."""

import pytest

from wattloop.control.registry import find_levers
from wattloop.core.errors import ConfigError
from wattloop.core.settings import Settings
from wattloop.core.units import expanded
from wattloop.meters.base import Context
from wattloop.sweep.plan import (
    SweepAxis,
    SweepPlan,
    fingerprint,
    make_axis,
    make_plan,
    technique_name,
)
from wattloop.sweep.spec import parse_sweep_spec


def axis(name: str, written: object) -> SweepAxis:
    settings = Settings(virtual_gpus=2)
    levers = find_levers(Context(settings=settings), settings)
    return make_axis(name, expanded(written), levers, "caps.yaml:3")


def plan(axes: list[SweepAxis], gpus_here: int | None = 2, **fields: object) -> SweepPlan:
    return make_plan(parse_sweep_spec({"command": "true", **fields}), axes, gpus_here)


def test_the_default_is_always_a_level(virtual: dict[str, str]) -> None:
    """It appears once, listed or not; a share of the default that equals it is the same level."""
    added = axis("gpu/power_limit", [300, 500])
    assert [level.label for level in added.levels] == ["300 W", "500 W", "700 W"]
    assert added.default.label == "700 W"
    listed = axis("gpu/power_limit", "50%:100%:25%")
    assert [level.label for level in listed.levels] == ["350 W", "525 W", "700 W"]
    clocks = axis("gpu/sm_clock", [1980])
    assert clocks.default.label == "not locked"


def test_a_group_sets_all_its_levers(virtual: dict[str, str]) -> None:
    """`gpu/power_limit` is every GPU's, as in document 004."""
    level = axis("gpu/power_limit", [300]).levels[0]
    assert level.settings == {"gpu:0/power_limit": 300.0, "gpu:1/power_limit": 300.0}
    assert axis("gpu:1/power_limit", [300]).levels[0].settings == {"gpu:1/power_limit": 300.0}


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("gpu/power_limitt", [300], r"caps\.yaml:3: .*did you mean gpu.*power_limit"),
        ("gpu/power_limit", [3_000], r"caps\.yaml:3: gpu:0/power_limit.*3000.*200.*700"),
        ("gpu:7/power_limit", [300], r"no gpu:7 here; there are gpu:0, gpu:1"),
        ("gpu/power_limit", ["powersave"], r"power_limit.*'powersave' is not a value"),
    ],
)
def test_impossible_settings_are_reported_with_their_line(
    virtual: dict[str, str], name: str, value: list[object], said: str
) -> None:
    """Unknown lever, value outside the limits, or a missing GPU."""
    with pytest.raises(ConfigError, match=said):
        axis(name, value)


def test_a_machine_without_levers_says_what_it_would_need() -> None:
    """The message suggests a virtual GPU to try."""
    with pytest.raises(ConfigError, match=r"NVIDIA or AMD.*modprobe.*WATTLOOP_VIRTUAL_GPUS=1"):
        make_axis("gpu/power_limit", [100.0], [])


def test_a_grid_has_every_combination_and_each_varies_one(virtual: dict[str, str]) -> None:
    """Three caps by two clocks are six, or four one at a time."""
    axes = [axis("gpu/power_limit", [300, 500]), axis("gpu/sm_clock", [1_200])]
    assert len(plan(axes).points) == 6
    each = plan(axes, combine="each").points
    assert len(each) == 4
    assert sum(point.is_default for point in each) == 1


def test_gpu_counts_multiply_and_reach_the_command(virtual: dict[str, str]) -> None:
    """Placeholders are filled, and variables hide the unused cards."""
    made = plan([], gpus=[1, 2], command="train --n {gpus} --on {gpu_list}")
    assert len(made.points) == len(made.references) == 2
    trial = made.trial(made.points[1], "0")
    assert list(trial.command) == ["train", "--n", "2", "--on", "0,1"]
    assert trial.environment == {
        "WATTLOOP_GPUS": "2",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "HIP_VISIBLE_DEVICES": "0,1",
    }


def test_an_earlier_choice_of_gpus_is_respected(
    virtual: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of cards 4 and 6 the first one is 4."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    made = plan([], gpus=[1])
    assert made.trial(made.points[0], "0").environment["CUDA_VISIBLE_DEVICES"] == "4"


def test_more_gpus_than_there_are_is_an_error() -> None:
    """The error has the number of existing GPUs."""
    with pytest.raises(ConfigError, match="4 asked for, but there are 2 here"):
        plan([], gpus=[1, 4])
    with pytest.raises(ConfigError, match="given twice"):
        plan([], gpus=[2, 2])


@pytest.mark.parametrize("sign", ["{gpus}", "{gpu_list}"])
def test_a_number_of_gpus_that_is_not_given_is_an_error(sign: str) -> None:
    """A program is never started with a literal placeholder."""
    with pytest.raises(ConfigError, match=r"the command has \{gpu.*add --gpus 1,2,4"):
        plan([], command=f"train --n {sign}")


def test_nothing_to_run_is_an_error() -> None:
    """The error shows the right form."""
    with pytest.raises(ConfigError, match="no command to sweep"):
        make_plan(parse_sweep_spec({}), [], None)
    with pytest.raises(ConfigError, match="not both"):
        plan([], workloads={"a": "true"})


def test_each_round_has_every_point_in_its_own_order(virtual: dict[str, str]) -> None:
    """The order comes from the seed, so the same seed gives the same order."""
    axes = [axis("gpu/power_limit", "200:700:50")]
    made = plan(axes, seed=5)
    first, second = made.block(0), made.block(1)
    assert {p.key for p in first} == {p.key for p in second} == {p.key for p in made.points}
    assert first != second
    assert plan(axes, seed=5).block(0) == first
    assert plan(axes, seed=6).block(0) != first
    assert plan(axes, order="listed").block(1) == list(made.points)


def test_the_same_sweep_is_recognised(virtual: dict[str, str]) -> None:
    """It is identified by its programs, not by its name or notation."""
    axes = [axis("gpu/power_limit", [300])]
    mark = fingerprint(plan(axes))
    assert fingerprint(plan(axes, name="x", metric="energy", scope="gpu")) == mark
    assert fingerprint(plan(axes, command="false")) != mark
    assert fingerprint(plan(axes, seed=1)) != mark
    assert fingerprint(plan([axis("gpu/power_limit", [301])])) != mark


def test_workloads_are_kernels_and_libraries(virtual: dict[str, str]) -> None:
    """`gemm/jax` is gemm of jax; each has its own command and reference."""
    made = plan([], command=[], workloads={"gemm/jax": "a", "gemm/tf": ["b", "-n", 3]})
    assert [(p.workload, p.library) for p in made.points] == [("gemm", "jax"), ("gemm", "tf")]
    assert list(made.trial(made.points[1], "0").command) == ["b", "-n", "3"]


def test_levers_have_the_names_of_the_literature() -> None:
    """Power cap, clock, governor; other levers have their own names."""
    names = ("gpu/power_limit", "cpu:0/power_limit_long_term", "gpu/sm_clock", "cpu/max_frequency")
    assert [technique_name(n) for n in names] == ["power cap", "power cap", "clock", "clock"]
    assert technique_name("cpu/governor") == "governor"
    assert technique_name("gpu/fan") == "fan"
