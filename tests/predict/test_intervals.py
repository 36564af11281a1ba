"""Promises of intervals: coverage, width, and the causes of wider ones."""

import json
import math
import random
from dataclasses import replace

import pytest

from wattloop.core.errors import ConfigError
from wattloop.hardware.gpus import gpu_named
from wattloop.predict.intervals import (
    TRAITS,
    CalibrationRange,
    HostSpread,
    Intervals,
    Residual,
    bottleneck_of,
    class_of,
    spread_of,
    spreads_of,
    traits_of,
)
from wattloop.predict.prediction import AT_REST, Placement, Prediction
from wattloop.predict.workload.operation import Kind, Operation, Phase
from wattloop.predict.workload.workload import Workload

GPU = gpu_named("h200")
HERE = Placement(GPU)
PRODUCT = Operation(
    "aten.mm", Kind.GEMM, Phase.FORWARD, dtype="bf16", flops=4e9, bytes_read=6e7,
    bytes_written=4e7, dims=(1, 1024, 1024, 1024),
)  # fmt: skip
STEP = Workload("net", (PRODUCT,), precision="bf16")
SCOPE = CalibrationRange.of("h200", [STEP])


def drawn(spread: float, count: int, seed: int, bottleneck: str = "gpu") -> list[Residual]:
    rng = random.Random(seed)
    return [
        Residual(f"net{i % 10}", bottleneck, rng.gauss(0, spread), rng.gauss(0, spread))
        for i in range(count)
    ]


def test_nine_in_ten_new_steps_lie_in_their_interval() -> None:
    """Promise: a 90% interval covers about 90% of steps that erred as the calibrated ones did."""
    known = Intervals.of(drawn(0.1, 1000, seed=1))
    new = drawn(0.1, 4000, seed=2)
    for quantity in ("time", "power", "energy"):
        half = known.half_width(quantity, "gpu")
        assert half is not None
        covered = sum(abs(r.value(quantity) or 0) <= half for r in new) / len(new)
        assert covered == pytest.approx(0.9, abs=0.04)


def test_a_few_groups_give_an_interval_that_one_of_them_does_not_decide() -> None:
    """Promise: as wide as the errors of four groups say; a fifth, five times as wrong, widens it
    by less than half."""
    rng = random.Random(3)
    usual = [
        Residual(f"gpu{i % 4}", "gpu", rng.choice((-1, 1)) * rng.expovariate(20))
        for i in range(400)
    ]
    odd = [Residual("odd", "gpu", -rng.expovariate(4)) for _ in range(40)]
    known, with_odd = (
        Intervals.exponential(r).half_width("time", "gpu") for r in (usual, usual + odd)
    )
    assert known is not None and with_odd is not None
    new = [rng.expovariate(20) for _ in range(4000)]
    assert sum(size <= known for size in new) / len(new) == pytest.approx(0.9, abs=0.03)
    assert known < with_odd < 1.5 * known


def test_power_is_not_thought_to_exceed_its_limit() -> None:
    """Promise: a GPU stays at its cap within 2%; below, and for time and energy, nothing
    changes.
    """
    known = Intervals.of(drawn(0.1, 50, 1))
    free = known.around(Prediction(0.5, 290.0), STEP, HERE).power_interval
    capped = known.around(Prediction(0.5, 290.0), STEP, Placement(GPU, cap_w=300.0))
    assert free is not None and capped.power_interval is not None
    assert free.high > 320
    assert capped.power_interval.high == pytest.approx(306)
    assert capped.power_interval.low == free.low
    assert capped.energy_interval is not None
    assert capped.energy_interval.low * capped.energy_interval.high == pytest.approx(145.0**2)
    full = known.around(Prediction(0.5, 310.0), STEP, Placement(GPU, cap_w=300.0)).power_interval
    assert full is not None and full.high == 310.0


def test_a_prediction_gets_all_three_intervals_around_it() -> None:
    """Promise: time, power and energy have intervals of the stated confidence around them."""
    found = Intervals.of(drawn(0.1, 50, 1)).around(Prediction(0.5, 400.0), STEP, HERE, 0.8)
    for interval, value in (
        (found.step_interval, 0.5),
        (found.power_interval, 400.0),
        (found.energy_interval, 200.0),
    ):
        assert interval is not None
        assert interval.low < value < interval.high
        assert interval.low * interval.high == pytest.approx(value**2)
        assert interval.confidence == 0.8


