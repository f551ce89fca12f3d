-- An L2 index in daily use: order, NULLs, rows after the build, empty and tiny tables, TRUNCATE, rollback.
-- top() fails unless the plan reads the index in order.

CALL make_line('t', 1000);
CREATE INDEX t_v ON t USING vecgpu (v);
SELECT top('t', '{0,0,0}', 5);
SELECT top('t', '{500.25,0,0}', 4);
SELECT top('t', '{2000,0,0}', 3);
-- The distance in the select list is the operator's own.
SET enable_seqscan = off;
SELECT id, v <-> '{3.25,0,0}' AS d FROM t ORDER BY v <-> '{3.25,0,0}' LIMIT 4;
-- Constant on the left: the operator commutes.
SELECT id FROM t ORDER BY '{3.25,0,0}'::real[] <-> v LIMIT 2;
SELECT uses('t_v', $$SELECT id FROM t ORDER BY '{3.25,0,0}'::real[] <-> v LIMIT 2$$);
-- Rows at equal distance come in the order of the table: 9 before 11.
SELECT id FROM t ORDER BY v <-> '{10,0,0}' LIMIT 3;
RESET enable_seqscan;
SELECT * FROM walk('t', '{333.3,1,0}');
-- Bounds other than 1 on either side.
INSERT INTO t VALUES (1001, 1, '[-3:-1]={0.5,0,0}');
SELECT top('t', '[0:2]={0,0,0}', 2);

-- ---- after the build: visible at once, gone at once, before and after a flush ----
INSERT INTO t VALUES (1002, 2, '{500.5,0,0}'), (1003, 3, '{0.25,0,0}');
SELECT top('t', '{0,0,0}', 4), top('t', '{500.45,0,0}', 2);
UPDATE t SET v = '{700.5,0,0}' WHERE id = 1002;
DELETE FROM t WHERE id = 1;
SELECT top('t', '{0,0,0}', 4), top('t', '{500.4,0,0}', 2), top('t', '{700.4,0,0}', 2);
-- Four rows wait: the two insertions, the one before, and the new version.
SELECT rows, delta_rows FROM vecgpu_info('t_v');
SELECT vecgpu_flush('t_v');
SELECT vecgpu_flush('t_v');
SELECT rows, delta_rows FROM vecgpu_info('t_v');
SELECT top('t', '{0,0,0}', 4), top('t', '{500.4,0,0}', 2), top('t', '{700.4,0,0}', 2);
SELECT * FROM walk('t', '{0,0,0}');
VACUUM t;
-- 1,002 rows: 1,000 - 1 and 1001, 1002, 1003; the two dead ones, of id 1 and of the old 1002, are counted apart.
SELECT rows, delta_rows, dead_rows FROM vecgpu_info('t_v');
SELECT top('t', '{0,0,0}', 4), top('t', '{500.4,0,0}', 2), top('t', '{700.4,0,0}', 2);
SELECT * FROM walk('t', '{0,0,0}');
SELECT vecgpu_check('t_v');

-- ---- rollback and savepoints ----
BEGIN;
INSERT INTO t VALUES (9999, 9, '{0.1,0,0}');
SELECT top('t', '{0,0,0}', 2);
SAVEPOINT a;
DELETE FROM t WHERE id = 9999;
SELECT top('t', '{0,0,0}', 2);
ROLLBACK TO a;
SELECT top('t', '{0,0,0}', 2);
SELECT vecgpu_flush('t_v');
SELECT top('t', '{0,0,0}', 2);
ROLLBACK;
SELECT top('t', '{0,0,0}', 2);
SELECT * FROM walk('t', '{0,0,0}');

-- ---- TRUNCATE, also undone ----
BEGIN;
TRUNCATE t;
SELECT top('t', '{0,0,0}', 3);
INSERT INTO t VALUES (42, 2, '{9,9,9}');
SELECT top('t', '{0,0,0}', 3);
ROLLBACK;
SELECT top('t', '{0,0,0}', 3);
TRUNCATE t;
SELECT top('t', '{0,0,0}', 3);
SELECT rows, dimensions IS NULL AS no_dimensions FROM vecgpu_info('t_v');
SELECT vecgpu_check('t_v');
-- With the rows went the dimensions: the next row sets them.
INSERT INTO t VALUES (42, 2, '{9,9}');
SELECT top('t', '{0,0}', 3);
SELECT rows, dimensions FROM vecgpu_info('t_v');
SELECT vecgpu_check('t_v');
DROP TABLE t;

-- ---- NULL vectors are in the table and not in the index ----
CREATE TABLE n (id int, v real[]);
INSERT INTO n VALUES (1, '{1,2,3}'), (2, '{4,5,6}'), (3, '{7,8,9}'), (4, NULL);
CREATE INDEX n_v ON n USING vecgpu (v);
INSERT INTO n VALUES (5, NULL), (6, '{1,1,2}');
SELECT top('n', '{1,1,1}', 10);
-- The exact scan puts them last.
SELECT (top('n', '{1,1,1}', 10, false))[1:4] AS first, cardinality(top('n', '{1,1,1}', 10, false)) AS rows;
UPDATE n SET v = NULL WHERE id = 1;
UPDATE n SET v = '{1,1,1}' WHERE id = 4;
SELECT top('n', '{1,1,1}', 10);
-- count(*) must not come from the index.
SET enable_seqscan = off;
SELECT count(*) FROM n;
SELECT count(*) FROM n WHERE v IS NOT NULL;
-- A NULL query has no nearest: any rows, no error, no row twice.
SELECT count(*), count(DISTINCT id) FROM (SELECT id FROM n ORDER BY v <-> NULL LIMIT 3) s;
-- One query vector a row, one of them NULL.
SELECT count(*), count(DISTINCT (a, b)) FROM (
    SELECT a.id AS a, b.id AS b FROM n a, LATERAL (SELECT id FROM n b WHERE b.id <> a.id ORDER BY b.v <-> a.v LIMIT 2) b) s;
