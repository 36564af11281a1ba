"""`wattloop slurm replay`: a scenario's jobs on a real Slurm, beside the simulator."""

from typing import Annotated

import typer

from wattloop.cli.options import JsonFile
from wattloop.cli.output import check_target
from wattloop.cli.simulate_options import Budget, Set, Variant

__all__ = ["replay_command"]


def replay_command(  # noqa: PLR0913 - one parameter per option
    scenario: Annotated[
        str,
        typer.Argument(metavar="SCENARIO", help="YAML file, or a shipped one such as slurm-lab."),
    ],
    *,
    speedup: Annotated[
        float,
        typer.Option("--speedup", metavar="X", help="Seconds of the scenario per real second."),
    ] = 10.0,
    policies: Annotated[
        str,
        typer.Option(
            "--policies",
            "-p",
            metavar="LIST",
            help="'slurm' is Slurm's own scheduler; others steer it: slurm,zeus,charon.",
        ),
    ] = "slurm,zeus",
    jobs: Annotated[
        int | None, typer.Option("--jobs", metavar="N", help="Only the first so many jobs.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of the scenario's jobs.")] = 0,
    variant: Variant = None,
    budget: Budget = None,
    changes: Set = None,
    partition: Annotated[
        str, typer.Option("--partition", metavar="NAME", help="To submit to (default: Slurm's).")
    ] = "",
    interval: Annotated[
        float, typer.Option("--interval", metavar="SECONDS", help="Between rounds of the driver.")
    ] = 0.5,
    folder: Annotated[
        str | None,
        typer.Option(
            "--folder",
            metavar="DIR",
            help="For notes and virtual GPUs, seen by all nodes (default: a temporary one).",
        ),
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Submit a scenario's jobs to a real Slurm, policy by policy, and compare with the simulator.

    Jobs occupy virtual GPUs; power is simulated on both sides, so that only scheduling is compared.
    """
    from wattloop.cli.slurm_replay_execute import ReplayRequest, execute_replay

    check_target(json_file, "--json")
    execute_replay(
        ReplayRequest(
            scenario=scenario,
            speedup=speedup,
            policies=policies,
            jobs=jobs,
            seed=seed,
            variant=variant,
            budget=budget,
            changes=changes or [],
            partition=partition,
            interval_s=interval,
            folder=folder,
            json_file=json_file,
        )
    )
