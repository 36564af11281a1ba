"""Kills of any part of a fleet: is every job run once, every joule stored, every cap restored?

A real Slurm (two nodes of four virtual GPUs on one machine), the driver of `wattloop slurm run`, an
agent and a control daemon on each node, `wattloop serve` on PostgreSQL. Jobs load one to four GPUs
for one to five seconds under a cap of -20% that the agent asks of the control daemon. At random
moments one of the driver, an agent, PostgreSQL, the server, a control daemon and a slurmd is killed
with SIGKILL, or slurmctld told to end, and comes back up to four seconds later, so that several are
down at once. Wattloop's own processes are started again as systemd would.

After every trial, with everything up again: each job must have said "done" exactly once, none may
be held, pending or unknown; the joules of all runs in the store, jobs' and those of no job, must be
those of the virtual cards' own books over the same time, GPU by GPU; every card's limit must be
what it was, and no journal of a lever may be left.

Slurm's own faults are counted separately. slurmctld is not killed with SIGKILL because it writes
its state down every few seconds only: after one that was, Slurm runs jobs a second time that have
ended, and never runs the epilog of others (3 and 2 of 10 in a trial without any driver). While the
last jobs are waited for, `scontrol reconfigure` is called every 15 s: a slurmctld (22.05) that is
restarted while jobs end may keep their GPUs counted as in use on a node without jobs, and a job
whose slurmd is killed during its prolog stays RUNNING for the reason Prolog; this mends both. (A
run in which it was called only once per trial, at its end, was stopped in its sixth trial: six jobs
waited for GPUs that Slurm counted as in use.) Jobs that Slurm requeues start after ten seconds
instead of two minutes. (Started at once, one of 288 jobs in a run before this one was killed by
Slurm: its new start came in the second in which the old one was revoked.)

Of earlier runs, with earlier code on a busier machine, three were not clean: of 288 jobs one was
lost (to the start in the revoked second, above); joules of three cards were off by 0.15 to 0.3% in
one trial of four, while the sources were changed under the running fleet; and in a run of ten kills
a job's joules were missing on two cards, probably because they were late: a server that had lost
PostgreSQL at its start looked again for runs to store only a minute later. The last two were not
seen again.
"""

import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bars import Bar, Page, Table, arguments, publish
from fleet_machine import GPUS, NODES, Fleet
from support.postgres_lab import why_no_postgres
from support.slurm_lab import why_no_slurm
from wattloop.core.errors import StoreError
from wattloop.store.database import open_store
from wattloop.store.runs import RunRecord, list_runs

SETTLES_S = 1.0
MENDS_S = 15.0
BETWEEN_S, DOWN_S = 4.0, 4.0
ENDS_S, KEPT_S, BACK_S = 240.0, 120.0, 60.0
"""How long jobs may take to end, runs to be in the store, caps to be back, when all is up again."""


@dataclass
class Trial:
    """Jobs, kills, and the findings afterwards."""

    number: int
    seed: int
    jobs: dict[str, int] = field(default_factory=dict)
    kills: list[tuple[float, str]] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)
    joules: list[str] = field(default_factory=list)
    caps: list[str] = field(default_factory=list)
    other_states: Counter[str] = field(default_factory=Counter)
    worst_j: float = 0.0
    worst_share: float = 0.0
    took_s: float = 0.0

    @property
    def problems(self) -> list[str]:
        return [*self.lost, *self.twice, *self.stuck, *self.joules, *self.caps]


def main() -> None:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--per-trial", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=24, help="of each trial")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--without", action="append", default=[], help="leave a part out: driver")
    parser.add_argument("--keep", type=Path, help="folder for logs, in place of one that goes")
    options = parser.parse_args()
    for reason in (why_no_slurm(), why_no_postgres()):
        if reason:
            sys.exit(f"fleet_kills: {reason}")
    if options.quick:
        options.kills, options.per_trial, options.jobs = 7, 7, 10
    with tempfile.TemporaryDirectory(prefix="wl-kills-") as folder:
        trials = all_trials(options.keep or Path(folder), options)
    publish(page_of(trials, options.seed), options)
    for trial in trials:
        for problem in trial.problems:
            print(f"trial {trial.number} (seed {trial.seed}): {problem}", file=sys.stderr)


def all_trials(folder: Path, options) -> list[Trial]:  # type: ignore[no-untyped-def]  # argparse
    folder.mkdir(exist_ok=True)
    folder.chmod(0o755)
    rng = random.Random(options.seed)
    trials: list[Trial] = []
    with Fleet(folder, "charon", "2600W", options.without) as fleet:
        all_up(fleet)
        left = options.kills
        while left > 0:
            count = min(left, options.per_trial)
            trial = Trial(len(trials), rng.randrange(10**6))
            print(f"trial {trial.number}, seed {trial.seed}: {count} kills", file=sys.stderr)
            run(trial, fleet, count, options.jobs)
            trials.append(trial)
            left -= killed(trial)
            print(f"  {trial.took_s:.0f} s, problems: {trial.problems}", file=sys.stderr)
    return trials


