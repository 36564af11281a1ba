"""Processors: their packages and design power, and power by utilisation."""

import csv
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from wattloop.hardware.host import Host, read_whole, whole_number

# Identification of the processor, and its TDP.
SERVER_W_PER_THREAD = 3.7
"""Median of TDP / threads over the server parts of the table with 32 threads or more."""
UNKNOWN_TDP_ERROR = 0.5
"""Nine in ten server and desktop parts of the table lie within this fraction of the guess from
their core count, eight in ten server parts of 32 threads or more within it of their threads'."""
SERVER_BASE_W, SERVER_W_PER_CORE = 100.0, 4.0
"""A line through the medians of the table's server parts, by core count."""


class Processor(NamedTuple):
    """Facts of one processor package.

    Attributes:
        name: model as people know it.
        cores, threads: of the whole package, even where a virtual machine sees a part of it.
        tdp_w: thermal design power of the package.
        base_mhz: the clock that the maker guarantees at TDP; None when unknown.
        kind: `server` (also workstations and Threadripper) or `client`.
        tdp_error: relative half-width of `tdp_w`, 0 when published.
        note: where the TDP comes from, for people.
    """

    name: str
    cores: int
    threads: int
    tdp_w: float
    base_mhz: float | None
    kind: str
    tdp_error: float = 0.0
    note: str = ""


def processor_named(model_name: str) -> Processor | None:
    """Return the table's entry for a name as the kernel prints it; None when it has none."""
    return _entry(normalise(model_name)) or _mobile_by_suffix(model_name)


def guess_processor(
    model_name: str, *, cores: int, threads: int, vendor_family_model: str = "", virtual: bool
) -> Processor:
    """Return a processor for an unknown name, such as `Intel(R) Xeon(R) Processor @ 2.80GHz`.

    In a virtual machine the generation (CPUID family and model) tells the likely host part; else
    the number of cores decides.
    """
    likely = _LIKELY_HOST.get(vendor_family_model)
    host = _entry(normalise(likely)) if likely and virtual else None
    base_mhz = clock_in_name_mhz(model_name)
    if host is not None:
        return Processor(
            name=model_name,
            cores=host.cores,
            threads=host.threads,
            tdp_w=host.tdp_w,
            base_mhz=base_mhz or host.base_mhz,
            kind="server",
            tdp_error=UNKNOWN_TDP_ERROR,
            note=f"TDP {host.tdp_w:g} W of {host.name}, the likely host of this generation",
        )
    server = virtual or bool(re.search(r"xeon|epyc|neoverse|graviton|ampere", model_name, re.I))
    if server:
        # A part of a host is charged its threads' share, so the sum over guests is one host.
        tdp_w = SERVER_W_PER_THREAD * threads
        if not virtual:
            tdp_w = SERVER_BASE_W + SERVER_W_PER_CORE * cores
    else:
        # Between the classes that desktop parts are sold in: 65 and 95 to 125 W, 65 and 170 W.
        tdp_w = 15.0 if cores <= 2 else 80.0 if cores <= 8 else 115.0
    return Processor(
        name=model_name,
        cores=cores,
        threads=threads,
        tdp_w=tdp_w,
        base_mhz=base_mhz,
        kind="server" if server else "client",
        tdp_error=UNKNOWN_TDP_ERROR,
        note=f"TDP {tdp_w:.0f} W guessed from {cores} cores; set cpu_tdp_w if you know it",
    )


def normalise(model_name: str) -> str:
    """Normalise `Intel(R) Xeon(R) CPU E5-2680 v4 @ 2.40GHz` and `Xeon E5-2680 V4` to one form."""
    text = re.sub(r"\((?:r|tm)\)", " ", model_name.lower())
    text = re.sub(r"\s(?:@|w/|with\s).*", " ", text)
    text = re.sub(r"\b(?:\d+-core|\w+-core)\b.*", " ", text)
    text = re.sub(r"\b\d+(?:st|nd|rd|th) gen\b", " ", text)
    words = [w for w in text.split() if w not in _NOISE]
    if words[-1:] == ["0"]:  # first-generation E5 parts: `E5-2670 0`
        words.pop()
    return " ".join(words)


