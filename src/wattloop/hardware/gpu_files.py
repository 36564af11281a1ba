"""GPU data files in YAML: the shipped ones, and the user's with errors by file, line and field."""

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from wattloop.core.errors import ConfigError
from wattloop.core.yaml_spec import YamlWithLines, nearest, read_yaml
from wattloop.hardware.gpus import Gpu

TEXTS = ("name", "product", "vendor", "architecture", "memory_type")
PEAKS = ("matrix_flops", "vector_flops")
POSITIVE = (
    *("memory_bytes", "memory_bytes_s", "l2_bytes", "sms"),
    *("base_clock_mhz", "boost_clock_mhz", "tdp_w", "cap_max_w", "pcie_bytes_s"),
)
NOT_NEGATIVE = ("cap_min_w", "link_bytes_s", "link_gpus", "idle_w")
WHOLE = ("sms", "link_gpus")
LEAST = {
    **{"memory_bytes": 1e8, "l2_bytes": 1e4, "base_clock_mhz": 10.0, "boost_clock_mhz": 10.0},
    **dict.fromkeys(("memory_bytes_s", "pcie_bytes_s", "link_bytes_s"), 1e8),
    **dict.fromkeys(PEAKS, 1e8),
}
"""No GPU has less: 80 for 80 GB, or 989 for 989 TFLOPS, is in the wrong unit."""
DTYPES = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8")
FIELDS = tuple(f.name for f in fields(Gpu))


def read_shipped_gpu(path: Path) -> Gpu:
    """Read a file of the package: its content is tested, so it is not validated again."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    data = yaml.load(path.read_text(encoding="utf-8"), Loader=loader)
    return Gpu(**{**data, "aliases": tuple(data.get("aliases", ()))})


def read_user_gpu(name: str, known: Mapping[str, Gpu]) -> Gpu:
    """Read a file of the user: a whole GPU, or some figures of a known one.

    A file called like a known GPU (or whose `name` is one's) changes what it gives;
    `like: h100-sxm` starts a new GPU from another one.

    Raises:
        ConfigError: `FILE:LINE: field ...`, with what is allowed.
    """
    lined = read_yaml(name)
    values = {key: _checked(lined, str(key), value) for key, value in lined.data.items()}
    like = values.pop("like", None)
    own_name = values.setdefault("name", Path(name).stem.lower())
    if like is not None and like not in known:
        variants = [other for other in known if other.startswith(f"{like}-")]
        near = f"use {' or '.join(variants)}" if variants else nearest(like, tuple(known))
        raise _error(lined, "like", f"is not a known GPU; {near}")
    base = known.get(like or own_name)
    stated = values.pop("sources", {})
    said = stated.pop("*", f"user file {name}")
    sources = {**dict.fromkeys(set(values) - {"name", "aliases"}, said), **stated}
    if base is None:
        optional = {"sources", "aliases", "idle_w", "memory_type"}
        missing = [f for f in FIELDS if f not in values and f not in optional]
        if missing:
            raise ConfigError(
                f"{name}: GPU '{own_name}' is not in the table, so its file has to give "
                f"{', '.join(missing)}; or start from a known GPU with 'like: NAME'"
            )
        gpu = Gpu(**{"idle_w": None, **values}, sources={**sources, "*": said})
    else:
        if like is not None:
            values = {"aliases": (), "product": own_name, **values}
        gpu = replace(base, **values, sources={**base.sources, **sources})
    _check_order(lined, gpu, "cap_min_w", "cap_max_w")
    _check_order(lined, gpu, "tdp_w", "cap_max_w")
    _check_order(lined, gpu, "cap_min_w", "tdp_w")
    _check_order(lined, gpu, "base_clock_mhz", "boost_clock_mhz")
    if gpu.idle_w is not None:
        _check_order(lined, gpu, "idle_w", "tdp_w")
    return gpu


def _checked(lined: YamlWithLines, key: str, value: Any) -> Any:
    """Return the value of one field, or raise its fault."""
    if key in (*TEXTS, "like"):
        if not isinstance(value, str) or not value.strip():
            raise _error(lined, key, f"must be text, not {value!r}")
        return value.strip() if key == "product" else value.strip().lower()
    if key == "idle_w" and value is None:
        return None
    if key in POSITIVE or key in NOT_NEGATIVE:
        number = _number(lined, (key,), value, zero=key in NOT_NEGATIVE)
        if key in WHOLE and not number.is_integer():
            raise _error(lined, key, f"must be a whole number, not {value!r}")
        return int(number) if key in WHOLE else number
    if key in PEAKS:
        return _peaks(lined, key, value)
    if key == "sources":
        if not isinstance(value, Mapping):
            raise _error(lined, key, "must be 'field: where it comes from' lines")
        for figure in value:
            if figure not in (*FIELDS, "*"):
                raise _error(lined, (key, str(figure)), nearest(str(figure), FIELDS))
        return {str(figure): str(text) for figure, text in value.items()}
    if key == "aliases":
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise _error(lined, key, "must be a list of names, such as [gh200]")
        return tuple(value)
    raise _error(lined, key, f"is unknown; {nearest(str(key), (*FIELDS, 'like'))}")


def _peaks(lined: YamlWithLines, key: str, value: Any) -> dict[str, float]:
    if not isinstance(value, Mapping):
        raise _error(lined, key, "must be 'dtype: FLOP/s' lines, such as 'fp32: 67e12'")
    for dtype in value:
        if dtype not in DTYPES:
            raise _error(lined, (key, str(dtype)), f"is unknown; use {', '.join(DTYPES)}")
    if key == "vector_flops" and "fp32" not in value:
        raise _error(lined, key, "needs fp32, which every GPU has")
    return {d: _number(lined, (key, d), number) for d, number in value.items()}


def _number(
    lined: YamlWithLines, place: tuple[str, ...], value: Any, *, zero: bool = False
) -> float:
    try:
        # YAML takes 67e12 for text: it requires a dot and a sign. Users need not know that.
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number) or number < 0 or (number == 0 and not zero):
        what = "a number, 0 or more" if zero else "a number above 0"
        raise _error(lined, place, f"must be {what}, not {value!r}")
    if 0 < number < LEAST.get(place[0], 0.0):
        unit = "MHz" if place[0].endswith("_mhz") else "FLOP/s" if place[0] in PEAKS else "bytes"
        unit += " per second" if place[0].endswith("bytes_s") else ""
        raise _error(lined, place, f"{number:g} is too little for a GPU; it is in {unit}")
    return number


def _check_order(lined: YamlWithLines, gpu: Gpu, low: str, high: str) -> None:
    lower, upper = getattr(gpu, low), getattr(gpu, high)
    if lower > upper:
        key = low if low in lined.data else high
        raise _error(lined, key, f"{low} {lower:g} is above {high} {upper:g}")


def _error(lined: YamlWithLines, place: str | tuple[str, ...], what: str) -> ConfigError:
    place = (place,) if isinstance(place, str) else place
    return ConfigError(f"{lined.where(place)}: {'.'.join(place)}: {what}")
