"""Runs with the cluster they are in, as CSV."""

from wattloop.analyze.clusters import Clusters
from wattloop.cli.output import write_text
from wattloop.store.formats.csv_file import csv_text

__all__ = ["write_assigned"]


def write_assigned(found: Clusters, target: str) -> None:
    """All columns of the table, and the cluster and the main components of each row."""
    table = found.table
    components = [f"pc{number + 1}" for number in range(found.projection.shape[1])]
    columns = ["run_name", *table.columns, "cluster", *components]
    rows = []
    for number, name in enumerate(table.names):
        values = [column[number] for column in table.columns.values()]
        place = [float(value) for value in found.projection[number]]
        rows.append([name, *values, int(found.labels[number]), *place])
    write_text(csv_text(columns, rows), target, "--assign")
