# The device fails, in each way and place that engine/fault.h knows: answers are right, the reason is counted, the device comes back. And
# device memory that does not suffice.
use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/../perl";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);
use VecgpuEngine;
use VecgpuTest;

my $node = ve_node('faults', conf => "max_worker_processes = 8\n");

sub sql { return vg_sql($node, $_[0]) }

vg_fill($node, 'items', 4000);
ve_on_device($node, 'items', 'at the start');
my ($one, $other) = (vg_open($node), vg_open($node));
my @places = ($one, $other, $node);
my $strict = "SET vecgpu.fallback = off; SELECT near('items') IS NOT DISTINCT FROM exact('items')";

sub counted
{
    my ($reason, $what, $code) = @_;
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    # Again if all searches gave up an engine that was late.
    for my $try (1 .. 10)
    {
        my ($before, $late) = (ve_fallbacks($node, 'items_v', $reason), ve_late($node, 'items_v'));
        $code->();
        my $after = ve_fallbacks($node, 'items_v', $reason);
        next if $after == $before && $try < 10 && ve_late($node, 'items_v') > $late;
        cmp_ok($after, '>', $before, "$what: counted as $reason");
        return;
    }
}

# The error of a statement, once it is not that the engine was late.
sub error
{
    my ($statement) = @_;
    my $error;
    ve_until(60, sub { $error = vg_psql_error($node, $statement); return !vg_held_up($error) });
    return $error;
}

# ---- searches fail ----
for my $case ([ 'oom', 'memory' ], [ 'error', 'device_error' ], [ 'wrong', 'wrong_answer' ])
{
    my ($action, $reason) = @$case;
    my $engine = ve_engine($node);
    ve_fault("search $action");
    counted($reason, "search $action", sub { ve_same(\@places, 'items', "search $action") });
    cmp_ok(sql("SELECT overlap('items')"), '>=', 0.85, "search $action: walks through the graph are not hurt");
    like(error($strict), qr/^55000 could not search index "items_v" on the device: $reason$/, "search $action: an error with fallback = off");
    # A few only: the same scan, or the next, goes on with the device.
    ve_fault("search $action 3");
    ve_same(\@places, 'items', "search $action, three times");
    ve_fault('');
    ve_on_device($node, 'items', "after search $action");
    is(sql($strict), 't', "after search $action: all answers from the device");
    ve_lives($node, $engine, "search $action does not end the engine");
    ve_slots_free($node, "search $action");
}
# In the middle of a scan: what went out comes no second time.
for my $action ('error', 'wrong', 'oom', 'crash')
{
    my ($first, $err) = vg_ask($one, q{BEGIN; SET LOCAL enable_seqscan = off; SET LOCAL enable_sort = off; SET LOCAL vecgpu.ef_search = 40;
        DECLARE c CURSOR FOR SELECT id FROM items ORDER BY v <-> (SELECT v FROM probes WHERE id = 2); FETCH 15 FROM c});
    is($err, '', "$action within a scan: it begins");
    ve_fault("search $action 1");
    (my $rest, $err) = vg_ask($one, 'FETCH ALL FROM c; COMMIT');
    ve_fault('');
    my %seen = map { $_ => 1 } my @ids = split /\n/, "$first\n$rest";
    is("$err" . scalar(@ids) . ' ' . scalar(keys %seen), '4000 4000', "$action within a scan: each row once");
    ve_on_device($node, 'items', "after $action within a scan");
}
# With fallback = off a search waits for its mirror; an eviction that cancels the load does not end it.
{
    my ($met, $code, $out, $err) = ('');
    # Not met: whoever ran first; given up: an engine that was late.
    for my $try (1 .. 20)
    {
        ve_evict($node, 'items_v');
        ve_fault('write hang');
        my $search = vg_session($node, "$strict;");
        $met = ve_until(30, sub { return !vg_runs($search) || sql('SELECT state FROM vecgpu_mirrors()') eq 'loading' }) && vg_runs($search);
        sql("SELECT vecgpu_evict('items_v')") if $met;
        ve_fault('');
        ($code, $out, $err) = vg_finish($search);
        last if $met && !vg_held_up($err);
    }
    ok($met, 'an eviction meets a load that a search waits for');
    is("$code $out$err", "0 t\n", '... which asks again');
    ve_on_device($node, 'items', 'after an eviction in the middle of a load');
    ve_slots_free($node, 'an eviction in the middle of a load');
}
# Wrong answers of which each is another, for many queries.
{
    ve_fault('search wrong');
    my $engine = ve_engine($node);
    ve_finish('wrong answers', vg_pgbench($node, {
                near => "SELECT " . vg_must("near('items', 5) = exact('items', 5)") . ';',
                walk => "\\set r random(1, 1000)\nSELECT " . vg_must('count(*) = 10 AND count(DISTINCT id) = 10 AND bool_and(d >= before)')
                  . q{ FROM (SELECT id, d, lag(d, 1, 0) OVER () AS before FROM (SELECT id, v <-> (SELECT uvec(-:r, 16)) AS d FROM items
                         ORDER BY v <-> (SELECT uvec(-:r, 16)) LIMIT 10) a) b;} },
            clients => 4, transactions => 60, settings => [ 'enable_seqscan=off', 'enable_sort=off', 'enable_bitmapscan=off' ]));
    ve_fault('');
    ve_lives($node, $engine, 'the engine lives');
}

