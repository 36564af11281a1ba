"""Runs, windows, steps and samples as records.

- `journal`    what a live run writes: append-only, readable after `kill -9`
- `fold`       puts finished or orphaned journals into the store
- `holding`    the lock on a journal
- `schema`     the tables, their version and migrations
- `database`   opens SQLite files and PostgreSQL URLs; translates their errors
- `place`, `faults`  where a store is, and what can be wrong with it
- `runs`       one record per run: insert, find, list, delete
- `details`    what happened inside a run: windows, steps, events
- `jobs`       which runs make up a job of many processes
- `packing`    an array of doubles as a few bytes per value, without loss
- `levels`     power over 1, 10 and 60 seconds, for drawing
- `series`     which domains and signals a run recorded
- `chunks`     samples of a run, packed
- `curves`     power over time, as fine as fits
- `live`       runs that are still going on
- `comparison` runs side by side, and which differences are real
- `copying`    from one store to another
- `tables`     runs, samples, windows and steps as rows for people and programs
- `export`     any table, in any format
- `formats`    CSV, JSON, Parquet, Prometheus, and the import of CodeCarbon files

Importing this package loads nothing: live runs need only `journal`, not a database.
"""
