"""Promises of parts and scales of a trace."""

import numpy as np
import pytest
from pydantic import ValidationError

from wattloop.core.errors import ConfigError
from wattloop.schedule.jobs.spec import Scaling
from wattloop.schedule.traces.trace import Coded, Trace

TRACE = Trace(
    source="t.csv",
    arrival_s=np.arange(100.0) * 10,
    gpus=np.arange(100) % 4 + 1,
    duration_s=np.full(100, 60.0),
    deadline_s=np.arange(100.0) * 10 + 90,
    samples=np.full(100, 1e3),
    user=Coded(("a", "b"), (np.arange(100) >= 50).astype(np.int32)),
    names=tuple(map(str, range(100))),
)


def test_nothing_asked_is_nothing_done() -> None:
    """The trace is unchanged."""
    assert Scaling().of(TRACE, 0) is TRACE


def test_a_part_of_the_time_begins_at_0() -> None:
    """The end is excluded; users without jobs are removed; deadlines shift along."""
    part = Scaling(begin_s=600, end_s=700).of(TRACE, 0)
    assert part.names == tuple(map(str, range(60, 70))) and part.user.values == ("b",)
    assert part.arrival_s[0] == 0 and part.deadline_s[0] == 90
    assert part.notes == ("only jobs that arrive from 10 min 00 s to 11 min 40 s",)
    with pytest.raises(ConfigError, match=r"t\.csv: no job arrives from 1 h 00 min"):
        Scaling(begin_s=3_600).of(TRACE, 0)


def test_the_first_and_a_sample() -> None:
    """A larger sample contains the smaller one, in order; other seeds draw others."""
    assert Scaling(head=3).of(TRACE, 0).names == ("0", "1", "2")
    few, more = (set(Scaling(sample=n).of(TRACE, 7).names) for n in (10, 30))
    assert len(few) == 10 and few < more
    drawn = Scaling(sample=10).of(TRACE, 8)
    assert set(drawn.names) != few and (np.diff(drawn.arrival_s) > 0).all()
    assert Scaling(sample=1_000, head=500).of(TRACE, 0) is TRACE


def test_time_work_and_gpus_scale() -> None:
    """Twice as fast, half as long, 1.5 x the GPUs; the time to the deadline shrinks with it."""
    scaled = Scaling(speed=2, work=0.5, gpus=1.5).of(TRACE, 0)
    assert scaled.arrival_s[10] == 50 and scaled.duration_s[0] == 30 and scaled.samples[0] == 500
    assert scaled.deadline_s[10] == 50 + 45
    assert scaled.gpus[:4].tolist() == [2, 3, 4, 6]
    assert Scaling(gpus=0.1).of(TRACE, 0).gpus.tolist() == [1] * 100
    assert scaled.notes == ("scaled: arrivals x 2, work x 0.5, GPUs x 1.5",)
    assert TRACE.arrival_s[10] == 100


@pytest.mark.parametrize(
    "wrong",
    [{"speed": 0}, {"work": -1}, {"gpus": np.inf}, {"head": 0}, {"sample": -1}, {"end_s": 0}],
)
def test_scales_that_make_no_sense_are_refused(wrong) -> None:
    """The error names the field."""
    with pytest.raises(ValidationError, match=next(iter(wrong)).removesuffix("_s")):
        Scaling(**wrong)
