-- Storage of fewer bits: the index keeps less, the order is still that of the table's own values (taken from the heap).
CREATE TABLE s (id int PRIMARY KEY, v real[]) WITH (autovacuum_enabled = off);
INSERT INTO s SELECT i, uvec(i, 24) FROM generate_series(1, 2000) i;
CREATE INDEX s_f16 ON s USING vecgpu (v) WITH (storage = float16, ef_search = 200);
SELECT storage, rows, dimensions FROM vecgpu_info('s_f16');
SELECT * FROM walk('s', uvec(5001, 24), 100);
SELECT * FROM walk('s', uvec(5001, 24));
INSERT INTO s SELECT i, uvec(i, 24) FROM generate_series(2001, 2200) i;
SELECT * FROM walk('s', uvec(5002, 24));
SELECT vecgpu_flush('s_f16');
SELECT * FROM walk('s', uvec(5003, 24));
SELECT vecgpu_recall('s_f16') = 1 AS recall;
SELECT vecgpu_check('s_f16');
DROP INDEX s_f16;

CREATE INDEX s_bf16 ON s USING vecgpu (v) WITH (storage = bfloat16, ef_search = 200);
SELECT storage, rows, dimensions FROM vecgpu_info('s_bf16');
SELECT * FROM walk('s', uvec(5001, 24), 100);
SELECT * FROM walk('s', uvec(5001, 24));
UPDATE s SET v = uvec(id + 10000, 24) WHERE id <= 200;
SELECT * FROM walk('s', uvec(5002, 24));
SELECT vecgpu_flush('s_bf16');
SELECT * FROM walk('s', uvec(5003, 24));
SELECT vecgpu_recall('s_bf16') = 1 AS recall;
SELECT vecgpu_check('s_bf16');
DROP INDEX s_bf16;

CREATE INDEX s_i8 ON s USING vecgpu (v) WITH (storage = int8, ef_search = 200);
SELECT storage, rows, dimensions FROM vecgpu_info('s_i8');
SELECT * FROM walk('s', uvec(5001, 24), 100);
SELECT * FROM walk('s', uvec(5001, 24));
DELETE FROM s WHERE id % 2 = 0;
SELECT * FROM walk('s', uvec(5002, 24));
VACUUM s;
SELECT * FROM walk('s', uvec(5003, 24));
SELECT vecgpu_recall('s_i8') = 1 AS recall;
SELECT vecgpu_check('s_i8');
DROP INDEX s_i8;

-- The other metrics; a zero vector, whose scale in int8 is 0.
INSERT INTO s VALUES (9001, same_vec(0, 24));
CREATE INDEX s_c16 ON s USING vecgpu (v real_cosine_ops) WITH (storage = float16, ef_search = 200);
CREATE INDEX s_ip8 ON s USING vecgpu (v real_ip_ops) WITH (storage = int8, ef_search = 200);
SELECT * FROM walk('s', uvec(5002, 24), 50, op => '<=>');
SELECT * FROM walk('s', uvec(5002, 24), 50, op => '<#>');
SELECT vecgpu_check('s_c16'), vecgpu_check('s_ip8');
DROP TABLE s;

-- Values that many rows share after rounding: from 2,049 on float16 has one code for two neighbours, from 16,384 on for 16;
-- bfloat16 for 128. The order is by the heap's values all the same, and no row is lost.
CALL make_line('l', 20000);
CREATE INDEX l_f16 ON l USING vecgpu (v) WITH (storage = float16);
SELECT top('l', '{0,0,0}', 5), top('l', '{16500.25,0,0}', 6), top('l', '{20001,0,0}', 5);
SELECT * FROM walk('l', '{16500.25,0,0}', 300);
SELECT * FROM walk('l', '{20001,0,0}', 300);
SELECT * FROM walk('l', '{0,0,0}');
SELECT * FROM walk('l', '{20001,0,0}');
SELECT vecgpu_check('l_f16');
DROP INDEX l_f16;
CREATE INDEX l_bf16 ON l USING vecgpu (v) WITH (storage = bfloat16);
SELECT top('l', '{0,0,0}', 5), top('l', '{16500.25,0,0}', 6), top('l', '{20001,0,0}', 5);
SELECT * FROM walk('l', '{16500.25,0,0}', 300);
SELECT * FROM walk('l', '{20001,0,0}', 300);
SELECT * FROM walk('l', '{20001,0,0}');
SELECT vecgpu_check('l_bf16');
DROP INDEX l_bf16;
-- With a scale for each row int8 tells these apart: only the scale differs.
CREATE INDEX l_i8 ON l USING vecgpu (v) WITH (storage = int8);
SELECT top('l', '{0,0,0}', 5), top('l', '{16500.25,0,0}', 6), top('l', '{20001,0,0}', 5);
SELECT * FROM walk('l', '{16500.25,0,0}', 300);
SELECT * FROM walk('l', '{20001,0,0}');
SELECT vecgpu_check('l_i8');
DROP TABLE l;

