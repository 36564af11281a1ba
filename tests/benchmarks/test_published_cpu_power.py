import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from wattloop.hardware import cpu_power

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "published_cpu_power.py"
JUDGES = ("1950X", "E3-1240 v2")


@pytest.fixture(scope="module")
def prior() -> ModuleType:
    spec = importlib.util.spec_from_file_location("published_cpu_power", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_the_shipped_constants_are_those_of_the_published_table(prior) -> None:
    """Promise: nobody tunes a constant by hand; each is what the table says, rounded."""
    derived = prior.constants(prior.published())
    shipped = cpu_power.PUBLISHED
    assert dict(shipped.idle_share) == pytest.approx(derived.idle_share, abs=0.006)
    assert shipped[1:] == pytest.approx(derived[1:], abs=0.006)


@pytest.mark.parametrize("clock_known", [True, False])
def test_the_shipped_interval_is_the_spread_between_published_processors(
    prior, clock_known
) -> None:
    """Promise: the stated error is Student's over processors left out, and covers nine in ten."""
    tried = prior.leave_one_out(with_clock=clock_known)
    shipped = cpu_power.KNOWN_CLOCK_ERROR if clock_known else cpu_power.UNKNOWN_CLOCK_ERROR
    assert shipped == pytest.approx(prior.interval(tried), abs=0.011)
    assert prior.coverage(tried, shipped) >= 0.9


def test_the_processors_that_judge_the_estimate_do_not_teach_it(prior) -> None:
    """Promise: the reference file stays held out."""
    names = [part.processor.name.lower() for part in prior.published()]
    assert not [name for name in names for judge in JUDGES if judge.lower() in name]


def test_left_out_it_is_better_than_tdp_times_load(prior) -> None:
    """Promise: on processors it has not seen it beats the law that most tools use."""
    tried = prior.leave_one_out(with_clock=True)
    ours = prior.mean_error(tried, lambda t: t.estimate)
    assert ours < 0.8 * prior.mean_error(tried, lambda t: max(0.1, t.level.utilisation))


def test_students_quantile(prior) -> None:
    """Promise: tables of Student's distribution give 1.812 for ten degrees, 1.753 for fifteen."""
    assert prior.student_t(10) == pytest.approx(1.812, abs=0.002)
    assert prior.student_t(15) == pytest.approx(1.753, abs=0.002)
