"""The bar of what is done one by one: how many of how many, since when, what is left, what now."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["counted_bar"]


def counted_bar() -> "Progress":
    """On standard error, gone at the end; its tasks have a field `left`."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
        TextColumn("{task.description}"),
    )
    return Progress(*columns, console=Console(stderr=True), transient=True)