def all_up(fleet: Fleet) -> None:
    fleet.wait(fleet.nodes_are_up, ENDS_S)
    ready = [fleet.folder / f"agents/{node}/state.json" for node in NODES]
    if not fleet.wait(lambda: all(path.exists() for path in ready) and bool(runs(fleet)), KEPT_S):
        raise SystemExit(f"fleet_kills: the fleet does not come up; see {fleet.folder}")


def run(trial: Trial, fleet: Fleet, kills: int, jobs: int) -> None:
    rng = random.Random(trial.seed)
    begin_s = time.monotonic()
    for number in range(jobs):
        name = f"t{trial.number}j{number}"
        trial.jobs[name] = fleet.submit(name, rng)
    time.sleep(SETTLES_S)
    killing(trial, fleet, rng, kills)
    fleet.wait(fleet.nodes_are_up, ENDS_S)
    check_jobs(trial, fleet)
    check_caps(trial, fleet)
    check_joules(trial, fleet)
    trial.took_s = time.monotonic() - begin_s


def killing(trial: Trial, fleet: Fleet, rng: random.Random, count: int) -> None:
    """Apply kills and returns, in the order of their times."""
    begin_s = time.monotonic()
    down: dict[str, float] = {}
    next_s = begin_s + rng.uniform(0, BETWEEN_S)
    while len(trial.kills) < count or down:
        now_s = time.monotonic()
        for name in [name for name, until_s in down.items() if now_s >= until_s]:
            del down[name]
            fleet.start(name)
        if len(trial.kills) < count and now_s >= next_s:
            name = rng.choice([each for each in fleet.targets() if each not in down])
            fleet.kill(name)
            trial.kills.append((now_s - begin_s, name))
            down[name] = now_s + rng.uniform(0, DOWN_S)
            next_s = now_s + rng.uniform(0, BETWEEN_S)
        time.sleep(0.05)


def check_jobs(trial: Trial, fleet: Fleet) -> None:
    told_s, hurried = time.monotonic(), set[str]()

    def all_gone() -> bool:
        """Wait for all jobs; a requeued job would wait two minutes, so it is started sooner, as
        by a user.
        """
        nonlocal told_s
        if time.monotonic() - told_s > MENDS_S:
            fleet.lab.run("scontrol", "reconfigure", check=False)
            told_s = time.monotonic()
            hurried.clear()
        listed = fleet.lab.run("squeue", "-h", "-o", "%i %r", check=False).splitlines()
        waiting = [line.split()[0] for line in listed if line.endswith("BeginTime")]
        for job in [each for each in waiting if each not in hurried]:
            hurried.add(job)
            fleet.lab.run("scontrol", "update", f"JobId={job}", "StartTime=now+10", check=False)
        return not listed

    if not fleet.wait(all_gone, ENDS_S):
        left = fleet.lab.run("squeue", "-h", "-o", "%j %T %r", check=False)
        trial.stuck += [f"still there: {line}" for line in left.splitlines()]
    for name, job in trial.jobs.items():
        said = fleet.folder / "said" / name
        words = [line.split()[0] for line in said.read_text().splitlines()] if said.exists() else []
        state = fleet.lab.job_state(job)
        if state != "COMPLETED":
            trial.other_states[state or "forgotten"] += 1
        if words.count("done") == 0:
            trial.lost.append(f"job {name} ({job}, {state}) was lost: {words}")
        elif words.count("done") > 1:
            trial.twice.append(f"job {name} ({job}, {state}) ran twice: {words}")


def check_caps(trial: Trial, fleet: Fleet) -> None:
    def limits() -> dict[str, float]:
        return {
            f"{node} gpu:{card.index}": card.now().limit_w
            for node in NODES
            for card in fleet.cards(node)
            if card.now().limit_w != card.model.default_limit_w
        }

    def left() -> list[str]:
        return [path.name for path in (fleet.folder / "levers").glob("*.journal")]

    if not fleet.wait(lambda: not limits() and not left(), BACK_S):
        trial.caps += [f"{name} is still at {value:g} W" for name, value in limits().items()]
        trial.caps += [f"journal {name} is left" for name in left()]


def check_joules(trial: Trial, fleet: Fleet) -> None:
    """Check that runs cover a node's time without holes and have the joules of the cards' own
    books.
    """
    ended_s = time.monotonic() + 2.0
    found: list[RunRecord] = []

    def covered() -> bool:
        # first the nodes: their delivered data is then in the store
        delivered = all(len(waiting(fleet, node)) <= 1 for node in NODES)
        found[:] = runs(fleet)
        return delivered and all(until(found, node) >= ended_s for node in NODES)

    if not fleet.wait(covered, KEPT_S):
        trial.joules.append(
            "the store does not have everything: "
            + ", ".join(f"{node} up to {until(found, node) - ended_s:.1f} s" for node in NODES)
        )
        return
    write_runs(trial, fleet, found)
    for node in NODES:
        own = [run for run in found if run.host == node]
        begin_s, end_s = min(run.started_s for run in own), until(found, node)
        for card in fleet.cards(node):
            kept_j = sum(
                energy_j(run, f"gpu:{card.index}") for run in own if ends(run) <= end_s + 1e-3
            )
            true_j = card.true_energy_j(begin_s, end_s)
            off_j = kept_j - true_j
            trial.worst_j = max(trial.worst_j, abs(off_j), key=abs)
            trial.worst_share = max(trial.worst_share, abs(off_j) / true_j)
            if abs(off_j) > 0.001 * true_j + 5.0:
                trial.joules.append(
                    f"{node} gpu:{card.index}: {kept_j:.1f} J in the store, {true_j:.1f} J used"
                )


