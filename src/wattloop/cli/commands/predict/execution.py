"""Execution of `wattloop predict`: compute, print, write."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from wattloop.cli.commands.predict.options import with_axes_named
from wattloop.cli.commands.predict.view import print_forecast, print_points
from wattloop.cli.output import say, write_json
from wattloop.cli.progress import counted, spinner
from wattloop.core.errors import ConfigError
from wattloop.core.paths import user_path
from wattloop.predict.comparison import Axis, Point, axis_of, points_data
from wattloop.predict.forecast import Forecast, RunLength
from wattloop.predict.forecaster import Forecaster
from wattloop.predict.request import Question

MOST_POINTS = 2_000


@dataclass(frozen=True, slots=True)
class PredictRequest:
    """Options of one prediction."""

    question: Question
    extent: RunLength
    compare: str | None = None
    sweeps: tuple[str, ...] = ()
    plot: str | None = None
    top: int = 8
    save_workload: str | None = None
    json_file: str | None = None


def execute(request: PredictRequest) -> None:
    """Predict one setting, or a table of many."""
    axes = _axes(request)
    if request.plot is not None:
        if not axes:
            raise ConfigError(f"plot {request.plot}: there is one point; add --sweep or --compare")
        from wattloop.report.figures.render import FORMATS, needs_libraries

        if user_path(request.plot).suffix.lower() not in FORMATS:
            raise ConfigError(f"plot {request.plot}: end it with {', '.join(FORMATS)}")
        needs_libraries()
    if axes:
        _table(request, axes)
    else:
        _single(request)


def _single(request: PredictRequest) -> None:
    with spinner(f"tracing {request.question.model}"):
        forecast = request.extent.of(Forecaster(cache=True).answer(request.question))
    keep_workload(forecast, request.save_workload)
    if request.json_file is not None:
        write_json(forecast.to_dict(), request.json_file)
    if request.json_file != "-":
        print_forecast(forecast, top=request.top)


def _table(request: PredictRequest, axes: Sequence[Axis]) -> None:
    if request.save_workload is not None:
        raise ConfigError(
            f"save-workload {request.save_workload}: a sweep has several workloads; leave out "
            "--sweep and --compare"
        )
    points = _points(request, axes)
    if request.plot is not None:
        from wattloop.report.figures.prediction import forecast_figures
        from wattloop.report.figures.render import save_one

        charts = forecast_figures(points, axes)
        save_one(charts, user_path(request.plot), title=f"Predictions of {points[0].name}")
        say(f"wattloop: figure in {request.plot}")
    if request.json_file is not None:
        write_json(points_data(points), request.json_file)
    if request.json_file != "-":
        print_points(points, axes)


def _points(request: PredictRequest, axes: Sequence[Axis]) -> list[Point]:
    combinations = list(product(*(axis.values for axis in axes)))
    if len(combinations) > MOST_POINTS:
        raise ConfigError(f"sweep: {len(combinations)} points; take at most {MOST_POINTS}")
    forecaster = Forecaster(cache=True)
    points = []
    with counted("predicting", len(combinations)) as bar:
        for values in combinations:
            question = request.question
            setting = dict(zip((axis.name for axis in axes), values, strict=True))
            with with_axes_named(setting):
                for name, value in setting.items():
                    question = question.varied(name, value)
                points.append(Point(setting, request.extent.of(forecaster.answer(question))))
            bar.advance()
    return points


def _axes(request: PredictRequest) -> list[Axis]:
    axes = [axis_of(text) for text in request.sweeps]
    names = [axis.name for axis in axes]
    if len(set(names)) < len(names):
        raise ConfigError(f"sweep {names[-1]}: varied twice; write its values in one list")
    if request.compare is not None:
        gpus = tuple(part.strip() for part in request.compare.split(","))
        if not all(gpus) or len(set(gpus)) < len(gpus):
            raise ConfigError(
                f"compare {request.compare}: name each GPU once, such as a100,h100,h200"
            )
        axes.append(Axis("gpu", gpus))
    return axes


def keep_workload(forecast: Forecast, place: str | None) -> None:
    """Write the workload to the file of `--save-workload`."""
    if place is None:
        return
    from wattloop.predict.workload.files import save_workload

    save_workload(forecast.workload, user_path(place))
    say(f"wattloop: workload in {place}; predict from it with --model {place}")
