# The mirror runs after the pages: whatever is between the two, an answer has all that was committed before the query and nothing else,
# and the mirror catches up.
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

my $node = ve_node('fresh', conf => "max_worker_processes = 8\nvecgpu.flush_rows = 1000000\nlog_min_messages = debug1\n");
my @index = ('enable_seqscan=off', 'enable_sort=off', 'enable_bitmapscan=off');

sub sql { return vg_sql($node, $_[0]) }

# ---- the newest row, from the moment of its commit (C77) ----
sql(q{CREATE TABLE line (id int PRIMARY KEY, v real[]);
      INSERT INTO line SELECT i, ARRAY[i, 0, 0] FROM generate_series(1, 10000) i;
      CREATE INDEX line_v ON line USING vecgpu (v);
      CREATE TABLE line_probes AS SELECT i AS id, ARRAY[i * 97 + 0.25, 0, 0]::real[] AS v FROM generate_series(0, 20) i});
ve_until(60, sub { sql("SELECT near('line', 10, 'line_probes')"); return ve_counter($node, 'line_v', 'queries') > 0 });
{
    my ($writer, $reader) = (vg_open($node), vg_open($node));
    my $nearest = "SELECT id FROM line ORDER BY v <-> '{0,0,0}'::real[] LIMIT 1";
    vg_ask($reader, 'SET enable_seqscan = off; SET enable_sort = off');
    my ($out) = vg_ask($reader, "PREPARE nearest AS $nearest; EXPLAIN (COSTS OFF) EXECUTE nearest");
    like($out, qr/Index Scan using line_v/, 'the query takes the index');
    my ($before, $given_up) = (ve_counter($node, 'line_v', 'queries'), ve_late($node, 'line_v'));
    my ($early, $late, $expected) = ('', '', 1);
    for my $k (1 .. 500)
    {
        vg_ask($writer, "BEGIN; INSERT INTO line VALUES (20000 + $k, ARRAY[1.0 / ($k + 2), 0, 0])");
        my ($got) = vg_ask($reader, 'EXECUTE nearest');
        $early .= "$k: $got " if $got ne $expected;
        # Every tenth is not committed.
        if ($k % 10 == 0) { vg_ask($writer, 'ROLLBACK') }
        else { vg_ask($writer, 'COMMIT'); $expected = 20000 + $k }
        ($got) = vg_ask($reader, 'EXECUTE nearest');
        $late .= "$k: $got " if $got ne $expected;
        vg_ask($writer, "SELECT vecgpu_flush('line_v')") if $k % 60 == 0;
    }
    is($early, '', 'no search finds a row before its commit');
    is($late, '', 'each search finds the newest row after its commit');
    # But for those that gave it up because the machine held it up.
    $given_up = ve_late($node, 'line_v') - $given_up;
    cmp_ok(ve_counter($node, 'line_v', 'queries') - $before, '>', $given_up < 450 ? 500 - $given_up : 50, "... on the device ($given_up gave it up)");
    vg_close($_) for $writer, $reader;
    # The same by many: each finds the row that it has just committed, or one that is nearer still. Exactly: a graph that has just grown by a group of rows
    # beside all others may have no way to it.
    my $found = q{INSERT INTO line SELECT i, ARRAY[-1.0 / i, 0, 0] FROM (SELECT 100000 + :client_id + 16 * nextval('line_ids') AS i) n;
SELECT } . vg_must("v[1] <= 0 AND v[1] >= -1.0 / 100000") . q{ FROM line ORDER BY v <-> '{0,0,0}'::real[] LIMIT 1;};
    sql('CREATE SEQUENCE line_ids');
    ve_finish('writers that search what they wrote', vg_pgbench($node, { found => $found }, clients => 8, transactions => 40, settings => [ @index, 'vecgpu.flush_rows=100', 'vecgpu.device_form=exact' ]));
    is(sql("SELECT near('line', 10, 'line_probes') = exact('line', 10, 'line_probes')"), 't', 'the rest of the line');
}

