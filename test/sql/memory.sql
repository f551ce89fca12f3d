-- Little memory: a build beyond maintenance_work_mem goes on in a temporary file, and its result is no worse; temp_file_limit holds.
CREATE TABLE m (id int, v real[]) WITH (autovacuum_enabled = off);
INSERT INTO m SELECT i, uvec(i, 100) FROM generate_series(1, 6000) i;
SET maintenance_work_mem = '1MB';
SET max_parallel_maintenance_workers = 0;
CREATE INDEX m_v ON m USING vecgpu (v);
SELECT rows FROM vecgpu_info('m_v');
SET vecgpu.ef_search = 100;
SELECT vecgpu_recall('m_v', 1) >= 0.9 AS recall;
SELECT vecgpu_check('m_v');
-- The same with threads, from the limit on which the server accepts.
SET max_parallel_maintenance_workers = 2;
REINDEX INDEX m_v;
SELECT vecgpu_recall('m_v', 1) >= 0.9 AS recall;
SELECT vecgpu_check('m_v');
-- A flush in many small batches.
INSERT INTO m SELECT i, uvec(i, 100) FROM generate_series(6001, 6600) i;
SELECT vecgpu_flush('m_v');
SELECT rows, delta_rows FROM vecgpu_info('m_v');
SELECT vecgpu_recall('m_v', 1) >= 0.9 AS recall;
SELECT vecgpu_check('m_v');
-- Nothing of it is left in the list of temporary files.
SELECT count(*) FROM pg_ls_tmpdir();
-- With no room for temporary files the build is refused, the table is as before, and the next build works.
SET temp_file_limit = '512kB';
\set VERBOSITY sqlstate
REINDEX INDEX m_v;
\set VERBOSITY default
RESET temp_file_limit;
SELECT rows, delta_rows FROM vecgpu_info('m_v');
SELECT count(*) FROM pg_ls_tmpdir();
-- A build that is cut short by a timeout leaves the old index as it was.
SET maintenance_work_mem = '64MB';
BEGIN;
SET LOCAL statement_timeout = '20ms';
\set VERBOSITY sqlstate
CREATE INDEX m_slow ON m USING vecgpu (v) WITH (m = 100, ef_construction = 1000);
\set VERBOSITY default
ROLLBACK;
SELECT to_regclass('m_slow');
SELECT vecgpu_check('m_v');
DROP TABLE m;
RESET vecgpu.ef_search;
-- An empty table asks for nothing, however large m is.
SET maintenance_work_mem = '1MB';
CREATE TABLE e (id int, v real[]);
CREATE INDEX e_v ON e USING vecgpu (v) WITH (m = 100, ef_construction = 1000, dimensions = 1536);
INSERT INTO e SELECT i, axis_vec(i, 1536) FROM generate_series(1, 3) i;
SELECT top('e', axis_vec(0, 1536), 5);
SELECT vecgpu_flush('e_v');
SELECT top('e', axis_vec(0, 1536), 5);
SELECT vecgpu_check('e_v');
DROP TABLE e;
RESET maintenance_work_mem;

-- Few rows for the degree of the graph: every number around it, every row in order.
CREATE TABLE few (id int, v real[]);
DO $$
DECLARE
    n int;
    ids int[];
BEGIN
    FOREACH n IN ARRAY '{0,1,2,3,7,31,32,33,63,64,65,101,127,128,129}'::int[] LOOP
        TRUNCATE few;
        INSERT INTO few SELECT i, ARRAY[i, 0, 0]::real[] FROM generate_series(1, n) i;
        CREATE INDEX few_v ON few USING vecgpu (v) WITH (m = 64, ef_construction = 128, ef_search = 1);
        ids := top('few', '{0,0,0}', n + 1);
        IF ids IS DISTINCT FROM (SELECT array_agg(i) FROM generate_series(1, n) i) THEN
            RAISE WARNING '% rows: %', n, ids;
        END IF;
        PERFORM vecgpu_check('few_v');
        DROP INDEX few_v;
    END LOOP;
END $$;
DROP TABLE few;

