# Physical replication: a standby answers as its primary does after every kind of change, its readers survive the replay of
# flush, vacuum and rebuild, it can be promoted; base backups, point-in-time recovery and pg_rewind give a sound index.
# wal_consistency_checking makes the standby compare every page that it replays with the primary's.
use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/../perl";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use VecgpuTest;

my $primary = vg_node(
    'primary',
    streaming => 1,
    archiving => 1,
    conf      => "wal_consistency_checking = 'generic'\nwal_log_hints = on\nwal_keep_size = 256MB\nhot_standby_feedback = off\n"
      . "max_standby_streaming_delay = 200ms\nmax_standby_archive_delay = 200ms\n");
$primary->backup('first');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'first', has_streaming => 1);
$standby->start;

sub sql { return $primary->safe_psql('postgres', $_[0]) }

# Everything that was done is replayed. A flush or vacuum commits no transaction of its own that would push its last WAL out,
# so one does that here.
sub caught_up
{
    my ($source, $target) = @_;
    $source //= $primary;
    $target //= $standby;
    $source->safe_psql('postgres', "SELECT pg_logical_emit_message(true, 'vecgpu', 'here')");
    $source->wait_for_catchup($target);
    return;
}

# What a search with this ef finds, and what the index holds, is the same on both. On a device that takes mirrors of the same state: how far one lags is
# a matter of time.
sub same_on_both
{
    my ($table, $what) = @_;
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    caught_up();
    if ($ENV{VECGPU_TEST_DEVICE})
    {
        vg_sql($_, "SELECT vecgpu_prewarm('${table}_v')") for $primary, $standby;
    }
    for my $ef (10, 40)
    {
        is(vg_answer($standby, $table, $ef), vg_answer($primary, $table, $ef), "$what: same answers of $table at ef $ef");
    }
    is(vg_walk($standby, $table, 'null'), vg_walk($primary, $table, 'table'), "$what: the standby's index of $table holds every row");
    # All but what either server's engine measured.
    my $info = "SELECT to_jsonb(i) - '{device_form,exact_us,graph_us}'::text[] FROM vecgpu_info('${table}_v') i";
    is($standby->safe_psql('postgres', $info), sql($info), "$what: same counters of $table");
    return;
}

# ---- ten rounds of delete, vacuum, insert, flush ----
vg_fill($primary, 'items', 5000);
vg_fill($primary, 'small', 1000, with => "storage = 'int8'");
vg_fill($primary, 'wide', 40, dimensions => 2500);    # rows on overflow pages
sql('CREATE UNLOGGED TABLE volatile (id int PRIMARY KEY, v real[]); CREATE INDEX volatile_v ON volatile USING vecgpu (v);'
      . vg_rows('volatile', 1, 100));
same_on_both('items', 'after the build');
for my $round (1 .. 10)
{
    my $first = 10000 + 1000 * $round;
    # Every third round more than a fifth is dead, so that vacuum rebuilds.
    my $share = $round % 3 ? 12 : 3;
    for my $table ('items', 'small')
    {
        sql("DELETE FROM $table WHERE id % $share = $round % $share");
        sql("VACUUM $table") if $round % 4;
        sql(vg_rows($table, $first, $first + 499));
        sql("UPDATE $table SET v = uvec(id + 7, 16) WHERE id % 40 = $round");
        sql("SELECT vecgpu_flush('${table}_v')") if $round % 2;
    }
    sql(vg_rows('wide', $first, $first + 5, 2500) . "; DELETE FROM wide WHERE id % 12 = $round; SELECT vecgpu_flush('wide_v')");
    sql('VACUUM wide') if $round % 3 == 0;
    same_on_both('items', "round $round");
    same_on_both('small', "round $round");
    is(vg_walk($standby, 'wide', 'null'), vg_walk($primary, 'wide', 'table'), "round $round: wide rows");
    vg_check($_, "round $round") for $primary, $standby;
}
vg_same_as_exact($_, 'items', 'after ten rounds') for $primary, $standby;
vg_same_as_exact($_, 'small', 'after ten rounds') for $primary, $standby;

# ---- DDL on the primary ----
sql('REINDEX INDEX CONCURRENTLY items_v');
same_on_both('items', 'REINDEX CONCURRENTLY');
sql('CREATE TABLE empty (id int PRIMARY KEY, v real[]); CREATE INDEX empty_v ON empty USING vecgpu (v)');
caught_up();
is(vg_walk($standby, 'empty', 'null'), '0 rows, 0 distinct, ', 'an empty index on the standby');
sql('BEGIN; TRUNCATE small; ' . vg_rows('small', 1, 1500) . '; COMMIT');
same_on_both('small', 'TRUNCATE and rows in one transaction');

