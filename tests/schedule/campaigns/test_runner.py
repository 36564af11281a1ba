"""Promises of campaigns: no cell is computed twice, and results do not depend on the worker."""

import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.schedule.campaigns.dying import die
from tests.schedule.campaigns.worlds import FAILING, campaign, tiny, tiny_file
from wattloop.core.errors import ConfigError, WattloopError
from wattloop.schedule.campaigns.campaign import PolicyChoice, SimulationJob, simulation_key
from wattloop.schedule.campaigns.runner import CampaignCallback, run_campaign
from wattloop.schedule.campaigns.store import known_outcomes
from wattloop.schedule.campaigns.workers import each_outcome, shares
from wattloop.store.database import Store, open_store
from wattloop.store.experiments import Experiment, find_experiment, list_experiments
from wattloop.trials.experiment_lock import with_status_now


class Heard(CampaignCallback):
    """A listener that records its messages."""

    def __init__(self) -> None:
        self.computed: list[str] = []
        self.known = -1
        self.left_s: list[float] = []

    def begins(self, experiment: Experiment, cells: int, known: int, *, resumed: bool) -> None:
        self.known = known

    def ended(self, cell: SimulationJob, outcome: Mapping[str, Any], left_s: float) -> None:
        self.computed.append(cell.label)
        self.left_s.append(left_s)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "runs.db") as opened:
        yield opened


def hashes(outcomes: Mapping[Any, Mapping[str, Any]]) -> dict[Any, str]:
    """Return the hash of all events of each cell."""
    return {cell: outcome["event_hash"] for cell, outcome in outcomes.items()}


def test_two_workers_find_what_one_finds(tmp_path: Path, store: Store) -> None:
    """Every event of every cell is the same, in the same order of cells."""
    scenario = tiny(tmp_path)
    _, alone = run_campaign(campaign(scenario), store, workers=1)
    _, together = run_campaign(campaign(scenario), store, workers=2, new=True)
    assert list(alone) == list(together)
    assert hashes(alone) == hashes(together)
    assert len(set(hashes(alone).values())) == 4  # not equal because of missing events


def test_a_campaign_that_is_known_is_not_computed_again(tmp_path: Path, store: Store) -> None:
    """Cells of another campaign are not computed either: only the new policy and seed are."""
    scenario = tiny(tmp_path)
    first, outcomes = run_campaign(campaign(scenario, "fifo"), store)
    again = Heard()
    same = run_campaign(campaign(scenario, "fifo"), store, listener=again)
    assert again.computed == []
    assert same == (find_experiment(store, first.experiment_id), outcomes)
    more = Heard()
    _, larger = run_campaign(campaign(scenario, "fifo sjf", seeds=3), store, listener=more)
    assert more.known == 2
    assert sorted(more.computed) == ["fifo on seed 2", *(f"sjf on seed {n}" for n in range(3))]
    assert larger["", "fifo", 1] == outcomes["", "fifo", 1]
    assert more.left_s[-1] == 0.0


def test_the_key_of_a_cell_tells_all_that_matters(tmp_path: Path) -> None:
    """Scenario, policy, parameters, seed, an external policy and its imports count; the name
    does not.
    """
    scenario, zeus = tiny(tmp_path), PolicyChoice.named("zeus")
    keys = {
        simulation_key(scenario.digest(), zeus, 0),
        simulation_key(scenario.digest(), zeus, 1),
        simulation_key(scenario.digest(), PolicyChoice.named("zeus{age_weight_per_s: 0.5}"), 0),
        simulation_key(tiny(tmp_path, {"engine.horizon": "1 h"}).digest(), zeus, 0),
    }
    own = tmp_path / "own.py"
    for text in (FAILING, FAILING + "# other\n"):
        own.write_text(text)
        keys.add(simulation_key(scenario.digest(), PolicyChoice.named(f"{own}:Eager"), 0))
    own.write_text("import own_module\n" + FAILING)
    for text in ("WEIGHT = 1\n", "WEIGHT = 2\n"):
        (tmp_path / "own_module.py").write_text(text)
        keys.add(simulation_key(scenario.digest(), PolicyChoice.named(f"{own}:Eager"), 0))
    assert len(keys) == 8
    renamed = tiny(tmp_path, {"name": "other", "description": "other"})
    assert simulation_key(renamed.digest(), zeus, 0) in keys


