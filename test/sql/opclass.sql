-- Operator classes: ours are valid, and amvalidate sees what is wrong with others.
SELECT amname, opcname, opcdefault, opcintype::regtype, amvalidate(c.oid)
FROM pg_opclass c JOIN pg_am a ON a.oid = opcmethod WHERE amname = 'vecgpu' ORDER BY opcname;
SELECT opfname, amopstrategy, amoppurpose, amopopr::regoperator, f.amopsortfamily = (SELECT oid FROM pg_opfamily WHERE opfname = 'float_ops' AND opfmethod = 403) AS sorts_float
FROM pg_amop f JOIN pg_opfamily o ON o.oid = amopfamily JOIN pg_am a ON a.oid = opfmethod WHERE amname = 'vecgpu' ORDER BY opfname;
SELECT opfname, amprocnum, amproc FROM pg_amproc f JOIN pg_opfamily o ON o.oid = amprocfamily JOIN pg_am a ON a.oid = opfmethod
WHERE amname = 'vecgpu' ORDER BY opfname;
-- All members of the extension, and nothing else of ours, go with it.
SELECT count(*) AS operators, bool_and(oprcom = o.oid) AS commute FROM pg_operator o JOIN pg_depend d ON d.objid = o.oid AND d.classid = 'pg_operator'::regclass
JOIN pg_extension e ON e.oid = d.refobjid AND d.refclassid = 'pg_extension'::regclass WHERE extname = 'vecgpu';
SELECT provolatile, proisstrict, proparallel, count(*) FROM pg_proc p JOIN pg_depend d ON d.objid = p.oid AND d.classid = 'pg_proc'::regclass
JOIN pg_extension e ON e.oid = d.refobjid AND d.refclassid = 'pg_extension'::regclass
WHERE extname = 'vecgpu' AND proname ~ '(distance|product)$' GROUP BY 1, 2, 3;

-- No support function.
CREATE OPERATOR CLASS no_support FOR TYPE real[] USING vecgpu AS OPERATOR 1 <-> (real[], real[]) FOR ORDER BY float_ops;
SELECT amvalidate(oid) FROM pg_opclass WHERE opcname = 'no_support';
-- No operator.
CREATE OPERATOR CLASS no_operator FOR TYPE real[] USING vecgpu AS FUNCTION 1 vecgpu_real_l2_support(internal);
SELECT amvalidate(oid) FROM pg_opclass WHERE opcname = 'no_operator';
-- An operator to search by, not to order by.
CREATE OPERATOR CLASS searches FOR TYPE real[] USING vecgpu AS
    OPERATOR 1 = (anyarray, anyarray), FUNCTION 1 vecgpu_real_l2_support(internal);
SELECT amvalidate(oid) FROM pg_opclass WHERE opcname = 'searches';
-- Another strategy number.
CREATE OPERATOR CLASS other_strategy FOR TYPE real[] USING vecgpu AS
    OPERATOR 2 <-> (real[], real[]) FOR ORDER BY float_ops, FUNCTION 1 vecgpu_real_l2_support(internal);
SELECT amvalidate(oid) FROM pg_opclass WHERE opcname = 'other_strategy';
-- A distance that is not float8.
CREATE FUNCTION int_distance(real[], real[]) RETURNS int LANGUAGE sql IMMUTABLE AS $$ SELECT 1 $$;
CREATE OPERATOR <~~> (LEFTARG = real[], RIGHTARG = real[], FUNCTION = int_distance);
CREATE OPERATOR CLASS int_order FOR TYPE real[] USING vecgpu AS
    OPERATOR 1 <~~> (real[], real[]) FOR ORDER BY integer_ops, FUNCTION 1 vecgpu_real_l2_support(internal);
SELECT amvalidate(oid) FROM pg_opclass WHERE opcname = 'int_order';
-- A support function of another signature, or number.
CREATE OPERATOR CLASS bad_support FOR TYPE real[] USING vecgpu AS
    OPERATOR 1 <-> (real[], real[]) FOR ORDER BY float_ops, FUNCTION 1 l2_distance(real[], real[]);
SELECT amvalidate(oid) FROM pg_opclass WHERE opcname = 'bad_support';
CREATE OPERATOR CLASS bad_number FOR TYPE real[] USING vecgpu AS
    OPERATOR 1 <-> (real[], real[]) FOR ORDER BY float_ops, FUNCTION 2 vecgpu_real_l2_support(internal);

-- An index needs the support function.
CREATE TABLE t (v real[]);
INSERT INTO t VALUES ('{1,2}');
\set VERBOSITY sqlstate
CREATE INDEX ON t USING vecgpu (v no_support);
\set VERBOSITY default
DROP TABLE t;
DROP OPERATOR FAMILY no_support USING vecgpu;
DROP OPERATOR FAMILY no_operator USING vecgpu;
DROP OPERATOR FAMILY searches USING vecgpu;
DROP OPERATOR FAMILY other_strategy USING vecgpu;
DROP OPERATOR FAMILY int_order USING vecgpu;
DROP OPERATOR FAMILY bad_support USING vecgpu;
DROP OPERATOR <~~> (real[], real[]);
DROP FUNCTION int_distance;

-- Internal functions cannot be called from SQL.
SELECT vecgpu_handler(NULL);
SELECT vecgpu_real_l2_support(NULL);
