# Everything at once: readers that know the right answer, writers, flushes, vacuum and rebuilds, DDL, evictions under a small budget, deaths of
# the engine and of its supervisor. For a longer hunt: VECGPU_STORM_SECONDS=300 make prove_installcheck PROVE_TESTS=test/t/017_engine_storm.pl
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

my $seconds = $ENV{VECGPU_STORM_SECONDS} // 5;
my $node = ve_node('storm',
    conf => "max_connections = 60\nmax_worker_processes = 12\nallow_in_place_tablespaces = on\nvecgpu.flush_rows = 150\nvecgpu.gpu_memory_limit = 3\n");
sub sql { return vg_sql($node, $_[0]) }
my @index = ('enable_seqscan=off', 'enable_sort=off', 'enable_bitmapscan=off');

# still: never changes but for its files. moving: rows 1 .. 500 stay. equal: 40 vectors; each snapshot has exactly ten rows of each.
sql("CREATE TABLESPACE other LOCATION ''");
vg_fill($node, 'still', 4000);
vg_fill($node, 'moving', 4000);
sql(q{CREATE SEQUENCE moving_ids START 10001;
      CREATE TABLE equal (id serial PRIMARY KEY, class int, v real[]);
      INSERT INTO equal (class, v) SELECT c, uvec(c, 16) FROM generate_series(1, 40) c, generate_series(1, 10);
      CREATE INDEX ON equal (class);
      CREATE INDEX equal_v ON equal USING vecgpu (v);
      INSERT INTO equal (class, v) SELECT NULL, uvec(1000 + i, 16) FROM generate_series(1, 1500) i;
      CREATE TABLE truth AS SELECT i AS id, uvec(-i, 16) AS v FROM generate_series(1, 40) i;
      ALTER TABLE truth ADD PRIMARY KEY (id);
      ALTER TABLE truth ADD ids int[];
      UPDATE truth t SET ids = ARRAY(SELECT i.id FROM still i ORDER BY i.v <-> t.v LIMIT 10)});

my $readers = {
    'still@4' => "\\set r random(1, 40)\nSET vecgpu.ef_search = 10000; SELECT " . vg_must('ids = (SELECT ids FROM truth WHERE id = :r)')
      . q{ FROM (SELECT array_agg(id) AS ids FROM (SELECT id FROM still ORDER BY v <-> (SELECT v FROM truth WHERE id = :r) LIMIT 10) a) b;},
    'graph@3' => "\\set r random(1, 1000)\nSET vecgpu.ef_search = 40; SELECT " . vg_must('count(*) = 10 AND count(DISTINCT id) = 10 AND bool_and(d >= before)')
      . q{ FROM (SELECT id, d, lag(d, 1, 0) OVER () AS before FROM (SELECT id, v <-> (SELECT uvec(-:r, 16)) AS d FROM moving
             ORDER BY v <-> (SELECT uvec(-:r, 16)) LIMIT 10) a) b;},
    'moving@4' => "\\set r random(1, 500)\nSET vecgpu.ef_search = 10000; SELECT " . vg_must('min(id) = :r AND count(*) = 1')
      . q{ FROM (SELECT id FROM moving ORDER BY v <-> (SELECT uvec(:r, 16)) LIMIT 1) s;},
    'equal@4' => "\\set r random(1, 40)\nSET vecgpu.ef_search = 10000; SELECT " . vg_must('count(*) FILTER (WHERE d = 0) = 10 AND count(DISTINCT id) = 12')
      . q{ FROM (SELECT id, v <-> (SELECT uvec(:r, 16)) AS d FROM equal ORDER BY v <-> (SELECT uvec(:r, 16)) LIMIT 12) s;},
    # By the graph: equal rows hang together, so either none of them is met or all are.
    'near@2' => "\\set r random(1, 40)\nSET vecgpu.ef_search = 100; SELECT " . vg_must('count(*) FILTER (WHERE d = 0) IN (0, 10) AND count(DISTINCT id) = 30')
      . q{ FROM (SELECT id, v <-> (SELECT uvec(:r, 16)) AS d FROM equal ORDER BY v <-> (SELECT uvec(:r, 16)) LIMIT 30) s;},
    'deep@1' => "\\set r random(1, 40)\nSET vecgpu.ef_search = 40; SELECT " . vg_must('count(*) = 4000 AND count(DISTINCT id) = 4000')
      . q{ FROM (SELECT id FROM still ORDER BY v <-> (SELECT v FROM truth WHERE id = :r) OFFSET 0) a;},
    'cursor@1' => "\\set r random(1, 40)\nBEGIN; DECLARE c CURSOR FOR SELECT id FROM equal ORDER BY v <-> (SELECT uvec(:r, 16)); FETCH 5 FROM c; SELECT pg_sleep(0.01); FETCH 300 FROM c; ROLLBACK;",
};
my $writers = {
    'insert@5' => q{INSERT INTO moving SELECT i, uvec(i::int, 16) FROM nextval('moving_ids') i;},
    'many@2' => q{INSERT INTO moving SELECT nextval('moving_ids'), uvec(2000000 + (random() * 1000000)::int, 16) FROM generate_series(1, 30);},
    'delete@3' => q{DELETE FROM moving WHERE id IN (SELECT id FROM moving WHERE id > 500 ORDER BY random() LIMIT 40 FOR UPDATE SKIP LOCKED);},
    # A row of a class goes and another one of it comes, at the same moment.
    'swap@8' => "\\set c random(1, 40)\nWITH gone AS (DELETE FROM equal WHERE id IN (SELECT id FROM equal WHERE class = :c ORDER BY random() LIMIT 3 FOR UPDATE SKIP LOCKED) RETURNING class, v)
        INSERT INTO equal (class, v) SELECT class, v FROM gone;",
    # All rows of a class, so that their node is dead for a moment.
    'renew@3' => "\\set c random(1, 40)\nBEGIN; SELECT FROM equal WHERE class = :c FOR UPDATE SKIP LOCKED; WITH gone AS (DELETE FROM equal WHERE id IN (SELECT id FROM equal WHERE class = :c FOR UPDATE SKIP LOCKED) RETURNING class, v)
        INSERT INTO equal (class, v) SELECT class, v FROM gone; COMMIT;",
    'back@1' => "\\set c random(1, 40)\nBEGIN; INSERT INTO equal (class, v) VALUES (:c, uvec(:c, 16)); ROLLBACK;",
    'flush@1' => q{SELECT vecgpu_flush('equal_v'), vecgpu_flush('moving_v');},
};
my @disturbances = (
    [ 'VACUUM', sub { "VACUUM moving; VACUUM equal" } ], [ 'REINDEX CONCURRENTLY', sub { "REINDEX INDEX CONCURRENTLY " . (qw(still_v equal_v moving_v))[ rand 3 ] } ],
    [ 'REINDEX', sub { 'REINDEX INDEX still_v' } ], [ 'VACUUM FULL', sub { 'VACUUM FULL still' } ], [ 'CLUSTER', sub { 'CLUSTER still USING still_pkey' } ],
    [ 'SET TABLESPACE', sub { 'ALTER INDEX still_v SET TABLESPACE ' . (qw(other pg_default))[ rand 2 ] } ],
    [ 'rolled back', sub { 'BEGIN; DROP INDEX still_v; ROLLBACK; BEGIN; REINDEX INDEX still_v; ROLLBACK' } ],
    [ 'evict', sub { "SELECT vecgpu_evict('" . (qw(still_v equal_v moving_v))[ rand 3 ] . "')" } ]);

