#!/usr/bin/env python3
"""All figures of the GPU device that have a bar, in one run: exact, graph, self-match, k-selection, hash tables, dispatch, and the peers.

    bench/gpu.py --sift DIR [--text DIR] [--peers] [--raft PROGRAM] [--only exact,graph,...] [--section FILE] [--host TEXT]

DIR holds base.u8bin and query.u8bin (or .fbin). Runs build/device_bench and the programs of cuda/build (make device-bench cuda
cuda-test), then gpu_peers.py if asked for, and prints their output as it comes; a table of the bars last. --section appends a
dated section for RESULTS.md. A graph is built once and kept in DIR. Exit status 1 if a program fails or an answer was not the same at every batch size.
"""
import argparse
import datetime
import os
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
GRAPH_BATCHES = "1,16,64,256,512,1024,2048,4096,10000"


class Run:
    def __init__(self):
        self.figures = {}       # key -> value
        self.commands = []
        self.failures = []
        self.texts = []         # (prefix, ef_construction)

    def call(self, words, parse):
        self.commands.append(" ".join(os.path.relpath(w, ROOT) if w.startswith(ROOT) else w for w in words))
        print("$ " + self.commands[-1], flush=True)
        try:
            process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        except OSError as error:
            print(error, flush=True)
            self.failures.append(self.commands[-1])
            return
        for line in process.stdout:
            print(line, end="", flush=True)
            parse(line)
        if process.wait() != 0:
            self.failures.append(self.commands[-1])

    def device(self, prefix, folder, words):
        """device_bench; figures `prefix.storage.exact.k.batch`, `prefix.storage.graph.ef.batch` (us), `….recall.ef`, `….self`."""
        state = {}

        def parse(line):
            if m := re.match(r"(f32|f16|bf16|i8): mirror", line):
                state["storage"] = m[1]
            elif m := re.match(r"  exact k (\d+), batch +(\d+): kernel +([\d.]+) us", line):
                self.figures[f"{prefix}.{state['storage']}.exact.{m[1]}.{m[2]}"] = float(m[3])
            elif m := re.match(r"  graph ef (\d+): recall@10 ([\d.]+)", line):
                state["ef"] = m[1]
                self.figures[f"{prefix}.{state['storage']}.recall.{m[1]}"] = float(m[2])
            elif m := re.match(r"    batch +(\d+): kernel +([\d.]+) us", line):
                self.figures[f"{prefix}.{state['storage']}.graph.{state['ef']}.{m[1]}"] = float(m[2])
            elif m := re.match(r"  self-match, ef 64: ([\d.]+) %", line):
                self.figures[f"{prefix}.{state['storage']}.self"] = float(m[1])
            elif m := re.match(r"  checked in double: \d+ queries, (\d+) wrong", line):
                if int(m[1]):
                    self.failures.append(line.strip())
            if "DIFFERENT ROWS" in line:
                self.failures.append(line.strip())

        files = []
        if folder:
            for name in ("base", "query"):
                path = next(p for p in (f"{folder}/{name}.{e}" for e in ("u8bin", "fbin")) if os.path.exists(p))
                files += [f"--{name}", path]
        self.call([f"{ROOT}/build/device_bench", f"{ROOT}/cuda/build/vecgpu_cuda.so", *files, *words], parse)

    def hash(self):
        """Best of the tiles: `hash.table.fill.operation` (G/s); `hash.set.slots.fill` in shared memory."""
        def parse(line):
            if m := re.match(r"shared (.+?) +(\d+) slots, .*\| fill (\d+) % \| ([\d.]+) G/s", line):
                self.figures[f"hash.{m[1]}.{m[2]}.{m[3]}"] = float(m[4])
            elif m := re.match(r"(.+?) +lanes \d+ \|.*\| fill (\d+) % \|", line):
                for name, rate in re.findall(r"\| ([a-z-]+) ([\d.]+)", line):
                    key = f"hash.{m[1]}.{m[2]}.{name}"
                    self.figures[key] = max(self.figures.get(key, 0), float(rate))
        self.call([f"{ROOT}/cuda/build/hash_test", "--bench"], parse)

    def dispatch(self):
        def parse(line):
            if m := re.match(r"(.+?) +(\d+) callers: p50 +([\d.]+) .*p99 +([\d.]+) ", line):
                self.figures[f"dispatch.{m[1]}.{m[2]}"] = (float(m[3]), float(m[4]))
        self.call([f"{ROOT}/cuda/build/dispatch_test"], parse)

    def select(self):
        def parse(line):
            if m := re.match(r"(\d+) x (\d+), (\w+)", line):
                for k, us in re.findall(r"k (\d+): (\d+(?:\.\d+)?) us", line):
                    self.figures[f"select.{m[3]}.{m[1]}.{m[2]}.{k}"] = float(us)
        self.call([f"{ROOT}/cuda/build/select_test", "--bench"], parse)

    def raft(self, program):
        def parse(line):
            if m := re.match(r"select \| RAFT select_k (\d+) x (\d+) k (\d+) \| ([\d.]+) us", line):
                self.figures[f"raft.{m[1]}.{m[2]}.{m[3]}"] = float(m[4])
        self.call([program], parse)

    def peers(self, prefix, folder, words):
        def parse(line):
            cells = line.rstrip("\n").split("\t")
            if len(cells) == 5:
                self.figures.setdefault("peers", []).append((prefix, cells[0], float(cells[2]), int(cells[3]), float(cells[4])))
        path = {n: next(p for p in (f"{folder}/{n}.{e}" for e in ("u8bin", "fbin")) if os.path.exists(p)) for n in ("base", "query")}
        self.call([sys.executable, f"{HERE}/gpu_peers.py", "--base", path["base"], "--query", path["query"], *words], parse)

    # -- the table ---------------------------------------------------------------------------------------------

    def peer(self, prefix, names, batch, recall=0.0):
        found = [p[4] for p in self.figures.get("peers", []) if p[0] == prefix and p[1] in names and p[3] == batch and p[2] >= recall]
        return min(found) if found else None

    def graph(self, prefix, storage, recall):
        """The narrowest ef of the run that reaches the recall."""
        efs = [(int(k.rsplit(".", 1)[1]), v) for k, v in self.figures.items() if k.startswith(f"{prefix}.{storage}.recall.")]
        return next(((ef, r) for ef, r in sorted(efs) if r >= recall), (None, None))

    def rows(self):
        out = []
        get = self.figures.get

        def add(what, value, bar, unit, peer=None, more=False):
            if value is None:
                return
            met = value >= bar if more else value <= bar
            ratio = "" if not peer else f"{peer:,.4g} ({(value / peer if more else peer / value):.1f} x)"
            out.append((what, f"{value:,.4g} {unit}", f"{'≥' if more else '≤'} {bar:,g}", "met" if met else "**missed**", ratio))

        def rate(us, n):
            return None if us is None else n / us

        for storage, bar in (("f32", 130), ("f16", 76), ("i8", 48)):
            add(f"exact, {storage}, 1 query", get(f"sift.{storage}.exact.10.1"), bar, "µs",
                self.peer("sift", ("cuVS brute force", "faiss Flat"), 1))
        for batch, bar in ((64, 180), (100, 190), (1000, 660)):
            add(f"exact, f32, {batch} queries", get(f"sift.f32.exact.10.{batch}"), bar, "µs",
                self.peer("sift", ("cuVS brute force", "faiss Flat"), batch))
        best = self.peer("sift", ("cuVS brute force", "faiss Flat"), 10000)
        add("exact, f32, 10,000 queries", rate(get("sift.f32.exact.10.10000"), 10000), 1.8, "M q/s", rate(best, 10000), True)
        add("exact, f32, 10,000 queries, k 100", rate(get("sift.f32.exact.100.10000"), 10000), 0.9, "M q/s", None, True)
        best = self.peer("text", ("cuVS brute force", "faiss Flat"), 10000)
        add("exact, text 384-d, 10,000 queries", rate(get("text.f32.exact.10.10000"), 10000), 1.0, "M q/s", rate(best, 10000), True)

        def graph(prefix, storage, recall, bars, name):
            ef, found = self.graph(prefix, storage, recall)
            peers = prefix.rstrip("0123456789")
            if ef is None:
                return
            for batch, bar in bars:
                us, peer = get(f"{prefix}.{storage}.graph.{ef}.{batch}"), self.peer(peers, ("CAGRA",), batch, recall)
                what = f"graph, {name}, ef {ef} (recall {found:.5f}), {batch:,}"
                if batch == 10000:
                    add(what, rate(us, batch), bar, "M q/s", rate(peer, batch), True)
                else:
                    add(what, us, bar, "µs", peer)

        graph("sift", "f32", 0.99, ((1, 55), (16, 65), (64, 120), (256, 220), (1024, 500), (10000, 4.2)), "f32")
        graph("sift", "f16", 0.99, ((10000, 6.8),), "f16")
        graph("sift", "i8", 0.99, ((10000, 10),), "i8")
        for prefix, width in self.texts:
            graph(prefix, "f32", 0.96, ((1, 90), (64, 180), (10000, 1.0)), f"text 384-d, ef_construction {width}")
        for key in sorted(k for k in self.figures if k.endswith(".self")):
            add(f"self-match, {key[:-5]}", get(key), 99.9, "%", None, True)

        def select(rows, columns, k):
            found = [v for key, v in self.figures.items() if re.fullmatch(rf"select\.\w+\.{rows}\.{columns}\.{k}", key)]
            default = get(f"select.default.{rows}.{columns}.{k}")
            return default if default is not None else min(found) if found else None

        for k, bar in ((10, 3900), (100, 2500), (1024, 800)):
            us, peer = select(10000, 16384, k), get(f"raft.10000.16384.{k}")
            size = 10000 * 16384 * 4 / 1e3
            add(f"k-selection, 10,000 × 16,384, k {k}", us and size / us, bar, "GB/s", peer and size / peer, True)
        for k, bar in ((10, 17), (100, 17), (1024, 29)):
            add(f"k-selection, 1 × 1,000,000, k {k}", select(1, 1000000, k), bar, "µs", get(f"raft.1.1000000.{k}"))
        known = {"1.1000000": (50, 85, 129, 190, 166), "100.1000000": (260, 300, 465, 657, 3257), "1000.10000": (72, 82, 217, 270, 1010),
                 "10000.1024": (139, 260, 314, 489, 3035), "10000.16384": (575, 772, 1059, 1482, 7556),
                 "10000.100000": (2220, 2320, 3690, 6630, 27500)}    # RAFT on this GPU model, where the run has none
        ratios = []
        for shape, times in known.items():
            for k, us in zip((10, 32, 100, 256, 1024), times):
                own = select(*shape.split("."), k)
                if own:
                    ratios.append((get(f"raft.{shape}.{k}", us) / own, f"{shape.replace('.', ' × ')} k {k}"))
        if ratios:
            add(f"k-selection, least ratio to RAFT ({min(ratios)[1]})", min(ratios)[0], 2.3, "×", None, True)
        for fill in (50, 80, 90, 95):
            compact, whole = (get(f"hash.iceberg 32 x {bits}.{fill}.find-or-put") for bits in ("16, compact", "32, uncompact"))
            add(f"iceberg find-or-put, compact over uncompact, {fill} % full", compact and whole and compact / whole, 1.1, "×", None, True)
        for fill in (30, 60, 80):
            add(f"find-or-puts in shared memory, {fill} % full", get(f"hash.SharedBuckets, 8 x 16.2048.{fill}"), 170, "G/s", None, True)
        for callers in (1, 16):
            for which, bar, at in (("p50", 3.5, 0), ("p99", 4, 1)):
                times = get(f"dispatch.resident 8.{callers}")
                add(f"dispatch, cluster that stays, {callers} callers, {which}", times and times[at], bar, "µs")
        return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sift")
    parser.add_argument("--text")
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--raft", help="program that prints RAFT's select_k times")
    parser.add_argument("--only", default="exact,graph,self,text,select,hash,dispatch")
    parser.add_argument("--ef", default="80,96,100,102,104,112,128,144")
    parser.add_argument("--text-ef", default="64,96,128,144,160,192,256,360,512")
    parser.add_argument("--text-ef-construction", default="64,200", help="a graph each")
    parser.add_argument("--section")
    parser.add_argument("--host", default="one GPU")
    options = parser.parse_args()
    only = options.only.split(",")
    run = Run()
    if options.sift:
        kept = ["--graph-file", f"{options.sift}/graph.m16"]
        if "exact" in only:
            run.device("sift", options.sift, ["--exact", "--check", "--storages", "f32,f16,i8", "--k", "10,100",
                                              "--batches", "1,2,16,64,100,1000,10000"])
        if "graph" in only:
            run.device("sift", options.sift, ["--graph", *kept, "--storages", "f32,f16,i8", "--ef", options.ef, "--k", "10",
                                              "--batches", GRAPH_BATCHES])
        if "self" in only:
            for name, words in (("l2", []), ("cosine", ["--cosine"]), ("ip", ["--ip", "--normalise"])):
                run.device(name, options.sift, ["--graph", "--rows", "200000", "--self", *words, "--storages", "f32,f16,bf16,i8",
                                                "--ef", "64", "--k", "10", "--batches", "10000"])
    if options.text and "text" in only:
        for width in options.text_ef_construction.split(","):
            prefix = f"text{width}"
            run.texts.append((prefix, width))
            run.device(prefix, options.text, ["--graph", "--ef-construction", width, "--graph-file", f"{options.text}/graph.{width}",
                                              "--cosine", "--ef", options.text_ef, "--k", "10", "--batches", "1,16,64,256,1024,10000"])
        run.device("text", options.text, ["--cosine", "--exact", "--k", "10", "--batches", "1,16,64,256,1024,10000"])
    if "select" in only:
        run.select()
    if "hash" in only:
        run.hash()
    if "dispatch" in only:
        run.dispatch()
    if options.raft:
        run.raft(options.raft)
    if options.peers:
        if options.sift:
            run.peers("sift", options.sift, [])
        if options.text:
            run.peers("text", options.text, ["--cosine", "--widths", "64,128,256"])
    table = ["| what | measured | bar | | best peer of this run |", "| --- | --- | --- | --- | --- |"]
    table += ["| " + " | ".join(row) + " |" for row in run.rows()]
    print("\n" + "\n".join(table))
    for failure in run.failures:
        print("FAILED: " + failure)
    if options.section:
        commit = os.environ.get("BENCH_COMMIT") or subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"],
                                                                  capture_output=True, text=True).stdout.strip() or "unknown"
        with open(options.section, "a") as f:
            f.write(f"\n## {datetime.date.today()}: the GPU device, commit {commit}\n\n{options.host}. Times are of the device (kernels).\n```\n"
                    + "\n".join(run.commands) + "\n```\n\n" + "\n".join(table) + "\n")
    return 1 if run.failures else 0


if __name__ == "__main__":
    sys.exit(main())
