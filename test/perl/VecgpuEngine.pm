# The engine in TAP tests: servers whose searches ask its host device, its processes, faults, slots, and what it counts.
#
#   use VecgpuTest;
#   use VecgpuEngine;
#   my $node = ve_node('engine', conf => "vecgpu.engine_slots = 8\n");   # vecgpu.device = host, vecgpu.fallback = on, no preload
#   vg_fill($node, 'items', 5000);
#   ve_on_device($node, 'items', 'after the start');        # waits until searches are answered by the device
#   ve_same([ $node, $session ], 'items', 'after X');       # index answer = exact answer, wherever it is asked
#   ve_fault('search slow 3');                              # engine/fault.h
#   my $killed = ve_engine($node); kill('KILL', $killed); ve_new_engine($node, $killed);
package VecgpuEngine;

use strict;
use warnings;
use Exporter 'import';
use File::Spec;
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Socket qw(AF_UNIX SOCK_SEQPACKET pack_sockaddr_un);
use Test::More;
use Time::HiRes qw(sleep time);
use VecgpuTest;

our @EXPORT = qw(ve_conf ve_node ve_functions ve_until ve_is ve_like ve_fault ve_engines ve_engine ve_new_engine ve_no_engine ve_lives ve_supervisor
  ve_stop_supervisor ve_socket ve_leftovers ve_settled ve_connected ve_evict ve_prewarm ve_on_device ve_by_device ve_same ve_counter ve_fallbacks ve_late
  ve_caught_up ve_slots ve_slots_free ve_log_lines ve_errors ve_finish ve_gpu_module ve_device_memory);

# Every server of a test reads this file, which need not exist (engine/fault.h).
my $fault_file = File::Spec->rel2abs(PostgreSQL::Test::Utils::tempdir() . '/faults');
$ENV{VECGPU_FAULT_FILE} = $fault_file;

# Later settings win, also over those of VECGPU_TEST_DEVICE. A late answer is as good as any.
sub ve_conf
{
    return "vecgpu.device = host\nvecgpu.fallback = on\nvecgpu.engine_timeout = 60s\nrestart_after_crash = on\njit = off\n";
}