# ---- the device dies ----
for my $action ('lost', 'crash', 'abort')
{
    ve_on_device($node, 'items', "before search $action");
    my $engine = ve_engine($node);
    my $offset = -s $node->logfile;
    ve_fault("search $action 1");
    counted('lost', "search $action", sub { ve_same(\@places, 'items', "search $action") });
    ve_fault('');
    my $new = ve_new_engine($node, $engine);
    ve_on_device($node, 'items', "after search $action");
    # Old and new sessions go on for a while (C148).
    ve_same([ @places, $node ], 'items', "after search $action, again") for 1 .. 2;
    cmp_ok(scalar(ve_log_lines($node, 'vecgpu engine (ended|with signal)', $offset)), '>=', 1, "search $action: the log has it");
    is(sql($strict), 't', "after search $action: all answers from the device");
    # With fallback = off the query waits for the next engine, five times: once more if the fault stood for longer.
    my $answer;
    for my $try (1 .. 10)
    {
        $engine = ve_engine($node);
        ve_fault("search $action");
        my $session = vg_session($node, $strict);
        ve_until(30, sub { return !vg_runs($session) || !grep { $_ eq $engine } ve_engines($node) });
        ve_fault('');
        $answer = join('', vg_finish($session));
        last if $answer !~ /on the device: lost/ && !vg_held_up($answer);
        ve_on_device($node, 'items', "search $action, again");
    }
    is($answer, "0t\n", "search $action with fallback = off: asked again");
    ve_stop_supervisor($node);
}

# ---- a search that does not return ----
# The error of a search that gets a tenth of a second: whoever is not connected yet may give up before.
sub timeout_of
{
    my ($statement) = @_;
    my $error;
    ve_until(8, sub { $error = vg_psql_error($node, $statement); return $error =~ /timeout$/ });
    vg_held_up($error);
    return $error;
}
{
    ve_on_device($node, 'items', 'before a hang');
    my $engine = ve_engine($node);
    my $offset = -s $node->logfile;
    # After the deaths before, this session may still be waiting for its next attempt to connect.
    ve_until(30, sub {
        my $queries = ve_counter($node, 'items_v', 'queries');
        vg_ask($one, "SELECT near('items')");
        return ve_counter($node, 'items_v', 'queries') > $queries;
    });
    ve_fault('search hang');
    counted('timeout', 'search hang', sub {
        my ($out, $err) = vg_ask($one, "SET vecgpu.engine_timeout = 100; SET enable_seqscan = off; SELECT count(*) FROM (SELECT id FROM items ORDER BY v <-> uvec(-1, 16) LIMIT 10) s");
        is("$out$err", '10', 'search hang: the query gives up on the device');
    });
    like(timeout_of("SET vecgpu.engine_timeout = 100; $strict"), qr/^55000 could not search index "items_v" on the device: timeout$/, '... an error with fallback = off');
    vg_ask($one, 'RESET vecgpu.engine_timeout');
    ve_same([$node], 'items', 'search hang');
    ok(ve_until(60, sub { return !grep { $_ eq $engine } ve_engines($node) }), 'the engine ends by itself');
    ve_fault('');
    ve_on_device($node, 'items', 'after a hang');
    cmp_ok(scalar(ve_log_lines($node, 'a call of a device has not returned for \d+ ms', $offset)), '>=', 1, 'the log has the reason');
    ve_same(\@places, 'items', 'after a hang');
    ve_stop_supervisor($node);
}

