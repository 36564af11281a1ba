"""Promise: every shipped policy is pure, asks for possible actions, and starves no job."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from wattloop.schedule.policies.registry import POLICIES, policy_from
from wattloop.testing.policy_contract import check_policy, check_policy_in
from wattloop.testing.synthetic_cluster import random_world


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_that_ships_keeps_the_contract(name: str) -> None:
    """In usual and in random clusters, until all jobs are done."""
    check_policy(lambda: policy_from(name))


@settings(max_examples=60, deadline=None)
@example(name="aurachronos", seed=1057)  # in time only on more GPUs than exist
@example(name="helios", seed=1057)
@example(name="pollux-osdi21", seed=1314535974)  # 16 GPUs exist, but never in whole nodes
@example(name="themis-nsdi20", seed=1314535974)
@given(name=st.sampled_from(sorted(POLICIES)), seed=st.integers(0, 2**31))
def test_any_of_them_keeps_it_anywhere(name: str, seed: int) -> None:
    """Any policy keeps the contract under random clusters, jobs, rounds, noise, failures and
    budgets.
    """
    check_policy_in(lambda: policy_from(name), random_world(seed))
