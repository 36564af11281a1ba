"""Totals of runs in the Prometheus text format, for node_exporter's textfile collector.

Format: https://prometheus.io/docs/instrumenting/exposition_formats/
"""

import math
from collections.abc import Callable, Iterator, Sequence

from wattloop.store.runs import RunRecord

Sample = tuple[dict[str, str], float | None]


def text_of(records: Sequence[RunRecord]) -> str:
    """One family per quantity; what was not measured is absent, not zero.

    Energy that another run of the same node already counts is left out, so that sums are right.
    """
    lines: list[str] = []
    for name, text, samples in _FAMILIES:
        found = [
            f"{name}{_labels(labels)} {value!r}"
            for record in records
            for labels, value in samples(record)
            if value is not None and math.isfinite(value)
        ]
        if found:
            lines += [f"# HELP {name} {text}", f"# TYPE {name} gauge", *found]
    return "".join(f"{line}\n" for line in lines)


def _energy(record: RunRecord) -> Iterator[Sample]:
    for domain in record.result.domains if record.result and record.counted else ():
        labels = {
            **_common(record),
            "domain": domain.name,
            "scope": domain.scope.value,
            "provenance": domain.provenance.value,
            "in_total": str(domain.in_total).lower(),
        }
        yield labels, domain.energy_j


def _uncertainty(record: RunRecord) -> Iterator[Sample]:
    if record.result and record.counted and record.energy_j is not None:
        yield _common(record), record.result.uncertainty_j


def _duration(record: RunRecord) -> Iterator[Sample]:
    yield _common(record), record.duration_s


def _carbon(record: RunRecord) -> Iterator[Sample]:
    value = (record.accounting or {}).get("carbon_g")
    if isinstance(value, int | float) and record.counted:
        yield _common(record), float(value)


def _started(record: RunRecord) -> Iterator[Sample]:
    yield _common(record), record.started_wall_s


def _exit_code(record: RunRecord) -> Iterator[Sample]:
    yield _common(record), None if record.exit_code is None else float(record.exit_code)


_FAMILIES: list[tuple[str, str, Callable[[RunRecord], Iterator[Sample]]]] = [
    (
        "wattloop_run_energy_joules",
        "Energy of the run by domain; add up only in_total.",
        _energy,
    ),
    (
        "wattloop_run_energy_uncertainty_joules",
        "Half-width of the interval around the sum of the domains in total.",
        _uncertainty,
    ),
    ("wattloop_run_duration_seconds", "Length of the run.", _duration),
    ("wattloop_run_carbon_grams", "Emissions of the run in grams of CO2e.", _carbon),
    ("wattloop_run_start_time_seconds", "Start of the run since 1970 UTC.", _started),
    ("wattloop_run_exit_code", "Exit code of the program.", _exit_code),
]


def _common(record: RunRecord) -> dict[str, str]:
    own = {"run": record.run_id, "name": record.name, "status": record.status.value}
    # node_exporter fills in labels that only some samples of a family have
    return own | {_tag_label(key): str(value) for key, value in record.tags.items()}


def _tag_label(key: str) -> str:
    """A tag can never hide a label of ours."""
    return "tag_" + "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in key)


def _labels(labels: dict[str, str]) -> str:
    return "{" + ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items()) + "}"


def _escaped(text: str) -> str:
    escaped = text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return escaped.encode("utf-8", "replace").decode()
