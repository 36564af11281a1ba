"""The page of `tune_h200.py`, from its measurements."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from bars import Bar, Page, Table
from tune_h200_sm2 import first_choices, why_lost

__all__ = ["page_of"]

J_PER_WH = 3600.0
SEARCHES = ("sm2-1", "sm2-0.75", "race")
NAMES = {"sm2-1": "SM2, alpha 1", "sm2-0.75": "SM2, alpha 0.75", "race": "race"}
PAPER = {
    "resnet18": (49.7, 45.8, 26.0),
    "lstm": (28.0, 14.8, 16.4),
    "transformer": (48.5, 40.7, 69.4),
}
"""Wh at alpha 1, alpha 0.75, and without SM2, on an RTX A6000 (Geißler et al., table 1)."""

TEXT = """
Three trainings as in Geißler et al., with data that any machine has: ResNet-18 on generated 32x32
images, an LSTM on a generated series of a household, a Transformer on the source text of Python's
standard library. The document names no optimizer; its rates of 0.001 to 1 suit SGD, so that the
Transformer is trained by SGD as ResNet-18 is. A fourth row has the same Transformer by AdamW at
rates of 1e-5 to 1e-2, as many would train it: there SM2's rule for rates fails, for the reason
below, and `race` does not. AdamW was measured first, and it was its failure that made us look at
which optimizer the rates are for. *Vanilla* is one training at a usual batch size and learning
rate. `sm2` and `race` search among eight batch sizes and a range of learning rates; their energy is
that of the whole search, explorations, dropped configurations and evaluations included, and ends
with a model trained by the same rule of early stopping as vanilla's. `race` sets no power cap here:
the GPU is only read. It first races to the quality that vanilla reached with every seed, less a
difference of no account, and its winner then trains on until the rule ends it.

Energy is that of the GPU, {provenance}. Preparing data and the first steps, in which libraries
choose their kernels, are left out for all. Parity is always the energy of the search over that of
one vanilla training; the document's table has it the other way round in its second and third rows
(1.11 is 16.4 Wh of vanilla over 14.8 Wh of the search).

One search of each kind and {seeds} vanilla trainings per scenario: differences in quality of about
the spread of vanilla are no differences.{missing}

`race` leaves the default the rate that it names, and measures the rates of others against that
(ADR 0023). Before, it took what a sweep said for the default, too: on the first Transformer it had
not ended after 570 s here (a small copy of it on a processor was given 0.018 by its sweep, where
0.1 is right), and the other rows took 6.82, 0.97 and 5.79 Wh. By AdamW it is dearer than it
was: there the sweep had found 0.00041 for the default, about the 0.0005 that it names.
"""


def page_of(files: Sequence[Mapping[str, Any]]) -> Page:
    """Make one page of one or several files."""
    data = _merged(files)
    scenarios = data["scenarios"]
    bars: list[Bar] = []
    for name, found in scenarios.items():
        bars += _bars(name, found)
    provenances = {
        t["provenance"] for s in scenarios.values() for t in s["trainings"] if t["provenance"]
    }
    seeds = {len(_kind(s, "vanilla")) for s in scenarios.values()} or {0}
    tables = [
        _table_one(scenarios),
        _quality(scenarios),
        first_choices(scenarios),
        _to_target(scenarios),
        _setups(scenarios),
    ]
    if data.get("loader"):
        tables.append(_loader(data["loader"]))
    return Page(
        "tune_h200",
        "Searches on real trainings",
        bars,
        tables,
        TEXT.format(
            provenance=", ".join(sorted(provenances)) or "not measured",
            seeds="-".join(str(s) for s in sorted(seeds)),
            missing=_missing(scenarios),
        ),
        packages=("wattloop",),
        versions=data.get("versions", {}),
        machine=data.get("machine", ""),
        made=data.get("made", ""),
        details=data,
    )


def _missing(scenarios: Mapping[str, Any]) -> str:
    absent = [name for name in PAPER if name not in scenarios]
    return f" Not measured yet: {', '.join(absent)}." if absent else ""


def _merged(files: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge the scenarios of all files, with all trainings of a scenario."""
    data: dict[str, Any] = {"scenarios": {}}
    for file in files:
        for key, value in file.items():
            if key not in ("scenarios", "bars"):
                data[key] = max(data.get(key, ""), value) if key == "made" else value
        for name, found in file.get("scenarios", {}).items():
            place = data["scenarios"].setdefault(name, {"trainings": []})
            have = {(t["kind"], t["seed"]) for t in place["trainings"]}
            place["trainings"] += [
                t for t in found["trainings"] if (t["kind"], t["seed"]) not in have
            ]
            place |= {key: value for key, value in found.items() if key != "trainings"}
    return data


