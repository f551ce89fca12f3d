# Cancel, terminate and time out whatever runs: build, flush, vacuum, scan, insert. The statement ends with the error that was
# asked for, leaves no thread, temporary file, lock or half index behind, and the index stays complete and usable.
use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/../perl";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep);
use VecgpuTest;

my $node = vg_node('cancel', conf => "max_worker_processes = 3\n");
my $canceled = qr/57014: canceling statement due to (user request|statement timeout)/;

sub sql { return $node->safe_psql('postgres', $_[0]) }

# Runs a statement in an open session and cancels it once the condition on its pg_stat_activity row (a) holds, or after
# `delay` seconds. Returns its errors. A statement that was through before the moment came is run again, after `undo`.
sub cancel_when
{
    my ($session, $statement, %when) = @_;
    for my $try (1 .. 5)
    {
        my ($err, $missed) = try_to_cancel($session, $statement, %when);
        return $err if !defined $missed;
        if ($try == 5 || $err ne '')
        {
            is($missed, '0', "$when{what}: the moment came");
            return $err;
        }
        sql($when{undo}) if $when{undo};
    }
}

# Errors of the statement, and those of the session that was to cancel it.
sub try_to_cancel
{
    my ($session, $statement, %when) = @_;
    my ($pid) = vg_ask($session, 'SELECT pg_backend_pid()');
    my $signal = $when{terminate} ? 'pg_terminate_backend' : 'pg_cancel_backend';
    my $how =
      defined $when{delay}
      ? "SELECT pg_sleep($when{delay}); SELECT $signal($pid)"
      : "DO \$\$ BEGIN LOOP
            PERFORM pg_stat_clear_snapshot();
            PERFORM $signal(pid) FROM pg_stat_activity a WHERE pid = $pid AND state = 'active' AND query !~ 'pg_backend_pid' AND ($when{condition});
            EXIT WHEN FOUND;
            EXIT WHEN NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $pid);
            PERFORM pg_sleep(0.005);
         END LOOP; END \$\$";
    my $killer = vg_session($node, "SET statement_timeout = '30s'; $how");
    my ($out, $err) = vg_ask($session, $statement);
    my ($code, undef, $killer_err) = vg_finish($killer);
    return ($err, defined $when{delay} ? undef : "$code$killer_err");
}

# No statement of the session has a limit any more, not even the one that says so.
sub unlimited
{
    my ($session) = @_;
    for my $try (1 .. 20)
    {
        vg_ask($session, 'SET statement_timeout = 0');
        return if (vg_ask($session, 'SHOW statement_timeout'))[0] eq '0';
    }
    die 'the session keeps its statement_timeout';
}

# The backend of a session has one thread: those of a build are gone.
sub threads_of
{
    my ($session) = @_;
    my ($pid) = vg_ask($session, 'SELECT pg_backend_pid()');
    my @threads = glob("/proc/$pid/task/*");
    return scalar(@threads);
}

my $in_phase = sub {
    my ($condition) = @_;
    return "EXISTS (SELECT FROM pg_stat_progress_create_index p WHERE p.pid = a.pid AND $condition)";
};

# ---- build ----
vg_fill($node, 'items', 15000, index => 0);
my $build  = 'CREATE INDEX items_v ON items USING vecgpu (v) WITH (m = 40, ef_construction = 500)';
my $graph  = $in_phase->('tuples_total > 0 AND tuples_done > 50');

