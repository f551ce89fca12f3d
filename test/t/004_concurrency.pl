# Writers, readers, vacuum and flushes at the same time: no error in any session or in the log, no row lost or doubled for any
# reader, and afterwards an index whose structure and recall are those of a new one.
use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/../perl";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use VecgpuTest;

my $node   = vg_node('busy', conf => "max_worker_processes = 8\nshared_buffers = 64MB\n");
my @forced = ('enable_seqscan=off', 'enable_sort=off', 'enable_bitmapscan=off');

sub sql { return vg_sql($node, $_[0]) }

# Background flushes that are still under way would blur what is compared next.
sub workers_gone
{
    $node->poll_query_until('postgres',
        "SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'vecgpu flush worker'")
      or die 'a flush worker does not end';
    return;
}

# All sessions end without an error.
sub all_end_well
{
    my ($what, @sessions) = @_;
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    my @errors;
    for my $session (@sessions)
    {
        my ($code, undef, $err) = vg_finish($session);
        my @bad = vg_excused($err);
        push @errors, "exit $code: $err" if ($code != 0 && !vg_held_up($err)) || grep { /ERROR|FATAL|PANIC|WARNING/ } @bad;
    }
    return is(join("\n", @errors), '', "$what: no session had an error");
}

# A table under test is as good as rebuilt: exact answers, structure, recall.
sub as_good_as_new
{
    my ($table, $ef, $what) = @_;
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    vg_same_as_exact($node, $table, $what);
    sql("SELECT vecgpu_flush('${table}_v')");
    vg_same_as_exact($node, $table, "$what, flushed");
    my $lived = vg_recall($node, $table, $ef, probes => 'many_probes');
    sql("REINDEX INDEX ${table}_v");
    my $new = vg_recall($node, $table, $ef, probes => 'many_probes');
    cmp_ok($lived, '>=', $new - 0.02, "$what: recall $lived at ef $ef, rebuilt $new");
    return;
}
sql('CREATE TABLE many_probes AS SELECT i AS id, uvec(-i, 16) AS v FROM generate_series(1, 200) i');

# A thousand rows of which each transaction replaces one, vacuum in a loop, readers.
{
    sql(q{
        CREATE TABLE churn (id int PRIMARY KEY, v real[]);
        INSERT INTO churn SELECT i, ARRAY[random(), random(), random()] FROM generate_series(0, 999) i;
        CREATE INDEX churn_v ON churn USING vecgpu (v);
        CREATE TABLE churn_probes AS SELECT i AS id, ARRAY[random(), random(), random()]::real[] AS v FROM generate_series(1, 50) i;
    });
    # A client replaces rows of its own only: two that replace the same row would collide in the primary key.
    my $replace = '\set r random(0, 124) * 8 + :client_id' . qq{
        BEGIN;
        DELETE FROM churn WHERE id = :r;
        INSERT INTO churn VALUES (:r, ARRAY[random(), random(), random()]);
        COMMIT;};
    # Each snapshot has exactly a thousand rows.
    my $read = 'SELECT ' . vg_must('count(*) = 1000 AND count(DISTINCT id) = 1000') . q{ FROM
        (SELECT id FROM churn ORDER BY v <-> ARRAY[random(), random(), random()]::real[] OFFSET 0) s;};
    my $writers = vg_pgbench($node, { replace => $replace }, clients => 8, transactions => 600,
        settings => [ @forced, 'vecgpu.flush_rows=200' ]);
    my $readers = vg_pgbench($node, { read => $read }, clients => 2, transactions => 120, settings => [ @forced ]);
    my $vacuum = vg_session($node, 'VACUUM churn;' x 40);
    all_end_well('replacing rows under vacuum', $writers, $readers, $vacuum);
    workers_gone();
    is(sql('SELECT count(*) FROM churn'), '1000', 'a thousand rows are there');
    vg_same_as_exact($node, 'churn', 'replaced rows', probes => 'churn_probes');
    sql('VACUUM churn');
    is(sql("SELECT rows, delta_rows FROM vecgpu_info('churn_v')"), '1000|0', 'vacuum leaves a thousand live rows');
    vg_same_as_exact($node, 'churn', 'replaced rows after vacuum', probes => 'churn_probes');
}