def _bars(name: str, found: Mapping[str, Any]) -> list[Bar]:
    bars = []
    vanilla_j = _mean([t["energy_j"] for t in _kind(found, "vanilla")])
    for kind in ("sm2-0.75", "race"):
        done = _one(found, kind)
        short = kind.partition("-")[0]
        parity = _ratio(None if done is None else done["energy_j"], vanilla_j)
        baselines: dict[str, float | str | None] = {}
        if kind == "race":
            other = _one(found, "sm2-0.75")
            baselines["sm2"] = _ratio(None if other is None else other["energy_j"], vanilla_j)
        paper = PAPER.get(name)
        if kind == "sm2-0.75" and paper is not None:
            baselines["Geißler et al."] = paper[1] / paper[2]
        bars.append(Bar(f"parity_{short}_{name}", parity, "vanilla trainings", None, baselines))
        lost = None if done is None else _lost(found, done)
        why = why_lost(found, lost) if short == "sm2" else ""
        bar = 1.0 if name in PAPER else None
        bars.append(Bar(f"quality_lost_{short}_{name}", lost, "x noise", bar, note=why))
    return bars


def _lost(found: Mapping[str, Any], done: Mapping[str, Any]) -> float | None:
    """Return the loss against vanilla's mean beyond noise; 0 when it is better."""
    bests = [t["best"] for t in _kind(found, "vanilla") if t["best"] is not None]
    if not bests or done["best"] is None:
        return None
    mean = statistics.mean(bests)
    worse = mean - done["best"] if found["facts"]["maximize"] else done["best"] - mean
    return max(0.0, worse) / _noise(found, bests)


def _noise(found: Mapping[str, Any], bests: Sequence[float]) -> float:
    spread = 2 * statistics.stdev(bests) if len(bests) > 1 else 0.0
    return max(spread, float(found["facts"]["tolerance"]))


def _table_one(scenarios: Mapping[str, Any]) -> Table:
    rows = []
    for name, found in scenarios.items():
        vanilla_j = _mean([t["energy_j"] for t in _kind(found, "vanilla")])
        one, less, race = (_one(found, kind) for kind in SEARCHES)
        less_j = None if less is None else less["energy_j"]
        whole_j = one["energy_j"] if one is not None and one["finished"] else None
        reduction = _ratio(less_j, whole_j)
        rows.append(
            [
                found["facts"]["title"],
                _wh(one),
                _wh(less),
                "" if reduction is None else f"{100 * (reduction - 1):+.0f}%",
                None if vanilla_j is None else vanilla_j / J_PER_WH,
                _ratio(less_j, vanilla_j),
                _wh(race),
                _ratio(None if race is None else race["energy_j"], vanilla_j),
                _paper(name),
            ]
        )
    return Table(
        "Energy of a whole search (table 1 of Geißler et al.)",
        [
            "",
            "alpha 1 (Wh)",
            "alpha 0.75 (Wh)",
            "reduction",
            "vanilla (Wh)",
            "parity of alpha 0.75",
            "race (Wh)",
            "parity of race",
            "document: Wh at 1, 0.75, vanilla; parity",
        ],
        rows,
        "Parity: search over vanilla, so below 1 the search itself already costs less than one "
        "training without it. `*` did not come to its end by the rule.",
    )


def _quality(scenarios: Mapping[str, Any]) -> Table:
    rows = []
    for found in scenarios.values():
        bests = [t["best"] for t in _kind(found, "vanilla") if t["best"] is not None]
        noise = _noise(found, bests) if bests else None
        rows.append(
            [
                f"{found['facts']['title']} ({found['facts']['metric']})",
                ", ".join(f"{best:.4g}" for best in bests),
                "" if noise is None else f"{noise:.2g}",
                *(_best(_one(found, kind)) for kind in SEARCHES),
            ]
        )
    header = ["", "vanilla, by seed", "noise", *(NAMES[kind] for kind in SEARCHES)]
    return Table(
        "Final quality (best epoch on held-back data)",
        header,
        rows,
        "Noise is twice the standard deviation over vanilla's seeds, or the scenario's tolerance "
        "where that is larger.",
    )


