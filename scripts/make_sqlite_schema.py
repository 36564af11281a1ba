"""Write `src/wattloop/store/schema.sql`: the tables of a SQLite store, for `sqlite_import`."""

from sqlalchemy.dialects import sqlite
from sqlalchemy.schema import CreateIndex, CreateTable

from wattloop.store.schema import VERSION
from wattloop.store.schema import metadata
from wattloop.store.sqlite_import import SCHEMA


def schema_text() -> str:
    """Return the statements that create a store of the current version."""
    dialect = sqlite.dialect()
    statements: list[str] = []
    for table in metadata.sorted_tables:
        statements.append(str(CreateTable(table).compile(dialect=dialect)).strip())
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            statements.append(str(CreateIndex(index).compile(dialect=dialect)).strip())
    statements.append(f"INSERT INTO meta (key, value) VALUES ('schema_version', '{VERSION}')")
    lines = (line.rstrip() for line in ";\n".join(statements).splitlines())
    return "\n".join(lines) + ";\n"


if __name__ == "__main__":
    SCHEMA.write_text(schema_text(), "utf-8")
