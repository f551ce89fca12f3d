-- The extension, and functions that the other files of this suite use. They stay in the database.
-- Noise of the server version or of other objects is kept out, so nothing here prints more than its own text.
CREATE EXTENSION vecgpu;

-- Reproducible numbers in [-1, 1), and vectors of them: uniform (uvec) and in c clusters (cvec).
CREATE FUNCTION u01(i bigint, j bigint) RETURNS real LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$ SELECT (hashint8(i * 4096 + j)::float8 / 2147483648.0)::real $$;
CREATE FUNCTION uvec(i bigint, d int) RETURNS real[] LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$ SELECT array_agg(u01(i, j) ORDER BY j) FROM generate_series(1, d) j $$;
CREATE FUNCTION cvec(i bigint, d int, c int) RETURNS real[] LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$ SELECT array_agg((4 * u01(900000000 + i % c, j) + u01(i, j))::real ORDER BY j) FROM generate_series(1, d) j $$;

-- A vector of d components that are all x, and one whose first component is x and whose others are 0.
CREATE FUNCTION same_vec(x real, d int) RETURNS real[] LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$ SELECT array_fill(x, ARRAY[d]) $$;
CREATE FUNCTION axis_vec(x real, d int) RETURNS real[] LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$ SELECT ARRAY[x] || array_fill(0::real, ARRAY[d - 1]) $$;

-- LINE(n): points 1..n on a line, so every answer is known. Autovacuum is off: nothing moves rows but the test.
CREATE PROCEDURE make_line(name text, n int) LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('CREATE TABLE %I (id int PRIMARY KEY, g int, v real[]) WITH (autovacuum_enabled = off)', name);
    EXECUTE format('INSERT INTO %I SELECT i, i %% 10, ARRAY[i, 0, 0]::real[] FROM generate_series(1, %s) i', name, n);
END $$;

-- The plan of a statement, one line a node, without anything that differs between servers.
CREATE FUNCTION plan(statement text) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
    line text;
BEGIN
    FOR line IN EXECUTE 'EXPLAIN (COSTS OFF) ' || statement LOOP
        IF line ~ '^\s*(->\s+)?(Limit|Sort|Incremental Sort|Seq Scan|Index Scan|Index Only Scan|Bitmap|Append|Merge Append|Nested Loop|Hash Join|Aggregate|Result|CTE Scan|Function Scan|Gather)' THEN
            RETURN NEXT line;
        END IF;
    END LOOP;
END $$;

-- Whether a statement reads the given index in its order.
CREATE FUNCTION uses(index_name text, statement text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    line text;
    whole text := '';
BEGIN
    FOR line IN EXECUTE 'EXPLAIN (COSTS OFF) ' || statement LOOP
        whole := whole || line || E'\n';
    END LOOP;
    RETURN whole ~ ('Index Scan using ' || index_name || ' .*Order By: ');
END $$;

-- Ids of the k rows of `name` nearest to q, through the index (an error if the plan does not use one) or by an exact scan.
CREATE FUNCTION top(name text, q real[], k int, by_index boolean DEFAULT true, op text DEFAULT '<->',
                    filter text DEFAULT 'true') RETURNS int[] LANGUAGE plpgsql AS $$
DECLARE
    statement text := format('SELECT id FROM %s WHERE %s ORDER BY v %s %L::real[] LIMIT %s', name, filter, op, q, k);
    line text;
    whole text := '';
    ids int[];
BEGIN
    PERFORM set_config('enable_seqscan', CASE WHEN by_index THEN 'off' ELSE 'on' END, true);
    PERFORM set_config('enable_bitmapscan', CASE WHEN by_index THEN 'off' ELSE 'on' END, true);
    PERFORM set_config('enable_sort', CASE WHEN by_index THEN 'off' ELSE 'on' END, true);
    PERFORM set_config('enable_indexscan', CASE WHEN by_index THEN 'on' ELSE 'off' END, true);
    FOR line IN EXECUTE 'EXPLAIN (COSTS OFF) ' || statement LOOP
        whole := whole || line || E'\n';
    END LOOP;
    IF by_index <> (whole ~ 'Index Scan using .*Order By: ') THEN
        RAISE EXCEPTION 'unexpected plan: %', whole;
    END IF;
    EXECUTE 'SELECT array_agg(id) FROM (' || statement || ') s' INTO ids;
    PERFORM set_config('enable_seqscan', 'on', true);
    PERFORM set_config('enable_bitmapscan', 'on', true);
    PERFORM set_config('enable_sort', 'on', true);
    PERFORM set_config('enable_indexscan', 'on', true);
    RETURN ids;
END $$;

-- How a full or limited walk of the index compares with an exact scan: rows that either lacks, rows that come twice, and
-- places where the distance falls. Right is (0, 0, 0, 0), if k is large enough that ties at the end do not matter.
CREATE FUNCTION walk(name text, q real[], k int DEFAULT 1000000, op text DEFAULT '<->', filter text DEFAULT 'true',
                     OUT rows bigint, OUT missing bigint, OUT wrong bigint, OUT twice bigint, OUT falls bigint)
LANGUAGE plpgsql AS $$
DECLARE
    statement text := format('SELECT id, v %1$s %2$L::real[] AS d FROM %3$s WHERE %4$s AND v IS NOT NULL ORDER BY v %1$s %2$L::real[] LIMIT %5$s',
                             op, q, name, filter, k);
    line text;
    whole text := '';
BEGIN
    PERFORM set_config('enable_seqscan', 'off', true);
    PERFORM set_config('enable_bitmapscan', 'off', true);
    PERFORM set_config('enable_sort', 'off', true);
    FOR line IN EXECUTE 'EXPLAIN (COSTS OFF) ' || statement LOOP
        whole := whole || line || E'\n';
    END LOOP;
    IF NOT whole ~ 'Index Scan using .*Order By: ' THEN
        RAISE EXCEPTION 'unexpected plan: %', whole;
    END IF;
    EXECUTE 'CREATE TEMP TABLE walked AS SELECT row_number() OVER () AS n, id, d FROM (' || statement || ') s';
    PERFORM set_config('enable_seqscan', 'on', true);
    PERFORM set_config('enable_bitmapscan', 'on', true);
    PERFORM set_config('enable_sort', 'on', true);
    PERFORM set_config('enable_indexscan', 'off', true);
    EXECUTE 'CREATE TEMP TABLE exact AS ' || statement;
    PERFORM set_config('enable_indexscan', 'on', true);
    rows := (SELECT count(*) FROM walked);
    missing := (SELECT count(*) FROM (SELECT id, d FROM exact EXCEPT SELECT id, d FROM walked) s);
    wrong := (SELECT count(*) FROM (SELECT id, d FROM walked EXCEPT SELECT id, d FROM exact) s);
    twice := (SELECT count(*) - count(DISTINCT id) FROM walked);
    falls := (SELECT count(*) FROM (SELECT d, lag(d) OVER (ORDER BY n) AS before FROM walked) s WHERE d < before);
    DROP TABLE walked, exact;
END $$;
