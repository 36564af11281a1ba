"""What Slurm is to be told of a job that is let through, and how that is undone."""

from wattloop.schedule.engine.machines import Nodes
from wattloop.schedule.slurm.admin_comment import noted
from wattloop.schedule.slurm.job_record import SlurmJob
from wattloop.schedule.slurm.live_view import LiveView
from wattloop.schedule.slurm.opened import Opened, Why
from wattloop.schedule.slurm.plan import PlannedStart
from wattloop.schedule.slurm.site import Site

__all__ = ["open_fields", "undo_fields", "wanted_start"]


def wanted_start(
    live: LiveView,
    site: Site,
    planned: PlannedStart,
    why: Why,
    *,
    before: Opened | None,
    sets_caps: bool,
    may_pin: bool = True,
) -> Opened:
    """What Slurm is to be told of a start.

    Nodes are named for jobs that leave the choice open. On standby, Slurm has the choice as long as
    all GPUs are of one type: whichever becomes free first.

    Args:
        live: the view.
        site: what is ours.
        planned: the start.
        why: now, or ahead of time.
        before: what was asked for the same job before.
        sets_caps: the policy chooses power limits.
        may_pin: nodes may be named; Slurm did not refuse them before.
    """
    job, view = live.jobs[planned.job], live.view
    options = view.queue.options(planned.job)
    gpus = int(options.gpus[planned.option])
    names = _names(site, planned.nodes)
    names_own = job.required_nodes and not (before is not None and before.nodes)
    is_free_choice = not (names_own or job.features or job.is_exclusive or not may_pin)
    if len(names) != job.nodes and job.gpus_per_node:
        is_free_choice = False  # it wants its GPUs on other than the fewest nodes
    one_type = len(view.cluster.types) == 1
    if one_type and (why == "standby" or (before is not None and not before.nodes)):
        is_free_choice = False
    said = site.believed.of(job)
    caps = sets_caps or said.low_power
    return Opened(
        key=job.key,
        user=job.user,
        why=why,
        nodes=names if is_free_choice else (),
        gpus=gpus,
        cap_w=float(options.cap_w[planned.option]) if caps else None,
        at_s=view.now_s,
    )


def open_fields(
    wanted: Opened, job: SlurmJob, gate_name: str, before: Opened | None
) -> dict[str, str]:
    """What has to change of a job to let it through; empty when all is as wanted."""
    fields: dict[str, str] = {}
    if job.reservation != gate_name:
        fields["ReservationName"] = gate_name
    if wanted.nodes and wanted.nodes != (before.nodes if before is not None else ()):
        fields["ReqNodeList"] = ",".join(wanted.nodes)
    elif before is not None and before.nodes and not wanted.nodes:
        fields["ReqNodeList"] = before.undo.get("ReqNodeList", "")
    if job.gpus_per_node and wanted.gpus and job.nodes == 1 and wanted.gpus != job.gpus:
        fields["Gres"] = _gres(job, wanted.gpus)
    if wanted.cap_w is not None:
        text = noted(job.admin_comment, {"cap_w": round(wanted.cap_w, 1)})
        if text != job.admin_comment:
            fields["AdminComment"] = text
    return fields


def undo_fields(wanted: Opened, job: SlurmJob) -> dict[str, str]:
    """What has to be put back of a job if nothing comes of it."""
    undo = {}
    if wanted.nodes:
        undo["ReqNodeList"] = job.required_nodes
    if wanted.gpus != job.gpus and job.gpus_per_node and job.nodes == 1:
        undo["Gres"] = _gres(job, job.gpus)
    return undo


def _gres(job: SlurmJob, gpus: int) -> str:
    return f"gpu:{job.gpu_type}:{gpus}" if job.gpu_type else f"gpu:{gpus}"


def _names(site: Site, nodes: Nodes) -> tuple[str, ...]:
    return tuple(site.known.names[node] for node, _ in nodes)
