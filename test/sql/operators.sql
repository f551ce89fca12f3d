-- Operators and functions on real[]: values, and every way to refuse an argument.

-- ---- values by hand: (1,2,3) and (4,6,8): squares 9 + 16 + 25, products 4 + 12 + 24, differences 3 + 4 + 5 ----
SELECT round((ARRAY[1,2,3]::real[] <-> ARRAY[4,6,8]::real[])::numeric, 6) AS l2,
       ARRAY[1,2,3]::real[] <#> ARRAY[4,6,8]::real[] AS negative_ip,
       ARRAY[1,2,3]::real[] <+> ARRAY[4,6,8]::real[] AS l1,
       round((ARRAY[1,2,3]::real[] <=> ARRAY[4,6,8]::real[])::numeric, 6) AS cosine;
SELECT round(l2_distance('{1,2,3}', '{4,6,8}')::numeric, 6) AS l2, inner_product('{1,2,3}', '{4,6,8}') AS ip,
       negative_inner_product('{1,2,3}', '{4,6,8}') AS negative_ip, l1_distance('{1,2,3}', '{4,6,8}') AS l1,
       round(cosine_distance('{1,2,3}', '{4,6,8}')::numeric, 6) AS cosine;
SELECT l2_distance('{3,4}', '{0,0}') AS five, l2_distance('{1,1}', '{1,1}') AS zero, l1_distance('{-1}', '{1}') AS two;

-- All distances are symmetric, cosine lies in [0, 2]: equal direction, right angle, opposite.
SELECT cosine_distance('{1,0}', '{7,0}') AS same, cosine_distance('{1,0}', '{0,3}') AS right_angle,
       cosine_distance('{1,0}', '{-2,0}') AS opposite;
