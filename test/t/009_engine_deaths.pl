# Whatever ends the engine, its supervisor or the server, at whatever moment: no session ends, no query has an error or loses a row, the
# server is not restarted, and the device answers again.
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

my $node = ve_node('deaths', conf => "max_worker_processes = 12\nmax_connections = 60\nvecgpu.flush_rows = 200\n");
my @signals = qw(KILL TERM SEGV ABRT STOP);

sub sql { return $node->safe_psql('postgres', $_[0]) }

# Rows 1 .. 500 never change: a search for the vector of one finds it, by an exact search and by the graph. Fixed queries have fixed answers.
vg_fill($node, 'items', 4000);
vg_fill($node, 'busy', 4000);
sql(q{CREATE SEQUENCE busy_ids START 10001;
      CREATE TABLE truth AS SELECT i AS id, uvec(-i, 16) AS v FROM generate_series(1, 40) i;
      ALTER TABLE truth ADD PRIMARY KEY (id);
      ALTER TABLE truth ADD ids int[];
      UPDATE truth t SET ids = ARRAY(SELECT i.id FROM items i ORDER BY i.v <-> t.v LIMIT 10)});
my @index = ('enable_seqscan=off', 'enable_sort=off', 'enable_bitmapscan=off');
my $readers = {
    'exact@4' => "\\set r random(1, 40)\nSET vecgpu.ef_search = 10000; SELECT " . vg_must('ids = (SELECT ids FROM truth WHERE id = :r)')
      . q{ FROM (SELECT array_agg(id) AS ids FROM (SELECT id FROM items ORDER BY v <-> (SELECT v FROM truth WHERE id = :r) LIMIT 10) a) b;},
    'graph@4' => "\\set r random(1, 1000)\nSET vecgpu.ef_search = 40; SELECT " . vg_must('count(*) = 10 AND count(DISTINCT id) = 10 AND bool_and(d >= before)')
      . q{ FROM (SELECT id, d, lag(d, 1, 0) OVER () AS before FROM (SELECT id, v <-> (SELECT uvec(-:r, 16)) AS d FROM items
             ORDER BY v <-> (SELECT uvec(-:r, 16)) LIMIT 10) a) b;},
    'deep@1' => "\\set r random(1, 40)\nSET vecgpu.ef_search = 40; SELECT " . vg_must('count(*) = 1500 AND count(DISTINCT id) = 1500')
      . q{ FROM (SELECT id FROM items ORDER BY v <-> (SELECT v FROM truth WHERE id = :r) LIMIT 1500) a;},
    'busy@4' => "\\set r random(1, 500)\nSET vecgpu.ef_search = 10000; SELECT " . vg_must('min(id) = :r AND count(*) = 1')
      . q{ FROM (SELECT id FROM busy ORDER BY v <-> (SELECT uvec(:r, 16)) LIMIT 1) s;},
};
my $writers = {
    'insert@6' => q{INSERT INTO busy SELECT i, uvec(i::int, 16) FROM nextval('busy_ids') i;},
    'many@2' => q{INSERT INTO busy SELECT nextval('busy_ids'), uvec(2000000 + (random() * 1000000)::int, 16) FROM generate_series(1, 20);},
    'delete@3' => q{DELETE FROM busy WHERE id IN (SELECT id FROM busy WHERE id > 500 ORDER BY random() LIMIT 5 FOR UPDATE SKIP LOCKED);},
    # A row that was just inserted is found, wherever it is.
    'found@2' => 'SET vecgpu.ef_search = 10000; BEGIN; INSERT INTO busy SELECT i, uvec(i::int, 16) FROM nextval(\'busy_ids\') i; SELECT '
      . vg_must("min(id) = currval('busy_ids') AND count(*) = 1")
      . q{ FROM (SELECT id FROM busy ORDER BY v <-> (SELECT uvec(currval('busy_ids')::int, 16)) LIMIT 1) s; COMMIT;},
    'flush@1' => q{SELECT vecgpu_flush('busy_v');},
};

sub readers { return vg_pgbench($node, $readers, clients => 8, seconds => $_[0], settings => \@index) }
sub writers { return vg_pgbench($node, $writers, clients => 3, seconds => $_[0], settings => \@index) }