RESET enable_seqscan;
SELECT vecgpu_check('n_v');
DROP TABLE n;

-- ---- an index on an empty table, one row, fewer rows than asked for ----
CREATE TABLE e (id int, v real[]) WITH (autovacuum_enabled = off);
CREATE INDEX e_v ON e USING vecgpu (v);
SELECT vecgpu_check('e_v');
SELECT kind, metric, storage, dimensions, m, ef_construction, rows, delta_rows, dead_rows, nodes, total_pages FROM vecgpu_info('e_v');
SELECT top('e', '{1,2,3}', 5);
-- Nothing is known of the dimensions: any query is as good.
SELECT top('e', '{1,2}', 5);
SELECT vecgpu_flush('e_v');
VACUUM e;
INSERT INTO e VALUES (1, NULL);
SELECT top('e', '{1,2}', 5);
INSERT INTO e VALUES (1, '{1,2,3}');
SELECT top('e', '{0,0,0}', 5);
SELECT vecgpu_flush('e_v');
SELECT top('e', '{0,0,0}', 5);
SELECT vecgpu_check('e_v');
INSERT INTO e SELECT i, ARRAY[i, i, i] FROM generate_series(2, 7) i;
SELECT top('e', '{0,0,0}', 100);
SELECT vecgpu_flush('e_v');
SELECT top('e', '{0,0,0}', 100);
-- All rows go: nothing is left to return, before and after VACUUM.
DELETE FROM e;
SELECT top('e', '{0,0,0}', 100);
VACUUM e;
SELECT top('e', '{0,0,0}', 100);
SELECT rows, delta_rows FROM vecgpu_info('e_v');
SELECT vecgpu_check('e_v');
INSERT INTO e VALUES (8, '{1,1,1}');
VACUUM e;
SELECT top('e', '{0,0,0}', 100);
SELECT vecgpu_check('e_v');
DROP TABLE e;

-- ---- other dimensions than the index's: refused at the door, by INSERT and by a query ----
CALL make_line('d', 10);
CREATE INDEX d_v ON d USING vecgpu (v);
INSERT INTO d VALUES (11, 1, '{1,2}');
INSERT INTO d VALUES (11, 1, '{1,2,3,4}');
INSERT INTO d VALUES (11, 1, '{}');
INSERT INTO d VALUES (11, 1, '{{1,2,3}}');
INSERT INTO d VALUES (11, 1, '{1,NULL,3}');
INSERT INTO d VALUES (11, 1, '{1,NaN,3}');
INSERT INTO d VALUES (11, 1, '{1,Infinity,3}');
UPDATE d SET v = '{-Infinity,0,0}' WHERE id = 3;
SET enable_seqscan = off;
SELECT id FROM d ORDER BY v <-> '{1,2}' LIMIT 1;
SELECT id FROM d ORDER BY v <-> '{1,2,NaN}' LIMIT 1;
SELECT id FROM d ORDER BY v <-> '{1,2,Infinity}' LIMIT 1;
SELECT id FROM d ORDER BY v <-> '{{1,2,3}}' LIMIT 1;
SELECT id FROM d ORDER BY v <-> '{1,2,NULL}' LIMIT 1;
SELECT id FROM d ORDER BY v <-> '{}' LIMIT 1;
RESET enable_seqscan;
-- Nothing of all that was stored.
SELECT top('d', '{0,0,0}', 100);
SELECT vecgpu_check('d_v');
DROP TABLE d;
-- A table with two dimensions, or with a value that is none, cannot be indexed; the codes are of class 22.
CREATE TABLE mixed (id int, v real[]);
INSERT INTO mixed VALUES (1, '{1,0,0}'), (2, '{2,0,0}'), (3, '{7,8}'), (4, '{3,0,0}');
CREATE INDEX ON mixed USING vecgpu (v);
CREATE INDEX mixed_v ON mixed USING vecgpu (v) WHERE array_length(v, 1) = 3;
SELECT top('mixed', '{0,0,0}', 3, filter => 'array_length(v, 1) = 3');
SELECT vecgpu_check('mixed_v');
DELETE FROM mixed;
INSERT INTO mixed VALUES (1, '{NaN}');
CREATE INDEX ON mixed USING vecgpu (v);
UPDATE mixed SET v = '{Infinity}';
CREATE INDEX ON mixed USING vecgpu (v);
UPDATE mixed SET v = '{NULL}';
CREATE INDEX ON mixed USING vecgpu (v);
UPDATE mixed SET v = '{}';
CREATE INDEX ON mixed USING vecgpu (v);
UPDATE mixed SET v = same_vec(1, 16001);
CREATE INDEX ON mixed USING vecgpu (v);
DROP TABLE mixed;
-- What the index's own option says counts from the first row on.
CREATE TABLE fixed (id int, v real[]);
CREATE INDEX fixed_v ON fixed USING vecgpu (v) WITH (dimensions = 3);
SELECT dimensions FROM vecgpu_info('fixed_v');
INSERT INTO fixed VALUES (1, '{1,2}');
INSERT INTO fixed VALUES (1, '{1,2,3}');
SELECT top('fixed', '{0,0,0}', 1);
REINDEX INDEX fixed_v;
SELECT top('fixed', '{0,0,0}', 1);
DROP INDEX fixed_v;
CREATE INDEX ON fixed USING vecgpu (v) WITH (dimensions = 4);
DROP TABLE fixed;
