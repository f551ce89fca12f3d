# A standby has an engine of its own: right answers while it replays, after its promotion, after a rewind; and what copies a data directory takes
# nothing of the engine along.
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

my $primary = ve_node('primary', streaming => 1,
    conf => "wal_log_hints = on\nwal_keep_size = 256MB\nhot_standby_feedback = on\nmax_standby_streaming_delay = 2s\nmax_worker_processes = 8\n");
sub sql { return $primary->safe_psql('postgres', $_[0]) }

vg_fill($primary, 'items', 4000);
ve_on_device($primary, 'items', 'primary');

# ---- a base backup of a server whose engine runs ----
{
    my $folder = $primary->backup_dir . '/first';
    mkdir($primary->backup_dir);
    my ($out, $err) = ('', '');
    my $done = IPC::Run::run([ $primary->installed_command('pg_basebackup'), '-D', $folder, '-c', 'fast', '--no-sync', '-h', $primary->host, '-p', $primary->port ],
        '>', \$out, '2>', \$err);
    ok($done, 'pg_basebackup');
    is($err, '', '... without a warning');
    is(join(' ', glob("$folder/pg_stat_tmp/*")), '', '... takes no file of the engine');
    my ($socket) = grep { -S $_ } split /\n/, `find '$folder'`;
    is($socket, undef, '... and no socket');
    $done = IPC::Run::run([ $primary->installed_command('pg_basebackup'), '-D', "$folder.tar", '-Ft', '-X', 'fetch', '-c', 'fast', '--no-sync', '-h', $primary->host, '-p', $primary->port ],
        '>', \$out, '2>', \$err);
    ok($done && $err eq '', 'pg_basebackup into a tar file, without a warning') or diag($err);
    is(join('', grep { /vecgpu/ } `tar -tf '$folder.tar/base.tar'`), '', '... that has no file of the engine');
    my $files = sql(q{SELECT count(*) FROM pg_ls_dir('pg_stat_tmp') f WHERE f LIKE 'vecgpu%'});
    cmp_ok($files, '>=', 1, "... though there are $files");
}

my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'first', has_streaming => 1);
$standby->start;

sub caught_up
{
    my ($source, $target) = @_;
    $source //= $primary;
    $target //= $standby;
    $source->safe_psql('postgres', "SELECT pg_logical_emit_message(true, 'vecgpu', 'here')");
    $source->wait_for_catchup($target);
    return;
}

# ---- its own engine ----
is(join(' ', ve_engines($standby)), '', 'the standby has no engine before the first query');
ve_same([$standby], 'items', 'standby');
ve_on_device($standby, 'items', 'standby');
isnt(ve_engine($standby), ve_engine($primary), 'two servers, two engines');
like(ve_supervisor($standby), qr/^\d+$/, 'the standby has a supervisor');
ve_is(sub { vg_sql($standby, ve_connected() . 'SELECT state, nodes FROM vecgpu_mirrors()') }, 'ready|4000', 'vecgpu_mirrors() on the standby');
is($standby->safe_psql('postgres', q{SELECT mirrors FROM vecgpu_devices() WHERE device = 'host'}), '1', 'vecgpu_devices() on the standby');
my $bytes = ve_device_memory($standby);
is(ve_evict($standby, 'items_v'), $bytes, 'vecgpu_evict on the standby');
like(ve_prewarm($standby, 'items_v'), qr/^host\|\d+\|$bytes\|/, 'vecgpu_prewarm on the standby');
my $counted = ve_counter($primary, 'items_v', 'queries');
ve_on_device($standby, 'items', 'standby, loaded anew');
is(ve_counter($primary, 'items_v', 'queries'), $counted, 'each counts for itself');

# ---- step by step ----
my $session = vg_open($standby);
my $flush = "SELECT vecgpu_flush('items_v')";
my @steps = (
    [ 'rows', vg_rows('items', 10001, 10500) ], [ 'flush', $flush ], [ 'rows and flush', vg_rows('items', 11001, 14000), $flush ],
    [ 'delete', 'DELETE FROM items WHERE id % 11 = 0' ], [ 'vacuum', 'VACUUM items' ], [ 'update', 'UPDATE items SET v = uvec(id + 99, 16) WHERE id % 30 = 1', $flush ],
    [ 'rebuild', 'DELETE FROM items WHERE id % 3 = 0', 'VACUUM items' ], [ 'REINDEX', 'REINDEX INDEX items_v' ],
    [ 'REINDEX CONCURRENTLY', 'REINDEX INDEX CONCURRENTLY items_v' ], [ 'TRUNCATE', 'BEGIN; TRUNCATE items; ' . vg_rows('items', 1, 3000) . '; COMMIT', $flush ],
    [ 'VACUUM FULL', 'DELETE FROM items WHERE id % 4 = 0', 'VACUUM FULL items' ], [ 'another index', 'DROP INDEX items_v; CREATE INDEX items_v ON items USING vecgpu (v)' ]);
for my $step (@steps)
{
    my ($what, @statements) = @$step;
    sql($_) for @statements;
    caught_up();
    ve_same([ $standby, $session ], 'items', "$what, replayed");
    ve_on_device($standby, 'items', "$what, replayed");
    ve_same([ $standby, $session ], 'items', "$what, on the device");
    ve_caught_up($standby, 'items', $what);
}
ok(ve_until(60, sub { return $standby->safe_psql('postgres', q{SELECT mirrors FROM vecgpu_devices() WHERE device = 'host'}) eq '1' }),
    'the standby keeps no mirror of what is gone');

