-- complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION vecgpu" to load this file. \quit

-- ---- distances on real[] ----

CREATE FUNCTION l2_distance(real[], real[]) RETURNS float8
    AS 'MODULE_PATHNAME', 'vecgpu_l2_distance' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE COST 10;
COMMENT ON FUNCTION l2_distance(real[], real[]) IS 'Euclidean distance';

CREATE FUNCTION inner_product(real[], real[]) RETURNS float8
    AS 'MODULE_PATHNAME', 'vecgpu_inner_product' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE COST 10;
COMMENT ON FUNCTION inner_product(real[], real[]) IS 'inner product';

CREATE FUNCTION negative_inner_product(real[], real[]) RETURNS float8
    AS 'MODULE_PATHNAME', 'vecgpu_negative_inner_product' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE COST 10;
COMMENT ON FUNCTION negative_inner_product(real[], real[]) IS 'implementation of <#> operator';

CREATE FUNCTION cosine_distance(real[], real[]) RETURNS float8
    AS 'MODULE_PATHNAME', 'vecgpu_cosine_distance' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE COST 10;
COMMENT ON FUNCTION cosine_distance(real[], real[]) IS '1 - cosine similarity; NaN for a zero vector';

CREATE FUNCTION l1_distance(real[], real[]) RETURNS float8
    AS 'MODULE_PATHNAME', 'vecgpu_l1_distance' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE COST 10;
COMMENT ON FUNCTION l1_distance(real[], real[]) IS 'taxicab distance';

CREATE OPERATOR <-> (LEFTARG = real[], RIGHTARG = real[], FUNCTION = l2_distance, COMMUTATOR = '<->');
CREATE OPERATOR <#> (LEFTARG = real[], RIGHTARG = real[], FUNCTION = negative_inner_product, COMMUTATOR = '<#>');
CREATE OPERATOR <=> (LEFTARG = real[], RIGHTARG = real[], FUNCTION = cosine_distance, COMMUTATOR = '<=>');
CREATE OPERATOR <+> (LEFTARG = real[], RIGHTARG = real[], FUNCTION = l1_distance, COMMUTATOR = '<+>');

-- ---- access method ----

CREATE FUNCTION vecgpu_handler(internal) RETURNS index_am_handler
    AS 'MODULE_PATHNAME', 'vecgpu_handler' LANGUAGE C;
COMMENT ON FUNCTION vecgpu_handler(internal) IS 'vecgpu index access method handler';

CREATE ACCESS METHOD vecgpu TYPE INDEX HANDLER vecgpu_handler;
COMMENT ON ACCESS METHOD vecgpu IS 'nearest neighbours of vectors';

-- Support function 1 of an operator class names the metric and the way to read a vector from a datum.

CREATE FUNCTION vecgpu_real_l2_support(internal) RETURNS internal
    AS 'MODULE_PATHNAME', 'vecgpu_real_l2_support' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
CREATE FUNCTION vecgpu_real_ip_support(internal) RETURNS internal
    AS 'MODULE_PATHNAME', 'vecgpu_real_ip_support' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
CREATE FUNCTION vecgpu_real_cosine_support(internal) RETURNS internal
    AS 'MODULE_PATHNAME', 'vecgpu_real_cosine_support' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;

CREATE OPERATOR CLASS real_l2_ops DEFAULT FOR TYPE real[] USING vecgpu AS
    OPERATOR 1 <-> (real[], real[]) FOR ORDER BY float_ops,
    FUNCTION 1 vecgpu_real_l2_support(internal);

CREATE OPERATOR CLASS real_ip_ops FOR TYPE real[] USING vecgpu AS
    OPERATOR 1 <#> (real[], real[]) FOR ORDER BY float_ops,
    FUNCTION 1 vecgpu_real_ip_support(internal);

CREATE OPERATOR CLASS real_cosine_ops FOR TYPE real[] USING vecgpu AS
    OPERATOR 1 <=> (real[], real[]) FOR ORDER BY float_ops,
    FUNCTION 1 vecgpu_real_cosine_support(internal);

