# Damaged pages. Random bytes of every kind of page are changed while the server is down, with a fixed seed; then everything
# that reads or writes an index is run on it. It may answer or fail, but fails with an error that says so (index_corrupted, or
# PostgreSQL's own data_corrupted for a page header), never by a crash, an endless loop or an internal error. REINDEX heals.
#
# VECGPU_DAMAGE_SEED and VECGPU_DAMAGE_ROUNDS (default 5) are for longer runs by hand.
use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/../perl";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep);
use VecgpuTest;

my $seed   = $ENV{VECGPU_DAMAGE_SEED}   // 20240607;
my $rounds = $ENV{VECGPU_DAMAGE_ROUNDS} // 5;
srand($seed);

my $version = (split /\./, (`pg_config --version` =~ /(\d[\d.]*)/)[0])[0];
my $node = vg_node('damage', conf => "restart_after_crash = on\n", $version >= 18 ? (extra => ['--no-data-checksums']) : ());

sub sql { return $node->safe_psql('postgres', $_[0]) }

# ---- indexes that have every kind of page ----
# Dimensions, options, operator, and how the column's vector is made. The wide ones have rows on several pages and, while they
# wait, on overflow pages.
my @shapes = (
    [ 16, "storage = 'float32'", '<->', 'real_l2_ops' ],
    [ 16, "storage = 'float16', m = 4", '<=>', 'real_cosine_ops' ],
    [ 16, "storage = 'int8', m = 40, ef_construction = 80", '<->', 'real_l2_ops' ],
    [ 3, "storage = 'bfloat16', m = 2", '<#>', 'real_ip_ops' ],
    [ 2500, "storage = 'float32'", '<->', 'real_l2_ops' ],
    [ 16, "kind = 'flat'", '<->', 'real_l2_ops' ]);