def test_host_bound_steps_have_their_own_residuals_when_there_are_enough() -> None:
    """Promise: regimes with 20 residuals of 3 models have widths of their own, others share."""
    quick, slow = drawn(0.02, 60, 1), drawn(0.3, 60, 2, "host")
    apart = Intervals.of([*quick, *slow])
    width = apart.half_width("time", "host")
    assert width is not None
    assert width > 5 * (apart.half_width("time", "gpu") or 1)
    few = Intervals.of([*quick, *slow[:19]])
    assert few.half_width("time", "host") == few.half_width("time", "all")
    one_model = Intervals.of([*quick, *(replace(r, group="one") for r in slow)])
    assert one_model.half_width("time", "host") == one_model.half_width("time", "all")


def test_the_host_is_the_bottleneck_from_seven_tenths_of_the_step() -> None:
    """Promise: regimes are separated as in the accuracy tables."""
    assert bottleneck_of(Prediction(1.0, 1, host_s=0.69)) == "gpu"
    assert bottleneck_of(Prediction(1.0, 1, host_s=0.71)) == "host"
    assert bottleneck_of(Prediction(1.0, 1)) == "gpu"


def test_few_residuals_give_a_wide_interval_and_none_gives_none() -> None:
    """Promise: a confidence that the residuals cannot support is not claimed; missing is None."""
    few = Intervals.of([Residual("a", "gpu", 0.1), Residual("b", "gpu", -0.2)])
    assert few.half_width("time", "gpu") == pytest.approx(0.4)
    assert few.half_width("power", "gpu") is None
    assert few.around(Prediction(1, 1), STEP, HERE).power_interval is None
    assert Intervals.of([]).around(Prediction(1, 1), STEP, HERE).step_interval is None
    with pytest.raises(ConfigError, match="confidence"):
        few.half_width("time", "gpu", 1.0)


def test_power_that_was_not_measured_is_left_out() -> None:
    """Promise: a step without measured power has a residual of time only."""
    residual = Residual.of("a", Prediction(1.0, 100.0), 1.1, None)
    assert residual.power is None
    assert residual.value("energy") is None


def stepped(unloaded: float, size: float, group: str) -> Residual:
    """Return a residual of a step that leaves the GPU unloaded by that share."""
    return Residual(group, "gpu", size, size / 2, {"unloaded": unloaded})


def test_steps_with_uncertain_traits_have_wider_intervals() -> None:
    """Promise: with spreads, widths follow the traits of a step, and coverage stays as stated."""
    rng = random.Random(3)

    def drawn_traits(count: int) -> list[Residual]:
        shares = [rng.choice((0.0, 0.2, 1.0)) for _ in range(count)]
        spread = [0.02 * 10**share for share in shares]
        return [
            stepped(share, rng.gauss(0, sigma), f"net{n % 12}")
            for n, (share, sigma) in enumerate(zip(shares, spread, strict=True))
        ]

    known = Intervals.by_traits(drawn_traits(2400), SCOPE)
    waiting = Prediction(1.0, 20.0)
    busy = Prediction(1.0, 700.0)
    wide = known.around(waiting, STEP, HERE).step_interval
    narrow = known.around(busy, STEP, HERE).step_interval
    assert wide is not None
    assert narrow is not None
    assert wide.high - 1 > 5 * (narrow.high - 1)
    again = Intervals.from_dict(json.loads(json.dumps(known.to_dict())))
    assert again.around(waiting, STEP, HERE).step_interval == pytest.approx(wide, rel=1e-3)
    scale = known.half_width("time", "gpu") or 0
    inside = [
        abs(r.time) <= scale * spread_of(known.spreads["time"], r.traits)
        for r in drawn_traits(3000)
    ]
    assert sum(inside) / len(inside) == pytest.approx(0.9, abs=0.03)


