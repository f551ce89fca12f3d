-- What PostgreSQL can do with an index, done to this one.
SET vecgpu.flush_rows = 0;
-- ---- CREATE INDEX CONCURRENTLY, REINDEX, REINDEX CONCURRENTLY ----
CALL make_line('t', 2000);
CREATE INDEX CONCURRENTLY t_v ON t USING vecgpu (v);
SELECT * FROM walk('t', '{0,0,0}');
INSERT INTO t VALUES (3000, 0, '{77.3,0,0}');
DELETE FROM t WHERE id = 78;
REINDEX INDEX t_v;
SELECT top('t', '{77.3,0,0}', 3);
SELECT rows, delta_rows FROM vecgpu_info('t_v');
INSERT INTO t VALUES (3001, 0, '{77.4,0,0}');
REINDEX INDEX CONCURRENTLY t_v;
SELECT top('t', '{77.3,0,0}', 3);
SELECT * FROM walk('t', '{0,0,0}');
REINDEX TABLE CONCURRENTLY t;
SELECT * FROM walk('t', '{0,0,0}');
-- Nothing is left over.
SELECT indexrelid::regclass, indisvalid, indisready FROM pg_index WHERE indrelid = 't'::regclass ORDER BY 1::text;
SELECT vecgpu_check('t_v');
-- In one transaction with the rows.
BEGIN;
INSERT INTO t VALUES (3002, 0, '{77.35,0,0}');
DROP INDEX t_v;
CREATE INDEX t_v ON t USING vecgpu (v);
SELECT top('t', '{77.3,0,0}', 3);
INSERT INTO t VALUES (3003, 0, '{77.36,0,0}');
SELECT top('t', '{77.3,0,0}', 3);
ROLLBACK;
SELECT top('t', '{77.3,0,0}', 3);
SELECT vecgpu_check('t_v');
-- A build that fails leaves nothing, or with CONCURRENTLY an invalid index that REINDEX repairs once the reason is gone.
INSERT INTO t VALUES (4000, 0, NULL);
UPDATE t SET v = NULL WHERE id = 3001;
DROP INDEX t_v;
UPDATE t SET v = '{1,2}' WHERE id = 4000;
CREATE INDEX CONCURRENTLY t_v ON t USING vecgpu (v);
SELECT indisvalid FROM pg_index WHERE indexrelid = 't_v'::regclass;
SELECT vecgpu_recall('t_v');
UPDATE t SET v = NULL WHERE id = 4000;
REINDEX INDEX CONCURRENTLY t_v;
SELECT indisvalid FROM pg_index WHERE indexrelid = 't_v'::regclass;
SELECT * FROM walk('t', '{0,0,0}');
SELECT count(*) FROM pg_index WHERE indrelid = 't'::regclass;
SELECT vecgpu_check('t_v');

-- ---- table rewrites: VACUUM FULL, CLUSTER, ALTER TYPE, a new column with a volatile default ----
VACUUM FULL t;
SELECT * FROM walk('t', '{0,0,0}');
CLUSTER t USING t_pkey;
SELECT * FROM walk('t', '{0,0,0}');
ALTER TABLE t ADD COLUMN r float8 DEFAULT random();
SELECT * FROM walk('t', '{0,0,0}');
UPDATE t SET v = '{77.4,0,0}' WHERE id = 3001;
-- Another length: rebuilt, with the new one.
ALTER TABLE t ALTER v TYPE real[] USING CASE WHEN v IS NOT NULL THEN v || 0::real END;
SELECT top('t', '{77.3,0,0,0}', 3), dimensions, rows FROM vecgpu_info('t_v');
SELECT vecgpu_check('t_v');
-- Another type: no operator class for it, so the change is refused as a whole.
ALTER TABLE t ALTER v TYPE float8[];
SELECT top('t', '{77.3,0,0,0}', 3);
ALTER TABLE t RENAME v TO w;
ALTER TABLE t RENAME w TO v;
ALTER INDEX t_v RENAME TO t_renamed;
ALTER TABLE t DROP COLUMN g;
SELECT top('t', '{77.3,0,0,0}', 3), rows FROM vecgpu_info('t_renamed');
ALTER TABLE t DROP COLUMN v;
SELECT to_regclass('t_renamed');
DROP TABLE t;

-- ---- unlogged, and back to logged ----
CREATE UNLOGGED TABLE u (id int, v real[]);
INSERT INTO u SELECT i, ARRAY[i, 0, 0]::real[] FROM generate_series(1, 200) i;
CREATE INDEX u_v ON u USING vecgpu (v);
INSERT INTO u VALUES (201, '{0.5,0,0}');
SELECT top('u', '{0,0,0}', 3);
SELECT vecgpu_flush('u_v');
SELECT * FROM walk('u', '{0,0,0}');
SELECT vecgpu_check('u_v');
-- The init fork is the one page of an empty index.
SELECT pg_relation_size('u_v', 'init') = current_setting('block_size')::int AS one_page;
TRUNCATE u;
SELECT top('u', '{0,0,0}', 3);
INSERT INTO u SELECT i, ARRAY[i, 0, 0]::real[] FROM generate_series(1, 200) i;
ALTER TABLE u SET LOGGED;
SELECT * FROM walk('u', '{0,0,0}');
INSERT INTO u VALUES (201, '{0.5,0,0}');
ALTER TABLE u SET UNLOGGED;
SELECT top('u', '{0,0,0}', 3);
SELECT vecgpu_check('u_v');
DROP TABLE u;

