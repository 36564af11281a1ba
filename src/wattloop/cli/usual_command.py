"""A verb with commands of which one is meant where none is named."""

from typing import Any

from typer.core import TyperGroup

__all__ = ["RUN", "UsualCommandGroup"]

RUN = "run"


class UsualCommandGroup(TyperGroup):
    """`VERB WORD ...` is `VERB run WORD ...` unless the word is a command of the verb."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Add `run` where no other word is meant."""
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h"):
            args = [RUN, *args]
        return list(super().parse_args(ctx, args))

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Its commands and options, and the options of `run`."""
        own = super().shell_complete(ctx, incomplete)
        names = {item.value for item in own}
        more = self.commands[RUN].shell_complete(ctx, incomplete)
        return [*own, *(item for item in more if item.value not in names)]
