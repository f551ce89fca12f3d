# Many clients at one engine: the same answers as one after the other, whatever the batches are; equal rows, joins, prepared statements,
# parallel plans.
use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/../perl";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use VecgpuEngine;
use VecgpuTest;

my $node = ve_node('clients', conf => "max_connections = 140\nmax_worker_processes = 8\n");
my @index = ('enable_seqscan=off', 'enable_sort=off', 'enable_bitmapscan=off');

sub sql { return vg_sql($node, $_[0]) }

# ---- the same answers in any crowd (C145) ----
vg_fill($node, 'items', 6000);
sql(q{CREATE TABLE fixed AS SELECT i AS id, uvec(-i, 16) AS v, NULL::int[] AS near, NULL::int[] AS walk FROM generate_series(1, 100) i;
      ALTER TABLE fixed ADD PRIMARY KEY (id)});
ve_on_device($node, 'items', 'items');
ve_prewarm($node, 'items_v');
my $force = 'SET enable_seqscan = off; SET enable_sort = off; SET enable_bitmapscan = off; ';
my $list = '(SELECT array_agg(id) FROM (SELECT id FROM items ORDER BY v <-> %s LIMIT 10) s)';
# Through the device, one after the other.
sql($force . "SET vecgpu.fallback = off; SET vecgpu.ef_search = 40; UPDATE fixed f SET walk = " . sprintf($list, 'f.v')
      . '; SET vecgpu.ef_search = 10000; UPDATE fixed f SET near = ' . sprintf($list, 'f.v'));
is(sql('SET enable_indexscan = off; SELECT count(*) FROM fixed f WHERE near <> ' . sprintf($list, 'f.v')), '0', 'one after the other: exact');
{
    my ($queries, $batches) = map { ve_counter($node, 'items_v', $_) } qw(queries batches);
    my %script = map {
        my ($name, $ef) = @$_;
        ("$name" => "\\set r random(1, 100)\nSET vecgpu.ef_search = $ef; SELECT " . vg_must("$name = " . sprintf($list, '(SELECT v FROM fixed WHERE id = :r)')) . ' FROM fixed WHERE id = :r;')
    } [ 'near', 10000 ], [ 'walk', 40 ];
    ve_finish('32 clients', vg_pgbench($node, \%script, clients => 32, transactions => 60, settings => [ @index, 'vecgpu.fallback=off' ]));
    my $width = (ve_counter($node, 'items_v', 'queries') - $queries) / (ve_counter($node, 'items_v', 'batches') - $batches);
    cmp_ok($width, '>=', 1, sprintf('%.2f queries a batch', $width));
    is(ve_fallbacks($node, 'items_v', 'wrong_answer'), 0, 'no answer was taken for a wrong one');
}

# ---- a hundred clients (C143) ----
sql(q{CREATE TABLE line (id int PRIMARY KEY, v real[]);
      INSERT INTO line SELECT i, ARRAY[i, 0, 0] FROM generate_series(1, 20000) i;
      CREATE INDEX line_v ON line USING vecgpu (v)});
my $line = "\\set r random(10, 19990)\nSELECT " . vg_must('array_agg(id ORDER BY n) = ARRAY[:r, :r + 1, :r - 1, :r + 2, :r - 2, :r + 3, :r - 3, :r + 4, :r - 4, :r + 5]')
  . q{ FROM (SELECT id, row_number() OVER () AS n FROM (SELECT id FROM line ORDER BY v <-> (SELECT ARRAY[:r + 0.25, 0, 0]::real[]) LIMIT 10) a) b;};
{
    my $before = ve_device_memory($node);
    # From a cold start, all at once.
    ve_finish('100 clients', vg_pgbench($node, { line => $line }, clients => 100, transactions => 12, settings => [ @index, 'vecgpu.ef_search=100' ]));
    ve_is(sub { sql(ve_connected() . "SELECT count(*) FROM vecgpu_mirrors() WHERE index = 'line_v'::regclass") }, '1', '... have one mirror');
    my $bytes = ve_until(60, sub { sql(ve_connected() . "SELECT bytes FROM vecgpu_mirrors() WHERE index = 'line_v'::regclass") });
    ve_is(sub { ve_device_memory($node) }, $before + $bytes, '... and no other device memory');
    ve_finish('100 clients, warm', vg_pgbench($node, { line => $line }, clients => 100, transactions => 12, settings => [ @index, 'vecgpu.ef_search=100', 'vecgpu.fallback=off' ]));
    # A connection for each transaction.
    ve_finish('connections come and go', vg_pgbench($node, { line => $line }, clients => 8, transactions => 25, args => ['-C'], settings => [ @index, 'vecgpu.ef_search=100' ]));
    is(scalar(ve_engines($node)), 1, 'one engine');
    ve_slots_free($node, 'many clients');
}