# A session that lives through all of it, and the server's start.
my $witness = vg_open($node);
my ($backend) = vg_ask($witness, 'SELECT pg_backend_pid()');
my $start = sql('SELECT pg_postmaster_start_time()');
sub nobody_else_hurt
{
    my ($what) = @_;
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    is(join('|', (vg_ask($witness, 'SELECT pg_backend_pid()'))[0], sql('SELECT pg_postmaster_start_time()')), "$backend|$start",
        "$what: neither session nor server ended");
    return;
}

sub stop_supervisor
{
    ve_stop_supervisor($node);
    return;
}

ve_on_device($node, $_, 'at the start') for 'items', 'busy';

# Sends the signal to the engine that serves, and returns its process id.
sub end_engine
{
    my ($signal) = @_;
    my $engine;
    do { $engine = ve_engine($node) } until kill($signal, $engine);
    return $engine;
}

# ---- idle ----
for my $signal (@signals)
{
    my $engine = end_engine($signal);
    ve_same([ $node, $witness ], 'items', "idle, $signal");
    my $new = ve_new_engine($node, $engine);
    ve_on_device($node, 'items', "idle, $signal");
    ok(!-e "/proc/$engine" || slurp_file("/proc/$engine/stat") =~ /\) Z /, "idle, $signal: the old engine is gone");
}
nobody_else_hurt('idle');
# One that the machine holds up for three seconds is killed like one that hangs.
my @hung = ve_log_lines($node, 'does not answer, killing it');
like(join(' ', map { /with signal (\d+)/ } ve_log_lines($node, 'vecgpu engine with signal')), qr/^(9 )+11 (9 )*6( 9)+$/, 'the log names the signals');
is(scalar(ve_log_lines($node, 'vecgpu engine with signal 9')), 1 + @hung, '... of each engine that was killed');
cmp_ok(scalar(@hung), '>=', 1, '... and the engine that hung');

# ---- the supervisor is terminated ----
stop_supervisor();
ve_same([ $node, $witness ], 'items', 'supervisor terminated');
ve_on_device($node, 'items', 'supervisor terminated');
is(scalar(ve_engines($node)), 1, 'supervisor terminated: one engine');
nobody_else_hurt('supervisor terminated');

# ---- running and queued queries, flushes, loads ----
for my $signal (@signals)
{
    ve_on_device($node, 'busy', "before $signal");
    # 50 ms for each batch: there is always one that runs, and requests that wait.
    my $slow = $signal eq 'KILL' || $signal eq 'SEGV';
    ve_fault($slow ? "search slow\nwrite slow\ncommit slow" : '');
    my $seconds = $signal eq 'STOP' ? 5 : 2;
    my @load = (readers($seconds), writers($seconds));
    for my $round (1 .. ($signal eq 'STOP' ? 1 : 2))
    {
        ve_engine($node);
        sleep(0.2 + 0.1 * $round);
        ve_new_engine($node, end_engine($signal));
    }
    ve_fault('');
    ve_finish("readers and writers, $signal", @load);
    ve_on_device($node, $_, "after $signal under load") for 'items', 'busy';
    nobody_else_hurt("$signal under load");
    ve_slots_free($node, "$signal under load");
    ve_same([ $node, $witness ], $_, "$signal under load") for 'items', 'busy';
    stop_supervisor(); # the next engine starts without a back-off
}

# ---- in the middle of a load ----
for my $case ([ 'KILL', 'create', 'write', 'commit' ], [ 'TERM', 'write' ], [ 'STOP', 'commit' ])
{
    my ($signal, @places) = @$case;
    for my $where (@places)
    {
        ve_on_device($node, 'items', "before $signal in $where");
        ve_settled($node);
        ve_fault("$where hang");
        ve_evict($node, 'items_v');
        my $prewarm = vg_session($node, "SELECT vecgpu_prewarm('items_v')");
        vg_wait_query($node, '%vecgpu_prewarm%', undef, $prewarm);
        my $load = readers(1);
        sleep(0.2);
        # Sessions that find no mirror ask workers for one, which find that it is being loaded.
        ve_same([ $node, $witness ], 'items', "$where hangs");
        is(sql("SELECT count(*) FROM vecgpu_mirrors() WHERE state = 'ready' AND index = 'items_v'::regclass"), '0', "$where hangs: no mirror yet");
        end_engine($signal);
        ve_fault('');
        like(join('', vg_finish($prewarm)), qr/^0|55000: could not load the index into the engine: (lost|starting|no_engine|hung)/,
            "$signal in $where: vecgpu_prewarm says so, or has gone on");
        ve_finish("readers, $signal in $where", $load);
        ve_on_device($node, 'items', "$signal in $where");
    }
    nobody_else_hurt("$signal in a load");
    ve_slots_free($node, "$signal in a load");
    stop_supervisor();
}
ve_is(sub { join(' ', grep { /load worker/ } split /\n/, sql('SELECT backend_type FROM pg_stat_activity')) }, '', 'no load worker is left');

