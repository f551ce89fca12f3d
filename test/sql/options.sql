-- Options of an index and settings of a session: ranges, defaults, texts, what can be changed later.
CALL make_line('t', 100);
-- ---- ranges ----
CREATE INDEX ON t USING vecgpu (v) WITH (m = 1);
CREATE INDEX ON t USING vecgpu (v) WITH (m = 101);
CREATE INDEX ON t USING vecgpu (v) WITH (m = 'many');
CREATE INDEX ON t USING vecgpu (v) WITH (ef_construction = 3);
CREATE INDEX ON t USING vecgpu (v) WITH (ef_construction = 1001);
CREATE INDEX ON t USING vecgpu (v) WITH (m = 33);
CREATE INDEX ON t USING vecgpu (v) WITH (m = 40, ef_construction = 79);
CREATE INDEX ON t USING vecgpu (v) WITH (dimensions = -1);
CREATE INDEX ON t USING vecgpu (v) WITH (dimensions = 16001);
CREATE INDEX ON t USING vecgpu (v) WITH (ef_search = -1);
CREATE INDEX ON t USING vecgpu (v) WITH (ef_search = 10001);
CREATE INDEX ON t USING vecgpu (v) WITH (kind = 'tree');
CREATE INDEX ON t USING vecgpu (v) WITH (storage = 'float8');
CREATE INDEX ON t USING vecgpu (v) WITH (lists = 100);
CREATE INDEX ON t USING vecgpu (v) WITH (fillfactor = 90);
\set VERBOSITY sqlstate
CREATE INDEX ON t USING vecgpu (v) WITH (m = 1);
CREATE INDEX ON t USING vecgpu (v) WITH (m = 33);
CREATE INDEX ON t USING vecgpu (v) WITH (kind = 'tree');
\set VERBOSITY default
SELECT count(*) FROM pg_index WHERE indrelid = 't'::regclass;

-- ---- what an index says of itself ----
CREATE INDEX t_default ON t USING vecgpu (v);
CREATE INDEX t_least ON t USING vecgpu (v) WITH (m = 2, ef_construction = 4, ef_search = 1);
CREATE INDEX t_most ON t USING vecgpu (v) WITH (m = 100, ef_construction = 1000, dimensions = 3, ef_search = 10000, kind = HNSW, storage = 'Float16');
SELECT n, kind, storage, dimensions, m, ef_construction, rows FROM unnest('{t_default,t_least,t_most}'::regclass[]) n, vecgpu_info(n);
SELECT indexdef FROM pg_indexes WHERE tablename = 't' ORDER BY indexname;
SELECT vecgpu_check('t_default'), vecgpu_check('t_least'), vecgpu_check('t_most');
DROP INDEX t_default, t_most;
SELECT top('t', '{0,0,0}', 100) = (SELECT array_agg(i) FROM generate_series(1, 100) i) AS whole;

-- ---- later changes ----
ALTER INDEX t_least SET (m = 1);
ALTER INDEX t_least SET (m = 3);
ALTER INDEX t_least SET (m = 8, ef_construction = 20);
-- What the pages were made with stays until they are made anew.
SELECT m, ef_construction FROM vecgpu_info('t_least');
SELECT top('t', '{50.25,0,0}', 3);
INSERT INTO t VALUES (101, 1, '{50.3,0,0}');
SELECT vecgpu_flush('t_least');
SELECT top('t', '{50.25,0,0}', 3);
SELECT vecgpu_check('t_least');
REINDEX INDEX t_least;
SELECT m, ef_construction FROM vecgpu_info('t_least');
SELECT top('t', '{50.25,0,0}', 3);
ALTER INDEX t_least SET (kind = flat, storage = int8);
INSERT INTO t VALUES (102, 1, '{50.2,0,0}');
SELECT vecgpu_flush('t_least');
SELECT kind, storage, rows FROM vecgpu_info('t_least');
SELECT top('t', '{50.25,0,0}', 3);
SELECT vecgpu_check('t_least');
REINDEX INDEX t_least;
SELECT kind, storage, rows FROM vecgpu_info('t_least');
SELECT top('t', '{50.25,0,0}', 3);
SELECT vecgpu_check('t_least');
ALTER INDEX t_least RESET (kind, storage, m, ef_construction, ef_search);
REINDEX INDEX t_least;
SELECT kind, storage, m, ef_construction, rows FROM vecgpu_info('t_least');
ALTER INDEX t_least SET (dimensions = 4);
REINDEX INDEX t_least;
SELECT top('t', '{50.25,0,0}', 3);
DROP TABLE t;

-- ---- settings ----
SELECT name, boot_val, min_val, max_val, context FROM pg_settings WHERE name LIKE 'vecgpu.%' ORDER BY name;
SET vecgpu.ef_search = -1;
SET vecgpu.ef_search = 10001;
SET vecgpu.ef_search = 'wide';
SET vecgpu.flush_rows = -1;
SET vecgpu.flush_rows = 10000001;
SET vecgpu.nonsense = 1;
SET vecgpu.ef_search = 10000;
SET vecgpu.ef_search = 1;
SHOW vecgpu.ef_search;
RESET vecgpu.ef_search;
SHOW vecgpu.iterative_scan;
SET vecgpu.iterative_scan = 'off';
SET vecgpu.iterative_scan = relaxed_order;
RESET vecgpu.iterative_scan;
-- Settings of a role, of a database, of a function and of a transaction.
CREATE FUNCTION nearest(q real[]) RETURNS int LANGUAGE sql SET vecgpu.ef_search = 77 AS $$ SELECT current_setting('vecgpu.ef_search')::int $$;
SELECT nearest('{1}');
DROP FUNCTION nearest;
BEGIN;
SET LOCAL vecgpu.ef_search = 99;
SHOW vecgpu.ef_search;
ROLLBACK;
SHOW vecgpu.ef_search;

-- ---- what the access method says of itself ----
SELECT p, pg_indexam_has_property(a.oid, p) FROM pg_am a, unnest(ARRAY['can_order', 'can_unique', 'can_multi_col', 'can_exclude', 'can_include']) p
WHERE amname = 'vecgpu';
CREATE TABLE t (id int, v real[], w real[]);
CREATE INDEX t_v ON t USING vecgpu (v);
SELECT p, pg_index_has_property('t_v', p) FROM unnest(ARRAY['clusterable', 'index_scan', 'bitmap_scan', 'backward_scan']) p;
SELECT p, pg_index_column_has_property('t_v', 1, p)
FROM unnest(ARRAY['orderable', 'distance_orderable', 'returnable', 'search_array', 'search_nulls']) p;
-- ---- what cannot be ----
CREATE UNIQUE INDEX ON t USING vecgpu (v);
CREATE INDEX ON t USING vecgpu (v, w);
CREATE INDEX ON t USING vecgpu (v) INCLUDE (id);
CREATE INDEX ON t USING vecgpu (v DESC);
CREATE INDEX ON t USING vecgpu (v NULLS FIRST);
CREATE INDEX ON t USING vecgpu (id);
CREATE INDEX ON t USING vecgpu (v array_ops);
ALTER TABLE t ADD EXCLUDE USING vecgpu (v WITH =);
CLUSTER t USING t_v;
DROP TABLE t;
