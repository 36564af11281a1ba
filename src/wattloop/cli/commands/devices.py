"""`wattloop devices`: meters and levers of this machine, and how to enable the rest."""

import os
import sys
import textwrap
from collections.abc import Sequence
from typing import Any

from wattloop.cli.app import Verb
from wattloop.cli.options import Config, Devices, JsonFile, Meters, file_option, option, settings_of
from wattloop.cli.output import present, print_rows, write_text
from wattloop.cli.progress import counted
from wattloop.control.lever import LeverState, format_setting
from wattloop.control.registry import find_levers as levers_here
from wattloop.core.errors import MeterUnavailable
from wattloop.core.records import Domain, Provenance, picked
from wattloop.core.settings import SENSORS
from wattloop.hardware.host import Host
from wattloop.measure.verify import DURATION_S, MeterComparison, verification_report, verify
from wattloop.meters.base import Context, Meter
from wattloop.meters.registry import Inventory, detect
from wattloop.meters.visible_gpus import HiddenGpus, gpus_left_out


def as_dict(
    inventory: Inventory,
    levers: Sequence[LeverState],
    checks: Sequence[MeterComparison] | None,
    hidden: Sequence[HiddenGpus] = (),
) -> dict[str, Any]:
    data: dict[str, Any] = {
        "meters": [*map(_meter_dict, inventory.meters), *map(_refusal_dict, inventory.refusals)],
        "levers": [lever.to_dict() for lever in levers],
        "missing": [picked(missing, "name reason remedy") for missing in inventory.missing()],
        "left_out": [
            {"name": name, "reason": each.because} for each in hidden for name in each.names
        ],
    }
    if checks is not None:
        data["checks"] = [check.to_dict() for check in checks]
    return data


def print_report(
    inventory: Inventory,
    levers: Sequence[LeverState],
    checks: Sequence[MeterComparison] | None,
    hidden: Sequence[HiddenGpus] = (),
    *,
    everything: bool,
) -> None:
    rows = [row for meter in inventory.meters for row in _domain_rows(meter)]
    if rows:
        headers = ("domain", "meter", "how", "kind", "every", "known error", "source")
        print_rows(headers, rows, title="Can be measured", spare=("kind", "every"))
    else:
        _line("Nothing can be measured on this machine as it is.")
    for left_out in hidden:
        _line(f"In a run {left_out.text}.")
    _advice(inventory)
    _refusals(inventory, everything)
    _levers(levers, everything)
    if checks is not None:
        _print_checks(checks)


def _domain_rows(meter: Meter) -> list[tuple[str, ...]]:
    return [
        (
            domain.name,
            meter.name,
            domain.provenance.value,
            "joules" if domain.kind.value == "counter" else "watts",
            _period(domain.update_period_s),
            _known_error(domain),
            domain.source,
        )
        for domain in meter.domains
    ]


def _advice(inventory: Inventory) -> None:
    """Explain the accuracy of an estimate where no sensor can be read."""
    domains = [domain for meter in inventory.meters for domain in meter.domains]
    best = {d.name: d for d in reversed(domains)}
    weak = [d for d in best.values() if d.provenance is Provenance.ESTIMATED]
    if weak:
        names = ", ".join(sorted(d.name for d in weak))
        _line()
        _paragraph(
            f"{names}: no sensor can be read, so an estimate is used and marked 'estimated'; its "
            f"stated error is {_known_error(weak[0])}. Below is what would give a real reading."
        )
    if not domains:
        _paragraph(
            "Runs are still timed and kept; their energy is 'missing', never zero. Below is what "
            "would give a reading."
        )


def _refusals(inventory: Inventory, everything: bool) -> None:
    refused = {part for refusal in inventory.refusals for part in refusal.parts}
    parts = [part for part in inventory.missing() if part.name not in refused]
    if parts:
        _line("\nHere, but not readable")
        for part in parts:
            _item(part.name, part.reason, part.remedy)
    helpful = [r for r in inventory.refusals if r.remedy or everything]
    if helpful:
        _line("\nMeters that cannot be used, and what would allow them")
        for refusal in helpful:
            expected = f" (would read {', '.join(refusal.parts)})" if refusal.parts else ""
            _item(f"{refusal.meter}{expected}", refusal.reason, refusal.remedy)
    hidden = len(inventory.refusals) - len(helpful)
    if hidden:
        _line(f"\n{hidden} more meter(s) have no hardware here; --all lists them.")


def _levers(levers: Sequence[LeverState], everything: bool) -> None:
    present = [lever for lever in levers if lever.value is not None or lever.available]
    if present:
        _line()
        rows = [
            (
                lever.name,
                format_setting(lever.value, lever.unit),
                _range(lever),
                "yes" if lever.available else "no",
                lever.note,
            )
            for lever in present
        ]
        headers = ("lever", "now", "range", "may be set", "note")
        print_rows(headers, rows, title="Can be controlled (nothing is set by this command)")
    blocked = [lever for lever in levers if not lever.available and (lever.remedy or everything)]
    if blocked:
        _line("\nLevers that cannot be used, and what would allow them")
        for lever in _one_per_reason(blocked):
            _item(lever.name, lever.reason, lever.remedy)