def clock_in_name_mhz(model_name: str) -> float | None:
    """Intel prints the base clock in the name: `@ 2.40GHz`."""
    match = re.search(r"@\s*([\d.]+)\s*GHz", model_name, re.I)
    return float(match.group(1)) * 1_000 if match else None


_NOISE = frozenset(("intel", "amd", "cpu", "processor", "genuine", "radeon", "graphics", "pro")) | {
    # Metals of Xeon parts; their numbers tell them apart.
    *("bronze", "silver", "gold", "platinum")
}
_LIKELY_HOST = {
    "GenuineIntel-6-45": "Xeon E5-2670",
    "GenuineIntel-6-62": "Xeon E5-2680 v2",
    "GenuineIntel-6-63": "Xeon E5-2680 v3",
    "GenuineIntel-6-79": "Xeon E5-2686 v4",
    "GenuineIntel-6-85": "Xeon Platinum 8259CL",
    "GenuineIntel-6-106": "Xeon Platinum 8370C",
    "GenuineIntel-6-143": "Xeon Platinum 8481C",
    "GenuineIntel-6-207": "Xeon Platinum 8573C",
    "GenuineIntel-6-173": "Xeon 6972P",
    "AuthenticAMD-23-1": "EPYC 7571",
    "AuthenticAMD-23-49": "EPYC 7B12",
    "AuthenticAMD-25-1": "EPYC 7B13",
    "AuthenticAMD-25-17": "EPYC 9B14",
    "AuthenticAMD-26-2": "EPYC 9655",
    "ARM-0x41-0xd0c": "Ampere Altra Q80-30",
    "ARM-0x41-0xd4f": "NVIDIA Grace",
}
"""Vendor, CPUID family and model (for ARM implementer and part) to the host that clouds use."""
_MOBILE_SUFFIX_W = {"u": 15.0, "p": 28.0, "h": 45.0, "hq": 45.0, "hs": 45.0, "hx": 55.0, "y": 7.0}
"""Intel and AMD sell laptop parts in classes of power that the last letters of a name tell."""


@cache
def _entry(wanted: str) -> Processor | None:
    """The row whose normalised name is `wanted`.

    Every measured process comes here once, so only rows that end in a word of `wanted` are
    looked at closely: normalising all of them took 10 ms.
    """
    file = Path(__file__).with_name("cpu_tdp.csv")
    words = set(wanted.split())
    with file.open(encoding="utf-8", newline="") as lines:
        header, *rows = csv.reader(lines)
        for row in rows:
            if row[0].rpartition(" ")[2].lower() in words and normalise(row[0]) == wanted:
                return _processor(dict(zip(header, row, strict=True)))
    return None


def _processor(row: dict[str, str]) -> Processor:
    unpublished = row["source"] == "unpublished"
    return Processor(
        name=row["model"],
        cores=int(row["cores"]),
        threads=int(row["threads"]),
        tdp_w=float(row["tdp_w"]),
        base_mhz=float(row["base_ghz"]) * 1_000,
        kind=row["kind"],
        tdp_error=0.2 if unpublished else 0.0,
        note=f"TDP {row['tdp_w']} W, "
        + ("not published, nearest sibling" if unpublished else f"{row['source']} {row['year']}"),
    )


def _mobile_by_suffix(model_name: str) -> Processor | None:
    """A laptop part that is not in the table, by its class of power."""
    match = re.search(
        r"(?:i[3579]-|ryzen \d (?:pro )?)\d{4,5}(u|p|hq|hs|hx|h|y)\b", model_name, re.I
    )
    if match is None:
        return None
    tdp_w = _MOBILE_SUFFIX_W[match.group(1).lower()]
    cores = 4 if tdp_w < 30 else 8
    return Processor(
        name=model_name,
        cores=cores,
        threads=2 * cores,
        tdp_w=tdp_w,
        base_mhz=clock_in_name_mhz(model_name),
        kind="client",
        tdp_error=0.2,
        note=f"TDP {tdp_w:g} W, class of '{match.group(1).upper()}' parts",
    )


