"""Scenario files: read layered YAML files, and list the shipped scenarios."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from wattloop.core.errors import ConfigError
from wattloop.core.files import user_path
from wattloop.core.yaml_spec import (
    Fault,
    YamlWithLines,
    format_errors,
    nearest,
    read_yaml,
    validation_errors,
)
from wattloop.schedule.cluster.cluster import Cluster
from wattloop.schedule.cluster.file import ClusterSpec, build_cluster, build_failures, load_cluster
from wattloop.schedule.estimates.spec import OTHERS
from wattloop.schedule.policies.registry import policy_from
from wattloop.schedule.scenarios.scenario import Scenario, budget_fault
from wattloop.schedule.scenarios.spec import ScenarioSpec
from wattloop.schedule.step_function import (
    SourcedSteps,
    StepsError,
    budget_steps,
    carbon_steps,
    clock_s,
    price_steps,
)

MOST_LAYERS = 10
FILES = (
    ("cluster",),
    *(("jobs", "trace", name) for name in ("file", "format")),
    *(("oracle", name) for name in ("throughputs", "cap_curves", "calibrations")),
    *((name, "csv") for name in ("budget", "price", "carbon")),
)
"""Fields that may contain file names: one, a list, or a mapping."""
SHORT = {
    ("oracle",): "kind",
    ("engine", "preemption"): "keeps",
    ("jobs", "trace"): "file",
    ("jobs", "users"): "count",
}
"""Sections that may be a single value -> its field, so that sections can be merged."""


@dataclass(frozen=True, slots=True)
class Layered(YamlWithLines):
    """The content of a file merged over that of the file it is `like`."""

    base: YamlWithLines | None = None

    def where(self, place: Sequence[str | int]) -> str:
        if self.base is not None and tuple(place) not in self.lines:
            known = self.base.where(place)
            if self.base.line(place) and len(_known(self.base, place)) > len(_known(self, place)):
                return known
        return YamlWithLines.where(self, place)


def read_layers(path: str, shipped: Mapping[str, Path], depth: int = 0) -> Layered:
    """Read a file merged over the one in its `like` (a shipped name, or a relative path).

    Mappings are merged field by field; other values are replaced.

    Raises:
        ConfigError: missing file, not YAML, or a cycle of `like`.
    """
    own = read_yaml(path)
    data = dict(own.data)
    like = data.pop("like", None)
    data = _with_models(data, own)
    for place, name in SHORT.items():
        value = _at(data, place)
        if value is not None and not isinstance(value, Mapping | list):
            data = set_field(data, ".".join(place), {name: value})
    if like is None:
        return Layered(own.path, data, own.lines)
    where = own.where(("like",))
    if depth >= MOST_LAYERS:
        raise ConfigError(f"{where}: like: more than {MOST_LAYERS} files are like each other")
    base = read_layers(_found(str(like), own, shipped, where), shipped, depth + 1)
    inherited = {key: value for key, value in base.data.items() if key != "variants"}
    for place in FILES:
        value = _at(inherited, place)
        if value is not None:
            found = _anchored(value, Path(base.path).parent)
            inherited = set_field(inherited, ".".join(place), found)
    return Layered(own.path, merge(inherited, data), own.lines, base)


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two mappings recursively; `above` takes precedence."""
    found = dict(below)
    for key, value in above.items():
        under = found.get(key)
        if key == "oracle" and isinstance(under, Mapping) and isinstance(value, Mapping):
            under = _of_kind(under, value.get("kind"))
        both = isinstance(value, Mapping) and isinstance(under, Mapping)
        found[key] = merge(under, value) if both else value  # type: ignore[arg-type] # both say so
    return found


def _of_kind(oracle: Mapping[str, Any], kind: Any) -> Mapping[str, Any]:
    """Return the settings of an oracle without those that another kind of it does not have."""
    return {name: each for name, each in oracle.items() if name not in OTHERS.get(kind, ())}


