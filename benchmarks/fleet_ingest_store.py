"""A PostgreSQL that already holds a hundred thousand jobs."""

from sqlalchemy import text

from wattloop.store.database import Store

__all__ = ["fill_old_jobs", "samples_by_run"]

RUNS = """
INSERT INTO runs (run_id, name, status, kind, host, machine_id, user_name, job_id, parent_run_id,
                  started_wall_s, duration_s, energy_j, uncertainty_j, exit_code, counted, body,
                  job_key)
SELECT 'old-' || lpad(n::text, 7, '0'), 'train ' || n, 'finished', 'slurm', 'n' || n % 200, '',
       'user' || n % 40, n::text, NULL, 1.7e9 + n * 60, 600 + n % 5000, 1e5 + n, 100, 0, true,
       json_build_object('run_id', 'old-' || lpad(n::text, 7, '0'), 'name', 'train ' || n,
                         'settings', repeat('x', 1500))::text,
       'slurm:old:' || n
FROM generate_series(1, :jobs) AS n
"""
FACTS = """
INSERT INTO run_facts (run_id, cluster, partition, project, exclusive, device, label, insights,
                       provenance, complete, facility_j, carbon_g, efficiency)
SELECT run_id, 'old', 'part' || length(name), 'project' || length(user_name), NULL, 'A100', 'low',
       'low_efficiency', 'measured', true, energy_j * 1.2, energy_j / 1e4, 0.3
FROM runs WHERE run_id LIKE 'old-%'
"""
JOBS = """
INSERT INTO jobs (job_key, first_run_id, job_id, name, status, kind, host, user_name, nodes, runs,
                  started_wall_s, duration_s, energy_j, uncertainty_j, counted, in_totals,
                  quarantined, cluster, partition, project, exclusive, device, label, insights,
                  provenance, complete, facility_j, carbon_g)
SELECT r.job_key, r.run_id, r.job_id, r.name, r.status, r.kind, r.host, r.user_name, 1, 1,
       r.started_wall_s, r.duration_s, r.energy_j, r.uncertainty_j, true, true, 0, f.cluster,
       f.partition, f.project, NULL, f.device, f.label, f.insights, f.provenance, true,
       f.facility_j, f.carbon_g
FROM runs r JOIN run_facts f ON f.run_id = r.run_id WHERE r.run_id LIKE 'old-%'
"""
SAMPLES = """
SELECT r.run_id, coalesce(sum(c.count), 0) FROM runs r
LEFT JOIN sample_chunks c ON c.run_id = r.run_id AND c.series = -1
WHERE r.run_id NOT LIKE 'old-%' GROUP BY r.run_id
"""


def fill_old_jobs(store: Store, jobs: int) -> None:
    """Insert jobs of the earlier months, without samples."""
    with store.writing() as connection:
        for statement in (RUNS, FACTS, JOBS):
            connection.execute(text(statement), {"jobs": jobs} if ":jobs" in statement else {})
    with store.writing() as connection:
        connection.execute(text("ANALYZE"))


def samples_by_run(store: Store) -> dict[str, int]:
    """Return the number of samples in the store for each run of the benchmark."""
    with store.reading() as connection:
        return {run_id: int(n) for run_id, n in connection.execute(text(SAMPLES))}