sub ve_node
{
    my ($name, %options) = @_;
    my $node = vg_node($name, %options, conf => ve_conf() . ($options{conf} // ''));
    ve_functions($node) unless $options{no_extension};
    return $node;
}

# near(table, k, probes): the k nearest rows of each probe through the index, looking at every node; walk(): with the graph at ef 40;
# exact(): without the index. Distances, because equal ones may come in any order. STABLE, so all of a query see its snapshot. Probes: the table `few`,
# of 6, so near() is 6 searches. overlap(table): share of exact() that walk() finds, of 20 probes.
sub ve_functions
{
    my ($node, $dbname) = @_;
    my $body = q{LANGUAGE plpgsql STABLE AS $$
        DECLARE answer text;
        BEGIN
            EXECUTE format($q$
                SELECT string_agg(q.id || ':' || coalesce(n.d, ''), E'\n' ORDER BY q.id) FROM %s q, LATERAL (
                    SELECT string_agg(d::text, ',' ORDER BY r) AS d FROM (
                        SELECT d, row_number() OVER () AS r FROM (SELECT t.v <-> q.v AS d FROM %s t ORDER BY t.v <-> q.v LIMIT %s) a) b) n$q$,
                probes, tab, k) INTO answer;
            RETURN answer;
        END $$};
    my $arguments = "(tab text, k int DEFAULT 10, probes text DEFAULT 'few') RETURNS text";
    my $index     = 'SET enable_seqscan = off SET enable_sort = off SET enable_bitmapscan = off';
    $node->safe_psql(
        $dbname // 'postgres', qq{
        LOAD 'vecgpu';
        CREATE TABLE few AS SELECT * FROM probes WHERE id <= 6;
        CREATE FUNCTION near $arguments $index SET vecgpu.ef_search = 10000 $body;
        CREATE FUNCTION walk $arguments $index SET vecgpu.ef_search = 40 SET vecgpu.device_form = graph $body;
        CREATE FUNCTION exact $arguments SET enable_seqscan = on SET enable_sort = on SET enable_indexscan = off SET enable_bitmapscan = off $body;
        CREATE FUNCTION overlap(tab text) RETURNS numeric LANGUAGE sql STABLE AS \$\$
            SELECT round((SELECT count(*) FROM (
                SELECT * FROM regexp_split_to_table(walk(tab, 10, 'probes'), '[\\n,:]') INTERSECT SELECT * FROM regexp_split_to_table(exact(tab, 10, 'probes'), '[\\n,:]')) i)::numeric
                / greatest((SELECT count(DISTINCT d) FROM regexp_split_to_table(exact(tab, 10, 'probes'), '[\\n,:]') d), 1), 3) \$\$;
    });
    return;
}

# ---- waiting ----

# Calls the function until it gives a true value, which is returned. '' after `seconds`.
sub ve_until
{
    my ($seconds, $function) = @_;
    my $end = time() + $seconds;
    for (;;)
    {
        my $value = $function->();
        return $value if $value;
        return '' if time() > $end;
        sleep(0.02);
    }
}

# On a loaded machine everything takes its time; nothing is asserted about times but that things happen at all.
my $patience = 90;

# One assertion about what comes about by itself: the function's value becomes the expected one.
sub ve_is
{
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    my ($function, $expected, $what) = @_;
    my $got;
    ve_until($patience, sub { $got = $function->(); return $got eq $expected });
    return is($got, $expected, $what);
}

sub ve_like
{
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    my ($function, $expected, $what) = @_;
    my $got;
    ve_until($patience, sub { $got = $function->(); return $got =~ $expected });
    return like($got, $expected, $what);
}

# ---- faults ----

# From now on the host device does so; '' for no fault.
sub ve_fault
{
    my ($text) = @_;
    open(my $out, '>', "$fault_file.new") or die "$fault_file: $!";
    print $out "$text\n";
    close($out) or die "$fault_file: $!";
    rename("$fault_file.new", $fault_file) or die "$fault_file: $!";
    return;
}

# ---- processes ----

# Process ids of engines that stand in the data directory of a node, by /proc: also those that no server knows.
sub ve_engines
{
    my ($node) = @_;
    my @found;
    my $folder = $node->data_dir;
    for my $process (glob('/proc/[0-9]*'))
    {
        open(my $in, '<', "$process/cmdline") or next;
        my $command = <$in> // '';
        close($in);
        next if $command !~ /^vecgpu-engine\0/;
        my $at = readlink("$process/cwd") // '';
        push @found, $process =~ m{/proc/(\d+)} if $at eq $folder || $at eq "$folder (deleted)";
    }
    @found = sort { $a <=> $b } @found;
    return @found;
}

# The process id of the engine that serves. Waits for it.
sub ve_engine
{
    my ($node) = @_;
    my $pid = ve_until($patience, sub {
        my @pids = grep { ve_socket($node) } ve_engines($node);
        return @pids == 1 ? $pids[0] : '';
    });
    die 'no engine comes up on ' . $node->name if !$pid;
    return $pid;
}

# Waits until another engine than `old` serves. Somebody has to ask for it, so this does.
sub ve_new_engine
{
    my ($node, $old) = @_;
    my $pid = ve_until($patience, sub {
        # It is an error if the old one ends just now.
        my (undef, $number) = $node->psql('postgres', q{SELECT count(*) FROM vecgpu_devices() WHERE device = 'host'});
        my @pids = ve_engines($node);
        return $number eq '1' && @pids == 1 && $pids[0] != $old ? $pids[0] : '';
    });
    die "no engine comes up after $old on " . $node->name if !$pid;
    return $pid;
}

sub ve_no_engine
{
    my ($node) = @_;
    return ve_until($patience, sub { return !ve_engines($node) }) ? 1 : 0;
}

# One assertion: the engine that serves is this one. Its supervisor ends one whose heart stops for three seconds: that is the machine's doing, and in the log.
sub ve_lives
{
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    my ($node, $engine, $what) = @_;
    my $now = ve_engine($node);
    return pass("$what (another one: the machine held it up)")
      if $now != $engine && ve_log_lines($node, "vecgpu engine with PID $engine does not answer, killing it");
    return is($now, $engine, $what);
}

# Process id of the supervisor, or ''.
sub ve_supervisor
{
    my ($node) = @_;
    return $node->safe_psql('postgres', "SELECT pid FROM pg_stat_activity WHERE backend_type = 'vecgpu supervisor'");
}

# Ends it, so that the next one starts engines without a back-off.
sub ve_stop_supervisor
{
    my ($node) = @_;
    my $pid = ve_supervisor($node);
    return '' if $pid eq '';
    $node->safe_psql('postgres', "SELECT pg_terminate_backend($pid)");
    die 'the supervisor does not end' if !ve_until($patience, sub { return ve_supervisor($node) ne $pid });
    return $pid;
}

# Whether somebody listens on the engine's socket.
sub ve_socket
{
    my ($node) = @_;
    my $folder = $node->data_dir . '/pg_stat_tmp';
    return -S "$folder/vecgpu.sock" && socket_answers($folder);
}

# The path may be longer than a socket address can be, so another process goes there.
sub socket_answers
{
    my ($folder) = @_;
    my $pid = fork() // die "fork: $!";
    if ($pid == 0)
    {
        my $socket;
        my $good = chdir($folder) && socket($socket, AF_UNIX, SOCK_SEQPACKET, 0) && connect($socket, pack_sockaddr_un('vecgpu.sock'));
        POSIX::_exit($good ? 0 : 1);
    }
    waitpid($pid, 0);
    return $? == 0;
}

# What a server that has stopped has left behind: files of ours, and processes. `socket => 1`: a socket file without a listener counts too.
sub ve_leftovers
{
    my ($node, %options) = @_;
    my @left = map { "engine $_" } ve_engines($node);
    push @left, glob($node->data_dir . '/pg_stat_tmp/vecgpu*') if $options{files};
    push @left, 'a listener' if ve_socket($node);
    push @left, glob('/dev/shm/*vecgpu*');
    return join(' ', @left);
}

# ---- mirrors ----

# Waits until no load that a search asked for is under way: a worker may come to it long after the search, and bring a mirror back. Whoever connects
# after the search finds the worker started; what is to become one has no title yet.
sub ve_settled
{
    my ($node) = @_;
    $node->safe_psql('postgres', 'SELECT');
    my ($postmaster) = PostgreSQL::Test::Utils::slurp_file($node->data_dir . '/postmaster.pid') =~ /^(\d+)/;
    my $loads = sub {
        for my $process (glob('/proc/[0-9]*'))
        {
            my ($state, $parent) = first_line("$process/stat") =~ /\) (\S) (\d+) / or next;
            return 1 if $parent == $postmaster && $state ne 'Z' && first_line("$process/cmdline") !~ /^postgres: (?!.*vecgpu load worker)|^$/;
        }
        return '';
    };
    die 'loads do not end on ' . $node->name if !ve_until($patience, sub { return !$loads->() });
    return;
}

