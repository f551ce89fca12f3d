# Crashes at any moment: kill -9 of a backend or of the postmaster, immediate stops, while an index is built, written, flushed,
# vacuumed and rebuilt. After recovery the index answers as a sequential scan does, holds every row once, passes vecgpu_check
# and goes on working.
use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/../perl";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep);
use VecgpuTest;

my $node = vg_node('crash', conf => "restart_after_crash = on\n");

# Positions in the WAL serve as the clock: a crash "after n bytes" falls into the same piece of work on any machine.
sub wait_for_wal
{
    my ($bytes, $from) = @_;
    $node->poll_query_until('postgres', "SELECT pg_current_wal_insert_lsn() - '$from'::pg_lsn >= $bytes")
      or die 'the work writes no WAL';
    return;
}

sub lsn { return $node->safe_psql('postgres', 'SELECT pg_current_wal_insert_lsn()'); }

# One crash. 'backend' needs the process that dies; without one the crash is of another kind.
sub crash
{
    my ($how, $pid) = @_;
    $how = 'immediate' if $how eq 'backend' && $pid eq '';
    if ($how eq 'backend')
    {
        vg_kill_backend($node, $pid);
        return;
    }
    $how eq 'postmaster' ? vg_kill_postmaster($node) : $node->stop('immediate');
    vg_start($node);
    return;
}

# The first row, a clean restart, an immediate one, one more row after each.
{
    $node->safe_psql(
        'postgres', q{
        CREATE TABLE line (id int PRIMARY KEY, v real[]);
        INSERT INTO line SELECT i, ARRAY[i, 0, 0] FROM generate_series(1, 100) i;
        CREATE INDEX line_v ON line USING vecgpu (v)});
    my $search = 'SET enable_seqscan = off; SELECT string_agg(id::text, %s) FROM
        (SELECT id FROM line ORDER BY v <-> ARRAY[%s, 0, 0]::real[] LIMIT 2) s';
    $node->restart;
    $node->safe_psql('postgres', 'INSERT INTO line VALUES (101, ARRAY[101, 0, 0])');
    is(vg_sql($node, sprintf($search, "','", '100.6')), '101,100', 'insert after a clean restart');
    crash('immediate');
    $node->safe_psql('postgres', 'INSERT INTO line VALUES (102, ARRAY[102, 0, 0])');
    is(vg_sql($node, sprintf($search, "','", '101.6')), '102,101', 'insert after an immediate stop');
}

# Unlogged: the index is empty after a crash, as its table is, and takes rows again.
{
    vg_fill($node, 'volatile',       100, persistence => 'UNLOGGED');
    vg_fill($node, 'volatile_later', 0,   persistence => 'UNLOGGED');
    $node->safe_psql('postgres', vg_rows('volatile_later', 1, 3000) . "; SELECT vecgpu_flush('volatile_later_v')");
    vg_same_as_exact($node, 'volatile_later', 'unlogged before the crash');
    crash('immediate');
    for my $table ('volatile', 'volatile_later')
    {
        is(vg_walk($node, $table, 'null'), '0 rows, 0 distinct, ', "unlogged: $table and its index are empty");
        vg_same_as_exact($node, $table, 'unlogged, empty');
        $node->safe_psql('postgres', vg_rows($table, 1, 3));
        is(vg_walk($node, $table, 'null'), '3 rows, 3 distinct, ' . md5_of($node, '1,2,3'), "unlogged: $table takes rows");
        $node->safe_psql('postgres', vg_rows($table, 4, 2000) . "; SELECT vecgpu_flush('${table}_v')");
        vg_same_as_exact($node, $table, 'unlogged, filled anew');
    }
    # A clean stop keeps the rows; an index made unlogged or logged later follows its table.
    $node->restart;
    vg_same_as_exact($node, 'volatile', 'unlogged after a clean restart');
    $node->safe_psql('postgres', 'ALTER TABLE volatile SET LOGGED; ALTER TABLE volatile_later SET LOGGED');
    $node->safe_psql('postgres', 'ALTER TABLE volatile_later SET UNLOGGED');
    crash('immediate');
    is($node->safe_psql('postgres', 'SELECT count(*) FROM volatile'), '2000', 'a table made logged survives');
    vg_same_as_exact($node, 'volatile',       'made logged');
    vg_same_as_exact($node, 'volatile_later', 'made unlogged');
    $node->safe_psql('postgres', 'DROP TABLE volatile, volatile_later');
}

sub md5_of
{
    my ($on, $text) = @_;
    return $on->safe_psql('postgres', "SELECT md5('$text')");
}

