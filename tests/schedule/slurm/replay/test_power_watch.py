"""Promise: power of all nodes is recorded, in the samples and between them."""

import time
from itertools import pairwise
from pathlib import Path

import pytest

from tests.schedule.slurm.replay.small_plan import IDLE_W, small_plan
from tests.support.saved_runs import wait_until
from wattloop.schedule.slurm.replay.result import PowerWatch, exact_peak_w
from wattloop.schedule.slurm.replay.runner import virtual_gpus, write_plan
from wattloop.virtual.gpu import IDLE, Activity

NAMES = {0: "n1", 1: "n2"}


def test_a_peak_between_two_samples_is_found(tmp_path: Path) -> None:
    """Two GPUs of different nodes at work together for 20 ms, four minutes ago."""
    plan = small_plan([(0, 1)])
    write_plan(plan, tmp_path, NAMES)
    cards = virtual_gpus(plan.cluster, tmp_path, NAMES)
    full = Activity(1.0, 0.0, 1.0)
    begin_s = time.monotonic() - 240.0
    cards["n1"][0].occupy(full, at_s=begin_s + 1.0)
    cards["n2"][1].occupy(full, at_s=begin_s + 2.0)
    cards["n1"][0].occupy(IDLE, at_s=begin_s + 2.05)
    cards["n2"][1].occupy(IDLE, at_s=begin_s + 4.0)
    both_w = 2 * 400.0 + 2 * IDLE_W
    assert exact_peak_w(cards, begin_s, begin_s + 5.0) == pytest.approx(both_w, rel=0.01)
    assert exact_peak_w(cards, begin_s + 2.5, begin_s + 5.0) == pytest.approx(550.0, rel=0.01)


def test_samples_add_up_to_the_energy_of_all_nodes(tmp_path: Path) -> None:
    """Mean powers times their lengths are what the cards used, idle ones included."""
    plan = small_plan([(0, 1)])
    write_plan(plan, tmp_path, NAMES)
    cards = virtual_gpus(plan.cluster, tmp_path, NAMES)
    with PowerWatch(cards) as watch:
        cards["n1"][1].occupy(Activity(1.0, 0.0, 0.5))
        wait_until(lambda: len(watch.samples()) >= 3)
    samples = watch.samples()
    first_s = samples[0].at_s
    sampled_j = sum(
        after.power_w * (after.at_s - before.at_s) for before, after in pairwise(samples)
    )
    gpus = [gpu for each in cards.values() for gpu in each]
    true_j = sum(gpu.true_energy_j(first_s, samples[-1].at_s) for gpu in gpus)
    assert sampled_j == pytest.approx(true_j, rel=0.01)
