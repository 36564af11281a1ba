"""Promise: the shipped scenario agrees with ADR 0031."""

from pathlib import Path

import numpy as np
import pytest

from wattloop.schedule.scenarios.file import load_scenario

ADR = Path(__file__).parents[3] / "docs/adr/0031-the-thesis-scenario-with-its-gaps-filled.md"


def test_machines_and_rules() -> None:
    """8 A100 at 55 W and 8 H100 at 70 W idle, GPUs only; 10% noise; a round a second for 10 h."""
    scenario = load_scenario("thesis")
    types = [(each.gpu.name, each.tdp_w, each.idle_w) for each in scenario.cluster.types]
    assert types == [("a100-sxm-40", 400.0, 55.0), ("h100-sxm", 700.0, 70.0)]
    assert scenario.cluster.gpus_by_type == (8, 8)
    assert scenario.cluster.idle_w == 8 * 55 + 8 * 70
    assert scenario.oracle.noise == pytest.approx(0.1)
    assert (scenario.engine.rounds_s, scenario.engine.horizon_s) == (1.0, 36_000.0)


def test_jobs() -> None:
    """Samples, GPU counts, batches and caps of the three models."""
    templates = [model.template() for model in load_scenario("thesis").jobs.models]
    assert [each.least_work for each in templates] == [2_500_000, 1_683_725, 2_500_000]
    assert [each.kind.batches for each in templates] == [
        (64, 128, 256), (32, 64, 128), (64, 128, 256)
    ]  # fmt: skip
    for each in templates:
        assert each.most_work == each.least_work
        assert each.kind.gpus == (1, 2, 4, 8)
        assert sorted(each.kind.caps) == [0.5, 0.6, 0.7, 0.8, 0.9, 1.0]
        assert each.weight == 1
    assert [each.kind.precision for each in templates] == ["tf32", "bf16", "tf32"]


def test_load_is_what_the_thesis_says() -> None:
    """With all jobs on 8 GPUs of either node, 18 an hour load the cluster to 80-90% (ADR: 83%)."""
    scenario = load_scenario("thesis")
    assert scenario.jobs.generate is not None
    hours = np.zeros(2)
    for model in scenario.jobs.models:
        template = model.template()
        options = scenario.truth.options(template.kind)
        for type_index in (0, 1):
            rows = (options.type_index == type_index) & (options.gpus == 8)
            hours[type_index] += template.least_work * options.sample_s[rows].min() / 3600
    served_per_h = float(np.sum(len(scenario.jobs.models) / hours))
    assert served_per_h == pytest.approx(21.6, abs=0.05)
    assert scenario.jobs.generate.rate_per_s * 3600 / served_per_h == pytest.approx(0.83, abs=0.005)
    assert "21.6 jobs an hour" in ADR.read_text()