# During CREATE INDEX: no index remains, and building it again works.
vg_fill($node, 'items', 12000, index => 0);
for my $case ([ 'backend', 0 ], [ 'immediate', 2 ], [ 'postmaster', 2 ])
{
    my ($how, $workers) = @$case;
    my $code;
    # A build that was through before the crash is done again.
    for my $try (1 .. 10)
    {
        $node->safe_psql('postgres', 'DROP INDEX IF EXISTS items_v');
        my $session = vg_session(
            $node, "SET max_parallel_maintenance_workers = $workers;
            CREATE INDEX items_v ON items USING vecgpu (v) WITH (m = 48, ef_construction = 600)");
        my $pid = vg_wait_query($node, 'CREATE INDEX items_v%',
            'EXISTS (SELECT FROM pg_stat_progress_create_index p WHERE p.pid = a.pid AND tuples_total > 0 AND tuples_done > 100)', $session);
        crash($how, $pid) if $pid ne '';
        ($code) = vg_finish($session);
        last if $pid ne '' && $code != 0;
    }
    isnt($code, 0, "$how during CREATE INDEX: the statement failed");
    is($node->safe_psql('postgres', "SELECT count(*) FROM pg_class WHERE relname = 'items_v'"), '0', '... and left no index');
    is(vg_temp_files($node), '', '... and no temporary file');
}
$node->safe_psql('postgres', 'CREATE INDEX items_v ON items USING vecgpu (v)');
vg_same_as_exact($node, 'items', 'index built after the crashes');

# Right after CREATE INDEX, before any checkpoint: the whole index comes from the WAL.
crash('immediate');
vg_same_as_exact($node, 'items', 'index built just before the crash');

# During REINDEX CONCURRENTLY: the old index is intact.
{
    my $pid = '';
    for my $try (1 .. 10)
    {
        my $session = vg_session($node, 'REINDEX INDEX CONCURRENTLY items_v');
        $pid = vg_wait_query($node, 'REINDEX%',
            'EXISTS (SELECT FROM pg_stat_progress_create_index p WHERE p.pid = a.pid AND tuples_done > 100)', $session);
        crash('immediate') if $pid ne '';
        vg_finish($session);
        last if $pid ne '';
    }
    isnt($pid, '', 'a REINDEX CONCURRENTLY was under way');
    vg_same_as_exact($node, 'items', 'crash during REINDEX CONCURRENTLY');
    $node->safe_psql('postgres', 'DROP INDEX IF EXISTS items_v_ccnew');
}

# During inserts by four clients: rows of committed transactions are in the index, others are not. Flushes run too.
$node->safe_psql('postgres', 'ALTER DATABASE postgres SET vecgpu.flush_rows = 500; CREATE SEQUENCE ids START 100000');
for my $how ('immediate', 'backend', 'postmaster')
{
    my $from    = lsn();
    my $clients = vg_pgbench($node,
        { insert => q{INSERT INTO items SELECT i, uvec(i::int, 16) FROM nextval('ids') i;} }, clients => 4, transactions => 100000);
    wait_for_wal(700_000, $from);
    my $pid = $how eq 'backend' ? vg_wait_query($node, 'INSERT INTO items%') : 0;
    crash($how, $pid);
    vg_finish($clients);
    my $rows = $node->safe_psql('postgres', 'SELECT count(*) FROM items');
    cmp_ok($rows, '>', 12000, "$how during inserts: $rows rows are committed");
    vg_same_as_exact($node, 'items', "$how during inserts");
    $node->safe_psql('postgres', "SELECT vecgpu_flush('items_v')");
    vg_same_as_exact($node, 'items', "$how during inserts, then a flush");
}
$node->safe_psql('postgres', 'ALTER DATABASE postgres SET vecgpu.flush_rows = 0');

# During vecgpu_flush of 5,000 rows in many batches (a small maintenance_work_mem): whatever was published stays, the rest is
# still waiting. Checkpoints fall in between, so that recovery starts in the middle of a flush.
my $next = 200_001;
my @ways = ('immediate', 'backend', 'postmaster', 'immediate', 'immediate', 'immediate');
for my $round (0 .. $#ways)
{
    my $last = $next + 4999;
    $node->safe_psql('postgres', vg_rows('items', $next, $last));
    $next = $last + 1;
    $node->safe_psql('postgres', 'CHECKPOINT') if $round % 2;
    my $from    = lsn();
    my $session = vg_session($node, "SET maintenance_work_mem = '1MB'; SELECT vecgpu_flush('items_v')");
    my $pid     = vg_wait_query($node, '%vecgpu_flush(%', undef, $session);
    wait_for_wal(100_000 + 400_000 * $round, $from);
    $node->safe_psql('postgres', 'CHECKPOINT') if $round == 4;
    crash($ways[$round], $pid);
    vg_finish($session);
    vg_same_as_exact($node, 'items', "$ways[$round] during flush $round");
}
$node->safe_psql('postgres', "SELECT vecgpu_flush('items_v')");
is($node->safe_psql('postgres', "SELECT delta_rows FROM vecgpu_info('items_v')"), '0', 'the flushes can be finished');
vg_same_as_exact($node, 'items', 'flush finished after the crashes');

# During VACUUM: bulk delete of a few rows in the graph and in the delta, then a rebuild because many rows are dead.
# A vacuum that died after it marked rows must not lose others, nor count them twice.
for my $case ([ 'immediate', 'id % 10 = 3', 20_000 ], [ 'backend', 'id % 3 = 1', 600_000 ], [ 'postmaster', 'id % 5 = 4', 1_200_000 ],
    [ 'immediate', 'id % 7 < 3', 1_200_000 ])
{
    my ($how, $which, $bytes) = @$case;
    $node->safe_psql('postgres', vg_rows('items', $next, $next + 1999));
    $next += 2000;
    $node->safe_psql('postgres', "DELETE FROM items WHERE $which");
    my $from    = lsn();
    my $session = vg_session($node, "SET maintenance_work_mem = '8MB'; VACUUM (INDEX_CLEANUP on) items");
    my $pid     = vg_wait_query($node, '%VACUUM (%items%', undef, $session) || 0;
    # A vacuum that is through sooner leaves nothing to wait for: then the crash comes just after it.
    $node->poll_query_until('postgres',
        "SELECT pg_current_wal_insert_lsn() - '$from'::pg_lsn >= $bytes
             OR NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $pid AND state = 'active')");
    crash($node->safe_psql('postgres', "SELECT count(*) FROM pg_stat_activity WHERE pid = $pid") ? $how : 'immediate', $pid);
    vg_finish($session);
    vg_same_as_exact($node, 'items', "$how during VACUUM after deleting $which");
    $node->safe_psql('postgres', 'VACUUM (INDEX_CLEANUP on) items');
    vg_same_as_exact($node, 'items', "VACUUM after the crash ($which)");
    is($node->safe_psql('postgres', "SELECT rows FROM vecgpu_info('items_v')"),
        $node->safe_psql('postgres', 'SELECT count(*) FROM items'), '... and vecgpu_info counts the live rows');
}

# Many crashes in a row leak a bounded number of pages: a rebuild and two vacuums later the space serves new rows.
{
    my $pages = sub { return $node->safe_psql('postgres', "SELECT total_pages FROM vecgpu_info('items_v')") };
    $node->safe_psql('postgres', 'DELETE FROM items WHERE id % 2 = 0');
    $node->safe_psql('postgres', 'VACUUM items') for 1 .. 2;
    my $before = $pages->();
    for my $round (1 .. 6)
    {
        $node->safe_psql('postgres', vg_rows('items', $next, $next + 999));
        $node->safe_psql('postgres', "DELETE FROM items WHERE id >= $next");
        $next += 1000;
        $node->safe_psql('postgres', 'VACUUM items');
    }
    cmp_ok($pages->(), '<=', 1.5 * $before + 200, 'rounds of insert, delete and vacuum reuse pages');
    vg_same_as_exact($node, 'items', 'after rounds of insert, delete and vacuum');
}

# A prepared transaction survives, and its rows appear when it commits.
$node->append_conf('postgresql.conf', 'max_prepared_transactions = 2');
$node->restart;
{
    my $count = $node->safe_psql('postgres', 'SELECT count(*) FROM items');
    $node->safe_psql('postgres',
        'BEGIN; ' . vg_rows('items', 900_001, 901_000) . "; SELECT vecgpu_flush('items_v'); PREPARE TRANSACTION 'kept'");
    crash('immediate');
    like(vg_walk($node, 'items', 'null'), qr/^$count rows/, 'rows of a prepared transaction are not visible');
    $node->safe_psql('postgres', "COMMIT PREPARED 'kept'");
    like(vg_walk($node, 'items', 'null'), qr/^@{[ $count + 1000 ]} rows/, '... before it is committed');
    vg_same_as_exact($node, 'items', 'prepared transaction');
}

# The graph itself is as good as one that is built now.
my $after_crashes = vg_recall($node, 'items', 60);
$node->safe_psql('postgres', 'REINDEX INDEX items_v');
cmp_ok($after_crashes, '>=', vg_recall($node, 'items', 60) - 0.02, "recall $after_crashes is not below that of a new index");
vg_check($node, 'at the end');
is(vg_temp_files($node), '', 'no temporary file is left');

$node->stop;
done_testing();
