# The index across databases and servers: logical replication, pg_dump and pg_restore into another schema with an empty
# search_path, a template database, DROP DATABASE while a flush worker may be at work, tablespaces.
use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/../perl";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use VecgpuTest;

my $node = vg_node('publisher', conf => "wal_level = logical\nmax_wal_senders = 10\nmax_worker_processes = 12\nallow_in_place_tablespaces = on\n");

sub sql { return vg_sql($node, $_[0], dbname => $_[1]) }

# ---- logical replication: each side has an index of its own ----
{
    my $subscriber = vg_node('subscriber', conf => "wal_level = logical\nmax_worker_processes = 12\nvecgpu.flush_rows = 300\n");
    sql(q{CREATE TABLE items (id int PRIMARY KEY, v real[]); CREATE PUBLICATION everything FOR TABLE items;}
          . vg_rows('items', 1, 3000) . '; CREATE INDEX items_v ON items USING vecgpu (v)');
    # The subscriber's index exists before the first copy, so the apply worker fills it.
    $subscriber->safe_psql('postgres', 'CREATE TABLE items (id int PRIMARY KEY, v real[]); CREATE INDEX items_v ON items USING vecgpu (v);'
          . "CREATE SUBSCRIPTION everything CONNECTION '" . $node->connstr . " dbname=postgres' PUBLICATION everything");
    $subscriber->wait_for_subscription_sync($node, 'everything');
    sql(vg_rows('items', 3001, 4000));
    sql('DELETE FROM items WHERE id % 9 = 0');
    sql('UPDATE items SET v = uvec(id + 5, 16) WHERE id % 7 = 0');
    sql('UPDATE items SET id = id + 100000 WHERE id % 50 = 1');
    sql('BEGIN; ' . vg_rows('items', 5001, 5500) . '; ROLLBACK');
    $node->wait_for_catchup('everything');
    is(vg_walk($subscriber, 'items', 'table'), vg_walk($node, 'items', 'table'), 'the subscriber has the same rows');
    is(vg_answer($subscriber, 'items', 10000), vg_answer($node, 'items', 10000), 'the same exact answers');
    vg_same_as_exact($subscriber, 'items', 'subscriber');
    $subscriber->safe_psql('postgres', 'VACUUM items');
    for my $on ($node, $subscriber)
    {
        my $recall = vg_recall($on, 'items', 100);
        cmp_ok($recall, '>=', 0.95, 'recall on ' . $on->name . ": $recall");
        vg_check($on, 'logical replication');
    }
    sql('TRUNCATE items; ' . vg_rows('items', 1, 100));
    $node->wait_for_catchup('everything');
    vg_same_as_exact($subscriber, 'items', 'TRUNCATE on the subscriber');
    $subscriber->safe_psql('postgres', 'DROP SUBSCRIPTION everything');
    vg_log_clean($subscriber, 'subscriber', allow => 'terminating|57P01');
    $subscriber->stop;
}

# ---- the extension in a schema of its own, and nothing on the search_path ----
sql('CREATE DATABASE source');
sql(q{
    CREATE SCHEMA ext;
    CREATE SCHEMA data;
    CREATE EXTENSION vecgpu SCHEMA ext;
    SET search_path = '';
    CREATE TABLE data.plain (id int PRIMARY KEY, v real[]);
    INSERT INTO data.plain SELECT i, ARRAY[i, i % 7, 0] FROM generate_series(1, 2000) i;
    CREATE INDEX plain_v ON data.plain USING vecgpu (v ext.real_l2_ops) WITH (m = 8, storage = float16, ef_search = 77);
    CREATE TABLE data.parted (id int, v real[]) PARTITION BY HASH (id);
    CREATE TABLE data.parted_0 PARTITION OF data.parted FOR VALUES WITH (MODULUS 2, REMAINDER 0);
    CREATE TABLE data.parted_1 PARTITION OF data.parted FOR VALUES WITH (MODULUS 2, REMAINDER 1);
    INSERT INTO data.parted SELECT i, ARRAY[i, i % 7, 1] FROM generate_series(1, 1000) i;
    CREATE INDEX parted_v ON data.parted USING vecgpu (v ext.real_cosine_ops);
    CREATE FUNCTION data.doubled(v real[]) RETURNS real[] IMMUTABLE LANGUAGE sql AS 'SELECT ARRAY[2 * v[1], v[2], v[3]]';
    CREATE INDEX plain_doubled ON data.plain USING vecgpu (data.doubled(v)) WHERE id > 100;
    INSERT INTO data.plain SELECT i, ARRAY[i, i % 7, 0] FROM generate_series(2001, 2500) i;
    ANALYZE data.plain, data.parted;
    }, 'source');

