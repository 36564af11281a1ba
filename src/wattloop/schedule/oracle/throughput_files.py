"""Tables of throughput as files: ours, Gavel's and ElasticFlow's, told apart by their columns."""

from collections.abc import Callable, Sequence

from wattloop.core.errors import ConfigError
from wattloop.core.user_code import user_path
from wattloop.schedule.oracle.csv_rows import CsvFile, read_rows
from wattloop.schedule.oracle.shipped_tables import THROUGHPUTS
from wattloop.schedule.oracle.throughputs import Measured, Throughputs

__all__ = ["OURS", "load_throughputs"]

OURS = ("model", "gpu", "gpus", "batch", "samples_per_s")
"""Columns that a table of ours must have; precision, spread and power_w may be added."""
SHIPPED = "the shipped table of throughput (predicted, not measured)"
GAVEL = ("source", "model", "batch", "gpu_type", "scale_factor", "steps_per_s")
ELASTICFLOW = ("gpu_type", "model", "global_batch", "gpus", "steps_per_s")
GAVEL_SOURCE = "physical_cluster"
"""Gavel has two tables, nearly alike: one measured for its cluster, one for its simulations."""
UNCONSOLIDATED = "_unconsolidated"


def load_throughputs(names: Sequence[str]) -> Throughputs:
    """One table of one or more files (docs/oracles.md); later files overrule earlier ones.

    Raises:
        ConfigError: a file cannot be read, is of no known kind, or a field is wrong; the message
            names file, line and column.
    """
    rows: list[Measured] = []
    for name in names:
        file = read_rows(name)
        rows += _reader(file)(file)
    said = (SHIPPED if user_path(name) == THROUGHPUTS else name for name in names)
    return Throughputs(rows, ", ".join(said))


def _reader(file: CsvFile) -> Callable[[CsvFile], list[Measured]]:
    for columns, reader in ((GAVEL, _gavel), (ELASTICFLOW, _elasticflow), (OURS, _ours)):
        if file.has(columns):
            return reader
    missing = [column for column in OURS if column not in file.columns]
    raise ConfigError(
        f"{file.path}:1: a table of throughput needs the columns {', '.join(OURS)}; "
        f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing (docs/oracles.md)"
    )


def _ours(file: CsvFile) -> list[Measured]:
    found = []
    for row in file:
        power = row.number("power_w") if row.text("power_w") else None
        samples_s = row.number("samples_per_s")
        if samples_s > 0:  # 0: does not run there
            found.append(
                Measured(
                    model=row.text("model"),
                    precision=row.text("precision"),
                    gpu=row.text("gpu").lower(),
                    gpus=row.whole("gpus"),
                    batch=row.number("batch"),
                    spread=row.flag("spread"),
                    samples_s=samples_s,
                    power_w=power,
                )
            )
    return found


def _gavel(file: CsvFile) -> list[Measured]:
    """Steps summed over workers, each with the batch that the model's name gives.

    A model without a batch (A3C, CycleGAN) counts steps: a sample is one of them.
    """
    found = []
    for row in file:
        gpu = row.text("gpu_type").lower()
        gpus, steps_s = row.whole("scale_factor"), row.number("steps_per_s")
        spread = gpu.endswith(UNCONSOLIDATED)
        if row.text("source") != GAVEL_SOURCE or not steps_s or (spread and gpus == 1):
            continue
        batch = row.number("batch") if row.text("batch") else 1.0
        found.append(
            Measured(
                model=row.text("model"),
                precision="",
                gpu=gpu.removesuffix(UNCONSOLIDATED),
                gpus=gpus,
                batch=batch,
                spread=spread,
                samples_s=steps_s * batch,
            )
        )
    return found


def _elasticflow(file: CsvFile) -> list[Measured]:
    """Steps of a fixed global batch, divided among the GPUs."""
    found = []
    for row in file:
        steps_s, gpus = row.number("steps_per_s"), row.whole("gpus")
        batch = row.number("global_batch", least=1.0)
        if steps_s:
            found.append(
                Measured(
                    model=row.text("model"),
                    precision="",
                    gpu=row.text("gpu_type").lower(),
                    gpus=gpus,
                    batch=batch / gpus,
                    spread=False,
                    samples_s=steps_s * batch,
                )
            )
    return found
