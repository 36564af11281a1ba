"""`wattloop agent`: energy per job on a node of a cluster."""

import typer

from wattloop.cli.agent_deliver import deliver_command
from wattloop.cli.agent_hooks import hooks_command
from wattloop.cli.agent_run import run_command
from wattloop.cli.agent_status import status_command

__all__ = ["app"]

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Measure a node once, and share its energy among the jobs that Slurm runs on it.",
    epilog="Example: wattloop agent hooks --install /etc/slurm; wattloop agent run --node n1.",
)

app.command("run")(run_command)
app.command("status")(status_command)
app.command("deliver")(deliver_command)
app.command("hooks")(hooks_command)
