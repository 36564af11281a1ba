"""A sweep with times and energies from a formula, so that every answer is known.

Time grows as the cap falls below 200 W; power follows the cap. Two runs of a point differ by
`noise` up and down.
"""

from typing import Any

from wattloop.store.experiments import Experiment, TrialRecord

CAPS_W = (100, 150, 200, 260)
HOST_W = 400.0


def time_s(cap_w: float, gpus: int) -> float:
    return 480.0 / gpus**0.8 * (1 + max(0.0, 200 - cap_w) ** 2 / 40_000)


def energy_j(cap_w: float, gpus: int) -> float:
    return (HOST_W + gpus * min(cap_w, 240.0)) * time_s(cap_w, gpus)


def made_sweep(
    caps_w: tuple[float, ...] = CAPS_W,
    gpus: tuple[int | None, ...] = (1, 8),
    *,
    repeats: int = 3,
    noise: float = 0.01,
    workloads: tuple[tuple[str, str], ...] = (("", ""),),
    name: str = "made",
) -> tuple[Experiment, list[TrialRecord]]:
    """Return an experiment with its trials, as the store does."""
    default = max(caps_w)
    axis = {
        "name": "gpu/power_limit",
        "unit": "W",
        "technique": "power cap",
        "default": f"{default:g} W",
        "levels": [{"label": f"{cap:g} W", "number": float(cap)} for cap in caps_w],
    }
    experiment = Experiment(
        experiment_id="sweep-made-1",
        kind="sweep",
        name=name,
        status="finished",
        spec={"scope": "node"},
        facts={"axes": [axis], "host": "nowhere"},
    )
    trials: list[TrialRecord] = []
    for workload, library in workloads:
        for count in gpus:
            for cap in caps_w:
                for repeat in range(repeats):
                    off = noise * (repeat - (repeats - 1) / 2)
                    point = {
                        "workload": workload,
                        "library": library,
                        "gpus": count,
                        "levels": {"gpu/power_limit": f"{cap:g} W"},
                        "is_default": cap == default,
                    }
                    key = f"{workload} {library} gpus={count} cap={cap:g} #{repeat}"
                    settings = {"point": point, "repeat": str(repeat)}
                    trials.append(
                        TrialRecord(
                            key=key,
                            number=len(trials),
                            status="ok",
                            settings=settings,
                            outcome=_outcome(cap, count or 1, 1 + off),
                        )
                    )
    return experiment, trials


def _outcome(cap_w: float, gpus: int, factor: float) -> dict[str, Any]:
    lasted_s = time_s(cap_w, gpus) * factor
    joules = {
        "node": energy_j(cap_w, gpus) * factor,
        "gpu": (energy_j(cap_w, gpus) - HOST_W * time_s(cap_w, gpus)) * factor,
        "cpu": 0.5 * HOST_W * lasted_s,
    }
    return {
        "status": "ok",
        "time_s": lasted_s,
        "scopes": {
            scope: {
                "energy_j": energy,
                "uncertainty_j": 1.0,
                "provenance": "simulated",
                "sources": ["a formula"],
                "average_w": energy / lasted_s,
                "peak_w": 1.1 * energy / lasted_s,
                "modelled": False,
            }
            for scope, energy in joules.items()
        },
        "domains": [{"name": "gpu:0", "scope": "gpu", "device": "formula card", "tdp_w": 260.0}],
    }
