"""What is left when something is killed, the disk is full, or 64 ranks share a node?

- Kills: `kill -9` of the measured program, of wattloop, of both, of a program that measures
  itself, of the process that reads the sensors for it, of those two at once, and of either while
  it ends, at random moments. All runs go to one store. Afterwards
  `wattloop runs list` must have every run, marked rightly; what is lost is the time between the
  kill and the last stored sample.
- Disks: a full or read-only store, before the start and in the middle of a run. The program must
  end with its own exit code and output.
- Ranks: real processes with the environment of a launcher, each of which measures itself, on a
  machine with two packages, DRAM and two GPUs. The total of the job (`wattloop runs job`) is
  compared with a single watcher outside the job over the same time, and with the truth.
"""

import random
import sys
import tempfile
from pathlib import Path

from bars import Bar, Page, Table, arguments, publish
from fault_disks import DiskTrial, run_disks
from fault_kills import LONGEST_S, TARGETS, Trial, corrupt_files, plan, run_trials
from fault_machine import fault_machine
from fault_ranks import RanksOutcome, commands_outcome, killed_owner_outcome, ranks_outcome


def main() -> None:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.quick:
        options.kills, options.ranks = min(options.kills, 6), min(options.ranks, 8)
    trials, corrupt = kills(options.kills, options.seed, 1.0 if options.quick else LONGEST_S)
    disks = run_disks(quick=options.quick)
    ranks = [ranks_outcome(options.ranks, 1.5 if options.quick else 8.0)]
    if not options.quick:
        ranks.append(commands_outcome(options.ranks, 8.0))
        ranks.append(killed_owner_outcome(min(16, options.ranks), 8.0))
    page = Page(
        "measure_faults",
        "Kills, full disks and 64 ranks",
        bars_of(trials, corrupt, disks, ranks),
        [kills_table(trials), disks_table(disks), ranks_table(ranks)],
        __doc__,
    )
    publish(page, options)
    for trial in trials:
        for problem in trial.problems:
            print(f"{trial.name} ({trial.target}): {problem}", file=sys.stderr)
    for name in corrupt:
        print(f"left behind: {name}", file=sys.stderr)


def kills(count: int, seed: int, longest_s: float) -> tuple[list[Trial], list[str]]:
    with tempfile.TemporaryDirectory() as folder, fault_machine(Path(folder)) as machine:
        trials = plan(count, random.Random(seed), longest_s)
        run_trials(machine, trials)
        return trials, corrupt_files(machine)


def bars_of(
    trials: list[Trial],
    corrupt: list[str],
    disks: list[DiskTrial],
    ranks: list[RanksOutcome],
) -> list[Bar]:
    lost = [t for t in trials if t.status == "lost"]
    wrong = [t for t in trials if t.problems and t not in lost]
    harmed = [d for d in disks if not d.unharmed]
    silent = [d for d in disks if not d.explained]
    worst_s = max((t.lost_s for t in trials if t not in lost), default=float("nan"))
    first = ranks[0]
    return [
        Bar("runs_lost", len(lost), "runs", 0, note=f"of {len(trials)} that were killed"),
        Bar("corrupt_files", len(corrupt), "files", 0, note="also journals that stay behind"),
        Bar("worst_lost_s", worst_s, "s", 1, note="last stored sample before the kill"),
        Bar(
            "ranks_total_error_pct",
            first.watcher_error_pct,
            "%",
            1,
            {"every rank's own total added up": first.naive_error_pct},
            note=f"{first.ranks} ranks against a single watcher",
        ),
        Bar("runs_marked_wrongly", len(wrong), "runs", 0, note="status, exit code, traceback"),
        Bar("programs_harmed", len(harmed), "programs", 0, note=f"of {len(disks)} on bad disks"),
        Bar("silent_losses", len(silent), "programs", 0, note="bad disk and no word about it"),
    ]


def kills_table(trials: list[Trial]) -> Table:
    rows = []
    for target in TARGETS:
        own = [t for t in trials if t.target == target]
        statuses = sorted({t.status for t in own})
        errors = [t.error_pct for t in own if t.error_pct is not None]
        rows.append(
            [
                target,
                len(own),
                ", ".join(f"{sum(t.status == s for t in own)} {s}" for s in statuses),
                sum(bool(t.problems) for t in own),
                max((t.lost_s for t in own), default=float("nan")),
                max(errors, default=float("nan")),
            ]
        )
    header = (
        "what was killed",
        "kills",
        "marked as",
        "wrong",
        "worst loss s",
        "worst energy error % (runs over 1 s)",
    )
    return Table("Kills", header, rows)


def disks_table(disks: list[DiskTrial]) -> Table:
    header = ("store", "how it is measured", "program unharmed", "said so", "kept")
    rows = [
        [d.case, d.way, "yes" if d.unharmed else "NO", "yes" if d.explained else "NO", d.kept]
        for d in disks
    ]
    return Table("Full and read-only stores", header, rows)


def ranks_table(ranks: list[RanksOutcome]) -> Table:
    header = (
        "how",
        "ranks",
        "total J",
        "watcher J",
        "truth J",
        "against watcher %",
        "against truth %",
        "runs that count",
    )
    rows = [
        [
            r.how,
            r.ranks,
            r.total_j,
            r.watcher_j,
            r.true_j,
            r.watcher_error_pct,
            r.true_error_pct,
            r.counted,
        ]
        for r in ranks
    ]
    return Table("Ranks that share a node", header, rows)


if __name__ == "__main__":
    main()
