# No mirror is taken for that of another index: whatever happens to tables, indexes and databases, committed or rolled back, the next query
# of any session gets the exact answer. And what is gone gives its device memory back.
use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/../perl";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep);
use VecgpuEngine;
use VecgpuTest;

my $node = ve_node('identity', conf => "allow_in_place_tablespaces = on\nmax_worker_processes = 8\n");

sub sql { return vg_sql($node, $_[0]) }

sql("CREATE TABLESPACE other LOCATION ''");
vg_fill($node, 'items', 3000);
my $one = vg_open($node);
my $other = vg_open($node);
my $cpu = vg_open($node);
vg_ask($cpu, 'SET vecgpu.device = cpu');
my @everywhere = ($one, $other, $cpu, $node);

# Committed: right at once, whatever the mirrors are, and again with one of the new state.
sub same
{
    my ($table, $what) = @_;
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    ve_same(\@everywhere, $table, $what);
    is(ve_prewarm($other, "${table}_v", 'count(*)'), '1', "$what: $table is loaded");
    # Three of the four places ask the device, six times each, unless the index is empty.
    my $nodes = sql("SELECT nodes FROM vecgpu_info('${table}_v')");
    ve_by_device($node, "${table}_v", $nodes ? 18 : 0, "$what: by the device", sub { ve_same(\@everywhere, $table, "$what, loaded") });
    return;
}

# Statements of session `one` in a transaction: the session that runs it sees the new state, with a mirror of it too; then it is committed or
# rolled back. Sessions that are not blocked see the old state meanwhile.
sub transaction
{
    my ($table, $what, $statements, %options) = @_;
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    # A mirror of what is rolled back is the more dangerous one.
    for my $case ([ 'ROLLBACK', 1 ], [ 'COMMIT', 0 ], $options{all} ? ([ 'ROLLBACK', 0 ], [ 'COMMIT', 1 ]) : ())
    {
        my ($end, $loaded) = @$case;
        ve_prewarm($other, "${table}_v");
        my (undef, $err) = vg_ask($one, "BEGIN; $statements");
        $err =~ s/^.*NOTICE.*\n?//mg;
        is($err, '', "$what: done");
        ve_same([$one], $table, "$what, in the transaction") if !$options{gone};
        if ($loaded && !$options{gone})
        {
            ve_prewarm($one, "${table}_v");
            ve_same([$one], $table, "$what, loaded in the transaction");
        }
        vg_ask($one, $end);
        return if $options{gone} && $end eq 'COMMIT';
        same($table, "$what, $end");
    }
    return;
}

# A session that was told that the engine is starting asks again only after a while; who prewarms waits for it.
ve_prewarm($_, 'items_v') for $one, $other;
same('items', 'at the start');
my $more = 50_000;
sub rows { my ($table, $n) = @_; $more += $n; return vg_rows($table, $more - $n + 1, $more) }

# ---- new files for the same index ----
transaction('items', 'REINDEX INDEX', 'REINDEX INDEX items_v', all => 1);
transaction('items', 'REINDEX with other rows', 'DELETE FROM items WHERE id % 7 = 1; REINDEX INDEX items_v');
transaction('items', 'REINDEX TABLE', 'DELETE FROM items WHERE id % 11 = 1; REINDEX TABLE items');
transaction('items', 'CLUSTER', 'DELETE FROM items WHERE id % 13 = 1; CLUSTER items USING items_pkey');
transaction('items', 'a rewriting ALTER TABLE', "DELETE FROM items WHERE id % 17 = 1; ALTER TABLE items ALTER COLUMN id TYPE int USING id + 0");
transaction('items', 'ALTER TABLE SET TABLESPACE', 'ALTER TABLE items SET TABLESPACE other');
sql('ALTER TABLE items SET TABLESPACE pg_default');
transaction('items', 'ALTER INDEX SET TABLESPACE', 'ALTER INDEX items_v SET TABLESPACE other');
sql('ALTER INDEX items_v SET TABLESPACE pg_default');
same('items', 'back in the first tablespace');
transaction('items', 'TRUNCATE', 'TRUNCATE items');
sql(rows('items', 2000));
transaction('items', 'TRUNCATE and rows', 'TRUNCATE items; ' . rows('items', 1500), all => 1);
transaction('items', 'TRUNCATE, rows and flush', 'TRUNCATE items; ' . rows('items', 1500) . "; SELECT vecgpu_flush('items_v')");
transaction('items', 'DROP INDEX and another', 'DROP INDEX items_v; CREATE INDEX items_v ON items USING vecgpu (v) WITH (m = 8)');
transaction('items', 'another kind', "DROP INDEX items_v; CREATE INDEX items_v ON items USING vecgpu (v) WITH (storage = 'float16')");
# In subtransactions, rolled back and not.
for my $outer ('ROLLBACK', 'COMMIT')
{
    for my $inner ('ROLLBACK TO s', 'RELEASE s')
    {
        my $what = "TRUNCATE, $inner, $outer";
        vg_ask($one, 'BEGIN; ' . rows('items', 100) . '; SAVEPOINT s; TRUNCATE items; ' . rows('items', 1200));
        ve_prewarm($one, 'items_v');
        ve_same([$one], 'items', "$what: inside");
        vg_ask($one, $inner);
        ve_same([$one], 'items', "$what: after $inner");
        vg_ask($one, $outer);
        same('items', $what);
    }
}
for my $statement ('REINDEX INDEX CONCURRENTLY items_v', 'REINDEX TABLE CONCURRENTLY items', 'VACUUM FULL items', 'DELETE FROM items WHERE id % 5 = 0',
    'VACUUM items', 'ALTER TABLE items ALTER COLUMN id TYPE bigint', 'ALTER TABLE items RENAME TO items2', 'ALTER TABLE items2 RENAME TO items')
{
    ve_prewarm($other, 'items_v');
    my (undef, $err) = vg_ask($one, $statement);
    is($err, '', $statement);
    next if $statement =~ /TO items2/;
    same('items', $statement);
}
# DROP, rolled back: the same index as before. Committed: no index, other answers are as right.
transaction('items', 'DROP INDEX', 'DROP INDEX items_v', gone => 1);
ve_same(\@everywhere, 'items', 'no index');
sql('CREATE INDEX items_v ON items USING vecgpu (v)');
same('items', 'a new index of the same name');
vg_ask($one, 'BEGIN; DROP TABLE items; CREATE TABLE items (id int PRIMARY KEY, v real[]); ' . rows('items', 1500)
      . "; CREATE INDEX items_v ON items USING vecgpu (v)");
