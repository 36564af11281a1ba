"""Strategies compared on tables: every joule is counted, and the figures mean what they say."""

import pytest

from tests.tune.replay.small_tables import write_tables
from wattloop.core.errors import ConfigError
from wattloop.tune.replay.recurring_jobs import POLICIES
from wattloop.tune.replay.replay import FIGURES, medians, replay
from wattloop.tune.replay.tables import read_workloads


@pytest.fixture
def workload(tmp_path):
    """The small one."""
    tables = write_tables(tmp_path)
    return read_workloads([tables.power], tables.train, tables.problems)[0][0]


@pytest.mark.parametrize("name", POLICIES)
def test_every_strategy_can_be_replayed(workload, name):
    """And reaches the target, at no less than it costs; `asha` may only find the default."""
    entry = replay(workload, name, seeds=2, recurrences=20)
    assert entry.failures == 0 or name == "asha"
    assert entry.final_over_oracle is not None
    assert entry.cum20_over_oracle > 0.8
    assert entry.cum50_over_oracle is None
    assert entry.explore_d < entry.one_shot_d


def test_default_cap_is_the_default_at_its_best_cap(workload):
    """Nothing is explored, and the winner is known."""
    entry = replay(workload, "default-cap", seeds=4, recurrences=1)
    assert entry.explore_d == 0
    best_j = workload.energy_j(32, 100.0)
    assert entry.final_over_oracle == pytest.approx(best_j / workload.oracle_energy_j)
    assert entry.within_5pct_share == 0


def test_grid_finds_the_best_and_pays_for_all(workload):
    """Six configurations, of which a batch size never gets there."""
    entry = replay(workload, "grid", seeds=2, recurrences=1)
    assert entry.final_over_oracle == pytest.approx(1)
    failing_d = sum(20 * workload.epoch_energy_j(128, cap) for cap in (100.0, 200.0))
    assert entry.explore_d > failing_d / workload.default_energy_j


def test_race_finds_the_best_for_little(workload):
    """Within the bars of its benchmark, on tables it has never seen."""
    entry = replay(workload, "race", seeds=5, recurrences=20)
    assert entry.within_5pct_share == 1
    assert entry.one_shot_d < 1.2
    assert entry.cum20_over_oracle < 1.16


def test_the_same_seeds_give_the_same_figures(workload):
    """Nothing else is random."""
    assert replay(workload, "race", seeds=2, recurrences=2) == replay(
        workload, "race", seeds=2, recurrences=2
    )


def test_medians_are_over_workloads(workload):
    """Figures that none has are None."""
    entry = replay(workload, "default-cap", seeds=1, recurrences=1)
    found = medians([entry, entry])
    assert set(found) == set(FIGURES)
    assert found["one_shot_d"] == entry.one_shot_d
    assert found["cum20_over_oracle"] is None


def test_an_unknown_strategy_is_refused(workload):
    """With those that are known."""
    with pytest.raises(ConfigError, match="known are race"):
        replay(workload, "rush", seeds=1)