-- ---- temporary ----
CREATE TEMP TABLE tmp (id int, v real[]);
CREATE INDEX tmp_v ON tmp USING vecgpu (v);
INSERT INTO tmp SELECT i, ARRAY[i, 0, 0]::real[] FROM generate_series(1, 300) i;
SELECT * FROM walk('tmp', '{0,0,0}');
SELECT vecgpu_flush('tmp_v');
SELECT * FROM walk('tmp', '{0,0,0}');
DELETE FROM tmp WHERE id % 2 = 0;
VACUUM tmp;
SELECT * FROM walk('tmp', '{0,0,0}');
SELECT vecgpu_check('tmp_v');
REINDEX INDEX tmp_v;
SELECT top('tmp', '{0,0,0}', 3);
DROP TABLE tmp;
CREATE TEMP TABLE once (id int, v real[]) ON COMMIT DELETE ROWS;
CREATE INDEX once_v ON once USING vecgpu (v);
BEGIN;
INSERT INTO once VALUES (1, '{1,2,3}'), (2, '{1,2,4}');
SELECT top('once', '{0,0,0}', 3);
COMMIT;
SELECT top('once', '{0,0,0}', 3);
BEGIN;
INSERT INTO once VALUES (3, '{1,2}');
SELECT top('once', '{0,0}', 3);
COMMIT;
SELECT vecgpu_check('once_v');
DROP TABLE once;

-- ---- tablespace ----
SET allow_in_place_tablespaces = on;
CREATE TABLESPACE regress_vecgpu_space LOCATION '';
CALL make_line('t', 500);
CREATE INDEX t_v ON t USING vecgpu (v) TABLESPACE regress_vecgpu_space;
SELECT * FROM walk('t', '{0,0,0}');
INSERT INTO t VALUES (501, 1, '{0.5,0,0}');
ALTER INDEX t_v SET TABLESPACE pg_default;
SELECT top('t', '{0,0,0}', 3);
SELECT vecgpu_check('t_v');
REINDEX (TABLESPACE regress_vecgpu_space) INDEX t_v;
SELECT top('t', '{0,0,0}', 3);
SELECT vecgpu_flush('t_v');
SELECT vecgpu_check('t_v');
DROP TABLE t;
DROP TABLESPACE regress_vecgpu_space;

-- ---- a copy of a table with its indexes, a materialized view, CREATE TABLE AS ----
CALL make_line('t', 100);
CREATE INDEX t_v ON t USING vecgpu (v) WITH (m = 5, storage = float16);
CREATE TABLE t2 (LIKE t INCLUDING ALL);
INSERT INTO t2 SELECT * FROM t;
SELECT kind, storage, m, rows FROM vecgpu_info('t2_v_idx');
SELECT top('t2', '{7.25,0,0}', 2);
CREATE MATERIALIZED VIEW mv AS SELECT id, v FROM t WHERE id <= 50;
CREATE UNIQUE INDEX ON mv (id);
CREATE INDEX mv_v ON mv USING vecgpu (v);
SELECT top('mv', '{100,0,0}', 2);
INSERT INTO t VALUES (0, 0, '{60,0,0}');
REFRESH MATERIALIZED VIEW mv;
SELECT top('mv', '{100,0,0}', 2);
UPDATE t SET v = '{99,0,0}' WHERE id = 7;
REFRESH MATERIALIZED VIEW CONCURRENTLY mv;
SELECT top('mv', '{100,0,0}', 2);
SELECT vecgpu_check('mv_v'), vecgpu_check('t2_v_idx'), vecgpu_check('t_v');
DROP MATERIALIZED VIEW mv;
DROP TABLE t, t2;
-- Rows of a savepoint that is rolled back after a flush moved them.
BEGIN;
CREATE TABLE two (id int, v real[]);
CREATE INDEX two_v ON two USING vecgpu (v);
INSERT INTO two SELECT i, ARRAY[i]::real[] FROM generate_series(1, 100) i;
SELECT vecgpu_flush('two_v');
SAVEPOINT a;
INSERT INTO two SELECT i, ARRAY[i]::real[] FROM generate_series(101, 200) i;
SELECT vecgpu_flush('two_v');
ROLLBACK TO a;
SELECT top('two', '{150}', 2);
COMMIT;
SELECT top('two', '{150}', 2);
VACUUM two;
SELECT top('two', '{150}', 2), rows FROM vecgpu_info('two_v');
SELECT vecgpu_check('two_v');
DROP TABLE two;
