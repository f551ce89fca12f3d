-- A search parameter never caps an answer: LIMIT beyond ef_search, filters, OFFSET, cursors, thresholds.
CALL make_line('t', 20000);
CREATE INDEX t_v ON t USING vecgpu (v);
ANALYZE t;
SHOW vecgpu.ef_search;
SET enable_seqscan = off;
SET enable_sort = off;
SET enable_bitmapscan = off;

-- ---- LIMIT above ef_search (40 by default) ----
SELECT k, count(*), sum(id), min(id), max(id), bool_and(id = n) AS ordered
FROM (VALUES (40), (41), (50), (200), (1000), (5000)) AS l (k),
     LATERAL (SELECT id, row_number() OVER () AS n FROM (SELECT id FROM t ORDER BY v <-> '{0,0,0}' LIMIT k) a) s
GROUP BY k ORDER BY k;
SET vecgpu.ef_search = 1;
SELECT count(*), sum(id), bool_and(id = n) AS ordered
FROM (SELECT id, row_number() OVER () AS n FROM (SELECT id FROM t ORDER BY v <-> '{0,0,0}' LIMIT 500) a) s;
RESET vecgpu.ef_search;
-- To the very end, and one more.
SELECT count(*), sum(id::bigint), bool_and(id = n) AS ordered
FROM (SELECT id, row_number() OVER () AS n FROM (SELECT id FROM t ORDER BY v <-> '{0,0,0}' LIMIT 20001) a) s;

-- ---- filters: the scan goes on until enough rows match ----
SELECT top('t', '{0,0,0}', 10, filter => 'id % 1000 = 7');
SELECT cardinality(top('t', '{0,0,0}', 100, filter => 'id % 1000 = 7'));
-- A further condition never adds rows.
SELECT cardinality(top('t', '{0,0,0}', 200, filter => 'id % 100 = 1')),
       cardinality(top('t', '{0,0,0}', 200, filter => 'id % 100 = 1 AND id % 200 = 1'));
-- Nearest rows that all fail the filter, a filter that no row passes, and one that one row passes, at the far end.
SELECT top('t', '{0,0,0}', 3, filter => 'id > 15000');
SELECT top('t', '{0,0,0}', 3, filter => 'id < 0');
SELECT top('t', '{0,0,0}', 3, filter => 'id = 20000');

-- ---- every limit around the number of matching rows ----
SELECT k, count(*) FROM (VALUES (1), (40), (41), (496), (497), (498), (499), (500), (501), (600)) AS l (k),
     LATERAL (SELECT id FROM t WHERE g = 3 AND id <= 5000 ORDER BY v <-> '{0,0,0}' LIMIT k) s
GROUP BY k ORDER BY k;
RESET enable_seqscan;
RESET enable_sort;
RESET enable_bitmapscan;
SELECT k, count(*) FROM (VALUES (1), (40), (41), (496), (497), (498), (499), (500), (501), (600)) AS l (k),
     LATERAL (SELECT id FROM t WHERE g = 3 AND id <= 5000 ORDER BY v <-> '{0,0,0}' LIMIT k) s
GROUP BY k ORDER BY k;
DROP TABLE t;

-- ---- pages of ten: each row on one page ----
CALL make_line('t', 2000);
CREATE INDEX t_v ON t USING vecgpu (v);
CREATE FUNCTION pages() RETURNS TABLE (rows bigint, ids bigint, sum bigint, ordered boolean) LANGUAGE plpgsql AS $$
BEGIN
    CREATE TEMP TABLE paged (n serial, id int);
    FOR i IN 0..19 LOOP
        INSERT INTO paged (id) SELECT s.id FROM
            (SELECT t.id FROM t WHERE g = 3 ORDER BY v <-> '{0,0,0}' OFFSET i * 10 LIMIT 10) s;
    END LOOP;
    RETURN QUERY SELECT count(*), count(DISTINCT id), sum(id), bool_and(id = n * 10 - 7) FROM paged;
    DROP TABLE paged;
END $$;
SELECT * FROM pages();
SET enable_seqscan = off;
SELECT * FROM pages();
DROP FUNCTION pages;
-- OFFSET beyond the end.
SELECT id FROM t ORDER BY v <-> '{0,0,0}' OFFSET 1998 LIMIT 10;
SELECT id FROM t ORDER BY v <-> '{0,0,0}' OFFSET 2000 LIMIT 10;

-- WITH TIES: the two neighbours of 10 are equally far.
SELECT id FROM t ORDER BY v <-> '{10,0,0}' FETCH FIRST 2 ROWS WITH TIES;
-- LIMIT from an expression, LIMIT ALL, and a LIMIT below and above a filter.
SELECT id FROM t ORDER BY v <-> '{10.25,0,0}' LIMIT (SELECT 2);
SELECT count(*) FROM (SELECT id FROM t ORDER BY v <-> '{10.25,0,0}' LIMIT ALL) s;
SELECT id FROM (SELECT id, g FROM t ORDER BY v <-> '{10.25,0,0}' LIMIT 50) s WHERE g = 0 LIMIT 3;
SELECT DISTINCT g FROM (SELECT id, g FROM t ORDER BY v <-> '{10.25,0,0}' LIMIT 3) s ORDER BY g;

