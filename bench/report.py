"""The bars, the short table that ends a run, and the section for RESULTS.md."""
from data import K
from sections import EF

# pgvector 0.8.0 on the GPU host (16 cores), 1,000,000 x 128 SIFT; used where a run did not measure it.
REFERENCE = {
    "recall.20": 0.850, "recall.40": 0.932, "recall.100": 0.984, "recall.200": 0.995,
    "build_s": 45.0, "size_mib": 794.0, "qps.1": 304.0, "qps.16": 6174.0, "qps.64": 5816.0, "p99_ms.64": 11.0,
    "insert.1": 270.0, "insert.16": 6900.0, "sustain": 6900.0, "update_s": 3.5, "vacuum01_s": 63.0,
}


def bars(figures, rows, dim):
    """[(what, vecgpu, compared with, bar, 'pass' | 'FAIL' | '-')]"""
    mine = {k[7:]: v for k, v in figures.items() if k.startswith("vecgpu.")}
    peer = {k[9:]: v for k, v in figures.items() if k.startswith("pgvector.")}
    heap = {k[5:]: v for k, v in figures.items() if k.startswith("heap.")}
    million = rows == 1_000_000 and dim == 128
    out = []

    def other(key):
        if key in peer:
            return peer[key], ""
        return (REFERENCE.get(key), " (ref.)") if million else (None, "")

    def show(v, unit=""):
        if v is None:
            return "-"
        return (f"{v:.4f}" if unit == "recall" else f"{v:,.0f}" if abs(v) >= 1000 else f"{v:.4g}") + \
            (f" {unit}" if unit and unit != "recall" else "")

    def add(what, value, against, bar, ok):
        out.append((what, value, against, bar, "-" if ok is None else "pass" if ok else "FAIL"))

    def ratio(what, key, least=None, most=None, unit=""):
        v, (p, ref) = mine.get(key), other(key)
        r = v / p if v is not None and p else None
        ok = None if r is None else r >= least if least else r <= most
        bar = f">= {least} x" if least else f"<= {most} x"
        add(what, show(v, unit), show(p, unit) + ref, bar + (f": {r:.2f}" if r is not None else ""), ok)

    def limit(what, v, most, unit, against=None):
        add(what, show(v, unit), against or "-", f"<= {show(most, unit)}", None if v is None else v <= most)

    for ef in EF:
        v, (p, ref) = mine.get(f"recall.{ef}"), other(f"recall.{ef}")
        add(f"recall@{K}, ef {ef}", show(v, "recall"), show(p, "recall") + ref, ">= peer",
            None if v is None or p is None else v >= p)
    ratio("CREATE INDEX", "build_s", most=0.6, unit="s")
    scale = rows / 1e6 * (dim + 21) / 149           # the limits are for a million rows of 128
    v, (p, ref) = mine.get("size_mib"), other("size_mib")
    limit("index, float32", v, 600 * scale, "MiB", show(p, "MiB") + ref)
    limit("index, float16", mine.get("size_half_mib"), 350 * scale, "MiB")
    ef = mine.get("qps_ef")
    for clients in (1, 16):
        ratio(f"queries/s, {clients} client{'s' * (clients > 1)}", f"qps.{clients}", least=1.5)
    v, (p, ref) = mine.get("qps.64"), other("qps.64")
    add("queries/s, 64 clients", show(v), show(p) + ref, "no bar", None)
    for who, key in (("vecgpu", mine), ("pgvector", peer)):
        used = key.get("qps_ef")
        if used:
            r = key.get(f"recall.{used}")
            add(f"  recall there, {who} (ef {used})", show(r, "recall"), "-", ">= 0.98", None if r is None else r >= 0.98)
    ratio("INSERT/s, burst, 1 client", "insert.1", least=30)
    ratio("INSERT/s, burst, 16 clients", "insert.16", least=20)
    ratio("INSERT/s, sustained, last flush counted", "sustain_flushed" if "sustain_flushed" in peer else "sustain", least=3)
    idle, busy = mine.get("idle_search_recall"), mine.get("busy_search_recall")
    add("  recall of the searches meanwhile", show(busy, "recall"), show(idle, "recall") + " idle", ">= idle - 0.005",
        None if idle is None or busy is None else busy >= idle - 0.005)
    idle, busy = mine.get("idle_search_p99_ms"), mine.get("busy_search_p99_ms")
    add("  p99 of the searches meanwhile", show(busy, "ms"), show(idle, "ms") + " idle",
        "<= 3 x" + (f": {busy / idle:.2f}" if idle and busy else ""), None if not idle or not busy else busy <= 3 * idle)
    p, ref = other("update_s")
    limit("UPDATE of another column, 2,000 rows", mine.get("update_s"), 0.1, "s", show(p, "s") + ref)
    p, ref = other("vacuum01_s")
    limit("VACUUM after deleting 0.1 %", mine.get("vacuum01_s"), 0.5, "s", show(p, "s") + ref)
    v, h = mine.get("vacuum2_s"), heap.get("vacuum2_s")
    add("VACUUM after deleting 2 %", show(v, "s"), show(h, "s") + " no index",
        "<= 2 x" + (f": {v / h:.2f}" if v and h else ""), None if v is None or not h else v <= 2 * h)
    v, h, p = mine.get("wal_row"), heap.get("wal_row"), peer.get("wal_row")
    part = v - h if v is not None and h is not None else None
    limit("WAL a row, the index's part", part, 1.5 * 4 * dim, "B",
          f"{show(p - h if p and h else None, 'B')}; heap {show(h, 'B')}")
    if "gpu_qps.1" in mine:
        for clients, least in ((1, 4_000), (16, 50_000), (64, 80_000)):
            v = mine.get(f"gpu_qps.{clients}")
            add(f"on the GPU: queries/s, {clients} client{'s' * (clients > 1)}", show(v), "-", f">= {least:,}", None if v is None else v >= least)
        v = mine.get(f"gpu_recall.{ef or 100}")
        add("  recall there", show(v, "recall"), "-", ">= 0.98", None if v is None else v >= 0.98)
    if "path_added_p50_us" in mine:
        limit("engine path, added p50, 1 client", mine["path_added_p50_us"], 15, "us")
        limit("engine path, added p99, 1 client", mine["path_added_p99_us"], 40, "us")
        for clients, least in ((16, 250_000), (64, 300_000)):
            v = mine.get(f"path_requests.{clients}")
            add(f"engine path, requests/s, {clients} clients", show(v), "-", f">= {least:,}", None if v is None else v >= least)
        v = mine.get("mirror_load_gb_s")
        add("mirror load from shared buffers", show(v, "GB/s"), "-", ">= 3 GB/s", None if v is None else v >= 3)
        v = mine.get("kill_errors")
        add("kill -9 of the engine, 64 clients: errors, wrong answers", show(v), "-", "0", None if v is None else v == 0)
        limit("  first device answer after the mirror is there", mine.get("kill_answer_s"), 2, "s")
    return out


