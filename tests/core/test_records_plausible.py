"""Promises of plausible power: one table, and a counter that wraps is not a gap in any curve."""

from array import array

import pytest

from wattloop.core.errors import ConfigError
from wattloop.core.records import Scope, counter_rise_j, highest_power_w
from wattloop.core.results import RunStatus
from wattloop.fleet.delivery.node_status import NodeStatus
from wattloop.store.journal import SampleBlock
from wattloop.store.runs import RunRecord
from wattloop.store.samples import watts

WRAP_J = 1_000.0


def test_a_fall_is_a_wrap_or_a_reset() -> None:
    """Promise: a fall that implies an impossible power is a reset, not 650 kW."""
    assert counter_rise_j(-990.0, 0.1, WRAP_J) == 10.0
    assert counter_rise_j(-500.0, 0.1, 65_536.0) is None
    assert counter_rise_j(-1.0, 0.1, None) is None
    assert counter_rise_j(3.0, 0.1, None) == 3.0


def test_the_live_curve_has_the_sample_of_a_wrap() -> None:
    """Promise: the events of an unfinished run show the same points as its stored curve."""
    live = pytest.importorskip("wattloop.serve.api.live", reason="needs the extra serve")
    times_s, values_j = array("d", [1.0, 1.1, 1.2, 1.3]), array("d", [984.0, 992.0, 0.0, 8.0])
    domain = {"name": "cpu:0/package", "kind": "counter", "wrap_j": WRAP_J}
    record = RunRecord(
        run_id="20270115-080000-aaaaaa",
        name="x",
        status=RunStatus.RUNNING,
        started_wall_s=0.0,
        started_s=0.0,
        feeds=[{"meter": "rapl", "domains": [domain]}],
    )
    rows = list(live._rows(SampleBlock(0, 1, times_s, values_j), record, {}))
    assert [row["power_w"] for row in rows] == pytest.approx([80.0, 80.0, 80.0])
    stored = watts(times_s, values_j, counter=True, wrap_j=WRAP_J)
    assert list(stored[1:]) == pytest.approx([row["power_w"] for row in rows])


@pytest.mark.parametrize(
    ("name", "scope"), [("gpu:3", Scope.GPU), ("cpu:0/core", Scope.CPU), ("dram", Scope.DRAM)]
)
def test_a_node_may_not_claim_more_than_a_device_can_draw(name: str, scope: Scope) -> None:
    """Promise: the power that a node reports has the limit that its runs have."""
    most_w = highest_power_w(name)
    assert most_w == highest_power_w(scope)
    assert NodeStatus.parse({"power_w": {name: most_w}}).power_w == {name: most_w}
    too_much = NodeStatus.parse({"power_w": {name: 1.01 * most_w, "node": 500.0}})
    assert too_much.power_w == {"node": 500.0}
    assert "W cannot be; left out" in too_much.faults[0]
    with pytest.raises(ConfigError, match="cannot be"):
        NodeStatus.parse({"power_w": {name: 1e6}})
