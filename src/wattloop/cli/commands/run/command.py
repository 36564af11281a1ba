"""`wattloop run -- CMD`: measure any program."""

import typer

from wattloop.cli.app import Verb
from wattloop.cli.commands.run.execution import RunOptions, execute
from wattloop.cli.options import argument

app = Verb()


@app.command(
    "run",
    context_settings={"allow_interspersed_args": False},
    example="wattloop run --name night -- python train.py --epochs 3\n"
    "wattloop run --save -- python train.py",
    epilog="The exit code is the program's own; 128+N when signal N ended it.",
)
def run(
    command: list[str] = argument("PROGRAM", "What to measure, and its arguments."),
    *,
    options: RunOptions,
) -> None:
    """Measure the energy of any program.

    Its input, output, terminal, signals and exit code are as without wattloop.
    The summary goes to standard error.
    """
    raise typer.Exit(execute(command, options))
