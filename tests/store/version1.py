"""A store of schema version 1, as an earlier release wrote it."""

import base64
import json
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, text

from wattloop.store.location import StoreLocation

__all__ = ["RUNS", "make_version1"]

DATA: dict[str, Any] = json.loads(
    Path(__file__).with_name("data").joinpath("version1.json").read_text()
)
RUNS = [row["run_id"] for row in DATA["rows"]["runs"]]


def make_version1(location: str) -> None:
    """Write it at a path or URL, with the statements of that release."""
    place = StoreLocation.parse(location)
    engine = create_engine(f"sqlite:///{place.path}" if place.path else place.server_url())
    with engine.begin() as connection:
        for statement in DATA[engine.dialect.name]:
            connection.execute(text(statement))
        for table, rows in DATA["rows"].items():
            for row in rows:
                names = ", ".join(f'"{name}"' for name in row)
                marks = ", ".join(f":{name}" for name in row)
                values = {name: _value(value) for name, value in row.items()}
                connection.execute(text(f"INSERT INTO {table} ({names}) VALUES ({marks})"), values)
    engine.dispose()


def _value(value: Any) -> Any:
    return base64.b64decode(value["base64"]) if isinstance(value, dict) else value
