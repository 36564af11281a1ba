"""`wattloop agent run`: measure this node until told to stop."""

import logging
import os
import signal
import sys
from types import FrameType
from typing import Annotated

import typer

from wattloop.cli.options import JsonFile
from wattloop.cli.output import check_target, say, write_json

__all__ = ["ConfigFile", "Node", "node_name", "run_command"]

ConfigFile = Annotated[
    str | None, typer.Option("--config", metavar="FILE", help="agent.yaml (docs/agent.md).")
]
Node = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="This node's name in Slurm (default: the host's)."),
]


def node_name(given: str | None) -> str:
    """The node's name: as given, as Slurm's daemon says it, or the host's without its domain."""
    return given or os.environ.get("SLURMD_NODENAME") or os.uname().nodename.partition(".")[0]


def run_command(
    *, config: ConfigFile = None, node: Node = None, json_file: JsonFile = None
) -> None:
    """Measure this node once, and share its energy among its jobs, until told to stop."""
    from wattloop.core.config_file import load_settings
    from wattloop.fleet.agent.config import load_agent_config
    from wattloop.fleet.agent.service import Service
    from wattloop.fleet.agent.site import site_of

    check_target(json_file, "--json")
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s"
    )
    name = node_name(node)
    service = Service(site_of(load_agent_config(config, name), name, load_settings()))

    def stop(_number: int, _frame: FrameType | None) -> None:
        service.stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    say(f"wattloop: agent of {name}, folder {service.site.folder} (Ctrl-C ends it; jobs run on)")
    service.run()
    if json_file is not None:
        write_json({"node": name, "folder": str(service.site.folder)}, json_file)