SELECT count(*) AS asymmetric FROM generate_series(1, 200) i, LATERAL (SELECT uvec(i, 37) AS a, uvec(i + 1000, 37) AS b) s
WHERE (a <-> b) <> (b <-> a) OR (a <#> b) <> (b <#> a) OR (a <=> b) <> (b <=> a) OR (a <+> b) <> (b <+> a)
   OR (a <=> b) NOT BETWEEN 0 AND 2;

-- Every length up to a few SIMD widths agrees with plain arithmetic.
SELECT count(*) AS lengths,
       bool_and(abs((a <-> b) - sqrt(s.l2)) < 1e-5) AS l2, bool_and(abs((a <#> b) + s.ip) < 1e-5) AS ip,
       bool_and(abs((a <+> b) - s.l1) < 1e-4) AS l1,
       bool_and(abs((a <=> b) - (1 - s.ip / sqrt(s.aa * s.bb))) < 1e-5) AS cosine
FROM generate_series(1, 70) d, LATERAL (SELECT uvec(d, d) AS a, uvec(d + 500, d) AS b) v,
     LATERAL (SELECT sum((x - y)::float8 ^ 2) AS l2, sum(x::float8 * y) AS ip, sum(abs(x::float8 - y)) AS l1,
                     sum(x::float8 ^ 2) AS aa, sum(y::float8 ^ 2) AS bb
              FROM unnest(a, b) AS u(x, y)) s;

-- NULL arguments give NULL.
SELECT l2_distance(NULL, '{1}') IS NULL AND inner_product('{1}', NULL) IS NULL AND cosine_distance(NULL, NULL) IS NULL
   AND l1_distance(NULL, '{1}') IS NULL AND ('{1}'::real[] <-> NULL) IS NULL AND ('{1}'::real[] <#> NULL) IS NULL AS nulls;

-- Lower bounds other than 1 are accepted and mean nothing.
SELECT '[5:7]={1,2,3}'::real[] <-> '[-1:1]={1,2,3}'::real[] AS zero;

-- A zero vector has no direction: NaN under cosine, not an error. Other distances are what they are.
SELECT cosine_distance('{0,0}', '{1,0}') AS nan, cosine_distance('{0,0}', '{0,0}') AS nan, l2_distance('{0,0}', '{3,4}') AS five,
       negative_inner_product('{0,0}', '{1,1}') AS zero;
SELECT cosine_distance('{-0,0}', '{1,0}') AS nan;

-- ---- range: float4 squares would overflow or vanish, the sums do not ----
SELECT l2_distance('{3e38,0}', '{-3e38,0}') BETWEEN 5.9e38 AND 6.1e38 AS far,
       l2_distance(same_vec(3e38, 16000), same_vec(-3e38, 16000)) BETWEEN 7.5e40 AND 7.7e40 AS farthest,
       inner_product('{3e38}', '{3e38}') BETWEEN 8.9e76 AND 9.1e76 AS ip,
       l1_distance('{3e38,3e38}', '{-3e38,-3e38}') BETWEEN 1.1e39 AND 1.3e39 AS l1,
       cosine_distance('{3e38,0}', '{3e38,0}') < 1e-6 AS cosine;
SELECT l2_distance('{1e-30,0}', '{0,0}') BETWEEN 0.99e-30 AND 1.01e-30 AS near,
       l2_distance('{3e-40}', '{1e-40}') BETWEEN 1.9e-40 AND 2.1e-40 AS subnormal,
       inner_product('{1e-30}', '{1e-30}') BETWEEN 0.9e-60 AND 1.1e-60 AS ip,
       abs(cosine_distance('{1e-30,0}', '{0,1e-30}') - 1) < 1e-6 AS right_angle,
       cosine_distance('{1e-30,0}', '{1,0}') < 1e-6 AS same,
       l1_distance('{1e-40}', '{0}') > 0 AS l1;

-- ---- refused ----
\set SHOW_CONTEXT never
SELECT '{1,2}'::real[] <-> '{1,2,3}'::real[];
SELECT '{1,2}'::real[] <#> '{1,2,3}'::real[];
SELECT '{1,2}'::real[] <=> '{1,2,3}'::real[];
SELECT '{1,2}'::real[] <+> '{1,2,3}'::real[];
SELECT '{}'::real[] <-> '{}'::real[];
SELECT '{{1,2},{3,4}}'::real[] <-> '{1,2}'::real[];
SELECT '{1,2}'::real[] <-> '{{1,2}}'::real[];
SELECT '{1,NULL}'::real[] <-> '{1,2}'::real[];
SELECT '{NaN,1}'::real[] <-> '{1,2}'::real[];
SELECT '{1,1}'::real[] <#> '{NaN,2}'::real[];
SELECT '{Infinity,1}'::real[] <=> '{1,2}'::real[];
SELECT '{1,1}'::real[] <+> '{1,-Infinity}'::real[];
-- Infinity against infinity: the difference is NaN, the complaint is about what was given.
SELECT '{Infinity}'::real[] <-> '{Infinity}'::real[];
-- A zero times infinity.
SELECT '{0,1}'::real[] <#> '{Infinity,1}'::real[];
SELECT cosine_distance('{0,0}', '{NaN,1}');

-- The codes.
\set VERBOSITY sqlstate
SELECT '{1,2}'::real[] <-> '{1,2,3}'::real[];
SELECT '{}'::real[] <-> '{}'::real[];
SELECT '{{1,2},{3,4}}'::real[] <-> '{1,2}'::real[];
SELECT '{1,NULL}'::real[] <-> '{1,2}'::real[];
SELECT '{NaN,1}'::real[] <-> '{1,2}'::real[];
SELECT '{1,1}'::real[] <-> '{Infinity,2}'::real[];
SELECT same_vec(1, 16001) <-> same_vec(1, 16001);
\set VERBOSITY default

-- 16,000 is the most.
SELECT same_vec(1, 16000) <-> same_vec(0, 16000) AS d, same_vec(1, 16000) <+> same_vec(0, 16000) AS l1,
       same_vec(1, 16000) <#> same_vec(2, 16000) AS ip;
SELECT same_vec(1, 16001) <-> same_vec(1, 16001);

-- An array that once held a NULL, but no longer does, is a vector.
SELECT array_replace('{1,NULL,3}'::real[], NULL, 2) <-> '{1,2,3}'::real[] AS zero;

-- Out-of-line and compressed values are the same vectors.
CREATE TABLE toasted (id int, v real[]);
ALTER TABLE toasted ALTER v SET STORAGE EXTERNAL;
INSERT INTO toasted SELECT i, uvec(i, 3000) FROM generate_series(1, 3) i;
ALTER TABLE toasted ALTER v SET STORAGE EXTENDED;
INSERT INTO toasted SELECT i + 3, same_vec(i, 3000) FROM generate_series(1, 3) i;
SELECT id, v <-> CASE WHEN id <= 3 THEN uvec(id, 3000) ELSE same_vec(id - 3, 3000) END AS zero FROM toasted ORDER BY id;
DROP TABLE toasted;