sub works_in
{
    my ($database, $what) = @_;
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    my $nearest = q{SET search_path = ''; SET enable_seqscan = off;
        SELECT id FROM data.%s ORDER BY %s OPERATOR(ext.%s) ARRAY[%s]::real[] LIMIT 1};
    is(sql(sprintf($nearest, 'plain', 'v', '<->', '1500.2,2,0'), $database), '1500', "$what: nearest row of a plain table");
    is(sql(sprintf($nearest, 'plain', 'v', '<->', '2499.8,0,0'), $database), '2499', "$what: nearest of the rows that came later")
      if sql('SELECT (max(id) >= 2500)::int FROM data.plain', $database);
    is(sql(sprintf($nearest, 'parted', 'v', '<=>', '7,6,1'), $database),
        sql(sprintf($nearest =~ s/enable_seqscan/enable_indexscan/r, 'parted', 'v', '<=>', '7,6,1'), $database), "$what: nearest row of a partitioned table");
    is(sql(sprintf($nearest =~ s/ORDER BY/WHERE id > 100 ORDER BY/r, 'plain', 'data.doubled(v)', '<->', '401,4,0'), $database), '200',
        "$what: nearest by an expression");
    is(sql("SELECT ext.vecgpu_check(c.oid::regclass) FROM pg_class c JOIN pg_am a ON a.oid = c.relam WHERE amname = 'vecgpu'
            AND relkind = 'i'", $database) =~ s/\n//gr, '', "$what: vecgpu_check");
    return;
}
works_in('source', 'empty search_path');
sql("SET search_path = ''; REINDEX TABLE data.plain", 'source');
sql("REINDEX TABLE CONCURRENTLY data.plain", 'source');
sql("SET search_path = ''; REINDEX TABLE data.parted_0; CLUSTER data.plain USING plain_pkey", 'source');
sql('VACUUM FULL data.plain', 'source');
works_in('source', 'after REINDEX, CLUSTER and VACUUM FULL');

# Dump and restore, as SQL and as an archive read by two jobs.
my $dumps = PostgreSQL::Test::Utils::tempdir();
for my $way ('sql', 'archive')
{
    my $database = "from_$way";
    sql("CREATE DATABASE $database");
    my @format = $way eq 'sql' ? ('-Fp') : ('-Fd');
    $node->command_ok([ 'pg_dump', @format, '-f', "$dumps/$way", $node->connstr('source') ], "pg_dump ($way)");
    $node->command_ok(
        $way eq 'sql'
        ? [ 'psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr($database), '-f', "$dumps/$way" ]
        : [ 'pg_restore', '-j', '2', '--exit-on-error', '-d', $node->connstr($database), "$dumps/$way" ],
        "restore ($way)");
    works_in($database, "restored ($way)");
    is(sql("SELECT reloptions FROM pg_class WHERE relname = 'plain_v'", $database), '{m=8,storage=float16,ef_search=77}', 'options come along');
    is(sql("SELECT m, storage FROM ext.vecgpu_info('data.plain_v')", $database), '8|float16', 'and are used');
}

# ---- a template database: the index is copied with it, by either way of copying ----
my @ways = sql('SHOW server_version_num') >= 150000 ? ('STRATEGY wal_log', 'STRATEGY file_copy') : ('');
for my $i (0 .. $#ways)
{
    # A template is copied when nobody is in it; workers may leave late.
    $node->poll_query_until('postgres', q{SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = 'source'}) or die 'somebody stays in the template';
    sql("CREATE DATABASE copy_$i TEMPLATE source $ways[$i]");
    works_in("copy_$i", "copied from a template, $ways[$i]");
    sql('INSERT INTO data.plain SELECT i, ARRAY[i, i % 7, 0] FROM generate_series(3001, 4000) i', "copy_$i");
    is(sql("SELECT ext.vecgpu_flush('data.plain_v')", "copy_$i"), '1000', 'its rows are its own');
    works_in("copy_$i", "changed copy, $ways[$i]");
}
# Straight after a crash, the copies are there.
$node->stop('immediate');
$node->start;
works_in("copy_$_", 'copy after a crash') for 0 .. $#ways;

# ---- tablespaces and schemas ----
sql(q{CREATE TABLESPACE elsewhere LOCATION ''});
sql('ALTER INDEX data.plain_v SET TABLESPACE elsewhere', 'source');
sql('ALTER TABLE data.plain SET SCHEMA ext; ALTER TABLE ext.plain RENAME TO plain2; ALTER TABLE ext.plain2 SET SCHEMA data;
    ALTER TABLE data.plain2 RENAME TO plain', 'source');
sql('INSERT INTO data.plain SELECT i, ARRAY[i, i % 7, 0] FROM generate_series(5001, 6000) i', 'source');
sql("SELECT ext.vecgpu_flush('data.plain_v')", 'source');
works_in('source', 'another tablespace');
$node->stop('immediate');
$node->start;
works_in('source', 'another tablespace, after a crash');

# ---- DROP DATABASE right after heavy inserts: a flush worker must not stand in its way ----
for my $round (1 .. 4)
{
    my $force = $round % 2 ? '' : ' WITH (FORCE)';
    my $error;
    # PostgreSQL waits for five seconds. A worker that is held up for so long shows nothing; one that lingers does so each time.
    for my $try (1 .. 3)
    {
        sql('DROP DATABASE IF EXISTS fleeting WITH (FORCE)');
        sql('CREATE DATABASE fleeting');
        sql('CREATE EXTENSION vecgpu; CREATE TABLE t (id int, v real[]); CREATE INDEX t_v ON t USING vecgpu (v)', 'fleeting');
        vg_functions($node, 'fleeting');
        my $load = vg_pgbench(
            $node, { many => q{INSERT INTO t SELECT i, uvec(i, 16) FROM generate_series(1, 100) i;} },
            clients => 4, transactions => 15, dbname => 'fleeting', settings => ['vecgpu.flush_rows=100']);
        my ($code, undef, $err) = vg_finish($load);
        is($code, 0, "round $round: inserts") or diag($err);
        $error = vg_psql_error($node, "DROP DATABASE fleeting$force");
        last if $error !~ /^55006/;
        $node->poll_query_until('postgres', q{SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = 'fleeting'}) or die 'a flush worker does not end';
    }
    is($error, '', "round $round: DROP DATABASE$force");
}
# The same for a table and an index that go away under a worker.
sql('CREATE TABLE gone (id int, v real[])');
for my $way ('DROP INDEX gone_v', 'TRUNCATE gone', 'REINDEX INDEX gone_v', 'ALTER TABLE gone ALTER v TYPE real[] USING v')
{
    sql('DROP INDEX IF EXISTS gone_v; TRUNCATE gone; CREATE INDEX gone_v ON gone USING vecgpu (v)');
    my $load = vg_pgbench(
        $node, { many => q{INSERT INTO gone SELECT i, uvec(i, 16) FROM generate_series(1, 100) i;} },
        clients => 4, transactions => 15, settings => ['vecgpu.flush_rows=100']);
    vg_finish($load);
    is(vg_psql_error($node, "SET lock_timeout = '60s'; $way"), '', "$way right after inserts");
}
$node->poll_query_until('postgres', "SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'vecgpu flush worker'")
  or die 'a flush worker does not end';
vg_check($node, 'after objects went away');

# ---- the extension itself ----
sql('CREATE DATABASE bare');
sql('CREATE EXTENSION vecgpu; CREATE TABLE t (id int, v real[]); CREATE INDEX t_v ON t USING vecgpu (v)', 'bare');
like(vg_psql_error($node, 'DROP EXTENSION vecgpu', dbname => 'bare'), qr/^2BP01/, 'DROP EXTENSION with an index is refused');
sql('DROP EXTENSION vecgpu CASCADE', 'bare');
is(sql("SELECT count(*) FROM pg_class WHERE relname = 't_v'", 'bare'), '0', 'CASCADE drops the index');
sql('INSERT INTO t VALUES (1, ARRAY[1, 2, 3]); CREATE EXTENSION vecgpu; CREATE INDEX t_v ON t USING vecgpu (v)', 'bare');
is(sql('SET enable_seqscan = off; SELECT id FROM t ORDER BY v <-> ARRAY[1, 2, 3]::real[] LIMIT 1', 'bare'), '1', 'and it can come back');

vg_log_clean($node, 'the whole run', allow => '2BP01|57P01|terminating|being accessed by other users');
$node->stop;
done_testing();
