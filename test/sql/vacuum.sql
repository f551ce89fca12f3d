-- Dead rows: out of answers at once, out of the index with VACUUM, and the graph is built anew when every fifth row is dead.
SET vecgpu.flush_rows = 0;
-- ---- the nearest rows are all dead: the scan goes on behind them, before any VACUUM ----
CALL make_line('t', 1000);
CREATE INDEX t_v ON t USING vecgpu (v);
UPDATE t SET v = '{100000,0,0}' WHERE id <= 200;
SELECT top('t', '{0,0,0}', 10);
SELECT top('t', '{0,0,0}', 10);
SELECT * FROM walk('t', '{0,0,0}');
SELECT vecgpu_flush('t_v');
SELECT * FROM walk('t', '{0,0,0}');
-- 200 of 1,200 are dead: under a fifth, the graph stays. Then some more.
VACUUM t;
SELECT rows, dead_rows, nodes, twins FROM vecgpu_info('t_v');
SELECT * FROM walk('t', '{0,0,0}');
SELECT vecgpu_check('t_v');
DELETE FROM t WHERE id BETWEEN 201 AND 260;
VACUUM t;
SELECT rows, dead_rows, nodes, twins FROM vecgpu_info('t_v');
SELECT top('t', '{0,0,0}', 3);
SELECT * FROM walk('t', '{0,0,0}');
SELECT vecgpu_check('t_v');
-- Line pointers that VACUUM freed are used by other rows: none of these may answer for the old vector.
INSERT INTO t SELECT i, 0, ARRAY[i, 0, 0]::real[] FROM generate_series(2001, 2260) i;
SELECT top('t', '{0,0,0}', 3), top('t', '{3000,0,0}', 3);
SELECT * FROM walk('t', '{0,0,0}');
VACUUM t;
SELECT * FROM walk('t', '{0,0,0}');
SELECT vecgpu_check('t_v');
DROP TABLE t;

-- ---- rows that are deleted while they wait, and a table that is emptied over and over ----
CALL make_line('t', 0);
CREATE INDEX t_v ON t USING vecgpu (v);
DO $$
BEGIN
    FOR i IN 1..5 LOOP
        INSERT INTO t SELECT j, 0, ARRAY[j, i, 0]::real[] FROM generate_series(1, 300) j;
        IF top('t', ARRAY[7.25, i, 0]::real[], 3) <> '{7,8,6}' THEN RAISE WARNING 'round %', i; END IF;
        DELETE FROM t WHERE id <= 150;
        IF top('t', ARRAY[7.25, i, 0]::real[], 3) <> '{151,152,153}' THEN RAISE WARNING 'round % half', i; END IF;
        DELETE FROM t;
        IF top('t', ARRAY[7.25, i, 0]::real[], 3) IS NOT NULL THEN RAISE WARNING 'round % all', i; END IF;
    END LOOP;
END $$;
SELECT rows, delta_rows FROM vecgpu_info('t_v');
VACUUM t;
SELECT rows, delta_rows, dead_rows, nodes FROM vecgpu_info('t_v');
SELECT vecgpu_check('t_v');
INSERT INTO t VALUES (1, 0, '{1,2,3}');
SELECT top('t', '{7.25,1,0}', 3);
DROP TABLE t;

-- ---- space: rounds of replacing a third do not make the index grow for ever ----
CALL make_line('t', 3000);
CREATE INDEX t_v ON t USING vecgpu (v) WITH (m = 8, ef_construction = 32);
DELETE FROM t WHERE id % 3 = 0;
INSERT INTO t SELECT i, 0, ARRAY[i, 0, 0]::real[] FROM generate_series(3, 3000, 3) i;
VACUUM t;
DELETE FROM t WHERE id % 3 = 0;
INSERT INTO t SELECT i, 0, ARRAY[i, 0, 0]::real[] FROM generate_series(3, 3000, 3) i;
VACUUM t;
CREATE TEMP TABLE size AS SELECT pg_relation_size('t_v') AS bytes;
DELETE FROM t WHERE id % 3 = 0;
INSERT INTO t SELECT i, 0, ARRAY[i, 0, 0]::real[] FROM generate_series(3, 3000, 3) i;
VACUUM t;
DELETE FROM t WHERE id % 3 = 0;
INSERT INTO t SELECT i, 0, ARRAY[i, 0, 0]::real[] FROM generate_series(3, 3000, 3) i;
VACUUM t;
DELETE FROM t WHERE id % 3 = 0;
INSERT INTO t SELECT i, 0, ARRAY[i, 0, 0]::real[] FROM generate_series(3, 3000, 3) i;
VACUUM t;
SELECT pg_relation_size('t_v') < 1.5 * bytes AS bounded FROM size;
SELECT * FROM walk('t', '{0,0,0}');
SELECT vecgpu_check('t_v');
DROP TABLE t, size;

