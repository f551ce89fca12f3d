-- Equal vectors hang off one node: a thousand equal rows are one step of a search, and none of them is lost.
CALL make_line('t', 1000);
INSERT INTO t SELECT i, 0, '{0,0,0}' FROM generate_series(10001, 10500) i;
CREATE INDEX t_v ON t USING vecgpu (v);
SELECT nodes, twins, rows FROM vecgpu_info('t_v');
SELECT array_length(ids, 1) AS n, ids[1] AS first, ids[500] AS last FROM top('t', '{0,0,0}', 500) ids;
SELECT top('t', '{0,0,0}', 502) @> '{1,2}' AS next, top('t', '{900.25,0,0}', 3);
SELECT * FROM walk('t', '{0,0,0}');
-- The same rows, inserted after the build.
DELETE FROM t WHERE id > 10000;
VACUUM t;
REINDEX INDEX t_v;
INSERT INTO t SELECT i, 0, '{0,0,0}' FROM generate_series(10001, 10500) i;
SELECT array_length(ids, 1) AS n, ids[1] AS first, ids[500] AS last FROM top('t', '{0,0,0}', 500) ids;
SELECT vecgpu_flush('t_v');
SELECT nodes, twins, rows FROM vecgpu_info('t_v');
SELECT array_length(ids, 1) AS n, ids[1] AS first, ids[500] AS last FROM top('t', '{0,0,0}', 500) ids;
SELECT * FROM walk('t', '{0,0,0}');
SELECT vecgpu_check('t_v');

-- In both at once, and under another head: 300 more in the delta, twins of id 500.
INSERT INTO t SELECT i, 0, '{0,0,0}' FROM generate_series(10501, 10600) i;
INSERT INTO t SELECT i, 0, '{500,0,0}' FROM generate_series(20001, 20200) i;
SELECT * FROM walk('t', '{0,0,0}');
SELECT vecgpu_flush('t_v');
SELECT nodes, twins, rows FROM vecgpu_info('t_v');
SELECT * FROM walk('t', '{499.9,0,0}');
SELECT vecgpu_check('t_v');

-- The row that heads the chain goes, then some in the middle, then the last; and new ones come.
DELETE FROM t WHERE id IN (500, 10001);
VACUUM t;
SELECT ids[1], ids[599], ids[600] FROM top('t', '{0,0,0}', 600) ids;
SELECT top('t', '{500,0,0}', 3);
SELECT vecgpu_check('t_v');
DELETE FROM t WHERE id BETWEEN 10300 AND 10400 OR id = 10600 OR id = 20200;
SELECT * FROM walk('t', '{0,0,0}');
VACUUM t;
SELECT * FROM walk('t', '{0,0,0}');
INSERT INTO t VALUES (500, 0, '{500,0,0}'), (10601, 0, '{0,0,0}');
SELECT vecgpu_flush('t_v');
SELECT * FROM walk('t', '{0,0,0}');
SELECT * FROM walk('t', '{499.9,0,0}');
SELECT vecgpu_check('t_v');
-- All twins but one go, then that one; the vector's next row starts anew.
DELETE FROM t WHERE v = '{0,0,0}' AND id <> 10601;
VACUUM t;
SELECT top('t', '{0,0,0}', 2);
DELETE FROM t WHERE id = 10601;
VACUUM t;
SELECT top('t', '{0,0,0}', 2);
INSERT INTO t VALUES (10602, 0, '{0,0,0}');
VACUUM t;
INSERT INTO t VALUES (10603, 0, '{0,0,0}');
SELECT vecgpu_flush('t_v');
SELECT top('t', '{0,0,0}', 3);
SELECT * FROM walk('t', '{700,0,0}');
SELECT vecgpu_check('t_v');
DROP TABLE t;

-- Nothing but one vector.
CREATE TABLE same (id int, v real[]) WITH (autovacuum_enabled = off);
INSERT INTO same SELECT i, '{1,2}' FROM generate_series(1, 1000) i;
CREATE INDEX same_v ON same USING vecgpu (v) WITH (m = 2, ef_construction = 4);
SELECT nodes, twins FROM vecgpu_info('same_v');
SELECT top('same', '{5,5}', 5), cardinality(top('same', '{5,5}', 2000));
DELETE FROM same WHERE id <= 900;
SELECT top('same', '{5,5}', 5);
SELECT top('same', '{5,5}', 5);
VACUUM same;
SELECT top('same', '{5,5}', 5), cardinality(top('same', '{5,5}', 2000));
SELECT nodes, twins, dead_rows FROM vecgpu_info('same_v');
-- A zero with a sign is another row of bytes and the same place.
INSERT INTO same VALUES (2001, '{0,0}'), (2002, '{-0,0}'), (2003, '{0,0}');
SELECT vecgpu_flush('same_v');
SELECT top('same', '{0,0}', 4);
SELECT vecgpu_check('same_v');
DROP TABLE same;

-- Pairs: every node has a twin. Links are short (m = 2: four, one of them names the twin).
CREATE TABLE pairs (id int, v real[]) WITH (autovacuum_enabled = off);
INSERT INTO pairs SELECT i, uvec(i / 2, 4) FROM generate_series(0, 1999) i;
CREATE INDEX pairs_v ON pairs USING vecgpu (v) WITH (m = 2, ef_construction = 16);
SELECT nodes, twins FROM vecgpu_info('pairs_v');
SELECT * FROM walk('pairs', uvec(7, 4));
INSERT INTO pairs SELECT i, uvec(i / 3, 4) FROM generate_series(3000, 4499) i;
SELECT vecgpu_flush('pairs_v');
-- 1,000 vectors and 500 others.
SELECT nodes, twins FROM vecgpu_info('pairs_v');
SELECT * FROM walk('pairs', uvec(1234, 4));
SELECT vecgpu_check('pairs_v');
DROP TABLE pairs;

-- More twins than a short link cell can number (2 bytes: 65,534), then twins of another vector.
CREATE TABLE many (id int, v real[]) WITH (autovacuum_enabled = off);
SET vecgpu.flush_rows = 0;
INSERT INTO many SELECT i, ARRAY[i % 10]::real[] FROM generate_series(1, 100) i;
CREATE INDEX many_v ON many USING vecgpu (v);
INSERT INTO many SELECT i, '{0}' FROM generate_series(101, 66000) i;
SELECT vecgpu_flush('many_v');
SELECT nodes, twins, rows FROM vecgpu_info('many_v');
INSERT INTO many SELECT 70000 + i, ARRAY[20 + i / 3]::real[] FROM generate_series(0, 29) i;
SELECT vecgpu_flush('many_v');
SELECT nodes, twins, rows FROM vecgpu_info('many_v');
SELECT top('many', '{25}', 6), top('many', '{50}', 3), cardinality(top('many', '{0}', 100000));
SELECT vecgpu_check('many_v');
REINDEX INDEX many_v;
SELECT nodes, twins, rows FROM vecgpu_info('many_v');
SELECT top('many', '{25}', 6), top('many', '{50}', 3), cardinality(top('many', '{0}', 100000));
SELECT vecgpu_check('many_v');
DROP TABLE many;
RESET vecgpu.flush_rows;
