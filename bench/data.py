"""Vectors for the bench: files, exact neighbours, the SIFT set, PostgreSQL's binary COPY.

    data.py sift --pack PACK.tar --tools DIR --out DIR [--rows 1000000]

makes base.u8bin, query.u8bin, extra.u8bin (rows to insert) and gt100.ibin / gt100.fbin (squared
distances) from a pack of pictures; DIR holds make_sift.py and its gt.py. Any folder with a
base.u8bin and a query.u8bin (uint32 n, uint32 d, then the rows) is a data set; what is missing of
the rest is made.
"""
import argparse
import json
import multiprocessing
import os
import sys
import time

import numpy as np

TYPES = {"u8bin": np.uint8, "fbin": np.float32, "ibin": np.int32}
K = 10                          # neighbours asked for, everywhere
FIRST_INSERTED = 10_000_000     # ids of inserted rows start here; id -> staging row by modulo


def read_bin(path):
    kind = np.dtype(TYPES[path.rsplit(".", 1)[-1]])
    n, d = (int(v) for v in np.fromfile(path, np.uint32, 2))
    return np.fromfile(path, kind, n * d, offset=8).reshape(n, d)


def write_bin(path, a):
    a = np.ascontiguousarray(a, TYPES[path.rsplit(".", 1)[-1]])
    with open(path, "wb") as f:
        np.array(a.shape, np.uint32).tofile(f)
        a.tofile(f)


def _knn_torch(base, query, k):
    import torch
    b = torch.from_numpy(base).cuda().float()
    norm = (b * b).sum(1)
    torch.backends.cuda.matmul.allow_tf32 = False
    ids, dist = [], []
    for i in range(0, len(query), 500):
        q = torch.from_numpy(query[i:i + 500]).cuda().float()
        d = norm + (q * q).sum(1)[:, None] - 2 * q @ b.T      # exact: integers below 2^24
        v, j = d.topk(k, largest=False)
        ids.append(j.cpu().numpy())
        dist.append(v.cpu().numpy())
    return np.concatenate(ids), np.concatenate(dist)


def exact_knn(base, query, k):
    """ids and squared distances of the k nearest rows, ascending by (distance, id)."""
    try:
        import torch
        gpu = torch.cuda.is_available()
    except ImportError:
        gpu = False
    if gpu:
        ids, dist = _knn_torch(base, query, k)
    else:
        b = base.astype(np.float32)
        norm = (b * b).sum(1)
        ids = np.empty((len(query), k), np.int64)
        dist = np.empty((len(query), k), np.float32)
        for i in range(0, len(query), 64):
            q = query[i:i + 64].astype(np.float32)
            d = norm + (q * q).sum(1)[:, None] - 2 * q @ b.T
            j = np.argpartition(d, k - 1, axis=1)[:, :k]
            ids[i:i + 64], dist[i:i + 64] = j, np.take_along_axis(d, j, 1)
    order = np.lexsort((ids, dist))
    return np.take_along_axis(ids, order, 1), np.take_along_axis(dist, order, 1)


def make_sift(pack, tools, out, rows, queries=10000):
    """All descriptors of the pack; a random `rows` of them are the base, the others the extra rows."""
    sys.path.insert(0, os.path.abspath(tools))
    sys.dont_write_bytecode = True
    import cv2
    import make_sift as recipe
    cv2.setNumThreads(1)                            # threads of the parent and fork do not go together
    multiprocessing.set_start_method("spawn")
    recipe.build(argparse.Namespace(images=pack, out=out, side=1600, min_side=256, hash_bits=12,
                                    jobs=os.cpu_count(), per_image=4000, contrast=0.02, edge=10,
                                    n_base=0, n_query=queries, query_share=0.04, seed=1, no_gt=True))
    every = read_bin(f"{out}/base.u8bin")
    rng = np.random.default_rng(1)
    chosen = np.zeros(len(every), bool)
    chosen[rng.choice(len(every), rows, replace=False)] = True
    os.remove(f"{out}/base.u8bin")
    os.remove(f"{out}/base.meta.npy")
    extra = every[~chosen]
    write_bin(f"{out}/extra.u8bin", extra[rng.permutation(len(extra))])
    t = time.time()
    base = every[chosen]
    ids, dist = exact_knn(base, read_bin(f"{out}/query.u8bin"), 100)
    write_bin(f"{out}/gt100.ibin", ids)
    write_bin(f"{out}/gt100.fbin", dist)
    write_bin(f"{out}/base.u8bin", base)                       # last: its presence says "complete"
    print(f"ground truth {time.time() - t:.1f} s; {len(base)} base, {len(extra)} extra rows")


