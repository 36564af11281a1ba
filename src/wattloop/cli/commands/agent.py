"""`wattloop agent`: the node agent that attributes energy to jobs of a cluster."""

import logging
import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wattloop.cli.app import Verb, stopping
from wattloop.cli.options import JsonFile, option
from wattloop.cli.output import present, print_rows, say, write_json
from wattloop.core.errors import ConfigError
from wattloop.core.files import user_path
from wattloop.core.results import non_overlapping
from wattloop.core.settings import load_settings
from wattloop.core.units import format_duration, format_energy, format_power

if TYPE_CHECKING:
    from wattloop.fleet.delivery import DeliveryOptions, DeliveryProgress


app = Verb(
    "Measure a node once, and share its energy among the jobs that Slurm runs on it.",
    example="wattloop agent hooks --install /etc/slurm\nwattloop agent run --node n1",
)
ConfigFile = Annotated[str | None, option("--config FILE", "agent.yaml (docs/agent.md).")]
Node = Annotated[
    str | None, option("--node NAME", "This node's name in Slurm (default: the host's).")
]


def node_name(given: str | None) -> str:
    """Return the node's name: as given, as slurmd reports it, or the host name without domain."""
    return given or os.environ.get("SLURMD_NODENAME") or os.uname().nodename.partition(".")[0]


@app.command("run", example="wattloop agent run --node n1")
def run_command(
    *, config: ConfigFile = None, node: Node = None, json_file: JsonFile = None
) -> None:
    """Measure this node, and attribute its energy to its jobs, until stopped."""
    from wattloop.fleet.agent.agent import AgentService
    from wattloop.fleet.agent.config import agent_context, load_agent_config

    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s"
    )
    name = node_name(node)
    context = agent_context(load_agent_config(config, name), name, load_settings())
    savers = None
    if context.config.save is not None:
        from wattloop.cap.saver.slurm_job_savers import JobSavers

        savers = JobSavers(context.config.save, context.settings, node=name)
    source = None
    if context.config.kubernetes is not None:
        from wattloop.fleet.kubernetes.node import KubernetesNode

        source = KubernetesNode(context)
    service = AgentService(context, savers, source)
    folder = service.context.folder
    with stopping(service.stop):
        say(f"wattloop: agent of {name}, folder {folder} (Ctrl-C ends it; jobs continue)")
        service.run()
    write_json({"node": name, "folder": str(folder)}, json_file)


SILENT_S = 30.0


@app.command("status", example="wattloop agent status --node n1")
def status_command(
    *, config: ConfigFile = None, node: Node = None, json_file: JsonFile = None
) -> None:
    """Show jobs, power and faults of this node as its agent sees them."""
    from wattloop.fleet.agent.config import load_agent_config

    name = node_name(node)
    found = agent_status(load_agent_config(config, name).place, name)
    present(json_file, lambda: found, lambda: _show(found))


LOOK_S = 0.1


@app.command("deliver", example="wattloop agent deliver --node n1 --once")
def deliver_command(
    *,
    node: str = option("--node NAME", "This node, as Slurm calls it."),
    config: str | None = option("--config FILE", "agent.yaml of the cluster."),
    once: bool = option("--once", "End when all is in the store, or fail when it cannot."),
    timeout: float = option(
        "--timeout SECONDS", "With --once: fail after so long without progress.", 30.0
    ),
    json: JsonFile = None,
) -> None:
    """Send the journals of a node whose agent has stopped, or whose server was away."""
    from wattloop.fleet.agent.config import load_agent_config
    from wattloop.fleet.delivery import deliver, status_from_file

    told = load_agent_config(config, node)
    if told.deliver is None:
        raise ConfigError(f"{config or 'agent.yaml'}: deliver: url is needed to send anything")
    options = told.delivery_options(node)
    watch = _Watch()
    with stopping() as stop:
        if once:
            total = _deliver_once(options, watch, stop, timeout)
        else:
            total = deliver(
                options,
                lambda: status_from_file(told.place / "status.json"),
                stop=stop,
                report=watch.report,
            )
    write_json(total._asdict(), json)


class _Watch:
    """Progress of a delivery, and the time of the last progress."""

    def __init__(self) -> None:
        self.further_s = time.monotonic()
        self.left: int | None = None
        """Journals that wait, by the last answer of the server; None before the first."""
        self._stored = 0

    def report(self, done: "DeliveryProgress | str") -> None:
        """Record the result of a round, or its error."""
        if isinstance(done, str):
            say(f"wattloop: {done}")
            return
        self.left = done.left
        if done.sent_b or done.stored or done.refused:
            self.further_s = time.monotonic()
        if done.stored or done.refused:
            self._stored += done.stored
            say(f"wattloop: {self._stored} runs in the store, {done.left} journals left")


def _deliver_once(
    options: "DeliveryOptions", watch: _Watch, stop: threading.Event, timeout_s: float
) -> "DeliveryProgress":
    """Deliver in a thread: names that do not resolve and servers that do not answer cannot be
    interrupted, but this command ends.

    Raises:
        ServerAway: nothing has come further for `timeout_s`.
    """
    from wattloop.fleet.delivery import DeliveryProgress, deliver
    from wattloop.fleet.delivery.client import ServerUnavailable

    waiting = len(list(options.folder.glob("*.journal")))
    say(f"wattloop: {waiting} journal(s) in {options.folder} for {options.url}")
    found: list[DeliveryProgress | BaseException] = []

    def work() -> None:
        try:
            found.append(deliver(options, once=True, stop=stop, report=watch.report))
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits
            found.append(error)

    thread = threading.Thread(target=work, name="wattloop-delivery", daemon=True)
    thread.start()
    while thread.is_alive() and not stop.is_set():
        thread.join(LOOK_S)
        if thread.is_alive() and time.monotonic() - watch.further_s > timeout_s:
            stop.set()
            raise ServerUnavailable(_stalled(options, watch.left, timeout_s))
    thread.join(timeout_s)
    outcome = found[0] if found else DeliveryProgress()
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