CPU_TREE = "devices/system/cpu"
BOOST_OVER_BASE = 1.2
"""Typical ratio of the highest clock to the guaranteed one, where only the highest is known."""


class Package(NamedTuple):
    """One socket.

    Attributes:
        number: physical id.
        cores: for each visible core, the numbers of its logical CPUs.
        processor: what is known of the part.
        virtual: whether a hypervisor stands between us and it.
        base_mhz: the clock at TDP, as far as known.
        share: part of the package that this machine may use, 1 unless virtual.
    """

    number: int
    cores: tuple[tuple[int, ...], ...]
    processor: Processor
    virtual: bool
    base_mhz: float | None
    share: float

    @property
    def cpus(self) -> tuple[int, ...]:
        return tuple(cpu for core in self.cores for cpu in core)


def read_packages(host: Host) -> tuple[Package, ...]:
    """Return the sockets of this machine in order; empty when /proc/cpuinfo cannot be read."""
    blocks = _blocks(host.read_text("proc", "cpuinfo") or "")
    sockets: dict[int, list[dict[str, str]]] = {}
    for block in blocks:
        sockets.setdefault(_socket(host, block), []).append(block)
    return tuple(_package(host, number, sockets[number]) for number in sorted(sockets))


def clock_mhz(host: Host, cpu: int) -> float | None:
    """Return the current clock of a logical CPU from cpufreq."""
    kilohertz = read_whole(host.sysfs / CPU_TREE / f"cpu{cpu}/cpufreq/scaling_cur_freq")
    return None if kilohertz is None else kilohertz / 1_000


def _package(host: Host, number: int, blocks: list[dict[str, str]]) -> Package:
    cores: dict[str, list[int]] = {}
    for block in blocks:
        cpu = _whole(block["processor"])
        # ARM prints no core id; each logical CPU then is a core.
        cores.setdefault(block.get("core id", f"cpu{cpu}"), []).append(cpu)
    first = blocks[0]
    virtual = "hypervisor" in first.get("flags", "").split() or _is_virtual_arm(host, first)
    threads = len(blocks)
    name = first.get("model name") or _arm_name(first)
    processor = processor_named(name) or guess_processor(
        name,
        cores=len(cores),
        threads=threads,
        vendor_family_model=_generation(first),
        virtual=virtual,
    )
    return Package(
        number=number,
        cores=tuple(tuple(cpus) for cpus in cores.values()),
        processor=processor,
        virtual=virtual,
        base_mhz=_base_mhz(host, blocks, name) or processor.base_mhz,
        share=min(1.0, threads / processor.threads) if virtual else 1.0,
    )


def _socket(host: Host, block: Mapping[str, str]) -> int:
    """Number of the package; ARM kernels print none, but the topology in sysfs has it."""
    number = whole_number(block.get("physical id"))
    if number is None:
        cpu = f"cpu{_whole(block['processor'])}"
        number = read_whole(host.sysfs / CPU_TREE / cpu / "topology/physical_package_id")
    # -1 stands for a package that the firmware does not number
    return max(0, number or 0)


def _blocks(text: str) -> list[dict[str, str]]:
    blocks = []
    for paragraph in re.split(r"\n\s*\n", text):
        pairs = (line.split(":", 1) for line in paragraph.splitlines() if ":" in line)
        block = {key.strip(): value.strip() for key, value in pairs}
        if whole_number(block.get("processor")) is not None:
            blocks.append(block)
    return blocks