-- ---- churn: a table of 1,000 rows, a row out and a row in, a hundred out and in ----
CREATE TABLE c (id int PRIMARY KEY, v real[]) WITH (autovacuum_enabled = off);
INSERT INTO c SELECT i, uvec(i, 64) FROM generate_series(1, 1000) i;
CREATE INDEX c_v ON c USING vecgpu (v);
CREATE PROCEDURE churn(first int, last int, step int) LANGUAGE plpgsql AS $$
BEGIN
    FOR i IN first..last BY step LOOP
        DELETE FROM c WHERE id BETWEEN i AND i + step - 1;
        INSERT INTO c SELECT j, uvec(j, 64) FROM generate_series(i + 1000, i + 1000 + step - 1) j;
        COMMIT;
    END LOOP;
END $$;
CALL churn(1, 150, 1);
SELECT vecgpu_flush('c_v');
CALL churn(151, 300, 1);
VACUUM c;
CALL churn(301, 1300, 100);
VACUUM c;
CALL churn(1301, 2300, 100);
VACUUM c;
CALL churn(2301, 3300, 100);
VACUUM c;
SET vecgpu.ef_search = 1000;
SELECT * FROM walk('c', uvec(77777, 64));
RESET vecgpu.ef_search;
SELECT rows FROM vecgpu_info('c_v');
SELECT vecgpu_recall('c_v', 10) >= 0.95 AS recall;
SELECT vecgpu_check('c_v');
DROP PROCEDURE churn;
DROP TABLE c;

-- ---- a HOT update does not touch the index; the rows come once each ----
CREATE TABLE h (id int, note text, v real[]) WITH (autovacuum_enabled = off, fillfactor = 40);
INSERT INTO h SELECT i, 'a', ARRAY[i, 0, 0]::real[] FROM generate_series(1, 2000) i;
CREATE INDEX h_v ON h USING vecgpu (v);
CREATE TEMP TABLE before AS SELECT rows, delta_rows, total_pages, epoch FROM vecgpu_info('h_v');
UPDATE h SET note = 'b';
SELECT i.rows - b.rows AS rows, i.delta_rows - b.delta_rows AS delta, i.total_pages - b.total_pages AS pages FROM vecgpu_info('h_v') i, before b;
SELECT top('h', '{0,0,0}', 5);
SELECT * FROM walk('h', '{0,0,0}', filter => 'note = ''b''');
UPDATE h SET note = 'c' WHERE id % 2 = 0;
VACUUM h;
SELECT * FROM walk('h', '{0,0,0}', filter => 'note <> ''a''');
-- With an index on the note the update is not HOT: the new version of each row is another row of the index.
CREATE INDEX h_note ON h (note);
UPDATE h SET note = 'd' WHERE id <= 100;
SELECT i.rows - b.rows AS rows, i.delta_rows - b.delta_rows AS delta FROM vecgpu_info('h_v') i, before b;
SELECT top('h', '{0,0,0}', 5);
SELECT * FROM walk('h', '{0,0,0}');
VACUUM h;
SELECT * FROM walk('h', '{0,0,0}');
SELECT vecgpu_check('h_v');
DROP TABLE h, before;

-- ---- a flag switched off and on again, HOT and not ----
CALL make_line('t', 1000);
ALTER TABLE t ADD visible bool DEFAULT true;
CREATE INDEX t_v ON t USING vecgpu (v);
UPDATE t SET visible = false WHERE id = 10;
SELECT top('t', '{10.25,0,0}', 3, filter => 'visible');
UPDATE t SET visible = true WHERE id = 10;
SELECT top('t', '{10.25,0,0}', 3, filter => 'visible');
CREATE INDEX ON t (visible);
UPDATE t SET visible = false WHERE id = 10;
SELECT top('t', '{10.25,0,0}', 3, filter => 'visible');
UPDATE t SET visible = true WHERE id = 10;
SELECT top('t', '{10.25,0,0}', 3, filter => 'visible');
VACUUM t;
SELECT top('t', '{10.25,0,0}', 3, filter => 'visible');
SELECT * FROM walk('t', '{10.25,0,0}');
-- VACUUM that leaves indexes alone, and one that looks at nothing; then one in full.
DELETE FROM t WHERE id < 10;
VACUUM (INDEX_CLEANUP off) t;
SELECT top('t', '{0,0,0}', 3);
INSERT INTO t SELECT i, 0, ARRAY[i + 5000, 0, 0]::real[], true FROM generate_series(1, 9) i;
SELECT top('t', '{0,0,0}', 3);
VACUUM (INDEX_CLEANUP on) t;
SELECT top('t', '{0,0,0}', 3), top('t', '{9999,0,0}', 3);
VACUUM (FREEZE, DISABLE_PAGE_SKIPPING) t;
SELECT * FROM walk('t', '{0,0,0}');
SELECT vecgpu_check('t_v');
DROP TABLE t;
