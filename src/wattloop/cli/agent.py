"""`wattloop agent`: energy per job on a node of a cluster."""

import typer

from wattloop.cli.agent_hooks import hooks_command

__all__ = ["app"]

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Measure a node once, and share its energy among the jobs that Slurm runs on it.",
    epilog="Example: wattloop agent hooks --install /etc/slurm; wattloop agent run --node n1.",
)


@app.callback()
def _frame() -> None:
    """With one command typer would leave out its name."""


app.command("hooks")(hooks_command)