# ---- step by step: before the mirror knows, while it lags, when it has caught up ----
vg_fill($node, 'items', 4000);
ve_on_device($node, 'items', 'items');
my ($one, $other, $cpu) = map { vg_open($node) } 1 .. 3;
vg_ask($cpu, 'SET vecgpu.device = cpu');

# Equal answers from all, until the mirror has the state of the pages.
my $lagged = 0;
sub fresh
{
    my ($table, $what) = @_;
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    ve_same([ $one, $other, $cpu ], $table, "$what, at once");
    $lagged++ if ve_counter($node, "${table}_v", 'epoch_lag') > 0;
    cmp_ok(sql("SELECT overlap('$table')"), '>=', 0.85, "$what: a walk through the graph finds what is near");
    ve_caught_up($node, $table, $what);
    ve_by_device($node, "${table}_v", 12, '... on the device', sub { ve_same([ $one, $other, $cpu ], $table, "$what, caught up") });
    return;
}
fresh('items', 'built');
my $next = 10_001;
my $rows = sub { my ($n) = @_; $next += $n; return vg_rows('items', $next - $n, $next - 1) };
my $flush = "SELECT vecgpu_flush('items_v')";
my @steps = (
    [ 'one row', $rows->(1) ], [ 'one row flushed', $flush ], [ 'a hundred rows', $rows->(100) ], [ 'a hundred rows flushed', $flush ],
    # More than a search reads by itself.
    [ 'as many rows again, flushed', $rows->(6000), $flush ],
    [ 'deleted, not vacuumed', 'DELETE FROM items WHERE id % 50 = 3' ], [ 'vacuumed', 'VACUUM items' ],
    [ 'deleted, inserted, vacuumed', 'DELETE FROM items WHERE id % 50 = 7', $rows->(200), 'VACUUM items' ],
    [ 'updated', 'UPDATE items SET v = uvec(id + 1000000, 16) WHERE id % 20 = 5' ], [ 'updated and flushed', $flush ],
    [ 'moved without the vector', 'UPDATE items SET id = id + 500000 WHERE id % 20 = 6' ], [ 'moved, vacuumed', 'VACUUM items' ],
    [ 'a fifth dead: rebuilt', 'DELETE FROM items WHERE id % 3 = 0', 'VACUUM items' ],
    [ 'rows after a rebuild', $rows->(500), $flush ],
    [ 'most of it dead: rebuilt', 'DELETE FROM items WHERE id % 4 > 0', 'VACUUM items' ],
    [ 'nothing left', 'DELETE FROM items', 'VACUUM items' ], [ 'filled again', $rows->(2500), $flush ]);
for my $step (@steps)
{
    my ($what, @statements) = @$step;
    sql($_) for @statements;
    if ($what eq 'nothing left') { ve_same([ $one, $other, $cpu ], 'items', $what); next }
    fresh('items', $what);
}
note("$lagged steps were asked while the mirror lagged");

