-- vecgpu.device_form: exact, graph or what the engine measured; what vecgpu_info and vecgpu_mirrors say of it. Where no device is
-- installed (vecgpu.device = auto) this file asks the engine's CPU device all the same.
LOAD 'vecgpu';
SET vecgpu.device = host;
SET vecgpu.fallback = off;
RESET vecgpu.device_form;
SELECT boot_val, context, enumvals FROM pg_settings WHERE name = 'vecgpu.device_form';
SET vecgpu.device_form = flat;
SET vecgpu.device_form = auto;
SET vecgpu.flush_rows = 0;
-- Many clusters and few links, so that a walk misses rows.
CREATE TABLE f (id int PRIMARY KEY, v real[]) WITH (autovacuum_enabled = off);
INSERT INTO f SELECT i, cvec(i, 8, 700) FROM generate_series(1, 12000) i;
CREATE INDEX f_v ON f USING vecgpu (v) WITH (m = 2, ef_construction = 4);
CREATE TABLE q AS SELECT i, cvec(-i, 8, 700) AS v FROM generate_series(1, 40) i;
ANALYZE f;
SELECT device_form, exact_us, graph_us FROM vecgpu_info('f_v');
SELECT device FROM vecgpu_prewarm('f_v');

-- Rows by exact SQL, and how many of them each form finds.
CREATE TABLE truth AS SELECT i, (SELECT array_agg(id) FROM (SELECT id FROM f ORDER BY l2_distance(f.v, q.v), f.ctid LIMIT 10) s) AS ids FROM q;
CREATE FUNCTION found(form text, ef int DEFAULT 10) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
    n int := 0;
    one record;
BEGIN
    PERFORM set_config('vecgpu.device_form', form, true), set_config('vecgpu.ef_search', ef::text, true);
    FOR one IN SELECT q.v, t.ids FROM q JOIN truth t USING (i) LOOP
        n := n + cardinality(ARRAY(SELECT unnest(top('f', one.v, 10)) INTERSECT SELECT unnest(one.ids)));
    END LOOP;
    RETURN n;
END $$;
SELECT found('exact') AS exact, found('graph') < 400 AS graph_misses, found('auto') IN (found('exact'), found('graph')) AS auto_is_one;
-- What vecgpu_info says is what is done.
SELECT found('auto') = found(device_form) AS same FROM vecgpu_info('f_v');
SET vecgpu.ef_search = 300;
SELECT found('auto', 300) = found(device_form, 300) AS same FROM vecgpu_info('f_v');
RESET vecgpu.ef_search;
SELECT device_form IN ('exact', 'graph') AS form, cardinality(exact_us) AS exact, cardinality(graph_us) AS graph,
       0 < ALL (exact_us) AND 0 < ALL (graph_us) AS measured FROM vecgpu_info('f_v');
SELECT device, state, coalesce(exact_from, 1) BETWEEN 1 AND 10000 AS exact_from FROM vecgpu_mirrors() WHERE index = 'f_v'::regclass;
SET vecgpu.device_form = exact;
SELECT device_form FROM vecgpu_info('f_v');
SET vecgpu.device_form = graph;
SELECT device_form FROM vecgpu_info('f_v');
SET vecgpu.device = cpu;
SELECT device_form, exact_us, graph_us FROM vecgpu_info('f_v');
SET vecgpu.device = host;

-- No form caps or doubles rows, or lets the order fall: all of them, filters, waiting and dead rows, beyond what one answer of the engine holds.
SET vecgpu.device_form = exact;
SELECT * FROM walk('f', cvec(-3, 8, 700));
SELECT * FROM walk('f', cvec(-3, 8, 700), 1000);
SELECT * FROM walk('f', cvec(-3, 8, 700), filter => 'id % 500 = 7');
INSERT INTO f SELECT i, cvec(i, 8, 700) FROM generate_series(12001, 12100) i;
DELETE FROM f WHERE id % 50 = 1;
SELECT * FROM walk('f', cvec(-3, 8, 700), 500);
SELECT vecgpu_flush('f_v');
VACUUM f;
SELECT * FROM walk('f', cvec(-3, 8, 700), 500);
BEGIN;
SET LOCAL enable_seqscan = off;
SET LOCAL enable_sort = off;
DECLARE c CURSOR FOR SELECT id, v <-> cvec(-5, 8, 700) AS d FROM f ORDER BY v <-> cvec(-5, 8, 700);
CREATE TEMP TABLE fetched (n serial, id int, d float8);
DO $$
DECLARE
    c refcursor := 'c';
    one record;
BEGIN
    FOR i IN 1 .. 9000 LOOP
        FETCH c INTO one;
        INSERT INTO fetched (id, d) VALUES (one.id, one.d);
    END LOOP;
END $$;
SELECT count(DISTINCT id), bool_and(d >= before) AS ordered,
       max(d) <= (SELECT d FROM (SELECT l2_distance(v, cvec(-5, 8, 700)) AS d FROM f ORDER BY 1 LIMIT 9000) s ORDER BY d DESC LIMIT 1) AS nearest
FROM (SELECT *, lag(d) OVER (ORDER BY n) AS before FROM fetched) s;
COMMIT;
SET vecgpu.device_form = graph;
SELECT rows, missing, wrong, twice FROM walk('f', cvec(-3, 8, 700));
SET vecgpu.device_form = auto;
SELECT rows, missing, wrong, twice FROM walk('f', cvec(-3, 8, 700));
SELECT rows, missing, wrong, twice FROM walk('f', cvec(-3, 8, 700), filter => 'id % 500 = 7');

-- An index without a graph, and a small one: exact, and nothing to measure.
CREATE INDEX f_flat ON f USING vecgpu (v real_ip_ops) WITH (kind = flat);
CREATE INDEX f_small ON f USING vecgpu (v real_cosine_ops) WHERE id < 1000;
SELECT device FROM vecgpu_prewarm('f_flat') UNION ALL SELECT device FROM vecgpu_prewarm('f_small');
SELECT kind, device_form, exact_us, graph_us FROM vecgpu_info('f_flat') UNION ALL SELECT kind, device_form, exact_us, graph_us FROM vecgpu_info('f_small');
SELECT index::regclass, exact_from FROM vecgpu_mirrors() WHERE index IN ('f_flat'::regclass, 'f_small'::regclass) ORDER BY 1;
SELECT vecgpu_evict('f_v') > 0 AS evicted;
SELECT device_form, exact_us, graph_us FROM vecgpu_info('f_v');
SELECT vecgpu_check('f_v');
DROP FUNCTION found;
DROP TABLE f, q, truth;
