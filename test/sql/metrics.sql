-- Inner product and cosine: sign, order, zero vectors, vectors of extreme length; and that no index answers for another metric.
CREATE TABLE m (id int, v real[]);
INSERT INTO m VALUES (1, '{10,0,0}'), (2, '{1,0.1,0}'), (3, '{0,0.5,0}'), (4, '{20,20,0}');
CREATE INDEX m_cosine ON m USING vecgpu (v real_cosine_ops);
SET enable_seqscan = off;
-- Only a cosine index: an L2 order sorts, and is right.
SELECT plan($$SELECT id FROM m ORDER BY v <-> '{1,0,0}' LIMIT 4$$);
SELECT id FROM m ORDER BY v <-> '{1,0,0}' LIMIT 4;
SELECT plan($$SELECT id FROM m ORDER BY v <=> '{1,0,0}' LIMIT 4$$);
SELECT id FROM m ORDER BY v <=> '{1,0,0}' LIMIT 4;
-- Three indexes on one column: each order takes its own.
CREATE INDEX m_l2 ON m USING vecgpu (v);
CREATE INDEX m_ip ON m USING vecgpu (v real_ip_ops);
SELECT plan($$SELECT id FROM m ORDER BY v <-> '{1,0,0}' LIMIT 4$$);
SELECT plan($$SELECT id FROM m ORDER BY v <#> '{1,0,0}' LIMIT 4$$);
SELECT plan($$SELECT id FROM m ORDER BY v <=> '{1,0,0}' LIMIT 4$$);
SELECT top('m', '{1,0,0}', 4) AS l2, top('m', '{1,0,0}', 4, op => '<#>') AS ip, top('m', '{1,0,0}', 4, op => '<=>') AS cosine;
SET enable_seqscan = off;
-- L1 has no index; descending order has none either.
SELECT plan($$SELECT id FROM m ORDER BY v <+> '{1,0,0}' LIMIT 4$$);
SELECT id FROM m ORDER BY v <+> '{1,0,0}' LIMIT 4;
SELECT plan($$SELECT id FROM m ORDER BY v <-> '{1,0,0}' DESC LIMIT 4$$);
SELECT id FROM m ORDER BY v <-> '{1,0,0}' DESC LIMIT 4;
SELECT kind, metric FROM vecgpu_info('m_l2') UNION ALL SELECT kind, metric FROM vecgpu_info('m_ip')
UNION ALL SELECT kind, metric FROM vecgpu_info('m_cosine');
SELECT vecgpu_check('m_l2'), vecgpu_check('m_ip'), vecgpu_check('m_cosine');
RESET enable_seqscan;
DROP TABLE m;

-- ---- inner product: ascending order of the negative product is descending order of the product ----
CREATE TABLE p (id int, v real[]);
INSERT INTO p VALUES (1, '{1,0,0}'), (2, '{3,0,0}'), (3, '{2,5,0}'), (4, '{-4,0,0}');
CREATE INDEX p_v ON p USING vecgpu (v real_ip_ops);
SET enable_seqscan = off;
SELECT id, v <#> '{1,0,0}' AS d FROM p ORDER BY v <#> '{1,0,0}';
-- A zero vector is an ordinary one.
INSERT INTO p VALUES (5, '{0,0,0}');
SELECT id, v <#> '{1,0,0}' AS d FROM p ORDER BY v <#> '{1,0,0}';
SELECT id FROM p ORDER BY v <#> '{0,0,0}';
SELECT vecgpu_flush('p_v');
SELECT id, v <#> '{1,0,0}' AS d FROM p ORDER BY v <#> '{1,0,0}';
-- A longer vector than any before, after the build: it is the best answer for its direction.
INSERT INTO p VALUES (6, '{100,100,100}');
SELECT vecgpu_flush('p_v');
SELECT id, v <#> '{1,0,0}' AS d FROM p ORDER BY v <#> '{1,0,0}' LIMIT 2;
SELECT vecgpu_check('p_v');
RESET enable_seqscan;
DROP TABLE p;

-- Raw inner product of vectors whose lengths differ by orders of magnitude: every row can be reached, in order.
CREATE TABLE raw (id int, v real[]) WITH (autovacuum_enabled = off);
INSERT INTO raw SELECT i, (SELECT array_agg((x * exp(3 * u01(i, 4000)))::real ORDER BY n) FROM unnest(uvec(i, 16)) WITH ORDINALITY AS u(x, n))
FROM generate_series(1, 3000) i;
CREATE INDEX raw_v ON raw USING vecgpu (v real_ip_ops) WITH (ef_search = 100);
SELECT * FROM walk('raw', uvec(4001, 16), op => '<#>');
SELECT vecgpu_recall('raw_v', 100) >= 0.95 AS recall;
-- Without the shortcut for small indexes.
SET vecgpu.ef_search = 60;
SELECT vecgpu_recall('raw_v', 10) >= 0.9 AS recall;
SELECT cardinality(top('raw', uvec(4002, 16), 100, op => '<#>'));
RESET vecgpu.ef_search;
SELECT vecgpu_check('raw_v');
DROP TABLE raw;

-- ---- cosine ----
CREATE TABLE c (id int, v real[]);
INSERT INTO c VALUES (1, '{1,0,0}'), (2, '{0,0,0}'), (3, '{0.9,0.1,0}');
CREATE INDEX c_v ON c USING vecgpu (v real_cosine_ops);
-- The zero vector has no direction and is not in the index; the exact scan puts it last.
SELECT top('c', '{1,0,0}', 2, op => '<=>'), top('c', '{1,0,0}', 3, op => '<=>'), top('c', '{1,0,0}', 3, false, op => '<=>');
INSERT INTO c VALUES (4, '{0,0,0}'), (5, '{-0,0,0}'), (6, '{0.9,0.05,0}'), (7, NULL);
SELECT top('c', '{1,0,0}', 9, op => '<=>');
SELECT vecgpu_flush('c_v');
SELECT top('c', '{1,0,0}', 9, op => '<=>');
SELECT rows FROM vecgpu_info('c_v');
REINDEX INDEX c_v;
SELECT rows FROM vecgpu_info('c_v');
-- Dimensions are those of a zero vector too, if it is the first.
SELECT top('c', '{2,0,0}', 9, op => '<=>');
-- A zero query: every distance is NaN, every indexed row comes, none twice.
SET enable_seqscan = off;
SELECT count(*), count(DISTINCT id) FROM (SELECT id FROM c ORDER BY v <=> '{0,0,0}' LIMIT 10) s;
RESET enable_seqscan;
UPDATE c SET v = '{0,0,0}' WHERE id = 6;
UPDATE c SET v = '{0.95,0,0}' WHERE id = 2;
SELECT top('c', '{1,0,0}', 9, op => '<=>');
SELECT vecgpu_check('c_v');
DROP TABLE c;

-- Only zero vectors: an index of nothing.
CREATE TABLE z (id int, v real[]);
INSERT INTO z SELECT i, '{0,0}' FROM generate_series(1, 3) i;
CREATE INDEX z_v ON z USING vecgpu (v real_cosine_ops);
SELECT top('z', '{1,0}', 9, op => '<=>');
INSERT INTO z VALUES (4, '{0,1}');
SELECT top('z', '{1,0}', 9, op => '<=>');
SELECT vecgpu_check('z_v');
DROP TABLE z;

-- Very short vectors have a direction as well: squares of 1e-30 vanish in float4.
CREATE TABLE tiny (id int, v real[]);
INSERT INTO tiny VALUES (1, '{1e-30,0,0}'), (2, '{0,1e-30,0}'), (3, '{1,0,0}'), (4, '{3e38,3e38,0}'), (5, '{1e-40,0,0}');
CREATE INDEX tiny_v ON tiny USING vecgpu (v real_cosine_ops);
SELECT top('tiny', '{1,0,0}', 5, op => '<=>'), top('tiny', '{1,0,0}', 5, false, op => '<=>');
SELECT top('tiny', '{1e-30,1e-30,0}', 1, op => '<=>');
SELECT vecgpu_check('tiny_v');
DROP TABLE tiny;

-- The list never falls, to the last bit of the operator's own value, for every metric.
CREATE TABLE o (id int, v real[]) WITH (autovacuum_enabled = off);
INSERT INTO o SELECT i, uvec(i, 3) FROM generate_series(1, 3000) i;
CREATE INDEX o_l2 ON o USING vecgpu (v);
CREATE INDEX o_ip ON o USING vecgpu (v real_ip_ops);
CREATE INDEX o_cosine ON o USING vecgpu (v real_cosine_ops);
INSERT INTO o SELECT i, uvec(i, 3) FROM generate_series(3001, 3200) i;
SET vecgpu.ef_search = 200;
SELECT * FROM walk('o', '{3,1,2}', op => '<->');
SELECT * FROM walk('o', '{3,1,2}', op => '<#>');
SELECT * FROM walk('o', '{3,1,2}', op => '<=>');
SELECT * FROM walk('o', '{3,1,2}', 40, op => '<=>', filter => 'id % 20 = 0');
-- Cosine distances that only float8 tells apart, in the opposite order of the table.
CREATE TABLE close (id int, v real[]);
INSERT INTO close SELECT i, ARRAY[1, i * 1e-9, 0]::real[] FROM generate_series(1, 100) i;
CREATE INDEX close_v ON close USING vecgpu (v real_cosine_ops);
SELECT top('close', '{0,1,0}', 3, op => '<=>');
SELECT * FROM walk('close', '{0,1,0}', op => '<=>');
DROP TABLE close;
RESET vecgpu.ef_search;
SELECT vecgpu_check('o_l2'), vecgpu_check('o_ip'), vecgpu_check('o_cosine');
DROP TABLE o;

-- ---- extreme values under L2: squares that overflow or vanish in float4 must not blur the order ----
CREATE TABLE x (id int, v real[]);
INSERT INTO x VALUES (1, '{3e38,0}'), (2, '{2e38,0}'), (3, '{1e30,0}'), (4, '{1e25,0}'), (5, '{5,0}'), (6, '{3e-25,0}'),
    (7, '{2e-25,0}'), (8, '{1e-25,0}'), (9, '{2e-40,0}'), (10, '{-2.9e38,0}');
CREATE INDEX x_v ON x USING vecgpu (v);
SELECT top('x', '{0,0}', 10), top('x', '{0,0}', 10, false);
SELECT top('x', '{3e38,0}', 10), top('x', '{3e38,0}', 10, false);
CREATE INDEX x_ip ON x USING vecgpu (v real_ip_ops);
SELECT top('x', '{1e10,0}', 10, op => '<#>'), top('x', '{1e10,0}', 10, false, op => '<#>');
SELECT top('x', '{1e-10,0}', 10, op => '<#>'), top('x', '{1e-10,0}', 10, false, op => '<#>');
SELECT top('x', '{-3e38,0}', 10, op => '<#>'), top('x', '{-3e38,0}', 10, false, op => '<#>');
INSERT INTO x VALUES (11, '{2.5e38,0}'), (12, '{1.5e-25,0}');
SELECT top('x', '{0,0}', 12), top('x', '{0,0}', 12, false);
SELECT vecgpu_flush('x_v'), vecgpu_flush('x_ip');
SELECT top('x', '{0,0}', 12), top('x', '{0,0}', 12, false);
SELECT vecgpu_check('x_v'), vecgpu_check('x_ip');
DROP TABLE x;

-- ---- an inner product index that starts empty and grows by small flushes: its graph is that of the reduction to L2 from the
-- first flush on, as good as a built one ----
CREATE TABLE grown (id int, v real[]) WITH (autovacuum_enabled = off);
CREATE INDEX grown_v ON grown USING vecgpu (v real_ip_ops);
SET vecgpu.flush_rows = 0;
DO $$
BEGIN
    FOR part IN 0..3 LOOP
        INSERT INTO grown SELECT i, ARRAY(SELECT (x * exp(3 * ((hashint4(i) & 65535) / 65536.0)))::real FROM unnest(uvec(i, 32)) x)
            FROM generate_series(part * 900 + 1, part * 900 + 900) i;
        PERFORM vecgpu_flush('grown_v');
    END LOOP;
END $$;
RESET vecgpu.flush_rows;
SELECT nodes, generation FROM vecgpu_info('grown_v');
SET vecgpu.ef_search = 40;
SELECT vecgpu_recall('grown_v', 10, (SELECT array_agg(uvec(-i, 32)) FROM generate_series(1, 100) i)) >= 0.7 AS good;
RESET vecgpu.ef_search;
SELECT vecgpu_check('grown_v');
DROP TABLE grown;