# ---- equal rows: on nodes that live, on nodes that are dead for the mirror, on nodes that die ----
{
    sql('TRUNCATE items; ' . vg_rows('items', 1, 3000));
    # Probes 1 .. 20 have 30 rows each, of the very vector.
    my $equal = sub { my ($first) = @_; return "INSERT INTO items SELECT $first + 100 * n + p.id, p.v FROM probes p, generate_series(1, 30) n" };
    sql($_) for $equal->(100_000), $flush;
    fresh('items', 'equal rows');
    sql($_) for 'DELETE FROM items WHERE id > 100000 AND id <= 110000 AND id % 2 = 0', 'VACUUM items';
    fresh('items', 'half of the equal rows dead');
    sql($_) for 'DELETE FROM items WHERE id > 100000', 'VACUUM items';
    fresh('items', 'all equal rows dead');
    # The mirror takes their nodes for dead; the pages have given them new rows.
    ve_prewarm($node, 'items_v');
    sql($_) for $equal->(200_000), $flush;
    fresh('items', 'equal rows on dead nodes');
    is(sql("SELECT count(*) FROM (SELECT v <-> (SELECT v FROM probes WHERE id = 3) AS d FROM items ORDER BY v <-> (SELECT v FROM probes WHERE id = 3) LIMIT 31) s WHERE d = 0"), '30',
        '... each of them is found');
    sql($_) for 'DELETE FROM items WHERE id > 200000', 'VACUUM items', $equal->(300_000), 'DELETE FROM items WHERE id > 300000 AND id % 3 > 0',
      $equal->(400_000), $flush, 'VACUUM items';
    fresh('items', 'equal rows, again and again');
    # More new twins than a search reads by itself.
    ve_prewarm($node, 'items_v');
    sql($_) for 'INSERT INTO items SELECT 500000 + n, p.v FROM probes p, generate_series(1, 6000) n WHERE p.id = 5', $flush;
    ve_same([ $one, $other, $cpu ], 'items', 'thousands of equal rows, at once', rest => ', 50');
    fresh('items', 'thousands of equal rows');
    # Nodes of one row that died: the mirror takes them for dead, and catches up only when it is told to.
    sql('TRUNCATE items; ' . vg_rows('items', 1, 3000) . "; $flush");
    sql('CREATE TABLE revived AS SELECT i AS id, uvec(i, 16) AS v FROM generate_series(1, 12) i');
    sql($_) for 'DELETE FROM items WHERE id <= 12', 'VACUUM items';
    ve_prewarm($node, 'items_v');
    ve_settled($node);
    ve_fault('write error');
    sql($_) for 'INSERT INTO items SELECT 600000 + id, v FROM revived', $flush;
    ve_by_device($node, 'items_v', 36, '... on the device', sub {
            ve_same([ $one, $other, $cpu ], 'items', 'single rows on dead nodes', rest => ", 10, 'revived'");
            is(sql("SELECT near('items', 1, 'revived')"), join("\n", map { "$_:0" } 1 .. 12), '... each of them is found') });
    ve_is(sub { sql(ve_connected() . "SELECT epoch_lag > 0 FROM pg_stat_vecgpu WHERE indexrelid = 'items_v'::regclass") }, 't', '... whose mirror lags');
    ve_fault('');
    fresh('items', 'single rows on dead nodes');
    ve_prewarm($node, 'items_v');
    cmp_ok(ve_evict($node, 'items_v'), '>', 0, 'evicted');
    is(ve_prewarm($node, 'items_v', 'bytes > 0'), 't', 'loaded anew');
    fresh('items', 'thousands of equal rows, loaded anew');
}

# ---- rows that the executor found dead, rows of others that are not committed, old snapshots ----
{
    sql('TRUNCATE items; ' . vg_rows('items', 1, 3000) . "; $flush");
    fresh('items', 'rows of a new table');
    vg_ask($one, 'BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM items');
    my ($old) = vg_ask($one, "SELECT near('items')");
    sql($_) for 'DELETE FROM items WHERE id % 4 = 0', vg_rows('items', 5001, 6000), $flush, 'UPDATE items SET v = uvec(id + 77, 16) WHERE id % 4 = 1', $flush;
    ve_prewarm($node, 'items_v');
    is((vg_ask($one, "SELECT near('items')"))[0], $old, 'an old snapshot sees the old rows in a new mirror');
    ve_same([ $one, $other, $cpu ], 'items', 'an old snapshot');
    sql('VACUUM items');
    ve_same([ $one, $other, $cpu ], 'items', 'an old snapshot, after a vacuum that may remove little');
    vg_ask($one, 'COMMIT');
    vg_ask($one, 'BEGIN; ' . vg_rows('items', 7001, 7200) . '; DELETE FROM items WHERE id < 500');
    ve_same([ $one, $other, $cpu ], 'items', 'rows that are not committed');
    sql($flush);
    ve_prewarm($node, 'items_v');
    ve_same([ $one, $other, $cpu ], 'items', 'rows that are not committed, flushed and loaded');
    vg_ask($one, 'ROLLBACK');
    ve_same([ $one, $other, $cpu ], 'items', 'rows that were rolled back');
    sql('VACUUM items');
    fresh('items', 'rolled back and vacuumed');
    # A scan that stops in the middle and goes on after flush, vacuum and rebuild: each row of its snapshot once.
    vg_ask($other, q{BEGIN ISOLATION LEVEL REPEATABLE READ; SET LOCAL enable_seqscan = off; SET LOCAL enable_sort = off;
        DECLARE c CURSOR FOR SELECT id FROM items ORDER BY v <-> (SELECT v FROM probes WHERE id = 2)});
    my $count = sql('SELECT count(*) FROM items');
    my ($first) = vg_ask($other, 'FETCH 100 FROM c');
    sql($_) for vg_rows('items', 8001, 9500), $flush, 'DELETE FROM items WHERE id % 2 = 0', 'VACUUM items';
    ve_prewarm($node, 'items_v');
    my ($rest, $err) = vg_ask($other, 'FETCH ALL FROM c');
    my %ids = map { $_ => 1 } my @all = split /\n/, "$first\n$rest";
    is("$err" . scalar(@all) . ' ' . scalar(keys %ids), "$count $count", 'a cursor over flush, vacuum and reload: each row once');
    vg_ask($other, 'COMMIT');
    fresh('items', 'after the cursor');
}