-- ---- administration ----

CREATE FUNCTION vecgpu_info(index regclass,
    OUT kind text, OUT metric text, OUT storage text, OUT dimensions int, OUT m int, OUT ef_construction int,
    OUT rows bigint, OUT delta_rows bigint, OUT dead_rows bigint, OUT nodes bigint, OUT twins bigint,
    OUT upper_nodes bigint, OUT max_level int, OUT generation bigint, OUT epoch bigint,
    OUT vector_pages bigint, OUT link_pages bigint, OUT slot_pages bigint, OUT twin_pages bigint,
    OUT upper_pages bigint, OUT delta_pages bigint, OUT parked_pages bigint, OUT total_pages bigint,
    OUT device_form text, OUT exact_us real[], OUT graph_us real[])
    AS 'MODULE_PATHNAME', 'vecgpu_info' LANGUAGE C STRICT;
COMMENT ON FUNCTION vecgpu_info(regclass) IS 'what a vecgpu index holds';

CREATE FUNCTION vecgpu_check(index regclass) RETURNS void
    AS 'MODULE_PATHNAME', 'vecgpu_check' LANGUAGE C STRICT;
COMMENT ON FUNCTION vecgpu_check(regclass) IS 'verifies every page of a vecgpu index; raises index_corrupted';

CREATE FUNCTION vecgpu_flush(index regclass) RETURNS bigint
    AS 'MODULE_PATHNAME', 'vecgpu_flush' LANGUAGE C STRICT;
COMMENT ON FUNCTION vecgpu_flush(regclass) IS 'moves waiting rows into the graph; returns how many';

CREATE FUNCTION vecgpu_recall(index regclass, k int DEFAULT 10, queries real[] DEFAULT NULL) RETURNS float8
    AS 'MODULE_PATHNAME', 'vecgpu_recall' LANGUAGE C;
COMMENT ON FUNCTION vecgpu_recall(regclass, int, real[]) IS
    'share of the exact k nearest rows that an index scan with the current settings returns';

REVOKE ALL ON FUNCTION vecgpu_check(regclass) FROM PUBLIC;

-- ---- engine ----

CREATE FUNCTION vecgpu_prewarm(index regclass,
    OUT device text, OUT bytes_sent bigint, OUT bytes bigint, OUT milliseconds float8)
    AS 'MODULE_PATHNAME', 'vecgpu_prewarm' LANGUAGE C STRICT;
COMMENT ON FUNCTION vecgpu_prewarm(regclass) IS 'brings the mirror of an index in the engine up to date, and waits for it';

CREATE FUNCTION vecgpu_evict(index regclass) RETURNS bigint
    AS 'MODULE_PATHNAME', 'vecgpu_evict' LANGUAGE C STRICT;
COMMENT ON FUNCTION vecgpu_evict(regclass) IS 'drops the mirror of an index; returns the bytes of device memory that it had';

CREATE FUNCTION vecgpu_mirrors(
    OUT index oid, OUT device text, OUT state text, OUT storage text, OUT bytes bigint, OUT epoch bigint, OUT nodes bigint,
    OUT idle interval, OUT exact_from int)
    RETURNS SETOF record AS 'MODULE_PATHNAME', 'vecgpu_mirrors' LANGUAGE C STRICT;
COMMENT ON FUNCTION vecgpu_mirrors() IS 'mirrors of indexes of this database that the engine holds';

CREATE FUNCTION vecgpu_devices(
    OUT device text, OUT number int, OUT name text, OUT memory bigint, OUT memory_limit bigint, OUT memory_used bigint,
    OUT mirrors int, OUT threads int, OUT reason text)
    RETURNS SETOF record AS 'MODULE_PATHNAME', 'vecgpu_devices' LANGUAGE C STRICT;
COMMENT ON FUNCTION vecgpu_devices() IS 'devices of the engine; where there is no GPU, the reason';

