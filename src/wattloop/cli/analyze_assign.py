"""Runs with the cluster they are in, as CSV."""

import csv
import io

from wattloop.analyze.clusters import Clusters
from wattloop.cli.output import write_text

__all__ = ["write_assigned"]


def write_assigned(found: Clusters, target: str) -> None:
    """All columns of the table, and the cluster and the main components of each row."""
    table = found.table
    components = [f"pc{number + 1}" for number in range(found.projection.shape[1])]
    columns = ["run_name", *table.columns, "cluster", *components]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for number, name in enumerate(table.names):
        values = [column[number] for column in table.columns.values()]
        place = [float(value) for value in found.projection[number]]
        writer.writerow([name, *values, int(found.labels[number]), *place])
    write_text(text.getvalue(), target, "--assign")
