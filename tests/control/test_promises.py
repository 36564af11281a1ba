"""Promises of docs/control.md: each one names a test that exists, and every lever is listed."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "control.md").read_text()


def test_every_promise_names_a_test_that_exists() -> None:
    """A renamed or deleted test would leave a promise without a test."""
    files = [*(ROOT / "tests/control").glob("*.py"), ROOT / "tests/cli/test_levers.py"]
    there = {name for path in files for name in re.findall(r"def (test_\w+)", path.read_text())}
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    assert len(named) > 30
    assert named <= there, named - there


def test_every_variable_of_control_is_documented() -> None:
    """In the page and in docs/cli.md."""
    cli = (ROOT / "docs" / "cli.md").read_text()
    for variable in ("WATTLOOP_STATE_DIR", "WATTLOOP_STATE_COPY_DIR", "WATTLOOP_GUARDIAN"):
        assert variable in PAGE
        assert variable in cli
