# The engine's life: who starts it and when, what it shows of itself, with and without preload, on a machine without a GPU, without room
# for workers or memory, and that it goes when the server does.
use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/../perl";
use IPC::Run ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep);
use VecgpuEngine;
use VecgpuTest;

my $node = ve_node('engine', conf => "max_worker_processes = 8\n");
my $data = $node->data_dir;

sub sql { return vg_sql($node, $_[0]) }

# Of the engine, by functions that only look for it.
sub look { return sql(ve_connected() . $_[0]) }

sub started
{
    my ($what) = @_;
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    return is(ve_supervisor($node) . join(' ', ve_engines($node)), '', $what);
}
my $near = "SELECT near('items')";

# ---- nothing runs that nobody asked for ----
vg_fill($node, 'items', 6000);
sql("SELECT vecgpu_info('items_v'), vecgpu_check('items_v')");
sql('SELECT count(*) FROM items WHERE id = 7');
started('neither CREATE EXTENSION nor a build nor another query starts an engine');
is(sql('SELECT count(*) FROM vecgpu_mirrors()'), '0', 'no engine, no mirrors');
is(sql(q{SELECT vecgpu_evict('items_v')}), '0', 'nothing to evict');
started('vecgpu_mirrors() and vecgpu_evict() start none');
sql("SET vecgpu.device = cpu; $near");
started('device = cpu starts none');
is(vg_psql_error($node, "SET vecgpu.device = cpu; SELECT vecgpu_prewarm('items_v')"),
    '55000 searches of this session do not use a device', 'vecgpu_prewarm with device = cpu');
is(sql('SET vecgpu.device = cpu; SELECT count(*) FROM vecgpu_devices()'), '0', 'vecgpu_devices() with device = cpu');
started('... start none either');
SKIP:
{
    skip 'a GPU module is installed', 4 if ve_gpu_module($node);
    is(sql("SET vecgpu.device = auto; $near; $near"), join("\n", (sql("SELECT exact('items')")) x 2), 'auto without a GPU module: answers');
    started('... and no engine');
    is(vg_psql_error($node, "SET vecgpu.device = auto; SELECT vecgpu_prewarm('items_v')"),
        '55000 searches of this session do not use a device', 'vecgpu_prewarm with auto');
    started('... starts none');
}
is(sql("SET vecgpu.device = host; SELECT count(*) FROM (SELECT id FROM items ORDER BY v <-> (SELECT NULL::real[])) s"), '6000', 'a search for NULL');
sql("CREATE TABLE small (id int PRIMARY KEY, v real[]); CREATE INDEX small_v ON small USING vecgpu (v)");
is(sql("SELECT near('small') IS NOT DISTINCT FROM exact('small')"), 't', 'an empty index');
sql(vg_rows('small', 1, 30));
is(sql("SELECT near('small') IS NOT DISTINCT FROM exact('small')"), 't', 'an index that is all delta');
started('what the engine cannot help with starts none');

