-- vecgpu_info, vecgpu_check, vecgpu_flush and vecgpu_recall: values, wrong arguments, privileges.
SET vecgpu.flush_rows = 0;
CALL make_line('t', 3000);
CREATE INDEX t_v ON t USING vecgpu (v);
CREATE VIEW view AS SELECT * FROM t;
-- ---- what is not one of our indexes ----
SELECT vecgpu_info('t');
SELECT vecgpu_info('t_pkey');
SELECT vecgpu_info('view');
SELECT vecgpu_info('nowhere');
SELECT vecgpu_info(0);
SELECT vecgpu_info(4294967295);
SELECT vecgpu_check('t');
SELECT vecgpu_check('t_pkey');
SELECT vecgpu_flush('t');
SELECT vecgpu_flush('t_pkey');
SELECT vecgpu_recall('t');
SELECT vecgpu_recall('t_pkey');
\set VERBOSITY sqlstate
SELECT vecgpu_info('t');
SELECT vecgpu_info('t_pkey');
SELECT vecgpu_info(4294967295);
\set VERBOSITY default
SELECT vecgpu_info(NULL) IS NULL AS info, vecgpu_check(NULL) IS NULL AS checked, vecgpu_flush(NULL) IS NULL AS flushed, vecgpu_recall(NULL) IS NULL AS recall;
DROP VIEW view;

-- ---- info follows what happens ----
SELECT kind, metric, storage, dimensions, m, ef_construction, rows, delta_rows, dead_rows, nodes, twins,
       upper_nodes > 0 AS upper, max_level > 0 AS levels FROM vecgpu_info('t_v');
SELECT vector_pages + link_pages + slot_pages + twin_pages + upper_pages + delta_pages + parked_pages < total_pages AS parts,
       total_pages = pg_relation_size('t_v') / current_setting('block_size')::int AS whole FROM vecgpu_info('t_v');
CREATE TEMP TABLE before AS SELECT * FROM vecgpu_info('t_v');
INSERT INTO t SELECT i, 0, ARRAY[i % 100, 1, 0]::real[] FROM generate_series(3001, 3200) i;
SELECT i.rows, i.delta_rows, i.nodes, i.twins, i.epoch >= b.epoch AS epoch, i.generation = b.generation AS generation FROM vecgpu_info('t_v') i, before b;
SELECT vecgpu_flush('t_v');
SELECT i.rows, i.delta_rows, i.nodes, i.twins, i.epoch > b.epoch AS epoch, i.generation = b.generation AS generation FROM vecgpu_info('t_v') i, before b;
DELETE FROM t WHERE id <= 100;
VACUUM t;
SELECT i.rows, i.dead_rows, i.nodes, i.twins, i.generation = b.generation AS generation FROM vecgpu_info('t_v') i, before b;
DELETE FROM t WHERE id <= 1000;
VACUUM t;
SELECT i.rows, i.dead_rows, i.nodes, i.twins, i.generation > b.generation AS generation, i.parked_pages > 0 AS parked FROM vecgpu_info('t_v') i, before b;
SELECT vecgpu_check('t_v');
DROP TABLE before;

-- ---- recall ----
SELECT vecgpu_recall('t_v') >= 0.99 AS sample, vecgpu_recall('t_v', 1) >= 0.99 AS one, vecgpu_recall('t_v', 10000) >= 0.99 AS all;
SELECT vecgpu_recall('t_v', 5, '{2000.25,0,0}') AS vector, vecgpu_recall('t_v', 5, '{{2000.25,0,0},{0,0,0},{1500,1,1}}') AS array;
SELECT vecgpu_recall('t_v', queries => '{1,2,3}'), vecgpu_recall('t_v', NULL) IS NULL AS unknown;
SELECT vecgpu_recall('t_v', 0);
SELECT vecgpu_recall('t_v', 10001);
SELECT vecgpu_recall('t_v', 5, '{1,2}');
SELECT vecgpu_recall('t_v', 5, '{{1,2},{3,4}}');
SELECT vecgpu_recall('t_v', 5, '{}');
SELECT vecgpu_recall('t_v', 5, '{1,NULL,3}');
SELECT vecgpu_recall('t_v', 5, '{1,NaN,3}');
SELECT vecgpu_recall('t_v', 5, '{{1,2,3},{1,2,Infinity}}');
SELECT vecgpu_recall('t_v', 5, '{{{1,2,3}}}');
-- Rows of the own transaction count, those that are gone do not.
BEGIN;
INSERT INTO t SELECT i, 0, '{9999,0,0}' FROM generate_series(5001, 5010) i;
DELETE FROM t WHERE id BETWEEN 2000 AND 2010;
SELECT vecgpu_recall('t_v', 10, '{{9999,0,0},{2005,0,0}}');
ROLLBACK;
-- Nothing to recall: no rows at all, none to sample, none left.
CREATE TABLE none (v real[]);
CREATE INDEX none_v ON none USING vecgpu (v);
SELECT vecgpu_recall('none_v');
INSERT INTO none VALUES (NULL), ('{1,2}');
SELECT vecgpu_recall('none_v');
SELECT vecgpu_recall('none_v', 5, '{1,1}');
SELECT vecgpu_flush('none_v');
SELECT vecgpu_recall('none_v');
DELETE FROM none;
SELECT vecgpu_recall('none_v', 5, '{1,1}');
DROP TABLE none;