def _base_mhz(host: Host, blocks: list[dict[str, str]], name: str) -> float | None:
    cpu = host.sysfs / CPU_TREE / f"cpu{_whole(blocks[0]['processor'])}"
    for file, per_mhz in (("cpufreq/base_frequency", 1_000), ("acpi_cppc/nominal_freq", 1)):
        value = read_whole(cpu / file)
        if value:
            return value / per_mhz
    known = clock_in_name_mhz(name)
    if known is None:
        known_processor = processor_named(name)
        known = known_processor.base_mhz if known_processor else None
    if known is None:
        highest_khz = read_whole(cpu / "cpufreq/cpuinfo_max_freq")
        if highest_khz:
            known = highest_khz / 1_000 / BOOST_OVER_BASE
    return known


def _generation(block: Mapping[str, str]) -> str:
    if "vendor_id" in block:
        return f"{block['vendor_id']}-{block.get('cpu family', '')}-{block.get('model', '')}"
    return f"ARM-{block.get('CPU implementer', '')}-{block.get('CPU part', '')}"


def _arm_name(block: Mapping[str, str]) -> str:
    """ARM kernels print no name, but the part of the core's design."""
    return _ARM_CORES.get(block.get("CPU part", ""), "ARM processor")


_ARM_CORES = {
    "0xd0c": "ARM Neoverse N1 (Graviton2, Ampere Altra)",
    "0xd40": "ARM Neoverse V1 (Graviton3)",
    "0xd4f": "ARM Neoverse V2 (Grace, Graviton4)",
}


def _is_virtual_arm(host: Host, block: Mapping[str, str]) -> bool:
    """ARM has no hypervisor flag; clouds show themselves in the SMBIOS vendor."""
    if "flags" in block:
        return False
    vendor = host.read_text("sys", "class/dmi/id/sys_vendor") or ""
    return vendor in ("Amazon EC2", "Google", "Microsoft Corporation", "QEMU")


def _whole(text: str | None) -> int:
    return whole_number(text) or 0


# Model of CPU package power from core utilisation: one load curve per kind of processor.
#
#     P = TDP min(limit, idle + (start - idle) min(1, n) + (curve(u) - start) phi)         [W]
#
# - curve: a straight line from `start` over `half` (u = 0.5) to `full` (u = 1), shares of TDP with
#   load spread evenly over all threads. `start` is where the line through 10% and 50% meets no
#   load:
#   ring, mesh or fabric are awake once any core runs. n is the number of busy cores.
# - u: the even load that keeps the cores as active as they are; a core's second thread adds
#   `SMT_GAIN` of the first one's power.
# - phi = (f / f_base)^2, 1 where the clock is unknown: dynamic power goes with f V^2, between f (V
# at
#   its floor) and f^3 (V proportional to f). AMD's servers boost as a rule and their curve is of
#   boosted clocks, so phi is at most 1 there.
# - limit: the package limit of the maker's firmware.
#
# The curves are means over published measurements of several hundred servers and some desktop
# processors, `benchmarks/published_cpu_power.py`; none comes from the processors that judge the
# estimate. Sources: docs/adr/0022-the-estimate-learns-from-published-processors.md.

SMT_GAIN = 0.3
CLOCK_EXPONENT = 2.0
LIMIT_SHARE: Mapping[str, float] = MappingProxyType(
    {"server": 1.2, "amd server": 1.0, "client": 1.25, "amd client": 1.35},
)
"""Package limit over TDP: AMD's package power tracking (142 of 105 W, 88 of 65 W; TDP for EPYC),
Intel's usual PL2 over PL1."""
StatedError = tuple[float, float]
"""Half-width: relative to the estimate, and as a share of TDP."""


class LoadCurve(NamedTuple):
    """Package power over TDP with all threads 0, 10, 50 and 100% busy."""

    idle: float
    tenth: float
    half: float
    full: float

    @property
    def start(self) -> float:
        """The line through 10% and 50% at no load: cores asleep, everything else awake."""
        return max(self.idle, self.tenth - (self.half - self.tenth) / 4)

    def at(self, load: float) -> float:
        """The share of TDP at an even load above 0."""
        if load <= 0.5:
            return self.start + (self.half - self.start) * load / 0.5
        return self.half + (self.full - self.half) * (load - 0.5) / 0.5