# ---- loads fail ----
my %reasons = (oom => 'memory', error => 'device_error');
for my $case ([ 'create', 'oom', 'error', 'crash', 'hang' ], [ 'write', 'oom', 'error', 'lost', 'hang' ], [ 'commit', 'oom', 'error', 'crash' ])
{
    my ($where, @actions) = @$case;
    for my $action (@actions)
    {
        my $reason = $reasons{$action};
        my $what = "$where $action";
        ve_on_device($node, 'items', "before $what");
        my $engine = ve_engine($node);
        ve_evict($node, 'items_v');
        ve_fault("$where $action" . ($action eq 'lost' || $action eq 'crash' ? ' 1' : ''));
        my $counted = $reason ? ve_fallbacks($node, 'items_v', $reason) : 0;
        ve_same(\@places, 'items', $what) for 1 .. 2;
        if ($reason)
        {
            is(error("SELECT vecgpu_prewarm('items_v')"), "55000 could not load the index into the engine: $reason", "$what: vecgpu_prewarm says so");
            is(error($strict), "55000 could not search index \"items_v\" on the device: $reason", "$what: an error with fallback = off");
            cmp_ok(ve_fallbacks($node, 'items_v', $reason), '>', $counted, "$what: searches are told so");
            ve_settled($node); # whose load fails in its turn
            is(sql(ve_connected() . 'SELECT count(*) FROM vecgpu_mirrors()'), '0', "$what: no half mirror");
            ve_is(sub { ve_device_memory($node) }, '0', "$what: no memory is kept");
        }
        elsif ($action ne 'hang')
        {
            ok(ve_until(60, sub { sql("SELECT near('items')"); return !grep { $_ eq $engine } ve_engines($node) }), "$what: the engine ends");
        }
        else
        {
            # The watchdog ends the engine; whoever waited is told.
            like(vg_psql_error($node, "SELECT vecgpu_prewarm('items_v')"), qr/^55000 could not load the index into the engine: \w+$/, "$what: vecgpu_prewarm comes back");
            ok(ve_until(60, sub { return !grep { $_ eq $engine } ve_engines($node) }), "$what: the engine ends");
        }
        ve_fault('');
        # Searches do not ask for a load again for some seconds after one has failed; whoever loads explicitly does.
        ve_prewarm($node, 'items_v') if $reason;
        ve_on_device($node, 'items', "after $what");
        ve_same(\@places, 'items', "after $what");
        ve_stop_supervisor($node) if !$reason;
    }
}
# A catch-up that fails leaves the old mirror as it was.
for my $fault ('write error', 'commit oom', 'commit error', 'write slow')
{
    ve_on_device($node, 'items', "before $fault");
    ve_prewarm($node, 'items_v');
    ve_fault($fault);
    my $first = sql('SELECT max(id) + 1 FROM items');
    sql(vg_rows('items', $first, $first + 20) . "; SELECT vecgpu_flush('items_v'); DELETE FROM items WHERE id % 100 = 3");
    sql('VACUUM items');
    ve_same(\@places, 'items', "catching up, $fault") for 1 .. 3;
    ve_is(sub { sql(ve_connected() . 'SELECT state FROM vecgpu_mirrors()') }, 'ready', "catching up, $fault: the mirror is used on");
    ve_fault('');
    ve_caught_up($node, 'items', "after $fault");
    ve_same(\@places, 'items', "caught up, after $fault");
}
ve_slots_free($node, 'after all faults');

