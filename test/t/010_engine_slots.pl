# Slots: ten thousand cancels, statement timeouts and ended sessions, at every moment of a request, leave none behind; more sessions than
# slots are served all the same.
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

my $node = ve_node('slots', conf => "max_connections = 60\nvecgpu.engine_slots = 96\nlog_min_messages = log\n");
my $canceled = qr/57014: canceling statement due to (user request|statement timeout)/;
my @index = ('enable_seqscan=off', 'enable_sort=off', 'enable_bitmapscan=off');

sub sql { return vg_sql($node, $_[0]) }

# Sessions that search.
sub searching { return sql("SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%FROM items%' AND pid <> pg_backend_pid()") }

# The next engine has so many slots; sessions go on over it.
my $session;
sub engine_with
{
    my ($slots) = @_;
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    my $old = ve_engine($node);
    $node->append_conf('postgresql.conf', "vecgpu.engine_slots = $slots");
    $node->reload;
    ve_stop_supervisor($node);
    ve_new_engine($node, $old);
    ve_on_device($node, 'items', "$slots slots");
    my @states = ve_slots(ve_engine($node));
    is(scalar(@states), $slots, "the engine has $slots slots");
    ve_same([$session], 'items', "$slots slots, a session that had more");
    return;
}

# Sessions that run the statements one after the other, whatever they end with. Returns how many were canceled; one assertion.
sub storm
{
    my ($what, $sessions, $script, %options) = @_;
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    my $before = 'SET enable_seqscan = off; SET enable_sort = off; SET vecgpu.ef_search = 40; ';
    my @all = map { vg_session($node, $before . $script->($_), stop_on_error => 0) } 1 .. $sessions;
    my $cancels = $options{meanwhile} ? $options{meanwhile}->(\@all) : undef;
    my ($count, @strange) = (0);
    for my $session (@all)
    {
        my ($code, $out, $err) = vg_finish($session);
        push @strange, "exit $code" if $code != 0;
        for my $line (split /\n/, $err)
        {
            if ($line =~ $canceled) { $count++ }
            elsif ($line =~ /ERROR|FATAL|PANIC|WARNING/) { push @strange, $line }
        }
        push @strange, grep { $_ ne '10' } split /\n/, $out;
    }
    vg_finish($cancels) if $cancels;
    is(join("\n", splice(@strange, 0, 5)), '', "$what: canceled, or answered with ten rows ($count canceled)");
    return $count;
}
my $search = "SELECT count(*) FROM (SELECT id FROM items ORDER BY v <-> (SELECT v FROM probes WHERE id = %d) LIMIT 10) s;\n";

vg_fill($node, 'items', 5000);
ve_on_device($node, 'items', 'at the start');
my $engine = ve_engine($node);
is(scalar(ve_slots($engine)), 96, 'the engine has 96 slots');
ve_slots_free($node, 'at the start');

# ---- statement timeouts: while a request waits for its turn, runs, or is done ----
my $total = 0;
{
    ve_fault('search slow');
    my $script = sub {
        my ($session) = @_;
        # 50 ms for each batch: nearly all are given up, some are answered.
        return join('', map { sprintf("SET statement_timeout = %d;\n$search", 1 + ($_ * 7 + $session) % 13 + ($_ % 40 ? 0 : 150), 1 + $_ % 20) } 1 .. 600);
    };
    $total += storm('statement timeouts', 12, $script);
    ve_fault('');
    ve_slots_free($node, 'statement timeouts');
    $script = sub {
        return join('', map { sprintf("SET statement_timeout = 1;\n" . $search x 2, 1 + $_ % 20, 1 + $_ % 19) } 1 .. 100);
    };
    $total += storm('timeouts of a millisecond', 8, $script);
    ve_slots_free($node, 'timeouts of a millisecond');
}

# ---- cancels from another session ----
{
    ve_fault('search slow');
    my $script = sub { return join('', map { sprintf($search, 1 + ($_ + $_[0]) % 20) } 1 .. 500) };
    my $cancel = sub {
        return vg_session($node, q{SET statement_timeout = '90s'; DO $$ BEGIN
            FOR i IN 1 .. 1000 LOOP
                PERFORM pg_stat_clear_snapshot(), pg_sleep(0.01);
                EXIT WHEN EXISTS (SELECT FROM pg_stat_activity WHERE query LIKE '%FROM items%' AND pid <> pg_backend_pid());
            END LOOP;
            LOOP
                PERFORM pg_stat_clear_snapshot();
                PERFORM pg_cancel_backend(pid) FROM pg_stat_activity WHERE query LIKE 'SELECT count(*) FROM (SELECT id FROM items%' AND state = 'active';
                EXIT WHEN NOT EXISTS (SELECT FROM pg_stat_activity WHERE query LIKE '%FROM items%' AND pid <> pg_backend_pid());
                PERFORM pg_sleep(0.004);
            END LOOP; END $$});
    };
    # Again where that was not enough: who is slow to cancel, or finds no free slot, gives fewer up.
    for my $try (1 .. 5)
    {
        $total += storm('cancels', 10, $script, meanwhile => $cancel);
        last if $total >= 10000;
    }
    ve_fault('');
    ve_slots_free($node, 'cancels');
}
cmp_ok($total, '>=', 10000, "$total requests were given up");

