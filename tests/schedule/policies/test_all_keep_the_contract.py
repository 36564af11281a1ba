"""Promise: every policy that ships is pure, asks for what is possible, and starves nobody."""

import pytest

from wattloop.schedule.policies.registry import POLICIES, policy_from
from wattloop.testing.policy_contract import check_policy


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_that_ships_keeps_the_contract(name: str) -> None:
    """In usual and in random clusters, until all is done."""
    check_policy(lambda: policy_from(name))