-- ---- a cursor goes on where it stopped, whatever runs in between ----
BEGIN;
DECLARE c CURSOR FOR SELECT id FROM t WHERE id <= 1000 ORDER BY v <-> '{0,0,0}';
FETCH 3 FROM c;
SELECT top('t', '{500.25,0,0}', 2);
SET LOCAL enable_seqscan = off;
MOVE 100 FROM c;
FETCH 1 FROM c;
DELETE FROM t WHERE id = 105;
INSERT INTO t VALUES (3000, 0, '{105.5,0,0}');
-- Neither change is in the cursor's snapshot.
FETCH 2 FROM c;
MOVE ALL FROM c;
FETCH 1 FROM c;
CLOSE c;
DECLARE c SCROLL CURSOR FOR SELECT id FROM t ORDER BY v <-> '{0,0,0}' LIMIT 5;
FETCH ALL FROM c;
FETCH PRIOR FROM c;
FETCH FIRST FROM c;
FETCH ABSOLUTE 4 FROM c;
CLOSE c;
-- The index cannot run backwards.
DECLARE c NO SCROLL CURSOR FOR SELECT id FROM t ORDER BY v <-> '{0,0,0}';
FETCH 2 FROM c;
SAVEPOINT s;
FETCH PRIOR FROM c;
ROLLBACK TO s;
ROLLBACK;
-- A holdable cursor outlives its transaction.
BEGIN;
DECLARE h CURSOR WITH HOLD FOR SELECT id FROM t ORDER BY v <-> '{0,0,0}' LIMIT 4;
FETCH 1 FROM h;
COMMIT;
FETCH 2 FROM h;
CLOSE h;

-- ---- distance thresholds ----
SELECT id FROM t WHERE v <-> '{500.25,0,0}' < 2 ORDER BY v <-> '{500.25,0,0}' LIMIT 10;
SELECT id FROM t WHERE v <-> '{500.25,0,0}' <= 1.25 ORDER BY v <-> '{500.25,0,0}' LIMIT 10;
SELECT id FROM t WHERE v <-> '{500.25,0,0}' < 0.1 ORDER BY v <-> '{500.25,0,0}' LIMIT 10;
RESET enable_seqscan;

-- ---- the scan can be given up anywhere, and an error inside leaves the next one whole ----
SET enable_seqscan = off;
SELECT id FROM t ORDER BY v <-> '{0,0,0}' LIMIT 0;
SELECT 1 / (id - 3) AS x FROM t ORDER BY v <-> '{0,0,0}' LIMIT 5;
SELECT top('t', '{0,0,0}', 3);
SET enable_seqscan = off;
DO $$
DECLARE
    found int;
BEGIN
    FOR i IN 1..500 LOOP
        SELECT id INTO found FROM t ORDER BY v <-> ARRAY[i + 0.25, 0, 0]::real[] LIMIT 1;
        IF found <> i THEN RAISE EXCEPTION 'for % came %', i, found; END IF;
    END LOOP;
END $$;
RESET enable_seqscan;
SELECT * FROM walk('t', '{0,0,0}');
SELECT vecgpu_check('t_v');
DROP TABLE t;

-- ---- a graph with real structure: a full walk returns every row once, at every width ----
CREATE TABLE u (id int PRIMARY KEY, v real[]) WITH (autovacuum_enabled = off);
INSERT INTO u SELECT i, cvec(i, 16, 20) FROM generate_series(1, 6000) i;
CREATE INDEX u_v ON u USING vecgpu (v) WITH (m = 4, ef_construction = 16);
SELECT * FROM walk('u', uvec(7001, 16));
SET vecgpu.ef_search = 1;
SELECT * FROM walk('u', uvec(7002, 16));
SET vecgpu.ef_search = 1000;
SELECT * FROM walk('u', uvec(7003, 16));
-- Few rows match the filter, spread over all distances: the walk ends with all of them.
SELECT * FROM walk('u', uvec(7003, 16), filter => 'id % 500 = 3');
RESET vecgpu.ef_search;
SELECT * FROM walk('u', uvec(7003, 16), filter => 'id % 500 = 3');
-- Neither mode loses a row, and neither returns one out of order while there are others to return (C19).
SET vecgpu.iterative_scan = relaxed_order;
SELECT * FROM walk('u', uvec(7003, 16));
SELECT * FROM walk('u', uvec(7003, 16), filter => 'id % 500 = 3');
RESET vecgpu.iterative_scan;
SELECT vecgpu_check('u_v');
DROP TABLE u;
CREATE TABLE w (id int PRIMARY KEY, v real[]) WITH (autovacuum_enabled = off);
INSERT INTO w SELECT i, uvec(i, 3) FROM generate_series(1, 20000) i;
CREATE INDEX w_v ON w USING vecgpu (v real_cosine_ops);
CREATE FUNCTION in_order() RETURNS text LANGUAGE sql AS $$
    SELECT count(*) || ' rows, sorted: ' || bool_and(d >= coalesce(p, d))
    FROM (SELECT d, lag(d) OVER () AS p
          FROM (SELECT v <=> '{3,1,2}' AS d FROM w WHERE id % 20 = 0 ORDER BY 1 LIMIT 40) a) b
$$;
SET enable_seqscan = off;
SELECT in_order();
SET vecgpu.iterative_scan = relaxed_order;
SELECT in_order();
RESET vecgpu.iterative_scan;
RESET enable_seqscan;
DROP FUNCTION in_order();
DROP TABLE w;
