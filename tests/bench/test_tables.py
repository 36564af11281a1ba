"""Promises of tables: the thesis's tables, made from results."""

from tests.support.synthetic_kernels import energy, made
from wattloop.bench.idle import IdleByThreads
from wattloop.bench.result import KernelResult
from wattloop.bench.tables import (
    csv_table,
    frameworks_table,
    idle_table,
    kernels_table,
    speedups_table,
)

GPU = {"gpu": energy(500.0, 400.0), "cpu": energy(80.0)}


def test_frameworks_stand_side_by_side() -> None:
    """Table 3.17: time, joules and watts of GPU and host, by framework and kernel."""
    results = [
        made("triad", backend="torch", style="eager", device="gpu:0", scopes=GPU),
        made("gemm", backend="jax", style="jit", device="gpu:0", scopes=GPU),
        made("gemm", backend="cupy", device="gpu:0", status="failed", time_s=None),
    ]
    table = frameworks_table(results)
    assert [row[:2] for row in table.rows] == [("jax", "gemm"), ("torch", "triad")]
    row = dict(zip(table.headers, table.rows[0], strict=True))
    assert (row["GPU J"], row["CPU J"], row["GPU W"], row["CPU W"]) == ("50", "8", "500", "80")


def test_the_table_of_kernels_shows_dashes_for_missing_values() -> None:
    """A value that was not read or does not exist is a dash, never a zero."""
    table = kernels_table([made("montecarlo", bytes_moved=0, scopes={})])
    row = dict(zip(table.headers, table.rows[0], strict=True))
    assert row["GB/s"] == row["cpu W"] == row["cpu J"] == row["J app"] == row["how"] == "-"
    assert row["GFLOPS"] == "20"
    assert row["time"] == "100 ms ±1%"


def test_the_table_of_speedups_names_what_is_compared() -> None:
    """The thesis's tables 3.15 and 3.16."""
    rows = speedups_table([made(style="simd"), made(threads=2, time_s=0.05)]).rows
    assert rows[-1][5] == "x2.00"
    assert rows[-1][-1] == "simd, 1 thread"


def test_idle_table_is_sorted_by_length_and_threads() -> None:
    """The thesis's table 3.14."""
    rows = [IdleByThreads(t, s, "cpu:0/package", 50.0 * s, 50.0, "measured")
            for t in (2, 1) for s in (2.0, 1.0)]  # fmt: skip
    assert [(r[0], r[1]) for r in idle_table(rows).rows] == [
        ("1", "1"), ("1", "2"), ("2", "1"), ("2", "2"),
    ]  # fmt: skip


def test_csv_has_plain_numbers_and_gaps() -> None:
    """One row per result, failed ones included; a value that was not read is empty."""
    table = csv_table([made(), made("triad", status="failed", reason="x", time_s=None, scopes={})])
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert rows[0]["cpu_energy_j"] == 8.0
    assert rows[0]["gpu_energy_j"] is None
    assert rows[1]["gflops"] is None
    assert rows[1]["reason"] == "x"


def test_counted_events_become_ipc_and_memory_volume() -> None:
    """Figures 3.4 and 3.5: volume of the controllers, else of cache misses; no column without."""
    counts = {"cycles": 2e9, "instructions": 3e9, "cache_misses": 1e6}
    misses, moved = made(counts=counts), made(counts={**counts, "memory_b": 128e6}, threads=2)
    assert misses.ipc == 1.5
    assert misses.memory_b == 64e6 / misses.runs
    table = kernels_table([misses, moved])
    rows = [dict(zip(table.headers, row, strict=True)) for row in table.rows]
    assert rows[0]["IPC"] == "1.5"
    assert float(rows[1]["memory MB"]) == 128 / moved.runs
    assert float(rows[1]["memory GB/s"]) == 2 * float(rows[0]["memory GB/s"])
    assert not {"IPC", "memory MB"} & set(kernels_table([made()]).headers)
    assert KernelResult.from_dict(moved.to_dict()) == moved