# ---- many equal rows, and writers of other rows (C147) ----
{
    sql(q{CREATE TABLE crowd (id int PRIMARY KEY, v real[], note int DEFAULT 0);
          INSERT INTO crowd SELECT i, uvec(i % 50 + 1, 16) FROM generate_series(1, 3000) i;
          INSERT INTO crowd SELECT i, uvec(i, 16) FROM generate_series(10001, 13000) i;
          CREATE INDEX crowd_v ON crowd USING vecgpu (v)});
    ve_on_device($node, 'crowd', 'crowd');
    my $truth = sql('SET enable_indexscan = off; SELECT array_agg(v <-> uvec(7, 16) ORDER BY v <-> uvec(7, 16)) FROM (SELECT v FROM crowd ORDER BY v <-> uvec(7, 16) LIMIT 80) s');
    my $ask = 'SELECT ' . vg_must("array_agg(d) = '$truth'") . ' FROM (SELECT v <-> uvec(7, 16) AS d FROM crowd ORDER BY v <-> uvec(7, 16) LIMIT 80) s;';
    my $update = "\\set r random(10001, 13000)\nUPDATE crowd SET note = note + 1 WHERE id = :r;";
    my $readers = vg_pgbench($node, { ask => $ask }, clients => 32, transactions => 40, settings => [ @index, 'vecgpu.ef_search=10000' ]);
    my $writers = vg_pgbench($node, { update => $update }, clients => 2, transactions => 300, settings => ['vecgpu.flush_rows=100']);
    my $vacuum = vg_session($node, 'VACUUM crowd; SELECT pg_sleep(0.1);' x 8);
    ve_finish('equal rows under updates', $readers, $writers, $vacuum);
    ve_same([$node], 'crowd', 'equal rows');
}

# ---- distances by device, pages and table (C152) ----
{
    sql(q{CREATE TABLE triple AS SELECT 3 * i + n AS id, ARRAY[i, 0, 0]::real[] AS v FROM generate_series(1, 1000) i, generate_series(0, 2) n;
          CREATE INDEX triple_v ON triple USING vecgpu (v);
          CREATE TABLE triple_probes AS SELECT i AS id, ARRAY[i * 19 + 0.25, 0, 0]::real[] AS v FROM generate_series(0, 49) i});
    my $ids = q{SELECT string_agg(q.id || ' ' || s.d || ' ' || s.ids::text, ';' ORDER BY q.id, s.d) FROM triple_probes q,
        LATERAL (SELECT d, array_agg(id ORDER BY id) AS ids FROM (SELECT id, t.v <-> q.v AS d FROM triple t ORDER BY t.v <-> q.v LIMIT 12) a GROUP BY d) s};
    my %got = map { ($_->[0] => sql("$force SET vecgpu.ef_search = 100; $_->[1]; $ids")) }
      [ 'device', "SELECT vecgpu_prewarm('triple_v') IS NULL; SET vecgpu.fallback = off" ], [ 'pages', 'SET vecgpu.device = cpu' ];
    $got{device} =~ s/^f\n//;
    my $exact = sql("SET enable_indexscan = off; $ids");
    is($got{pages}, $exact, 'each row three times: the pages');
    is($got{device}, $exact, 'each row three times: the device');
    # 10 of 12 cut through equal rows: distances are the same.
    $ids =~ s/LIMIT 12/LIMIT 10/;
    $ids =~ s/array_agg\(id ORDER BY id\)/count(*)/;
    is(sql("$force SET vecgpu.fallback = off; SET vecgpu.ef_search = 100; $ids"), sql("SET enable_indexscan = off; $ids"), 'each row three times, cut');
}