def _to_target(scenarios: Mapping[str, Any]) -> Table:
    rows = []
    for found in scenarios.values():
        target = found.get("target")
        goal = _first_at(_kind(found, "vanilla"), target, found["facts"]["maximize"])
        vanilla_j = _mean(goal)
        row: list[object] = [
            found["facts"]["title"],
            "" if target is None else f"{target:.4g}",
            None if vanilla_j is None else vanilla_j / J_PER_WH,
        ]
        for kind in SEARCHES:
            done = _one(found, kind)
            found_j = _mean(
                _first_at([] if done is None else [done], target, found["facts"]["maximize"])
            )
            row += [
                None if found_j is None else found_j / J_PER_WH,
                _ratio(found_j, vanilla_j),
            ]
        rows.append(row)
    header = ["", "target", "vanilla (Wh)"]
    for kind in SEARCHES:
        header += [f"{NAMES[kind]} (Wh)", "parity"]
    return Table(
        "Energy until the target is first reached",
        header,
        rows,
        "The target is what vanilla reached with every seed, less half the tolerance; without the "
        "epochs of patience after it. Of a search: everything it spent until any of its "
        "configurations was there.",
    )


def _setups(scenarios: Mapping[str, Any]) -> Table:
    rows = []
    for found in scenarios.values():
        for done in found["trainings"]:
            rows.append(
                [
                    found["facts"]["title"],
                    f"{NAMES.get(done['kind'], done['kind'])}, seed {done['seed']}",
                    done["parameters"].get("batch_size"),
                    _rate(done),
                    done["epochs"],
                    done["time_s"],
                    _percent(done["uncertainty_j"], done["energy_j"]),
                    _percent(done["eval_energy_j"], done["energy_j"]),
                    done["message"],
                ]
            )
    header = ["", "", "batch size", "rate", "epochs", "time (s)", "energy error", "evaluating", ""]
    return Table("What was chosen", header, rows)


def _rate(done: Mapping[str, Any]) -> str:
    """Return the rate from a sweep, else the configuration's own."""
    swept = done["learning_rate"]
    rate = done["parameters"].get("learning_rate") if swept is None else swept
    return "" if rate is None else f"{rate:.3g}"


def _loader(rows: Sequence[Mapping[str, Any]]) -> Table:
    waits = {None: "", True: "yes", False: "never"}
    return Table(
        "An epoch of batches alone",
        ["", "batch size", "time (s)", "GPU energy (J)", "host waits for the GPU"],
        [
            [
                row["way"],
                row["batch_size"],
                row["epoch_s"],
                row["epoch_j"],
                waits[row["waits_for_device"]],
            ]
            for row in rows
        ],
        f"{rows[0]['samples']:,} images of 32x32 in half precision, shuffled, one small operation "
        "per batch, nothing trained.",
    )


def _kind(found: Mapping[str, Any], kind: str) -> list[Mapping[str, Any]]:
    return [t for t in found["trainings"] if t["kind"] == kind and t["energy_j"] is not None]


def _one(found: Mapping[str, Any], kind: str) -> Mapping[str, Any] | None:
    return next((t for t in _kind(found, kind) if t["best"] is not None), None)


def _first_at(
    trainings: Sequence[Mapping[str, Any]], target: float | None, maximize: bool
) -> list[float | None]:
    found: list[float | None] = []
    for training in trainings:
        for energy_j, _, _, quality in training["points"]:
            if target is None or quality is None:
                continue
            if quality >= target if maximize else quality <= target:
                found.append(energy_j)
                break
    return found


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.mean(known) if known else None


def _ratio(one: float | None, other: float | None) -> float | None:
    return None if one is None or not other else one / other


def _wh(done: Mapping[str, Any] | None) -> str:
    if done is None:
        return ""
    return f"{done['energy_j'] / J_PER_WH:.3g}{'' if done['finished'] else '*'}"


def _best(done: Mapping[str, Any] | None) -> str:
    return "" if done is None else f"{done['best']:.4g}{'' if done['finished'] else '*'}"


def _percent(part: float | None, whole: float | None) -> str:
    return "" if part is None or not whole else f"{100 * part / whole:.2g}%"


def _paper(name: str) -> str:
    if name not in PAPER:
        return ""
    one, less, vanilla = PAPER[name]
    return f"{one}, {less}, {vanilla}; {less / vanilla:.2f}"
