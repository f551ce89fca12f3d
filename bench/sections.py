"""What is measured: loading, building, recall, queries per second. Writes are in sections_write.py."""
import re
import time
from dataclasses import dataclass, field

import numpy as np

from cluster import Failed
from data import FIRST_INSERTED, K

EF = (20, 40, 100, 200)


@dataclass
class Engine:
    name: str                   # vecgpu, pgvector, heap (no vector index)
    kind: str                   # real[] or vector
    suffix: str                 # tables items_*, queries_*, staging_*
    access: str = ""            # USING ... (v ...)
    guc: str = ""
    half: str = ""              # a second index of half the size: its WITH entry, or its own ON clause
    base: dict = field(default_factory=dict)

    @property
    def items(self):
        return f"items_{self.suffix}"

    @property
    def index(self):
        return f"{self.items}_v"

    def source(self, table):    # the heap-only table takes its rows from the same staging table
        return f"{table}_{'vec' if self.kind == 'vector' else 'real'}"


ENGINES = {
    "vecgpu": Engine("vecgpu", "real[]", "real", "vecgpu (v)", "vecgpu.ef_search", "storage = 'float16'"),
    "pgvector": Engine("pgvector", "vector", "vec", "hnsw (v vector_l2_ops)", "hnsw.ef_search"),
    "heap": Engine("heap", "real[]", "heap"),
}


class Bench:
    """The sections' common state: cluster, data, options, figures (`put`) and notes."""

    def __init__(self, cluster, data, args, state, engines):
        self.c, self.data, self.a, self.state = cluster, data, args, state
        self.engines = [ENGINES[e] for e in engines]
        self.indexed = [e for e in self.engines if e.access]
        self.notes = []

    def put(self, engine, what, value, show=None):
        self.state["figures"][f"{engine.name}.{what}"] = value
        self.state["measured"].append(f"{engine.name}.{what}")
        shown = show or (f"{value:,.4g}" if isinstance(value, float) else f"{value}")
        print(f"    {engine.name:9s}{what:28s}{shown}", flush=True)

    def note(self, text):
        self.notes.append(text)
        print(f"    note: {text}", flush=True)

    def each(self, action, engines=None, building=False):
        """Run action(engine) for all; a failure of one engine is noted and the rest goes on."""
        for e in engines if engines is not None else self.engines:
            try:
                if e.access and not building and not self.c.sql(f"SELECT to_regclass('{e.index}')"):
                    raise Failed(f"{e.index} does not exist")
                action(e)
            except Failed as error:
                text = " ".join(str(error).split())
                self.state["failures"].append(f"{e.name}: {text}")
                print(f"    {e.name:9s}FAILED: {text}", flush=True)

    def forget(self, engine):
        """Figures of earlier code."""
        for key in [k for k in self.state["figures"] if k.startswith(engine + ".")]:
            del self.state["figures"][key]

    def options(self, engine, ef=None):
        guc = {engine.guc: ef or self.a.ef} if engine.guc else {}
        guc.update(s.split("=", 1) for s in self.a.set)
        return {k: v for k, v in guc.items() if not k.startswith(("vecgpu.", "hnsw."))
                or k.startswith(("vecgpu." if engine.name == "vecgpu" else "hnsw."))}

    def search(self, e, key):
        return (f"SELECT id FROM {e.items} ORDER BY v <-> (SELECT v FROM {e.source('queries')} WHERE id = {key}) "
                f"LIMIT {K}")

    def recall(self, e, ef, queries=None):
        n = min(queries or self.a.recall_queries, len(self.data.query))
        template = f"SELECT {{q}}, array_agg(id) FROM ({self.search(e, '{q}')}) t"
        before = dict(self.data.wrong)
        found = self.c.answers(template, range(n), self.options(e, ef), self.a.jobs)
        value = self.data.recall(found)
        for what, count in self.data.wrong.items():
            if count > before[what]:
                self.note(f"{e.name}, ef {ef}: {count - before[what]} of {n} answers with {what}")
        return value

    def check(self, e, when):
        """vecgpu_check raises on a damaged index."""
        if e.name == "vecgpu" and not self.a.stub:
            self.put(e, f"check_s.{when}", self.c.timed(f"SELECT vecgpu_check('{e.index}')"))

    def flush(self, e):
        if e.name != "vecgpu" or self.a.stub:
            return 0.0
        return self.c.timed(f"SELECT vecgpu_flush('{e.index}')")

    def prewarm(self):
        names = self.c.sql("SELECT string_agg(quote_literal(c.oid::regclass::text), ',') FROM pg_class c "
                           "WHERE relname ~ '^(items|queries|staging)_' AND relkind IN ('r','i')")
        if names:
            self.c.together([f"SELECT pg_prewarm({n}::regclass)" for n in names.split(",")])