-- ---- statistics ----

CREATE FUNCTION vecgpu_stat(
    OUT index oid, OUT queries bigint, OUT batches bigint, OUT width_sum bigint, OUT width_histogram bigint[],
    OUT queue_ms float8, OUT copy_ms float8, OUT kernel_ms float8, OUT rerank_ms float8,
    OUT candidates bigint, OUT dropped bigint, OUT fallbacks bigint, OUT fallback_reasons jsonb)
    RETURNS SETOF record AS 'MODULE_PATHNAME', 'vecgpu_stat' LANGUAGE C STRICT;
COMMENT ON FUNCTION vecgpu_stat() IS
    'searches on the device, counted since the server started; no index: those for which there was no room';

CREATE FUNCTION vecgpu_stat_reset(index regclass DEFAULT NULL) RETURNS void
    AS 'MODULE_PATHNAME', 'vecgpu_stat_reset' LANGUAGE C;
COMMENT ON FUNCTION vecgpu_stat_reset(regclass) IS 'zeroes the statistics of an index, or of all indexes of this database';

REVOKE ALL ON FUNCTION vecgpu_stat_reset(regclass) FROM PUBLIC;

CREATE FUNCTION vecgpu_epoch(index regclass) RETURNS bigint
    AS 'MODULE_PATHNAME', 'vecgpu_epoch' LANGUAGE C STRICT;
COMMENT ON FUNCTION vecgpu_epoch(regclass) IS 'the epoch that an index is at; NULL while somebody changes its definition';

-- One row for each index, with the mirror that was used last if there are several; and one, without an index, for searches that
-- found no room in the statistics.
CREATE VIEW pg_stat_vecgpu AS
    SELECT i.relid, i.indexrelid, i.schemaname, i.relname, i.indexrelname,
           m.state, m.device, m.bytes, m.nodes, m.epoch AS mirror_epoch,
           CASE WHEN m.state = 'ready' THEN greatest(vecgpu_epoch(i.indexrelid) - m.epoch, 0) END AS epoch_lag,
           coalesce(s.queries, 0) AS queries,
           coalesce(s.batches, 0) AS batches,
           s.width_sum::float8 / nullif(s.batches, 0) AS width_mean,
           coalesce(s.width_histogram, array_fill(0::bigint, ARRAY[12])) AS width_histogram,
           coalesce(s.queue_ms, 0) AS queue_ms,
           coalesce(s.copy_ms, 0) AS copy_ms,
           coalesce(s.kernel_ms, 0) AS kernel_ms,
           coalesce(s.rerank_ms, 0) AS rerank_ms,
           coalesce(s.candidates, 0) AS candidates,
           coalesce(s.dropped, 0) AS dropped,
           coalesce(s.fallbacks, 0) AS fallbacks,
           coalesce(s.fallback_reasons, '{}') AS fallback_reasons
    FROM (SELECT x.indrelid AS relid, x.indexrelid, n.nspname AS schemaname, t.relname, c.relname AS indexrelname
          FROM pg_index x
              JOIN pg_class c ON c.oid = x.indexrelid
              JOIN pg_am a ON a.oid = c.relam
              JOIN pg_class t ON t.oid = x.indrelid
              JOIN pg_namespace n ON n.oid = t.relnamespace
          WHERE a.amname = 'vecgpu' AND c.relkind = 'i') i
        FULL JOIN vecgpu_stat() s ON s.index = i.indexrelid
        LEFT JOIN (SELECT DISTINCT ON (index) * FROM vecgpu_mirrors() ORDER BY index, idle) m ON m.index = i.indexrelid
    WHERE i.indexrelid IS NOT NULL OR s.index IS NULL;
COMMENT ON VIEW pg_stat_vecgpu IS 'searches of vecgpu indexes on the device: mirror, batches, times, and why searches ran without it';

GRANT SELECT ON pg_stat_vecgpu TO PUBLIC;