def write_runs(trial: Trial, fleet: Fleet, found: Sequence[RunRecord]) -> None:
    """Write next to the logs each run's share of each card and what the card drew in that time."""
    lines = []
    for run in sorted(found, key=lambda run: (run.host, run.started_s)):
        job = (run.job or {}).get("id", "")
        head = f"{run.host} {run.kind} {job} {run.run_id} {run.status} "
        head += f"{run.started_s:.2f} to {ends(run):.2f}"
        cards = {f"gpu:{card.index}": card for card in fleet.cards(run.host)}
        assert run.result is not None
        for each in run.result.domains:
            true_j = cards[each.name].true_energy_j(run.started_s, ends(run))
            head += f"; {each.name} {each.energy_j or 0:.1f} of {true_j:.1f}"
        lines.append(f"{head} {run.notes} {run.result.warnings}")
    (fleet.folder / f"runs-{trial.number}.txt").write_text("\n".join(lines) + "\n")


def runs(fleet: Fleet) -> list[RunRecord]:
    """Return the ended runs in the store; none while it is unreachable."""
    try:
        with open_store(fleet.postgres.url) as store:
            return [
                run for run in list_runs(store, limit=None) if run.result and not run.provisional
            ]
    except StoreError:
        return []


def waiting(fleet: Fleet, node: str) -> list[Path]:
    """Return a node's journals: that of unallocated energy, and others to be stored."""
    folder = fleet.folder / f"agents/{node}/journals"
    return [path for path in folder.glob("*") if path.suffix in (".journal", ".died", ".thinned")]


def until(found: Sequence[RunRecord], node: str) -> float:
    """Return the time up to which all data of a node is in the store."""
    return max((ends(r) for r in found if r.host == node and r.kind == "unallocated"), default=0.0)


def ends(run: RunRecord) -> float:
    return run.started_s + (run.duration_s or 0.0)


def killed(trial: Trial) -> int:
    """Return the number of kills with SIGKILL."""
    return sum(name != "slurmctld" for _, name in trial.kills)


def energy_j(run: RunRecord, domain: str) -> float:
    assert run.result is not None
    return sum(each.energy_j or 0.0 for each in run.result.domains if each.name == domain)


def page_of(trials: Sequence[Trial], seed: int) -> Page:
    kills = sum(map(killed, trials))
    restarts = sum(len(trial.kills) for trial in trials) - kills
    jobs = sum(len(trial.jobs) for trial in trials)

    def count(*kinds: str) -> int:
        return sum(len(getattr(trial, kind)) for trial in trials for kind in kinds)

    bars = [
        Bar("kills", kills, "kills", 100, at_least=True, note=f"with SIGKILL; seed {seed}"),
        Bar("slurmctld_restarts", restarts, "restarts", note="by SIGTERM, among the kills"),
        Bar("jobs_lost_or_held", count("lost", "stuck"), "jobs", 0, note=f"of {jobs} jobs"),
        Bar("jobs_run_twice", count("twice"), "jobs", 0, note="said done more than once"),
        Bar("joules_lost_or_twice", count("joules"), "cards", 0, note=JOULES),
        Bar("caps_not_restored", count("caps"), "cards", 0, note="or journals of levers left"),
        Bar("worst_difference", max(t.worst_share for t in trials), "1", note="of a card's joules"),
    ]
    header = ("trial", "seed", "jobs", "kills", "what was killed", "worst J", "problems", "s")
    rows = [
        [
            trial.number,
            trial.seed,
            len(trial.jobs),
            len(trial.kills),
            ", ".join(name for _, name in trial.kills),
            f"{trial.worst_j:.2f}",
            len(trial.problems),
            round(trial.took_s),
        ]
        for trial in trials
    ]
    by_kind = Counter(name.partition(" ")[0] for trial in trials for _, name in trial.kills)
    states: Counter[str] = sum((trial.other_states for trial in trials), Counter())
    tables = [
        Table("By trial", header, rows),
        Table("By what was killed", ("part", "kills"), sorted(by_kind.items())),
    ]
    if states:
        text = "What Slurm calls jobs that did their work while a part of it was dead."
        tables.append(Table("Not COMPLETED", ("state", "jobs"), sorted(states.items()), text))
    title = f"{kills} kills of a fleet"
    return Page("fleet_kills", title, bars, tables, __doc__.partition("\n\n")[2])


JOULES = f"of {len(NODES) * GPUS} cards after each trial: more than 0.1% and 5 J from its own books"


if __name__ == "__main__":
    main()