def test_a_killed_campaign_continues_where_it_was(tmp_path: Path, store: Store) -> None:
    """A real process is killed between two cells: finished cells are stored, and the rest is
    computed.
    """
    path = tiny_file(tmp_path)
    script = (
        "import os, signal, sys\n"
        "from tests.schedule.campaigns.worlds import campaign, tiny\n"
        "from pathlib import Path\n"
        "from wattloop.schedule.campaigns.runner import CampaignCallback, run_campaign\n"
        "from wattloop.store.database import open_store\n"
        "class Killer(CampaignCallback):\n"
        "    count = 0\n"
        "    def ended(self, cell, outcome, left_s):\n"
        "        Killer.count += 1\n"
        "        if Killer.count == 2: os.kill(os.getpid(), signal.SIGKILL)\n"
        "run_campaign(campaign(tiny(Path(sys.argv[1]))), open_store(sys.argv[2]), "
        "listener=Killer())\n"
    )
    code, _ = _ran(script, str(path.parent), store.where)
    assert code == -signal.SIGKILL
    (experiment,) = list_experiments(store, "campaign")
    assert experiment.status == "running"
    assert with_status_now(store, experiment).status == "interrupted"
    kept = known_outcomes(store, experiment)
    assert len(kept) == 2
    heard = Heard()
    same, outcomes = run_campaign(campaign(tiny(tmp_path)), store, listener=heard)
    assert same.experiment_id == experiment.experiment_id
    assert (heard.known, len(heard.computed)) == (2, 2)
    assert kept.items() <= outcomes.items()
    assert find_experiment(store, same.experiment_id).status == "finished"