PUBLISHED: Mapping[str, LoadCurve] = MappingProxyType(
    {
        "server": LoadCurve(0.11, 0.25, 0.48, 0.77),
        "amd server": LoadCurve(0.22, 0.35, 0.50, 0.70),
        "client": LoadCurve(0.03, 0.18, 0.42, 0.74),
        "amd client": LoadCurve(0.12, 0.29, 0.55, 0.89),
    }
)
KNOWN_CLOCK_ERROR: StatedError = (0.18, 0.10)
UNKNOWN_CLOCK_ERROR: StatedError = (0.22, 0.10)


def package_power_w(
    processor: Processor,
    activity: float,
    clock_ratio: float | None = None,
    curves: Mapping[str, LoadCurve] = PUBLISHED,
) -> float:
    """Return watts of a whole package.

    Args:
        processor: cores, TDP and kind.
        activity: 0 (all cores idle) to 1 (all threads busy), see `core_activity`.
        clock_ratio: mean clock of the busy cores over the base clock; None when unknown.
        curves: others than the shipped ones, to try them out.
    """
    kind = family(processor)
    curve = curves[kind]
    awake = min(1.0, activity * processor.cores)
    load = even_load(activity, smt=processor.threads > processor.cores)
    dynamic = (curve.at(load) - curve.start) * clock_factor(kind, clock_ratio)
    share = curve.idle + (curve.start - curve.idle) * awake + dynamic
    return processor.tdp_w * min(LIMIT_SHARE[kind], share)


def clock_factor(kind: str, clock_ratio: float | None) -> float:
    """Return the power of busy cores relative to the published curve of their kind."""
    if clock_ratio is None:
        return 1.0
    if kind == "amd server":
        clock_ratio = min(1.0, clock_ratio)
    return float(clock_ratio**CLOCK_EXPONENT)


def core_activity(cores: Iterable[Sequence[float]]) -> float:
    """Return the activity of a package from the busy share of each thread, grouped by core.

    Threads of a core are taken as busy at random, so both are busy for the product of the shares.
    """
    total, count = 0.0, 0
    for threads in cores:
        idle = 1.0
        both = 1.0
        for busy in threads:
            idle *= 1 - busy
            both *= busy
        count += 1
        total += (1 - idle + SMT_GAIN * both) / (1 + SMT_GAIN) if len(threads) > 1 else 1 - idle
    return total / count if count else 0.0


def even_load(activity: float, *, smt: bool) -> float:
    """Return the load of each thread that gives this activity: the inverse of `core_activity`."""
    activity = min(1.0, max(0.0, activity))
    if not smt:
        return activity
    # (1 - (1 - u)^2 + g u^2) / (1 + g) = a, solved for u
    rest = 1 - SMT_GAIN
    return (1 - math.sqrt(max(0.0, 1 - rest * (1 + SMT_GAIN) * activity))) / rest


def estimate_error(processor: Processor, *, clock_known: bool) -> StatedError:
    """Return the stated error, meant to hold nine times in ten for a family of unmeasured
    processors.

    It comes from families of published processors, each estimated from the others. A TDP that is
    itself a guess scales everything; its error is independent of the model's, so squares add.
    """
    # The clock of AMD's servers tells little: none of their published curves has it.
    clock_helps = clock_known and family(processor) != "amd server"
    relative, of_tdp = KNOWN_CLOCK_ERROR if clock_helps else UNKNOWN_CLOCK_ERROR
    return math.hypot(relative, processor.tdp_error), of_tdp


def family(processor: Processor) -> str:
    """Return the kind of processor by maker.

    A Threadripper boosts to its limit as desktop processors do.
    """
    boosts = processor.kind == "client" or "threadripper" in processor.name.lower()
    kind = "client" if boosts else "server"
    return f"amd {kind}" if _AMD.search(processor.name) else kind


_AMD = re.compile(r"ryzen|epyc|threadripper|athlon|opteron|\bamd\b", re.I)
