"""Runs, windows, steps and samples as records.

While a run lives:

- `journal`, `journal_writer`, `frames`   what a live run writes: append-only, readable after
  `kill -9`
- `live`       runs that are still going on
- `holding`    the lock on a journal
- `fold`, `journal_record`   finished or orphaned journals become runs in the store

The database:

- `database`, `place`, `faults`   opens SQLite files and PostgreSQL URLs; what can be wrong
- `schema`, `versions`   the tables, and how an old store becomes a new one
- `runs`, `run_record`, `run_facts`   one record per run: insert, find, list, delete
- `details`    what happened inside a run: windows, steps, events
- `experiments`, `trial_records`   what is tried and why, and what came of it
- `retention`  what is dropped when it is old
- `text`       text that every database accepts

Samples and curves:

- `series`     which domains and signals a run recorded
- `chunks`, `packing`   samples of a run, as a few bytes per value, without loss
- `levels`, `curves`    power over 1, 10 and 60 seconds; curves as fine as fits

Jobs and other machines:

- `jobs`, `job_keys`    which runs make up a job
- `job_list`, `job_rows`, `job_filling`   jobs in pages, with totals of all that match
- `ingest`, `incoming`, `part_book`, `pieces`   journals of other machines, piece by piece
- `arriving`, `plausible`, `ownership`   what is believed of them, and whose they are
- `node_list`  what was last heard of each node

Ways out:

- `comparison` runs side by side, and which differences are real
- `copying`    from one store to another
- `tables`, `export`, `formats/`   runs and samples as rows, in any format; CodeCarbon files in

Importing this package loads nothing: live runs need only `journal_writer`, not a database.
"""