# ---- device memory ----
sql('DROP TABLE items');
vg_fill($node, $_, 12000) for 'items', 'more';
sub prewarmed { return ve_prewarm($node, $_[0], 'bytes') }
sub limit
{
    my ($megabytes) = @_;
    $node->append_conf('postgresql.conf', "vecgpu.gpu_memory_limit = $megabytes");
    $node->restart;
    ve_on_device($node, 'small', "limit $megabytes MB") if $megabytes > 1;
    return;
}
vg_fill($node, 'small', 2000);
vg_close($_) for $one, $other;
ve_evict($node, $_) for 'items_v', 'more_v';
my $bytes = prewarmed('items_v');
my $megabytes = int($bytes / 1048576 * 1.5 + 0.5);
cmp_ok($bytes, '>', 2000000, "a mirror of $bytes bytes");
limit($megabytes);
is(sql(q{SELECT memory_limit FROM vecgpu_devices() WHERE device = 'host'}), $megabytes * 1048576, 'vecgpu_devices(): the limit');
my $within = sub { my $used = ve_device_memory($node); return $used <= $megabytes * 1048576 };
# Which form a mirror takes where there is not enough room for all is the engine's choice; what is asserted is that it stays within the
# limit, answers are right, and whoever is asked for last gets his turn.
for my $round (1 .. 2)
{
    for my $table ('items', 'more')
    {
        sleep(1.2); # what was searched a moment ago does not make room
        $node->psql('postgres', "SELECT vecgpu_prewarm('${table}_v')"); # a search would wait some seconds after a failure
        ve_on_device($node, $table, "round $round");
        ve_same([$node], $_, "round $round") for 'items', 'more', 'small';
        ok($within->(), "round $round: within the limit");
    }
}
note('mirrors: ' . sql("SELECT string_agg(index::regclass || ' ' || storage || ' ' || bytes, ', ') FROM vecgpu_mirrors()"));
ve_finish('three indexes that do not fit together', vg_pgbench($node, {
            map { $_ => "SELECT " . vg_must("near('$_', 3) = exact('$_', 3)") . ';' } 'items', 'more', 'small' }, clients => 4, transactions => 8));
ok($within->(), 'within the limit');
# Least recently used first.
ve_evict($node, $_) for 'items_v', 'more_v', 'small_v';
prewarmed('small_v'); prewarmed('items_v');
for my $table ('small', 'items', 'small')
{
    ve_by_device($node, "${table}_v", 6, "$table is used", sub { sql("SELECT near('$table')") });
    sleep(1.2);
}
ok(prewarmed('more_v'), 'a third one gets its room');
my $names = sub { return sql(ve_connected() . 'SELECT string_agg(index::regclass::text, $$ $$) FROM vecgpu_mirrors()') };
ve_like($names, qr/more_v/, '... and is there');
ve_like($names, qr/small_v/, '... the one used last stays');
ok($within->(), '... within the limit');
# One index that does not fit in any form.
limit(1);
ok(ve_until(60, sub { sql("SELECT near('items')"); return ve_fallbacks($node, 'items_v', 'memory') > 0 }), 'an index larger than the limit: counted as memory');
{
    # For the five seconds after a load that failed; then another one is tried, and fails.
    ok(ve_until(90, sub {
            my $before = ve_fallbacks($node, 'items_v', 'memory');
            ve_same([$node], 'items', "an index larger than the limit, query $_") for 1 .. 3;
            return ve_fallbacks($node, 'items_v', 'memory') >= $before + 18 }), '... each time');
}
is(error("SELECT vecgpu_prewarm('items_v')"), '55000 could not load the index into the engine: memory', '... vecgpu_prewarm says so');
like(error($strict), qr/^55000 could not search index "items_v" on the device: memory$/, '... an error with fallback = off');
is(ve_device_memory($node), '0', '... and takes nothing');
# It needs room for more while it grows.
$node->append_conf('postgresql.conf', "vecgpu.gpu_memory_limit = $megabytes");
$node->restart;
ve_on_device($node, 'items', 'before it grows');
for my $part (1 .. 3)
{
    sql(vg_rows('items', 100000 * $part, 100000 * $part + 4000) . "; SELECT vecgpu_flush('items_v')");
    ve_same([$node], 'items', "grown by 4,000 rows, $part");
    ok($within->(), "grown by 4,000 rows, $part: within the limit");
}
ok(ve_until(60, sub { sql("SELECT near('items')"); return $within->() }), 'grown: within the limit');
ve_same([$node], $_, 'at the end') for 'items', 'more', 'small';

vg_check($node, 'at the end');
vg_log_clean($node, 'the whole run', allow => '55000|is lost|has not returned|with signal');
$node->stop;
is(ve_leftovers($node, files => 1), '', 'nothing is left at the end');
done_testing();
