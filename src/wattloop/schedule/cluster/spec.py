"""Schema of a cluster file."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from wattloop.schedule.quantities import (
    BytesPerSecond,
    Count,
    PositiveSeconds,
    Seconds,
    Strict,
    Watts,
    not_negative,
    watts,
)

NETWORK_BYTES_S = 25e9
"""Default network: 200 Gbit/s, one InfiniBand HDR port."""


def _host(value: Any) -> Any:
    if value is None:
        raise ValueError(
            "power of a node in addition to its GPUs: give watts, 'typical' for an estimate, or "
            "0 to count GPUs only"
        )
    if value == "typical":
        return value
    return not_negative(watts(value), "watts, 0 or more, or 'typical'")


def _limit(value: Any) -> Any:
    """Validate a power limit; `75%` stays a text, because the GPU's limit is not known here."""
    if isinstance(value, str) and value.strip().endswith("%"):
        share = watts(value.strip().removesuffix("%"))
        if not 0 < share <= 100:
            raise ValueError(f"{value!r} is not between 0% and 100%")
        return f"{share:g}%"
    return None if value is None else not_negative(watts(value), "watts, or a share such as 75%")


def _node(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"write the name or number of a node, not {value!r}")
    return value


class OutageSpec(Strict):
    """Outage of a node."""

    node: Annotated[int | str, BeforeValidator(_node)]
    at_s: Annotated[Seconds, Field(alias="at")]
    for_s: Annotated[PositiveSeconds, Field(alias="for")]


class FailuresSpec(Strict):
    """Known outages, and the rate of further failures."""

    outages: list[OutageSpec] = Field(default_factory=list)
    mtbf_s: Annotated[PositiveSeconds | None, Field(alias="mtbf")] = None
    mttr_s: Annotated[PositiveSeconds | None, Field(alias="mttr")] = None
    until_s: Annotated[PositiveSeconds | None, Field(alias="until")] = None

    @model_validator(mode="after")
    def _both_or_none(self) -> "FailuresSpec":
        if (self.mtbf_s is None) != (self.mttr_s is None):
            raise ValueError("mtbf (mean time between failures) and mttr (to repair) go together")
        return self


class GroupSpec(Strict):
    """Group of identical nodes."""

    name: str | None = None
    gpu: Annotated[str, Field(min_length=1)]
    type: Annotated[str | None, Field(min_length=1)] = None
    nodes: Annotated[Count, Field(le=1_000_000)]
    gpus_per_node: Annotated[Count, Field(le=1_024)]
    host_w: Annotated[float | str, BeforeValidator(_host)]
    host_busy_w_per_gpu: Watts | None = None
    idle_w: Watts | None = None
    limit_w: Annotated[float | str | None, BeforeValidator(_limit)] = None
    link_bytes_s: BytesPerSecond | None = None

    @model_validator(mode="before")
    @classmethod
    def _host_said(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.keys() <= cls.model_fields.keys():
            value.setdefault("host_w", None)  # so that its own message is given
        return value


class ClusterSpec(Strict):
    """Groups of nodes, their network and their failures."""

    name: str = ""
    description: str = ""
    groups: Annotated[list[GroupSpec], Field(min_length=1)]
    network_w: Watts = 0.0
    network_bytes_s: BytesPerSecond = NETWORK_BYTES_S
    failures: FailuresSpec | None = None
    sources: dict[str, str] = Field(default_factory=dict)
