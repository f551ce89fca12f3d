# Recall on the shipped sample: 20,000 rows of 128 dimensions, 500 queries. Gates for every metric and storage, before and after
# deletes, vacuum and inserts row by row; sweeps over ef and m; scaled and shifted data; skewed norms; filters that follow the
# query or go against it; builds that spill.
use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/../perl";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use VecgpuSample;
use VecgpuTest;

# Plenty of shared memory: what is measured here is the graph.
my $node = vg_node('recall', conf => "shared_buffers = 128MB\nmaintenance_work_mem = 128MB\n");
VecgpuSample::load_base($node, 'items');
VecgpuSample::load_queries($node);

sub sql { return vg_sql($node, $_[0]) }

sub recall
{
    my ($table, $ef, %options) = @_;
    return VecgpuSample::recall($node, $table, settings => ["vecgpu.ef_search = $ef"], %options);
}

sub gate
{
    my ($table, $ef, $least, $what, %options) = @_;
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    my $recall = recall($table, $ef, %options);
    cmp_ok($recall, '>=', $least, "$what: recall $recall at ef $ef");
    return $recall;
}

# ---- metrics: built, after deleting three quarters, after inserting rows one by one ----
my %metric = (l2 => [ '<->', 'real_l2_ops' ], ip => [ '<#>', 'real_ip_ops' ], cosine => [ '<=>', 'real_cosine_ops' ]);
sql("CREATE INDEX items_$_ ON items USING vecgpu (v $metric{$_}[1])") for sort keys %metric;
ok(VecgpuSample::uses_index($node, 'items', 'items_l2'), 'the planner takes the index');
is(recall('items', 200, truth => 'file', queries => 500), recall('items', 200), "the sample's own ground truth agrees");
my %built;
$built{$_} = gate('items', 200, 0.99, "$_, built", operator => $metric{$_}[0], queries => 250) for sort keys %metric;

# Higher ef finds more, and at the end everything.
{
    my @recall = map { recall('items', $_, queries => 150) } 10, 20, 40, 80, 160, 320, 700;
    my @falls = grep { $recall[$_] < $recall[ $_ - 1 ] - 0.002 } 1 .. $#recall;
    is("@falls", '', "recall rises with ef: @recall");
    is($recall[-1], 1, 'an ef at which every node is looked at is exact');
    cmp_ok($recall[2], '>=', 0.9, 'recall at the default ef');
}