# Everything at once. Rows 1 .. 500 never change: whatever the others do, each search must find them.
my $mixed = {
    'insert@6' => q{INSERT INTO mixed SELECT i, uvec(i::int, 16), i FROM nextval('mixed_ids') i;},
    'insert_many@2' => q{INSERT INTO mixed SELECT nextval('mixed_ids'), uvec((random() * 1000000)::int, 16) FROM generate_series(1, 20);},
    'delete@4' => q{DELETE FROM mixed WHERE id IN (SELECT id FROM mixed WHERE id > 500 ORDER BY random() LIMIT 5 FOR UPDATE SKIP LOCKED);},
    'update@3' => q{UPDATE mixed SET tag = tag + 1 WHERE id IN (SELECT id FROM mixed WHERE id > 500 ORDER BY random() LIMIT 5 FOR UPDATE SKIP LOCKED);},
    'move@3' => q{UPDATE mixed SET v = uvec(tag + 17, 16) WHERE id IN (SELECT id FROM mixed WHERE id > 500 ORDER BY random() LIMIT 3 FOR UPDATE SKIP LOCKED);},
    'rollback@1' => q{BEGIN; INSERT INTO mixed SELECT i, uvec(i::int, 16), i FROM nextval('mixed_ids') i; ROLLBACK;},
    'near@6' => 'SET vecgpu.ef_search = 40; SELECT ' . vg_must('count(*) = 10 AND count(DISTINCT id) = 10')
      . q{ FROM (SELECT id FROM mixed ORDER BY v <-> (SELECT uvec((random() * 1000)::int, 16)) LIMIT 10) s;},
    # The vector of a row that never changes: that row is the nearest.
    'self@6' => qq{\\set r random(1, 500)\nSET vecgpu.ef_search = 10000; SELECT } . vg_must('min(id) = :r AND count(*) = 1')
      . q{ FROM (SELECT id FROM mixed ORDER BY v <-> (SELECT uvec(:r, 16)) LIMIT 1) s;},
    'walk@1' => 'SELECT ' . vg_must('count(*) = count(DISTINCT id) AND count(*) FILTER (WHERE id <= 500) = 500')
      . q{ FROM (SELECT id FROM mixed ORDER BY v <-> (SELECT NULL::real[]) OFFSET 0) s;},
    'flush@1' => q{SELECT vecgpu_flush('mixed_v');},
    'check@1' => q{SELECT vecgpu_check('mixed_v');},
};

sub mixed_load
{
    my ($what, $storage, $transactions, @settings) = @_;
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    sql(qq{
        DROP TABLE IF EXISTS mixed;
        DROP SEQUENCE IF EXISTS mixed_ids;
        CREATE SEQUENCE mixed_ids START 10001;
        CREATE TABLE mixed (id int PRIMARY KEY, v real[], tag int DEFAULT 0);
        INSERT INTO mixed SELECT i, uvec(i, 16), i FROM generate_series(1, 4000) i;
        CREATE INDEX ON mixed (tag);
        CREATE INDEX mixed_v ON mixed USING vecgpu (v) WITH (storage = $storage);
    });
    my $load = vg_pgbench($node, $mixed, clients => 8, transactions => $transactions, settings => [ @forced, @settings ]);
    my $vacuum = vg_session($node, ('VACUUM mixed; SELECT pg_sleep(0.05);' x 15)
        . 'REINDEX INDEX CONCURRENTLY mixed_v; VACUUM mixed;');
    all_end_well($what, $load, $vacuum);
    workers_gone();
    return;
}

my $before = -s $node->logfile;
mixed_load('mixed load with flush workers', 'float32', 200, 'vecgpu.flush_rows=200');
as_good_as_new('mixed', 40, 'mixed load');
mixed_load('mixed load, float16', 'float16', 80, 'vecgpu.flush_rows=100');
as_good_as_new('mixed', 40, 'mixed load, float16');
vg_log_clean($node, 'mixed loads', offset => $before);

# Workers do the flushing when there are slots for them: rows reach the graph although nobody flushes or vacuums.
{
    sql('TRUNCATE mixed');
    my $load = vg_pgbench($node, { insert => $mixed->{'insert@6'} }, clients => 4, transactions => 1000,
        settings => ['vecgpu.flush_rows=200']);
    all_end_well('inserts', $load);
    $node->poll_query_until('postgres', "SELECT nodes > 0 FROM vecgpu_info('mixed_v')") or die 'no flush worker came';
    workers_gone();
    is(vg_walk($node, 'mixed', 'null'), vg_walk($node, 'mixed', 'table'), 'rows that workers flushed');
    vg_check($node, 'after flush workers');
}

# No slot for a worker: whoever inserts flushes, and the delta stays bounded.
{
    $node->append_conf('postgresql.conf', "max_worker_processes = 0\nvecgpu.fallback = on"); # no worker, no engine
    $node->restart;
    my $waiting;
    # If the one who flushes is held up, much piles up behind it: then once more.
    for my $try (1 .. 5)
    {
        sql('TRUNCATE mixed');
        my $load = vg_pgbench($node, { insert => $mixed->{'insert_many@2'} }, clients => 4, transactions => 100,
            settings => ['vecgpu.flush_rows=200']);
        all_end_well('inserts without workers', $load);
        (my $rows, $waiting) = split /\|/, sql("SELECT rows, delta_rows FROM vecgpu_info('mixed_v')");
        is($rows, 8000, 'the index has all 8,000 rows');
        last if $waiting < 4000;
    }
    # 4 x flush_rows is the limit at which an insert flushes; some more pile up while one flushes.
    cmp_ok($waiting, '<', 4000, "inserts have flushed ($waiting rows wait)");
    as_good_as_new('mixed', 40, 'inserts that flush by themselves');
    mixed_load('mixed load without workers', 'float32', 80, 'vecgpu.flush_rows=100');
    as_good_as_new('mixed', 40, 'mixed load without workers');
    $node->append_conf('postgresql.conf', "max_worker_processes = 8\n" . vg_device_conf());
    $node->restart;
}

