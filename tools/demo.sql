-- What `make demo` runs: recall and time of the index against the exact scan, on real data. Variables: k, exact_queries.
\set QUIET on
\pset footer off
\pset border 2
SET client_min_messages = warning;
SET max_parallel_workers_per_gather = 0;

-- One query as an application would send it. hits counts results whose distance is at most the true k-th distance, because
-- equal distances may be returned in any order; true distances are squared and whole numbers, hence the 0.5.
CREATE FUNCTION pg_temp.run(first int, last int, k int, OUT hits bigint, OUT milliseconds float8)
LANGUAGE plpgsql AS $$
DECLARE
    query record;
    started timestamptz;
    distances float8[];
BEGIN
    hits := 0;
    milliseconds := 0;
    FOR query IN SELECT q.id, q.v, t.v[k] AS bound FROM queries q JOIN truth t USING (id)
                 WHERE q.id BETWEEN first AND last ORDER BY q.id
    LOOP
        started := clock_timestamp();
        distances := ARRAY(SELECT i.v <-> query.v FROM items i ORDER BY i.v <-> query.v LIMIT k);
        milliseconds := milliseconds + 1000 * extract(epoch FROM clock_timestamp() - started);
        hits := hits + (SELECT count(*) FROM unnest(distances) d WHERE d * d <= query.bound + 0.5);
    END LOOP;
    milliseconds := milliseconds / (last - first + 1);
END
$$;

CREATE TEMP TABLE result (ord int, way text, queries int, hits bigint, milliseconds float8);
-- Once unmeasured, so that neither way pays for cold caches.
\o /dev/null
SELECT FROM pg_temp.run(0, 19, :k);
\o
INSERT INTO result
    SELECT 1, 'vecgpu index', 500, r.* FROM pg_temp.run(0, 499, :k) r;
SET vecgpu.ef_search = 200;
INSERT INTO result SELECT 2, 'vecgpu index, ef_search 200', 500, r.* FROM pg_temp.run(0, 499, :k) r;
RESET vecgpu.ef_search;
SET enable_indexscan = off;
\o /dev/null
SELECT FROM pg_temp.run(0, 4, :k);
\o
INSERT INTO result SELECT 3, 'exact scan', :exact_queries, r.* FROM pg_temp.run(0, :exact_queries - 1, :k) r;
RESET enable_indexscan;

\echo
\echo The plan of SELECT id FROM items ORDER BY v <-> (the query) LIMIT 10:
EXPLAIN (COSTS OFF) SELECT id FROM items ORDER BY v <-> (SELECT v FROM queries WHERE id = 0) LIMIT 10;
\echo
\echo 20,000 rows of 128 dimensions, ten nearest:
SELECT way, queries, round((hits::numeric / (queries * :k)), 4) AS "recall@10", round(milliseconds::numeric, 3) AS "ms per query"
FROM result ORDER BY ord;
