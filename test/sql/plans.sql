-- The planner: takes the index where it wins, only where it can answer, and in every shape of query. plan() prints the nodes only.
CALL make_line('t', 20000);
CREATE INDEX t_v ON t USING vecgpu (v);
CREATE INDEX t_g ON t (g);
ANALYZE t;
-- ---- default settings ----
SELECT plan($$SELECT id FROM t ORDER BY v <-> '{1,2,3}' LIMIT 10$$);
SELECT plan($$SELECT id FROM t ORDER BY v <-> '{1,2,3}' LIMIT 10 OFFSET 100$$);
SELECT plan($$SELECT id FROM t WHERE g = 3 ORDER BY v <-> '{1,2,3}' LIMIT 10$$);
-- The order is known without the index: a few rows by another index and a sort are cheaper.
SELECT plan($$SELECT id FROM t WHERE id = 77 ORDER BY v <-> '{1,2,3}' LIMIT 10$$);
-- All rows are wanted: a sort.
SELECT plan($$SELECT id FROM t ORDER BY v <-> '{1,2,3}'$$);
-- Nothing to order by: never this index, whatever is switched off.
SET enable_seqscan = off;
SELECT uses('t_v', 'SELECT count(*) FROM t');
SELECT uses('t_v', 'SELECT id FROM t');
SELECT uses('t_v', 'SELECT v FROM t WHERE v IS NOT NULL');
SELECT uses('t_v', $$SELECT id FROM t WHERE v = '{1,0,0}'$$);
SELECT uses('t_v', $$SELECT id FROM t WHERE v <-> '{1,0,0}' < 3$$);
SELECT uses('t_v', $$SELECT id FROM t ORDER BY v LIMIT 1$$);
SELECT count(*) FROM t;
SELECT id FROM t WHERE v = '{1,0,0}';
-- The least distance is the first in order.
SELECT uses('t_v', $$SELECT min(v <-> '{10.25,0,0}') FROM t$$);
SELECT min(v <-> '{10.25,0,0}') FROM t;
-- Another operator, another direction, an expression around the distance, NULLS FIRST.
SELECT uses('t_v', $$SELECT id FROM t ORDER BY v <#> '{1,0,0}' LIMIT 1$$),
       uses('t_v', $$SELECT id FROM t ORDER BY v <=> '{1,0,0}' LIMIT 1$$),
       uses('t_v', $$SELECT id FROM t ORDER BY v <+> '{1,0,0}' LIMIT 1$$),
       uses('t_v', $$SELECT id FROM t ORDER BY v <-> '{1,0,0}' DESC LIMIT 1$$),
       uses('t_v', $$SELECT id FROM t ORDER BY (v <-> '{1,0,0}') + 1 LIMIT 1$$),
       uses('t_v', $$SELECT id FROM t ORDER BY v <-> '{1,0,0}' NULLS FIRST LIMIT 1$$);
-- The operator's function is not the operator; a volatile query vector cannot be looked up.
SELECT uses('t_v', $$SELECT id FROM t ORDER BY l2_distance(v, '{1,0,0}') LIMIT 1$$),
       uses('t_v', $$SELECT id FROM t ORDER BY v <-> ARRAY[random(), 0, 0]::real[] LIMIT 1$$),
       uses('t_v', $$SELECT id FROM t a ORDER BY v <-> v LIMIT 1$$);
-- A stable one can.
SELECT uses('t_v', $$SELECT id FROM t ORDER BY v <-> ARRAY[extract(epoch FROM now()), 0, 0]::real[] LIMIT 1$$);
-- A further key sorts the ties of the first.
SELECT id FROM t ORDER BY v <-> '{10,0,0}', id DESC LIMIT 3;
RESET enable_seqscan;

-- ---- prepared statements ----
SET enable_seqscan = off;
PREPARE p (real[], int) AS SELECT id FROM t ORDER BY v <-> $1 LIMIT $2;
DO $$
DECLARE
    ids int[];
BEGIN
    FOR i IN 1..10 LOOP
        EXECUTE 'SELECT array_agg(id) FROM (SELECT id FROM t ORDER BY v <-> $1 LIMIT $2) s' INTO ids USING '{500.25,0,0}'::real[], 3;
        IF ids <> '{500,501,499}' THEN RAISE EXCEPTION '%', ids; END IF;
    END LOOP;
END $$;
EXECUTE p ('{500.25,0,0}', 3);
SET plan_cache_mode = force_generic_plan;
SELECT uses('t_v', $$EXECUTE p ('{500.25,0,0}', 3)$$);
EXECUTE p ('{500.25,0,0}', 3);
EXECUTE p ('{700.25,0,0}', 1);
EXECUTE p ('{700.25,0}', 1);
EXECUTE p ('{700.25,0,0}', 2);
EXECUTE p (NULL, 0);
SET plan_cache_mode = force_custom_plan;
EXECUTE p ('{500.25,0,0}', 3);
RESET plan_cache_mode;
DEALLOCATE p;

-- ---- the query vector from elsewhere ----
-- From a scalar subquery: computed once, then the index.
SELECT uses('t_v', $$SELECT id FROM t ORDER BY v <-> (SELECT v FROM t WHERE id = 500) LIMIT 3$$);
SELECT id FROM t ORDER BY v <-> (SELECT v FROM t WHERE id = 500) LIMIT 3;
-- From a subquery without rows: NULL, no error.
SELECT count(*) FROM (SELECT id FROM t ORDER BY v <-> (SELECT v FROM t WHERE id = 0) LIMIT 3) s;
-- From a materialized CTE: right, by whatever plan.
WITH q AS MATERIALIZED (SELECT ARRAY[500.25, 0, 0]::real[] AS v) SELECT t.id FROM t, q ORDER BY t.v <-> q.v LIMIT 3;
-- One search a row.
SELECT uses('t_v', $$SELECT k, b.id FROM generate_series(1, 5) k, LATERAL (SELECT id FROM t ORDER BY v <-> ARRAY[k * 10 + 0.25, 0, 0]::real[] LIMIT 2) b$$);
SELECT k, array_agg(b.id) FROM generate_series(1, 5) k,
    LATERAL (SELECT id FROM t ORDER BY v <-> ARRAY[k * 10 + 0.25, 0, 0]::real[] LIMIT 2) b GROUP BY k ORDER BY k;
-- From a table, joined to itself.
SELECT a.id, array_agg(b.id) FROM t a, LATERAL (SELECT id FROM t b WHERE b.id <> a.id ORDER BY b.v <-> a.v LIMIT 2) b
WHERE a.id IN (1, 7, 20000) GROUP BY a.id ORDER BY a.id;
-- A correlated subquery in the select list, and one that is rescanned a thousand times.
SELECT k, (SELECT id FROM t ORDER BY v <-> ARRAY[k + 0.25, 0, 0]::real[] LIMIT 1) FROM generate_series(100, 103) k;
SELECT count(*) FROM generate_series(1, 1000) k WHERE (SELECT id FROM t ORDER BY v <-> ARRAY[k + 0.25, 0, 0]::real[] LIMIT 1) = k;
-- Below a join, under a LIMIT of its own; under UNION ALL; in a view; with a window on top.
SELECT s.id, u.g FROM (SELECT id FROM t ORDER BY v <-> '{300.25,0,0}' LIMIT 3) s JOIN t u USING (id) ORDER BY u.v <-> '{300.25,0,0}';
(SELECT id FROM t ORDER BY v <-> '{300.25,0,0}' LIMIT 1) UNION ALL (SELECT id FROM t ORDER BY v <-> '{400.25,0,0}' LIMIT 1);
CREATE VIEW nearest AS SELECT id, v <-> '{300.25,0,0}' AS d FROM t;
SELECT uses('t_v', 'SELECT id FROM nearest ORDER BY d LIMIT 2');
SELECT * FROM nearest ORDER BY d LIMIT 2;
DROP VIEW nearest;
SELECT id, row_number() OVER (ORDER BY v <-> '{300.25,0,0}') FROM t ORDER BY v <-> '{300.25,0,0}' LIMIT 2;
-- For UPDATE and DELETE of the nearest, and with a lock.
BEGIN;
SELECT id FROM t ORDER BY v <-> '{300.25,0,0}' LIMIT 2 FOR UPDATE;
UPDATE t SET g = -1 WHERE id IN (SELECT id FROM t ORDER BY v <-> '{300.25,0,0}' LIMIT 2) RETURNING id;
DELETE FROM t WHERE id IN (SELECT id FROM t ORDER BY v <-> '{300.25,0,0}' LIMIT 2) RETURNING id;
SELECT id FROM t ORDER BY v <-> '{300.25,0,0}' LIMIT 2;
ROLLBACK;
-- A session that forgets everything goes on as before.
DISCARD ALL;
SET enable_seqscan = off;
SELECT id FROM t ORDER BY v <-> '{300.25,0,0}' LIMIT 2;
-- In an SQL function.
CREATE FUNCTION nearest(q real[]) RETURNS SETOF int LANGUAGE sql STABLE AS $$ SELECT id FROM t ORDER BY v <-> q LIMIT 2 $$;
SELECT * FROM nearest('{300.25,0,0}');
DROP FUNCTION nearest;
RESET enable_seqscan;

-- ---- row level security: the policy filters, the scan goes on ----
CREATE ROLE regress_vecgpu_reader;
GRANT SELECT ON t TO regress_vecgpu_reader;
ALTER TABLE t ENABLE ROW LEVEL SECURITY;
CREATE POLICY even ON t USING (id % 2 = 0);
SET ROLE regress_vecgpu_reader;
SET enable_seqscan = off;
SELECT id FROM t ORDER BY v <-> '{300.25,0,0}' LIMIT 3;
RESET ROLE;
RESET enable_seqscan;
ALTER TABLE t DISABLE ROW LEVEL SECURITY;
DROP POLICY even ON t;
REVOKE SELECT ON t FROM regress_vecgpu_reader;
DROP ROLE regress_vecgpu_reader;
SELECT vecgpu_check('t_v');
DROP TABLE t;

-- ---- the index is chosen for out-of-line vectors and for those in the row ----
CREATE TABLE wide (id int, v real[]);
INSERT INTO wide SELECT i, uvec(i, 128) FROM generate_series(1, 3000) i;
CREATE TABLE toasted (id int, v real[]);
ALTER TABLE toasted ALTER v SET STORAGE EXTERNAL;
INSERT INTO toasted SELECT i, axis_vec(i, 1536) FROM generate_series(1, 10000) i;
SET maintenance_work_mem = '128MB';
CREATE INDEX wide_v ON wide USING vecgpu (v);
CREATE INDEX toasted_v ON toasted USING vecgpu (v);
RESET maintenance_work_mem;
ANALYZE wide, toasted;
SELECT uses('wide_v', 'SELECT id FROM wide ORDER BY v <-> (SELECT uvec(1, 128)) LIMIT 10'),
       uses('toasted_v', 'SELECT id FROM toasted ORDER BY v <-> (SELECT axis_vec(1, 1536)) LIMIT 10');
SELECT top('wide', uvec(77, 128), 1), top('toasted', axis_vec(77.3, 1536), 2);
SELECT vecgpu_check('wide_v'), vecgpu_check('toasted_v');
DROP TABLE wide, toasted;

-- ---- building an index does not spoil the table's own estimate of its rows ----
CALL make_line('t', 2000);
ANALYZE t;
CREATE INDEX t_none ON t USING vecgpu (v) WHERE id < 0;
SELECT relname, reltuples FROM pg_class WHERE relname IN ('t', 't_none') ORDER BY relname;
CREATE INDEX t_some ON t USING vecgpu (v) WHERE id <= 100;
SELECT relname, reltuples FROM pg_class WHERE relname IN ('t', 't_some') ORDER BY relname;
CREATE INDEX t_all ON t USING vecgpu (v);
DELETE FROM t WHERE id > 1000;
VACUUM ANALYZE t;
SELECT relname, reltuples FROM pg_class WHERE relname IN ('t', 't_all', 't_some', 't_none') ORDER BY relname;
INSERT INTO t SELECT i, 0, ARRAY[i, 0, 0]::real[] FROM generate_series(1001, 1100) i;
VACUUM t;
SELECT relname, reltuples FROM pg_class WHERE relname IN ('t', 't_all', 't_some', 't_none') ORDER BY relname;
SELECT vecgpu_check('t_none'), vecgpu_check('t_some'), vecgpu_check('t_all');
DROP TABLE t;