sub nothing_left
{
    my ($session, $what) = @_;
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    is(sql("SELECT count(*) FROM pg_class WHERE relname LIKE 'items_v%'"), '0', "$what: no index is left");
    is(vg_temp_files($node), '', "$what: no temporary file is left");
    is(threads_of($session), 1, "$what: no thread is left") if defined $session && -d '/proc/self/task';
    return;
}
for my $workers (0, 4)
{
    my $session = vg_open($node);
    # 1 MB: the build spills.
    vg_ask($session, "SET max_parallel_maintenance_workers = $workers; SET maintenance_work_mem = '1MB'");
    for my $case ([ 'reads the table', $in_phase->("phase LIKE 'building index%'") ], [ 'builds the graph', $graph ])
    {
        my ($what, $condition) = @$case;
        $what = "build with $workers workers, canceled while it $what";
        like(cancel_when($session, $build, condition => $condition, what => $what, undo => 'DROP INDEX items_v'), $canceled, $what);
        nothing_left($session, $what);
    }
    for my $timeout (1, 20, 100, 400)
    {
        my (undef, $err) = vg_ask($session, "SET statement_timeout = $timeout; $build; SET statement_timeout = 0");
        like($err, $canceled, "build with $workers workers, timeout $timeout ms");
        unlimited($session);
    }
    nothing_left($session, "timeouts with $workers workers");
    # Caught inside a transaction, which then goes on: the same session can build.
    my $err = cancel_when($session, "DO \$\$ BEGIN BEGIN EXECUTE '$build'; EXCEPTION WHEN query_canceled THEN RAISE NOTICE 'caught'; END;
            CREATE TABLE went_on_$workers (); END \$\$", condition => $graph, what => "build in a block ($workers)",
        undo => "DROP INDEX items_v; DROP TABLE went_on_$workers");
    like($err, qr/caught/, "build with $workers workers: a block catches the cancel");
    is(sql("SELECT count(*) FROM pg_class WHERE relname = 'went_on_$workers'"), '1', '... and its transaction goes on');
    nothing_left($session, "block with $workers workers");
    (undef, $err) = vg_ask($session, 'CREATE INDEX items_v ON items USING vecgpu (v)');
    is($err, '', "the same session builds the index ($workers workers)");
    vg_close($session);
    vg_same_as_exact($node, 'items', "built after cancels ($workers workers)");
    sql('DROP INDEX items_v');
}
# A storm: many cancels in a row, at moments of their own.
{
    my $session = vg_open($node);
    my ($errors, $through) = ('', 0);
    for my $try (1 .. 15)
    {
        my $err = cancel_when($session, $build, delay => 0.01 * $try);
        $errors .= $err if $err !~ $canceled;
        next if $err ne '';
        # The cancel came too late, or too early.
        sql('DROP INDEX items_v');
        $through++;
    }
    is($errors, '', 'a storm of cancels');
    cmp_ok($through, '<', 15, '... of which some came in time');
    nothing_left($session, 'a storm of cancels');
    vg_close($session);
}
# pg_terminate_backend while threads run.
{
    my $session = vg_open($node);
    my $err = cancel_when($session, $build, condition => $graph, terminate => 1, what => 'terminated build', undo => 'DROP INDEX items_v');
    like($err, qr/57P01: terminating connection due to administrator command/, 'a build is terminated');
    nothing_left(undef, 'a terminated build');
    vg_close($session);
}

# ---- CREATE INDEX CONCURRENTLY and REINDEX ----
{
    my $session = vg_open($node);
    my $unnamed = 'CREATE INDEX CONCURRENTLY ON items USING vecgpu (v) WITH (m = 24, ef_construction = 200)';
    like(cancel_when($session, $unnamed, condition => $graph, what => 'CREATE INDEX CONCURRENTLY', undo => 'DROP INDEX items_v_idx'), $canceled, 'CREATE INDEX CONCURRENTLY is canceled');
    my $list = "SELECT string_agg(c.relname || ' ' || i.indisvalid, ', ' ORDER BY c.relname) FROM pg_index i
        JOIN pg_class c ON c.oid = i.indexrelid WHERE i.indrelid = 'items'::regclass AND NOT indisprimary";
    is(sql($list), 'items_v_idx false', 'it leaves an invalid index');
    sql(vg_rows('items', 20001, 20100));
    my (undef, $err) = vg_ask($session, $unnamed);
    is($err, '', 'the same statement again builds another index');
    is(sql($list), 'items_v_idx false, items_v_idx1 true', 'it has a name of its own');
    is(vg_psql_error($node, 'REINDEX INDEX CONCURRENTLY items_v_idx'), '', 'REINDEX CONCURRENTLY of the invalid one');
    is(sql($list), 'items_v_idx true, items_v_idx1 true', 'makes it valid, and leaves nothing behind');
    sql('DROP INDEX items_v_idx1');
    vg_same_as_exact($node, 'items', 'reindexed');

    like(cancel_when($session, 'REINDEX INDEX items_v_idx', condition => $graph, what => 'REINDEX'), $canceled, 'REINDEX is canceled');
    vg_same_as_exact($node, 'items', 'REINDEX canceled');
    like(cancel_when($session, 'REINDEX INDEX CONCURRENTLY items_v_idx', condition => $graph, what => 'REINDEX CONCURRENTLY'),
        $canceled, 'REINDEX CONCURRENTLY is canceled');
    is(sql($list), 'items_v_idx true, items_v_idx_ccnew false', 'it leaves the old index valid');
    vg_same_as_exact($node, 'items', 'REINDEX CONCURRENTLY canceled');
    sql('DROP INDEX items_v_idx_ccnew; ALTER INDEX items_v_idx RENAME TO items_v');
    vg_close($session);
}

