"""Configuration of an agent (`agent.yaml`), and its node, folder, settings and clock."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from wattloop.core.clock import Clock, RealClock
from wattloop.core.errors import ConfigError
from wattloop.core.settings import Settings
from wattloop.core.yaml_spec import YamlWithLines, format_errors, read_yaml, validation_errors
from wattloop.fleet.agent.job_facts import minor_numbers, slurm_cpus
from wattloop.fleet.delivery.client import NODE_NAME, DeliveryOptions
from wattloop.hardware.host import Host
from wattloop.measure.metrics_endpoint import check_address

MOST_GPUS = 256
CAP = re.compile(r"\s*(-\d{1,2}(\.\d+)?\s*%|\d{1,3}(\.\d+)?\s*%|\d{1,5}(\.\d+)?\s*W?)\s*")


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class DeliverConfig(_Part):
    """Delivery of runs to the server."""

    url: str
    token_file: Path | None = None
    every_s: Annotated[float, Field(gt=0, le=3_600)] = 1.0
    limit_b: Annotated[int, Field(ge=0)] = 2 * 1024**3
    ca_file: Path | None = None


class ControlConfig(_Part):
    """Power caps of jobs, through the control daemon.

    Attributes:
        socket: of the daemon; its usual place unless given.
        default_cap: for jobs without a cap of their own: `-10%` (of the default limit), `250 W`.
        job_gpus: file with the owners of GPUs, for the daemon.
        recap_s: interval at which caps of running jobs are read again, for policies that change
            them; never unless given.
    """

    socket: str | None = None
    default_cap: str | None = None
    job_gpus: str | None = None
    recap_s: Annotated[float, Field(ge=5.0, le=86_400)] | None = None

    @field_validator("default_cap", mode="before")
    @classmethod
    def _a_cap(cls, value: Any) -> Any:
        if value is not None and not CAP.fullmatch(str(value)):
            raise ValueError("write it as -10%, 80% or 250 W")
        return value if value is None else str(value)


class SaveConfig(_Part):
    """Rules of the saver of jobs, which lowers caps where a job becomes hardly slower.

    Attributes:
        max_slowdown: a job takes at most this much longer: `3%`.
        least_cap: no cap below this: `200 W`, or `60%` of the limit that was found.
        clocks: whether SM clocks may be set as well as caps.
        observe: never set anything; say what could be saved.
        exclude_users, exclude_partitions: whose jobs are left alone.
    """

    max_slowdown: str = "3%"
    least_cap: str | None = None
    clocks: bool = False
    observe: bool = False
    exclude_users: tuple[str, ...] = ()
    exclude_partitions: tuple[str, ...] = ()

    @field_validator("max_slowdown", mode="before")
    @classmethod
    def _a_share(cls, value: Any) -> Any:
        found = re.fullmatch(r"\s*(\d{1,2}(?:\.\d+)?)\s*%\s*", str(value))
        if found is None:
            raise ValueError("write it as 3%")
        return f"{found[1]}%"

    @field_validator("least_cap", mode="before")
    @classmethod
    def _a_cap(cls, value: Any) -> Any:
        if value is not None and (not CAP.fullmatch(str(value)) or "-" in str(value)):
            raise ValueError("write it as 200 W or 60%")
        return value if value is None else str(value)

    @property
    def slowdown(self) -> float:
        """The largest slowdown as a share."""
        return float(self.max_slowdown.rstrip("%")) / 100

    def least_w(self, found_w: float) -> float:
        """Return the least cap of GPUs whose limit is `found_w`."""
        if self.least_cap is None:
            return 0.0
        text = self.least_cap.replace(" ", "")
        share = text.endswith("%")
        return found_w * float(text[:-1]) / 100 if share else float(text.rstrip("W"))


class KubernetesConfig(_Part):
    """Kubernetes instead of Slurm as the source of jobs: containers of pods.

    Attributes:
        node: name of the node object; the agent's node unless given.
        api: `https://host:6443`; in a pod, the cluster's own unless given.
        token_file, ca_file: of the API server, where `api` is given.
        socket: of the kubelet's PodResources API.
        gpus: identifier of a GPU as the kubelet gives it -> its number in `wattloop devices`,
            where the driver does not say.
    """

    node: str | None = None
    api: str | None = None
    token_file: Path | None = None
    ca_file: Path | None = None
    socket: str = "/var/lib/kubelet/pod-resources/kubelet.sock"
    gpus: dict[str, int] = Field(default_factory=dict)


class AgentConfig(_Part):
    """Configuration of one agent.

    Attributes:
        folder: folder of events, journals and state; only root may enter.
        interval_s: seconds between readings.
        cluster: name of the cluster, if Slurm does not give it.
        virtual_gpus, virtual_state, virtual_model: virtual cards of this node, for trials.
        devices, meters: sensors to read; all unless given.
        cpus: CPUs that Slurm hands out on this node; Slurm is asked unless given.
        cpu_idle_w: power of one CPU package with nothing to do, where it is known.
        gpus: number of a GPU in Slurm -> its number in `wattloop devices`.
        cgroup_root: folder of the control groups.
        slurm_bin: folder of squeue, sinfo and scontrol, where they are not in the path.
        unallocated_hours: after how long a new run is begun for what no job used.
        store: store of finished runs without `deliver`.
        store_file: file that holds its address, such as a mounted Secret.
        deliver, control: the fleet's server, the control daemon.
        metrics: where to listen for Prometheus (a port, or host:port), or the URL of an OTLP
            collector; nowhere unless given.
        save: rules of the saver of jobs; none runs unless given.
        kubernetes: pods instead of Slurm's jobs, where given.
    """

    folder: str = "/var/lib/wattloop/{node}"
    interval_s: Annotated[float, Field(ge=0.05, le=60.0)] = 1.0
    cluster: str = ""
    virtual_gpus: Annotated[int, Field(ge=0, le=64)] = 0
    virtual_state: str | None = None
    virtual_model: str | None = None
    devices: tuple[str, ...] = ()
    meters: tuple[str, ...] = ()
    cpus: Annotated[int, Field(ge=1, le=65_536)] | None = None
    cpu_idle_w: Annotated[float, Field(ge=0, le=2_000)] | None = None
    gpus: dict[int, int] = Field(default_factory=dict)
    cgroup_root: str = "/sys/fs/cgroup"
    slurm_bin: str = ""
    unallocated_hours: Annotated[float, Field(gt=0, le=24 * 31)] = 24.0
    store: str | None = None
    store_file: Path | None = None
    metrics: str | None = None
    deliver: DeliverConfig | None = None
    control: ControlConfig | None = None
    save: SaveConfig | None = None
    kubernetes: KubernetesConfig | None = None

    @field_validator("metrics", mode="before")
    @classmethod
    def _an_address(cls, value: Any) -> Any:
        text = None if value is None else str(value)
        if text is not None:
            try:
                check_address(text)
            except ConfigError as error:
                raise ValueError(str(error)) from None
        return text

    @field_validator("devices", "meters", mode="before")
    @classmethod
    def _names(cls, value: Any) -> Any:
        return [part.strip() for part in value.split(",")] if isinstance(value, str) else value

    def of_node(self, node: str) -> "AgentConfig":
        """Replace `{node}` by the node's name everywhere."""
        if not NODE_NAME.fullmatch(node):
            raise ConfigError(f"--node {node!r}: letters, digits, '.', '_' and '-' only")
        return AgentConfig.model_validate(_filled(self.model_dump(mode="json"), node))

    def delivery_options(self, node: str) -> DeliveryOptions:
        assert self.deliver is not None
        folder = self.place / "journals"
        return DeliveryOptions(node=node, folder=folder, **self.deliver.model_dump())

    @property
    def place(self) -> Path:
        return Path(self.folder)