def table(lines):
    head = ("", "vecgpu", "compared with", "bar", "")
    widths = [max(len(r[i]) for r in [head, *lines]) for i in range(5)]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(r, widths)).rstrip() for r in [head, *lines])


def short_table(state):
    lines = bars(state["figures"], state["rows"], state["dim"])
    verdicts = [r[4] for r in lines]
    return (table(lines) + f"\n{verdicts.count('pass')} passed, {verdicts.count('FAIL')} failed, "
            f"{sum(1 for r in lines if r[4] == '-' and r[3] != 'no bar')} not measured")


def section(state, meta, notes):
    """Markdown of this run: what was run, the bars, every figure; earlier figures are marked."""
    figures, measured = state["figures"], set(state["measured"])
    engines = [e for e in ("vecgpu", "pgvector", "heap") if any(k.startswith(e + ".") for k in figures)]
    names = list(dict.fromkeys(k.split(".", 1)[1] for k in figures))
    out = [f"\n## {meta['date']}, commit {meta['commit']}\n"]
    out += [f"- {k}: {v}" for k, v in meta.items() if k not in ("date", "commit")]
    out += [f"- note: {n}" for n in notes]
    out += [f"- FAILED: {f}" for f in state["failures"]]
    out += ["", "| | vecgpu | compared with | bar | |", "| --- | --- | --- | --- | --- |"]
    out += ["| " + " | ".join(r) + " |" for r in bars(figures, state["rows"], state["dim"])]
    out += ["", "| figure | " + " | ".join(engines) + " |", "| --- " * (len(engines) + 1) + "|"]
    for n in names:
        cells = []
        for e in engines:
            v = figures.get(f"{e}.{n}")
            text = "" if v is None else f"{v:.4f}" if "recall" in n and "_s" not in n else \
                f"{v:,.0f}" if isinstance(v, int) or abs(v) >= 1000 else f"{v:.4g}"
            cells.append(text + ("*" if text and f"{e}.{n}" not in measured else ""))
        out.append(f"| {n} | " + " | ".join(cells) + " |")
    if any(k not in measured for k in figures):
        out += ["", "\\* measured by an earlier run on the same machine and data."]
    return "\n".join(out) + "\n"