# ---- the supervisor under load ----
{
    ve_on_device($node, 'busy', 'before the supervisor ends');
    my @load = (readers(3), writers(3));
    for (1 .. 2)
    {
        sleep(0.5);
        stop_supervisor();
        ve_engine($node) if ve_until(60, sub { return ve_supervisor($node) });
    }
    ve_finish('supervisor terminated under load', @load);
    ve_on_device($node, 'busy', 'supervisor terminated under load');
    nobody_else_hurt('supervisor terminated under load');
}
vg_same_as_exact($node, $_, 'after all deaths') for 'items', 'busy';
vg_check($node, 'after all deaths');
vg_log_clean($node, 'all deaths', allow => '55000|terminating background worker "vecgpu supervisor"');

# ---- kill -9 of the supervisor: PostgreSQL restarts its sessions, as for any process that may have harmed its memory ----
{
    my $engine = ve_engine($node);
    my $supervisor = ve_supervisor($node);
    vg_kill_backend($node, $supervisor);
    ok(ve_until(60, sub { return !grep { $_ eq $engine } ve_engines($node) }), 'supervisor killed: no orphan engine');
    ve_same([$node], 'items', 'supervisor killed');
    ve_on_device($node, 'items', 'supervisor killed');
    is(scalar(ve_engines($node)), 1, 'supervisor killed: one engine');
    isnt(ve_supervisor($node), $supervisor, 'supervisor killed: another supervisor');
    is(sql('SELECT pg_postmaster_start_time()'), $start, '... of the same postmaster');
    vg_same_as_exact($node, 'busy', 'supervisor killed');
}
vg_close($witness);

# ---- a backend that is killed in the middle of a request: the same ----
{
    my $engine;
    # One that gave up an engine that was late is through.
    for my $try (1 .. 10)
    {
        ve_fault('search hang');
        $engine = ve_engine($node);
        my $victim = vg_session($node, ve_connected() . "SELECT near('items')");
        my $pid = vg_wait_query($node, '%near(%', undef, $victim);
        my $taken = $pid ne '' && ve_until(5, sub { return !vg_runs($victim) || eval { grep { $_ eq 'taken' } ve_slots($engine) } }) && vg_runs($victim);
        vg_kill_backend($node, $pid) if $taken;
        ve_fault('');
        vg_finish($victim);
        last if $taken;
    }
    ok(ve_until(60, sub { return !grep { $_ eq $engine } ve_engines($node) }), 'backend killed: the engine went with the others');
    ve_on_device($node, 'items', 'backend killed');
    ve_slots_free($node, 'backend killed');
}

# ---- the end of the server, with the device at work ----
for my $way ('kill9', 'immediate', 'fast')
{
    ve_on_device($node, 'items', "before $way");
    ve_fault('search hang') if $way ne 'fast';
    my $load = readers(30);
    sleep(0.5);
    if ($way eq 'kill9') { vg_kill_postmaster($node) }
    else { $node->stop($way) }
    ok(ve_no_engine($node), "$way: the engine ends");
    ve_fault('');
    vg_finish($load);
    # A session that is held up on its way out may count a last search, in a new file. The next server replaces it.
    is(join(' ', grep { !/vecgpu\.stat$/ } split / /, ve_leftovers($node, files => $way eq 'fast')), '', "$way: nothing is left");
    vg_start($node);
    ve_same([$node], $_, "$way, started again") for 'items', 'busy';
    ve_on_device($node, 'items', "$way, started again");
}
# An engine that is stopped does not keep the server from stopping.
{
    my $engine = ve_engine($node);
    kill('STOP', $engine);
    $node->stop;
    ok(ve_no_engine($node), 'fast, with an engine that hangs: it is gone');
    is(ve_leftovers($node, files => 1), '', '... and left nothing');
    $node->start;
}
vg_check($node, 'at the end');
$node->stop;
is(ve_leftovers($node, files => 1), '', 'nothing is left at the end');
done_testing();
