"""The agent as a service: lock of its folder, delivery or local store, status file."""

from __future__ import annotations

import fcntl
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from wattloop.control.daemon.trusted_file import check_folder
from wattloop.core.errors import ConfigError, StoreError
from wattloop.core.records import Provenance
from wattloop.fleet.agent.agent import Agent
from wattloop.fleet.agent.config import AgentContext
from wattloop.fleet.agent.job_events import MissingEpilogs
from wattloop.fleet.agent.node_attribution import STATUS_FILE
from wattloop.fleet.delivery.client import DeliveryOptions
from wattloop.fleet.delivery.sender import Delivery
from wattloop.fleet.delivery.status import NodeStatus, write_status
from wattloop.measure.recovery import finalize_orphaned_run
from wattloop.store.database import open_store
from wattloop.store.journal_import import import_journal
from wattloop.version import __version__

FOLD_AGAIN_S = 60.0
_log = logging.getLogger("wattloop.agent")


class Service:
    """An agent that runs until stopped."""

    def __init__(self, site: AgentContext) -> None:
        self.site = site
        self.stop = threading.Event()
        self._status: NodeStatus | None = None

    def run(self) -> None:
        """Work until `stop` is set.

        Raises:
            ConfigError: the folder cannot be used, or another agent works in it.
        """
        with _alone(self.site.folder):
            sender = self._delivery() if self.site.config.deliver is not None else None
            folding = None if sender is not None else LocalStore(self.site)
            agent = Agent(self.site)
            agent.start()  # holds all its journals before anybody sends them
            ends = MissingEpilogs(
                self.site.folder / "events", self.site.node, self._jobs, self.site.config.slurm_bin
            )
            ends.start()
            try:
                if sender is not None:
                    sender.start()
                if folding is not None:
                    folding.start()
                    agent.on_run_ended = folding.something_ended
                agent.on_step = lambda: self._tell(agent, sender)
                agent.work(self.stop)
            finally:
                ends.stop()
                # They treat an unlocked journal as finished, so they stop first.
                if sender is not None:
                    sender.stop()
                if folding is not None:
                    folding.stop()
                agent.stop()

    def _jobs(self) -> tuple[str, ...]:
        return () if self._status is None else self._status.jobs

    def _delivery(self) -> Delivery:
        deliver = self.site.config.deliver
        assert deliver is not None
        options = DeliveryOptions(
            url=deliver.url,
            node=self.site.node,
            folder=self.site.journals,
            token_file=Path(deliver.token_file) if deliver.token_file else None,
            every_s=deliver.every_s,
            limit_b=deliver.limit_b,
            ca_file=Path(deliver.ca_file) if deliver.ca_file else None,
        )
        return Delivery(options, lambda: self._status)

    def _tell(self, agent: Agent, sender: Delivery | None) -> None:
        faults = [*agent.faults, agent.desk.fault, "" if sender is None else sender.fault]
        self._status = node_status(agent, [fault for fault in faults if fault])
        try:
            write_status(self.site.folder / STATUS_FILE, self._status)
        except OSError as error:
            agent.fault(f"{self.site.folder / STATUS_FILE}: {error.strerror or error}")


def node_status(agent: Agent, faults: list[str]) -> NodeStatus:
    """Return the status of the node now."""
    layout = agent.sharing.layout
    watts = {n: w for n, w in agent.sharing.sensors.power_w().items() if w >= 0}
    whole = {n: w for n, w in watts.items() if layout.is_node(n)}
    parts = {n: w for n, w in watts.items() if n in layout.counted}
    shown = whole or parts
    limits = {
        name.removesuffix("/power_limit"): value
        for name, value in agent.sharing.sensors.signals().items()
        if name.endswith("/power_limit") and value > 0
    }
    provenances = [layout.domains[name].provenance for name in shown]
    return NodeStatus(
        power_w=shown,
        limit_w=limits,
        provenance=Provenance.weakest(provenances).value if provenances else "",
        jobs=tuple(plan.job for plan in agent.book.running()),
        faults=tuple(faults),
        read_wall_s=agent.site.clock.wall_s(),
        version=__version__,
    )


class LocalStore:
    """Thread that imports ended runs into the node's own store."""

    def __init__(self, site: AgentContext) -> None:
        self._site = site
        self._wake = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._work, name="wattloop-fold", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def something_ended(self) -> None:
        """Wake the import: a run has ended."""
        self._wake.set()

    def stop(self, timeout_s: float = 10.0) -> None:
        """Stop after the current import."""
        self._stopped = True
        self._wake.set()
        self._thread.join(timeout_s)

    def _work(self) -> None:
        while True:
            self._wake.clear()
            try:
                self._fold_all()
            except Exception:  # noqa: BLE001 - journals stay; the next try may work
                _log.exception("runs wait in %s", self._site.journals)
            if self._stopped:
                return
            self._wake.wait(FOLD_AGAIN_S)

    def _fold_all(self) -> None:
        paths = sorted(self._site.journals.glob("*.journal"))
        if not paths:
            return
        try:
            with open_store(self._site.store) as store:
                for path in paths:
                    import_journal(store, path, finalize_orphaned_run)
        except StoreError as error:
            _log.warning("runs wait in %s: %s", self._site.journals, error)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.geteuid() == 0:
            check_folder(folder)  # who can put files there tells root's agent what jobs there are
        file = (folder / "agent.lock").open("a")
    except OSError as error:
        raise ConfigError(
            f"folder {folder}: {error.strerror or error}; the agent needs a folder that it may "
            "write, see 'folder' in agent.yaml"
        ) from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"folder {folder}: another agent works in it already") from None
        yield
