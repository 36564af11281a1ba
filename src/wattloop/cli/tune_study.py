"""`wattloop tune export --optuna`: a search as a study, with a bar while it is written."""

import sys
from typing import TYPE_CHECKING

from wattloop.cli.chosen import settings_of
from wattloop.cli.output import is_terminal, say

if TYPE_CHECKING:
    from wattloop.store.database import Store

__all__ = ["write_study"]


def write_study(store: "Store", search_id: str, file: str, config: str | None) -> None:
    """Write the study and say how to look at it."""
    from rich.console import Console
    from rich.progress import Progress

    from wattloop.tune.engines.optuna_export import export_study

    console = Console(stderr=True)
    quiet = not is_terminal(sys.stderr)
    with Progress(console=console, transient=True, disable=quiet) as bar:
        task = bar.add_task("writing trials", total=None)

        def wrote(done: int, of: int) -> None:
            bar.update(task, completed=done, total=of)

        name = export_study(store, search_id, file, settings=settings_of(config), listener=wrote)
    target = file if file.endswith((".log", ".journal")) else f"sqlite:///{file}"
    say(f"study '{name}' is in {file}; look at it with: optuna-dashboard {target}")