# ---- readers of the standby, while it replays and its engine dies ----
{
    my $must = vg_must('min(id) = :r AND count(*) = 1');
    my $load = vg_pgbench($standby, { self => "\\set r random(0, 700) * 4 + 1\nSET vecgpu.ef_search = 10000; SELECT $must FROM (SELECT id FROM items ORDER BY v <-> (SELECT uvec(:r, 16)) LIMIT 1) s;" },
        clients => 4, seconds => 6, args => ['--max-tries=100'], settings => [ 'enable_seqscan=off', 'enable_sort=off', 'enable_bitmapscan=off' ]);
    for my $round (1 .. 6)
    {
        sql(vg_rows('items', 20000 + 1000 * $round, 20500 + 1000 * $round) . "; $flush");
        sql("DELETE FROM items WHERE id > 20000 AND id % 3 = $round % 3");
        sql('VACUUM items');
        kill('KILL', ve_engine($standby)) if $round % 2;
        sleep(0.4);
    }
    my ($code, $out, $err) = vg_finish($load);
    my @bad = grep { /ERROR|FATAL|error:/ && !/conflict with recovery|Run was aborted|aborted in command/ } split /\n/, $err;
    is("@bad", '', 'readers of the standby see only right answers');
    caught_up();
    ve_same([ $standby, $session, $primary ], 'items', 'after the readers');
    ve_on_device($standby, 'items', 'after the readers');
}

# ---- restart, crash ----
$standby->append_conf('postgresql.conf', "shared_preload_libraries = 'vecgpu'");
$standby->restart;
ok(ve_engine($standby), 'standby restarted with preload: the engine is there before the first query');
ve_same([$standby], 'items', 'standby restarted');
ve_on_device($standby, 'items', 'standby restarted');
$standby->stop('immediate');
sql(vg_rows('items', 30001, 30300) . "; $flush");
$standby->start;
caught_up();
ve_same([$standby], 'items', 'standby crashed');
ve_on_device($standby, 'items', 'standby crashed');
vg_close($session);

# ---- promotion ----
sql('CREATE UNLOGGED TABLE volatile (id int PRIMARY KEY, v real[]); CREATE INDEX volatile_v ON volatile USING vecgpu (v);' . vg_rows('volatile', 1, 2000) . "; SELECT vecgpu_flush('volatile_v')");
ve_on_device($primary, 'volatile', 'unlogged table of the primary');
caught_up();
$session = vg_open($standby);
ve_same([$session], 'items', 'before the promotion');
my $engine = ve_engine($standby);
$standby->promote;
ve_same([ $standby, $session ], 'items', 'promoted');
ve_on_device($standby, 'items', 'promoted');
ve_lives($standby, $engine, 'the engine goes on over the promotion');
ve_same([ $standby, $session ], 'volatile', 'promoted: unlogged table');
$standby->safe_psql('postgres', $_) for vg_rows('volatile', 5001, 7000), "SELECT vecgpu_flush('volatile_v')", vg_rows('items', 40001, 40300), $flush,
  'DELETE FROM items WHERE id % 2 = 0', 'VACUUM items';
ve_same([ $standby, $session ], $_, 'promoted and changed') for 'items', 'volatile';
ve_on_device($standby, $_, 'promoted and changed') for 'items', 'volatile';
vg_close($session);

# ---- the old primary goes on by itself, is rewound and follows ----
sql($_) for vg_rows('items', 50001, 51000), $flush, 'DELETE FROM items WHERE id % 5 = 0', 'VACUUM items';
ve_on_device($primary, 'items', 'the old primary');
ve_same([$primary], 'items', 'the old primary');
$primary->stop;
$standby->safe_psql('postgres', 'CHECKPOINT');
$primary->command_ok([ 'pg_rewind', '--source-server', $standby->connstr('postgres'), '--target-pgdata', $primary->data_dir, '--no-sync' ], 'pg_rewind');
is(join(' ', glob($primary->data_dir . '/pg_stat_tmp/vecgpu*')), '', '... takes no file of the engine');
$primary->append_conf('postgresql.conf', 'port = ' . $primary->port . "\nprimary_conninfo = '" . $standby->connstr . " application_name=primary'");
$primary->set_standby_mode;
$primary->start;
$standby->safe_psql('postgres', vg_rows('items', 60001, 60100) . "; $flush");
caught_up($standby, $primary);
ve_same([ $primary, $standby ], 'items', 'rewound');
ve_on_device($primary, 'items', 'rewound');
is($primary->safe_psql('postgres', "SELECT near('items')"), $standby->safe_psql('postgres', "SELECT near('items')"), 'rewound: the same answers on both');

vg_same_as_exact($_, 'items', 'at the end') for $primary, $standby;
my $expected = 'conflict with recovery|terminating walreceiver|terminating connection|could not (send|receive|connect)|recovery conflict|connection to server|has already been removed|with signal 9';
for my $node ($primary, $standby)
{
    vg_check($node, 'at the end');
    vg_log_clean($node, 'the whole run', allow => $expected);
    $node->stop;
    is(ve_leftovers($node, files => 1), '', 'nothing is left of ' . $node->name);
}
done_testing();
