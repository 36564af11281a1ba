"""Power that nodes report to the fleet's server, asked for beside the rounds."""

import json
import math
import time
import urllib.request
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from wattloop.core.errors import ConfigError
from wattloop.core.threads import BackgroundThread
from wattloop.schedule.slurm.event_log import EventLog
from wattloop.schedule.slurm.known_nodes import KnownNodes
from wattloop.schedule.slurm.power import NodePower

__all__ = ["FleetPower", "readings_from"]

EVERY_S = 1.0
TIMEOUT_S = 5.0
LARGEST_B = 20_000_000
IMPOSSIBLE = 2.0
"""Times the most that a node's parts may draw by the hardware table: nobody's power supply."""


class FleetPower(BackgroundThread):
    """Asks `GET /api/v1/nodes` once a second; what it said last is there at any moment.

    Args:
        url: of the server.
        token: for reading; empty for none.
        known: our nodes; they have the same names there.
        log: refusals.
    """

    def __init__(self, url: str, token: str, known: KnownNodes, log: EventLog) -> None:
        super().__init__("fleet-power", patience_s=2 * TIMEOUT_S)
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ConfigError(f"--fleet {url}: write a URL such as http://fleet.example:8765")
        self._url = f"{url.rstrip('/')}/api/v1/nodes"
        self._token, self._known, self._log = token, known, log
        self._latest: tuple[KnownNodes, Mapping[int, NodePower]] = (known, {})

    def readings(self, known: KnownNodes) -> Mapping[int, NodePower]:
        """What each node said last, by number; who reads it decides what is too old.

        Args:
            known: our nodes now. Others than before have other numbers: nothing is known of them
                until the next answer.
        """
        self._known = known
        numbered, latest = self._latest
        return latest if numbered is known else {}

    def _work(self) -> None:
        while not self._stop.is_set():
            try:
                data = self._ask()
                known = self._known
                latest, refusals = readings_from(data, known, time.time())
                self._latest = known, latest
                for refusal in refusals:
                    self._log.add("refused", refusal)
            except (OSError, ValueError) as error:
                self._log.add("warning", f"fleet: {self._url}: {error}; power is estimated")
            self._stop.wait(EVERY_S)

    def _ask(self) -> Any:
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        request = urllib.request.Request(self._url, headers=headers)
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            return json.loads(answer.read(LARGEST_B))


def readings_from(
    data: Any, known: KnownNodes, now_s: float
) -> tuple[dict[int, NodePower], list[str]]:
    """Readings by node number, and those that cannot be.

    Where hosts are counted and a node reports GPUs only, its host is added as the cluster has it;
    where they are not, only GPUs are taken.

    Raises:
        ValueError: it is no list of nodes.
    """
    listed = data.get("nodes") if isinstance(data, Mapping) else None
    if not isinstance(listed, list):
        raise ValueError("the answer has no list of nodes")
    found, refusals = dict[int, NodePower](), list[str]()
    for each in listed:
        if not isinstance(each, Mapping) or each.get("node") not in known.numbers:
            continue
        node = known.numbers[str(each["node"])]
        watts, age_s = _watts(each, known, node), _number(each.get("age_s"))
        if watts is None or age_s is None:
            continue
        most_w = _most_w(known, node)
        if not 0 <= watts <= IMPOSSIBLE * most_w:
            said = f"node {each['node']}: reports {watts:.4g} W, its parts draw {most_w:.4g} W"
            refusals.append(f"{said} at most; not believed")
            continue
        found[node] = NodePower(watts, now_s - max(age_s, 0.0))
    return found, refusals


def _watts(each: Mapping[str, Any], known: KnownNodes, node: int) -> float | None:
    domains = each.get("power_by_domain_w")
    domains = domains if isinstance(domains, Mapping) else {}
    gpus = [_number(value) for name, value in domains.items() if str(name).startswith("gpu")]
    gpus_w = sum(value for value in gpus if value is not None) if gpus else None
    group = known.cluster.node_groups[node]
    if group.host_w == 0.0 == group.host_busy_w_per_gpu:
        return gpus_w
    others = [name for name in domains if not str(name).startswith("gpu")]
    if not others and gpus_w is not None:
        return gpus_w + group.host_w
    return _number(each.get("power_w"))


def _most_w(known: KnownNodes, node: int) -> float:
    group, kind = (
        known.cluster.node_groups[node],
        known.cluster.types[known.cluster.node_types[node]],
    )
    return group.host_w + group.gpus_per_node * (kind.gpu.cap_max_w + group.host_busy_w_per_gpu)


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)