my $copies = 6;
my @tables;
for my $copy (1 .. $copies)
{
    for my $i (0 .. $#shapes)
    {
        my ($dimensions, $with, $operator, $class) = @{ $shapes[$i] };
        my $table = "d${i}_$copy";
        my $rows  = $dimensions > 1000 ? 30 : 700;
        push @tables, { name => $table, dimensions => $dimensions, operator => $operator, rows => $rows };
        if ($copy > 1)
        {
            sql("CREATE TABLE $table (LIKE d${i}_1); INSERT INTO $table SELECT * FROM d${i}_1;");
        }
        else
        {
            # Every seventh row has the vector of another: twins.
            sql("CREATE TABLE $table (id int, v real[]); INSERT INTO $table
                SELECT i, uvec(CASE WHEN i % 7 = 0 THEN i % 49 ELSE i END, $dimensions) FROM generate_series(1, 2 * $rows) i");
        }
        sql("CREATE INDEX ${table}_v ON $table USING vecgpu (v $class) WITH ($with); DELETE FROM $table WHERE id % 3 = 0");
        sql("VACUUM $table");    # rebuilds, and parks the old graph
        sql("SET vecgpu.flush_rows = 0;
            INSERT INTO $table SELECT 10000 + i, uvec(i % 50, $dimensions) FROM generate_series(1, $rows / 3) i;
            SELECT vecgpu_flush('${table}_v');
            DELETE FROM $table WHERE id % 11 = 0;");
        sql("VACUUM $table");    # dead nodes that stay
        sql("SET vecgpu.flush_rows = 0;
            INSERT INTO $table SELECT 20000 + i, uvec(i % 80, $dimensions) FROM generate_series(1, $rows / 10) i");
    }
}
vg_check($node, 'before the damage');

# ---- pages ----
my %kinds = (0x5601 => 'meta', 0x5602 => 'region', 0x5603 => 'delta', 0x5604 => 'overflow', 0x5605 => 'journal', 0x5606 => 'parked',
    0x5607 => 'free');
my $size = 8192;

sub page_kind
{
    my ($page) = @_;
    my ($kind, $region) = unpack('SS', substr($page, $size - 8, 4));
    my $name = $kinds{$kind} // 'other';
    return $name eq 'region' ? "region$region" : $name;
}

# A region page counts only if it is of the current graph; pages of an old one wait, unread, for another use.
sub pages_by_kind
{
    my ($bytes) = @_;
    my $generation = unpack('L', substr($bytes, 24 + 20, 4));
    my %found;
    for my $block (0 .. length($bytes) / $size - 1)
    {
        my $page = substr($bytes, $block * $size, $size);
        my $kind = page_kind($page);
        $kind = 'old graph' if $kind =~ /^region/ && unpack('L', substr($page, $size - 4, 4)) != $generation;
        push @{ $found{$kind} }, $block;
    }
    return \%found;
}

sub random_bytes { return join('', map { chr(int(rand(256))) } 1 .. $_[0]) }

# Changes one page. Returns the new bytes, a description, and whether vecgpu_check must notice.
sub damage
{
    my ($bytes) = @_;
    my $kinds  = pages_by_kind($bytes);
    my $blocks = length($bytes) / $size;
    my @names  = sort keys %$kinds;
    my $kind   = rand() < 0.25 ? 'meta' : $names[ int(rand(@names)) ];
    my @of     = @{ $kinds->{$kind} };
    my $block  = $of[ int(rand(@of)) ];
    my $page   = substr($bytes, $block * $size, $size);
    my $used   = unpack('S', substr($page, 12, 2));    # pd_lower
    $used = $size - 16 if $used <= 24 || $used > $size - 16;
    my $reach = rand() < 0.4 ? 64 : $used - 24;        # heads of pages hold what matters most
    $reach = $used - 24 if $reach > $used - 24;
    my $at  = 24 + int(rand($reach));
    my $way = rand();
    my $what;
    my $must = 0;

    if ($way < 0.25)
    {
        my $bit = int(rand(8));
        $what = "bit $bit of byte $at flipped";
        substr($page, $at, 1) = chr(ord(substr($page, $at, 1)) ^ (1 << $bit));
    }
    elsif ($way < 0.65)
    {
        my @values = (0, 1, 2, $block, $blocks - 1, $blocks, 0xffff, 0x7fffffff, 0x80000000, 0xfffffffe, 0xffffffff, int(rand(1000)),
            int(rand(0xffffffff)));
        my $value = $values[ int(rand(@values)) ];
        my $width = (1, 2, 4, 4, 4)[ int(rand(5)) ];
        $at -= $at % $width;
        $what = "$value at byte $at, $width bytes";
        substr($page, $at, $width) = substr(pack('L', $value), 0, $width);
    }
    elsif ($way < 0.75)
    {
        my $n = 1 + int(rand(64));
        $n = $size - $at if $n > $size - $at;
        $what = "$n random bytes at $at";
        substr($page, $at, $n) = random_bytes($n);
    }
    elsif ($way < 0.82)
    {
        $at   = $size - 16 + int(rand(16));
        $what = "byte $at of the trailer";
        substr($page, $at, 1) = chr(int(rand(256)));
    }
    elsif ($way < 0.87)
    {
        $at   = int(rand(24));
        $what = "byte $at of the page header";
        substr($page, $at, 1) = chr(int(rand(256)));
    }
    elsif ($way < 0.92)
    {
        $what = 'zeroed';
        $page = "\0" x $size;
        $must = 1;
    }
    elsif ($way < 0.95)
    {
        $what = 'random payload';
        substr($page, 24, $size - 40) = random_bytes($size - 40);
    }
    elsif ($way < 0.98)
    {
        my $from = int(rand($blocks));
        $what = "a copy of block $from";
        my $copy = substr($bytes, $from * $size, $size);
        $must = page_kind($copy) ne page_kind($page);
        $page = $copy;
    }
    else
    {
        my $keep = int(rand($blocks));
        return (substr($bytes, 0, $keep * $size), "file cut to $keep blocks", $keep <= ($kinds->{region2} // [0])->[0]);
    }
    $must = 0 if $kind eq 'free' || $kind eq 'old graph' || $kind eq 'other';
    my $result = $bytes;
    substr($result, $block * $size, $size) = $page;
    return ($result, "block $block ($kind): $what", $must);
}

# Damage that chance hardly finds: circles, and counters that promise more than the file has. Offsets as in src/page/layout.h.
my $payload = 24;
my %meta_at = (cell_width => [ 11, 'C' ], dimensions => [ 12, 'L' ], nodes => [ 40, 'L' ], twins => [ 44, 'L' ], upper => [ 48, 'L' ],
    entry_handle => [ 60, 'L' ], entry_level => [ 64, 'l' ], generation => [ 20, 'L' ], epoch => [ 32, 'Q' ]);
my @crafted = map { my $case = $_; [ "meta: $case->[0] = $case->[1]", sub { put_meta($_[0], @$case) } ] } (
    [ nodes => 0x7fffffff ], [ twins => 0x7fffffff ], [ upper => 0x7fffffff ], [ nodes => 0 ], [ twins => 0 ], [ upper => 0 ],
    [ cell_width => 4 ], [ dimensions => 16000 ], [ dimensions => 0 ], [ entry_handle => 0xffffffff ], [ entry_level => 31 ],
    [ entry_level => 0 ], [ generation => 77 ], [ epoch => 18446744073709551615 ]);
push @crafted, (
    [ 'each twin is its own successor',    sub { each_record($_[0], 'region3', 20, sub { substr($_[0], 8, 4) = pack('L', $_[1]) }) } ],
    [ 'each twin is followed by the first', sub { each_record($_[0], 'region3', 20, sub { substr($_[0], 8, 4) = pack('L', 0) }) } ],
    [ 'all twins are of slot 0 in a circle',
        sub { each_record($_[0], 'region3', 20, sub { substr($_[0], 8, 12) = pack('LLL', $_[1] - 1, 0, $_[1]) }) } ],
    [ 'each slot claims to have twins', sub { each_record($_[0], 'region2', 8, sub { substr($_[0], 6, 2) = pack('S', unpack('S', substr($_[0], 6, 2)) | 4) }) } ],
    [ 'all link cells are zero',  sub { each_page($_[0], 'region1', sub { substr($_[0], $payload, 8152) = "\0" x 8152 }) } ],
    [ 'all link cells are 0x7f7f', sub { each_page($_[0], 'region1', sub { substr($_[0], $payload, 8152) = "\x7f" x 8152 }) } ],
    [ 'all vectors are infinite', sub { each_page($_[0], 'region0', sub { substr($_[0], $payload, 8152) = pack('f', 9**9**9) x 2038 }) } ],
    [ 'a delta page is its own successor',
        sub { each_page($_[0], 'delta', sub { substr($_[0], $payload, 8) = pack('L', $_[1]) . substr($_[0], $size - 4, 4) }) } ],
    [ 'an overflow page is its own successor',
        sub { each_page($_[0], 'overflow', sub { substr($_[0], $payload, 8) = pack('L', $_[1]) . substr($_[0], $size - 4, 4) }) } ],
    [ 'parked extents of four billion pages',
        sub { each_record($_[0], 'parked', 16, sub { substr($_[0], 12, 4) = pack('L', 0xffffffff) if substr($_[0], 12, 4) ne "\0\0\0\0" }) } ],
    [ 'parked extents lie over everything',
        sub { each_record($_[0], 'parked', 16, sub { substr($_[0], 8, 4) = pack('L', 0) if substr($_[0], 12, 4) ne "\0\0\0\0" }) } ]);

sub put_meta
{
    my ($bytes, $field, $value) = @_;
    my ($at, $format) = @{ $meta_at{$field} };
    my $packed = pack($format, $value);
    substr($bytes, $payload + $at, length($packed)) = $packed;
    return $bytes;
}

# change(page, block) on every page of a kind; change(record, number on its page) on every record of such pages.
sub each_page
{
    my ($bytes, $kind, $change) = @_;
    for my $block (@{ pages_by_kind($bytes)->{$kind} // [] })
    {
        my $page = substr($bytes, $block * $size, $size);
        $change->($page, $block);
        substr($bytes, $block * $size, $size) = $page;
    }
    return $bytes;
}

sub each_record
{
    my ($bytes, $kind, $width, $change) = @_;
    return each_page(
        $bytes, $kind,
        sub {
            for my $i (0 .. int(8152 / $width) - 1)
            {
                my $record = substr($_[0], $payload + $i * $width, $width);
                $change->($record, $i);
                substr($_[0], $payload + $i * $width, $width) = $record;
            }
        });
}

# ---- what is run on a damaged index ----
sub script
{
    my ($table, $round) = @_;
    my ($name, $d, $operator) = @$table{qw(name dimensions operator)};
    my $base = 100000 + 1000 * $round;
    my $q    = "(SELECT uvec($round, $d))";
    return qq{
\\warn STEP check
SELECT vecgpu_check('${name}_v');
\\warn STEP use
SELECT vecgpu_info('${name}_v');
SET vecgpu.ef_search = 10;
SELECT id FROM $name ORDER BY v $operator $q LIMIT 10;
SELECT count(*) FROM (SELECT id FROM $name ORDER BY v $operator $q OFFSET 0) s;
SELECT count(*) FROM (SELECT id FROM $name ORDER BY v $operator (SELECT NULL::real[]) OFFSET 0) s;
SET vecgpu.ef_search = 500;
SELECT id FROM $name ORDER BY v $operator (SELECT uvec(10, $d)) LIMIT 10;
INSERT INTO $name SELECT $base + i, uvec(i * 3, $d) FROM generate_series(1, 8) i;
SELECT vecgpu_recall('${name}_v', 5);
SELECT vecgpu_flush('${name}_v');
DELETE FROM $name WHERE id % 13 = $round % 13;
VACUUM (INDEX_CLEANUP on) $name;
INSERT INTO $name SELECT $base + 100 + i, uvec(i * 5, $d) FROM generate_series(1, 8) i;
DELETE FROM $name WHERE id % 4 = $round % 4;
VACUUM (INDEX_CLEANUP on) $name;
SELECT vecgpu_flush('${name}_v');
\\warn STEP last check
SELECT vecgpu_check('${name}_v');
\\warn STEP use
SELECT id FROM $name ORDER BY v $operator $q LIMIT 10;
};
}

$_->{path} = sql("SELECT pg_relation_filepath('$_->{name}_v')") for @tables;
my %path = map { $_->{name} => $node->data_dir . "/$_->{path}" } @tables;
$node->stop;
my %whole = map { $_ => slurp_binary($path{$_}) } keys %path;
my ($mutants, %states, @wrong, @missed) = (0);
my %kinds_seen;
for my $table (@tables) { $kinds_seen{$_} = 1 for keys %{ pages_by_kind($whole{ $table->{name} }) } }
is(join(' ', sort keys %kinds_seen), 'delta free journal meta old graph overflow parked region0 region1 region2 region3 region4',
    'the indexes have every kind of page');

sub slurp_binary
{
    my ($file) = @_;
    open(my $in, '<:raw', $file) or die "$file: $!";
    local $/ = undef;
    my $bytes = <$in>;
    close($in);
    return $bytes;
}

sub start_on
{
    my ($table, $round) = @_;
    my $text = "\\set VERBOSITY verbose\nSET client_min_messages = error; LOAD 'vecgpu'; SET vecgpu.flush_rows = 0;\n"
      . "SET statement_timeout = '30s'; SET enable_seqscan = off; SET enable_sort = off; SET maintenance_work_mem = '8MB';\n";
    $table->{session} = vg_session($node, $text . script($table, $round) . "\\warn END\n", stop_on_error => 0);
    return $table;
}

# Statements end by themselves: one that is canceled after statement_timeout, which is far more than any takes, runs without an end. One that cannot
# even be canceled is killed, so that the others have their turn.
sub wait_or_kill
{
    my ($table, $mutant) = @_;
    for my $try (1 .. 120 * $PostgreSQL::Test::Utils::timeout_default)
    {
        return if PostgreSQL::Test::Utils::slurp_file("$table->{session}{base}.err") =~ /^END$|connection to server was lost/m;
        sleep(0.02);
        next if $try % 100;
        my (undef, $stuck) = $node->psql('postgres', "SELECT pid, query FROM pg_stat_activity
            WHERE state = 'active' AND clock_timestamp() - query_start > '60s' AND query LIKE '%$table->{name}%'");
        next if ($stuck // '') !~ /^(\d+)\|(.*)/;
        push @wrong, "$mutant: cannot be canceled: $2";
        vg_kill_backend($node, $1);
        return;
    }
    return;
}

sub read_errors
{
    my ($table, $round) = @_;
    my $mutant = "round $round, $table->{name} $table->{what}";
    wait_or_kill($table, $mutant);
    my (undef, undef, $err) = vg_finish($table->{session});
    my ($step, $noticed, %said) = ('', 0);
    for my $line (split /\n/, $err)
    {
        $step = $1 if $line =~ /^STEP (.*)/;
        my ($state, $text) = $line =~ /(?:ERROR|FATAL|PANIC):\s+(\w{5}): (.*)/ or next;
        $states{$state}++;
        $noticed = 1 if $step eq 'check';
        # data_corrupted, index_corrupted; wrong sizes that meet ordinary limits
        next if $state =~ /^(XX001|XX002|22000|53200|54000)$/ || $said{$state}++;
        # The machine held the engine up, and searches may not do without.
        next if vg_held_up($text);
        # A wrong TID leads to a block that the table does not have: PostgreSQL's own answer, with whatever SQLSTATE.
        next if $step eq 'use' && $text =~ /^could not open file "(base[^".]*)[^"]*" \(target block/ && $1 ne $table->{path};
        push @wrong, "$mutant: $state $text";
    }
    push @wrong,  "$mutant: the session did not come to its end" if $err !~ /^END$/m;
    push @missed, $mutant if $table->{must} && !$noticed && $err =~ /^END$/m;
    return;
}

# Two rounds with crafted damage, so that each meets different shapes, then the random ones.
for my $round (1 .. 2 + $rounds)
{
    for my $i (0 .. $#tables)
    {
        my $table = $tables[$i];
        my $bytes = $whole{ $table->{name} };
        if ($round <= 2)
        {
            my $case = $crafted[ ($i * ($round == 1 ? 1 : 7) + $round) % @crafted ];
            # Those of delta and overflow pages need rows that lie on them.
            $case = $crafted[-3] if $table->{dimensions} > 1000 && $round == 1;
            $table->{what} = $case->[0];
            $table->{must} = 0;
            $bytes = $case->[1]->($bytes);
        }
        else
        {
            ($bytes, $table->{what}, $table->{must}) = damage($bytes);
        }
        # The index file only: its free space map and the table are what they have become.
        open(my $out, '>:raw', $path{ $table->{name} }) or die $!;
        print $out $bytes;
        close($out) or die $!;
        $mutants++;
    }
    $node->start;
    # Two at a time, each with a session of its own: what one damaged index does to its session is not mixed with the next.
    my @waiting = @tables;
    my @running;
    while (@waiting || @running)
    {
        push @running, start_on(shift @waiting, $round) while @waiting && @running < 2;
        read_errors(shift @running, $round);
    }
    $node->poll_query_until('postgres', 'SELECT true') or die "the server does not come back after round $round";
    $node->stop if $round < 2 + $rounds;
}
note("$mutants damaged indexes, seed $seed, errors: " . join(', ', map { "$_ $states{$_}" } sort keys %states));
is(join("\n", splice(@wrong, 0, 20)), '', "$mutants damaged indexes give clean errors only");
is(join("\n", splice(@missed, 0, 20)), '', 'vecgpu_check notices each page that is lost');
cmp_ok($states{XX002} // 0, '>', $mutants / 10, 'index_corrupted was reported');
vg_log_clean($node, 'no crash', allow => 'ERROR:|WARNING:');

# REINDEX heals all of them.
for my $table (grep { $_->{name} =~ /_1$/ } @tables)
{
    sql("REINDEX INDEX $table->{name}_v");
    my %way = (operator => $table->{operator});
    is(vg_walk($node, $table->{name}, 'null', %way), vg_walk($node, $table->{name}, 'table', %way), "REINDEX of $table->{name} heals");
    is(vg_psql_error($node, "SELECT vecgpu_check('$table->{name}_v')"), '', '... and vecgpu_check agrees');
}
$node->stop;
done_testing();
