#!/usr/bin/env python3
"""Measures vecgpu and pgvector side by side on one throwaway server. See README.md."""
import argparse
import datetime
import json
import os
import platform
import shlex
import signal
import subprocess
import sys
import time

sys.dont_write_bytecode = True
import report
import sections
import sections_engine
import sections_write
from cluster import Cluster, Failed
from data import Dataset

SECTIONS = {"load": sections.load, "build": sections.build, "recall": sections.recall, "qps": sections.qps,
            "wal": sections_write.wal, "insert": sections_write.insert, "update": sections_write.update,
            "vacuum": sections_write.vacuum, "sustain": sections_write.sustain,
            "engine": sections_engine.engine, "gpu": sections_engine.gpu}


def arguments():
    cores = os.cpu_count()
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    p.add_argument("--data", required=True, help="folder with base.u8bin and query.u8bin")
    p.add_argument("--work", default="/tmp/vecgpu-bench", help="cluster, logs, figures")
    p.add_argument("--sections", default=",".join(s for s in SECTIONS if s != "gpu"), help="in this order whatever is given; also: gpu")
    p.add_argument("--peer", choices=["pgvector", "none"], default="pgvector")
    p.add_argument("--subject", choices=["vecgpu", "none"], default="vecgpu")
    p.add_argument("--keep", action="store_true", help="use the cluster of an earlier run, keep it for the next; "
                   "only the tables that writes have touched are loaded again")
    p.add_argument("--rebuild", action="store_true", help="with --keep and without load/build: REINDEX vecgpu's index")
    p.add_argument("--stub", action="store_true", help="no vecgpu: an exact scan plays it (tests of the bench)")
    p.add_argument("--limit", type=int, help="only so many base rows")
    g = p.add_argument_group("what is asked")
    g.add_argument("--ef", type=int, default=100, help="of the queries/s")
    g.add_argument("--peer-ef", type=int, help="the same for the peer (default: --ef)")
    g.add_argument("--m", type=int, default=16)
    g.add_argument("--ef-construction", type=int, default=64)
    g.add_argument("--no-half", action="store_true", help="leave float16 out")
    g.add_argument("--clients", default="1,16,64", help="of the queries/s")
    g.add_argument("--seconds", type=int, default=5, help="each queries/s run")
    g.add_argument("--warmup", type=int, default=2)
    g.add_argument("--recall-queries", type=int, default=10000)
    g.add_argument("--insert-clients", default="1,16")
    g.add_argument("--burst", type=int, default=20000)
    g.add_argument("--bursts", type=int, default=3)
    g.add_argument("--peer-burst1", type=int, default=2000, help="rows of the peer's burst with one client")
    g.add_argument("--wal-rows", type=int, default=5000)
    g.add_argument("--sustain", type=int, default=60, help="seconds")
    g.add_argument("--peer-sustain", type=int, default=30, help="seconds")
    g.add_argument("--search-clients", type=int, default=4, help="during the sustained inserts")
    g.add_argument("--samples", type=int, default=10, help="answers a second checked during the sustained inserts")
    g.add_argument("--staging", type=int, default=1_600_000, help="different rows to insert")
    g.add_argument("--peer-vacuum", action="store_true", help="also VACUUM the peer (0.1 %%: about a minute)")
    g.add_argument("--peer-vacuum2", action="store_true", help="and after 2 %%")
    s = p.add_argument_group("server")
    s.add_argument("--jobs", type=int, default=cores, help="connections for loading and recall")
    s.add_argument("--workers", type=int, default=max(1, cores - 1), help="max_parallel_maintenance_workers")
    s.add_argument("--shared-buffers", default="12GB")
    s.add_argument("--maintenance-work-mem", default="8GB")
    s.add_argument("--synchronous-commit", default="off")
    s.add_argument("--preload", default="", help="shared_preload_libraries")
    s.add_argument("--conf", action="append", default=[], metavar="NAME=VALUE", help="more server settings")
    s.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="session settings of searches and inserts")
    r = p.add_argument_group("results")
    r.add_argument("--results", help="file that the section is appended to")
    r.add_argument("--section", help="file of this run's section, written after every part (default: in --work)")
    r.add_argument("--host", default=f"{cores} cores, {platform.machine()}")
    r.add_argument("--commit", default=os.environ.get("BENCH_COMMIT"))
    r.add_argument("--deadline", type=int, default=0, help="start no section after so many seconds")
    r.add_argument("--strict", action="store_true", help="exit 1 if a bar fails")
    a = p.parse_args()
    wanted = a.sections.split(",")
    if set(wanted) - set(SECTIONS):
        p.error(f"sections are {', '.join(SECTIONS)}")
    a.sections = [s for s in SECTIONS if s in wanted]
    a.clients = [int(v) for v in str(a.clients).split(",")]
    a.insert_clients = [int(v) for v in a.insert_clients.split(",")]
    a.peer_ef = a.peer_ef or a.ef
    return a


