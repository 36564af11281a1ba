"""`wattloop analyze`: what a search, a sweep or a CSV file says."""

import typer

from wattloop.cli.analyze_runs import (
    matrix_command,
    metrics_command,
    pareto_command,
    quotient_command,
    top_command,
)
from wattloop.cli.analyze_statistics import (
    clusters_command,
    correlation_command,
    importance_command,
    ols_command,
)

__all__ = ["app"]

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Regression, clusters, Pareto front, efficiency quotient over a search, sweep or CSV.",
    epilog="Examples: wattloop analyze pareto last; wattloop analyze ols runs.csv --target "
    "energy_wh --figure ols.svg.",
)

app.command("top")(top_command)
app.command("quotient")(quotient_command)
app.command("metrics")(metrics_command)
app.command("pareto")(pareto_command)
app.command("matrix")(matrix_command)
app.command("ols")(ols_command)
app.command("correlation")(correlation_command)
app.command("clusters")(clusters_command)
app.command("importance")(importance_command)