def set_field(data: Mapping[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Set the field at a dotted path: `jobs.generate.rate_per_s`, `jobs.models.0.batches`.

    Raises:
        ConfigError: the path contains a list index that does not exist.
    """
    if path == "oracle.kind" and isinstance(data.get("oracle"), Mapping):
        data = {**data, "oracle": _of_kind(data["oracle"], value)}
    found: dict[str, Any] = _changed(data, path.split("."), value, path)
    return found


def _changed(data: Any, parts: Sequence[str], value: Any, path: str) -> Any:
    if not parts:
        return value
    first, rest = parts[0], parts[1:]
    if isinstance(data, list):
        if not first.isdecimal() or int(first) >= len(data):
            raise ConfigError(f"{path}: no item '{first}' in a list of {len(data)}")
        found = list(data)
        found[int(first)] = _changed(data[int(first)], rest, value, path)
        return found
    fields = dict(data) if isinstance(data, Mapping) else {}
    fields[first] = _changed(fields.get(first), rest, value, path)
    return fields


def _at(data: Any, place: Sequence[str]) -> Any:
    for part in place:
        data = data.get(part) if isinstance(data, Mapping) else None
    return data


def _anchored(value: Any, folder: Path) -> Any:
    """Resolve files relative to the folder of the file that names them."""
    if isinstance(value, str):
        return str((folder / value).absolute()) if (folder / value).is_file() else value
    if isinstance(value, list):
        return [_anchored(each, folder) for each in value]
    if isinstance(value, Mapping):
        return {name: _anchored(each, folder) for name, each in value.items()}
    return value


def _with_models(data: dict[str, Any], own: YamlWithLines) -> dict[str, Any]:
    """Load `jobs.models` if it is a file that several scenarios share."""
    name = _at(data, ("jobs", "models"))
    if not isinstance(name, str) or not name.endswith((".yaml", ".yml")):
        return data
    where = own.where(("jobs", "models"))
    try:
        shared = read_yaml(str(Path(own.path).parent / name)).data
    except ConfigError as error:
        raise ConfigError(f"{where}: jobs.models: {error}") from None
    if "models" not in shared:
        raise ConfigError(f"{where}: jobs.models: {name} has no 'models'")
    return set_field(data, "jobs.models", shared["models"])


def _found(like: str, own: YamlWithLines, shipped: Mapping[str, Path], where: str) -> str:
    if like in shipped:
        return str(shipped[like])
    local = Path(own.path).parent / like
    if local.is_file():
        return str(local)
    raise ConfigError(
        f"{where}: like: no scenario or file '{like}'; {nearest(like, sorted(shipped))}"
    )


def _known(lined: YamlWithLines, place: Sequence[str | int]) -> list[str | int]:
    known = list(place)
    while known and tuple(known) not in lined.lines:
        known.pop()
    return known


class _Builder:
    """Builder of a scenario without its variants, which collects all faults."""

    def __init__(self, spec: ScenarioSpec, name: str, folder: Path | None) -> None:
        self.spec = spec
        self.name = spec.name or name
        self.folder = folder
        self.faults: list[Fault] = []

    def scenario(self) -> Scenario | None:
        spec = self.spec
        cluster = self._cluster()
        starts_at_s = self._starts_at_s()
        steps = {
            "budget": self._steps("budget", budget_steps),
            "price": self._steps("price", price_steps),
            "carbon": self._steps("carbon", carbon_steps),
        }
        self._check_policies()
        if cluster is not None:
            self._check_types(cluster)
        if cluster is None or self.faults:
            return None
        fault = budget_fault(steps["budget"], cluster)
        if fault:
            self.faults.append((("budget",), fault))
            return None
        return Scenario(
            name=self.name,
            description=spec.description,
            cluster=cluster,
            jobs=spec.jobs if self.folder is None else spec.jobs.located(self.folder),
            oracle=spec.oracle if self.folder is None else spec.oracle.located(self.folder),
            engine=spec.engine,
            budget=steps["budget"],
            price=steps["price"],
            carbon=steps["carbon"],
            starts_at_s=starts_at_s,
            policies=tuple(spec.policies),
            seeds=tuple(spec.seeds),
        )

    def _cluster(self) -> Cluster | None:
        given = self.spec.cluster
        try:
            if isinstance(given, dict):
                cluster = self._inline(given)
            else:
                local = None if self.folder is None else self.folder / given
                is_local = local is not None and local.is_file()
                cluster = load_cluster(str(local) if is_local else given)
        except ConfigError as error:
            self.faults.append((("cluster",), str(error)))
            return None
        failures = self.spec.engine.failures
        if cluster is None or failures is None:
            return cluster
        found, faults = build_failures(failures, cluster, ("engine", "failures"))
        self.faults += faults
        return replace(cluster, failures=found)

    def _inline(self, data: Mapping[str, Any]) -> Cluster | None:
        try:
            spec = ClusterSpec.model_validate(data)
        except ValidationError as error:
            faults = validation_errors(error, ClusterSpec)
            self.faults += [(("cluster", *place), message) for place, message in faults]
            return None
        cluster, faults = build_cluster(spec, name=self.name.partition("/")[0], folder=self.folder)
        self.faults += [(("cluster", *place), message) for place, message in faults]
        return cluster

    def _starts_at_s(self) -> float:
        if self.spec.starts_at is None:
            return 0.0
        try:
            return clock_s(self.spec.starts_at)
        except StepsError as error:
            self.faults.append((("starts_at",), str(error)))
            return 0.0

    def _check_policies(self) -> None:
        names = set()
        for number, given in enumerate(self.spec.policies):
            try:
                name = policy_from(given).name
            except ConfigError as error:
                self.faults.append((("policies", number), str(error)))
                continue
            if name in names:
                self.faults.append((("policies", number), f"{name} is given twice; keep one"))
            names.add(name)

    def _check_types(self, cluster: Cluster) -> None:
        """Check that the cluster has the GPU types of all jobs; others would wait for ever."""
        known = [kind.name for kind in cluster.types]
        for number, model in enumerate(self.spec.jobs.models):
            for name in model.types:
                if name not in known:
                    said = (
                        f"cluster {cluster.name} has no GPU type '{name}'; {nearest(name, known)}"
                    )
                    self.faults.append((("jobs", "models", number, "types"), said))

    def _steps(
        self, name: str, read: Callable[[Any, Path | None], SourcedSteps]
    ) -> SourcedSteps | None:
        value = getattr(self.spec, name)
        if value is None:
            return None
        try:
            return read(value, self.folder)
        except StepsError as error:
            self.faults.append(((name, *error.place), str(error)))
            return None


SHIPPED = Path(__file__).with_name("shipped")
CHANGED_FILES = ("jobs.trace.file", "oracle.throughputs", "oracle.cap_curves")
"""Fields with file names."""


def load_scenario(name: str, changes: Mapping[str, Any] | None = None) -> Scenario:
    """Load the scenario of a YAML file, or a shipped one by name (docs/scenarios.md).

    `changes` maps dotted paths of fields to values that override the file, such as
    `{"jobs.trace.file": "jobs.csv"}`; a trace replaces generated jobs.

    Raises:
        ConfigError: `FILE:LINE: field: what is wrong and what is allowed`, one line per fault.
    """
    shipped = {path.stem: path for path in SHIPPED.glob("*.yaml")}
    path = name
    if not name.endswith((".yaml", ".yml")) and not Path(name).is_file():
        if name not in shipped:
            raise ConfigError(
                f"no scenario called {name!r}: {nearest(name, sorted(shipped))}; or give the path "
                "of a YAML file (docs/scenarios.md)"
            )
        path = str(shipped[name])
    source = read_layers(path, shipped)
    if not source.data:
        raise ConfigError(
            f"{name}: is empty; a scenario has at least 'cluster' and 'jobs' (docs/scenarios.md)"
        )
    data: Mapping[str, Any] = source.data
    for place, value in (changes or {}).items():
        # files in `changes` are relative to the working directory, not to the scenario file
        here = place in CHANGED_FILES and isinstance(value, str)
        data = set_field(data, place, str(user_path(value).absolute()) if here else value)
        if place == "jobs.trace.file":
            data = {**data, "jobs": {k: v for k, v in data["jobs"].items() if k != "generate"}}
    _check_trace(data, source)
    return scenario_from(data, source, name=Path(path).stem)


def shipped_scenarios() -> dict[str, str]:
    """Return the names and descriptions of the shipped scenarios."""
    names = sorted(path.stem for path in SHIPPED.glob("*.yaml"))
    return {name: read_yaml(str(SHIPPED / f"{name}.yaml")).data["description"] for name in names}


def scenario_from(
    data: Mapping[str, Any], source: YamlWithLines | None = None, *, name: str = "scenario"
) -> Scenario:
    """Build a scenario from plain data; `source` gives the line numbers of its fields.

    Raises:
        ConfigError: one line per fault.
    """
    spec = ScenarioSpec.read(_with_horizon(data), source, name)
    folder = None if source is None else Path(source.path).parent
    builder = _Builder(spec, name, folder)
    whole = builder.scenario()
    if whole is None:
        raise ConfigError(format_errors(builder.faults, source, otherwise=name))
    plain = {key: value for key, value in data.items() if key != "variants"}
    variants = {
        variant: _variant(plain, source, whole.name, variant, changes)
        for variant, changes in spec.variants.items()
    }
    return replace(whole, variants=variants)


def _variant(
    data: Mapping[str, Any],
    source: YamlWithLines | None,
    name: str,
    variant: str,
    changes: Mapping[str, Any],
) -> Scenario:
    try:
        for place, value in changes.items():
            data = set_field(data, place, value)
        return scenario_from({**data, "name": f"{name}/{variant}"}, source, name=name)
    except ConfigError as error:
        where = name if source is None else source.where(("variants", variant))
        raise ConfigError(f"{where}: variants.{variant}: {error}") from None


def _check_trace(data: Mapping[str, Any], source: YamlWithLines) -> None:
    """Check that a trace is given: a scenario may leave the file to the command line."""
    jobs = data.get("jobs")
    trace = jobs.get("trace") if isinstance(jobs, Mapping) else None
    if isinstance(trace, Mapping) and "file" not in trace:
        where = source.where(("jobs", "trace"))
        raise ConfigError(f"{where}: jobs.trace: no trace given; use --trace FILE, or set 'file'")


def _with_horizon(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Set the default horizon of generated jobs: the end of the simulation."""
    engine, jobs = data.get("engine"), data.get("jobs")
    horizon = engine.get("horizon") if isinstance(engine, Mapping) else None
    made = jobs.get("generate") if isinstance(jobs, Mapping) else None
    endless = horizon is None or horizon == "none"
    if endless or not isinstance(made, Mapping) or {"horizon", "count"} & made.keys():
        return data
    return set_field(data, "jobs.generate.horizon", horizon)