# Half of the rows again, by ten clients, one row a transaction, while workers flush.
sql('CREATE TABLE grown (LIKE items INCLUDING ALL); INSERT INTO grown SELECT * FROM items WHERE id % 2 = 0;
    CREATE INDEX grown_v ON grown USING vecgpu (v)');
sql('CREATE SEQUENCE half');
{
    my $load = vg_pgbench(
        $node, { one => "INSERT INTO grown SELECT id, v FROM items WHERE id = (SELECT 2 * nextval('half') - 1);" },
        clients => 10, transactions => 1000, settings => ['vecgpu.flush_rows=1000']);
    my ($code, undef, $err) = vg_finish($load);
    is($code, 0, 'ten clients insert 10,000 rows') or diag($err);
    is(sql('SELECT count(*) FROM grown'), '20000', 'they are there');
    my $waiting = gate('grown', 200, 0.99, 'inserted one by one', queries => 250);
    sql("SELECT vecgpu_flush('grown_v')");
    gate('grown', 200, 0.99, 'inserted one by one and flushed', queries => 250);
    cmp_ok(recall('grown', 40, queries => 250), '>=', recall('items', 40, queries => 250) - 0.02, '... not below a built graph at ef 40');
    vg_check($node, 'inserted one by one');
    sql('DROP TABLE grown');
}

# Three quarters deleted: before vacuum (dead rows are met and passed over), after it (the graph is built anew).
sql('DELETE FROM items WHERE id % 4 <> 0');
gate('items', 200, 0.99, "$_, 75 % deleted", operator => $metric{$_}[0], queries => 100) for sort keys %metric;
sql('VACUUM items');
is(sql("SELECT rows, dead_rows FROM vecgpu_info('items_$_')"), '5000|0', "$_: 5,000 rows are left") for sort keys %metric;
gate('items', 150, 0.99, "$_, 75 % deleted and vacuumed", operator => $metric{$_}[0], queries => 100) for sort keys %metric;
# A fifth is the limit for a rebuild: just below it, dead nodes stay as way points.
sql('DELETE FROM items WHERE id % 20 = 0 AND id % 100 <> 0');
sql('VACUUM items');
is(sql("SELECT dead_rows FROM vecgpu_info('items_l2')"), sql("SELECT 5000 - count(*) FROM items"), 'dead rows below the limit stay');
gate('items', 100, 0.98, "$_, a sixth dead in the graph", operator => $metric{$_}[0], queries => 100) for sort keys %metric;
vg_check($node, 'after deletes');
sql('TRUNCATE items; DROP INDEX items_l2, items_ip, items_cosine');
VecgpuSample::load_base($node, 'items', create => 0);

# ---- m ----
{
    my @recall;
    for my $m (4, 8, 16, 32)
    {
        sql("CREATE INDEX items_m ON items USING vecgpu (v) WITH (m = $m, ef_construction = 80)");
        push @recall, recall('items', 40, queries => 150);
        sql('DROP INDEX items_m');
    }
    my @falls = grep { $recall[$_] < $recall[ $_ - 1 ] } 1 .. $#recall;
    is("@falls", '', "recall rises with m: @recall");
}

# ---- storage: fewer bits, exact order by the table's vectors ----
for my $storage ('float16', 'bfloat16', 'int8')
{
    sql("CREATE INDEX items_s ON items USING vecgpu (v) WITH (storage = $storage)");
    gate('items', 200, 0.97, $storage, queries => 250);
    is(sql(q{
            SET enable_seqscan = off; SET vecgpu.ef_search = 200;
            SELECT count(*) FROM sample_queries q CROSS JOIN LATERAL (
                SELECT d, lag(d) OVER (ORDER BY n) AS before FROM (
                    SELECT d, row_number() OVER () AS n FROM (
                        SELECT v <-> q.v AS d FROM items ORDER BY v <-> q.v LIMIT 50) a) b) c
            WHERE q.id < 100 AND d < before}), '0', "$storage: exact order");
    my $float32_pages = 1280;    # 20,000 rows of 512 bytes
    cmp_ok(sql("SELECT vector_pages FROM vecgpu_info('items_s')"), '<=', $storage eq 'int8' ? 340 : 650, "$storage: fewer pages");
    vg_check($node, $storage);
    sql('DROP INDEX items_s');
}

# ---- a build that spills gives the same graph quality ----
{
    my @recall;
    for my $memory ('128MB', '1MB')
    {
        for my $workers (0, 2)
        {
            my $error = vg_psql_error($node, "SET maintenance_work_mem = '$memory'; SET max_parallel_maintenance_workers = $workers;
                CREATE INDEX items_w ON items USING vecgpu (v)");
            is($error, '', "build with $memory and $workers workers");
            push @recall, recall('items', 60, queries => 200);
            sql('DROP INDEX items_w');
        }
    }
    my ($least, $most) = (sort { $a <=> $b } @recall)[ 0, -1 ];
    cmp_ok($most - $least, '<=', 0.02, "recall does not depend on memory and workers: @recall");
    cmp_ok($recall[2], '>=', $recall[0] - 0.01, 'a build that spills in this process is as good');
    is(vg_temp_files($node), '', 'and its files are gone');
}

# ---- values far from one: times 1e4, times 1e-4, plus 1,000 ----
sql('CREATE TABLE scaled (id int PRIMARY KEY, v real[]); CREATE TABLE kept_queries AS SELECT * FROM sample_queries');
{
    my %least = ('v' => 0.99, 'v * 1e4' => 0.99, 'v * 1e-4' => 0.99, 'v + 1000' => 0.97);
    my $plain;
    for my $change ('v', 'v * 1e4', 'v * 1e-4', 'v + 1000')
    {
        (my $each = $change) =~ s/v/x/;
        my $of = "(SELECT array_agg(($each)::real ORDER BY n) FROM unnest(v) WITH ORDINALITY u (x, n))";
        sql("TRUNCATE scaled, sample_queries; INSERT INTO scaled SELECT id, $of FROM items WHERE id < 8000;
            INSERT INTO sample_queries SELECT id, $of FROM kept_queries WHERE id < 100; ANALYZE sample_queries;
            CREATE INDEX scaled_v ON scaled USING vecgpu (v)");
        my $recall = gate('scaled', 100, $least{$change}, $change, queries => 100);
        $plain //= $recall;
        cmp_ok($recall, '>=', $plain - 0.005, "$change: not below the plain data") if $change ne 'v + 1000';
        sql('DROP INDEX scaled_v');
        # Narrow storage: as good within 0.02, or an error that names the value.
        my $error = vg_psql_error($node, 'CREATE INDEX scaled_v ON scaled USING vecgpu (v) WITH (storage = float16)');
        if ($error ne '')
        {
            like($error, qr/^22\w{3} value [0-9.e+]+ is out of range for storage "float16"/, "$change: float16 names the value");
        }
        else
        {
            gate('scaled', 100, $change eq 'v + 1000' ? 0.9 : $plain - 0.02, "$change, float16", queries => 100);
        }
        sql('DROP INDEX IF EXISTS scaled_v');
        sql('CREATE INDEX scaled_v ON scaled USING vecgpu (v) WITH (storage = int8)');
        gate('scaled', 100, $change eq 'v + 1000' ? 0.9 : $plain - 0.02, "$change, int8", queries => 100);
        sql('DROP INDEX scaled_v');
    }
    sql('DROP TABLE scaled; TRUNCATE sample_queries; INSERT INTO sample_queries SELECT * FROM kept_queries');
}

# ---- inner product with norms from 1 to 20: every row can be reached ----
sql(q{CREATE TABLE skewed (id int PRIMARY KEY, v real[]);
    INSERT INTO skewed SELECT i, ARRAY(SELECT (x * exp(3 * ((hashint4(i) & 65535) / 65536.0)))::real FROM unnest(uvec(i, 64)) x)
        FROM generate_series(1, 8000) i;
    CREATE INDEX skewed_v ON skewed USING vecgpu (v real_ip_ops);
    CREATE TABLE skewed_probes AS SELECT i AS id, uvec(-i, 64) AS v FROM generate_series(1, 50) i});
{
    my %way = (operator => '<#>', probes => 'skewed_probes', k => 100);
    cmp_ok(vg_recall($node, 'skewed', 200, %way), '>=', 0.9, 'inner product, skewed norms: recall@100');
    vg_same_as_exact($node, 'skewed', 'skewed norms', %way, k => 10);
    sql('DROP TABLE skewed');
}

# ---- clusters: recall does not fall as the set grows ----
sql(q{CREATE TABLE clusters AS SELECT i AS id, ARRAY(SELECT (4 * (hashint4extended(900000 + i % 200, j) & 65535) / 65536.0
            + (hashint4extended(i, j) & 65535) / 65536.0)::real FROM generate_series(1, 64) j) AS v FROM generate_series(1, 20050) i;
    CREATE TABLE cluster_probes AS SELECT id, v FROM clusters WHERE id > 20000;
    DELETE FROM clusters WHERE id > 20000});
{
    my @recall;
    for my $rows (5000, 20000)
    {
        sql("CREATE INDEX clusters_v ON clusters USING vecgpu (v) WHERE id <= $rows");
        push @recall, vg_recall($node, 'clusters', 40, probes => 'cluster_probes', where => "id <= $rows");
        cmp_ok($recall[-1], '>=', 0.9, "$rows rows in 200 clusters: recall $recall[-1] at the default ef");
        vg_check($node, "$rows rows in 200 clusters");
        sql('DROP INDEX clusters_v');
    }
    cmp_ok($recall[1], '>=', $recall[0] - 0.05, 'no drop between the sizes');
    sql('DROP TABLE clusters');
}

# ---- filters ----
# near: the 540 rows nearest to row 0; far: the 6,200 farthest from it; and one row in 37.
sql(q{ALTER TABLE items ADD near bool DEFAULT false, ADD far bool DEFAULT false;
    UPDATE items SET near = true WHERE id IN (SELECT id FROM items ORDER BY v <-> (SELECT v FROM items WHERE id = 0), id LIMIT 540);
    UPDATE items SET far = true WHERE id IN (SELECT id FROM items ORDER BY v <-> (SELECT v FROM items WHERE id = 0) DESC, id LIMIT 6200);});
sql('VACUUM FULL items');
sql('CREATE INDEX items_v ON items USING vecgpu (v); ANALYZE items');
for my $where ('near', 'far', 'id % 37 = 0')
{
    my $short = sql(qq{SET enable_seqscan = off; SET enable_bitmapscan = off;
        SELECT count(*) FROM (SELECT q.id, count(*) AS n FROM sample_queries q CROSS JOIN LATERAL
            (SELECT t.id FROM items t WHERE $where ORDER BY t.v <-> q.v LIMIT 10) s WHERE q.id < 120 GROUP BY q.id) c WHERE n = 10});
    is($short, '120', "WHERE $where: ten rows for each query");
    my $recall = VecgpuSample::recall($node, 'items', where => "t.$where", queries => 120,
        settings => [ 'vecgpu.ef_search = 40', 'enable_bitmapscan = off' ]);
    cmp_ok($recall, '>=', 0.98, "WHERE $where: recall $recall");
}

vg_check($node, 'at the end');
vg_log_clean($node, 'the whole run', allow => 'out of range for storage');
$node->stop;
done_testing();
