"""Data sheets of GPUs, and the files that describe them."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from wattloop.core.errors import ConfigError
from wattloop.core.files import config_folder, is_trusted
from wattloop.core.yaml_spec import YamlWithLines, nearest, read_yaml

# Table of GPUs with their published figures, and lookup by the names that people use.
#
# `gpu_data/NAME.yaml` holds one GPU each, with the source of every figure. Files of the user, in
# `~/.config/wattloop/gpus`, override figures of known GPUs and add others (docs/gpus.md).

SHIPPED = Path(__file__).with_name("gpu_data")


@dataclass(frozen=True, slots=True)
class Gpu:
    """Facts of one GPU model, as a process sees it: one die of a board with two.

    Attributes:
        name: short name, such as `h200`; the key of the table.
        product: name as the driver prints it.
        vendor: `nvidia`, `amd` or `intel`.
        architecture: `kepler`, `pascal`, `volta`, `turing`, `ampere`, `ada`, `hopper`,
            `blackwell`, `cdna`, `cdna2`, `cdna3`, `cdna4`, `gaudi3`.
        matrix_flops: dense peak of the matrix units by dtype (`tf32`, `bf16`, `fp16`, `fp8`,
            `fp4`, `fp64`, on AMD also `fp32`); a dtype they lack is absent.
        vector_flops: peak of the ordinary units by dtype (`fp32`, `fp16`, `bf16`, `fp64`).
        memory_bytes, memory_bytes_s: size (what is left of it with ECC) and bandwidth of the GPU's
            memory.
        memory_type: `gddr5`, `gddr6`, `gddr6x`, `gddr7`, `hbm2`, `hbm2e`, `hbm3`, `hbm3e`.
        l2_bytes: last-level cache.
        sms: streaming multiprocessors or compute units.
        base_clock_mhz, boost_clock_mhz: of the SMs; the peaks hold at boost.
        tdp_w, cap_min_w, cap_max_w: factory power limit and the range it may be set to.
        idle_w: drawn with a context open and nothing to do; None when it is not published.
        link_bytes_s: NVLink or Infinity Fabric of one GPU, both directions together; 0 for none.
        link_gpus: how many GPUs of a node that link joins; 0 for none.
        pcie_bytes_s: one direction.
        sources: field -> where its figure comes from (`*` for all others).
        aliases: other names of it.
    """

    name: str
    product: str
    vendor: str
    architecture: str
    matrix_flops: Mapping[str, float]
    vector_flops: Mapping[str, float]
    memory_bytes: float
    memory_bytes_s: float
    l2_bytes: float
    sms: int
    base_clock_mhz: float
    boost_clock_mhz: float
    tdp_w: float
    cap_min_w: float
    cap_max_w: float
    idle_w: float | None
    link_bytes_s: float
    link_gpus: int
    pcie_bytes_s: float
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)
    aliases: tuple[str, ...] = ()
    memory_type: str = ""

    def __hash__(self) -> int:
        """By name, although the peaks are dictionaries: placements are keys of caches."""
        return hash((self.name, self.product, self.tdp_w, self.memory_bytes))

    def source(self, figure: str) -> str:
        """Return the source of this field's figure."""
        return self.sources.get(figure) or self.sources.get("*", "")


def gpu_named(text: str) -> Gpu:
    """Return the GPU called `text`: `h200`, `NVIDIA H200`, `A100-SXM4-40GB`, or a path
    `my_gpu.yaml`.

    Case, maker, punctuation and the number after SXM do not matter. A name that fits several
    variants means the one with the highest power limit (SXM rather than PCIe), then with most
    memory: `a100` is the SXM one with 80 GB (see `variant_assumed`).

    Raises:
        ConfigError: no such GPU, with near names; or a file of the user is wrong, with its line.
    """
    if _is_path(text):
        return read_user_gpu(text, {gpu.name: gpu for gpu in known_gpus()})
    exact = _key(text)
    # a name and nothing else: `../x` and `/tmp/x` would be other files
    is_name = re.fullmatch(r"[a-z0-9-]+", exact) is not None
    if is_name and not _user_files() and (SHIPPED / f"{exact}.yaml").is_file():
        return _shipped(exact)  # the usual case reads one file
    matches = _matches(text)
    if matches:
        return matches[0]
    raise ConfigError(f"no GPU called {text!r}: {_advice(text)}")


def gpu_of_table(name: str) -> Gpu:
    """Return a GPU by its name alone, for untrusted names: files are not opened.

    Raises:
        ConfigError: no such GPU, or the name of a file.
    """
    if _is_path(name):
        raise ConfigError(f"gpu {name!r}: name one of the table; files are not read here")
    return gpu_named(name)