# ---- sessions that end in the middle of a request ----
{
    my $ended = 0;
    for my $round (1 .. 4)
    {
        ve_fault('search slow');
        my @all = map { vg_session($node, 'SET enable_seqscan = off;' . sprintf($search, $_) x 200) } 1 .. 8;
        # They take ten seconds and more.
        ve_until(30, sub { return searching() >= 8 });
        sleep(0.02 * $round);
        $ended += sql("SELECT count(*) FROM (SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%FROM items%' AND pid <> pg_backend_pid()) s");
        vg_finish($_) for @all;
        ve_fault('');
    }
    cmp_ok($ended, '>=', 16, "$ended sessions were terminated");
    ve_slots_free($node, 'sessions terminated');
}
# psql that is killed: the server notices when it answers, and lives on.
{
    ve_fault('search slow');
    my @all = map { vg_session($node, 'SET enable_seqscan = off;' . sprintf($search, $_) x 500) } 1 .. 6;
    ve_until(30, sub { return searching() >= 6 });
    $_->{run}->kill_kill(grace => 0) for @all;
    ve_until(60, sub { return searching() eq '0' });
    ve_fault('');
    ve_slots_free($node, 'clients killed');
}

# ---- errors and savepoints in the middle: the session goes on with the device ----
{
    $session = vg_open($node);
    ve_fault('search slow');
    my ($out, $err) = vg_ask($session, q{SET enable_seqscan = off; DO $$ BEGIN
        FOR i IN 1 .. 30 LOOP
            BEGIN
                PERFORM id, 1 / (id - id) FROM items ORDER BY v <-> (SELECT v FROM probes WHERE id = 1) LIMIT 3;
            EXCEPTION WHEN division_by_zero THEN NULL; END;
        END LOOP; END $$});
    is($err, '', 'errors in the middle of scans');
    ve_fault('');
    ($out) = vg_ask($session, q{BEGIN; DECLARE c CURSOR FOR SELECT id FROM items ORDER BY v <-> (SELECT v FROM probes WHERE id = 1);
        FETCH 3 FROM c; SAVEPOINT s; FETCH 3 FROM c; ROLLBACK TO s; FETCH 3 FROM c; CLOSE c; COMMIT});
    is(scalar(split /\n/, $out), 9, 'a cursor over a savepoint');
    ve_slots_free($node, 'with an idle session');
    ve_by_device($node, 'items_v', 1, '... on the device', sub { ve_same([$session], 'items', 'the same session') });
}
# ---- loads that are given up: by a cancel, a timeout, the end of the session; and by several that want the same ----
{
    my %seen;
    for my $fault ("create slow", "write slow\ncommit slow")
    {
        ve_fault($fault);
        my @all = map {
            my $number = $_;
            vg_session($node, join('', map { sprintf("SET statement_timeout = %d; SELECT vecgpu_prewarm('items_v') IS NULL; SET statement_timeout = 0; SELECT vecgpu_evict('items_v') >= 0;\n",
                            1 + ($_ * 31 + $number * 17) % 150) } 1 .. 20), stop_on_error => 0)
        } 1 .. 3;
        sleep(0.3);
        $seen{terminated} += sql("SELECT count(*) FROM (SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%vecgpu_prewarm%' AND pid <> pg_backend_pid() LIMIT 1) s");
        for my $one (@all)
        {
            my ($code, undef, $err) = vg_finish($one);
            for (grep { /ERROR|FATAL/ } split /\n/, $err)
            {
                if    (/$canceled/)  { $seen{canceled}++ }
                elsif (/57P01/)      { }
                # The mirror that was loaded has been evicted by another session.
                elsif (/55000: could not load the index into the engine: cold/) { $seen{evicted}++ }
                elsif (vg_held_up($_)) { $seen{late}++ }
                else                 { $seen{strange} .= "$_\n" }
            }
        }
        ve_fault('');
        ve_slots_free($node, 'loads given up');
        like(ve_prewarm($node, 'items_v'), qr/^host\|\d+\|\d*\|/, '... and the next load succeeds');
        ok(ve_until(60, sub { return sql(ve_connected() . 'SELECT sum(bytes) FROM vecgpu_mirrors()') eq ve_device_memory($node) }),
            '... no half mirror keeps memory');
    }
    is($seen{strange} // '', '', 'loads are canceled, evicted, or done');
    # A session that ends in the middle of a load takes it along, at once.
    my $loading = '';
    # One that gave up an engine that was late is through.
    for my $try (1 .. 10)
    {
        ve_evict($node, 'items_v');
        ve_fault('write hang');
        my $loader = vg_session($node, "SELECT vecgpu_prewarm('items_v')");
        my $pid = vg_wait_query($node, '%vecgpu_prewarm%', undef, $loader);
        $loading = $pid ne '' && ve_until(30, sub { return !vg_runs($loader) || sql('SELECT state FROM vecgpu_mirrors()') eq 'loading' }) && vg_runs($loader);
        sql("SELECT pg_terminate_backend($pid)") if $loading;
        vg_finish($loader);
        ve_fault('');
        last if $loading;
    }
    ok($loading, 'a load is under way');
    # Without that it would be forgotten after 30 s.
    ok(ve_until(20, sub { return sql(ve_connected() . 'SELECT count(*) FROM vecgpu_mirrors()') eq '0' && ve_device_memory($node) eq '0' }),
        '... and goes with its session');
    cmp_ok($seen{canceled}, '>=', 10, "... $seen{canceled} were canceled");
}
ve_lives($node, $engine, 'the engine has lived through all of it');
ve_on_device($node, 'items', 'after all that');
ve_same([$node], 'items', 'after all that');

# A slot that is not given back would be missed at once where there are two.
engine_with(2);
my $self = "\\set r random(1, 5000)\nSET vecgpu.ef_search = 10000; SELECT " . vg_must('min(id) = :r AND count(*) = 1')
  . ' FROM (SELECT id FROM items ORDER BY v <-> (SELECT uvec(:r, 16)) LIMIT 1) s;';
{
    ve_fault('search slow');
    storm('timeouts with two slots', 6, sub {
        return join('', map { sprintf("SET statement_timeout = %d;\n$search", 1 + $_ % 30, 1 + $_ % 20) } 1 .. 100);
    });
    ve_fault('');
    ve_slots_free($node, 'timeouts with two slots');
    # Two sessions, each with a slot: neither goes without.
    # Nor does anybody else want one: no load, and no request that a session gave up because the engine was late.
    my $without;
    for my $try (1 .. 10)
    {
        ve_settled($node);
        my ($before, $late) = (ve_fallbacks($node, 'items_v', 'no_slot'), ve_late($node, 'items_v'));
        ve_finish('two sessions', vg_pgbench($node, { self => $self }, clients => 2, transactions => 100, settings => \@index));
        $without = ve_fallbacks($node, 'items_v', 'no_slot') - $before;
        last if $without == 0 || ve_late($node, 'items_v') == $late;
    }
    is($without, 0, 'two slots serve two sessions');
}

# ---- more sessions than slots ----
for my $slots (2, 1)
{
    engine_with($slots) if $slots != 2;
    my ($queries, $without) = (ve_counter($node, 'items_v', 'queries'), ve_fallbacks($node, 'items_v', 'no_slot'));
    ve_fault('search slow 200');
    ve_finish("16 sessions, $slots slots",
        vg_pgbench($node, { self => $self }, clients => 16, transactions => 40, settings => \@index));
    ve_fault('');
    cmp_ok(ve_fallbacks($node, 'items_v', 'no_slot'), '>', $without, '... some went without, counted as no_slot');
    cmp_ok(ve_counter($node, 'items_v', 'queries'), '>', $queries, '... and some did not');
    ve_slots_free($node, "16 sessions, $slots slots");
    ve_on_device($node, 'items', "16 sessions, $slots slots, then one");
    # A load needs slots as well, and gets them in the end.
    cmp_ok(ve_evict($node, 'items_v'), '>', 0, "$slots slots: evict");
    ve_on_device($node, 'items', "$slots slots, loaded anew");
    ve_evict($node, 'items_v');
    like(ve_prewarm($node, 'items_v'), qr/^host\|\d+\|\d+\|/, "$slots slots: prewarm");
}

vg_close($session);
vg_check($node, 'at the end');
vg_log_clean($node, 'the whole run', allow => '57P01|08006');
$node->stop;
is(ve_leftovers($node, files => 1), '', 'nothing is left at the end');
done_testing();
