-- The extension in a schema that is not in the search path, as pg_dump and maintenance commands have it: everything is named in full.
\set database :DBNAME
CREATE DATABASE regression_vecgpu_schema;
\c regression_vecgpu_schema
CREATE SCHEMA ext;
CREATE EXTENSION vecgpu SCHEMA ext;
SET search_path = '';
CREATE TABLE public.t (id int, g int, v real[]);
INSERT INTO public.t SELECT i, i % 2, ARRAY[i, 0, 0]::real[] FROM pg_catalog.generate_series(1, 1000) i;
-- The default operator class is found by the type; others by their schema.
CREATE INDEX t_v ON public.t USING vecgpu (v);
CREATE INDEX t_ip ON public.t USING vecgpu (v ext.real_ip_ops);
CREATE INDEX t_cosine ON public.t USING vecgpu (v ext.real_cosine_ops) WHERE id < 100;
CREATE INDEX t_bad ON public.t USING vecgpu (v real_ip_ops);
SET enable_seqscan = off;
EXPLAIN (COSTS OFF) SELECT id FROM public.t ORDER BY v OPERATOR(ext.<->) '{500.25,0,0}' LIMIT 3;
SELECT id FROM public.t ORDER BY v OPERATOR(ext.<->) '{500.25,0,0}' LIMIT 3;
SELECT id FROM public.t ORDER BY v OPERATOR(ext.<#>) '{1,0,0}' LIMIT 3;
SELECT id FROM public.t WHERE id < 100 ORDER BY v OPERATOR(ext.<=>) '{1,0,0}' LIMIT 3;
SELECT id FROM public.t ORDER BY v <-> '{500.25,0,0}' LIMIT 3;
INSERT INTO public.t VALUES (1001, 1, '{500.3,0,0}');
SELECT ext.vecgpu_flush('public.t_v');
SELECT rows FROM ext.vecgpu_info('public.t_v');
SELECT ext.vecgpu_recall('public.t_v') = 1 AS recall;
SELECT id FROM public.t ORDER BY v OPERATOR(ext.<->) '{500.25,0,0}' LIMIT 3;
REINDEX TABLE public.t;
REINDEX INDEX CONCURRENTLY public.t_v;
VACUUM (ANALYZE) public.t;
SELECT id FROM public.t ORDER BY v OPERATOR(ext.<->) '{500.25,0,0}' LIMIT 3;
SELECT ext.vecgpu_check('public.t_v'), ext.vecgpu_check('public.t_ip'), ext.vecgpu_check('public.t_cosine');
-- Partitioned.
CREATE TABLE public.p (id int, g int, v real[]) PARTITION BY LIST (g);
CREATE TABLE public.p0 PARTITION OF public.p FOR VALUES IN (0);
CREATE TABLE public.p1 PARTITION OF public.p FOR VALUES IN (1);
INSERT INTO public.p SELECT * FROM public.t;
CREATE INDEX p_v ON public.p USING vecgpu (v ext.real_l2_ops);
SELECT id FROM public.p ORDER BY v OPERATOR(ext.<->) '{500.25,0,0}' LIMIT 3;
-- An expression index on a function of the user, and a materialized view.
CREATE FUNCTION public.half(v real[]) RETURNS real[] LANGUAGE sql IMMUTABLE AS $$ SELECT pg_catalog.trim_array(v, 1) $$;
CREATE INDEX t_half ON public.t USING vecgpu (public.half(v));
SELECT id FROM public.t ORDER BY public.half(v) OPERATOR(ext.<->) '{500.25,0}' LIMIT 3;
CREATE MATERIALIZED VIEW public.mv AS SELECT id, v OPERATOR(ext.<->) '{0,0,0}' AS d, v FROM public.t;
CREATE INDEX mv_v ON public.mv USING vecgpu (v);
REFRESH MATERIALIZED VIEW public.mv;
SELECT id FROM public.mv ORDER BY v OPERATOR(ext.<->) '{500.25,0,0}' LIMIT 3;
-- A schema of a user with functions and operators of the same names changes nothing.
CREATE SCHEMA evil;
CREATE FUNCTION evil.l2_distance(real[], real[]) RETURNS float8 LANGUAGE sql IMMUTABLE AS $$ SELECT 42::float8 $$;
CREATE OPERATOR evil.<-> (LEFTARG = real[], RIGHTARG = real[], FUNCTION = evil.l2_distance);
SET search_path = evil, ext, public;
SELECT id, v OPERATOR(ext.<->) '{500.25,0,0}' < 1 AS near FROM t ORDER BY v OPERATOR(ext.<->) '{500.25,0,0}' LIMIT 1;
SELECT vecgpu_check('t_v');
INSERT INTO t VALUES (1002, 0, '{500.26,0,0}');
SELECT id FROM t ORDER BY v OPERATOR(ext.<->) '{500.25,0,0}' LIMIT 1;
-- Moved.
CREATE SCHEMA elsewhere;
ALTER EXTENSION vecgpu SET SCHEMA elsewhere;
SET search_path = '';
SELECT id FROM public.t ORDER BY v OPERATOR(elsewhere.<->) '{500.25,0,0}' LIMIT 2;
SELECT pg_catalog.pg_get_indexdef('public.t_ip'::pg_catalog.regclass);
-- It cannot go while there are indexes; CASCADE takes them along.
\set VERBOSITY terse
DROP EXTENSION vecgpu;
\set VERBOSITY default
SET client_min_messages = warning;
DROP EXTENSION vecgpu CASCADE;
RESET client_min_messages;
SELECT pg_catalog.count(*) FROM pg_catalog.pg_index WHERE indrelid = 'public.t'::pg_catalog.regclass;
\c :database
DROP DATABASE regression_vecgpu_schema;