ve_prewarm($one, 'items_v');
ve_same([$one], 'items', 'another table of the same name, in the transaction');
vg_ask($one, 'ROLLBACK');
same('items', 'DROP TABLE, rolled back');

# ---- temporary and unlogged ----
{
    # Those of files that are gone leave by and by.
    my $mirrors = sub { sql(ve_connected() . 'SELECT count(*) FROM vecgpu_mirrors()') };
    ve_is($mirrors, '1', 'the mirror of items is the only one');
    for my $session ($one, $other)
    {
        # Two tables of one name, one for each session, with different rows.
        vg_ask($session, 'CREATE TEMPORARY TABLE own (id int PRIMARY KEY, v real[]); CREATE INDEX own_v ON own USING vecgpu (v); '
              . rows('own', 1500) . "; SELECT vecgpu_flush('own_v')");
    }
    for my $step ('SELECT 1', rows('own', 300), "SELECT vecgpu_flush('own_v')", 'DELETE FROM own WHERE id % 3 = 0', 'TRUNCATE own', rows('own', 400))
    {
        vg_ask($_, $step) for $one, $other;
        ve_same([ $one, $other ], 'own', "temporary tables, " . substr($step, 0, 12));
    }
    like(ve_prewarm($one, 'own_v'), qr/55000: could not load the index into the engine: unsupported/, 'vecgpu_prewarm of a temporary index');
    is($mirrors->(), '1', 'temporary indexes have no mirrors');
    is((vg_ask($one, "SET vecgpu.fallback = off; SELECT near('own') = exact('own'); RESET vecgpu.fallback"))[0], 't', '... and fallback = off does not mind');
    vg_ask($_, 'DROP TABLE own') for $one, $other;

    vg_fill($node, 'volatile', 2000, persistence => 'UNLOGGED');
    same('volatile', 'an unlogged table');
    ve_on_device($node, 'volatile', 'an unlogged table');
    transaction('volatile', 'SET LOGGED', 'ALTER TABLE volatile SET LOGGED');
    transaction('volatile', 'SET UNLOGGED', 'ALTER TABLE volatile SET UNLOGGED');
    ve_on_device($node, 'volatile', 'unlogged again');
}

# ---- databases: files of the same numbers ----
vg_close($_) for $one, $other, $cpu;
ve_on_device($node, 'items', 'before CREATE DATABASE');
my %strategies = (fast => 'STRATEGY file_copy', slow => 'STRATEGY wal_log');
# Commands on a database do without anybody in it.
sub alone
{
    my ($database) = @_;
    ve_settled($node);
    $node->poll_query_until('template1', "SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = '$database'") or die "somebody stays in $database";
    return;
}
alone('postgres');
$node->safe_psql('template1', 'CREATE DATABASE base TEMPLATE postgres');
for my $name (sort keys %strategies)
{
    $node->safe_psql('template1', "CREATE DATABASE $name TEMPLATE base $strategies{$name}");
}
my @databases = ('postgres', 'base', sort keys %strategies);
is(scalar(grep { $_ eq sql("SELECT pg_relation_filenode('items_v')") } map { $node->safe_psql($_, "SELECT pg_relation_filenode('items_v')") } @databases), 4,
    'four databases have an index of the same file number');