def _print_checks(checks: Sequence[MeterComparison]) -> None:
    _line("\nTwo sources of one domain, compared")
    if not checks:
        _paragraph("No domain is offered by two meters here, so there is nothing to compare.")
    for check in checks:
        _line(f"  {check.domain}: {check.first.source} and {check.second.source}")
        _line(f"    {check.text}")


def _meter_dict(meter: Meter) -> dict[str, Any]:
    kinds = [domain.provenance for domain in meter.domains]
    return {
        **{"name": meter.name, "available": True, "reason": "", "remedy": ""},
        "provenance": Provenance.weakest(kinds).value if kinds else None,
        "domains": [picked(domain, DOMAIN_FIELDS) for domain in meter.domains],
        "signals": [picked(signal, "name unit") for signal in meter.signals],
        "refused": [missing._asdict() for missing in meter.refused],
        "parts": [],
    }


def _refusal_dict(refusal: MeterUnavailable) -> dict[str, Any]:
    return {
        **{"name": refusal.meter, "available": False, **picked(refusal, "reason remedy")},
        **{"provenance": None, "domains": [], "signals": [], "refused": []},
        "parts": list(refusal.parts),
    }


DOMAIN_FIELDS = (
    "name kind scope provenance source inside resolution update_period_s known_error "
    "known_error_w device tdp_w tdp_note"
)


def _known_error(domain: Domain) -> str:
    parts = []
    if domain.known_error:
        parts.append(f"±{domain.known_error:.1%}".replace(".0%", "%"))
    if domain.known_error_w:
        parts.append(f"±{domain.known_error_w:.2g} W")
    return " and ".join(parts) or "not stated"


def _period(period_s: float) -> str:
    return f"{period_s * 1e3:g} ms" if period_s < 1 else f"{period_s:g} s"


def _range(lever: LeverState) -> str:
    if lever.choices:
        return " ".join(lever.choices)
    if lever.low is None and lever.high is None:
        return ""
    low, high = (f"{v:g}" if v is not None else "?" for v in (lever.low, lever.high))
    return f"{low} to {high} {lever.unit}"


def _one_per_reason(levers: Sequence[LeverState]) -> list[LeverState]:
    """Merge constraints that are closed for the same reason into one row per device."""
    chosen: dict[tuple[str, str], LeverState] = {}
    for lever in levers:
        chosen.setdefault((lever.name.partition("/")[0], lever.remedy), lever)
    return list(chosen.values())


def _item(name: str, reason: str, remedy: str) -> None:
    _line(f"  {name}: {reason}")
    if remedy:
        _line(f"      to allow it: {remedy}")


def _paragraph(text: str) -> None:
    _line(textwrap.fill(text, 96))


def _line(text: str = "") -> None:
    sys.stdout.write(text + "\n")


app = Verb()
REPORT_ROUNDS = 5
"""As many as the thesis has repeated its comparisons."""


@app.command("devices", example="wattloop devices\nwattloop devices --report verify.md")
def devices(
    *,
    json_file: JsonFile = None,
    check: bool = option("--verify", "Compare sources of the same domain over a few seconds."),
    seconds: float = option(
        "--seconds", "How long --verify compares.", DURATION_S, min=0.5, max=600
    ),
    everything: bool = option("--all", "Also list what this machine plainly does not have."),
    report: str | None = file_option(
        "--report FILE.md", "Five rounds of --verify, next to the thesis's tables 3.3-3.6."
    ),
    wanted: Devices = None,
    meters: Meters = None,
    config: Config = None,
) -> None:
    """Show what can be measured and controlled here, and how to enable the rest.

    Nothing is ever set by this command.
    """
    settings = settings_of(config, needs=SENSORS, devices=wanted, meters=meters)
    context = Context(Host.from_environment(), settings)
    inventory = detect(context)
    try:
        levers = levers_here(context).states()
        checks = None
        if check or report is not None:
            count = 1 if report is None else REPORT_ROUNDS
            rounds = [_checks(context, inventory, seconds) for _ in range(count)]
            checks = rounds[-1]
            if report is not None:
                write_text(verification_report(rounds, seconds), report, "--report")
        hidden = gpus_left_out(context, inventory, os.environ)
        present(
            json_file,
            lambda: as_dict(inventory, levers, checks, hidden),
            lambda: print_report(inventory, levers, checks, hidden, everything=everything),
        )
    finally:
        inventory.close()


def _checks(context: Context, inventory: Inventory, seconds: float) -> list[MeterComparison]:
    if seconds < 2:
        return verify(inventory.meters, context.clock, seconds)
    with counted("comparing sources", total=1.0) as bar:
        return verify(
            inventory.meters, context.clock, seconds, lambda share: bar.update(share, 1.0)
        )
