"""`wattloop slurm replay`: run a scenario on a real Slurm and compare it with the simulator."""

import math
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from wattloop.cli.commands.simulate.scenario import Budget, Set, Variant, read_scenario
from wattloop.cli.options import JsonFile, argument, option
from wattloop.cli.output import print_rows, say, write_json
from wattloop.cli.progress import bars, is_redrawable
from wattloop.core.errors import ConfigError, SlurmError
from wattloop.core.files import user_path
from wattloop.core.units import format_duration, format_energy, format_power
from wattloop.schedule.slurm.replay.plan import ReplayPlan
from wattloop.schedule.slurm.replay.result import ReplayFigures
from wattloop.schedule.slurm.replay.runner import SAME_POWER, ReplayResult

if TYPE_CHECKING:
    from collections.abc import Callable

    from wattloop.schedule.slurm.client import SlurmClient
    from wattloop.schedule.slurm.replay.runner import Progress as Told


def print_replayed(plan: ReplayPlan, found: Sequence[ReplayResult]) -> None:
    headers = ["policy", "", "makespan", "GPU energy", "peak", "jobs/h", "completion", "misses"]
    if not math.isinf(max(plan.settings.budget_w.values)):
        headers.append("over budget")
    rows: list[list[str]] = []
    for each in found:
        rows.append(_row(each.policy, "real", each.real.figures))
        rows.append(_row("", "simulated", each.simulated))
        off = each.differences()
        names = ("makespan_s", "gpu_energy_j", "peak_w", "throughput_per_h", "jct_mean_s")
        rows.append(["", "off by", *(f"{100 * off[name]:+.1f}%" for name in names), ""])
    width = len(headers)
    print_rows(headers, [[*row, *[""] * width][:width] for row in rows])
    for each in found:
        latency = each.real.latency
        cleared = "-" if latency.end_s is None else f"{latency.end_s:.2f} s"
        say(
            f"{each.policy}: Slurm took {latency.start_s:.2f} s to start a job and {cleared} to "
            f"give its GPUs to the next ({latency.source}); the simulator was told"
        )
    say(f"Times and energy are the scenario's (real ones x {plan.speedup:g}). {SAME_POWER}")


def _row(policy: str, kind: str, figures: ReplayFigures) -> list[str]:
    over = figures.over_budget_s
    return [
        policy,
        kind,
        format_duration(figures.makespan_s),
        format_energy(figures.gpu_energy_j),
        format_power(figures.peak_w),
        f"{figures.throughput_per_h:.1f}",
        format_duration(figures.jct_mean_s),
        f"{figures.misses}/{figures.deadlines}",
        *([] if over is None else [format_duration(over)]),
    ]


MOST_JOBS = 100_000


def replay_command(  # noqa: PLR0913 - one parameter per option
    scenario: str = argument("SCENARIO", "YAML file, or a shipped one such as slurm-lab."),
    *,
    speedup: float = option("--speedup X", "Seconds of the scenario per real second.", 10.0),
    policies: str = option(
        "--policies -p LIST",
        "'slurm' is Slurm's own scheduler; others steer it: slurm,zeus,charon.",
        "slurm,zeus",
    ),
    jobs: int | None = option("--jobs N", "Only the first so many jobs.", None),
    seed: int = option("--seed", "Of the scenario's jobs.", 0),
    variant: Variant = None,
    budget: Budget = None,
    changes: Set = None,
    partition: str = option("--partition NAME", "To submit to (default: Slurm's).", ""),
    interval: float = option("--interval SECONDS", "Between rounds of the driver.", 0.5),
    folder: str | None = option(
        "--folder DIR",
        "For notes and virtual GPUs, seen by all nodes (default: a temporary one).",
        None,
    ),
    json_file: JsonFile = None,
) -> None:
    """Submit a scenario's jobs to a real Slurm, policy by policy, and compare with the simulator.

    Jobs occupy virtual GPUs; power is simulated on both sides, so that only scheduling is compared.
    """
    from wattloop.schedule.slurm.client import SlurmClient
    from wattloop.schedule.slurm.managed_cluster import DriverSettings
    from wattloop.schedule.slurm.replay.plan import check_speedup, match_nodes, replay_plan
    from wattloop.schedule.slurm.replay.runner import SAME_POWER, ReplayDriver, replay

    names = _policies(policies)
    settings = DriverSettings(interval_s=interval)
    check_speedup(speedup)
    if jobs is not None and not 1 <= jobs <= MOST_JOBS:
        raise ConfigError(f"--jobs {jobs}: give 1 to {MOST_JOBS:,}")
    if seed < 0:
        raise ConfigError(f"--seed {seed}: give a number from 0 on")
    world = read_scenario(scenario, variant=variant, budget=budget, changes=changes)
    client = SlurmClient()
    _check_slurm(client)  # before the jobs are worked out, which takes a while
    match_nodes(world.cluster, client.text, partition)
    plan = replay_plan(world, seed=seed, speedup=speedup, most_jobs=jobs)
    place = _folder(folder)
    _say_how_long(plan, names)
    driver = ReplayDriver(plan, client, place, partition, settings)
    with _progress() as tell:
        found = replay(
            plan,
            names,
            slurm=client.text,
            folder=place,
            driver=driver,
            partition=partition,
            tell=tell,
        )
    data = {
        "scenario": plan.scenario,
        "seed": plan.seed,
        "speedup": plan.speedup,
        "jobs": len(plan.asked),
        "power": SAME_POWER,
        "policies": [each.to_dict() for each in found],
    }
    write_json(data, json_file)
    if json_file != "-":
        print_replayed(plan, found)
        say(f"wattloop: notes of jobs and driver are in {place}")


