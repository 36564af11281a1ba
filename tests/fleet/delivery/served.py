"""A server in this process, over real HTTP, and journals of a node that it has not seen."""

import socket
import threading
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn

from wattloop.fleet.delivery import DeliveryOptions
from wattloop.fleet.tokens import Role, add_token
from wattloop.serve.app import create_app
from wattloop.serve.options import ServeOptions
from wattloop.serve.state import AppState
from wattloop.store.journal import JournalWriter

__all__ = ["NODE", "Served", "begin", "domain", "end_of", "header_of", "served", "whole"]

NODE = "n1"
STARTED_WALL_S = 1_760_000_000.0


class Served:
    """A server and its data for a node's sender."""

    def __init__(self, folder: Path, port: int, state: AppState, secret: str) -> None:
        self.state = state
        self.outbox = folder / "outbox"
        self.outbox.mkdir(exist_ok=True)
        self.tokens = folder / "tokens.json"
        self.url = f"http://127.0.0.1:{port}"
        self.secret = secret

    def options(self, **changes: Any) -> DeliveryOptions:
        """Of node n1's sender."""
        usual: dict[str, Any] = {
            **{"url": self.url, "node": NODE, "folder": self.outbox, "token": self.secret},
            **{"every_s": 0.02, "timeout_s": 10.0, "final_after_s": 600.0},
        }
        return DeliveryOptions(**{**usual, **changes})


@contextmanager
def served(folder: Path, store: str = "") -> Iterator[Served]:
    """Until the block ends."""
    tokens = folder / "tokens.json"
    secret = add_token(tokens, NODE, Role.NODE, NODE)
    options = ServeOptions(store=store or str(folder / "runs.db"), tokens=tokens)
    app = create_app(options)
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as place:
        place.bind(("127.0.0.1", 0))
        place.listen(128)
        # To set up logging is to close all handlers that there are, and absl's closes what was
        # standard error when it was imported: the file in which pytest keeps what tests print.
        server = uvicorn.Server(uvicorn.Config(app, log_config=None))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [place]}, daemon=True)
        thread.start()
        yield Served(folder, place.getsockname()[1], app.state.wattloop, secret)
        server.should_exit = True
        thread.join(20)


def domain(**changes: Any) -> dict[str, Any]:
    """One GPU."""
    return {
        **{"name": "gpu:0", "kind": "gauge", "scope": "gpu", "source": "NVML"},
        **{"provenance": "measured", "inside": None, "resolution": 1.0, "update_period_s": 0.1},
        **{"tdp_w": 400.0},
        **changes,
    }


def header_of(run_id: str, **changes: Any) -> dict[str, Any]:
    """A job of node n1."""
    facts = {"scheduler": "slurm", "job": "77", "cluster": "lab", "partition": "gpu"}
    return {
        **{"run_id": run_id, "name": "train", "kind": "slurm", "host": NODE, "user": "ada"},
        **{"started_wall_s": STARTED_WALL_S, "started_s": 100.0, "settings": {}, "tags": {}},
        "job": {"id": "77", "kind": "slurm", "scheduler": facts},
        "feeds": [{"meter": "nvml", "domains": [domain()], "signals": []}],
        **changes,
    }


def begin(folder: Path, run_id: str, samples: int = 0, **changes: Any) -> JournalWriter:
    """A journal that grows; 100 W at 1 Hz."""
    writer = JournalWriter(folder / f"{run_id}.journal", header_of(run_id, **changes))
    for number in range(samples):
        sample(writer, number)
    return writer


def sample(writer: JournalWriter, number: int, power_w: float = 100.0) -> None:
    """One more second."""
    writer.samples(0, 1, array("d", [100.0 + number]), array("d", [power_w]))


def end_of(seconds: float = 10.0, energy_j: float = 1_000.0, **changes: Any) -> dict[str, Any]:
    """Return the end of a run."""
    energy = {
        **{"name": "gpu:0", "scope": "gpu", "energy_j": energy_j, "uncertainty_j": 1.0},
        **{"provenance": "measured", "source": "NVML", "covered": 1.0, "in_total": True},
        **{"known_error": 0.0, "tdp_w": 400.0, "tdp_note": "", "device": "A100"},
    }
    result = {
        **{"name": "train", "window_id": 0, "parent_id": None, "begin_s": 100.0},
        **{"end_s": 100.0 + seconds, "domains": [energy], "missing": [], "warnings": []},
    }
    return {
        **{"type": "end", "time_s": 100.0 + seconds, "wall_s": STARTED_WALL_S + seconds},
        **{"status": "finished", "exit_code": 0, "signal": None, "accounting": None},
        "result": result,
        **changes,
    }


def whole(folder: Path, run_id: str, samples: int = 11, **changes: Any) -> None:
    """A journal that ended."""
    ended = {k: changes.pop(k) for k in ("seconds", "energy_j") if k in changes}
    writer = begin(folder, run_id, samples, **changes)
    writer.end(end_of(**ended))
    writer.close()
