-- From 1 to 16,000 dimensions: build, search, insert (rows that are larger than a page wait on overflow pages), flush, update,
-- VACUUM. Rows are x times the first unit vector with x = 1, 2, 3, ..., so the answers are known.
CREATE FUNCTION try(d int, options text DEFAULT '', opclass text DEFAULT 'real_l2_ops') RETURNS TABLE (
    dims int, built int[], inserted int[], info text, flushed bigint, after int[], updated int[], refused text)
LANGUAGE plpgsql AS $$
BEGIN
    dims := d;
    CREATE TABLE w (id int, v real[]) WITH (autovacuum_enabled = off);
    INSERT INTO w SELECT i, axis_vec(i, d) FROM generate_series(1, 3) i;
    EXECUTE format('CREATE INDEX w_v ON w USING vecgpu (v %s) %s', opclass, options);
    built := top('w', axis_vec(0, d), 10);
    PERFORM vecgpu_check('w_v');
    INSERT INTO w VALUES (4, axis_vec(0.5, d)), (5, axis_vec(2.25, d));
    inserted := top('w', axis_vec(0, d), 10);
    SELECT format('%s dimensions, %s rows, %s wait', i.dimensions, i.rows, i.delta_rows) INTO info FROM vecgpu_info('w_v') i;
    PERFORM vecgpu_check('w_v');
    flushed := vecgpu_flush('w_v');
    after := top('w', axis_vec(0, d), 10);
    PERFORM vecgpu_check('w_v');
    UPDATE w SET v = axis_vec(9, d) WHERE id = 1;
    DELETE FROM w WHERE id = 2;
    updated := top('w', axis_vec(0, d), 10);
    BEGIN
        INSERT INTO w VALUES (6, axis_vec(1, d + 1));
    EXCEPTION WHEN OTHERS THEN
        refused := SQLSTATE || ' ' || SQLERRM;
    END;
    PERFORM vecgpu_check('w_v');
    DROP TABLE w;
    RETURN NEXT;
END $$;
\x on
SELECT t.* FROM unnest('{2,3,1999,2000,2001,2035,2036,4096,15999}'::int[]) d, try(d) t;
SELECT * FROM try(16000);
-- axis_vec needs a second component; one dimension by hand.
\x off
CREATE TABLE one (id int, v real[]) WITH (autovacuum_enabled = off);
INSERT INTO one SELECT i, ARRAY[i]::real[] FROM generate_series(1, 500) i;
CREATE INDEX one_v ON one USING vecgpu (v);
SELECT top('one', '{0}', 3), top('one', '{250.25}', 4);
INSERT INTO one VALUES (501, '{250.3}'), (502, '{-1}');
SELECT top('one', '{-2}', 3), top('one', '{250.25}', 2);
SELECT vecgpu_flush('one_v');
SELECT top('one', '{-2}', 3), top('one', '{250.25}', 2);
SELECT * FROM walk('one', '{77.7}');
SELECT vecgpu_check('one_v');
-- In one dimension a cosine is 1 or -1.
CREATE INDEX one_c ON one USING vecgpu (v real_cosine_ops);
SELECT top('one', '{3}', 3, op => '<=>'), top('one', '{-3}', 3, op => '<=>');
SELECT * FROM walk('one', '{-3}', op => '<=>');
SELECT vecgpu_check('one_c');
DROP TABLE one;
\x on
-- Narrow storage, other kind.
SELECT * FROM try(16000, 'WITH (storage = float16)');
SELECT * FROM try(16000, 'WITH (storage = int8, m = 2, ef_construction = 4)');
SELECT * FROM try(4071, 'WITH (storage = bfloat16)');
SELECT * FROM try(16000, 'WITH (kind = flat)');
SELECT * FROM try(3, 'WITH (m = 100, ef_construction = 1000)');
SELECT * FROM try(16000, 'WITH (m = 100, ef_construction = 200, dimensions = 16000)');
\x off
DROP FUNCTION try;
-- One more is too many, at every door.
CREATE TABLE w (id int, v real[]);
CREATE INDEX w_v ON w USING vecgpu (v);
INSERT INTO w VALUES (1, same_vec(1, 16001));
SELECT count(*) FROM w;
DROP INDEX w_v;
INSERT INTO w VALUES (1, same_vec(1, 16001));
CREATE INDEX w_v ON w USING vecgpu (v);
DROP TABLE w;

-- Overflow pages are given back: rounds of insert and flush do not grow the index by more than the rows.
CREATE TABLE big (id int, v real[]) WITH (autovacuum_enabled = off);
CREATE INDEX big_v ON big USING vecgpu (v);
INSERT INTO big SELECT i, uvec(i, 4000) FROM generate_series(1, 20) i;
SELECT vecgpu_flush('big_v');
DO $$
DECLARE
    before bigint := pg_relation_size('big_v');
BEGIN
    FOR i IN 1..10 LOOP
        INSERT INTO big SELECT 100 * i + j, uvec(100 * i + j, 4000) FROM generate_series(1, 5) j;
        PERFORM vecgpu_flush('big_v');
    END LOOP;
    IF pg_relation_size('big_v') - before > 2 * 50 * 16000 THEN
        RAISE WARNING 'grew from % to %', before, pg_relation_size('big_v');
    END IF;
END $$;
SELECT * FROM walk('big', uvec(777777, 4000));
DELETE FROM big WHERE id <= 10;
VACUUM big;
SELECT * FROM walk('big', uvec(777777, 4000));
SELECT rows, delta_rows, delta_pages FROM vecgpu_info('big_v');
SELECT vecgpu_check('big_v');
-- Deletes while the rows still wait on overflow pages.
INSERT INTO big SELECT 2000 + i, uvec(2000 + i, 4000) FROM generate_series(1, 10) i;
DELETE FROM big WHERE id BETWEEN 2001 AND 2005;
VACUUM big;
SELECT * FROM walk('big', uvec(777778, 4000));
SELECT vecgpu_check('big_v');
DROP TABLE big;
