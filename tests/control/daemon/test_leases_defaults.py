"""Promises of the operator's default caps, and of rules that are read again."""

import os
import signal

from tests.control.conftest import eventually
from tests.control.daemon.conftest import DEFAULT_W, RULES, DaemonRig
from wattloop.control.daemon.client import LOW_POWER, Change

LIMIT = "gpu:0/power_limit"
CAPPED = "default_cap: -10%\n" + RULES


def test_default_caps_lie_below_leases(rig: DaemonRig) -> None:
    """A default cap is set at the start, yields to a lease, returns after it, and ends with the
    daemon.
    """
    rig.write_rules(CAPPED)
    rig.put_limit_w(300.0, gpu=1)  # already lower: a cap never raises a limit
    rig.start()
    assert (rig.limit_w(0), rig.limit_w(1)) == (630.0, 300.0)
    with rig.connect() as client:
        assert client.set(LIMIT, 700.0) == Change(630.0, 700.0)
        assert client.set(LIMIT, 650.0).after == 650.0
    assert eventually(lambda: rig.limit_w() == 630.0)
    assert rig.end() == 0
    assert (rig.limit_w(0), rig.limit_w(1)) == (DEFAULT_W, 300.0)
    assert not rig.journals() and not rig.socket.exists()
    assert [line["lever"] for line in rig.log("default")] == [LIMIT]


def test_rules_are_read_again_on_sighup(rig: DaemonRig) -> None:
    """New caps hold at once, forbidden values are restored, and bad rules change nothing."""
    rig.start()
    assert rig.process is not None
    with rig.connect() as client:
        client.set(LIMIT, 400.0)
        client.set("gpu:1/power_limit", 650.0)
        rig.write_rules(CAPPED.replace('"*/*": any', '"gpu:*/power_limit": to 500 W'))
        rig.process.send_signal(signal.SIGHUP)
        assert eventually(lambda: len(rig.log("rules_read")) == 1)
        assert (rig.limit_w(0), rig.limit_w(1)) == (400.0, 630.0)
        assert "revoked" in rig.log("released")[-1]["why"]
        rig.rules.write_text("rules: 7\n")
        rig.process.send_signal(signal.SIGHUP)
        assert eventually(lambda: len(rig.log("rules_refused")) == 1)
        assert ":1: rules:" in rig.log("rules_refused")[0]["why"]
        assert client.set(LIMIT, 410.0).after == 410.0
        rig.write_rules(RULES)
        rig.process.send_signal(signal.SIGHUP)
        assert eventually(lambda: len(rig.log("rules_read")) == 2)
        assert (rig.limit_w(0), rig.limit_w(1)) == (410.0, DEFAULT_W)
    assert eventually(lambda: rig.limit_w() == DEFAULT_W)
    os.kill(rig.process.pid, signal.SIGTERM)
    assert rig.process.wait(120) == 0


def test_low_power_outlasts_rules_that_still_have_it(rig: DaemonRig) -> None:
    """A rule without levers allows low power only; with another low power the lever is restored."""
    rules = RULES.replace('    trusted: true\n    levers: {{"*/*": any}}', "    low_power: true")
    rig.write_rules(rules)
    rig.start()
    assert rig.process is not None
    with rig.connect() as client:
        assert client.set(LIMIT, LOW_POWER).after == 490.0
        rig.process.send_signal(signal.SIGHUP)
        assert eventually(lambda: len(rig.log("rules_read")) == 1)
        assert rig.limit_w() == 490.0
        rig.write_rules(rules.replace("low_power: 70%", "low_power: 60%"))
        rig.process.send_signal(signal.SIGHUP)
        assert eventually(lambda: len(rig.log("rules_read")) == 2)
        assert rig.limit_w() == DEFAULT_W
