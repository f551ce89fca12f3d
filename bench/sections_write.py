"""What is measured of writes: WAL, insert bursts, sustained inserts with searches, UPDATE, VACUUM."""
import subprocess
import time

import numpy as np

from cluster import Failed, Pgbench
from data import FIRST_INSERTED
from sections import next_id, plan_check


def insert_script(b, e):
    return ("\\set n :n + 1\n\\set id :start + :n * :clients + :client_id\n"
            f"\\set sid (:id - {FIRST_INSERTED}) % {len(b.data.staging)}\n"
            f"INSERT INTO {e.items} (id, v) SELECT :id::int, v FROM {e.source('staging')} WHERE id = :sid::int;\n")


def start_insert(b, e, clients, seconds=None, rows=None, **more):
    b.state["dirty"][e.name] = True
    start = next_id(b, e)
    return Pgbench(b.c, insert_script(b, e), clients, seconds, rows and max(1, rows // clients), b.options(e),
                   dict(n=-1, start=start, clients=clients), **more)


def lsn(b):
    return b.c.sql("SELECT pg_current_wal_insert_lsn()")


def wal_since(b, start):
    return int(b.c.sql(f"SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '{start}')"))


def wal(b):
    """WAL bytes per row of single-row inserts right after a checkpoint."""
    def one(e):
        b.flush(e)
        b.c.sql("CHECKPOINT")
        start = lsn(b)
        done = start_insert(b, e, 16, rows=b.a.wal_rows).result()["done"]
        b.put(e, "wal_row", wal_since(b, start) / done)
        b.flush(e)
        if e.access:
            b.put(e, "wal_row_flushed", wal_since(b, start) / done)
    b.each(one)


def insert(b):
    """Bursts of single-row INSERTs; the median of several; the flush before each series is timed by itself."""
    def one(e):
        for clients in b.a.insert_clients:
            rows = b.a.burst
            if e.name == "pgvector" and clients == 1:
                rows = min(rows, b.a.peer_burst1)
            found, flushed = [], b.flush(e)
            for _ in range(1 if e.name == "pgvector" else b.a.bursts):
                r = start_insert(b, e, clients, rows=rows).result()
                found.append((r["tps"], r["p99"]))
            found.sort()
            b.put(e, f"insert.{clients}", found[len(found) // 2][0])
            b.put(e, f"insert_p99_ms.{clients}", found[len(found) // 2][1])
            if e.name == "vecgpu":
                b.put(e, f"insert_slowest.{clients}", found[0][0])
                b.put(e, f"flush_before_s.{clients}", flushed)
        b.check(e, "insert")
    b.each(one)


class Sampler:
    """One connection that notes a query, its snapshot and its answer, some times a second."""

    def __init__(self, b, e, seconds, name):
        n = len(b.data.query)
        self.out = f"{b.c.tmp}/{name}.out"
        path = f"{b.c.tmp}/{name}.sql"
        rng = np.random.default_rng(3)
        with open(path, "w") as f:
            for q in rng.integers(0, n, int(seconds * b.a.samples)):
                f.write(f"SELECT {q}, pg_current_snapshot(), array_agg(id) FROM ({b.search(e, q)}) t;\n"
                        f"SELECT pg_sleep({1 / b.a.samples});\n")
        self.process = subprocess.Popen(b.c.psql + ["-f", path, "-o", self.out], env=b.c.options(b.options(e)),
                                        stderr=subprocess.PIPE, text=True)

    def finish(self, stop_early):
        if stop_early:
            self.process.terminate()
        error = self.process.communicate()[1]
        if self.process.returncode and not stop_early:
            raise Failed(error.strip()[-400:])
        found = []
        with open(self.out) as f:
            for line in f.read().split("\n")[:-1]:
                parts = line.split("|")
                if len(parts) == 3 and parts[2].endswith("}"):
                    found.append((int(parts[0]), parts[1], [int(v) for v in parts[2].strip("{}").split(",")]))
        return found


def table_rows(b, e):
    path = f"{b.c.tmp}/rows.txt"
    with open(path, "w") as f:
        subprocess.run(b.c.psql + ["-c", f"COPY (SELECT id, xmin::text::bigint FROM {e.items}) TO STDOUT"],
                       env=b.c.env, stdout=f, check=True)
    return np.fromfile(path, np.int64, sep=" ").reshape(-1, 2)


def sustain(b):
    """Inserts for a minute while other clients search; recall by each search's own snapshot."""
    def one(e):
        plan_check(b, e)
        seconds = b.a.peer_sustain if e.name == "pgvector" else b.a.sustain
        search = f"\\set qid random(0, {len(b.data.query) - 1})\n{b.search(e, ':qid')};\n"
        idle_s = min(5.0, seconds)
        b.flush(e)
        sampler = Sampler(b, e, idle_s, "idle")
        r = b.c.pgbench(search, b.a.search_clients, seconds=int(idle_s), guc=b.options(e))
        idle = sampler.finish(True)
        b.put(e, "idle_search_p99_ms", r["p99"])
        b.put(e, "idle_search_qps", r["tps"])
        start = next_id(b, e)
        t = time.monotonic()
        inserts = start_insert(b, e, 16, seconds=seconds, sampling=0.2, progress=max(1, seconds // 12))
        searches = Pgbench(b.c, search, b.a.search_clients, seconds=seconds, guc=b.options(e))
        sampler = Sampler(b, e, seconds, "busy")
        r, s = inserts.result(), searches.result()
        busy = sampler.finish(True)
        elapsed = time.monotonic() - t
        b.put(e, "sustain", r["tps"])
        b.put(e, "sustain_p99_ms", r["p99"])
        if r["slices"]:
            b.put(e, "sustain_slowest_slice", min(r["slices"]))
            b.put(e, "sustain_fastest_slice", max(r["slices"]))
        b.put(e, "busy_search_p50_ms", s["p50"])
        b.put(e, "busy_search_p99_ms", s["p99"])
        b.put(e, "busy_search_qps", s["tps"])
        last = b.flush(e)
        if last:
            b.put(e, "sustain_last_flush_s", last)
        b.put(e, "sustain_flushed", r["done"] / (r["done"] / r["tps"] + last))
        rows = table_rows(b, e)
        if (rows[:, 0].max() - FIRST_INSERTED) >= len(b.data.staging):
            b.note(f"{e.name}: the staged rows wrapped: {rows[:, 0].max() - FIRST_INSERTED + 1:,} ids "
                   f"over {len(b.data.staging):,} rows; --staging more")
        elif rows[:, 0].max() - FIRST_INSERTED >= b.data.real_staging:
            b.note(f"{e.name}: real extra rows ended at {b.data.real_staging:,}; then jittered base rows")
        before = dict(b.data.wrong)
        b.put(e, "idle_search_recall", b.data.moving_recall(idle, rows))
        b.put(e, "busy_search_recall", b.data.moving_recall(busy, rows))
        wrong = {k: v - before[k] for k, v in b.data.wrong.items() if v > before[k]}
        b.note(f"{e.name}: {len(idle)} idle and {len(busy)} busy samples over {elapsed:.0f} s, "
               f"{int((rows[:, 0] >= start).sum()):,} rows inserted, p99 {r['p99']:.2f} ms a row"
               + (f"; wrong answers: {wrong}" if wrong else ""))
        size = int(b.c.sql(f"SELECT pg_relation_size('{e.index}')")) / 2**20
        b.put(e, "size_after_sustain_mib", size)
        b.check(e, "sustain")
    b.each(one, b.indexed)


def update(b):
    """UPDATE of another indexed column, 2,000 rows: a new version of the row, the vector unchanged."""
    def one(e):
        b.flush(e)
        b.state["dirty"][e.name] = True
        b.c.sql(f"DROP INDEX IF EXISTS {e.items}_tag")
        b.c.sql(f"CREATE INDEX {e.items}_tag ON {e.items} (tag)")
        step = max(1, len(b.data.base) // 2000)
        found = []
        for i in range(1 if e.name == "pgvector" else 3):
            t = b.c.timed(f"UPDATE {e.items} SET tag = tag + 1 WHERE id = ANY (ARRAY(SELECT g FROM "
                          f"generate_series({(i * 7 + 1) % step}, {len(b.data.base) - 1}, {step}) g LIMIT 2000))")
            found.append(t)
        b.put(e, "update_s", float(np.median(found)))
        b.c.sql(f"DROP INDEX {e.items}_tag")
    b.each(one)


def vacuum(b):
    """VACUUM (index clean-up forced, the server would skip it for so few rows) after two deletes."""
    def one(e):
        if e.name == "pgvector" and not b.a.peer_vacuum:
            return
        b.flush(e)
        b.state["dirty"][e.name] = True
        command = f"VACUUM (INDEX_CLEANUP on) {e.items}"
        b.put(e, "vacuum_before_s", b.c.timed(command))
        for name, every, rest in (("01", 1000, 3), ("2", 50, 7)):
            if name == "2" and e.name == "pgvector" and not b.a.peer_vacuum2:
                continue
            gone = b.c.sql(f"WITH d AS (DELETE FROM {e.items} WHERE id < {FIRST_INSERTED} AND id % {every} = {rest} "
                           "RETURNING 1) SELECT count(*) FROM d")
            b.put(e, f"vacuum{name}_rows", int(gone))
            b.put(e, f"vacuum{name}_s", b.c.timed(command))
        b.check(e, "vacuum")
        if e.access:
            gone = set(range(3, len(b.data.base), 1000)) | set(range(7, len(b.data.base), 50))
            found = b.c.answers(f"SELECT {{q}}, array_agg(id) FROM ({b.search(e, '{q}')}) t", range(200),
                                b.options(e), b.a.jobs)
            if any(i in gone for ids in found.values() for i in ids):
                raise Failed("a deleted row was returned")
    b.each(one)