def _check_slurm(client: "SlurmClient") -> None:
    """Check that Slurm answers before its commands wait for a minute.

    Raises:
        ConfigError: there is none here.
        SlurmError: it does not answer.
    """
    named = os.environ.get("SLURM_CONF")
    if named and not Path(named).is_file():
        raise ConfigError(f"SLURM_CONF={named}: no such file; name the slurm.conf of your cluster")
    try:
        answer = client.text("scontrol", "ping")
    except SlurmError as error:
        raise SlurmError(f"slurmctld does not answer ({error}); see 'scontrol ping'") from None
    if "UP" not in answer:
        raise SlurmError(f"slurmctld does not answer: {' '.join(answer.split())[:200]}")


def _policies(given: str) -> list[str]:
    """Return known policy names, each once."""
    from wattloop.schedule.policies.registry import policies_from, split_policies
    from wattloop.schedule.slurm.replay.runner import OWN

    names = split_policies(given)
    ours = [name for name in names if name != OWN]
    if ours:
        policies_from(ours)
    if not names or len(names) - len(ours) > 1:
        raise ConfigError(f"--policies {given}: name each once, such as slurm,zeus")
    return names


def _folder(given: str | None) -> Path:
    if given is None:
        path = Path(tempfile.mkdtemp(prefix="wattloop-replay-"))
        path.chmod(0o755)
        return path
    path = user_path(given).absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / ".probe"
        probe.touch()
        probe.unlink()
    except OSError as problem:
        raise ConfigError(f"--folder {given}: {problem.strerror}; name another one") from None
    return path


def _say_how_long(plan: "ReplayPlan", policies: list[str]) -> None:
    """Print the duration that the simulator expects."""
    from wattloop.schedule.slurm.replay.simulation import BACKFILL, OwnScheduler, simulate_replay

    figures, _ = simulate_replay(plan, OwnScheduler(BACKFILL), None)
    each_s = figures.makespan_s / plan.speedup
    say(
        f"wattloop: {len(plan.asked)} jobs of {plan.scenario}, {len(policies)} policies: about "
        f"{format_duration(each_s)} each at {plan.speedup:g} times the speed; more --speedup is "
        "shorter, and what Slurm takes to start jobs weighs more"
    )


@contextmanager
def _progress() -> "Iterator[Callable[[str], Told]]":
    if not is_redrawable():

        def quiet(policy: str) -> "Told":
            say(f"wattloop: replaying under {policy}")
            return lambda submitted, done, jobs, power_w: None

        yield quiet
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TimeElapsedColumn

    columns = ("{task.description}", BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn(),
               "{task.fields[said]}")  # fmt: skip
    with bars(*columns) as rows:

        def shown(policy: str) -> "Told":
            task = rows.add_task(policy, total=None, said="")

            def tell(submitted: int, done: int, jobs: int, power_w: float) -> None:
                said = f"{submitted - done} in Slurm, {format_power(power_w)} (simulated)"
                rows.update(task, completed=done, total=jobs, said=said)

            return tell

        yield shown