def load_agent_config(path: str | None, node: str) -> AgentConfig:
    """Return the file's content for one node; the defaults without a file.

    Raises:
        ConfigError: `FILE:LINE: field: what is wrong and what is allowed`, one line per fault.
    """
    source = YamlWithLines("agent.yaml", {}, {}) if path is None else read_yaml(path)
    try:
        return AgentConfig.model_validate(source.data).of_node(node)
    except ValidationError as error:
        raise ConfigError(
            format_errors(validation_errors(error, AgentConfig), source, otherwise=path or "")
        ) from None


def _filled(value: Any, node: str) -> Any:
    if isinstance(value, str):
        return value.replace("{node}", node)
    if isinstance(value, dict):
        return {key: _filled(one, node) for key, one in value.items()}
    return value


@dataclass(frozen=True, slots=True)
class AgentContext:
    """Node, folder, settings and clock of one agent.

    Attributes:
        gpu_numbers: Slurm's number of a GPU -> its number here, where they may differ.
        cpus: CPUs that Slurm hands out.
    """

    node: str
    config: AgentConfig
    settings: Settings
    host: Host
    clock: Clock
    gpu_numbers: Mapping[int, int]
    cpus: int

    @property
    def folder(self) -> Path:
        return self.config.place

    @property
    def journals(self) -> Path:
        return self.folder / "journals"

    @property
    def store(self) -> str:
        """Return the store of finished runs that are not delivered to a server.

        Raises:
            ConfigError: its file cannot be read.
        """
        file = self.config.store_file
        if file is not None:
            try:
                return file.read_text("utf-8").strip()
            except (OSError, ValueError) as error:
                raise ConfigError(f"store_file {file}: {type(error).__name__}") from None
        return self.config.store or str(self.folder / "runs.db")

    def uptime_s(self) -> float | None:
        """Return the time since boot as prologs read it."""
        text = self.host.read_text("proc", "uptime") or ""
        found = re.match(r"\d+(\.\d+)?", text)
        return float(found.group()) if found else None


def agent_context(
    config: AgentConfig,
    node: str,
    settings: Settings,
    *,
    host: Host | None = None,
    clock: Clock | None = None,
) -> AgentContext:
    """Return the context of a node; virtual cards are set in the environment for their meters."""
    host = host or Host.from_environment()
    if config.virtual_state is not None:
        os.environ["WATTLOOP_VIRTUAL_STATE"] = config.virtual_state
    if config.virtual_model is not None:
        os.environ["WATTLOOP_VIRTUAL_MODEL"] = config.virtual_model
    given = {
        "interval_s": config.interval_s,
        "virtual_gpus": config.virtual_gpus or None,
        "devices": list(config.devices) or None,
        "meters": list(config.meters) or None,
        "store": config.store,
    }
    numbers: Mapping[int, int] = config.gpus
    if config.kubernetes is not None:
        numbers = {number: number for number in range(MOST_GPUS)}  # its events have our numbers
    elif not numbers and not config.virtual_gpus:
        numbers = minor_numbers(host)
    cpus = config.cpus or os.cpu_count() or 1
    if config.kubernetes is None:
        cpus = config.cpus or slurm_cpus(node, config.slurm_bin) or cpus
    return AgentContext(
        node=node,
        config=config,
        settings=settings.overridden(given, "agent.yaml"),
        host=host,
        clock=clock or RealClock(),
        gpu_numbers=numbers,
        cpus=cpus,
    )
