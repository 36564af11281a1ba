"""`wattloop tune replay`: compare strategies on measured tables, without training."""

import math
from dataclasses import asdict
from pathlib import Path

from wattloop.cli.options import JsonFile, option
from wattloop.cli.output import print_rows, say, write_json
from wattloop.cli.progress import counted
from wattloop.core.errors import ConfigError
from wattloop.core.units import format_number

SHOWN = (
    "one_shot_d",
    "explore_d",
    "final_over_oracle",
    "within_5pct_share",
    "failures",
    "cum20_over_oracle",
    "cum50_over_oracle",
)

REPLAY_FIGURES = (
    "D is one training with the default batch size at the highest cap, mean over training seeds; "
    "the oracle is the least mean energy to the target over batch sizes and caps. explore_d: "
    "energy of the first search that did not train its winner. one_shot_d: everything until the "
    "search is over and the target is reached. final_over_oracle: the winner's mean energy. "
    "within_5pct_share: of the seeds. failures: runs that did not reach the target, and trainings "
    "of a settled job that did not. cum20_over_oracle, cum50_over_oracle: all energy of the first "
    "20 and 50 runs of the job."
)


def replay_command(
    *,
    power: list[str] = option(
        "--power FILE", "CSV: time and power of epochs at each cap; one a GPU."
    ),
    train: str = option("--train FILE", "CSV: epochs to each quality."),
    problems: str | None = option(
        "--problems FILE",
        "CSV: target, limit and default; default: problems.csv next to --train.",
        None,
    ),
    strategy: str = option(
        "--strategy", "race, sm2, grid, random, zeus, default-cap or asha.", "race"
    ),
    seeds: int = option("--seeds", "Independent repetitions.", 20),
    noise: float = option("--noise PCT", "Of each reading of the meter, in %.", 0.0),
    recurrences: int = option("--recurrences", "How often the same job is run.", 50),
    json_file: JsonFile = None,
) -> None:
    """Run a strategy on measured tables in the format of Zeus."""
    from wattloop.tune.replay.executor import CapScripts
    from wattloop.tune.replay.policies import check_policy
    from wattloop.tune.replay.replay import medians, replay
    from wattloop.tune.replay.tables import read_workloads

    check_policy(strategy)
    if not (math.isfinite(noise) and 0 <= noise <= 30):
        raise ConfigError(f"--noise {noise:g}: give per cent between 0 and 30")
    for name, value in (("--seeds", seeds), ("--recurrences", recurrences)):
        if value < 1:
            raise ConfigError(f"{name} {value}: give at least 1")
    given = str(Path(train).with_name("problems.csv")) if problems is None else problems
    workloads, left_out = read_workloads(power, train, given)
    for one in left_out:
        say(f"wattloop: {one.name} is left out: {one.reason}")
    scripts = CapScripts(noise / 100)
    with counted("replaying", len(workloads) * seeds) as bar:
        entries = [
            replay(
                workload,
                strategy,
                seeds=seeds,
                recurrences=recurrences,
                scripts=scripts,
                advance=bar.advance,
            )
            for workload in workloads
        ]
    found = medians(entries)
    data = {
        "strategy": strategy,
        "seeds": seeds,
        "noise_pct": noise,
        "recurrences": recurrences,
        "problems": [entry.to_dict() for entry in entries],
        "medians": found,
        "left_out": [asdict(one) for one in left_out],
    }
    write_json(data, json_file)
    if json_file != "-":
        rows = [
            (f"{e.dataset}/{e.network}", e.gpu, *(_shown(getattr(e, name)) for name in SHOWN))
            for e in entries
        ]
        rows.append(("median", "", *(_shown(found[name]) for name in SHOWN)))
        print_rows(("problem", "gpu", *SHOWN), rows, title=f"{strategy}, {seeds} seeds")


def _shown(value: float | None) -> str:
    return "-" if value is None else format_number(value, 3)
