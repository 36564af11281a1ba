"""`race`: the contract of strategies, and what it promises beyond."""

from wattloop.testing.strategy_contract import check_strategy
from wattloop.testing.synthetic_bench import SyntheticBench, synthetic_problem
from wattloop.tune.strategies.race import Race


def test_keeps_the_contract_of_strategies():
    """Resumed anywhere, failing anywhere, it asks what it should."""
    check_strategy(Race)


def test_keeps_the_contract_with_ranges_and_caps():
    """Also where parameters are ranges and caps are looked for inside trainings."""
    check_strategy(Race, lambda: SyntheticBench(synthetic_problem(ranges=True, capped=True)))
