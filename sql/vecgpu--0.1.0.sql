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
    OUT upper_pages bigint, OUT delta_pages bigint, OUT parked_pages bigint, OUT total_pages bigint)
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
