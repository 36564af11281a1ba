"""Promises of docs/policies.md: its policies run as they are written there."""

import json
import os
import re
import sys
from pathlib import Path

from tests.support import warm_start
from wattloop.schedule.policies.registry import POLICIES, policy_from
from wattloop.testing.policy_contract import check_policy

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "policies.md").read_text()


def test_the_example_is_what_the_page_shows_and_keeps_the_contract() -> None:
    """The file equals the page, character for character."""
    code = (ROOT / "examples" / "my_policy.py").read_text().partition('"""\n\n')[2]
    assert f"```python\n{code}```" in PAGE
    check_policy(lambda: policy_from(f"{ROOT}/examples/my_policy.py:Punctual"))


def test_the_command_of_the_page_runs_a_policy_from_a_file(tmp_path: Path) -> None:
    """It runs with its parameters, compared with a shipped policy."""
    command = next(line for line in PAGE.splitlines() if "my_policy.py:Punctual{" in line)
    policies = re.findall(r"'(.*)'", command)[0]
    done = warm_start.run(
        [sys.executable, "-m", "wattloop", "simulate", "thesis-pareto", "--policies", policies,
         "--seeds", "1", "--workers", "1", "--json", str(tmp_path / "out.json")],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1",
             "WATTLOOP_STORE": str(tmp_path / "runs.db"), "XDG_CACHE_HOME": str(tmp_path)},
        cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "punctual{patience_s: 600.0}" in done.stdout
    assert json.loads((tmp_path / "out.json").read_text())


def test_the_other_policy_of_the_page_keeps_the_contract() -> None:
    """The code blocks are run one after the other, as a reader would."""
    blocks = [each for each in re.findall(r"```python\n(.*?)```", PAGE, re.S) if "OneAt" in each]
    assert len(blocks) == 2
    exec("\n".join(blocks), {"__name__": "page"})


def test_every_policy_that_ships_is_in_the_table_of_the_page() -> None:
    """Its row has the ranking criterion and when to use it."""
    named = re.findall(r"^\| `([a-z0-9-]+)` \|", PAGE.partition("## Fairness")[0], re.M)
    assert set(POLICIES) <= set(named)
    assert len(named) == len(set(named))