class Dataset:
    def __init__(self, folder, staging, limit=None):
        self.folder = folder
        self.base = read_bin(f"{folder}/base.u8bin")[:limit]
        self.query = read_bin(f"{folder}/query.u8bin")
        self.dim = self.base.shape[1]
        have = os.path.exists(f"{folder}/gt100.ibin") and (limit is None or limit >= len(self.base))
        if have and not limit:
            self.gt_ids = read_bin(f"{folder}/gt100.ibin").astype(np.int64)
            self.gt_dist = read_bin(f"{folder}/gt100.fbin")
        else:
            self.gt_ids, self.gt_dist = exact_knn(self.base, self.query, min(100, len(self.base)))
        self.staging = self._staging(folder, staging)
        self.wrong = dict.fromkeys(("out of order", "an id twice", "fewer than k"), 0)

    def _staging(self, folder, rows):
        """Rows to insert: the extra rows, then base rows with every component moved by up to 6."""
        path = f"{folder}/extra.u8bin"
        real = read_bin(path)[:rows] if os.path.exists(path) else np.empty((0, self.dim), np.uint8)
        self.real_staging = len(real)
        rng = np.random.default_rng(7)
        parts, missing = [real], rows - len(real)
        while missing > 0:
            block = self.base[rng.integers(0, len(self.base), min(missing, 100_000))].astype(np.int16)
            block += rng.integers(-6, 7, block.shape, np.int16)
            parts.append(np.clip(block, 0, 255).astype(np.uint8))
            missing -= len(block)
        return np.concatenate(parts)

    def vectors(self, ids):
        ids = np.asarray(ids)
        out = np.empty((*ids.shape, self.dim), np.float32)
        old = ids < FIRST_INSERTED
        out[old] = self.base[ids[old]]
        out[~old] = self.staging[(ids[~old] - FIRST_INSERTED) % len(self.staging)]
        return out

    def recall(self, answers, kth=None):
        """Mean share of right ids; `answers` = {query: ids}; right = not farther than the k-th."""
        if not answers:
            return 0.0
        total = 0.0
        for q, ids in answers.items():
            limit = self.gt_dist[q, K - 1] if kth is None else kth[q]
            d = ((self.vectors(ids) - self.query[q].astype(np.float32)) ** 2).sum(1)
            self.wrong["out of order"] += int((np.diff(d) < 0).any())
            if len(set(ids)) != len(ids):
                self.wrong["an id twice"] += 1
                d = d[np.unique(ids, return_index=True)[1]]
            self.wrong["fewer than k"] += int(len(ids) < K)
            total += min(K, (d <= limit).sum()) / K
        return total / len(answers)

    def moving_recall(self, samples, rows):
        """Recall of answers given while rows come in.

        samples: (query, snapshot text, ids); rows: array of (id, xmin) of the whole table at the end.
        What a sample should have seen follows from its snapshot, row by row.
        """
        if not samples:
            return 0.0
        alive = np.zeros(len(self.base), bool)
        alive[rows[rows[:, 0] < FIRST_INSERTED, 0]] = True
        new = rows[rows[:, 0] >= FIRST_INSERTED]
        x = self.vectors(new[:, 0])
        norm = (x * x).sum(1)
        total = 0.0
        for i in range(0, len(samples), 64):
            block = samples[i:i + 64]
            q = self.query[[s[0] for s in block]].astype(np.float32)
            d = norm + (q * q).sum(1)[:, None] - 2 * q @ x.T
            for (qid, snapshot, ids), mine in zip(block, d):
                _, top, running = snapshot.split(":")
                ok = alive[self.gt_ids[qid]]
                best = self.gt_dist[qid][ok][:K]
                near = np.nonzero(mine <= best[-1])[0]
                xid = new[near, 1]
                seen = xid < int(top)
                if running:
                    seen &= ~np.isin(xid, [int(r) for r in running.split(",")])
                best = np.sort(np.concatenate([best, mine[near[seen]]]))[:K]
                total += self.recall({qid: ids}, {qid: best[-1]})
        return total / len(samples)


def copy_bytes(kind, ids, tags, vectors):
    """Rows (id int4, tag int4, v) in COPY's binary format; kind is 'real[]' or 'vector'."""
    d = vectors.shape[1]
    head = [("fields", ">i2"), ("len_id", ">i4"), ("id", ">i4"), ("len_tag", ">i4"), ("tag", ">i4"),
            ("len_v", ">i4")]
    if kind == "vector":
        row = np.dtype(head + [("dim", ">i2"), ("unused", ">i2"), ("v", ">f4", (d,))])
    else:
        row = np.dtype(head + [("ndim", ">i4"), ("flags", ">i4"), ("type", ">i4"), ("dim", ">i4"),
                               ("lower", ">i4"), ("e", [("len", ">i4"), ("v", ">f4")], (d,))])
    out = np.zeros(len(ids), row)
    out["fields"], out["len_id"], out["len_tag"] = 3, 4, 4
    out["id"], out["tag"], out["dim"] = ids, tags, d
    out["len_v"] = row.itemsize - np.dtype(head).itemsize
    if kind == "vector":
        out["v"] = vectors
    else:
        out["ndim"], out["type"], out["lower"] = 1, 700, 1
        out["e"]["len"], out["e"]["v"] = 4, vectors
    return out.tobytes()


COPY_HEAD = b"PGCOPY\n\xff\r\n\0" + bytes(8)
COPY_TAIL = b"\xff\xff"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sub = p.add_subparsers(dest="cmd", required=True)
    s = sub.add_parser("sift")
    s.add_argument("--pack", required=True)
    s.add_argument("--tools", required=True)
    s.add_argument("--out", required=True)
    s.add_argument("--rows", type=int, default=1_000_000)
    i = sub.add_parser("info")
    i.add_argument("--dir", required=True)
    a = p.parse_args()
    if a.cmd == "sift":
        make_sift(a.pack, a.tools, a.out, a.rows)
    else:
        d = Dataset(a.dir, 1000)
        print(json.dumps(dict(rows=len(d.base), queries=len(d.query), dim=d.dim)))


if __name__ == "__main__":
    main()
