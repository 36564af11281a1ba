"""Runs that an earlier release kept get what lists of jobs need of them."""

from sqlalchemy import insert, select, update

from wattloop.store.database import Store
from wattloop.store.job_keys import job_key_in
from wattloop.store.job_rows import refresh_job_in
from wattloop.store.run_facts import facts_of
from wattloop.store.run_record import read_record
from wattloop.store.schema import run_facts, runs

__all__ = ["fill_jobs", "fill_run_facts"]

AT_ONCE = 500


def fill_jobs(store: Store) -> int:
    """Runs that were there before jobs had rows get theirs; how many there were."""
    query = select(runs.c.run_id, runs.c.body).where(runs.c.job_key.is_(None))
    query = query.order_by(runs.c.started_wall_s).limit(AT_ONCE)
    filled = 0
    while True:
        with store.writing() as connection:
            found = connection.execute(query).all()
            if not found:
                return filled
            keys = set()
            for run_id, body in found:
                record = read_record(body)
                keys.add(job_key := job_key_in(connection, record))
                mine, facts = runs.c.run_id == run_id, facts_of(record)
                connection.execute(update(runs).where(mine).values(job_key=job_key))
                connection.execute(
                    update(run_facts)
                    .where(run_facts.c.run_id == run_id)
                    .values(efficiency=facts["efficiency"], job_nodes=facts["job_nodes"])
                )
            for job_key in sorted(keys):  # in one order: no two wait for each other
                refresh_job_in(connection, job_key)
        filled += len(found)


def fill_run_facts(store: Store) -> int:
    """Runs kept by earlier releases get their columns; how many there were."""
    query = (
        select(runs.c.body, runs.c.job_key)
        .outerjoin(run_facts, run_facts.c.run_id == runs.c.run_id)
        .where(run_facts.c.run_id.is_(None))
        .limit(AT_ONCE)
    )
    filled = 0
    while True:
        with store.writing() as connection:
            found = connection.execute(query).all()
            if not found:
                return filled
            rows = [facts_of(read_record(body)) for body, _ in found]
            connection.execute(insert(run_facts), rows)
            for job_key in sorted({key for _, key in found if key is not None}):
                refresh_job_in(connection, job_key)
        filled += len(found)
