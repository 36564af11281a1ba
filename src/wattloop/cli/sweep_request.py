"""What `wattloop sweep` was asked to do, made into a specification and a plan."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from wattloop.core.errors import ConfigError
from wattloop.core.settings import Settings

if TYPE_CHECKING:
    from wattloop.core.yaml_spec import YamlWithLines
    from wattloop.sweep.plan import SweepPlan
    from wattloop.sweep.spec import SweepSpec

__all__ = ["SweepRequest", "plan_here", "spec_of"]

KERNEL_WINDOW = "kernel"
LEVER_OPTIONS = {"--cap": "gpu/power_limit", "--clock": "gpu/sm_clock"}


@dataclass(slots=True, kw_only=True)
class SweepRequest:
    """Options as they were given; None or empty means not given."""

    settings: Settings
    spec_file: str | None = None
    command: list[str] = field(default_factory=list)
    levers: Mapping[str, str | None] = field(default_factory=dict)
    named_levers: list[str] = field(default_factory=list)
    kernels: list[str] = field(default_factory=list)
    gpus: str | None = None
    repeats: str | None = None
    target: str | None = None
    cooldown_c: float | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    dry_run: bool = False
    new: bool = False
    resume_only: bool = False
    retry_failed: bool = False
    show_output: bool = False
    figures: str | None = None
    json_file: str | None = None


def spec_of(request: SweepRequest) -> tuple["SweepSpec", "YamlWithLines | None"]:
    """The specification that file and options make, and the file, for messages with lines."""
    from wattloop.core.yaml_spec import read_yaml
    from wattloop.sweep.spec import spec_from

    source = None if request.spec_file is None else read_yaml(request.spec_file)
    data: dict[str, Any] = {} if source is None else dict(source.data)
    levers = _levers(request)
    if levers:
        own = data.get("levers")
        data["levers"] = {**(own if isinstance(own, Mapping) else {}), **levers}
    data |= {name: value for name, value in request.fields.items() if value is not None}
    if request.command:
        data["command"] = request.command
    if request.kernels:
        window = str(data.setdefault("window", KERNEL_WINDOW))
        data["workloads"] = {name: _kernel_command(name, window) for name in request.kernels}
    if request.gpus is not None:
        data["gpus"] = _counts(request.gpus)
    data |= _repeats(request, data)
    if request.cooldown_c is not None:
        data["cooldown"] = {"within": request.cooldown_c}
    return spec_from(data, source), source


def _levers(request: SweepRequest) -> dict[str, str]:
    given = {LEVER_OPTIONS[o]: text for o, text in request.levers.items() if text is not None}
    for pair in request.named_levers:
        name, separator, values = pair.partition("=")
        if not separator or not values:
            raise ConfigError(f"--lever {pair}: write NAME=VALUES, such as cpu/governor=powersave")
        given[name.strip()] = values.strip()
    return given


def _counts(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise ConfigError(f"--gpus {text}: write numbers with commas, such as 1,2,4,8") from None


def _repeats(request: SweepRequest, data: Mapping[str, Any]) -> dict[str, Any]:
    if request.repeats is None and request.target is None:
        return {}
    own = data.get("repeats")
    rule: dict[str, Any] = dict(own) if isinstance(own, Mapping) else {}
    if isinstance(own, int):
        rule = {"min": own, "max": own}
    if request.repeats is not None:
        low, _, high = request.repeats.partition(":")
        try:
            rule |= {"min": int(low), "max": int(high or low)}
        except ValueError:
            raise ConfigError(
                f"--repeats {request.repeats}: write a number, or MIN:MAX such as 3:10"
            ) from None
    if request.target is not None:
        rule["target"] = request.target
        rule.setdefault("max", 10)
    return {"repeats": rule}


def _kernel_command(name: str, window: str) -> list[str]:
    """A fixed amount of work of a kernel of `wattloop bench`, as a program of its own."""
    from wattloop.kernels.fixed_work import work_command

    kernel, _, backend = name.partition("/")
    return [*work_command(kernel, backend), "--window", window]


def plan_here(spec: "SweepSpec", source: "YamlWithLines | None", settings: Settings) -> "SweepPlan":
    """The specification on this machine."""
    from wattloop.control.registry import find_levers
    from wattloop.hardware.host import Host
    from wattloop.meters.base import Context
    from wattloop.sweep.plan import axis_of, make_plan
    from wattloop.sweep.runner import Thermometer

    if not spec.levers and len(spec.gpus) < 2 and len(spec.workloads) < 2:
        raise ConfigError(
            "nothing to vary: name levers, such as --cap 50%:100%:10% or 'levers:' in the file, "
            "or several GPU counts; 'wattloop run' measures a command once"
        )
    context = Context(Host.from_environment(), settings)
    levers = find_levers(context, settings) if spec.levers else []
    axes = [
        axis_of(name, values, levers, "" if source is None else source.where(("levers", name)))
        for name, values in spec.levers.items()
    ]
    gpus_here = None
    if spec.gpus:
        with Thermometer(context) as thermometer:
            gpus_here = thermometer.gpus
        numbered = {n.partition("/")[0] for n in (lever.name for lever in levers)}
        gpus_here = max(gpus_here, sum(name.startswith("gpu:") for name in numbered))
    try:
        return make_plan(spec, axes, gpus_here)
    except ConfigError as error:
        where = "" if source is None or "gpus" not in str(error) else source.where(("gpus",)) + ": "
        raise ConfigError(f"{where}{error}") from None
