"""`wattloop doctor`: check this set-up, and print what to fix."""

import os
import platform
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

import typer

from wattloop.cli.app import StoreOptions, Verb
from wattloop.cli.options import option
from wattloop.cli.output import terminal_room
from wattloop.core.errors import ConfigError, WattloopError
from wattloop.core.records import Domain, Provenance, Scope
from wattloop.core.settings import SENSORS, Settings, find_config, load_settings
from wattloop.version import __version__

OLDEST_PYTHON = (3, 11)
AGENT_FILE = "/etc/wattloop/agent.yaml"
ANSWER_S = 3.0
OK, WARN, FAIL = "ok", "warn", "fail"
EXTRAS = {
    "figures": "charts as files",
    "serve": "the dashboard",
    "report": "PDF reports",
    "tune": "Optuna searches",
    "torch": "predict, PyTorch hooks",
    "postgres": "a store on a server",
}
"""Extras that verbs of this program need, and what for."""
app = Verb()


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check: its state (ok, warn or fail), what was found, and how to fix it."""

    check: str
    state: str
    text: str
    fix: str = ""


@app.command(
    "doctor", example="wattloop doctor\nwattloop doctor --server https://energy.example -j"
)
def doctor(
    *,
    agent: str | None = option(
        "--agent FILE", f"Check the agent of this agent.yaml (default: {AGENT_FILE}, if any)."
    ),
    server: str | None = option(
        "--server URL", "Check that this server answers (default: the agent's)."
    ),
    given: StoreOptions,
) -> None:
    """Check this set-up, and print what to fix.

    Looks at Python, the configuration, the store, meters and their permissions, levers that a
    killed program left changed, extras, the node agent and its server. Nothing is changed. The
    exit code is 1 when something does not work, else 0.
    """
    findings = list(_findings(given, agent, server))
    failed = any(finding.state == FAIL for finding in findings)
    given.present(
        lambda: {"ok": not failed, "checks": [asdict(finding) for finding in findings]},
        lambda: print_findings(findings),
    )
    if failed:
        raise typer.Exit(1)


def print_findings(findings: Sequence[Finding]) -> None:
    """Print a line per check, its fix below it, and the number of faults at the end."""
    room = terminal_room(sys.stdout) or 100
    for finding in findings:
        head = f"{finding.state:5} {finding.check:9} "
        for text, first in ((finding.text, head), (finding.fix, f"{'':15} fix: ")):
            if text:
                lines = textwrap.wrap(text, room, initial_indent=first, subsequent_indent=" " * 16)
                sys.stdout.write("".join(f"{line}\n" for line in lines))
    counts = (
        (sum(f.state == s for f in findings), n) for s, n in ((FAIL, "fault"), (WARN, "warning"))
    )
    known = [f"{count} {name}{'s' * (count != 1)}" for count, name in counts if count]
    sys.stdout.write(f"{' and '.join(known) if known else 'All is well'}.\n")


def _findings(given: StoreOptions, agent: str | None, server: str | None) -> Iterator[Finding]:
    yield _python()
    settings = None
    try:
        settings = load_settings(config=given.config, needs=SENSORS)
        yield _config(given.config, settings)
    except ConfigError as error:
        yield Finding("config", FAIL, str(error), "correct the value, or remove the line")
    yield _store(given)
    if settings is not None:
        yield from _meters(settings)
    yield _leftovers()
    yield _extras()
    yield from _agent(agent, server)


def _python() -> Finding:
    text = f"Python {platform.python_version()}, wattloop {__version__}"
    if sys.version_info[:2] >= OLDEST_PYTHON:
        return Finding("python", OK, text)
    return Finding("python", FAIL, text, "install Python 3.11 or newer, and wattloop for it")


def _config(named: str | None, settings: Settings) -> Finding:
    path = find_config(os.environ, named)
    if settings.faults:
        faults = "; ".join(map(str, settings.faults.values()))
        return Finding("config", FAIL, faults, "correct the value, or remove the line")
    return Finding("config", OK, "no wattloop.yaml: defaults" if path is None else str(path))


def _store(given: StoreOptions) -> Finding:
    """Open the store where one exists; else look whether one could be made."""
    from wattloop.store.location import StoreLocation

    try:
        place = StoreLocation.parse(given.settings().store_location)
        if place.path is None or place.path.exists():
            return _opened(place.location, place.label)
        folder = next(each for each in place.path.parents if each.exists())
        if folder.is_dir() and os.access(folder, os.W_OK):
            return Finding("store", OK, f"{place.label}: the first run will create it")
        fix = f"name another place with WATTLOOP_STORE, or allow this user to write to {folder}"
        return Finding("store", FAIL, f"{place.label}: {folder} is not a writable folder", fix)
    except (WattloopError, OSError) as error:
        return Finding("store", FAIL, str(error), "name another store with WATTLOOP_STORE")


def _opened(location: str, label: str) -> Finding:
    from wattloop.store.database import open_store
    from wattloop.store.runs import list_runs

    with open_store(location) as store:
        if store.read_only:
            fix = f"allow this user to write to {label}, or name another with WATTLOOP_STORE"
            return Finding("store", FAIL, f"{label}: read-only, no run can be stored", fix)
        list_runs(store, limit=1)
        return Finding("store", OK, f"{label}: can be read and written")


def _meters(settings: Settings) -> Iterator[Finding]:
    """Check what measures CPUs and GPUs, and permissions of sensors that are here."""
    from wattloop.hardware.host import Host
    from wattloop.meters.base import Context
    from wattloop.meters.registry import detect

    try:
        inventory = detect(Context(Host.from_environment(), settings))
    except ConfigError as error:
        yield Finding("meters", FAIL, str(error), "correct the setting 'meters'")
        return
    try:
        domains = [domain for meter in inventory.meters for domain in meter.domains]
        refusals = {refusal.meter: refusal for refusal in inventory.refusals}
        cpus = {d.name: d for d in reversed(domains) if d.scope is Scope.CPU}
        gpus = {d.name: d for d in reversed(domains) if d.scope is Scope.GPU}
        weak = not cpus or any(d.provenance is Provenance.ESTIMATED for d in cpus.values())
        if weak:
            rapl = refusals.get("rapl")
            why = f": {rapl.reason}" if rapl else ""
            what = "estimated only" if cpus else "cannot be measured"
            yield Finding("cpu", WARN, f"{what}{why}", rapl.remedy if rapl else "")
        else:
            yield Finding("cpu", OK, _sources(cpus))
        for name in ("nvidia", "amd-gpu"):
            refusal = refusals.get(name)
            if refusal is not None and refusal.remedy:
                yield Finding(name, WARN, refusal.reason, refusal.remedy)
        yield Finding("gpu", OK, _sources(gpus) or "none found")
        for part in inventory.missing():
            if part.name not in ("cpu", "dram", *refusals):
                yield Finding("sensor", WARN, f"{part.name}: {part.reason}", part.remedy)
        if not domains:
            yield Finding("meters", FAIL, "nothing can be measured here", "see: wattloop devices")
    finally:
        inventory.close()


def _sources(domains: Mapping[str, Domain]) -> str:
    return ", ".join(f"{name} ({domain.source})" for name, domain in sorted(domains.items()))


def _leftovers() -> Finding:
    from wattloop.cli.commands.restore import is_unrestored, restore_text
    from wattloop.control.restore import RestoreStatus, restore

    results = restore(dry_run=True)
    if not is_unrestored(results) and not any(r.fate is RestoreStatus.PLANNED for r in results):
        return Finding("levers", OK, "nothing is left to restore")
    return Finding("levers", FAIL, "; ".join(map(restore_text, results)), "run: wattloop restore")


def _extras() -> Finding:
    """Report extras whose packages are all installed; others are a hint, not a fault."""
    missing = [name for name in EXTRAS if not _is_installed(name)]
    installed = [name for name in EXTRAS if name not in missing]
    text = f"installed: {', '.join(installed) or 'none'}"
    if missing:
        uses = ", ".join(f"{name} ({EXTRAS[name]})" for name in missing)
        fix = f"pip install 'wattloop[{','.join(missing)}]', where wanted"
        return Finding("extras", OK, f"{text}; not installed: {uses}", fix)
    return Finding("extras", OK, text)


def _is_installed(extra: str) -> bool:
    marked = re.compile(rf"extra\s*==\s*['\"]{extra}['\"]")
    for requirement in metadata.requires("wattloop") or ():
        if marked.search(requirement):
            name = re.split(r"[\s;<>=!~\[]", requirement, maxsplit=1)[0]
            try:
                metadata.version(name)
            except metadata.PackageNotFoundError:
                return False
    return True


def _agent(file: str | None, server: str | None) -> Iterator[Finding]:
    """Check the node agent where one is configured, and the server that it delivers to."""
    named = file or (AGENT_FILE if Path(AGENT_FILE).is_file() else None)
    if named is None:
        yield Finding("agent", OK, "none is configured on this machine")
    else:
        from wattloop.cli.commands.agent import SILENT_S, agent_status, node_name
        from wattloop.fleet.agent.config import load_agent_config

        node = node_name(None)
        try:
            config = load_agent_config(named, node)
            server = server or (config.deliver.url if config.deliver else None)
            age_s = agent_status(config.place, node)["age_s"]
            text = f"{named}: node {node}, last reading {age_s:.0f} s ago"
            fix = "start it: systemctl start wattloop-agent, or wattloop agent run"
            alive = age_s <= SILENT_S
            yield Finding("agent", OK if alive else FAIL, text, "" if alive else fix)
        except WattloopError as error:
            yield Finding("agent", FAIL, str(error), f"correct {named}, then: wattloop agent run")
    if server is None:
        yield Finding("server", OK, "none is configured on this machine")
    else:
        yield _server(server)


def _server(url: str) -> Finding:
    """Ask the server for its front page; any answer of HTTP will do, also a refusal."""
    from urllib.error import HTTPError, URLError
    from urllib.request import urlopen

    fix = "check the address and the firewall; start it with: wattloop serve"
    if not url.startswith(("http://", "https://")):
        return Finding("server", FAIL, f"{url}: not an http:// or https:// address", fix)
    try:
        with urlopen(url, timeout=ANSWER_S) as answer:
            return Finding("server", OK, f"{url} answers ({answer.status})")
    except HTTPError as error:
        works = error.code < 500
        text = f"{url} answers ({error.code})"
        return Finding("server", OK if works else FAIL, text, "" if works else fix)
    except (URLError, OSError, ValueError) as error:
        return Finding("server", FAIL, f"{url}: {getattr(error, 'reason', error)}", fix)
