"""A throwaway PostgreSQL cluster and the programs that talk to it (psql, pgbench)."""
import glob
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time

import numpy as np

from data import COPY_HEAD, COPY_TAIL, copy_bytes

_rows = None            # what the forked COPY workers send: (kind, ids, tags, vectors)


class Failed(RuntimeError):
    pass


def _run(cmd, env, **more):
    r = subprocess.run(cmd, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)
    if r.returncode or "\nERROR:" in "\n" + r.stderr:
        raise Failed(f"{os.path.basename(cmd[0])}: {(r.stderr or r.stdout).strip()[-600:]}")
    return r


def _copy_part(job):
    psql, env, table, start, stop = job
    kind, ids, tags, vectors = _rows
    p = subprocess.Popen(psql + ["-c", f"COPY {table} (id, tag, v) FROM STDIN (FORMAT binary)"],
                         env=env, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        p.stdin.write(COPY_HEAD)
        for i in range(start, stop, 20000):
            j = min(i + 20000, stop)
            p.stdin.write(copy_bytes(kind, ids[i:j], tags[i:j], vectors[i:j]))
        p.stdin.write(COPY_TAIL)
        p.stdin.close()
    except BrokenPipeError:
        pass
    error = p.stderr.read().decode()
    return error if p.wait() else ""


class Cluster:
    def __init__(self, folder, settings, bindir=None):
        self.folder, self.settings = folder, settings
        pg_config = os.environ.get("PG_CONFIG", "pg_config")
        self.bin = bindir or _run([pg_config, "--bindir"], os.environ).stdout.strip()
        self.data, self.tmp = f"{folder}/data", f"{folder}/tmp"
        self.socket = tempfile.mkdtemp(prefix="vgb")           # a socket path must be short
        self.env = dict(os.environ, PGHOST=self.socket, PGPORT="5999", PGDATABASE="postgres",
                        PGUSER="postgres", PGOPTIONS="", LC_ALL="C")
        self.psql = [f"{self.bin}/psql", "-XAtq", "-v", "ON_ERROR_STOP=1"]
        os.makedirs(self.tmp, exist_ok=True)
        self.as_server = []                                    # the server never runs as root
        if os.geteuid() == 0:
            self.as_server = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", "--"]
            for path in (folder, self.socket):
                shutil.chown(path, "postgres")

    def create(self):
        if os.path.exists(self.data):
            shutil.rmtree(self.data)
        _run(self.as_server + [f"{self.bin}/initdb", "-D", self.data, "-U", "postgres", "-A", "trust", "-E", "UTF8",
              "--locale=C", "--no-sync"], self.env, cwd=self.folder)

    def start(self):
        if os.path.exists(f"{self.data}/postmaster.pid"):      # left by a run that was killed
            try:
                self._pg_ctl("-m", "immediate", "-t", "60", "stop")
            except Failed:
                pass
        conf = dict(self.settings, listen_addresses="", unix_socket_directories=self.socket, port=5999)
        with open(f"{self.data}/postgresql.auto.conf", "w") as f:
            f.writelines(f"{k} = '{v}'\n" for k, v in conf.items())
        self._pg_ctl("-l", f"{self.folder}/server.log", "-t", "120", "start")

    def _pg_ctl(self, *what):
        # no pipes: the server would hold them open
        with open(f"{self.folder}/pg_ctl.log", "w+") as log:
            if subprocess.run(self.as_server + [f"{self.bin}/pg_ctl", "-D", self.data, "-w", *what], env=self.env, cwd=self.folder,
                              stdin=subprocess.DEVNULL, stdout=log, stderr=log).returncode:
                log.seek(0)
                raise Failed(f"pg_ctl {what[-1]}: {log.read().strip()[-400:]}; see {self.folder}/server.log")

    def stop(self):
        if os.path.exists(f"{self.data}/postmaster.pid"):
            self._pg_ctl("-m", "fast", "-t", "120", "stop")
        shutil.rmtree(self.socket, ignore_errors=True)

    def options(self, guc):
        return dict(self.env, PGOPTIONS=" ".join(f"-c {k}={v}" for k, v in (guc or {}).items()))

    def sql(self, text, guc=None):
        """One statement (or several in one transaction); the output as text."""
        return _run(self.psql + ["-c", text], self.options(guc)).stdout.strip()

    def timed(self, text, guc=None):
        """Seconds that one statement took, as the client saw it, without the connection."""
        out = _run(self.psql, self.options(guc), input=f"\\timing on\n{text};\n").stdout
        return float(re.findall(r"^Time: ([\d.]+) ms", out, re.M)[-1]) / 1000

    def rows(self, text, guc=None):
        return [line.split("|") for line in self.sql(text, guc).splitlines()]

    def load(self, table, kind, ids, tags, vectors, jobs):
        global _rows
        _rows = (kind, ids, tags, vectors)
        cuts = np.linspace(0, len(ids), min(jobs, max(1, len(ids) // 1000)) + 1).astype(int)
        work = [(self.psql, self.env, table, a, b) for a, b in zip(cuts, cuts[1:])]
        with multiprocessing.get_context("fork").Pool(len(work), signal.signal, (signal.SIGTERM, signal.SIG_DFL)) as pool:
            errors = [e for e in pool.map(_copy_part, work, 1) if e]
        if errors:
            raise Failed(f"COPY {table}: {errors[0].strip()[-400:]}")

    def together(self, statements):
        """Statements at the same time, one connection each."""
        running = [(s, subprocess.Popen(self.psql + ["-c", s], env=self.env, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.PIPE, text=True)) for s in statements]
        for s, p in running:
            error = p.communicate()[1]
            if p.returncode:
                raise Failed(f"{s}: {error.strip()[-400:]}")

    def answers(self, template, queries, guc, jobs):
        """{query: ids} of one statement per query, over `jobs` connections; `template` has {q}."""
        parts = [p for p in np.array_split(np.asarray(queries), jobs) if len(p)]
        running, env = [], self.options(guc)
        for i, part in enumerate(parts):
            path = f"{self.tmp}/answers{i}.sql"
            with open(path, "w") as f:
                f.writelines(template.format(q=q) + ";\n" for q in part)
            running.append(subprocess.Popen(self.psql + ["-f", path, "-o", path + ".out"], env=env,
                                            stderr=subprocess.PIPE, text=True))
        found = {}
        for i, p in enumerate(running):
            error = p.communicate()[1]
            if p.returncode:
                raise Failed(error.strip()[-400:])
            with open(f"{self.tmp}/answers{i}.sql.out") as f:
                for line in f:
                    q, ids = line.strip().split("|")
                    found[int(q)] = [int(v) for v in ids.strip("{}").split(",") if v]
        return found

    def pgbench(self, script, clients, seconds=None, transactions=None, guc=None, variables=None,
                sampling=1.0, progress=None):
        return Pgbench(self, script, clients, seconds, transactions, guc, variables, sampling, progress).result()


class Pgbench:
    """One pgbench run in the background; result() waits for it."""
    serial = 0

    def __init__(self, cluster, script, clients, seconds=None, transactions=None, guc=None,
                 variables=None, sampling=1.0, progress=None):
        Pgbench.serial += 1
        self.prefix = f"{cluster.tmp}/log{Pgbench.serial}"
        with open(f"{self.prefix}.sql", "w") as f:
            f.write(script)
        cmd = [f"{cluster.bin}/pgbench", "-n", "-M", "prepared", "-f", f"{self.prefix}.sql", "-c", str(clients),
               "-j", str(min(clients, os.cpu_count())), "-l", f"--log-prefix={self.prefix}.log"]
        if sampling < 1:
            cmd.append(f"--sampling-rate={sampling}")
        if progress:
            cmd += ["-P", str(progress)]
        cmd += ["-T", str(seconds)] if seconds else ["-t", str(transactions)]
        for k, v in (variables or {}).items():
            cmd += ["-D", f"{k}={v}"]
        self.started = time.monotonic()
        self.process = subprocess.Popen(cmd, env=cluster.options(guc), stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True)

    def result(self):
        out, err = self.process.communicate()
        if self.process.returncode or "aborted" in err:
            raise Failed(f"pgbench: {err.strip()[-500:]}")
        wall = time.monotonic() - self.started
        r = dict(tps=float(re.search(r"^tps = ([\d.]+)", out, re.M)[1]), wall=wall,
                 done=int(re.search(r"actually processed: (\d+)", out)[1]),
                 slices=[float(v) for v in re.findall(r"^progress: .*?, ([\d.]+) tps", err, re.M)])
        parts = []
        for path in glob.glob(f"{self.prefix}.log*"):
            with open(path) as f:
                text = f.read()
            if text:                                   # client, number, microseconds, script, epoch, us
                parts.append(np.fromstring(text, np.int64, sep=" ").reshape(text.count("\n"), -1)[:, 2])
            os.remove(path)
        if parts:
            us = np.concatenate(parts)
            r["p50"], r["p99"] = (float(v) / 1000 for v in np.percentile(us, [50, 99]))
        return r