-- Rows that become equal by rounding are twins in the index, and different in the answer.
CREATE TABLE near (id int, v real[]);
INSERT INTO near SELECT i, ARRAY[1 + i * 1e-6, 1, 1]::real[] FROM generate_series(200, 1, -1) i;
CREATE INDEX near_f16 ON near USING vecgpu (v) WITH (storage = float16);
SELECT nodes, twins FROM vecgpu_info('near_f16');
SELECT top('near', '{1,1,1}', 5), top('near', '{2,1,1}', 5);
SELECT * FROM walk('near', '{1,1,1}');
SELECT vecgpu_check('near_f16');
DROP INDEX near_f16;
CREATE INDEX near_i8 ON near USING vecgpu (v) WITH (storage = int8);
SELECT top('near', '{1,1,1}', 5), top('near', '{2,1,1}', 5);
SELECT * FROM walk('near', '{1,1,1}');
SELECT vecgpu_check('near_i8');
DROP TABLE near;

-- Out of range: float16 ends at 65,504 (what rounds to it is below 65,520), and says so when a row comes, not later.
CREATE TABLE r (id int, v real[]);
INSERT INTO r VALUES (1, '{65504,0}'), (2, '{65519,0}'), (3, '{-65504,1}');
CREATE INDEX r_f16 ON r USING vecgpu (v) WITH (storage = float16);
INSERT INTO r VALUES (4, '{0,65520}');
\set VERBOSITY sqlstate
INSERT INTO r VALUES (4, '{0,-70000}');
\set VERBOSITY default
SELECT top('r', '{65519,0}', 3);
-- The query may be out of range; only rows are stored.
SELECT top('r', '{70000,0}', 3);
INSERT INTO r VALUES (5, '{1e-8,0}'), (6, '{2e-8,0}'), (7, '{-0,0}');
SELECT top('r', '{0,0}', 3);
SELECT vecgpu_check('r_f16');
DROP INDEX r_f16;
INSERT INTO r VALUES (8, '{70000,0}');
CREATE INDEX r_f16 ON r USING vecgpu (v) WITH (storage = float16);
-- bfloat16 has nearly the range of float4, int8 has all of it.
CREATE INDEX r_bf16 ON r USING vecgpu (v) WITH (storage = bfloat16);
INSERT INTO r VALUES (9, '{3e38,0}');
INSERT INTO r VALUES (10, '{3.4028235e38,0}');
SELECT top('r', '{3e38,0}', 2);
SELECT vecgpu_check('r_bf16');
DROP INDEX r_bf16;
CREATE INDEX r_i8 ON r USING vecgpu (v) WITH (storage = int8);
INSERT INTO r VALUES (10, '{3.4028235e38,0}'), (11, '{1e-40,0}');
SELECT top('r', '{3.3e38,0}', 2), top('r', '{0,0}', 4);
SELECT vecgpu_check('r_i8');
DROP TABLE r;

-- One row apart from a crowd of equal ones must be found by its own value.
CREATE TABLE one (id int, v real[]);
INSERT INTO one SELECT i, CASE WHEN i = 1 THEN '{1,1,1,1}'::real[] ELSE '{0,0,0,0}' END FROM generate_series(1, 257) i;
CREATE INDEX one_i8 ON one USING vecgpu (v) WITH (storage = int8);
SELECT top('one', '{1,1,1,1}', 1), cardinality(top('one', '{1,1,1,1}', 300));
SELECT vecgpu_check('one_i8');
DROP TABLE one;