-- ---- privileges ----
CREATE ROLE regress_vecgpu_owner;
CREATE ROLE regress_vecgpu_reader;
CREATE ROLE regress_vecgpu_stranger;
ALTER TABLE t OWNER TO regress_vecgpu_owner;
GRANT SELECT ON t TO regress_vecgpu_reader;
SET ROLE regress_vecgpu_owner;
SELECT rows FROM vecgpu_info('t_v');
SELECT vecgpu_flush('t_v');
SELECT vecgpu_recall('t_v') >= 0.99 AS recall;
-- As for amcheck: only who was granted it.
SELECT vecgpu_check('t_v');
SET ROLE regress_vecgpu_reader;
SELECT rows FROM vecgpu_info('t_v');
SELECT vecgpu_flush('t_v');
SELECT vecgpu_recall('t_v');
SELECT vecgpu_check('t_v');
SET ROLE regress_vecgpu_stranger;
SELECT rows FROM vecgpu_info('t_v');
SELECT vecgpu_flush('t_v');
SELECT vecgpu_recall('t_v');
SELECT vecgpu_check('t_v');
\set VERBOSITY sqlstate
SELECT vecgpu_info('t_v');
SELECT vecgpu_flush('t_v');
SELECT vecgpu_check('t_v');
\set VERBOSITY default
RESET ROLE;
GRANT EXECUTE ON FUNCTION vecgpu_check(regclass) TO regress_vecgpu_stranger;
SET ROLE regress_vecgpu_stranger;
SELECT vecgpu_check('t_v');
RESET ROLE;
REVOKE EXECUTE ON FUNCTION vecgpu_check(regclass) FROM regress_vecgpu_stranger;

-- The function of an index expression belongs to whoever made it: it must not run with the rights of a more powerful caller.
-- (An INSERT is the caller's own statement: there it does.)
CREATE FUNCTION spy(x int) RETURNS real[] LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF current_setting('regress.spy', true) = 'on' AND current_user <> 'regress_vecgpu_owner' THEN
        RAISE EXCEPTION 'as %', current_user;
    END IF;
    RETURN ARRAY[x]::real[];
END $$;
CREATE TABLE e (id int);
INSERT INTO e VALUES (1), (2);
ALTER TABLE e OWNER TO regress_vecgpu_owner;
SET regress.spy = on;
CREATE INDEX e_spy ON e USING vecgpu (spy(id));
SET regress.spy = off;
INSERT INTO e VALUES (3);
SET regress.spy = on;
SELECT vecgpu_flush('e_spy');
SELECT vecgpu_check('e_spy');
SELECT vecgpu_recall('e_spy', 3, '{2}');
REINDEX INDEX e_spy;
VACUUM e;
RESET regress.spy;
DROP TABLE e;
DROP FUNCTION spy;

-- What only reads may be called in a read-only transaction.
BEGIN READ ONLY;
SELECT rows FROM vecgpu_info('t_v');
SELECT vecgpu_check('t_v');
SELECT vecgpu_recall('t_v') >= 0.99 AS recall;
ROLLBACK;
SELECT vecgpu_check('t_v');
DROP TABLE t;
DROP ROLE regress_vecgpu_owner, regress_vecgpu_reader, regress_vecgpu_stranger;
