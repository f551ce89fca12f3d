# Nodes, background sessions, crashes and the closing checks that the TAP tests share.
#
#   use FindBin;
#   use lib "$FindBin::RealBin/../perl";
#   use VecgpuTest;
#   my $node = vg_node('primary', conf => "restart_after_crash = on\n");   # started, extension created, no preload
#   vg_fill($node, 'items', 5000);                          # items (id int primary key, v real[]), 16 dimensions
#   my $session = vg_session($node, 'SELECT vecgpu_flush(...)');           # runs meanwhile
#   my ($code, $out, $err) = vg_finish($session);
#   vg_same_as_exact($node, 'items', 'after the crash');    # index answer = sequential scan, every row once, vecgpu_check
package VecgpuTest;

use strict;
use warnings;
use Exporter 'import';
use IPC::Run ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

our @EXPORT = qw(vg_node vg_conf vg_device_conf vg_functions vg_fill vg_rows vg_must vg_sql vg_held_up vg_excused vg_session vg_finish vg_runs vg_open vg_ask vg_close vg_pgbench vg_wait_query
  vg_start vg_kill_postmaster vg_kill_backend vg_check vg_same_as_exact vg_answer vg_walk vg_log_clean vg_psql_error vg_indexes vg_recall vg_temp_files);

# For pg_ctl: a busy machine takes its time.
$ENV{PGCTLTIMEOUT} //= $PostgreSQL::Test::Utils::timeout_default;

# Settings of every node. The library is deliberately not preloaded: nothing may depend on that. A small shared_buffers (as
# PostgreSQL's own tests have) would make builds crawl; 32 MB still evicts. Checkpoints come by the clock: nothing of them in the log, which tests
# look into.
sub vg_conf
{
    return "shared_buffers = 32MB\nautovacuum = off\nmax_wal_size = 1GB\nlog_min_messages = warning\n"
      . "log_statement = none\nlog_replication_commands = off\nlog_checkpoints = off\n"
      . "log_error_verbosity = verbose\nmaintenance_work_mem = 64MB\n"
      . vg_device_conf();
}

# Where searches run: VECGPU_TEST_DEVICE=host sends them all through the engine, and what the engine cannot do is an error. The form is given, since
# these tests are about graphs, and compare servers whose engines measure for themselves. A late answer is no error.
sub vg_device_conf
{
    my $device = $ENV{VECGPU_TEST_DEVICE} // '';
    return $device eq '' ? '' : "vecgpu.device = $device\nvecgpu.fallback = off\nvecgpu.device_form = graph\nvecgpu.engine_timeout = 60s\n";
}

