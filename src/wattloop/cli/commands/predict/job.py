"""`wattloop predict job`: the estimate of a batch job, and its source."""

from typing import TYPE_CHECKING

from wattloop.cli.app import StoreOptions
from wattloop.cli.options import option
from wattloop.cli.output import print_rows, say
from wattloop.core.errors import ConfigError
from wattloop.core.units import energy_range, format_duration, format_power, short_energy

if TYPE_CHECKING:
    from wattloop.schedule.estimates.job_rules import SubmittedJob
    from wattloop.schedule.estimates.oracle_service import Answer
    from wattloop.schedule.estimates.placement_estimates import PlacementEstimate


SILENT_S = 1.5
PATIENCE_S = 600.0
OBJECTIVES = ("energy", "time", "edp")


def job_command(  # noqa: PLR0913 - one parameter per option
    *,
    cluster: str = option("--cluster FILE", "Its machines (docs/clusters.md)."),
    slurm: str | None = option("--slurm JOB", "Number of a job that Slurm has now."),
    comment: str = option("--comment", "As in sbatch: wattloop:model=...,samples=...", ""),
    gpus: int = option("--gpus", "GPUs it asks for.", 1, min=1, max=4096),
    gpu_type: str = option("--gpu-type", "The type it asks for.", ""),
    time_limit: str | None = option("--time-limit TIME", "Such as 90min or 2h."),
    name: str = option("--name", "Of the job, for mapping and history.", ""),
    user: str = option("--user", "Who submits it.", ""),
    account: str = option("--account", "Its account.", ""),
    partition: str = option("--partition", "Its partition.", ""),
    script: str = option("--script", "Path of its script.", ""),
    mapping: str = option("--mapping FILE", "Which jobs train what.", ""),
    objective: str = option("--objective", "Best in energy, time or edp.", "energy"),
    given: StoreOptions,
) -> None:
    """Estimate a cluster job on each placement that it may take, and name the source."""
    from wattloop.schedule.estimates.fleet_file import load_fleet
    from wattloop.schedule.estimates.history import History
    from wattloop.schedule.estimates.job_rules import SubmittedJob
    from wattloop.schedule.estimates.oracle_service import AskedJob, OracleService

    if objective not in OBJECTIVES:
        raise ConfigError(f"--objective {objective}: choose one of {', '.join(OBJECTIVES)}")
    fleet = load_fleet(cluster, mapping)
    if slurm is not None:
        job = _of_slurm(slurm)
    else:
        job = SubmittedJob(
            name=name,
            user=user,
            account=account,
            partition=partition,
            script=script,
            comment=comment,
            gpus=gpus,
            gpu_type=gpu_type,
            time_limit_s=_seconds(time_limit),
        )
    with given.open_existing_store() as place:
        history = None if place is None else History(place)
        service = OracleService(fleet, history)
        answer = service.answer([AskedJob(job)], [], objective=objective, wait_s=SILENT_S)
        if any(price.later for price in answer.prices):
            say("wattloop: tracing the model, once; this takes some seconds")
            answer = service.answer([AskedJob(job)], [], objective=objective, wait_s=PATIENCE_S)
    given.present(answer.to_dict, lambda: _show(answer))


def _of_slurm(number: str) -> "SubmittedJob":
    """Return a waiting or running Slurm job as the driver reads it."""
    from wattloop.schedule.driver.managed_cluster import submitted_job
    from wattloop.schedule.slurm.client import SlurmClient

    for job in SlurmClient().jobs():
        if job.key == number:
            return submitted_job(job)
    raise ConfigError(f"--slurm {number}: Slurm has no such job waiting or running; see squeue")


def _seconds(text: str | None) -> float | None:
    from wattloop.schedule.yaml_model import seconds

    if text is None:
        return None
    try:
        found = float(seconds(text))
    except ValueError as error:
        raise ConfigError(f"--time-limit: {error}") from None
    if not 0 < found <= 1e9:
        raise ConfigError(f"--time-limit {text}: must be above 0 and below 30 years")
    return found


def _show(answer: "Answer") -> None:
    job = answer.jobs[0]
    key = job.keys[0] if job.keys else None
    what = "" if key is None else f"{key.model.removeprefix('hf:')} {key.precision}".strip()
    known = "nothing is known" if job.source == "none" else f"known from {job.source.value}"
    say(f"{what or 'a job without a description'}: {known}")
    for note in job.notes:
        say(f"  {note}")
    for refusal in job.refusals:
        say(f"  not believed: {refusal}")
    priced = [
        (number, where, price)
        for number, ((_, where), price) in enumerate(zip(answer.pairs, answer.prices, strict=True))
        if not price.error
    ]
    for said in dict.fromkeys(price.source for _, _, price in priced if key is not None):
        say(f"  {said}")
    rows = [
        (
            f"{answer.places[where].gpus} x {answer.places[where].gpu}",
            "–" if price.cap_w is None else format_power(price.cap_w),
            "spread" if answer.places[where].spread else "",
            "–" if price.batch is None else str(price.batch),
            "–" if price.time_s is None else format_duration(price.time_s),
            format_power(price.power_w or 0.0),
            _energy(price),
            "best" if number == answer.best[0] else "",
        )
        for number, where, price in priced
    ]
    if rows:
        headers = ("GPUs", "cap", "", "batch", "time", "power", "energy (90% interval)", " ")
        print_rows(headers, rows, spare=("", "batch"))
    for said in dict.fromkeys(price.error for price in answer.prices if price.error):
        say(f"no price: {said}")


def _energy(price: "PlacementEstimate") -> str:
    if price.energy_j is None:
        return "–"
    energy_j, factor = price.energy_j, (price.factors or {}).get("energy")
    about = (
        ""
        if factor is None
        else f" ({energy_range(energy_j / factor, energy_j * factor, energy_j)})"
    )
    return f"{short_energy(energy_j)}{about}"