# ---- flush ----
my $next = 100_001;
my $rows = sub {
    my ($n) = @_;
    sql('SET vecgpu.flush_rows = 0; ' . vg_rows('items', $next, $next + $n - 1));
    $next += $n;
};
{
    my $session = vg_open($node);
    vg_ask($session, "SET maintenance_work_mem = '1MB'");
    # Eight moments; more if none of them was one.
    my ($tries, $ended) = (0, 0);
    for my $try (1 .. 40)
    {
        last if $try > 8 && $ended < $tries;
        $tries = $try;
        $rows->(2500);
        my $err = cancel_when($session, "SELECT vecgpu_flush('items_v')", delay => $try <= 8 ? 0.02 * $try * $try : 0.02);
        $ended++ if $err eq '';
        like($err, qr/^$|$canceled/, "flush $try is canceled, or was through");
        is(vg_walk($node, 'items', 'null'), vg_walk($node, 'items', 'table'), "... every row once");
    }
    cmp_ok($ended, '<', $tries, 'at least one flush was canceled');
    vg_check($node, 'after canceled flushes');
    # In a block: the structure lock goes with the subtransaction, and the same transaction flushes again.
    vg_ask($session, 'BEGIN; SAVEPOINT s');
    my $err = cancel_when($session, "SELECT vecgpu_flush('items_v')", delay => 0.02);
    $err = (vg_ask($session, "ROLLBACK TO s; SELECT 'locks ' || count(*) FROM pg_locks WHERE locktype = 'page'"))[0];
    like($err, qr/^locks 0/m, 'a savepoint gives the lock back');
    my ($out) = vg_ask($session, "SELECT 'flushed', vecgpu_flush('items_v') >= 0");
    like($out, qr/^flushed\|t/m, '... and the transaction flushes again');
    vg_ask($session, 'ROLLBACK');
    is(sql("SELECT delta_rows FROM vecgpu_info('items_v')"), '0', 'a flush is not undone by a rollback');
    vg_same_as_exact($node, 'items', 'after canceled flushes');
    vg_close($session);
}

# ---- inserts that flush by themselves ----
{
    sql('ALTER SYSTEM SET max_worker_processes = 0');
    $node->append_conf('postgresql.conf', 'vecgpu.fallback = on'); # no worker, no engine
    $node->restart;
    my $session = vg_open($node);
    vg_ask($session, 'SET vecgpu.flush_rows = 50');
    for my $try (1 .. 8)
    {
        my $first = $next;
        $next += 2000;
        my $err = cancel_when($session, vg_rows('items', $first, $next - 1), delay => 0.03 * $try);
        my $there = sql("SELECT count(*) FROM items WHERE id >= $first");
        is($there, $err eq '' ? 2000 : 0, "insert $try: all rows or none");
    }
    vg_same_as_exact($node, 'items', 'after canceled inserts');
    vg_close($session);
    sql('ALTER SYSTEM RESET max_worker_processes');
    $node->append_conf('postgresql.conf', vg_device_conf());
    $node->restart;
}

