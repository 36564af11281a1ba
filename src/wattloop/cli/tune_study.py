"""`wattloop tune export --optuna`: a search as a study, with a bar while it is written."""

from typing import TYPE_CHECKING

from wattloop.cli.chosen import settings_of
from wattloop.cli.output import say
from wattloop.cli.progress import counted

if TYPE_CHECKING:
    from wattloop.store.database import Store

__all__ = ["write_study"]


def write_study(store: "Store", search_id: str, file: str, config: str | None) -> None:
    """Write the study and say how to look at it."""
    from wattloop.tune.optuna_export import export_study

    settings = settings_of(config)
    with counted("writing trials") as bar:
        name = export_study(store, search_id, file, settings=settings, listener=bar.update)
    target = file if file.endswith((".log", ".journal")) else f"sqlite:///{file}"
    say(f"study '{name}' is in {file}; look at it with: optuna-dashboard {target}")