# A cursor of an old snapshot, while the index is flushed, vacuumed and rebuilt again and again under it.
{
    sql('DROP TABLE mixed');
    vg_fill($node, 'items', 4000);
    # The writer holds a lock that the reader asks for in the middle of its cursors, and starts when the reader waits.
    my $changes = '';
    for my $round (1 .. 4)
    {
        my $first = 10000 + 1000 * $round;
        $changes .= "DELETE FROM items WHERE id % 2 = @{[ $round % 2 ]}; VACUUM items;"
          . vg_rows('items', $first, $first + 999) . "; SELECT vecgpu_flush('items_v'); VACUUM items;";
    }
    my $writer = vg_session(
        $node, q{
        SELECT pg_advisory_lock(1);
        DO $$ BEGIN WHILE NOT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted) LOOP
            PERFORM pg_sleep(0.01); END LOOP; END $$;} . $changes);
    $node->poll_query_until('postgres', "SELECT count(*) = 1 FROM pg_locks WHERE locktype = 'advisory' AND granted") or die;
    my $reader = vg_session(
        $node, q{
        BEGIN ISOLATION LEVEL REPEATABLE READ;
        SET enable_seqscan = off; SET enable_sort = off; SET vecgpu.ef_search = 10;
        DECLARE walk CURSOR FOR SELECT id FROM items ORDER BY v <-> (SELECT NULL::real[]);
        DECLARE near CURSOR FOR SELECT id FROM items ORDER BY v <-> (SELECT v FROM probes WHERE id = 1);
        FETCH 5 FROM walk;
        MOVE 5 FROM near;
        SELECT pg_advisory_lock(1);
        FETCH ALL FROM walk;
        MOVE ALL FROM near;});
    my ($code) = vg_finish($writer);
    is($code, 0, 'changes under a cursor');
    my ($reader_code, $out, $err) = vg_finish($reader);
    is("$reader_code$err", '0', 'the cursor reads to its end');
    my %seen;
    $seen{$_}++ for grep { /^\d+$/ } split /\n/, $out;
    is(join(' ', scalar(keys %seen), scalar(grep { $_ > 1 } values %seen)), '4000 0', 'it returns each row of its snapshot once');
    # The snapshot is gone: its extents may be used again.
    sql('VACUUM items');
    vg_same_as_exact($node, 'items', 'changes under a cursor');
}

# CREATE INDEX CONCURRENTLY and REINDEX CONCURRENTLY while rows come: each row once.
{
    sql(q{CREATE TABLE line (id int PRIMARY KEY, v real[]);
          INSERT INTO line SELECT i, ARRAY[i, 0, 0] FROM generate_series(1, 5000) i;
          CREATE SEQUENCE line_ids START 5001});
    my $insert = { line => q{INSERT INTO line SELECT i, ARRAY[i, 0, 0] FROM nextval('line_ids') i;} };
    my $inserts = vg_pgbench($node, $insert, clients => 1, transactions => 100);
    my $build = vg_session($node, 'CREATE INDEX CONCURRENTLY line_v ON line USING vecgpu (v)');
    all_end_well('CREATE INDEX CONCURRENTLY with inserts', $inserts, $build);
    is(sql('SET enable_seqscan = off; SELECT string_agg(id::text, $$ $$) FROM
            (SELECT id FROM line ORDER BY v <-> ARRAY[0, 0, 0]::real[] LIMIT 10) s'),
        '1 2 3 4 5 6 7 8 9 10', 'nearest rows');
    like(vg_walk($node, 'line', 'null'), qr/^5100 rows, 5100 distinct/, 'each row once after CREATE INDEX CONCURRENTLY');
    $inserts = vg_pgbench($node, $insert, clients => 2, transactions => 150, settings => ['vecgpu.flush_rows=50']);
    my $delete = vg_pgbench($node, { delete => "\\set r random(1, 5000)\nDELETE FROM line WHERE id = :r;" }, clients => 2, transactions => 150);
    $build = vg_session($node, 'REINDEX INDEX CONCURRENTLY line_v; REINDEX TABLE CONCURRENTLY line;');
    all_end_well('REINDEX CONCURRENTLY with inserts and deletes', $inserts, $delete, $build);
    workers_gone();
    is(vg_walk($node, 'line', 'null'), vg_walk($node, 'line', 'table'), 'each row once after REINDEX CONCURRENTLY');
    is(sql(q{SELECT count(*) FROM pg_class WHERE relname LIKE '%\_cc%'}), '0', 'no index is left behind');
    all_end_well('DROP INDEX CONCURRENTLY with inserts',
        vg_pgbench($node, $insert, clients => 2, transactions => 100, settings => ['vecgpu.flush_rows=50']),
        vg_session($node, 'DROP INDEX CONCURRENTLY line_v'));
    workers_gone();
}

vg_check($node, 'at the end');
vg_log_clean($node, 'the whole run', allow => 'max_worker_processes|logical replication|too many background');
$node->stop;
done_testing();