def test_workers_end_at_once_when_their_parent_is_killed() -> None:
    """They do not first finish a task of a minute."""
    script = (
        "import multiprocessing, os, signal\n"
        "from tests.schedule.campaigns.dying import dawdle\n"
        "from wattloop.schedule.campaigns.campaign import PolicyChoice, SimulationJob\n"
        "from wattloop.schedule.campaigns.workers import each_outcome\n"
        "if __name__ == '__main__':\n"
        "    cells = [SimulationJob(f'k{n}', PolicyChoice('zeus', 'zeus'), n) for n in range(2)]\n"
        "    for _ in each_outcome(dawdle, cells, 2):\n"
        "        print(*(each.pid for each in multiprocessing.active_children()), flush=True)\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    code, output = _ran(script)
    assert code == -signal.SIGKILL
    workers = [int(word) for word in output.split()]
    assert len(workers) == 2
    assert all(_is_gone(worker) for worker in workers)


def test_an_interrupted_campaign_leaves_no_worker_behind(tmp_path: Path, store: Store) -> None:
    """ctrl-C stops the parent process: workers end with it, and the status says so."""

    class Impatient(CampaignCallback):
        def ended(self, cell: SimulationJob, outcome: Mapping[str, Any], left_s: float) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_campaign(campaign(tiny(tmp_path)), store, workers=2, listener=Impatient())
    (experiment,) = list_experiments(store, "campaign")
    assert experiment.status == "interrupted"
    assert len(known_outcomes(store, experiment)) == 1
    assert _children() == []


def test_a_worker_that_dies_is_named_with_its_cell() -> None:
    """The runner does not wait for an answer that no worker will give."""
    cells = [SimulationJob(f"k{n}", PolicyChoice("zeus", "zeus"), n) for n in range(4)]
    with pytest.raises(WattloopError, match=r"zeus on seed \d died \(exit code -9\)"):
        list(each_outcome(die, cells, 2))


def test_a_policy_that_fails_is_the_result_of_its_cell(tmp_path: Path, store: Store) -> None:
    """The other policies continue; its cells are computed again next time, when it may be fixed."""
    own = tmp_path / "own.py"
    own.write_text(FAILING)
    planned = campaign(tiny(tmp_path), f"{own}:Broken fifo", seeds=1)
    experiment, outcomes = run_campaign(planned, store)
    error = outcomes["", "broken", 0]["error"]
    assert re.fullmatch(r"ZeroDivisionError: no GPU left to divide by \(own\.py:\d+\)", error)
    assert outcomes["", "fifo", 0]["jobs_done"] > 0
    assert find_experiment(store, experiment.experiment_id).status == "failed"
    heard = Heard()
    run_campaign(planned, store, listener=heard)
    assert heard.computed == ["broken on seed 0"]


def test_variants_are_simulated_side_by_side(tmp_path: Path, store: Store) -> None:
    """Each has its name, and their common machines are computed once."""
    slow = {"jobs.generate.rate_per_s": 0.001}
    scenario = tiny(tmp_path, {"variants": {"busy": {}, "quiet": slow}})
    _, outcomes = run_campaign(campaign(scenario, "fifo", seeds=1), store)
    assert list(outcomes) == [("busy", "fifo", 0), ("quiet", "fifo", 0)]
    assert outcomes["quiet", "fifo", 0]["jobs"] < outcomes["busy", "fifo", 0]["jobs"]
    assert scenario.variants["busy"].truth is scenario.variants["quiet"].truth


def test_a_cell_of_another_campaign_is_shown_under_the_name_it_has_here(
    tmp_path: Path, store: Store
) -> None:
    """The plain scenario was simulated before, and as a variant it is the same."""
    run_campaign(campaign(tiny(tmp_path), "fifo", seeds=1), store)
    variants = {"variants": {"busy": {}, "quiet": {"jobs.generate.rate_per_s": 0.001}}}
    heard = Heard()
    planned = campaign(tiny(tmp_path, variants), "fifo", seeds=1)
    experiment, outcomes = run_campaign(planned, store, listener=heard)
    assert heard.computed == ["fifo on seed 0 of quiet"]
    assert known_outcomes(store, experiment) == outcomes


def test_the_scenario_itself_is_simulated_next_to_its_variants(tmp_path: Path) -> None:
    """It comes first, and only once where a variant changes nothing."""
    slow = {"jobs.generate.rate_per_s": 0.001}
    scenario = tiny(tmp_path, {"variants": {"quiet": slow}})
    planned = campaign(scenario, "fifo", seeds=1)
    assert [cell.variant for cell in planned.cells()] == ["as-written", "quiet"]
    assert planned.spec()["variants"] == ["as-written", "quiet"]
    same = tiny(tmp_path, {"variants": {"busy": {}, "quiet": slow}})
    assert list(campaign(same, "fifo", seeds=1).scenarios) == ["busy", "quiet"]


def test_variants_that_are_the_same_are_refused(tmp_path: Path) -> None:
    """One simulation cannot be stored under two names."""
    scenario = tiny(tmp_path, {"variants": {"one": {}, "two": {"engine.horizon": "2 h"}}})
    with pytest.raises(ConfigError, match="variants one and two are the same"):
        campaign(scenario).cells()


def test_checked_cells_differ_from_unchecked_ones(tmp_path: Path) -> None:
    """`--check` also checks what was computed without it."""
    plain = campaign(tiny(tmp_path), "fifo", seeds=1)
    checked = type(plain)(plain.scenario, plain.choices, plain.seeds, checks=True)
    assert plain.cells()[0].key != checked.cells()[0].key


def test_work_is_split_so_that_no_worker_waits_for_long() -> None:
    """With many seeds a task is a seed; with one seed its policies are split."""
    choices = [PolicyChoice(name, name) for name in "abcdefgh"]
    many = [SimulationJob(f"{c.label}{s}", c, s) for s in range(9) for c in choices]
    assert [len(each) for each in shares(many, 2)] == [8] * 9
    one = [cell for cell in many if cell.seed == 0]
    assert [len(each) for each in shares(one, 2)] == [2] * 4
    assert shares(one, 1) == [one]
    assert [cell for part in shares(many, 3) for cell in part] == many


def test_a_world_that_cannot_be_built_leaves_nothing_behind(tmp_path: Path, store: Store) -> None:
    """A trace with an error is refused before the campaign is written down."""
    (tmp_path / "bad.csv").write_text("arrival,gpus,duration\n0,1,-5\n")
    scenario = tiny(tmp_path, {"jobs.trace.file": str(tmp_path / "bad.csv")})
    with pytest.raises(ConfigError, match=r"bad\.csv:2: column duration: '-5' is negative"):
        run_campaign(campaign(scenario), store, workers=2)
    assert list_experiments(store) == []


def test_no_policy_or_one_twice_is_refused(tmp_path: Path) -> None:
    """A policy would be compared with itself."""
    scenario = tiny(tmp_path)
    with pytest.raises(ConfigError, match="no policy given"):
        campaign(scenario, "")
    with pytest.raises(ConfigError, match="zeus is given twice"):
        campaign(scenario, "zeus zeus")


def _children() -> list[int]:
    """Return the running processes that this one has started by spawning."""
    return [process.pid or 0 for process in multiprocessing.active_children()]


def _ran(script: str, *words: str) -> tuple[int, str]:
    """Return exit code and output of a process that can import these tests' modules."""
    with tempfile.TemporaryFile("w+") as output:  # a pipe would be open as long as any worker runs
        ended = subprocess.run(
            [sys.executable, "-c", script, *words],
            cwd=Path(__file__).parents[3],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=output,
            check=False,
        )
        output.seek(0)
        return ended.returncode, output.read()


def _is_gone(number: int) -> bool:
    """Return true if a process without a waiting parent ends within ten seconds."""
    for _ in range(200):
        try:
            state = Path(f"/proc/{number}/stat").read_text().rpartition(") ")[2][0]
        except OSError:
            return True
        if state == "Z":  # ended; its new parent has not noticed yet
            return True
        time.sleep(0.05)
    return False
