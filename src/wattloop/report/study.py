"""The report on a study: the six steps and their results."""

from collections.abc import Mapping
from typing import Any

from wattloop.core.table import Table
from wattloop.core.units import format_number
from wattloop.report.document import (
    Badges,
    Block,
    Document,
    DocumentBadge,
    Fact,
    Facts,
    Note,
    Paragraph,
    Section,
)
from wattloop.store.database import Store
from wattloop.store.experiments import Experiment

UNKNOWN = "-"
BEST_COLUMNS = ("metric", "of", "best setting", "gain %", "how", "sweep")
CANDIDATE_COLUMNS = ("candidate", "figure", "goal", "mean", "change", "result")


def best_rows(found: Mapping[str, Any]) -> tuple[tuple[str, ...], ...]:
    """Return the best settings of a characterization; insignificant gains are marked."""
    return tuple(
        (
            row["metric"],
            row["of"] or "all",
            row["setting"],
            f"{row['gain_pct']:+.1f}" + ("" if row["beyond_noise"] else " (within noise)"),
            row["provenance"],
            row["sweep"],
        )
        for row in found["best"]
    )


def twin_rows(found: Mapping[str, Any], within: str, beyond: str) -> tuple[tuple[str, ...], ...]:
    """Return rows that compare the simulation with the measurement: values, error, verdict."""
    return tuple(
        (
            row["metric"],
            format_number(row["measured"], 5),
            format_number(row["simulated"], 5),
            f"{row['off']:.1%}",
            within if row["within"] else beyond,
        )
        for row in found["twin"]
    )


def candidate_rows(found: Mapping[str, Any]) -> tuple[tuple[str, ...], ...]:
    """Return every goal of every simulated candidate."""
    return tuple(
        (name, v["metric"], v["goal"], format_number(v["after"], 5), change_text(v), v["verdict"])
        for name, candidate in found["candidates"].items()
        for v in candidate["verdicts"]
    )


def differed_texts(found: Mapping[str, Any]) -> tuple[str, ...]:
    """Return KPIs whose validation differs from the prediction."""
    return tuple(
        f"{row['metric']} predicted {_five(row['predicted'])}, found {_five(row['found'])}"
        for row in found["differed"]
    )


def change_text(verdict: Mapping[str, Any]) -> str:
    return UNKNOWN if verdict["change"] is None else f"{verdict['change']:+.1%}"


def _five(value: float | None) -> str:
    return UNKNOWN if value is None else format_number(value, 5)


TITLES = {
    "objective": "1. Objective",
    "baseline": "2. Baseline",
    "characterize": "3. Characterisation",
    "simulate": "4. Simulation",
    "decide": "5. Decision",
    "validate": "6. Validation",
}


def report_of_study(store: Store, experiment: Experiment) -> Document:
    del store  # the steps carry all that is printed
    steps: Mapping[str, Any] = experiment.facts.get("steps") or {}
    spec = experiment.spec
    sections = []
    for step, title in TITLES.items():
        found = steps.get(step)
        if step == "objective":
            blocks = _objective(spec)
        elif found is None:
            blocks = [Note("Not done yet.", tone="info", command=f"wattloop study {step} FILE")]
        else:
            blocks = _BLOCKS[step](found)
        sections.append(Section(title, tuple(blocks)))
    return Document(
        title=f"Study {experiment.name}",
        subtitle=_outcome(steps),
        sections=tuple(sections),
        about={"kind": "study", "id": experiment.experiment_id},
    )


def _outcome(steps: Mapping[str, Any]) -> str:
    last = steps.get("validate")
    if last is None:
        done = sum(step in steps for step in TITLES)
        return f"{done} of {len(TITLES)} steps done"
    word = "SUCCESS: all goals are met" if last["success"] else "FAIL: not all goals are met"
    return f"{word} with {last['choice']} ({last['provenance']})"


def _objective(spec: Mapping[str, Any]) -> list[Block]:
    rows = tuple((kpi["metric"], kpi["goal"]) for kpi in spec.get("kpis") or ())
    return [
        Paragraph(str(spec.get("need", ""))),
        Facts((Fact("Primary objective", str(spec.get("objective", ""))),)),
        Table.of(("figure", "goal"), rows, title="What must come out"),
    ]


def _baseline(found: Mapping[str, Any]) -> list[Block]:
    facts = tuple(Fact(name, format_number(value, 5)) for name, value in found["means"].items())
    blocks: list[Block] = [Facts(facts), Paragraph(f"{found['provenance']}; {found['source']}")]
    blocks += [Note(text, tone="warning", title="Symptom:") for text in found["symptoms"]]
    if not found["symptoms"]:
        blocks.append(Paragraph("No symptom stands out."))
    return blocks


def _characterize(found: Mapping[str, Any]) -> list[Block]:
    if not found["best"]:
        return [Paragraph(str(found["note"]))]
    return [Table.of(BEST_COLUMNS, best_rows(found), "What levers do", (3,))]


def _simulate(found: Mapping[str, Any]) -> list[Block]:
    blocks: list[Block] = []
    if found["twin"]:
        compared = twin_rows(found, "yes", "no")
        heads = ("figure", "measured", "simulated", "off", "close enough")
        blocks.append(Table.of(heads, compared, "The twin next to the measurement", (1, 2, 3)))
    else:
        blocks.append(Paragraph("The baseline is the simulation itself, so no twin is checked."))
    caption = f"Candidates against {found['base']}, simulated"
    rows = candidate_rows(found)
    source = (str(found["source"]),)
    blocks.append(Table.of(CANDIDATE_COLUMNS, rows, caption, (3, 4), source))
    return blocks


def _decide(found: Mapping[str, Any]) -> list[Block]:
    choice = Facts((Fact("Chosen", found["choice"] or "none"),))
    return [choice, *(Paragraph(reason) for reason in found["reasons"])]


def _validate(found: Mapping[str, Any]) -> list[Block]:
    rows = tuple(
        (
            v["metric"],
            format_number(v["before"], 5),
            format_number(v["after"], 5),
            change_text(v),
            v["goal"],
            v["verdict"],
            v["why"],
        )
        for v in found["verdicts"]
    )
    columns = ("figure", "baseline", found["choice"], "change", "goal", "result", "95% interval")
    tone = "good" if found["success"] else "warning"
    word = "SUCCESS" if found["success"] else "FAIL"
    meaning = f"{found['provenance']}; {found['source']}"
    differed = [Note(text, tone="warning", title="Differed:") for text in differed_texts(found)]
    return [
        Badges((DocumentBadge("Result", word, tone, meaning),)),
        Table.of(columns, rows, "Every goal, tested", (1, 2, 3)),
        *differed,
    ]


_BLOCKS = {
    "baseline": _baseline,
    "characterize": _characterize,
    "simulate": _simulate,
    "decide": _decide,
    "validate": _validate,
}