def commit(a):
    if a.commit:
        return a.commit
    here = os.path.dirname(os.path.abspath(__file__))
    r = subprocess.run(["git", "-C", here, "describe", "--always", "--dirty"], capture_output=True, text=True)
    return r.stdout.strip() or "unknown"


def settings(a):
    conf = {"shared_buffers": a.shared_buffers, "maintenance_work_mem": a.maintenance_work_mem,
            "synchronous_commit": a.synchronous_commit, "max_wal_size": "64GB", "checkpoint_timeout": "1h",
            "autovacuum": "off", "jit": "off", "max_connections": 200, "max_worker_processes": 96,
            "max_parallel_workers": 64, "max_parallel_maintenance_workers": a.workers,
            "max_parallel_workers_per_gather": 0, "logging_collector": "off", "shared_preload_libraries": a.preload}
    conf.update(c.split("=", 1) for c in a.conf)
    return conf


def fresh_state(data):
    return {"rows": len(data.base), "dim": data.dim, "loaded": {}, "dirty": {}, "figures": {}, "measured": [],
            "failures": []}


def rebuild(bench):
    e = sections.ENGINES["vecgpu"]
    bench.forget(e.name)
    bench.put(e, "reindex_s", bench.c.timed(f"REINDEX INDEX {e.index}"))


def write_section(bench, began):
    a, data, cluster = bench.a, bench.data, bench.c
    version = cluster.sql("SHOW server_version")
    extensions = " ".join(" ".join(r) for r in cluster.rows(
        "SELECT extname, extversion FROM pg_extension WHERE extname IN ('vecgpu', 'vector')"))
    meta = {"date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"), "commit": commit(a),
            "host": a.host, "command": shlex.join(["bench/run.py", *sys.argv[1:]]),
            "server": f"PostgreSQL {version}; {extensions or 'no extension'}; "
                      + ", ".join(f"{k} {v}" for k, v in settings(a).items() if v != ""),
            "data": f"{os.path.basename(os.path.normpath(a.data))}: {len(data.base):,} x {data.dim}, "
                    f"{len(data.query):,} queries, k 10; m {a.m}, ef_construction {a.ef_construction}",
            "took": f"{time.monotonic() - began:.0f} s"}
    text = report.section(bench.state, meta, bench.notes)
    with open(a.section or f"{a.work}/section.md", "w") as f:
        f.write(text)
    return text


def main():
    a = arguments()
    os.makedirs(a.work, exist_ok=True)
    began = time.monotonic()
    data = Dataset(a.data, a.staging, a.limit)
    print(f"{len(data.base):,} x {data.dim}, {len(data.query):,} queries, {len(data.staging):,} rows to insert "
          f"({data.real_staging:,} real)", flush=True)
    path = f"{a.work}/state.json"
    state = fresh_state(data)
    cluster = Cluster(a.work, settings(a))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    engines = [e for e, on in (("vecgpu", a.subject != "none"), ("pgvector", a.peer != "none"), ("heap", True)) if on]
    bench = None
    try:
        if a.keep and os.path.exists(path):
            with open(path) as f:
                old = json.load(f)
            if (old["rows"], old["dim"]) == (state["rows"], state["dim"]):
                state = dict(old, measured=[], failures=[])
            else:
                cluster.create()
        else:
            cluster.create()
        cluster.start()
        bench = sections.Bench(cluster, data, a, state, engines)
        if state["loaded"]:
            bench.prewarm()
        if a.rebuild and a.subject != "none":
            rebuild(bench)
        for name in a.sections:
            t = time.monotonic()
            if a.deadline and t - began > a.deadline:
                bench.note(f"section {name} left out: {t - began:.0f} s passed")
                continue
            print(f"== {name} (at {t - began:.0f} s)", flush=True)
            try:
                SECTIONS[name](bench)
            except Failed as error:
                error = " ".join(str(error).split())
                state["failures"].append(f"{name}: {error}")
                print(f"    FAILED: {error}", flush=True)
                if name == "load":
                    break
            print(f"   {name}: {time.monotonic() - t:.1f} s", flush=True)
            with open(path, "w") as f:
                json.dump(state, f, indent=1)
            write_section(bench, began)
        if a.results:
            with open(a.results, "a") as f:
                f.write(write_section(bench, began))
    finally:
        cluster.stop()
    print("\n" + report.short_table(state))
    for failure in state["failures"]:
        print(f"FAILED: {failure}")
    failed = bool(state["failures"]) or (a.strict and "FAIL" in [r[4] for r in report.bars(
        state["figures"], state["rows"], state["dim"])])
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
