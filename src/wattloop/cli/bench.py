"""`wattloop bench`: time and energy of six kernels across frameworks and parallel styles."""

from typing import Annotated, NamedTuple

import typer

from wattloop.bench.plan import BenchRequest, words
from wattloop.bench.record import BenchRecord
from wattloop.bench.runner import TIMEOUT_S
from wattloop.bench.tables import csv_table
from wattloop.cli.bench_run import Manner, measured
from wattloop.cli.bench_view import TABLES, list_kernels, show
from wattloop.cli.chosen import settings_of
from wattloop.cli.options import Config, Devices, Interval, JsonFile, Meters, StorePlace
from wattloop.cli.output import check_target, say, write_json
from wattloop.core.errors import ConfigError
from wattloop.core.settings import Settings
from wattloop.core.user_code import user_path
from wattloop.store.formats.csv_file import write as write_csv
from wattloop.store.formats.target import Target

__all__ = ["app"]

IDLE = ("auto", "stored", "fit", "threads", "none")
USAGE_ERROR = 2

app = typer.Typer(add_completion=False)


@app.command("bench")
def bench(  # noqa: PLR0913 - one parameter per option
    *,
    kernels: Annotated[
        str, typer.Option("--kernels", "-k", metavar="LIST", help="Such as gemm,triad.")
    ] = "",
    backends: Annotated[
        str, typer.Option("--backends", "-b", metavar="LIST", help="Such as numpy,torch.")
    ] = "",
    styles: Annotated[
        str, typer.Option("--styles", metavar="LIST", help="Such as scalar,simd or compiled.")
    ] = "",
    threads: Annotated[
        str, typer.Option("--threads", metavar="LIST", help="CPU threads, such as 1,2,4.")
    ] = "",
    sizes: Annotated[
        str,
        typer.Option("--sizes", metavar="LIST", help="Such as small, or gemm=4096,triad=1e8."),
    ] = "",
    dtype: Annotated[
        str, typer.Option("--dtype", help="Number format: fp64, fp32, tf32, bf16 or fp16.")
    ] = "fp32",
    device: Annotated[
        str, typer.Option("--device", help="cpu, gpu or gpu:N (default: a GPU if there is one).")
    ] = "",
    seconds: Annotated[
        float | None, typer.Option("--seconds", "-s", help="Measured seconds per kernel.")
    ] = None,
    idle: Annotated[
        str, typer.Option("--idle", help="What to subtract: auto, stored, fit, threads, none.")
    ] = "auto",
    timeout: Annotated[
        float, typer.Option("--timeout", min=1, help="Most seconds for one kernel.")
    ] = TIMEOUT_S,
    tables: Annotated[
        str, typer.Option("--tables", metavar="LIST", help=f"Of {','.join(TABLES)}, or all.")
    ] = "",
    listing: Annotated[
        bool, typer.Option("--list", help="Show kernels, sizes and frameworks, and end.")
    ] = False,
    kept: Annotated[
        str | None,
        typer.Option("--show", metavar="ID", help="Show an earlier session; 'last' is the newest."),
    ] = None,
    csv_file: Annotated[
        str | None, typer.Option("--csv", metavar="FILE", help="Write the results as CSV.")
    ] = None,
    figures: Annotated[
        str | None, typer.Option("--figures", metavar="DIR", help="Draw the roofline there.")
    ] = None,
    json_file: JsonFile = None,
    interval: Interval = None,
    devices: Devices = None,
    meters: Meters = None,
    store: StorePlace = None,
    config: Config = None,
) -> None:
    """Run six kernels on every installed framework; say how fast, and at how many joules.

    Results are checked, kernels run in processes of their own, and energy is read from outside.
    """
    outputs = Outputs(json_file, csv_file, figures)
    outputs.check()
    wanted = _tables(tables)
    settings = settings_of(config, interval=interval, devices=devices, meters=meters, store=store)
    if listing:
        list_kernels(json_file)
        return
    if kept is not None:
        _give(_kept(settings, kept), wanted, outputs)
        return
    if idle not in IDLE:
        raise ConfigError(f"--idle {idle}: use {', '.join(IDLE)}")
    choice = BenchRequest.of(
        kernels=kernels,
        backends=backends,
        styles=styles,
        threads=threads,
        sizes=sizes,
        dtype=dtype,
        device=device,
        seconds=seconds,
    )
    record = measured(choice, settings, Manner(idle, timeout))
    _give(record, wanted, outputs)
    if not any(r.ok for r in record.results):
        raise typer.Exit(USAGE_ERROR)


def _kept(settings: Settings, reference: str) -> BenchRecord:
    from wattloop.bench.record import kept_record
    from wattloop.store.database import open_store

    with open_store(settings.store_location) as store:
        return kept_record(store, reference)


def _tables(text: str) -> list[str]:
    wanted = words(text)
    unknown = [name for name in wanted if name not in (*TABLES, "all")]
    if unknown:
        raise ConfigError(f"--tables {unknown[0]}: known are {', '.join(TABLES)}, all")
    return list(TABLES) if "all" in wanted else wanted


class Outputs(NamedTuple):
    """Files that were asked for."""

    json_file: str | None
    csv_file: str | None
    figures: str | None

    def check(self) -> None:
        """Refuse what cannot be written before minutes are spent on it."""
        check_target(self.json_file, "--json")
        check_target(self.csv_file, "--csv")
        if self.figures is not None:
            from wattloop.report.figures.render import needs_libraries

            needs_libraries()


def _give(record: BenchRecord, wanted: list[str], outputs: Outputs) -> None:
    if "-" not in (outputs.json_file, outputs.csv_file):
        show(record, wanted)
    if outputs.json_file is not None:
        write_json(record.to_dict(), outputs.json_file)
    if outputs.csv_file is not None:
        write_csv(csv_table(record.results), Target(outputs.csv_file, "--csv"))
    if outputs.figures is not None:
        _draw(record, outputs.figures)


def _draw(record: BenchRecord, folder: str) -> None:
    from wattloop.report.figures.render import save
    from wattloop.report.figures.roofline import roofline_figures

    charts = roofline_figures(record.results)
    if not charts:
        say("wattloop: no figure: the roofline needs gemm and triad among the kernels")
        return
    for path in save(charts, user_path(folder), title="Kernels under their roof"):
        say(f"wattloop: wrote {path}")