def test_few_models_are_not_separated_by_traits() -> None:
    """Promise: with two models, or fewer than 20 residuals, the plain residuals are used."""
    few = [stepped(n / 40, 0.1, f"net{n % 2}") for n in range(40)]
    assert Intervals.by_traits(few).spreads == {}
    assert Intervals.by_traits([stepped(0, 0.1, f"net{n}") for n in range(19)]).spreads == {}


def test_traits_of_a_step_are_what_is_known_of_it() -> None:
    """Promise: waiting, load, kinds as shares of the step, distance in tenths; an unknown one is
    0.
    """
    terms = {"forward.conv": 0.2, "backward.conv": 0.2, "backward.rnn": 0.2, "forward.gemm": 0.2}
    step = Prediction(1.0, 0.97 * 350.0, terms_s={**terms, "waiting": 0.2}, gpu_s=0.8, far=0.05)
    found = traits_of(step, limit_w=700.0)
    assert set(found) == set(TRAITS)
    assert found["waiting"] == pytest.approx(0.2)
    assert found["unloaded"] == pytest.approx(0.5)
    assert found["convolution"] == pytest.approx(0.4)
    assert found["recurrence"] == pytest.approx(0.2)
    assert found["far"] == pytest.approx(0.4)
    assert traits_of(replace(step, far=1.0), 700.0)["far"] == pytest.approx(0.8 * 3)
    assert traits_of(Prediction(1.0, 700.0), 700.0) == dict.fromkeys(TRAITS, 0.0)


def test_spreads_are_found_again_in_what_was_drawn_from_them() -> None:
    """Promise: base and slopes are those of the largest likelihood; without data there is no
    slope.
    """
    rng = random.Random(5)
    traits = [{"waiting": rng.random(), "far": 3 * rng.random()} for _ in range(4000)]
    sizes = [0.003 * math.exp(t["waiting"] + 0.5 * t["far"]) for t in traits]
    drawn_sizes = [size * rng.expovariate(1) for size in sizes]
    found = spreads_of(traits, drawn_sizes)
    assert found["waiting"] == pytest.approx(1.0, abs=0.2)
    assert found["far"] == pytest.approx(0.5, abs=0.1)
    assert found["recurrence"] == pytest.approx(0.0, abs=1e-6)
    low, high = (spread_of(found, {"waiting": w, "far": 0.0}) for w in (0.0, 1.0))
    assert high / low == pytest.approx(math.exp(found["waiting"]))
    exact = spreads_of(traits, [0.0] * len(traits))
    assert 0 < spread_of(exact, traits[0]) < 1e-5


HOSTS = HostSpread.of([0.75, 0.76, 0.71, 0.76])


def test_an_unknown_host_widens_what_waits_for_it() -> None:
    """Promise: the slow end follows slower hosts, the fast one stays; a busy GPU hides them."""
    assert HOSTS is not None and HostSpread.of([0.7, 0.8]) is None
    known = Intervals.of(drawn(0.05, 50, 1))
    rest = {"forward.gemm": 30.0, AT_REST: 70.0}
    waits = Prediction(1.0, 100.0, gpu_s=0.3, host_s=1.0, terms_j=rest)
    busy = replace(waits, gpu_s=1.0, host_s=0.4)
    told, untold = (known.around(waits, STEP, HERE, hosts=hosts) for hosts in (None, HOSTS))
    assert untold.step_interval.low == told.step_interval.low
    assert untold.step_interval.high > 1.3 * told.step_interval.high
    assert untold.power_interval.low < 0.95 * told.power_interval.low
    assert untold.power_interval.high == told.power_interval.high
    # waiting takes 70 of 100 W, so energy follows less than time does
    ends = (untold.energy_interval.high / 100.0, untold.step_interval.high)
    assert told.energy_interval.high / 100.0 < ends[0] < ends[1]
    assert known.around(busy, STEP, HERE, hosts=HOSTS) == known.around(busy, STEP, HERE)


