"""The engine on its host device: the path of a request, loading a mirror, and what a kill costs."""
import os
import re
import signal
import subprocess
import time

from cluster import Failed, Pgbench

HOST = {"vecgpu.device": "host"}


def engine_pids(c):
    """Of this cluster only: its supervisor's children."""
    boss = c.sql("SELECT pid FROM pg_stat_activity WHERE backend_type = 'vecgpu supervisor'")
    if not boss:
        return []
    r = subprocess.run(["pgrep", "-P", boss, "vecgpu-engine"], stdout=subprocess.PIPE, text=True)
    return [int(p) for p in r.stdout.split()]


def path(b, e):
    """One request through the engine against the same search in process; requests/s of many clients. No server."""
    folder = subprocess.run([os.environ.get("PG_CONFIG", "pg_config"), "--pkglibdir"], stdout=subprocess.PIPE, text=True).stdout.strip()
    r = subprocess.run([f"{folder}/vecgpu-engine", "--bench", "--seconds", "3"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                       text=True)
    added = re.search(r"added by the path: p50 ([\d.]+) us, p99 ([\d.]+) us", r.stdout)
    if r.returncode or not added:
        raise Failed(f"vecgpu-engine --bench: {r.stdout[-400:]}")
    b.put(e, "path_added_p50_us", float(added[1]))
    b.put(e, "path_added_p99_us", float(added[2]))
    for clients, rate, p50, p99 in re.findall(r"^(\d+) clients: ([\d.]+) requests/s, p50 ([\d.]+) us, p99 ([\d.]+) us", r.stdout, re.M):
        b.put(e, f"path_requests.{clients}", float(rate))
        b.put(e, f"path_p50_us.{clients}", float(p50))
        b.put(e, f"path_p99_us.{clients}", float(p99))
    wrong = sum(int(v) for v in re.findall(r"wrong (\d+)", r.stdout))
    if wrong:
        raise Failed(f"{wrong} wrong answers in vecgpu-engine --bench")


def mirror(b, e):
    """Loading from shared buffers, by the session itself."""
    best = 0.0
    size = 0
    for _ in range(3):
        b.c.sql(f"SELECT vecgpu_evict('{e.index}')", HOST)
        device, sent, size, ms = b.c.rows(f"SELECT * FROM vecgpu_prewarm('{e.index}')", HOST)[0]
        best = max(best, int(sent) / float(ms) / 1e6)
    b.put(e, "mirror_load_gb_s", best)
    b.put(e, "mirror_mib", int(size) / 2**20)


def queries(b, e):
    """The same searches in the sessions and through the engine, which runs the same walk: what the path costs."""
    script = f"\\set qid random(0, {len(b.data.query) - 1})\n{b.search(e, ':qid')};\n"
    for clients in (1, 16):
        for name, guc in (("pages", {}), ("engine", HOST)):
            r = b.c.pgbench(script, clients, seconds=b.a.seconds, guc=dict(b.options(e), **guc), sampling=0.25)
            b.put(e, f"{name}_qps.{clients}", r["tps"])
            b.put(e, f"{name}_p50_ms.{clients}", r["p50"])
    b.put(e, "engine_recall", engine_recall(b, e))


def engine_recall(b, e):
    guc = dict(b.options(e), **HOST)
    guc["vecgpu.fallback"] = "off"
    found = b.c.answers(f"SELECT {{q}}, array_agg(id) FROM ({b.search(e, '{q}')}) t", range(min(2000, len(b.data.query))), guc, b.a.jobs)
    return b.data.recall(found)


def kill(b, e):
    """kill -9 of the engine under 64 clients that check their answers; the first device answer after it."""
    count = f"SELECT coalesce(sum(queries), 0) FROM pg_stat_vecgpu WHERE indexrelname = '{e.index}'"
    # The answers of 1,000 queries, to compare with: the walk is the same on both sides.
    b.c.sql("DROP TABLE IF EXISTS expected_answers")
    b.c.sql("CREATE UNLOGGED TABLE expected_answers (id int PRIMARY KEY, nearest int)")
    b.c.sql(f"INSERT INTO expected_answers SELECT q.id, (SELECT i.id FROM {e.items} i ORDER BY i.v <-> q.v LIMIT 1) "
            f"FROM {e.source('queries')} q WHERE q.id < 1000", b.options(e))
    script = ("\\set qid random(0, 999)\n"
              f"SELECT 1 / (((SELECT id FROM ({b.search(e, ':qid')}) a LIMIT 1) = (SELECT nearest FROM expected_answers "
              "WHERE id = :qid))::int);\n")
    guc = dict(b.options(e), **HOST)
    b.c.sql(f"SELECT vecgpu_prewarm('{e.index}')", HOST)
    run = Pgbench(b.c, script, 64, seconds=12, guc=guc)
    waits, loads = [], []
    try:
        for _ in range(2):
            time.sleep(2.0)
            pids = engine_pids(b.c)
            if len(pids) != 1:
                raise Failed(f"{len(pids)} engines run")
            os.kill(pids[0], signal.SIGKILL)
            killed = time.monotonic()
            ready = None
            while run.process.poll() is None:
                if ready is None and b.c.sql(f"SELECT count(*) FROM vecgpu_mirrors() WHERE state = 'ready'", HOST) != "0":
                    ready = time.monotonic()
                    before = int(b.c.sql(count))
                if ready is not None and int(b.c.sql(count)) > before:
                    waits.append(time.monotonic() - ready)
                    loads.append(ready - killed)
                    break
                time.sleep(0.01)
            else:
                raise Failed("no answer of the device as long as clients ran")
    finally:
        r = run.result()                                       # raises if a client had an error or a wrong answer
    b.put(e, "kill_errors", 0)
    b.put(e, "kill_mirror_ready_s", max(loads))
    b.put(e, "kill_answer_s", max(waits))
    b.note(f"kill -9 of the engine, twice, under 64 clients: {r['done']:,} queries, no error, no answer unlike the one before; "
           f"p99 {r['p99']:.1f} ms")


def engine(b):
    """Host device, vecgpu only."""
    def one(e):
        path(b, e)
        mirror(b, e)
        queries(b, e)
        kill(b, e)
    b.each(one, [e for e in b.indexed if e.name == "vecgpu"])


GPU = {"vecgpu.device": "gpu", "vecgpu.fallback": "off"}


def gpu(b):
    """Searches through SQL on the GPU; what it cannot answer is an error."""
    def one(e):
        device, sent, size, ms = b.c.rows(f"SELECT * FROM vecgpu_prewarm('{e.index}')", GPU)[0]
        b.put(e, "gpu_load_s", float(ms) / 1e3)
        b.put(e, "gpu_mirror_mib", int(size) / 2**20)
        script = f"\\set qid random(0, {len(b.data.query) - 1})\n{b.search(e, ':qid')};\n"
        for ef in (40, b.a.ef):
            guc = dict(b.options(e, ef), **GPU)
            found = b.c.answers(f"SELECT {{q}}, array_agg(id) FROM ({b.search(e, '{q}')}) t",
                                range(min(2000, len(b.data.query))), guc, b.a.jobs)
            b.put(e, f"gpu_recall.{ef}", b.data.recall(found))
        guc = dict(b.options(e), **GPU)
        for clients in b.a.clients:
            r = b.c.pgbench(script, clients, seconds=b.a.seconds, guc=guc, sampling=1 if clients == 1 else 0.25)
            b.put(e, f"gpu_qps.{clients}", r["tps"])
            b.put(e, f"gpu_p50_ms.{clients}", r["p50"])
            b.put(e, f"gpu_p99_ms.{clients}", r["p99"])
        row = b.c.rows("SELECT queries, batches, round(width_mean::numeric, 2), round((queue_ms / queries * 1000)::numeric, 1), "
                       "round((copy_ms / queries * 1000)::numeric, 1), round((kernel_ms / queries * 1000)::numeric, 1), "
                       "round((rerank_ms / queries * 1000)::numeric, 1), fallbacks "
                       f"FROM pg_stat_vecgpu WHERE indexrelname = '{e.index}'")[0]
        b.note("pg_stat_vecgpu: {} queries in {} batches, mean width {}; us a query: queue {}, copy {}, kernel {}, rerank {}; "
               "{} fallbacks".format(*row))
    b.each(one, [e for e in b.indexed if e.name == "vecgpu"])
