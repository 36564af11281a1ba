"""Promises of `verify`: two sources of one domain are compared with their uncertainties."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pytest

from tests.support.nvml_stub import NoCompiler, StubNvml
from wattloop.core.clock import RealClock, VirtualClock
from wattloop.core.records import Domain, DomainKind, Gap, Scope
from wattloop.core.settings import Settings
from wattloop.measure.verify import Observed, Verdict, compare, verification_report, verify
from wattloop.meters.base import Context, Meter, Reading
from wattloop.meters.registry import detect


class Steady(Meter):
    """A counter or gauge of constant power on a virtual clock."""

    name: ClassVar[str] = "steady"

    def __init__(self, clock: VirtualClock, kind: DomainKind, power_w: float | None) -> None:
        self._clock = clock
        self._power_w = power_w
        self._domain = Domain(
            name="gpu:0", kind=kind, scope=Scope.GPU, source=f"a {kind.value}", known_error=0.01
        )

    @property
    def domains(self) -> tuple[Domain, ...]:
        return (self._domain,)

    def read(self) -> Sequence[Reading]:
        if self._power_w is None:
            return [Gap("unplugged")]
        if self._domain.kind is DomainKind.COUNTER:
            return [self._power_w * self._clock.now_s()]
        return [self._power_w]


def checked(counter_w: float | None, gauge_w: float | None) -> Verdict:
    clock = VirtualClock(100.0)
    meters = [
        Steady(clock, DomainKind.COUNTER, counter_w),
        Steady(clock, DomainKind.GAUGE, gauge_w),
    ]
    (check,) = verify(meters, clock, 3.0)
    assert check.to_dict()["verdict"] == check.verdict.value
    return check.verdict


@pytest.mark.parametrize(
    ("counter_w", "gauge_w", "verdict"),
    [
        (200.0, 200.0, Verdict.AGREE),
        (200.0, 201.0, Verdict.AGREE),
        (200.0, 220.0, Verdict.DIFFER),
        (200.0, None, Verdict.UNKNOWN),
        (None, 200.0, Verdict.UNKNOWN),
    ],
)
def test_counter_against_polled_power(
    counter_w: float | None, gauge_w: float | None, verdict: Verdict
) -> None:
    """They agree within their uncertainties, differ beyond them, and a gap is not an agreement."""
    assert checked(counter_w, gauge_w) is verdict


def test_one_source_alone_is_not_compared() -> None:
    """A comparison needs two sources."""
    clock = VirtualClock(100.0)
    assert verify([Steady(clock, DomainKind.GAUGE, 5.0)], clock, 1.0) == []


def test_difference_is_stated_in_percent() -> None:
    """The text names the difference, the allowed difference, and the source in use."""
    check = compare("gpu:0", Observed("a", "A", 100.0, 1.0), Observed("b", "B", 110.0, 1.0))
    assert check.difference == pytest.approx(0.1)
    assert "+10.0%" in check.text
    assert "a is the one used" in check.text


def test_stuck_source_is_unknown() -> None:
    """A counter that did not move neither agrees nor differs."""
    check = compare("gpu:0", Observed("a", "A", 100.0, 1.0), Observed("b", "B", 0.0, 1.0))
    assert check.verdict is Verdict.UNKNOWN


def test_energy_counter_and_polled_power_of_one_card_agree(tmp_path: Path) -> None:
    """NVML's two sources, through the real nvidia-ml-py, belong to the same card."""
    try:
        stub = StubNvml(tmp_path, gpus=1)
    except NoCompiler as reason:
        pytest.skip(str(reason))
    with stub:
        stub.square(0, low_w=200, high_w=500, period_s=0.8)
        inventory = detect(Context(settings=Settings(meters=("nvidia",))))
        checks = verify(inventory.meters, RealClock(), 2.0)
        inventory.close()
    assert [check.domain for check in checks] == ["gpu:0"]
    assert checks[0].verdict is Verdict.AGREE, checks[0].text


def test_a_report_has_this_machine_next_to_the_thesis() -> None:
    """Means and spread over the rounds; powers of tables 3.3 to 3.5 as Wh over seconds."""
    rounds = [
        [compare("cpu:0/package", Observed("rapl", "powercap", 100.0, 1.0),
                 Observed("perf", "perf events", second_j, 1.0))]
        for second_j in (101.0, 103.0)
    ]  # fmt: skip
    text = verification_report(rounds, 2.0)
    assert "| cpu:0/package | powercap, perf events | 50.00 ± 0.00 | 51.00 ± 0.71 |" in text
    assert "+2.00% ± 1.41%" in text
    assert "agree, differ" in text
    assert "| 3.3, Intel-2 | sleep | package | perf, EA2P | 44.22 | 43.55 | -1.5% |" in text
    assert "nothing to compare" in verification_report([[], []], 2.0)
