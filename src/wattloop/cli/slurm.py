"""`wattloop slurm`: policies and energy on a real Slurm cluster."""

import typer

from wattloop.cli.slurm_replay import replay_command

__all__ = ["app"]

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Policies and energy on a real Slurm cluster.",
)


@app.callback()
def _slurm() -> None:
    pass


app.command("replay")(replay_command)