def _stalled(options: "DeliveryOptions", left: int | None, timeout_s: float) -> str:
    if left is None:
        return (
            f"{options.url}: no answer for {timeout_s:g} s; the journals wait in "
            f"{options.folder}; check that 'wattloop serve' runs there, or give it longer with "
            "--timeout"
        )
    return (
        f"{options.url}: {left} journal(s) did not come into the store for {timeout_s:g} s: its "
        "store is away, or they have no end yet and an agent may go on with them "
        f"({options.final_after_s:g} s after their last reading they are closed); they wait in "
        f"{options.folder}"
    )


FOLDER = "/var/lib/wattloop/{node}"


@app.command("hooks", example="wattloop agent hooks --install /etc/slurm")
def hooks_command(
    *,
    install: str | None = option("--install DIR", "Write both scripts here (default: print them)."),
    folder: str = option(
        "--folder", "The agents' folder, as in agent.yaml; {node} is the node's name.", FOLDER
    ),
    wait: float = option(
        "--wait", "Seconds a job may wait for its power cap.", 2.0, min=0.0, max=60.0
    ),
    json_file: JsonFile = None,
) -> None:
    """Print or install Slurm's prolog and epilog."""
    from wattloop.fleet.agent.hooks import HOOKS, hook_text, install_hooks

    if install is None:
        texts = {name: hook_text(name, folder, wait) for name in HOOKS}
        if json_file is not None:
            write_json(texts, json_file)
        else:
            for name, text in texts.items():
                typer.echo(f"# --- {name} ---\n{text}")
        return
    written = install_hooks(Path(user_path(install)), folder, wait)
    lines = [f"{name.capitalize()}={p.absolute()}" for name, p in zip(HOOKS, written, strict=True)]
    lines.append("PrologFlags=Alloc")
    write_json({"scripts": [str(p.absolute()) for p in written], "slurm_conf": lines}, json_file)
    if json_file != "-":
        say("add to slurm.conf, and run 'scontrol reconfigure':")
        typer.echo("\n".join(lines))


def agent_status(folder: Path, node: str) -> dict[str, Any]:
    """Return jobs, power and faults of a node, and the age of what its agent wrote last."""
    from wattloop.fleet.agent.node_attribution import STATE_FILE, STATUS_FILE, load_state
    from wattloop.fleet.delivery.node_status import status_from_file

    state, reason = load_state(folder / STATE_FILE)
    status = status_from_file(folder / STATUS_FILE)
    if state is None:
        raise ConfigError(
            reason or f"{folder}: no agent has worked here; start one with: wattloop agent run"
        )
    jobs = [
        {
            "job": kept.plan.job,
            "name": kept.plan.facts.get("name", ""),
            "user": kept.plan.user,
            "gpus": list(kept.plan.gpus),
            "cpus": kept.plan.cpus,
            "since_s": state.until_s - kept.plan.started_s,
            "energy_j": {domain: values[0] for domain, values in kept.account.items()},
            "ended": kept.plan.ended_s is not None,
        }
        for kept in state.runs
        if kept.plan.job
    ]
    waiting = len(list((folder / "journals").glob("*.journal")))
    return {
        "node": node,
        "folder": str(folder),
        "age_s": time.time() - state.wall_s,
        "power_w": {} if status is None else dict(status.power_w),
        "faults": [] if status is None else list(status.faults),
        "jobs": jobs,
        "events_waiting": len(list((folder / "events").glob("[0-9]*"))),
        "journals": waiting,
    }


def _total_j(energy_j: dict[str, float]) -> float:
    """Return a job's joules: of the node's meter if it has the whole node, else of its parts."""
    if "node" in energy_j:
        return energy_j["node"]
    inside = ((n, f"{n.rpartition('/')[0]}/package" if "/" in n else None) for n in energy_j)
    counted = non_overlapping((n, where if where != n else None) for n, where in inside)
    return sum(energy_j[name] for name in counted)


def _show(found: dict[str, Any]) -> None:
    power_w = found["power_w"].values()
    drawn = f"{format_power(sum(power_w))} now" if power_w else "power not known"
    say(f"node {found['node']}: {drawn}, as of {format_duration(max(0.0, found['age_s']))} ago")
    if found["age_s"] > SILENT_S:
        say("the agent does not work: start it with: wattloop agent run")
    for fault in found["faults"]:
        say(f"fault: {fault}")
    rows = [
        (
            job["job"],
            job["name"],
            job["user"],
            ",".join(gpu.removeprefix("gpu:") for gpu in job["gpus"]) or "-",
            str(job["cpus"] or "-"),
            format_duration(job["since_s"]),
            format_energy(_total_j(job["energy_j"])) if job["energy_j"] else "not known",
        )
        for job in found["jobs"]
    ]
    print_rows(("job", "name", "user", "GPUs", "CPUs", "for", "energy"), rows)