# ---- a restart of the standby in the middle, and one that dies ----
sql(vg_rows('items', 30000, 31999));
$standby->restart;
sql("SELECT vecgpu_flush('items_v')");
same_on_both('items', 'standby restarted');
$standby->stop('immediate');
sql('DELETE FROM items WHERE id % 4 = 1');
sql('VACUUM items');
$standby->start;
same_on_both('items', 'standby crashed');

# ---- functions that write are refused, others work ----
is(vg_psql_error($standby, "SELECT vecgpu_flush('items_v')"), '25006 cannot execute vecgpu_flush() during recovery',
    'vecgpu_flush on a standby');
cmp_ok($standby->safe_psql('postgres', "SELECT vecgpu_recall('items_v')"), '>=', 0.9, 'vecgpu_recall on a standby');
like(vg_psql_error($standby, "SET enable_seqscan = off; SELECT id FROM volatile ORDER BY v <-> uvec(1, 16) LIMIT 1"),
    qr/^0A000 cannot access temporary or unlogged relations during recovery/, 'an unlogged index on a standby');

# ---- readers of the standby under replay ----
# Rows 1 .. 500 never change. A reader may lose to replay (40001; now and then with its connection, when the signal arrives
# between two statements), but never sees a wrong answer. Each round has new readers.
sql('TRUNCATE items; ' . vg_rows('items', 1, 4000));
caught_up();
{
    my $readers = {
        'near@3' => 'SELECT ' . vg_must('count(*) = 10 AND count(DISTINCT id) = 10')
          . q{ FROM (SELECT id FROM items ORDER BY v <-> (SELECT uvec((random() * 100000)::int, 16)) LIMIT 10) s;},
        'self@3' => qq{\\set r random(1, 500)\nSELECT } . vg_must('min(id) = :r AND count(*) = 1')
          . q{ FROM (SELECT id FROM items ORDER BY v <-> (SELECT uvec(:r, 16)) LIMIT 1) s;},
        'walk@2' => 'SELECT ' . vg_must('count(*) = count(DISTINCT id) AND count(*) FILTER (WHERE id <= 500) = 500')
          . q{ FROM (SELECT id FROM items ORDER BY v <-> (SELECT NULL::real[]) OFFSET 0) s;},
        'slow@1' => 'SELECT ' . vg_must('count(*) = count(DISTINCT id) AND count(*) FILTER (WHERE id <= 500) = 500')
          . q{ FROM (SELECT id, CASE WHEN random() < 0.01 THEN pg_sleep(0.01) END FROM items
                     ORDER BY v <-> (SELECT NULL::real[]) OFFSET 0) s;},
        'check@1' => q{SELECT vecgpu_check('items_v');} };
    my ($done, @errors) = (0);
    for my $round (0 .. 7)
    {
        my $load = vg_pgbench(
            $standby, $readers,
            clients      => 4,
            transactions => 40,
            args         => ['--max-tries=1000'],
            settings     => [ 'enable_seqscan=off', 'enable_sort=off', 'enable_bitmapscan=off', 'vecgpu.ef_search=10000' ]);
        for my $part (1 .. 3)
        {
            my $first = 50000 + 3000 * $round + 1000 * $part;
            sql(vg_rows('items', $first, $first + 799) . "; SELECT vecgpu_flush('items_v')");
            sql("DELETE FROM items WHERE id > 500 AND id % 3 = $part % 3");
            sql('VACUUM items');
        }
        my ($code, $out, $err) = vg_finish($load);
        $done += $1 if $out =~ /actually processed: (\d+)/;
        push @errors, grep { /ERROR|FATAL|aborted|error:/ }
          grep { !/conflict with recovery|server closed the connection|perhaps the backend died|aborted while receiving the transaction status|Run was aborted/ }
          vg_excused($err);
    }
    is("@errors", '', 'readers under replay see only right answers');
    cmp_ok($done, '>', 8 * 40, "... $done of them");
    same_on_both('items', 'after the readers');
}
# A cursor stays open on the standby while the primary replaces what it has still to read: by deletes and vacuum, which conflict
# with its snapshot; or by inserts and rebuilds only, where the pages of old graphs come into use again without a conflict in
# the heap. It returns each row of its snapshot once, or ends with a recovery conflict.
sub cursor_under_replay
{
    my ($table, $what, @changes) = @_;
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    caught_up();
    my $session = vg_open($standby);
    my ($rows) = vg_ask(
        $session, "BEGIN ISOLATION LEVEL REPEATABLE READ; SET enable_seqscan = off; SET enable_sort = off; SET vecgpu.ef_search = 10;
        SELECT count(*) FROM $table");
    my ($first, $error) = vg_ask(
        $session, "DECLARE walk CURSOR FOR SELECT id FROM $table ORDER BY v <-> (SELECT NULL::real[]);
        DECLARE near CURSOR FOR SELECT id FROM $table ORDER BY v <-> (SELECT v FROM probes WHERE id = 3);
        FETCH 5 FROM walk; MOVE 5 FROM near");
    is($error, '', "$what: cursors open");
    sql($_) for @changes;
    caught_up();
    my ($walk, $walk_error) = vg_ask($session, 'FETCH ALL FROM walk');
    my ($near, $near_error) = vg_ask($session, 'FETCH ALL FROM near');
    vg_close($session);
    my @ids = grep { /^\d+$/ } split /\n/, "$first\n$walk";
    my %seen = map { $_ => 1 } @ids;
    is(scalar(@ids), scalar(keys %seen), "$what: no row twice");
    my $conflict = qr/(ERROR|FATAL):\s+40001: .*conflict with recovery/;
    ok($walk_error eq '' ? @ids == $rows : $walk_error =~ $conflict, "$what: all $rows rows, or a conflict")
      or diag(scalar(@ids) . " rows, $walk_error");
    ok($near_error eq '' || $walk_error ne '' || $near_error =~ $conflict, "$what: a walk through the graph goes on, or a conflict")
      or diag($near_error);
    note("$what: $walk_error; $near_error");
    same_on_both($table, $what);
    return;
}
cursor_under_replay('items', 'cursor under deletes',
    map { ("DELETE FROM items WHERE id > 500 AND id % 3 = $_ % 3", 'VACUUM items',
            vg_rows('items', 300000 + 1000 * $_, 300799 + 1000 * $_), "SELECT vecgpu_flush('items_v')") } 1 .. 3);
sql('CREATE TABLE grow (id int PRIMARY KEY, v real[]); CREATE INDEX grow_v ON grow USING vecgpu (v);' . vg_rows('grow', 1, 2500)
      . "; SELECT vecgpu_flush('grow_v')");
cursor_under_replay('grow', 'cursor under rebuilds',
    map { (vg_rows('grow', $_->[0], $_->[1]), "SELECT vecgpu_flush('grow_v')") } [ 3001, 4500 ], [ 5001, 7500 ], [ 8001, 12000 ], [ 12001, 12500 ]);

# ---- point in time: between two inserts ----
sql('DROP TABLE volatile');
$primary->backup('later');
sql(vg_rows('items', 400001, 400100) . "; SELECT vecgpu_flush('items_v')");
sql(vg_rows('items', 400101, 400150));
my $at_point = sql('SELECT count(*) FROM items');
sql("SELECT pg_create_restore_point('between')");
sql(vg_rows('items', 400151, 400300) . "; SELECT vecgpu_flush('items_v'); DELETE FROM items WHERE id BETWEEN 400001 AND 400120");
sql('VACUUM items');
# What is to be restored has to be in the archive.
my $archived = sql('SELECT pg_walfile_name(pg_current_wal_lsn())');
sql('SELECT pg_switch_wal()');
$primary->poll_query_until('postgres', "SELECT '$archived' <= last_archived_wal FROM pg_stat_archiver") or die 'nothing is archived';
{
    my $restored = PostgreSQL::Test::Cluster->new('restored');
    $restored->init_from_backup($primary, 'later', has_restoring => 1, standby => 0);
    $restored->append_conf('postgresql.conf', "recovery_target_name = 'between'\nrecovery_target_action = 'promote'\narchive_mode = off\n");
    $restored->start;
    $restored->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()') or die 'recovery does not end';
    is($restored->safe_psql('postgres', 'SELECT count(*), max(id) FROM items'), "$at_point|400150", 'point in time: the rows of then');
    vg_same_as_exact($restored, 'items', 'point in time');
    $restored->safe_psql('postgres', vg_rows('items', 500001, 500500) . "; SELECT vecgpu_flush('items_v')");
    $restored->safe_psql('postgres', 'DELETE FROM items WHERE id % 2 = 0');
    $restored->safe_psql('postgres', 'VACUUM items');
    vg_same_as_exact($restored, 'items', 'point in time, then changes');
    # Nothing of ours lies outside of relation files.
    my @strange = grep { !m{/(\d+(_fsm|_vm|_init)?(\.\d+)?|PG_VERSION|pg_filenode\.map|pg_internal\.init)$} }
      glob($restored->data_dir . '/base/*/*');
    is("@strange", '', 'the data directory holds only relation files');
    $restored->stop;
}

# ---- promotion, and the old primary rewound ----
sql('CREATE UNLOGGED TABLE volatile (id int PRIMARY KEY, v real[]); CREATE INDEX volatile_v ON volatile USING vecgpu (v);'
      . vg_rows('volatile', 1, 100));
same_on_both('items', 'before the promotion');
my $answers = vg_answer($primary, 'items', 40);
$standby->promote;
vg_sql($standby, "SELECT vecgpu_prewarm('items_v')") if $ENV{VECGPU_TEST_DEVICE};
is(vg_answer($standby, 'items', 40), $answers, 'promoted: same answers');
vg_same_as_exact($standby, 'volatile', 'promoted: unlogged table, empty');
$standby->safe_psql('postgres', vg_rows('volatile', 1, 3));
is((split / /, vg_walk($standby, 'volatile', 'null'))[0], '3', 'promoted: the unlogged index takes rows');
$standby->safe_psql('postgres', vg_rows('items', 600001, 600500) . "; SELECT vecgpu_flush('items_v')");
$standby->safe_psql('postgres', 'DELETE FROM items WHERE id % 3 = 0');
$standby->safe_psql('postgres', 'VACUUM items');
vg_same_as_exact($standby, 'items', 'promoted and changed');

# The old primary has gone on by itself, and is brought back as a standby.
sql(vg_rows('items', 700001, 701000) . "; SELECT vecgpu_flush('items_v'); DELETE FROM items WHERE id % 5 = 0");
sql('VACUUM items');
vg_same_as_exact($primary, 'items', 'the old primary');
$primary->stop;
$standby->safe_psql('postgres', 'CHECKPOINT');
$primary->command_ok(
    [ 'pg_rewind', '--source-server', $standby->connstr('postgres'), '--target-pgdata', $primary->data_dir, '--no-sync' ],
    'pg_rewind of the old primary');
$primary->append_conf('postgresql.conf', 'port = ' . $primary->port . "\narchive_mode = off\nprimary_conninfo = '"
      . $standby->connstr . " application_name=primary'");
$primary->set_standby_mode;
$primary->start;
$standby->safe_psql('postgres', vg_rows('items', 800001, 800100) . "; SELECT vecgpu_flush('items_v')");
caught_up($standby, $primary);
if ($ENV{VECGPU_TEST_DEVICE})
{
    vg_sql($_, "SELECT vecgpu_prewarm('items_v')") for $primary, $standby;
}
is(vg_answer($primary, 'items', 40), vg_answer($standby, 'items', 40), 'rewound: same answers');
vg_same_as_exact($primary, 'items', 'rewound');

# ---- base backups in tar form ----
{
    my $folder = $standby->backup_dir . '/tar';
    mkdir($standby->backup_dir);
    $standby->command_ok([ 'pg_basebackup', '-D', $folder, '-Ft', '-X', 'fetch', '-c', 'fast', '--no-sync', '-h', $standby->host,
            '-p', $standby->port ], 'pg_basebackup into a tar file');
    my $plain = $standby->backup_dir . '/plain';
    mkdir($plain, 0700);
    is(system('tar', '-xf', "$folder/base.tar", '-C', $plain), 0, 'the tar file opens');
    my $copy = PostgreSQL::Test::Cluster->new('copy');
    $copy->init_from_backup($standby, 'plain');
    $copy->start;
    vg_same_as_exact($copy, 'items', 'base backup from a tar file');
    $copy->stop;
}

my $expected = 'conflict with recovery|25006|0A000|terminating walreceiver|terminating connection|could not (send|receive|connect)'
  . '|pg_rewind|standby_mode|requested WAL segment|recovery conflict|has already been removed|connection to server';
for my $node ($primary, $standby)
{
    vg_check($node, 'at the end');
    vg_log_clean($node, 'the whole run', allow => $expected);
}

# ---- a fault that is none of replay's ----
# vecgpu_check on a standby (by now the primary of the beginning) looks again when replay has moved on; what is still there then is
# reported.
caught_up($standby, $primary);
my $file = $primary->data_dir . '/' . $primary->safe_psql('postgres', "SELECT pg_relation_filepath('items_v')");
$primary->stop;
{
    open(my $pages, '+<:raw', $file) or die "$file: $!";
    my ($page, $damaged) = ('', 0);
    for (my $block = 0; read($pages, $page, 8192) == 8192; $block++)
    {
        next if unpack('S', substr($page, 8184, 2)) != 0x5605;    # the journal
        seek($pages, $block * 8192 + 8184, 0);
        print $pages "\0\0";
        seek($pages, ($block + 1) * 8192, 0);
        $damaged++;
    }
    close($pages);
    cmp_ok($damaged, '>', 0, 'pages of the journal are damaged');
}
$primary->start;
# XX001: by a checksum, where there are some.
like(vg_psql_error($primary, "SELECT vecgpu_check('items_v')"), qr/^XX00[12] /, 'vecgpu_check on a standby reports damage');
$_->stop for $primary, $standby;
done_testing();
