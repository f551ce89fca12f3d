-- pg_stat_vecgpu, vecgpu_stat and vecgpu_stat_reset, as far as no device is needed: shape, rows, privileges, wrong arguments.
-- Counts depend on where this suite runs; here they are only zeroed.
SET vecgpu.flush_rows = 0;
CALL make_line('t', 100);
CREATE INDEX t_v ON t USING vecgpu (v);
CREATE INDEX t_g ON t (g);

SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute
WHERE attrelid = 'pg_stat_vecgpu'::regclass AND attnum > 0 ORDER BY attnum;

-- ---- one row for each vecgpu index ----
SELECT relid = 't'::regclass AS relid, indexrelid = 't_v'::regclass AS indexrelid, schemaname, relname, indexrelname
FROM pg_stat_vecgpu WHERE relname = 't';
CREATE SCHEMA other;
CREATE TABLE other."T u" (v real[]) PARTITION BY HASH (v);
CREATE TABLE other.u1 PARTITION OF other."T u" FOR VALUES WITH (MODULUS 1, REMAINDER 0);
CREATE INDEX ON other."T u" USING vecgpu (v);
SELECT schemaname, relname, indexrelname FROM pg_stat_vecgpu WHERE schemaname = 'other';
DROP SCHEMA other CASCADE;
SELECT count(*) FROM pg_stat_vecgpu WHERE schemaname = 'other';

-- ---- zeroed ----
SELECT count(*) FROM (SELECT id FROM t ORDER BY v <-> '{1,2,3}' LIMIT 3) q;
SELECT vecgpu_stat_reset('t_v');
SELECT queries, batches, width_mean, width_histogram, queue_ms, copy_ms, kernel_ms, rerank_ms, candidates, dropped, fallbacks,
       fallback_reasons
FROM pg_stat_vecgpu WHERE indexrelname = 't_v';
SELECT vecgpu_stat_reset();
SELECT count(*) FROM vecgpu_stat() WHERE queries > 0 OR fallbacks > 0 OR index IS NULL;
SELECT vecgpu_stat_reset(NULL);
SELECT sum(queries), sum(fallbacks) FROM pg_stat_vecgpu;

-- ---- what is not one of our indexes ----
SELECT vecgpu_stat_reset('t');
SELECT vecgpu_stat_reset('t_g');
SELECT vecgpu_stat_reset('nowhere');
SELECT vecgpu_stat_reset(0);

-- ---- epoch ----
SELECT vecgpu_epoch('t_v') = epoch AS epoch FROM vecgpu_info('t_v');
SELECT vecgpu_epoch('t'), vecgpu_epoch('t_g'), vecgpu_epoch(0), vecgpu_epoch(NULL);

-- ---- privileges: everybody may look ----
CREATE ROLE regress_vecgpu_reader;
CREATE ROLE regress_vecgpu_resetter;
GRANT EXECUTE ON FUNCTION vecgpu_stat_reset(regclass) TO regress_vecgpu_resetter;
SET ROLE regress_vecgpu_reader;
SELECT queries, fallbacks FROM pg_stat_vecgpu WHERE indexrelname = 't_v';
SELECT count(*) FROM vecgpu_stat() WHERE queries > 0;
SELECT vecgpu_stat_reset();
SELECT vecgpu_stat_reset('t_v');
SET ROLE regress_vecgpu_resetter;
SELECT vecgpu_stat_reset(), vecgpu_stat_reset('t_v');
RESET ROLE;
REVOKE EXECUTE ON FUNCTION vecgpu_stat_reset(regclass) FROM regress_vecgpu_resetter;
DROP ROLE regress_vecgpu_reader, regress_vecgpu_resetter;
DROP TABLE t;