my $same_in = sub {
    my ($what) = @_;
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    my @got = map { $node->safe_psql($_, "SELECT near('items') IS NOT DISTINCT FROM exact('items')") } @databases;
    return is("@got", 't t t t', "$what: right answers in each database");
};
$same_in->('copied');
for my $number (1 .. $#databases)
{
    $node->safe_psql($databases[$number], "DELETE FROM items WHERE id % 5 = $number; " . vg_rows('items', 900_000 + $number * 1000, 900_500 + $number * 1000)
          . "; SELECT vecgpu_flush('items_v')");
    $same_in->("$databases[$number] changed");
}
ve_on_device($node, 'items', "database $_", dbname => $_) for @databases;
$same_in->('on the device');
is(sql(q{SELECT mirrors FROM vecgpu_devices() WHERE device = 'host'}) >= 4, 1, 'there is a mirror for each');
ve_is(sub { join(' ', map { vg_sql($node, ve_connected() . "SELECT count(*) FROM vecgpu_mirrors() WHERE index = 'items_v'::regclass", dbname => $_) } @databases) },
    '1 1 1 1', 'vecgpu_mirrors() shows those of its database');
# All at once.
ve_finish('four databases at once', map {
        vg_pgbench($node, { near => 'SELECT ' . vg_must("near('items', 5) = exact('items', 5)") . ';' }, clients => 2, transactions => 10, dbname => $_) } @databases);
alone('base');
$node->safe_psql('template1', 'ALTER DATABASE base SET TABLESPACE other');
$same_in->('ALTER DATABASE SET TABLESPACE');
alone('base');
$node->safe_psql('template1', 'ALTER DATABASE base RENAME TO basis');
$databases[1] = 'basis';
$same_in->('ALTER DATABASE RENAME');

# ---- memory comes back ----
sql('CREATE SCHEMA gone; CREATE TABLE gone.one AS SELECT id, v FROM items; CREATE INDEX one_v ON gone.one USING vecgpu (v);
     CREATE TABLE gone.two AS SELECT id, v FROM items; CREATE INDEX two_v ON gone.two USING vecgpu (v)');
vg_fill($node, 'dropped', 2000);
vg_fill($node, 'truncated', 2000);
my @loaded = qw(gone.one_v gone.two_v dropped_v truncated_v items_v volatile_v);
ve_prewarm($node, $_) for @loaded;
ve_on_device($node, 'items', "database $_", dbname => $_) for @databases;
my $mirrors = sub { return sql(q{SELECT mirrors FROM vecgpu_devices() WHERE device = 'host'}) };
my $fewer = sub {
    my ($what, $number, $statement, $database) = @_;
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    my ($had, $bytes) = ($mirrors->(), ve_device_memory($node));
    alone($1) if $statement =~ /DROP DATABASE (\w+)/;
    $node->safe_psql($database // 'postgres', $statement);
    # Files of a dropped relation are cut at the commit and deleted by the next checkpoint.
    ok(ve_until(60, sub { return $mirrors->() == $had - $number && ve_device_memory($node) < $bytes }), "$what: device memory is given back")
      or diag("had $had mirrors, $bytes bytes, has " . $mirrors->() . ', ' . ve_device_memory($node));
    return;
};
# Neither more, which are of files that have gone, nor loads that are to come.
ve_settled($node);
ve_is($mirrors, @loaded + @databases - 1, 'a mirror for each of them');
$fewer->('DROP INDEX', 1, 'DROP INDEX dropped_v');
$fewer->('DROP SCHEMA CASCADE', 2, 'DROP SCHEMA gone CASCADE');
$fewer->('TRUNCATE', 1, 'TRUNCATE truncated');
$fewer->('DROP DATABASE', 1, "DROP DATABASE $_", 'template1') for sort keys %strategies;
$fewer->('DROP DATABASE in another tablespace', 1, 'DROP DATABASE basis', 'template1');
$fewer->('DROP TABLE', 2, 'DROP TABLE items, dropped, truncated, volatile');
ve_is(sub { ve_device_memory($node) }, '0', 'nothing is left on the device');
is($mirrors->(), '0', 'no mirror');
is(scalar(my @loads = ve_log_lines($node, 'TRAP|PANIC')), 0, 'no panic');

vg_check($node, 'at the end');
vg_log_clean($node, 'the whole run', allow => '55000|is being accessed by other users');
$node->stop;
is(ve_leftovers($node, files => 1), '', 'nothing is left at the end');
done_testing();