# ---- the first query ----
is(sql("SELECT near('items') IS NOT DISTINCT FROM exact('items')"), 't', 'the first query is answered at once');
my $engine = ve_engine($node);
my $supervisor = ve_supervisor($node);
like($supervisor, qr/^\d+$/, '... and brings a supervisor');
ve_like(sub { sql("SELECT query FROM pg_stat_activity WHERE pid = $supervisor") }, qr/^engine $engine, start 1$/, '... with an engine');
my ($status) = slurp_file("/proc/$engine/status") =~ /^PPid:\s+(\d+)/m;
is($status, $supervisor, 'the engine is a child of the supervisor');
my $mode = (stat("$data/pg_stat_tmp/vecgpu.sock"))[2] & 07777;
is(sprintf('%04o', $mode & 077), '0000', 'nobody else may connect to the socket');
is(join(' ', grep { !m{^(socket|pipe|anon_inode):|^/memfd:vecgpu|^/dev/null|\.log$} } map { readlink($_) // '' } glob("/proc/$engine/fd/*")),
    '', 'the engine inherits no file of the server');
ve_on_device($node, 'items', 'first query');
ve_is(sub { look('SELECT device, state, storage, nodes FROM vecgpu_mirrors()') }, 'host|ready|float32|6000', 'vecgpu_mirrors()');

# ---- prewarm, evict, devices ----
my $bytes = ve_until(60, sub { look('SELECT bytes FROM vecgpu_mirrors()') });
cmp_ok($bytes, '>', 6000 * 64, "the mirror has $bytes bytes");
is(ve_device_memory($node), $bytes, 'vecgpu_devices(): that is what is used');
is(sql("SELECT mirrors, threads > 0, reason IS NULL FROM vecgpu_devices() WHERE device = 'host'"), '1|t|t', '... by one mirror');
is(ve_evict($node, 'items_v'), $bytes, 'vecgpu_evict returns them');
# The thread of the last search may hold the mirror a moment longer than its answer took.
ve_is(sub { ve_device_memory($node) }, '0', '... and they are free');
is(look('SELECT count(*) FROM vecgpu_mirrors()'), '0', '... and the mirror is gone');
is(look("SELECT vecgpu_evict('items_v')"), '0', 'nothing to evict twice');
like(ve_prewarm($node, 'items_v'), qr/^host\|\d{6,}\|$bytes\|[\d.]+$/, 'vecgpu_prewarm loads');
is(ve_prewarm($node, 'items_v', 'device, bytes_sent, bytes IS NULL'), 'host|0|t', '... and has nothing to do then');
ve_is(sub { look("SELECT m.index::regclass, m.epoch > 0, m.idle >= '0' FROM vecgpu_mirrors() m") }, 'items_v|t|t', 'vecgpu_mirrors() after prewarm');
{
    # Exact or graph: measured once, whatever comes and goes (law 10).
    my $forms = 'SELECT device_form, exact_us, graph_us, (SELECT exact_from FROM vecgpu_mirrors()) FROM vecgpu_info(\'items_v\')';
    my $measured;
    ve_like(sub { $measured = look($forms) }, qr/^(exact|graph)\|\{([\d.e+]+,){3}[\d.e+]+\}\|\{([\d.e+]+,){3}[\d.e+]+\}\|\d*$/, 'vecgpu_info tells the form and what was measured');
    my $answer = sql("SET vecgpu.fallback = off; SELECT array_agg(id) FROM (SELECT id FROM items ORDER BY v <-> uvec(-1, 16) LIMIT 20) s");
    for my $round (1 .. 3)
    {
        ve_evict($node, 'items_v');
        is(look("SELECT device_form IS NULL AND exact_us IS NULL AND graph_us IS NULL FROM vecgpu_info('items_v')"), 't', "evicted $round: no form");
        ve_prewarm($node, 'items_v');
        ve_is(sub { look($forms) }, $measured, '... and the same one after prewarm');
        is(sql("SET vecgpu.fallback = off; SELECT array_agg(id) FROM (SELECT id FROM items ORDER BY v <-> uvec(-1, 16) LIMIT 20) s"), $answer, '... with the same rows');
    }
}
is(ve_prewarm($node, 'small_v', 'bytes_sent'), '0', 'vecgpu_prewarm of an index that is all delta');
SKIP:
{
    skip 'a GPU module is installed', 1 if ve_gpu_module($node);
    like(sql("SELECT reason FROM vecgpu_devices() WHERE device = 'gpu'"), qr/\w/, 'vecgpu_devices() says why there is no GPU');
}
is(vg_psql_error($node, "SELECT vecgpu_prewarm('items_pkey')"), '42809 "items_pkey" is not a vecgpu index', 'vecgpu_prewarm of a B-tree');

# ---- counters ----
{
    my $width = ve_counter($node, 'items_v', 'batches');
    ve_by_device($node, 'items_v', 20, 'pg_stat_vecgpu counts the queries', sub { sql("SELECT walk('items', 10, 'probes')") });
    cmp_ok(ve_counter($node, 'items_v', 'batches') - $width, '>=', 1, '... and the batches');
    cmp_ok(sql("SELECT overlap('items')"), '>=', 0.85, 'the graph finds what is near');
    my $cold = sub { return ve_fallbacks($node, 'items_v', 'cold') + ve_fallbacks($node, 'items_v', 'loading') };
    my $before = $cold->();
    ok(ve_until(60, sub { ve_evict($node, 'items_v'); look("SELECT near('items')"); return $cold->() > $before }), '... and what the device could not answer');
}
{
    # One line for each search that the device could not answer, if wanted.
    my ($offset, @lines);
    my $query = "SET enable_seqscan = off; SELECT id FROM items ORDER BY v <-> uvec(-1, 16) LIMIT 1";
    ve_until(60, sub {
        ve_evict($node, 'items_v');
        $offset = -s $node->logfile;
        look("SET vecgpu.log_fallbacks = on; $query");
        return @lines = ve_log_lines($node, 'searching index "items_v" without the device: cold', $offset);
    });
    is(scalar(@lines), 1, 'vecgpu.log_fallbacks');
    $offset = -s $node->logfile;
    ve_on_device($node, 'items', 'evicted');
    is(scalar(ve_log_lines($node, 'without the device', $offset)), 0, '... off by default');
}

# ---- who may ----
{
    sql('CREATE ROLE reader; GRANT SELECT ON items, few TO reader; SET ROLE reader; SET vecgpu.fallback = off;' . $near);
    ve_by_device($node, 'items_v', 1, '... on the device', sub {
            is(sql("SET ROLE reader; SELECT near('items') IS NOT DISTINCT FROM exact('items')"), 't', 'a user without rights searches') });
    for my $call ("vecgpu_evict('items_v')", "vecgpu_prewarm('items_v')")
    {
        is(vg_psql_error($node, "SET ROLE reader; SELECT $call"), '42501 must be owner of index items_v', "... but may not $call");
    }
    is(sql('SET ROLE reader; SELECT count(*) FROM pg_stat_vecgpu'), sql('SELECT count(*) FROM pg_stat_vecgpu'), '... and sees the statistics');
    is(sql("SET ROLE reader; SELECT count(*) FROM vecgpu_devices() WHERE device = 'host'"), '1', '... and devices');
    like(vg_psql_error($node, "SET ROLE reader; $near; SET vecgpu.log_fallbacks = on"), qr/^42501/, '... and does not fill the log');
}

# ---- waiting for the device ----
{
    my $before = ve_counter($node, 'items_v', 'queries');
    cmp_ok(ve_evict($node, 'items_v'), '>', 0, 'evicted');
    is(sql("SET vecgpu.fallback = off; SELECT near('items') IS NOT DISTINCT FROM exact('items')"), 't', 'fallback = off waits for the mirror');
    cmp_ok(ve_counter($node, 'items_v', 'queries') - $before, '>=', 6, '... and the device answers');
    $node->restart;
    started('a restarted server has no engine yet');
    is(sql("SET vecgpu.fallback = off; SELECT near('items') IS NOT DISTINCT FROM exact('items')"), 't', 'fallback = off waits for the engine');
    $node->restart;
    like(ve_prewarm($node, 'items_v'), qr/^host\|\d{6,}\|$bytes\|/, 'vecgpu_prewarm waits for the engine');
}

# ---- a GPU that is not there ----
SKIP:
{
    skip 'a GPU module is installed', 4 if ve_gpu_module($node);
    my $offset = -s $node->logfile;
    for my $fallback ('off', 'on')
    {
        # Who is not connected in a quarter of a second goes on over the pages, and does not learn of it.
        ve_like(sub {
                my ($code, $out, $err) = $node->psql('postgres', "\\set VERBOSITY verbose\nSET vecgpu.device = gpu; SET vecgpu.fallback = $fallback; $near");
                return $err }, qr/ERROR:\s+55000: no GPU can be used\nDETAIL:\s+\w/, "device = gpu, fallback = $fallback: an error with the reason");
    }
    is(vg_psql_error($node, "SET vecgpu.device = gpu; SELECT vecgpu_prewarm('items_v')"), '55000 no GPU can be used', 'vecgpu_prewarm with device = gpu');
    is(sql("SELECT near('items') IS NOT DISTINCT FROM exact('items')"), 't', 'other sessions are not concerned');
}

# ---- a server of one process ----
$node->stop;
{
    my ($out, $err) = ('', '');
    my $query = "SET enable_seqscan = off; SELECT array_agg(id) = '{7}' AS right FROM (SELECT id FROM items ORDER BY v <-> uvec(7, 16) LIMIT 1) s;";
    IPC::Run::run([ $node->installed_command('postgres'), '--single', '-D', $data, 'postgres' ], '<', \"$query", '>', \$out, '2>', \$err);
    like($out, qr/right = "t"/, 'single-user mode answers from the pages') or diag($err);
    is(join(' ', ve_engines($node)), '', '... without an engine');
}
$node->start;

# ---- stop ----
ve_on_device($node, 'items', 'before the stop');
my ($first) = ve_engines($node);
$node->stop;
is(ve_leftovers($node, files => 1), '', 'a clean stop leaves no process and no file');
$node->start;
ve_on_device($node, 'items', 'started again');
$engine = ve_engine($node);
$node->stop('immediate');
ok(ve_no_engine($node), 'an immediate stop ends the engine');
is(ve_leftovers($node), '', '... and nobody listens any more');
$node->start;
ve_on_device($node, 'items', 'started after an immediate stop');
ve_same([$node], 'items', 'after an immediate stop');
ve_engine($node);
vg_kill_postmaster($node);
ok(ve_no_engine($node), 'the engine ends when the postmaster is killed');
is(ve_leftovers($node), '', '... and nobody listens any more');
vg_start($node);
ve_on_device($node, 'items', 'started after a crash');
is(scalar(ve_engines($node)), 1, 'one engine runs');

# ---- preload ----
$node->append_conf('postgresql.conf', "shared_preload_libraries = 'vecgpu'");
$node->restart;
$engine = ve_engine($node);
ok($engine, 'preloaded: the engine is there before the first query');
like(ve_supervisor($node), qr/^\d+$/, '... and its supervisor');
{
    my ($postmaster) = slurp_file("$data/postmaster.pid") =~ /^(\d+)/;
    # Each connection anew: a session has no memory of what its predecessor knew.
    my @got = map { sql("SELECT id FROM items ORDER BY v <-> uvec($_, 16) LIMIT 1") } 1 .. 20;
    is("@got", join(' ', 1 .. 20), '... 20 new connections get right answers');
    ve_on_device($node, 'items', 'preloaded');
    my @ours = grep { /memfd:vecgpu|vecgpu_cuda|nvidia/ } (map { readlink($_) // '' } glob("/proc/$postmaster/fd/*")), split /\n/,
      slurp_file("/proc/$postmaster/maps");
    is("@ours", '', '... and the postmaster has nothing of the engine');
}
# A crash of the server takes both along, and both come back by themselves.
$engine = ve_engine($node);
my $old = ve_supervisor($node);
vg_kill_backend($node, $old);
ok(ve_until(60, sub { my @now = ve_engines($node); return @now == 1 && $now[0] != $engine && ve_socket($node) }), 'preloaded: after a crash there is an engine before the first query');
isnt(ve_supervisor($node), $old, '... and a supervisor');
ve_same([$node], 'items', 'preloaded, after a crash');
# Somebody wants an end of it: the next query brings another one all the same.
$engine = ve_engine($node);
$old = ve_stop_supervisor($node);
ok(ve_no_engine($node) || !grep { $_ eq $engine } ve_engines($node), 'a supervisor that is terminated takes its engine along');
ve_on_device($node, 'items', 'supervisor terminated');
isnt(ve_supervisor($node), $old, '... there is another supervisor');
$node->append_conf('postgresql.conf', 'vecgpu.device = cpu');
$node->restart;
ok(ve_until(60, sub { return ve_supervisor($node) eq '' }), 'preloaded with device = cpu: no supervisor');
is(join(' ', ve_engines($node)), '', '... and no engine');
is(sql("SELECT near('items') IS NOT DISTINCT FROM exact('items')"), 't', '... searches run on the pages');
is(sql("SET vecgpu.device = host; SELECT count(*) FROM vecgpu_devices() WHERE device = 'host'"), '1', '... a session may start one all the same');
$node->append_conf('postgresql.conf', "vecgpu.device = host\nshared_preload_libraries = ''");

# ---- no room for workers ----
for my $workers (0, 1)
{
    $node->append_conf('postgresql.conf', "max_worker_processes = $workers\nmax_logical_replication_workers = 0");
    $node->restart;
    my $offset = -s $node->logfile;
    my $session = vg_open($node);
    ve_same([ $node, $session ], 'items', "max_worker_processes = $workers, query $_") for 1, 2;
    if ($workers == 0)
    {
        started('max_worker_processes = 0: no engine');
        cmp_ok(ve_fallbacks($node, 'items_v', 'no_engine'), '>=', 1, '... counted as no_engine');
    }
    else
    {
        # The supervisor has the only slot: nobody loads in the background, but whoever asks for it does.
        ve_engine($node);
        ve_same([ $node, $session ], 'items', "max_worker_processes = 1, cold mirror");
        like(ve_prewarm($node, 'items_v'), qr/^host\|\d{6,}\|$bytes\|/, 'vecgpu_prewarm without a worker');
        ve_on_device($node, 'items', 'max_worker_processes = 1');
        cmp_ok(ve_evict($node, 'items_v'), '>', 0, 'evicted');
        is(sql("SET vecgpu.fallback = off; SELECT near('items') IS NOT DISTINCT FROM exact('items')"), 't', 'fallback = off loads without a worker');
    }
    vg_close($session);
    vg_log_clean($node, "max_worker_processes = $workers", offset => $offset);
}
$node->append_conf('postgresql.conf', 'max_worker_processes = 8');
$node->restart;

# ---- an engine that cannot get memory or descriptors ----
{
    ve_on_device($node, 'items', 'before the limits');
    my $session = vg_open($node);
    $supervisor = ve_supervisor($node);
    my $limit = sub { is(system('prlimit', '--pid', $supervisor, @_), 0, "prlimit @_") };
    my ($usual) = slurp_file("/proc/$supervisor/limits") =~ /^Max address space\s+(\S+)/m;
    # What the supervisor may have, its next engine may have. 40 MB are not enough for the slots.
    $limit->('--as=40000000:');
    $engine = ve_engine($node);
    kill('KILL', $engine);
    ve_same([ $node, $session ], 'items', "an engine without memory, query $_") for 1 .. 3;
    sleep(0.5);
    ve_same([ $node, $session ], 'items', 'an engine without memory, later');
    $limit->("--as=$usual:");
    ve_new_engine($node, $engine);
    ve_on_device($node, 'items', 'memory again');
    $engine = ve_engine($node);
    is(system('prlimit', '--pid', $engine, '--nofile=12:'), 0, 'the engine may have 12 descriptors');
    my $offset = -s $node->logfile;
    ve_finish('more sessions than descriptors',
        vg_pgbench($node, { near => "SELECT " . vg_must("near('items', 3) = exact('items', 3)") . ';' }, clients => 16, transactions => 4));
    cmp_ok(scalar(ve_log_lines($node, '.', $offset)), '<', 200, 'the log is not flooded');
    ve_lives($node, $engine, 'the engine lives');
    ve_same([ $node, $session ], 'items', 'descriptors to spare');
    ve_on_device($node, 'items', 'descriptors to spare');
    vg_close($session);
}

# ---- what lies where the socket should be ----
my $socket = "$data/pg_stat_tmp/vecgpu.sock";
my %obstacles = (
    'a file that is no socket' => sub { append_to_file($socket, 'x'); 1 },
    'a dangling link' => sub { symlink("$data/nowhere", $socket) },
    'a directory' => sub { mkdir($socket) && mkdir("$socket/full") },
    'no folder' => sub { rename("$data/pg_stat_tmp", "$data/elsewhere") });
for my $what (sort keys %obstacles)
{
    $node->stop;
    $obstacles{$what}->() or die "$what: $!";
    my $offset = -s $node->logfile;
    $node->start;
    ve_same([$node], 'items', "in place of the socket: $what, query $_") for 1 .. 3;
    if ($what =~ /director|folder/)
    {
        sleep(1);
        cmp_ok(scalar(ve_log_lines($node, '.', $offset)), '<', 60, "$what: the log is not flooded");
        ve_same([$node], 'items', "$what, later");
        $node->stop;
        rmdir("$socket/full");
        rmdir($socket);
        rename("$data/elsewhere", "$data/pg_stat_tmp");
        $node->start;
    }
    else
    {
        ve_on_device($node, 'items', "in place of the socket: $what");
    }
}
ve_on_device($node, 'items', 'at the end');

vg_check($node, 'at the end');
vg_log_clean($node, 'the whole run', allow => '55000|could not listen|could not create the slot area|could not map the slot area|the engine failed|42809|42501|57P01|57P03|"vecgpu supervisor" \(PID \d+\) was terminated by signal 9');
$node->stop;
is(ve_leftovers($node, files => 1), '', 'nothing is left at the end');
done_testing();