sub first_line
{
    my ($file) = @_;
    open(my $in, '<', $file) or return '';
    return <$in> // '';
}

# A statement: connects this session, however long the engine takes for it. Functions that only look (vecgpu_mirrors, vecgpu_evict, vecgpu_info) give it a
# quarter of a second, and then say that there is nothing.
sub ve_connected { return 'DO $$ BEGIN PERFORM count(*) FROM vecgpu_devices(); END $$; ' }

# Drops the mirror, and nobody brings it back behind the test's back. Returns its bytes.
sub ve_evict
{
    my ($node, $index) = @_;
    ve_settled($node);
    my ($code, $out, $err);
    ve_until($patience, sub {
        ($code, $out, $err) = $node->psql('postgres', ve_connected() . "SELECT vecgpu_evict('$index')");
        # `lost`: the engine has just ended.
        return $code == 0 || !(vg_held_up($err) || $err =~ /: lost$/m);
    });
    die "vecgpu_evict: $err" if $code != 0;
    return $out;
}

# vecgpu_prewarm on a node or in a session, which may be in a transaction. Returns its columns.
sub ve_prewarm
{
    my ($where, $index, $columns) = @_;
    my $sql = 'SELECT ' . ($columns // '*') . " FROM vecgpu_prewarm('$index')";
    return vg_sql($where, $sql) if ref($where) ne 'HASH';
    my ($out, $err);
    my $in_transaction = (vg_ask($where, 'SELECT now() < statement_timestamp()'))[0] eq 't';
    vg_ask($where, 'SAVEPOINT ve_prewarm') if $in_transaction;
    ve_until($patience, sub {
        ($out, $err) = vg_ask($where, $sql);
        vg_ask($where, 'ROLLBACK TO ve_prewarm') if $in_transaction && $err ne '';
        return !vg_held_up($err);
    });
    vg_ask($where, 'RELEASE ve_prewarm') if $in_transaction;
    return "$out$err";
}

sub ve_gpu_module
{
    my ($node) = @_;
    chomp(my $folder = `pg_config --pkglibdir`);
    return -e "$folder/vecgpu_cuda.so";
}

# ---- answers ----

# A psql session or a node: the result of one query.
sub ask
{
    my ($where, $sql) = @_;
    if (ref($where) eq 'HASH')
    {
        my ($out, $err) = vg_ask($where, $sql);
        return $err eq '' ? $out : "$out $err";
    }
    return vg_sql($where, $sql);
}

# One assertion: wherever it is asked (nodes and sessions of vg_open), the index answers as the table does.
sub ve_same
{
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    my ($places, $table, $what, %options) = @_;
    my $rest = $options{rest} // '';
    my @got = map { ask($_, "SELECT near('$table'$rest) IS NOT DISTINCT FROM exact('$table'$rest)") } @$places;
    my $good = is(join(' ', @got), join(' ', map { 't' } @got), "$what: answers of $table are right");
    diag(map { "$_\n" } ask($places->[0], "SELECT near('$table')"), ask($places->[0], "SELECT exact('$table')")) if !$good;
    return $good;
}

# One assertion: searches are answered by the device, sooner or later. Options: dbname, index (TABLE_v), where.
sub ve_on_device
{
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    my ($node, $table, $what, %options) = @_;
    my $started = time();
    my $database = $options{dbname} // 'postgres';
    my $index = $options{index} // "${table}_v";
    my $there = ve_until($patience, sub {
        my $before = ve_counter($node, $index, 'queries', $database);
        $node->safe_psql($database, "SELECT near('$table')");
        return ve_counter($node, $index, 'queries', $database) > $before;
    });
    ok($there, "$what: the device answers searches of $table") or diag($node->safe_psql($database, 'SELECT * FROM pg_stat_vecgpu'));
    note(sprintf('%s: on the device after %.2f s', $what, time() - $started));
    return $there;
}

# One assertion: at least so many searches of what the code does are answered by the device. Searches that gave up an engine which the machine held up are no
# fault: then it is done again.
sub ve_by_device
{
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    my ($node, $index, $least, $what, $code) = @_;
    my $count;
    for my $try (1 .. 20)
    {
        my ($before, $late) = (ve_counter($node, $index, 'queries'), ve_late($node, $index));
        $code->();
        $count = ve_counter($node, $index, 'queries') - $before;
        last if $count >= $least || ve_late($node, $index) == $late;
        sleep(0.5);
    }
    return cmp_ok($count, '>=', $least, $what);
}

# ---- counters ----

# A column of pg_stat_vecgpu of an index; 0 if it has no row yet.
sub ve_counter
{
    my ($node, $index, $column, $database) = @_;
    return $node->safe_psql($database // 'postgres',
        "SELECT coalesce(max((to_jsonb(s) ->> '$column')::numeric), 0) FROM pg_stat_vecgpu s WHERE indexrelid = '$index'::regclass");
}

# How many searches left the device for this reason (client/fallback.h).
sub ve_fallbacks
{
    my ($node, $index, $reason, $database) = @_;
    return $node->safe_psql($database // 'postgres',
        "SELECT coalesce(max((fallback_reasons ->> '$reason')::numeric), 0) FROM pg_stat_vecgpu s WHERE indexrelid = '$index'::regclass");
}

# How many searches gave up an engine that was late.
sub ve_late
{
    my ($node, $index) = @_;
    return ve_fallbacks($node, $index, 'hung') + ve_fallbacks($node, $index, 'timeout');
}

# Whether the mirror has the state of the pages, after a few searches.
sub ve_caught_up
{
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    my ($node, $table, $what) = @_;
    my $state = '';
    ve_until($patience, sub {
        $state = $node->safe_psql('postgres', "SELECT near('$table') IS NULL; SELECT state, epoch_lag FROM pg_stat_vecgpu WHERE indexrelid = '${table}_v'::regclass");
        return $state =~ /\nready\|0$/;
    });
    return like($state, qr/ready\|0$/, "$what: the mirror catches up");
}

# Bytes of mirrors on the host device.
sub ve_device_memory
{
    my ($node) = @_;
    return vg_sql($node, q{SELECT memory_used FROM vecgpu_devices() WHERE device = 'host'});
}

# ---- slots ----

# States of the engine's slots (protocol/slot.h), read from its memory: the layout is pinned in protocol/message.h.
my @slot_states = qw(free filling filled taken done abandoned);
use constant { SLOTS_AT => 4096, SLOT_BYTES => 384 + 64 * 1024 + 8192 * 8 };

sub ve_slots
{
    my ($engine) = @_;
    for my $link (glob("/proc/$engine/fd/*"))
    {
        next if (readlink($link) // '') !~ m{^/memfd:vecgpu};
        open(my $memory, '<:raw', $link) or next;
        my $head = '';
        next if (sysread($memory, $head, 24) // 0) != 24;
        my ($magic, $version, $generation, $slots) = unpack('L L Q L', $head);
        next if $magic != 0x45504756;
        my $size = -s $memory;
        my $expected = SLOTS_AT + $slots * SLOT_BYTES;
        die "a slot area of $size bytes for $slots slots" if $size < $expected || $size >= $expected + 4096;
        my @states;
        for my $slot (0 .. $slots - 1)
        {
            sysseek($memory, SLOTS_AT + $slot * SLOT_BYTES, 0) or die "seek: $!";
            sysread($memory, my $word, 8) == 8 or die "read: $!";
            push @states, $slot_states[ unpack('Q', $word) & 0xff ] // 'unknown';
        }
        return @states;
    }
    die "engine $engine has no slot area";
}

# One assertion: once nothing runs any more, all slots are free.
sub ve_slots_free
{
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    my ($node, $what) = @_;
    my $engine = ve_engine($node);
    my $busy = '';
    ve_until($patience, sub {
        my %count;
        $count{$_}++ for ve_slots($engine);
        my $all = delete $count{free};
        $busy = join(', ', map { "$count{$_} $_" } sort keys %count);
        return $busy eq '';
    });
    return is($busy, '', "$what: every slot of the engine is free");
}

# ---- sessions and log ----

# Errors of a session that was started with vg_session or vg_pgbench, one a line; '' if it ended well.
sub ve_errors
{
    my ($session) = @_;
    my ($code, $out, $err) = vg_finish($session);
    my $processed = $out =~ /actually processed: (\d+)/ ? $1 : 0;
    $session->{processed} = $processed;
    my @bad = grep { /ERROR|FATAL|PANIC|WARNING|aborted|error:/ } vg_excused($err);
    return ($code == 0 || vg_held_up($err)) && !@bad ? '' : "exit $code: " . join("\n", splice(@bad, 0, 5));
}

# One assertion: all of them ended well.
sub ve_finish
{
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    my ($what, @sessions) = @_;
    my $errors = join("\n", grep { $_ ne '' } map { ve_errors($_) } @sessions);
    my $done = 0;
    $done += $_->{processed} for @sessions;
    return is($errors, '', "$what: no session had an error ($done transactions)");
}

# Lines of the log since `offset` that match.
sub ve_log_lines
{
    my ($node, $pattern, $offset) = @_;
    return grep { /$pattern/ } split /\n/, PostgreSQL::Test::Utils::slurp_file($node->logfile, $offset // 0);
}

1;