# ---- vacuum ----
{
    my $session = vg_open($node);
    my $total = 0;
    for my $try (1 .. 8)
    {
        sql("DELETE FROM items WHERE id % 12 = $try");
        $rows->(300);
        my $err = cancel_when($session, 'VACUUM (INDEX_CLEANUP on) items', delay => 0.01 * $try * $try);
        like($err, qr/^$|$canceled/, "vacuum $try is canceled, or was through");
        is(vg_walk($node, 'items', 'null'), vg_walk($node, 'items', 'table'), '... every row once');
    }
    # The rebuild that follows when many rows are dead.
    sql('DELETE FROM items WHERE id % 2 = 0');
    my $vacuum = "SET max_parallel_maintenance_workers = %d; VACUUM (INDEX_CLEANUP on) items";
    like(cancel_when($session, sprintf($vacuum, $_), delay => 0.15), qr/^$|$canceled/, "vacuum with a rebuild, $_ workers") for 0, 4;
    is(threads_of($session), 1, 'no thread of the rebuild is left') if -d '/proc/self/task';
    vg_check($node, 'after canceled vacuums');
    vg_same_as_exact($node, 'items', 'after canceled vacuums');
    sql('VACUUM items');
    is(sql("SELECT rows FROM vecgpu_info('items_v')"), sql('SELECT count(*) FROM items'), 'a whole vacuum counts right');
    vg_same_as_exact($node, 'items', 'after a whole vacuum');
    vg_close($session);
}

# ---- scans ----
{
    my $session = vg_open($node);
    vg_ask($session, 'SET enable_seqscan = off; SET enable_sort = off');
    my @scans = (
        # One scan that goes on and on, one after the other from the start, and the functions that read everything.
        'SELECT count(*) FROM (SELECT id FROM items, (VALUES (1), (2), (3), (4)) n WHERE pg_sleep(0.0001) IS NOT NULL ORDER BY v <-> uvec(-1, 16)) s',
        'SELECT count(s.id) FROM generate_series(1, 100000) g CROSS JOIN LATERAL (SELECT id FROM items ORDER BY v <-> uvec(-g % 20, 16) LIMIT 100) s',
        "SELECT vecgpu_check('items_v') FROM generate_series(1, 10000)",
        "SELECT vecgpu_recall('items_v', 100) FROM generate_series(1, 10000)");
    for my $scan (@scans)
    {
        for my $timeout (2, 30, 150)
        {
            my (undef, $err) = vg_ask($session, "SET statement_timeout = $timeout; $scan; SET statement_timeout = 0");
            like($err, $canceled, substr($scan, 0, 40) . " is canceled after $timeout ms");
            unlimited($session);
        }
    }
    my ($out) = vg_ask($session, 'SELECT count(*) FROM (SELECT id FROM items ORDER BY v <-> uvec(-1, 16) LIMIT 10) s');
    is($out, '10', 'the session searches on');
    is((vg_ask($session, "SELECT count(*) FROM pg_locks WHERE locktype = 'page'"))[0], '0', 'and holds no lock of the index');
    vg_close($session);
}

# A waiting vacuum or flush gives up when asked: whoever holds the structure lock is not hurt.
{
    my $holder = vg_open($node);
    # DROP waits for an open transaction; a flush behind it waits for the table's lock.
    vg_ask($holder, 'BEGIN; LOCK TABLE items IN ACCESS EXCLUSIVE MODE');
    is(vg_psql_error($node, "SET lock_timeout = 100; SELECT vecgpu_flush('items_v')"), '55P03 canceling statement due to lock timeout',
        'a flush that waits for the table gives up');
    like(vg_psql_error($node, "SET statement_timeout = 100; SELECT vecgpu_check('items_v')"), qr/^57014/, 'a check that waits, too');
    vg_close($holder);
}

vg_same_as_exact($node, 'items', 'at the end');
is(vg_temp_files($node), '', 'no temporary file at the end');
vg_log_clean($node, 'the whole run', allow => '57014|57P01|55P03|statement timeout|max_worker_processes');
$node->stop;
done_testing();