# ---- one statement, many searches (C150) ----
{
    sql('CREATE TABLE short AS SELECT id, v FROM line WHERE id <= 1000; CREATE INDEX short_v ON short USING vecgpu (v)');
    ve_prewarm($node, 'short_v');
    ve_by_device($node, 'short_v', 66000, '... on the device', sub {
            is(sql("$force SET vecgpu.ef_search = 100; SELECT count(*), count(*) FILTER (WHERE s.id = greatest(k % 1000, 1)) FROM generate_series(1, 66000) k,
                LATERAL (SELECT id FROM short ORDER BY v <-> ARRAY[k % 1000 + 0.25, 0, 0]::real[] LIMIT 1) s"), '66000|66000', '66,000 searches in a statement') });
}

# ---- wide rows ----
for my $case ([ 2000, 300 ], [ 16000, 60 ])
{
    my ($dimensions, $rows) = @$case;
    vg_fill($node, "wide$dimensions", $rows, dimensions => $dimensions);
    sql("INSERT INTO wide$dimensions SELECT i, uvec(i, $dimensions) FROM generate_series(1001, 1010) i");
    ve_prewarm($node, "wide${dimensions}_v");
    my $query = "$force SELECT string_agg(id || ' ' || d, ',') FROM (SELECT id, v <-> (SELECT uvec(-1, $dimensions)) AS d FROM wide$dimensions ORDER BY v <-> (SELECT uvec(-1, $dimensions)) LIMIT 20) s";
    ve_by_device($node, "wide${dimensions}_v", 1, '... on the device', sub { is(sql($query), sql("SET vecgpu.device = cpu; $query"), "$dimensions dimensions") });
}

# ---- LIMITs, cursors, prepared statements, joins, functions, parallel workers ----
{
    my ($device, $pages) = (vg_open($node), vg_open($node));
    vg_ask($_, "$force SET vecgpu.ef_search = 10000") for $device, $pages;
    vg_ask($pages, 'SET vecgpu.device = cpu');
    for my $limit (1, 2, 63, 64, 65, 255, 256, 257, 1000, 4095, 4096, 4097, 5999, 6000, 7000)
    {
        my $query = "SELECT md5(string_agg(id || ' ' || d, ',')) FROM (SELECT id, v <-> (SELECT v FROM fixed WHERE id = 3) AS d FROM items ORDER BY v <-> (SELECT v FROM fixed WHERE id = 3) LIMIT $limit) s";
        is((vg_ask($device, $query))[0], (vg_ask($pages, $query))[0], "LIMIT $limit");
    }
    for my $query (
        "SELECT id FROM items ORDER BY v <-> (SELECT v FROM fixed WHERE id = 5) OFFSET 200 LIMIT 20",
        "SELECT id FROM items WHERE id % 10 = 3 ORDER BY v <-> (SELECT v FROM fixed WHERE id = 6) LIMIT 20",
        "SELECT id FROM items WHERE id % 500 = 3 ORDER BY v <-> (SELECT v FROM fixed WHERE id = 6) LIMIT 20",
        "SELECT id FROM items WHERE v <-> (SELECT v FROM fixed WHERE id = 7) < 1.2 ORDER BY v <-> (SELECT v FROM fixed WHERE id = 7)",
        "SELECT f.id, i.id FROM fixed f JOIN LATERAL (SELECT id FROM items ORDER BY v <-> f.v LIMIT 3) i ON true WHERE f.id < 40 ORDER BY f.id, i.id",
        "SELECT a.id, b.id FROM (SELECT id FROM items ORDER BY v <-> (SELECT v FROM fixed WHERE id = 8) LIMIT 30) a JOIN
            (SELECT id FROM items ORDER BY v <-> (SELECT v FROM fixed WHERE id = 9) LIMIT 300) b USING (id) ORDER BY 1",
        "WITH RECURSIVE r AS (SELECT 1 AS n, 5 AS id UNION ALL SELECT n + 1, (SELECT i.id FROM items i WHERE i.id <> r.id ORDER BY i.v <-> (SELECT v FROM items j WHERE j.id = r.id) LIMIT 1) FROM r WHERE n < 20) SELECT * FROM r")
    {
        my ($got, $err) = vg_ask($device, $query);
        is("$err$got", (vg_ask($pages, $query))[0], 'as on the pages: ' . substr($query, 0, 60));
    }
    # Beyond what one answer of the engine holds: the pages go on, without what went out.
    for my $limit (8191, 8192, 8193, 12000, 20000)
    {
        my $query = "SELECT count(DISTINCT id) || ' ' || md5(string_agg(d::text, ',')) FROM (SELECT id, v <-> '{7000.25,0,0}' AS d FROM line ORDER BY v <-> '{7000.25,0,0}' LIMIT $limit) s";
        is((vg_ask($device, $query))[0], (vg_ask($pages, $query))[0], "LIMIT $limit");
    }
    {
        my ($got, $err) = vg_ask($device, q{SET vecgpu.ef_search = 40; BEGIN; DECLARE c CURSOR FOR SELECT id FROM line ORDER BY v <-> '{9000.25,0,0}'; FETCH 10 FROM c; FETCH 500 FROM c; FETCH 9000 FROM c;
            FETCH ALL FROM c; COMMIT; SET vecgpu.ef_search = 10000});
        my %ids = map { $_ => 1 } my @ids = split /\n/, $got;
        is($err . scalar(@ids) . ' ' . scalar(keys %ids) . " $ids[0] $ids[2000]", '20000 20000 9000 8000', 'a cursor over all of 20,000 rows');
    }
    # What is no query vector is the same error.
    for my $query ("SELECT id FROM items ORDER BY v <-> '{1,2}' LIMIT 1", "SELECT id FROM items ORDER BY v <-> '{1,NULL}' LIMIT 1",
        "SELECT id FROM items ORDER BY v <-> array_fill('NaN'::real, ARRAY[16]) LIMIT 1", "SELECT id FROM items ORDER BY v <-> array_fill('Infinity'::real, ARRAY[16]) LIMIT 1",
        "SELECT id FROM items ORDER BY v <-> '{}' LIMIT 1", "SELECT count(*) FROM (SELECT id FROM items ORDER BY v <-> array_fill(1e30::real, ARRAY[16]) LIMIT 30) s",
        "SELECT id FROM items ORDER BY v <-> array_fill(0::real, ARRAY[16]) LIMIT 5", "SELECT count(*) FROM (SELECT id FROM items ORDER BY v <-> array_fill(3e38::real, ARRAY[16]) LIMIT 7000) s")
    {
        my @got = map { join('', vg_ask($_, $query)) =~ s/<stdin>:\d+//r } $device, $pages;
        is($got[0], $got[1], 'as on the pages: ' . substr($query, 0, 70));
    }
    for my $session ($device, $pages)
    {
        vg_ask($session, 'PREPARE near(real[], int) AS SELECT id FROM items ORDER BY v <-> $1 LIMIT $2');
    }
    for my $mode ('auto', 'force_generic_plan', 'force_custom_plan')
    {
        vg_ask($_, "SET plan_cache_mode = $mode") for $device, $pages;
        my @got = map { my $session = $_; join(' ', map { (vg_ask($session, "EXECUTE near(uvec(-$_, 16), 5 * $_)"))[0] } 1 .. 8) } $device, $pages;
        is($got[0], $got[1], "prepared statements, $mode");
    }
    # Two scans of one session at a time, step by step; the session's slot is one or the other's, never both.
    for my $session ($device, $pages)
    {
        vg_ask($session, "BEGIN; DECLARE a CURSOR FOR SELECT id FROM items ORDER BY v <-> (SELECT v FROM fixed WHERE id = 11);
            DECLARE b CURSOR FOR SELECT id FROM items ORDER BY v <-> (SELECT v FROM fixed WHERE id = 12)");
    }
    my @got = ('', '');
    for my $step (1 .. 12)
    {
        for my $i (0, 1)
        {
            my $session = $i ? $pages : $device;
            $got[$i] .= join(' ', (vg_ask($session, 'FETCH ' . (7 * $step) . ' FROM a; FETCH ' . (5 * $step) . ' FROM b'))[0]);
        }
    }
    is($got[0], $got[1], 'two cursors in turn');
    vg_ask($_, 'COMMIT') for $device, $pages;
    my $parallel = q{SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0; SET enable_seqscan = on; ALTER TABLE fixed SET (parallel_workers = 2);
        SET max_parallel_workers_per_gather = 2; SELECT count(*), sum(x) FROM (SELECT (SELECT i.id FROM items i ORDER BY i.v <-> f.v LIMIT 1) AS x FROM fixed f) s};
    is((vg_ask($device, $parallel))[0], (vg_ask($pages, $parallel))[0], 'parallel workers');
    vg_close($_) for $device, $pages;
    ve_slots_free($node, 'all kinds of queries');
}

vg_same_as_exact($node, $_, 'at the end') for 'items', 'crowd';
vg_log_clean($node, 'the whole run', allow => '22000|22004');
$node->stop;
is(ve_leftovers($node, files => 1), '', 'nothing is left at the end');
done_testing();