my $died = 0;
sub storm
{
    my ($what, $deaths, @settings) = @_;
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    my @load = (
        vg_pgbench($node, $readers, clients => 6, seconds => $seconds, settings => [ @index, @settings ]),
        vg_pgbench($node, $writers, clients => 3, seconds => $seconds, settings => [ @index, @settings ]));
    my ($end, $next_death, $count, $errors) = (time() + $seconds, time() + 1, 0, '');
    while (time() < $end)
    {
        my ($name, $statement) = @{ $disturbances[ rand @disturbances ] };
        for my $one (split /; (?=VACUUM)/, $statement->())
        {
            my ($code, $out, $err) = $node->psql('postgres', $one);
            # An engine that is just ending is lost to vecgpu_evict.
            $errors .= "$one: $err\n" if $code != 0 && !vg_held_up($err) && !($deaths && $err =~ /could not drop the mirror: lost/);
        }
        $count++;
        sleep(0.1);
        next if !$deaths || time() < $next_death;
        my ($engine) = ve_engines($node) or next;
        # Every third time the supervisor too, so that engines are started at once and there is something to kill.
        if (++$died % 3 == 0) { ve_stop_supervisor($node) }
        else { kill((qw(KILL TERM SEGV ABRT STOP))[ rand($seconds > 20 ? 5 : 4) ], $engine) }
        $next_death = time() + 1.5;
    }
    is($errors, '', "$what: $count disturbances");
    ve_finish($what, @load);
    note(sql(q{SELECT string_agg(format('%s: %s on the device, fallbacks %s', indexrelname, queries, fallback_reasons), E'\n' ORDER BY 1) FROM pg_stat_vecgpu}));
    for my $table ('still', 'moving', 'equal')
    {
        ve_evict($node, "${_}_v") for grep { $_ ne $table } 'still', 'moving', 'equal';
        ve_on_device($node, $table, $what);
        vg_same_as_exact($node, $table, $what);
        is(ve_fallbacks($node, "${table}_v", 'wrong_answer'), 0, "$what: no answer was taken for a wrong one");
    }
    is(sql('SELECT string_agg(n::text, $$ $$) FROM (SELECT DISTINCT count(*) AS n FROM equal WHERE class IS NOT NULL GROUP BY class) s'), '10', "$what: ten rows of each class");
    ve_slots_free($node, $what);
    return;
}
srand(7);
ve_on_device($node, 'still', 'at the start');
storm('a storm', 0);
# With room for all of them no search has to do without the device, but for scans whose graph is rebuilt under them.
$node->append_conf('postgresql.conf', 'vecgpu.gpu_memory_limit = 0');
$node->reload;
ve_stop_supervisor($node);
ve_on_device($node, 'still', 'with more memory');
storm('a storm without fallback', 0, 'vecgpu.fallback=off');
storm('a storm with deaths', 1);

vg_check($node, 'at the end');
vg_log_clean($node, 'the whole run', allow => 'vecgpu supervisor|with signal|could not (drop the mirror|ask the vecgpu engine): lost');
$node->stop;
is(ve_leftovers($node, files => 1), '', 'nothing is left at the end');
done_testing();