-- ---- link cells of 2 bytes number 65,534 nodes: an index that grows past that by insertion gets wider ones ----
CREATE TABLE w (id int, v real[]) WITH (autovacuum_enabled = off);
SET vecgpu.flush_rows = 0;
SET maintenance_work_mem = '64MB';
INSERT INTO w SELECT i, ARRAY[i]::real[] FROM generate_series(1, 40000) i;
CREATE INDEX w_v ON w USING vecgpu (v) WITH (m = 8, ef_construction = 32, ef_search = 100);
CREATE TEMP TABLE before AS SELECT generation FROM vecgpu_info('w_v');
-- In two steps, since a flush of more rows than half of the index has builds it anew.
INSERT INTO w SELECT i, ARRAY[i]::real[] FROM generate_series(40001, 55000) i;
SELECT vecgpu_flush('w_v');
INSERT INTO w SELECT i, ARRAY[i]::real[] FROM generate_series(55001, 65534) i;
SELECT vecgpu_flush('w_v');
SELECT rows, nodes, i.generation - b.generation AS generations FROM vecgpu_info('w_v') i, before b;
SELECT top('w', '{65533.75}', 3), top('w', '{0}', 3);
SELECT rows, missing < 10 AS found, twice, falls FROM walk('w', '{52000.25}', 200);
SELECT vecgpu_check('w_v');
INSERT INTO w SELECT i, ARRAY[i]::real[] FROM generate_series(65535, 65600) i;
SELECT vecgpu_flush('w_v');
SELECT rows, nodes, i.generation > b.generation AS rebuilt FROM vecgpu_info('w_v') i, before b;
SELECT top('w', '{65533.75}', 3), top('w', '{65535.25}', 4), top('w', '{99999}', 3), top('w', '{0}', 3);
SELECT rows, missing < 100 AS found, twice, falls FROM walk('w', '{32000.25}', 2000);
SELECT rows, missing < 100 AS found, twice, falls FROM walk('w', '{70000}', 2000);
INSERT INTO w SELECT i, ARRAY[i]::real[] FROM generate_series(65601, 66000) i;
SELECT vecgpu_flush('w_v');
SELECT top('w', '{65833.75}', 3), top('w', '{99999}', 3), rows FROM vecgpu_info('w_v');
SELECT vecgpu_check('w_v');
-- Back below: VACUUM builds a small graph, once nobody's snapshot needs the rows: a worker that loads the index for the engine has one.
DELETE FROM w WHERE id > 1000;
DO $$
BEGIN
    WHILE EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_xmin IS NOT NULL) LOOP
        PERFORM pg_sleep(0.01), pg_stat_clear_snapshot();
    END LOOP;
END $$;
VACUUM w;
SELECT rows, dead_rows FROM vecgpu_info('w_v');
SELECT top('w', '{99999}', 3);
SELECT vecgpu_check('w_v');
DROP TABLE w, before;
-- With m = 2 about as many records lie above layer 0 as there are nodes, by chance more: their numbers need wide cells as well.
CREATE TABLE w (id int, v real[]) WITH (autovacuum_enabled = off);
INSERT INTO w SELECT i, ARRAY[i]::real[] FROM generate_series(1, 40000) i;
CREATE INDEX w_v ON w USING vecgpu (v) WITH (m = 2, ef_construction = 32, ef_search = 100);
INSERT INTO w SELECT i, ARRAY[i]::real[] FROM generate_series(40001, 59000) i;
SELECT vecgpu_flush('w_v');
INSERT INTO w SELECT i, ARRAY[i]::real[] FROM generate_series(59001, 65534) i;
SELECT vecgpu_flush('w_v');
SELECT rows FROM vecgpu_info('w_v');
SELECT vecgpu_recall('w_v', 5) >= 0.9 AS recall, vecgpu_recall('w_v', 1, '{{1},{20000},{50000},{65000},{65534}}') >= 0.8 AS recall;
SELECT vecgpu_check('w_v');
DROP TABLE w;
RESET vecgpu.flush_rows;
RESET maintenance_work_mem;
