"""The agent as a service: lock of its folder, delivery or local store, status file."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from wattloop.control.daemon.trusted_file import check_folder
from wattloop.core.errors import ConfigError, StoreError
from wattloop.core.files import FileLock
from wattloop.core.records import Provenance
from wattloop.fleet.agent.agent import Agent
from wattloop.fleet.agent.config import AgentContext
from wattloop.fleet.agent.job_events import MissingEpilogs
from wattloop.fleet.agent.node_attribution import STATUS_FILE
from wattloop.fleet.delivery.sender import Delivery
from wattloop.fleet.delivery.status import NodeStatus, write_status
from wattloop.measure.recovery import finalize_orphaned_run
from wattloop.store.database import open_store
from wattloop.store.journal_import import import_journal
from wattloop.version import __version__

IMPORT_AGAIN_S = 60.0
_log = logging.getLogger("wattloop.agent")


class Service:
    """An agent that runs until stopped."""

    def __init__(self, context: AgentContext) -> None:
        self.context = context
        self.stop = threading.Event()
        self._status: NodeStatus | None = None

    def run(self) -> None:
        """Work until `stop` is set.

        Raises:
            ConfigError: the folder cannot be used, or another agent works in it.
        """
        with _locked(self.context.folder):
            config, sender = self.context.config, None
            if config.deliver is not None:
                options = config.delivery_options(self.context.node)
                sender = Delivery(options, lambda: self._status)
            local_store = None if sender is not None else LocalStore(self.context)
            agent = Agent(self.context)
            agent.start()  # locks its journals before they are sent
            events = self.context.folder / "events"
            try:
                with MissingEpilogs(events, self.context.node, self._jobs, config.slurm_bin):
                    if sender is not None:
                        sender.start()
                    if local_store is not None:
                        local_store.start()
                        agent.on_run_ended = local_store.run_ended
                    agent.on_step = lambda: self._report(agent, sender)
                    agent.work(self.stop)
            finally:
                # They treat an unlocked journal as finished, so they stop first.
                if sender is not None:
                    sender.stop()
                if local_store is not None:
                    local_store.stop()
                agent.stop()

    def _jobs(self) -> tuple[str, ...]:
        return () if self._status is None else self._status.jobs

    def _report(self, agent: Agent, sender: Delivery | None) -> None:
        faults = [*agent.faults, agent.job_setup.fault, "" if sender is None else sender.fault]
        self._status = node_status(agent, [fault for fault in faults if fault])
        try:
            write_status(self.context.folder / STATUS_FILE, self._status)
        except OSError as error:
            agent.fault(f"{self.context.folder / STATUS_FILE}: {error.strerror or error}")


def node_status(agent: Agent, faults: list[str]) -> NodeStatus:
    layout = agent.attribution.layout
    watts = {n: w for n, w in agent.attribution.sensors.power_w().items() if w >= 0}
    whole = {n: w for n, w in watts.items() if layout.is_node(n)}
    parts = {n: w for n, w in watts.items() if n in layout.counted}
    shown = whole or parts
    limits = {
        name.removesuffix("/power_limit"): value
        for name, value in agent.attribution.sensors.signals().items()
        if name.endswith("/power_limit") and value > 0
    }
    provenances = [layout.domains[name].provenance for name in shown]
    return NodeStatus(
        power_w=shown,
        limit_w=limits,
        provenance=Provenance.weakest(provenances).value if provenances else "",
        jobs=tuple(plan.job for plan in agent.open_runs.running()),
        faults=tuple(faults),
        read_wall_s=agent.context.clock.wall_s(),
        version=__version__,
    )


class LocalStore:
    """Thread that imports ended runs into the node's own store."""

    def __init__(self, context: AgentContext) -> None:
        self._context = context
        self._wake = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._work, name="wattloop-import", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def run_ended(self) -> None:
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
                self._import_all()
            except Exception:  # noqa: BLE001 - journals stay; the next try may work
                _log.exception("runs wait in %s", self._context.journals)
            if self._stopped:
                return
            self._wake.wait(IMPORT_AGAIN_S)

    def _import_all(self) -> None:
        paths = sorted(self._context.journals.glob("*.journal"))
        if not paths:
            return
        try:
            with open_store(self._context.store) as store:
                for path in paths:
                    import_journal(store, path, finalize_orphaned_run)
        except StoreError as error:
            _log.warning("runs wait in %s: %s", self._context.journals, error)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.geteuid() == 0:
            check_folder(folder)  # its files tell root's agent which jobs there are
        lock = FileLock(folder / "agent.lock", mode=0o644)
        acquired = lock.acquire()
    except OSError as error:
        raise ConfigError(
            f"folder {folder}: {error.strerror or error}; the agent needs a folder that it may "
            "write, see 'folder' in agent.yaml"
        ) from None
    if not acquired:
        raise ConfigError(f"folder {folder}: another agent works in it already")
    with lock:
        yield
