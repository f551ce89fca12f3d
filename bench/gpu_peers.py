#!/usr/bin/env python3
"""cuVS and faiss-gpu on the same GPU and the same rows as device_bench: device time of a call by batch size.

    gpu_peers.py --base FILE --query FILE [--cosine] [--parts flat,cagra,faiss] [--widths 64,128]

Needs cuvs, faiss (GPU), cupy and torch. A line a measurement, tab-separated: what, setting, recall@10, batch, microseconds of device
time of one call (sum of all its kernels and copies, from the profiler; queries and results lie in device memory). FILE: .u8bin or .fbin.
"""
import argparse
import sys

import cupy as cp
import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

K = 10


def read(path):
    dtype = np.uint8 if path.endswith(".u8bin") else np.float32
    with open(path, "rb") as f:
        n, d = np.fromfile(f, np.uint32, 2)
        return np.fromfile(f, dtype, int(n) * int(d)).reshape(int(n), int(d)).astype(np.float32)


def device_us(call, calls):
    for i in range(3):
        call(i)
    cp.cuda.runtime.deviceSynchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as p:
        for i in range(calls):
            call(i)
        cp.cuda.runtime.deviceSynchronize()
    return sum(e.device_time for e in p.events() if e.device_type == torch.autograd.DeviceType.CUDA) / calls


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--base", required=True)
    parser.add_argument("--query", required=True)
    parser.add_argument("--cosine", action="store_true")
    parser.add_argument("--parts", default="flat,cagra,faiss")
    parser.add_argument("--batches", default="1,16,64,256,1024,10000")
    parser.add_argument("--widths", default="64,128", help="itopk_size of CAGRA")
    options = parser.parse_args()
    parts = options.parts.split(",")
    batches = [int(b) for b in options.batches.split(",")]
    rows, queries = read(options.base), read(options.query)
    if options.cosine:
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    elif np.abs(rows).max() > 16:
        # cuVS sums squares in float16 while it builds a graph: norms of some hundreds overflow there.
        rows *= np.float32(1 / 256)
        queries *= np.float32(1 / 256)
    x, q = cp.asarray(rows), cp.asarray(queries)
    count = len(q)

    from cuvs.common import Resources
    from cuvs.neighbors import brute_force, cagra
    resources = Resources()

    def slices(batch):
        return [q[i:i + batch] for i in range(0, count - batch + 1, batch)][:2000]

    def report(what, setting, found, batch, search):
        parts_of = slices(min(batch, count))
        us = device_us(lambda i: search(parts_of[i % len(parts_of)]), 20 if batch < 1000 else 2)
        print(f"{what}\t{setting}\t{found:.4f}\t{batch}\t{us:.1f}", flush=True)

    exact = brute_force.build(x, metric="sqeuclidean", resources=resources)
    truth = np.concatenate([cp.asarray(brute_force.search(exact, q[i:i + 1000], K, resources=resources)[1]).get()
                            for i in range(0, count, 1000)])
    limit = ((queries - rows[truth[:, K - 1]]) ** 2).sum(1)

    def recall(ids):
        hits = 0
        for i in range(0, count, 1000):
            part = ids[i:i + 1000].astype(np.int64)
            known = (part >= 0) & (part < len(rows))
            distance = ((queries[i:i + 1000, None] - rows[np.where(known, part, 0)]) ** 2).sum(-1)
            # as near as the true 10th; a row twice counts once
            near = known & (distance <= limit[i:i + 1000, None] * (1 + 1e-5) + 1e-6)
            hits += sum(len(np.unique(p[g])) for p, g in zip(part, near))
        return hits / (count * K)

    if "flat" in parts:
        for batch in [1, 64, 100, 1000, 10000]:
            report("cuVS brute force", "float32", 1, batch, lambda v: brute_force.search(exact, v, K, resources=resources))
    if "faiss" in parts:
        import faiss
        import faiss.contrib.torch_utils  # noqa: F401
        own = faiss.StandardGpuResources()
        settings = faiss.GpuIndexFlatConfig()
        settings.use_cuvs = False
        index = faiss.GpuIndexFlatL2(own, rows.shape[1], settings)
        index.add(torch.from_numpy(rows).cuda())
        for batch in [1, 100, 10000]:
            report("faiss Flat", "float32", 1, batch, lambda v: index.search(torch.as_tensor(v, device="cuda"), K))
        del index, own
    if "cagra" in parts:
        for degree, inter in [(32, 64), (64, 128)]:
            index = cagra.build(cagra.IndexParams(metric="sqeuclidean", intermediate_graph_degree=inter, graph_degree=degree,
                                                  build_algo="ivf_pq"), x, resources=resources)
            for width in [int(w) for w in options.widths.split(",")]:
                params = cagra.SearchParams(itopk_size=width)
                found = recall(cp.asarray(cagra.search(params, index, q, K, resources=resources)[1]).get())
                for batch in batches:
                    report("CAGRA", f"degree {degree}, itopk {width}", found, batch,
                           lambda v: cagra.search(params, index, v, K, resources=resources))
    return 0


if __name__ == "__main__":
    sys.exit(main())
