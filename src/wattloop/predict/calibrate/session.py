"""One sitting of a collection: sections share its time, what one leaves the next ones get."""

import time
from collections.abc import Mapping, Sequence, Set

from wattloop.core.errors import ConfigError
from wattloop.predict.calibrate.bench import Bench
from wattloop.predict.calibrate.case import SECTIONS, Case
from wattloop.predict.calibrate.collect import Collection, Progress, Taken
from wattloop.predict.calibrate.machine import machine_record
from wattloop.predict.calibrate.sample_file import SampleFile
from wattloop.predict.calibrate.sensor import Sensor
from wattloop.predict.calibrate.suite import SHARES, cases

__all__ = ["chosen_sections", "collect", "possible"]


def collect(
    bench: Bench,
    sensor: Sensor,
    file: SampleFile,
    *,
    sections: Sequence[str] = SECTIONS,
    budget_s: float,
    progress: Progress = lambda *_: None,
) -> Mapping[str, Taken]:
    """Take what the file lacks of `sections` within `budget_s`; returns what became of each.

    Raises:
        ConfigError: the file is of another GPU.
    """
    end_s = time.monotonic() + budget_s
    machine = machine_record(bench, sensor)
    if file.gpu is not None and file.gpu != machine["gpu"]:
        raise ConfigError(
            f"{file.path}: field 'gpu' says {file.gpu}, but this is {machine['gpu']}; "
            "name another file with -o"
        )
    file.write(machine)
    tiny = not bench.on_gpu
    # On the CPU the suite only tries the program: seconds of settling would show nothing.
    collection = (
        Collection(bench, sensor, file, hold_s=(0.02, 0.05), step_s=(0.01, 0.02))
        if tiny
        else Collection(bench, sensor, file)
    )
    results: dict[str, Taken] = {}
    left = list(sections)
    while left:
        section = left[0]
        share = SHARES[section] / sum(SHARES[name] for name in left)
        section_s = max(0.0, end_s - time.monotonic()) * share
        wanted = possible(cases(section, tiny=tiny), bench.precisions)
        results[section] = collection.take(section, wanted, section_s, progress)
        left.pop(0)
    return results


def possible(wanted: Sequence[Case], precisions: Set[str]) -> list[Case]:
    """Without the cases in a precision that the GPU lacks."""

    def has(case: Case) -> bool:
        named = {case.params.get(name) for name in ("dtype", "to", "precision")} - {None}
        return named <= precisions

    return [case for case in wanted if has(case)]


def chosen_sections(text: str) -> list[str]:
    """Sections named in a list such as `kernels,power`, in the order of the suite.

    Raises:
        ConfigError: there is no such section.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in SECTIONS:
            raise ConfigError(f"--sections {name}: known are {', '.join(SECTIONS)}")
    return [name for name in SECTIONS if name in names] if names else list(SECTIONS)