def test_nine_in_ten_hosts_lie_in_the_interval_of_an_unknown_one() -> None:
    """Promise: coverage over drawn hosts is 85 to 95%, although each is slower than assumed."""
    rng = random.Random(7)
    known = Intervals.of(drawn(0.08, 1000, 1))
    step = Prediction(1.0, 100.0, gpu_s=0.1, host_s=1.0, terms_j={AT_REST: 100.0})
    low, high, _ = known.around(step, STEP, HERE, hosts=HOSTS).step_interval
    logs = [rng.gauss(HOSTS.mean, HOSTS.deviation) + rng.gauss(0, 0.08) for _ in range(4000)]
    covered = sum(math.log(low) <= log <= math.log(high) for log in logs) / len(logs)
    assert 0.85 < covered < 0.95


def width(workload: Workload, placement: Placement = HERE) -> tuple[float, tuple[str, ...]]:
    known = Intervals.of(drawn(0.1, 50, 1), SCOPE)
    found = known.around(Prediction(1.0, 1.0), workload, placement)
    assert found.step_interval is not None
    return found.step_interval.high, found.warnings


def test_outside_of_the_calibrated_range_intervals_are_wider_and_say_why() -> None:
    """Promise: intensity, missing rules, new classes and other GPUs each widen, by the rule."""
    inside, silent = width(STEP)
    assert silent == ()
    cases = {
        "FLOPs per byte": replace(PRODUCT, flops=4 * PRODUCT.flops),
        "without rules": replace(PRODUCT, ruled=False),
        "never calibrated: grouped conv bf16": replace(
            PRODUCT, kind=Kind.CONV, dims=(64, 1024, 1, 9)
        ),
    }
    for words, op in cases.items():
        high, warnings = width(replace(STEP, operations=(op,)))
        assert high > inside
        assert words in " ".join(warnings)
    high, warnings = width(STEP, Placement(replace(GPU, name="a100")))
    assert high == pytest.approx(inside**3)
    assert "a100" in " ".join(warnings)


def test_distance_adds_up_by_the_stated_rule() -> None:
    """Promise: a quarter per doubling, four times a share, two for another GPU."""
    eight_times = replace(STEP, operations=(replace(PRODUCT, flops=8 * PRODUCT.flops),))
    assert SCOPE.distance(eight_times, HERE).value == pytest.approx(0.75)
    half = replace(PRODUCT, count=1, ruled=False)
    mixed = replace(STEP, operations=(PRODUCT, half))
    assert SCOPE.distance(mixed, HERE).value == pytest.approx(2.0)
    assert SCOPE.distance(STEP, HERE).factor == 1.0


def test_operations_timed_separately_have_their_own_classes() -> None:
    """Promise: depthwise from dense, cells, attention's algorithm, arithmetic of products."""
    conv = replace(PRODUCT, kind=Kind.CONV)
    assert class_of(conv) == "conv bf16"
    assert class_of(replace(conv, dims=(32, 8, 1, 9))) == "grouped conv bf16"
    assert class_of(replace(PRODUCT, kind=Kind.RNN, detail={"cell": "gru"})) == "gru bf16"
    flash = replace(PRODUCT, kind=Kind.ATTENTION, detail={"algorithm": "flash"})
    assert class_of(flash) == "flash attention bf16"
    assert class_of(replace(PRODUCT, kind=Kind.COPY)) == "copy"


def test_intervals_survive_a_file_and_a_broken_one_is_named() -> None:
    """Promise: plain values survive JSON unchanged; the error for a corrupted table names the
    part.
    """
    known = Intervals.of(drawn(0.1, 50, 1), SCOPE)
    again = Intervals.from_dict(json.loads(json.dumps(known.to_dict())))
    assert again.scope == SCOPE
    assert again.half_width("time", "gpu") == pytest.approx(
        known.half_width("time", "gpu"), abs=1e-4
    )
    with pytest.raises(ConfigError, match="residuals"):
        Intervals.from_dict({})
    with pytest.raises(ConfigError, match="intervals of the calibration"):
        Intervals.from_dict({"residuals": {"all": {"time": ["much"]}}})
    with pytest.raises(ConfigError, match="base"):
        Intervals.from_dict({"residuals": {}, "spreads": {"time": {"host": 0.1}}})
    with pytest.raises(ConfigError, match="flops_per_byte"):
        Intervals.from_dict({"residuals": {}, "scope": {"gpu": "h200"}})
    with pytest.raises(ConfigError, match="at least one"):
        CalibrationRange.of("h200", [])
