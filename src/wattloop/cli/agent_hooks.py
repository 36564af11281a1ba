"""`wattloop agent hooks`: the scripts that Slurm runs before and after a job."""

from pathlib import Path
from typing import Annotated

import typer

from wattloop.cli.options import JsonFile
from wattloop.cli.output import check_target, say, write_json
from wattloop.core.user_code import user_path

__all__ = ["hooks_command"]

FOLDER = "/var/lib/wattloop/{node}"


def hooks_command(
    *,
    install: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Write both scripts here (default: print them)."),
    ] = None,
    folder: Annotated[
        str, typer.Option(help="The agents' folder, as in agent.yaml; {node} is the node's name.")
    ] = FOLDER,
    wait: Annotated[
        float,
        typer.Option(min=0.0, max=60.0, help="Seconds a job may wait for its power cap."),
    ] = 2.0,
    json_file: JsonFile = None,
) -> None:
    """Print or install Slurm's prolog and epilog."""
    from wattloop.fleet.agent.hooks import HOOKS, hook_text, install_hooks

    check_target(json_file, "--json")
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
    if json_file is not None:
        write_json(
            {"scripts": [str(p.absolute()) for p in written], "slurm_conf": lines}, json_file
        )
    if json_file != "-":
        say("add to slurm.conf, and run 'scontrol reconfigure':")
        typer.echo("\n".join(lines))