# A started node with the extension and vg_functions. Options: conf (text), streaming (allows standbys), archiving.
sub vg_node
{
    my ($name, %options) = @_;
    my $node = PostgreSQL::Test::Cluster->new($name);
    $node->init(
        allows_streaming => $options{streaming} ? 1 : 0,
        has_archiving    => $options{archiving} ? 1 : 0,
        ($options{extra} ? (extra => $options{extra}) : ()));
    $node->append_conf('postgresql.conf', vg_conf() . ($options{conf} // ''));
    $node->start;
    $node->safe_psql('postgres', 'CREATE EXTENSION vecgpu') unless $options{no_extension};
    vg_functions($node) unless $options{no_extension};
    return $node;
}

# uvec(seed, d): d numbers of [0, 1), always the same for a seed. probes: 20 query vectors of 16 dimensions.
sub vg_functions
{
    my ($node, $dbname) = @_;
    $node->safe_psql(
        $dbname // 'postgres', q{
        CREATE FUNCTION uvec(seed int, d int) RETURNS real[] LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
            $$SELECT array_agg((hashint4extended(seed, i) & 65535) / 65536.0::real ORDER BY i) FROM generate_series(1, d) i$$;
        CREATE TABLE probes (id int PRIMARY KEY, v real[]);
        INSERT INTO probes SELECT i, uvec(-i, 16) FROM generate_series(1, 20) i;
    });
    return;
}

# INSERT of rows first .. last into a table (id, v).
sub vg_rows
{
    my ($table, $first, $last, $dimensions) = @_;
    $dimensions //= 16;
    return "INSERT INTO $table SELECT i, uvec(i, $dimensions) FROM generate_series($first, $last) i";
}

# An expression that is an error (division by zero) unless the condition holds, for scripts of pgbench.
sub vg_must
{
    my ($condition) = @_;
    return "1 / ($condition)::int";
}

# A table of rows 1 .. n and, unless index => 0, the index TABLE_v. Options: with ('storage = ...'), persistence ('UNLOGGED').
sub vg_fill
{
    my ($node, $table, $rows, %options) = @_;
    my $with        = $options{with} ? "WITH ($options{with})" : '';
    my $persistence = $options{persistence} // '';
    my $sql         = "CREATE $persistence TABLE $table (id int PRIMARY KEY, v real[]);\n";
    $sql .= vg_rows($table, 1, $rows, $options{dimensions}) . ";\n" if $rows > 0;
    $sql .= "CREATE INDEX ${table}_v ON $table USING vecgpu (v) $with;\n" unless defined $options{index} && !$options{index};
    $node->safe_psql('postgres', $sql);
    return;
}

# ---- a machine that holds the engine up ----
# A session takes an engine whose heart has not beaten for a second for hung, which is an error where it may not go on over the pages (fallback = off,
# vecgpu_prewarm, vecgpu_evict). On a busy machine that happens to sound engines: who gets this error asks again. `no_engine`: the engine did not take
# staging memory in time.
my $late = qr/could not (?:search index "[^"]*" on the device|load the index into the engine|drop the mirror|ask the vecgpu engine): (?:hung|timeout|starting|no_engine)\b/;
my %held_up;

# Whether these errors are of that kind. Their lines in the log are excused (vg_log_clean).
sub vg_held_up
{
    my ($errors) = @_;
    my @messages = $errors =~ /$late/g or return '';
    $held_up{$_} = 1 for @messages;
    return 1;
}

# The lines of a session's errors that are not of that kind, without what pgbench says of clients that it ended by one.
sub vg_excused
{
    my ($errors) = @_;
    return split /\n/, $errors if !vg_held_up($errors);
    return grep { !/$late|Run was aborted/ } split /\n/, $errors;
}

# safe_psql that asks again; for statements that may be run twice. Options: dbname.
sub vg_sql
{
    my ($node, $sql, %options) = @_;
    my $end = time() + 60;
    for (;;)
    {
        my ($code, $out, $err) = $node->psql($options{dbname} // 'postgres', $sql, on_error_stop => 1);
        return $out if $code == 0;
        die "error running SQL: '$err' with sql '$sql'" if !vg_held_up($err) || time() > $end;
        sleep(0.1);
    }
}

# ---- sessions that run meanwhile ----

# Input and output go through files: a pipe would have to be pumped while the session runs.
my $sessions = 0;

sub start_session
{
    my (@command) = @_;
    my $base = PostgreSQL::Test::Utils::tempdir() . '/session' . ++$sessions;
    return {
        base => $base,
        run  => IPC::Run::start(\@command, '<', \undef, '>', "$base.out", '2>', "$base.err",
            IPC::Run::timeout(3 * $PostgreSQL::Test::Utils::timeout_default)) };
}

# Starts psql on the statements. Options: dbname, stop_on_error (1).
sub vg_session
{
    my ($node, $sql, %options) = @_;
    my $file = PostgreSQL::Test::Utils::tempdir() . '/session' . ($sessions + 1) . '.sql';
    write_text($file, $sql);
    return start_session(
        $node->installed_command('psql'),
        '-XAtq', '-v', 'VERBOSITY=verbose', '-v', 'ON_ERROR_STOP=' . ($options{stop_on_error} // 1),
        '-d', $node->connstr($options{dbname} // 'postgres'), '-f', $file);
}

# Starts pgbench on scripts (name => text; a name may end in @weight). Options: clients, args (list), dbname, and either
# transactions (per client) or seconds; settings (list of 'name=value'). To be ended with vg_finish; its exit code is 0 only if no client had an error.
sub vg_pgbench
{
    my ($node, $scripts, %options) = @_;
    my @files;
    for my $key (sort keys %$scripts)
    {
        my ($name, $weight) = $key =~ /^(.*?)(\@\d+)?$/;
        my $file = PostgreSQL::Test::Utils::tempdir() . "/bench_${sessions}_$name";
        write_text($file, $scripts->{$key});
        push @files, '-f', $file . ($weight // '');
    }
    my $clients = $options{clients} // 4;
    # The settings are taken at connection, when the library is not loaded yet: the server keeps them until it is.
    local $ENV{PGOPTIONS} = join(' ', map { "-c $_" } @{ $options{settings} // [] });
    return start_session(
        $node->installed_command('pgbench'),
        '-n', '-c', $clients, '-j', $clients > 2 ? 2 : 1, '--random-seed=7',
        ($options{seconds} ? ('-T', $options{seconds}) : ('-t', $options{transactions} // 100)),
        @files, @{ $options{args} // [] },
        $node->connstr($options{dbname} // 'postgres'));
}

sub write_text
{
    my ($file, $text) = @_;
    open(my $out, '>', $file) or die "$file: $!";
    print $out $text;
    close($out) or die "$file: $!";
    return;
}

# A psql that takes statements one after the other: vg_ask($it, 'SELECT 1') returns output and errors.
sub vg_open
{
    my ($node, %options) = @_;
    my $open = { in => '', out => '', err => '', asked => 0, timer => IPC::Run::timeout(2 * $PostgreSQL::Test::Utils::timeout_default) };
    $open->{run} = IPC::Run::start(
        [ $node->installed_command('psql'), '-XAtq', '-v', 'VERBOSITY=verbose', '-d', $node->connstr($options{dbname} // 'postgres'),
            '-f', '-' ],
        '<', \$open->{in}, '>', \$open->{out}, '2>', \$open->{err}, $open->{timer});
    return $open;
}

sub vg_ask
{
    my ($open, $sql) = @_;
    my $mark = 'answer ' . ++$open->{asked} . ' ends';
    $open->{out} = $open->{err} = '';
    # A server that ends the connection ends psql, and with it the pipe.
    eval {
        $open->{timer}->start; # anew for each statement: a session may live for long
        $open->{in} .= "$sql;\n\\echo $mark\n\\warn $mark\n";
        # With its newline: that would be the beginning of the next answer.
        $open->{run}->pump until $open->{out} =~ /^\Q$mark\E\n/m && $open->{err} =~ /\Q$mark\E\n/;
        1;
    } or $open->{err} .= $@;
    $open->{$_} =~ s/\n?\Q$mark\E\n?// for 'out', 'err';
    return ($open->{out}, $open->{err});
}

sub vg_close
{
    my ($open) = @_;
    eval { $open->{in} .= "\\q\n"; $open->{run}->finish; };
    return;
}

# Whether a session of vg_session or vg_pgbench has not come to its end.
sub vg_runs
{
    my ($session) = @_;
    return $session->{run}->pumpable;
}

# Waits for a session. Returns exit code, output, errors.
sub vg_finish
{
    my ($session) = @_;
    $session->{run}->finish;
    return ($session->{run}->result(0) // -1,
        PostgreSQL::Test::Utils::slurp_file("$session->{base}.out"), PostgreSQL::Test::Utils::slurp_file("$session->{base}.err"));
}

# Waits until a query of an active session matches (LIKE), and returns its process id; '' if `session`, which runs it, has come to its end before
# anybody saw it.
sub vg_wait_query
{
    my ($node, $like, $condition, $session) = @_;
    $condition //= 'true';
    my $sql = "SELECT pid FROM pg_stat_activity a WHERE state = 'active' AND query LIKE '$like' AND pid <> pg_backend_pid()
               AND ($condition) LIMIT 1";
    for (1 .. 20 * $PostgreSQL::Test::Utils::timeout_default)
    {
        my $ended = $session && !vg_runs($session);
        my $pid = $node->safe_psql('postgres', $sql);
        return $pid if $pid ne '' || $ended;
        sleep(0.05);
    }
    die "no session runs $like";
}

# ---- crashes ----

# kill -9 of the postmaster; returns when it is gone.
sub vg_kill_postmaster
{
    my ($node) = @_;
    my ($pid) = PostgreSQL::Test::Utils::slurp_file($node->data_dir . '/postmaster.pid') =~ /^(\d+)/;
    $node->kill9;
    for (1 .. 100 * $PostgreSQL::Test::Utils::timeout_default)
    {
        return if !kill(0, $pid);
        sleep(0.01);
    }
    die 'the postmaster survives kill -9';
}

# Starts a node whose postmaster was killed: its last backends may hold the shared memory for a moment.
sub vg_start
{
    my ($node) = @_;
    for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
    {
        return if $node->start(fail_ok => 1);
        sleep(0.1);
    }
    die "the node does not start any more";
}

# kill -9 of one backend; waits for the crash recovery that follows (the node needs restart_after_crash = on).
sub vg_kill_backend
{
    my ($node, $pid) = @_;
    # The work may have ended just before: then nothing was interrupted, and what follows checks that all of it is there.
    kill('KILL', $pid) or return;
    # The dead backend stays in the list until shared memory is set up anew.
    for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
    {
        # A psql that is turned away may end before its input is written: a broken pipe, which IPC::Run dies of.
        my ($code, $out) = eval { $node->psql('postgres', "SELECT count(*) FROM pg_stat_activity WHERE pid = $pid") };
        return if defined $code && $code == 0 && $out eq '0';
        sleep(0.1);
    }
    die "the node does not come back";
}

# ---- closing checks ----

# Valid vecgpu indexes of a database, qualified.
sub vg_indexes
{
    my ($node, $dbname) = @_;
    return split /\n/, $node->safe_psql(
        $dbname // 'postgres', q{
        SELECT c.oid::regclass FROM pg_class c JOIN pg_am a ON a.oid = c.relam JOIN pg_index i ON i.indexrelid = c.oid
        WHERE a.amname = 'vecgpu' AND c.relkind = 'i' AND i.indisvalid AND i.indisready
              AND NOT (c.relpersistence = 'u' AND pg_is_in_recovery()) ORDER BY 1});
}

# vecgpu_check on every index of the database; one assertion.
sub vg_check
{
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    my ($node, $what, $dbname) = @_;
    my @indexes = vg_indexes($node, $dbname);
    my $errors = '';
    for my $index (@indexes)
    {
        my ($code, $out, $err) = $node->psql($dbname // 'postgres', "SELECT vecgpu_check('$index')");
        $errors .= "$index: $err\n" if $code != 0;
    }
    return is($errors, '', "$what: vecgpu_check of " . scalar(@indexes) . ' indexes on ' . $node->name);
}

# The k nearest of every probe, one line a probe: distances, because equal ones may come in any order. Through the index with
# ef_search (10000: every node of a small graph is looked at, so the answer is exact), or by a sequential scan (ef 0).
sub vg_answer
{
    my ($node, $table, $ef, %options) = @_;
    my $k        = $options{k}        // 10;
    my $operator = $options{operator} // '<->';
    my $probes   = $options{probes}   // 'probes';
    my $where    = $options{where} ? "WHERE $options{where}" : '';
    my $settings = $ef ? "SET enable_seqscan = off; SET vecgpu.ef_search = $ef;" : 'SET enable_indexscan = off;';
    return vg_sql(
        $node, qq{
        SET client_min_messages = warning;
        LOAD 'vecgpu';
        SET enable_bitmapscan = off;
        $settings
        SELECT q.id, (SELECT string_agg(d::text, ' ' ORDER BY n)
                      FROM (SELECT d, row_number() OVER () AS n
                            FROM (SELECT t.v $operator q.v AS d FROM $table t $where ORDER BY t.v $operator q.v LIMIT $k) a) b)
        FROM $probes q ORDER BY q.id;
    }, dbname => $options{dbname});
}

# Every row of the index: "rows, distinct ids, digest of the ids". Through the index by a search for NULL (no order, no
# distance: every row once) or for a vector, else by a sequential scan.
sub vg_walk
{
    my ($node, $table, $way, %options) = @_;
    my $operator = $options{operator} // '<->';
    my $order =
        $way eq 'null'   ? "ORDER BY v $operator (SELECT NULL::real[])"
      : $way eq 'vector' ? "ORDER BY v $operator (SELECT v FROM " . ($options{probes} // 'probes') . ' ORDER BY id LIMIT 1)'
      :                    '';
    my $where    = $options{where} // 'v IS NOT NULL';
    my $settings = $order eq '' ? 'SET enable_indexscan = off;' : 'SET enable_seqscan = off; SET enable_sort = off;';
    my $walk     = "SELECT id FROM $table WHERE $where $order";
    my $result   = vg_sql(
        $node, qq{
        SET client_min_messages = warning;
        LOAD 'vecgpu';
        SET vecgpu.ef_search = 10000;
        SET enable_bitmapscan = off;
        $settings
        EXPLAIN (COSTS OFF) $walk;
        SELECT count(*) || ' rows, ' || count(DISTINCT id) || ' distinct, ' ||
               coalesce(md5(string_agg(id::text, ',' ORDER BY id)), '') FROM ($walk OFFSET 0) w;
    }, dbname => $options{dbname});
    die "not an index walk:\n$result" if $order ne '' && $result !~ /Order By: \(v /;
    return (split /\n/, $result)[-1];
}

# The index answers as a sequential scan does, holds every row once, and passes vecgpu_check. Four assertions.
sub vg_same_as_exact
{
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    my ($node, $table, $what, %options) = @_;
    my $walk = vg_walk($node, $table, 'table', %options);
    is(vg_walk($node, $table, 'null',   %options), $walk, "$what: the index of $table holds every row once");
    is(vg_walk($node, $table, 'vector', %options), $walk, "$what: a search to the end returns every row of $table once");
    is(vg_answer($node, $table, 10000, %options), vg_answer($node, $table, 0, %options),
        "$what: nearest rows of $table as without the index");
    return vg_check($node, $what, $options{dbname});
}

# Recall of the graph at ef over the probes, from the two answers: a distance up to the true k-th counts.
sub vg_recall
{
    my ($node, $table, $ef, %options) = @_;
    my @exact = split /\n/, vg_answer($node, $table, 0,   %options);
    my @found = split /\n/, vg_answer($node, $table, $ef, %options);
    my ($hits, $all) = (0, 0);
    for my $i (0 .. $#exact)
    {
        my @right = split / /, (split /\|/, $exact[$i])[1];
        my @got   = split / /, (split /\|/, $found[$i])[1] // '';
        $all  += @right;
        $hits += grep { $_ <= $right[-1] } @got;
    }
    return $hits / $all;
}

# The error of a statement: SQLSTATE and message, or ''. Settings may be given before it.
sub vg_psql_error
{
    my ($node, $sql, %options) = @_;
    my ($code, $out, $err) = $node->psql(
        $options{dbname} // 'postgres',
        "\\set VERBOSITY verbose\n$sql",
        on_error_stop => 1);
    return '' if $code == 0;
    return $err =~ /(?:ERROR|FATAL):\s+(\w{5}): ([^\n]*)/ ? "$1 $2" : $err;
}

# Nothing in the log since `offset` that a sound server does not say. `allow` is a pattern for expected lines.
sub vg_log_clean
{
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    my ($node, $what, %options) = @_;
    my $log = PostgreSQL::Test::Utils::slurp_file($node->logfile, $options{offset} // 0);
    # A fast stop ends the backend of a client that has just left, if it is slow to go.
    my $stopping = 0;
    my @lines;
    for my $line (split /\n/, $log)
    {
        $stopping = 1 if $line =~ /received fast shutdown request/;
        $stopping = 0 if $line =~ /database system is ready to accept/;
        push @lines, $line unless $stopping && $line =~ /FATAL:  57P01: terminating connection due to administrator command/;
    }
    my @bad = grep { /(ERROR|FATAL|PANIC|WARNING):|terminated by signal|TRAP/ } @lines;
    @bad = grep { !/$options{allow}/ } @bad if $options{allow};
    # What a test has met and asked again for.
    @bad = grep { my $line = $_; !grep { index($line, $_) >= 0 } keys %held_up } @bad;
    return is(join("\n", splice(@bad, 0, 10)), '', "$what: nothing wrong in the log of " . $node->name);
}

# Temporary files of sessions and builds that a node still has.
sub vg_temp_files
{
    my ($node) = @_;
    return join(' ', glob($node->data_dir . '/base/pgsql_tmp/*'));
}

1;