def variant_assumed(text: str) -> str:
    """Return a note for a name that fits several variants; empty when it fits one."""
    if _is_path(text):
        return ""
    matches = _matches(text)
    if len(matches) < 2:
        return ""
    others = ", ".join(gpu.name for gpu in matches[1:])
    return f"'{text}' is taken as {matches[0].name} ({matches[0].product}); others are {others}"


def known_gpus() -> tuple[Gpu, ...]:
    """Return every GPU of the table and of the user's files, by name."""
    files = _user_files()
    return _known(tuple((path, _changed_ns(path)) for path in files))


def user_folder() -> Path:
    """Return the folder of the user's own GPU files."""
    return config_folder() / "gpus"


def _user_files() -> list[Path]:
    try:
        files = sorted(path for path in user_folder().iterdir() if _is_path(path.name))
        return [path for path in files if is_trusted(path)]
    except OSError:  # what may not be looked at is not there
        return []


def _changed_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


@lru_cache(maxsize=4)
def _known(user: tuple[tuple[Path, int], ...]) -> tuple[Gpu, ...]:
    table = {path.stem: _shipped(path.stem) for path in sorted(SHIPPED.glob("*.yaml"))}
    if user:
        for path, _ in user:
            gpu = read_user_gpu(str(path), table)
            table[gpu.name] = gpu
    return tuple(table[name] for name in sorted(table))


@lru_cache(maxsize=64)
def _shipped(name: str) -> Gpu:

    return read_shipped_gpu(SHIPPED / f"{name}.yaml")


def _is_path(text: str) -> bool:
    return text.endswith((".yaml", ".yml"))


def _matches(text: str) -> list[Gpu]:
    """Return GPUs that carry all words of the name, the best match first."""
    wanted = _words(text)
    if not wanted:
        return []
    gpus = known_gpus()
    for gpu in gpus:
        if wanted in (_words(name) for name in (gpu.name, gpu.product, *gpu.aliases)):
            return [gpu]
    found = [gpu for gpu in gpus if wanted <= _all_words(gpu)]
    # `100` alone, or `sxm`, names nothing: the model itself has to be among the words.
    found = [gpu for gpu in found if _words(gpu.name.partition("-")[0]) <= wanted]
    return sorted(found, key=lambda gpu: (-gpu.tdp_w, -gpu.memory_bytes, gpu.name))


def _all_words(gpu: Gpu) -> frozenset[str]:
    words = _words(gpu.name) | _sizes(gpu.memory_bytes)
    return words.union(*(_words(name) for name in (gpu.product, *gpu.aliases)))


def _sizes(memory_bytes: float) -> frozenset[str]:
    """GB on the box: what is seen rounded up, to 4 or 8 as well, since ECC takes some of it."""
    return frozenset(str(step * math.ceil(memory_bytes / 2**30 / step)) for step in (1, 4, 8))


_NOISE = frozenset(
    (
        "nvidia",
        "amd",
        "intel",
        "tesla",
        "instinct",
        "quadro",
        "geforce",
        "corporation",
        "gpu",
        "oam",
    )
) | {"accelerator", "hbm2", "hbm2e", "hbm3", "hbm3e"}
"""Words of a product's name that tell no two GPUs of the table apart."""


def _words(text: str) -> frozenset[str]:
    """`NVIDIA A100-SXM4-40GB` and `a100 sxm 40` have the same words."""
    plain = re.sub(r"\((?:r|tm)\)", " ", text.lower())
    plain = re.sub(r"(sxm)\d?|(pcie|pci-e)", lambda m: f" {'sxm' if m[1] else 'pcie'} ", plain)
    plain = re.sub(r"(\d+)\s*gi?b(?![a-z0-9])", r" \1 ", plain)
    plain = re.sub(r"\brtx\s*-?\s*(?=\d)", "rtx", plain)
    return frozenset(word for word in re.split(r"[^a-z0-9]+", plain) if word) - _NOISE


def _key(text: str) -> str:
    return "-".join(text.lower().split())


def _advice(text: str) -> str:
    import difflib  # only a wrong name needs it

    names: dict[str, str] = {}
    for gpu in known_gpus():
        for name in (gpu.name, gpu.name.partition("-")[0], gpu.product.lower(), *gpu.aliases):
            names.setdefault(name, gpu.name)
    near = difflib.get_close_matches(" ".join(text.lower().split()), names, n=3, cutoff=0.6)
    known = ", ".join(_unique(gpu.name for gpu in known_gpus()))
    other = "describe another in a YAML file and give its path (docs/gpus.md)"
    if near:
        meant = " or ".join(_unique(names[name] for name in near))
        return f"did you mean {meant}? Known are {known}; {other}"
    return f"known are {known}; {other}"


def _unique(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


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
DTYPES = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "fp4")
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
