-- Partitioned tables: an index on the parent is one on each partition; an ordered query merges them.
CREATE TABLE p (id int, g int, v real[]) PARTITION BY LIST (g);
SELECT format('CREATE TABLE p%s PARTITION OF p FOR VALUES IN (%1$s)', g) FROM generate_series(0, 9) g \gexec
INSERT INTO p SELECT i, i % 10, ARRAY[i, 0, 0]::real[] FROM generate_series(1, 1000) i;
CREATE INDEX p_v ON p USING vecgpu (v);
SELECT count(*), bool_and(rows = 100) FROM pg_inherits, vecgpu_info(inhrelid) WHERE inhparent = 'p_v'::regclass;
SET enable_seqscan = off;
SELECT plan($$SELECT id FROM p WHERE g IN (3, 4) ORDER BY v <-> '{0,0,0}' LIMIT 3$$);
SELECT id FROM p ORDER BY v <-> '{0,0,0}' LIMIT 10;
SELECT plan($$SELECT id FROM p WHERE g = 3 ORDER BY v <-> '{0,0,0}' LIMIT 3$$);
SELECT id FROM p WHERE g = 3 ORDER BY v <-> '{0,0,0}' LIMIT 3;
SELECT id FROM p WHERE id % 7 = 0 ORDER BY v <-> '{0,0,0}' LIMIT 5;
-- All rows, by merging ten scans to their ends.
SELECT count(*), bool_and(id = n) FROM (SELECT id, row_number() OVER () AS n FROM (SELECT id FROM p ORDER BY v <-> '{0,0,0}' LIMIT 1001) a) s;
-- A table with its own rows becomes a partition and gets an index; one that has an equal index keeps it.
CREATE TABLE p10 (id int, g int, v real[]);
INSERT INTO p10 VALUES (2000, 10, '{0.5,0,0}'), (2001, 10, '{1.5,0,0}');
ALTER TABLE p ATTACH PARTITION p10 FOR VALUES IN (10);
SELECT id FROM p ORDER BY v <-> '{0,0,0}' LIMIT 4;
CREATE TABLE p11 (id int, g int, v real[]);
CREATE INDEX p11_own ON p11 USING vecgpu (v);
INSERT INTO p11 VALUES (3000, 11, '{0.25,0,0}');
ALTER TABLE p ATTACH PARTITION p11 FOR VALUES IN (11);
SELECT inhrelid::regclass FROM pg_inherits WHERE inhparent = 'p_v'::regclass AND inhrelid::regclass::text ~ 'p1[01]' ORDER BY 1::text;
SELECT id FROM p ORDER BY v <-> '{0,0,0}' LIMIT 4;
-- A new partition gets an index; rows move between partitions.
CREATE TABLE prest PARTITION OF p DEFAULT;
UPDATE p SET g = 77 WHERE id = 3000;
SELECT tableoid::regclass, id FROM p ORDER BY v <-> '{0,0,0}' LIMIT 1;
-- DETACH takes its rows along.
ALTER TABLE p DETACH PARTITION p10;
SELECT id FROM p ORDER BY v <-> '{0,0,0}' LIMIT 3;
SELECT id FROM p10 ORDER BY v <-> '{0,0,0}' LIMIT 3;
-- CREATE INDEX ON ONLY, then ATTACH of each.
DROP INDEX p_v;
CREATE INDEX p_v ON ONLY p USING vecgpu (v);
SELECT indisvalid FROM pg_index WHERE indexrelid = 'p_v'::regclass;
SELECT format('CREATE INDEX %1$s_v ON %1$s USING vecgpu (v)', inhrelid::regclass) FROM pg_inherits WHERE inhparent = 'p'::regclass ORDER BY inhrelid::regclass::text \gexec
SELECT format('ALTER INDEX p_v ATTACH PARTITION %s_v', inhrelid::regclass) FROM pg_inherits WHERE inhparent = 'p'::regclass ORDER BY inhrelid::regclass::text \gexec
SELECT indisvalid FROM pg_index WHERE indexrelid = 'p_v'::regclass;
SELECT id FROM p ORDER BY v <-> '{0,0,0}' LIMIT 3;
REINDEX INDEX p_v;
SELECT id FROM p ORDER BY v <-> '{0,0,0}' LIMIT 3;
RESET enable_seqscan;
-- The functions want an index with pages.
SELECT vecgpu_info('p_v');
SELECT vecgpu_check('p_v');
SELECT vecgpu_flush('p_v');
SELECT vecgpu_recall('p_v');
SELECT count(vecgpu_check(inhrelid)::text) FROM pg_inherits WHERE inhparent = 'p_v'::regclass;
-- Inheritance of the old kind.
CREATE TABLE parent (id int, v real[]);
CREATE TABLE child () INHERITS (parent);
INSERT INTO parent SELECT i, ARRAY[i]::real[] FROM generate_series(1, 99, 2) i;
INSERT INTO child SELECT i, ARRAY[i]::real[] FROM generate_series(2, 100, 2) i;
CREATE INDEX parent_v ON parent USING vecgpu (v);
CREATE INDEX child_v ON child USING vecgpu (v);
SET enable_seqscan = off;
SELECT id FROM parent ORDER BY v <-> '{50.25}' LIMIT 4;
RESET enable_seqscan;
SELECT vecgpu_check('parent_v'), vecgpu_check('child_v');
DROP TABLE parent, child;
DROP TABLE p, p10;
