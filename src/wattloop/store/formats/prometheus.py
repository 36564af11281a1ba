"""Metrics in the Prometheus text format and in OpenMetrics: families, and totals of runs.

Formats: https://prometheus.io/docs/instrumenting/exposition_formats/ and
https://github.com/prometheus/OpenMetrics/blob/main/specification/OpenMetrics.md
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from wattloop.store.runs import RunRecord

Sample = tuple[Mapping[str, str], float | None]
RunTotals = Mapping[str, Mapping[str, Any]]
"""Run -> totals of its training steps as plain data: `steps`, `step_j`, `tokens`, `phases`, ..."""
_STEP_FAMILIES = (
    ("wattloop_run_steps", "Training steps of the run.", "steps"),
    ("wattloop_run_samples", "Samples of all training steps.", "samples"),
    ("wattloop_run_tokens", "Tokens of all training steps.", "tokens"),
)
_STEP_ENERGY_FAMILIES = (
    ("wattloop_run_step_energy_joules", "Mean energy of a training step.", "step_j"),
    ("wattloop_run_sample_energy_joules", "Mean energy of a sample.", "sample_j"),
    ("wattloop_run_token_energy_joules", "Mean energy of a token.", "token_j"),
    ("wattloop_run_tokens_per_joule", "Tokens per second and watt.", "tokens_per_j"),
)


TEXT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
LABEL_CHARACTERS = 120
"""Names come from users; a longer one is cut."""


class MetricSample(NamedTuple):
    """One value of a family. `exemplar` names the run that it belongs to."""

    labels: Mapping[str, str]
    value: float | None
    exemplar: str = ""


class MetricFamily(NamedTuple):
    """Samples of one quantity. A counter's name ends with `_total`."""

    name: str
    text: str
    samples: Sequence[MetricSample]
    unit: str = ""

    @property
    def is_counter(self) -> bool:
        return self.name.endswith("_total")


def render_families(families: Iterable[MetricFamily], *, openmetrics: bool = False) -> str:
    """Render families; those without a known value are left out."""
    lines: list[str] = []
    for family in families:
        found = [s for s in family.samples if s.value is not None and math.isfinite(s.value)]
        if not found:
            continue
        kind = "counter" if family.is_counter else "gauge"
        # OpenMetrics names a counter's family without its suffix
        name = family.name.removesuffix("_total") if openmetrics else family.name
        lines += [f"# TYPE {name} {kind}"]
        # a unit that does not end the name makes Prometheus refuse the whole answer
        named = openmetrics and family.unit and name.endswith(f"_{family.unit}")
        lines += [f"# UNIT {name} {family.unit}"] if named else []
        lines += [f"# HELP {name} {family.text}"]
        for sample in found:
            line = f"{family.name}{_labels(sample.labels)} {sample.value!r}"
            if openmetrics and sample.exemplar and family.is_counter:
                line += f" # {_labels({'run': sample.exemplar})} {sample.value!r}"
            lines.append(line)
    return "".join(f"{line}\n" for line in lines) + ("# EOF\n" if openmetrics else "")


def text_of(records: Sequence["RunRecord"], totals: RunTotals | None = None) -> str:
    """One family per quantity; what was not measured is absent, not zero.

    Energy that another run of the same node already counts is left out, so that sums are right.
    """
    known = totals or {}

    def one(key: str, *, energy: bool) -> Callable[["RunRecord"], Iterable[Sample]]:
        return _one(lambda r: known.get(r.run_id, {}).get(key) if r.counted or not energy else None)

    families = [
        *_FAMILIES,
        *((name, text, one(key, energy=False)) for name, text, key in _STEP_FAMILIES),
        *((name, text, one(key, energy=True)) for name, text, key in _STEP_ENERGY_FAMILIES),
    ]
    return "".join(
        f"{line}\n"
        for name, text, samples in families
        for line in family_lines(name, text, (s for record in records for s in samples(record)))
    )


def family_lines(name: str, text: str, samples: Iterable[Sample]) -> list[str]:
    """Return the lines of a family of gauges; none without a known value."""
    found = [
        f"{name}{_labels(labels)} {value!r}"
        for labels, value in samples
        if value is not None and math.isfinite(value)
    ]
    return [f"# HELP {name} {text}", f"# TYPE {name} gauge", *found] if found else []


def _energy(record: "RunRecord") -> Iterator[Sample]:
    for domain in record.result.domains if record.result and record.counted else ():
        labels = {
            **_common(record),
            "domain": domain.name,
            "scope": domain.scope.value,
            "provenance": domain.provenance.value,
            "in_total": str(domain.in_total).lower(),
        }
        yield labels, domain.energy_j


def _uncertainty_j(record: "RunRecord") -> float | None:
    if record.result and record.counted and record.energy_j is not None:
        return record.result.uncertainty_j
    return None


def _carbon_g(record: "RunRecord") -> float | None:
    value = (record.accounting or {}).get("carbon_g")
    return float(value) if isinstance(value, int | float) and record.counted else None


def _one(value: Callable[["RunRecord"], float | None]) -> Callable[["RunRecord"], Iterable[Sample]]:
    return lambda record: [(_common(record), value(record))]


_FAMILIES: list[tuple[str, str, Callable[["RunRecord"], Iterable[Sample]]]] = [
    ("wattloop_run_energy_joules", "Energy of the run by domain; add up only in_total.", _energy),
    (
        "wattloop_run_energy_uncertainty_joules",
        "Half-width of the interval around the sum of the domains in total.",
        _one(_uncertainty_j),
    ),
    ("wattloop_run_duration_seconds", "Length of the run.", _one(lambda r: r.duration_s)),
    ("wattloop_run_carbon_grams", "Emissions of the run in grams of CO2e.", _one(_carbon_g)),
    (
        "wattloop_run_start_time_seconds",
        "Start of the run since 1970 UTC.",
        _one(lambda r: r.started_wall_s),
    ),
    (
        "wattloop_run_exit_code",
        "Exit code of the program.",
        _one(lambda r: None if r.exit_code is None else float(r.exit_code)),
    ),
]


def _common(record: "RunRecord") -> dict[str, str]:
    own = {"run": record.run_id, "name": record.name, "status": record.status.value}
    # node_exporter fills in labels that only some samples of a family have
    return own | {_tag_label(key): str(value) for key, value in record.tags.items()}


def _tag_label(key: str) -> str:
    """A tag can never hide a label of ours."""
    return "tag_" + "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in key)


def _labels(labels: Mapping[str, str]) -> str:
    pairs = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
    return f"{{{pairs}}}" if pairs else ""


def shortened(text: str) -> str:
    """Return a label as it is shown."""
    return text if len(text) <= LABEL_CHARACTERS else text[: LABEL_CHARACTERS - 1] + "…"


@lru_cache(maxsize=4_096)  # the same few names are in thousands of lines
def _escaped(text: str) -> str:
    escaped = shortened(text).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return escaped.encode("utf-8", "replace").decode()