# ---- other kinds of index: the same steps ----
my @kinds = (
    [ 'halves', "storage = 'float16'", 'v' ], [ 'bytes', "storage = 'int8'", 'v' ], [ 'brains', "storage = 'bfloat16'", 'v' ],
    [ 'flat', "kind = 'flat'", 'v' ], [ 'dot', '', 'v real_ip_ops', '<#>' ], [ 'angle', '', 'v real_cosine_ops', '<=>' ]);
for my $kind (@kinds)
{
    my ($table, $with, $column, $operator) = @$kind;
    my ($code, undef, $err) = $node->psql('postgres', "CREATE TABLE $table (id int PRIMARY KEY, v real[]); " . vg_rows($table, 1, 2000)
          . "; CREATE INDEX ${table}_v ON $table USING vecgpu ($column)" . ($with ? " WITH ($with)" : ''));
    if ($code != 0) { note("no $table: $err"); next }
    my %options = $operator ? (operator => $operator) : ();
    for my $step ([], [ vg_rows($table, 2001, 2600), "SELECT vecgpu_flush('${table}_v')" ], [ "DELETE FROM $table WHERE id % 9 = 0", "VACUUM $table" ],
        [ "DELETE FROM $table WHERE id % 3 = 0", "VACUUM $table" ], [ vg_rows($table, 3001, 3100) ])
    {
        sql($_) for @$step;
        my $what = "$table, " . (@$step ? substr($step->[0], 0, 12) : 'built');
        is(vg_answer($node, $table, 10000, %options), vg_answer($node, $table, 0, %options), "$what: right at once");
        ve_prewarm($node, "${table}_v");
        ve_by_device($node, "${table}_v", 1, '... on the device',
            sub { is(vg_answer($node, $table, 10000, %options), vg_answer($node, $table, 0, %options), "$what: right from the mirror") });
    }
    # The graph leads as far on the device as on the pages.
    my ($device, $pages) = map { local $ENV{PGOPTIONS} = "-c vecgpu.device=$_"; vg_recall($node, $table, 40, %options) } 'host', 'cpu';
    cmp_ok($device, '>=', $pages - 0.05, "$table: recall $device on the device, $pages on the pages");
    is(ve_fallbacks($node, "${table}_v", 'wrong_answer'), 0, "$table: no answer was taken for a wrong one");
}

vg_close($_) for $one, $other, $cpu;
is(ve_fallbacks($node, $_, 'wrong_answer'), 0, "$_: no answer was taken for a wrong one") for 'items_v', 'line_v';
vg_same_as_exact($node, 'items', 'at the end');
vg_check($node, 'at the end');
vg_log_clean($node, 'the whole run');
$node->stop;
is(ve_leftovers($node, files => 1), '', 'nothing is left at the end');
done_testing();