def load(b):
    """Tables of equal rows for each engine; a clean table is left alone, a touched one is loaded again if build follows."""
    c, d, a = b.c, b.data, b.a
    building = "build" in a.sections
    c.sql("CREATE EXTENSION IF NOT EXISTS pg_prewarm")
    for e in b.indexed:
        if e.name == "pgvector":
            c.sql("CREATE EXTENSION IF NOT EXISTS vector")
        elif a.stub:
            c.sql("CREATE OR REPLACE FUNCTION stub_l2(real[], real[]) RETURNS float8 IMMUTABLE STRICT LANGUAGE sql "
                  "AS 'SELECT sqrt(sum((x - y)::float8 ^ 2)) FROM unnest($1, $2) t(x, y)'")
            c.sql("DROP OPERATOR IF EXISTS <-> (real[], real[])")
            c.sql("CREATE OPERATOR <-> (FUNCTION = stub_l2, LEFTARG = real[], RIGHTARG = real[])")
        elif building:
            c.sql("DROP EXTENSION IF EXISTS vecgpu CASCADE")     # the code may have changed
            c.sql("CREATE EXTENSION vecgpu")
            b.forget("vecgpu")
    done, fresh = b.state["loaded"], []
    for e in b.engines:
        for table, rows in (("items", d.base), ("queries", d.query), ("staging", d.staging)):
            name = e.items if table == "items" else e.source(table)
            if done.get(name) == len(rows) and (table != "items" or e.name not in b.state["dirty"] or not building):
                continue
            t = time.monotonic()
            column = f"vector({d.dim})" if e.kind == "vector" else e.kind
            c.sql(f"DROP TABLE IF EXISTS {name}")
            c.sql(f"CREATE {'' if table == 'items' else 'UNLOGGED'} TABLE {name} (id int, tag int, v {column})")
            ids = np.arange(len(rows), dtype=np.int32)
            c.load(name, e.kind, ids, ids % 1000, rows, a.jobs)
            done[name] = len(rows)
            fresh.append(name)
            print(f"    {name}: {len(rows):,} rows, {time.monotonic() - t:.1f} s", flush=True)
        if e.items in fresh:
            b.state["dirty"].pop(e.name, None)
    if fresh:
        t = time.monotonic()
        c.together([f"ALTER TABLE {n} ADD PRIMARY KEY (id), SET (parallel_workers = {a.workers})" for n in fresh])
        c.together([f"VACUUM (ANALYZE) {n}" for n in fresh])
        c.sql("CHECKPOINT")
        print(f"    keys, ANALYZE, CHECKPOINT: {time.monotonic() - t:.1f} s", flush=True)


def _create(b, e, extra=""):
    if e.name == "vecgpu" and b.a.stub:
        return f"CREATE INDEX {e.index} ON {e.items} (tag, id)"
    return f"CREATE INDEX {e.index} ON {e.items} USING {e.access} WITH (m = {b.a.m}, ef_construction = {b.a.ef_construction}{extra})"


def _size(b, e):
    return int(b.c.sql(f"SELECT pg_relation_size('{e.index}')")) / 2**20


def build(b):
    """CREATE INDEX: seconds, MiB; the half-size storage first, because the full one stays."""
    def one(e):
        b.c.sql(f"DROP INDEX IF EXISTS {e.index}")
        if e.half and not b.a.stub and not b.a.no_half:
            b.put(e, "build_half_s", b.c.timed(_create(b, e, ", " + e.half)))
            b.put(e, "size_half_mib", _size(b, e))
            b.put(e, f"recall_half.{b.a.ef}", b.recall(e, b.a.ef))
            b.c.sql(f"DROP INDEX {e.index}")
        b.c.sql("CHECKPOINT")
        b.put(e, "build_s", b.c.timed(_create(b, e)))
        b.put(e, "size_mib", _size(b, e))
        b.check(e, "build")
        if e.name == "vecgpu" and not b.a.stub:
            b.note("vecgpu_info: " + b.c.sql(f"SELECT row_to_json(i) FROM vecgpu_info('{e.index}') i"))
    b.each(one, b.indexed, building=True)


def plan_check(b, e):
    plan = b.c.sql(f"EXPLAIN (COSTS off) {b.search(e, '0')}", b.options(e))
    if not re.search(rf"Index Scan using {e.index}\b", plan):
        b.note(f"{e.name}: the planner does NOT use the index: {' / '.join(p.strip() for p in plan.splitlines())}")
        if not (b.a.stub and e.name == "vecgpu"):
            raise Failed("the planner does not use the index")


def recall(b):
    """recall@10 at several ef, ties by distance; all queries over several connections."""
    def one(e):
        plan_check(b, e)
        for ef in EF:
            t = time.monotonic()
            b.put(e, f"recall.{ef}", b.recall(e, ef))
            b.put(e, f"recall_s.{ef}", time.monotonic() - t)
    b.each(one, b.indexed)


def qps(b):
    """Queries per second, p50 and p99 at --ef for each number of clients; --peer-ef for the peer."""
    def one(e):
        plan_check(b, e)
        guc = b.options(e, b.a.peer_ef if e.name == "pgvector" else b.a.ef)
        ef = guc[e.guc]
        script = (f"\\set qid random(0, {len(b.data.query) - 1})\n{b.search(e, ':qid')};\n")
        b.c.pgbench(script, b.a.jobs, seconds=b.a.warmup, guc=guc, sampling=0.1)
        b.put(e, "qps_ef", int(ef))
        if f"{e.name}.recall.{ef}" not in b.state["figures"]:
            b.put(e, f"recall.{ef}", b.recall(e, ef))
        for clients in b.a.clients:
            r = b.c.pgbench(script, clients, seconds=b.a.seconds, guc=guc, sampling=1 if clients == 1 else 0.25)
            b.put(e, f"qps.{clients}", r["tps"])
            b.put(e, f"p50_ms.{clients}", r["p50"])
            b.put(e, f"p99_ms.{clients}", r["p99"])
    b.each(one, b.indexed)


def next_id(b, e):
    """The first free id for inserts; all engines get the same rows in the same order."""
    top = b.c.sql(f"SELECT max(id) FROM {e.items}")
    return max(FIRST_INSERTED, int(top) + 1)
