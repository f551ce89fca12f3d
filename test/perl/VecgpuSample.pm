# The SIFT sample (test/data/sift20k) in a test node: load it, and take recall against its ground truth.
#
#   use FindBin;
#   use lib "$FindBin::RealBin/../perl";
#   use VecgpuSample;
#   VecgpuSample::load_base($node, 'items');            # items (id int primary key, v real[]), ids 0 .. 19999
#   VecgpuSample::load_queries($node);                  # sample_queries (id, v) and sample_truth (id, d, ids)
#   my $recall = VecgpuSample::recall($node, 'items', settings => ['vecgpu.ef_search = 200']);
package VecgpuSample;

use strict;
use warnings;
use FindBin;
use File::Temp ();
use VecgpuTest ();

our $rows       = 20_000;
our $queries    = 500;
our $dimensions = 128;

# The folder of the sample: beside the tests, wherever they were copied to.
sub folder
{
    return "$FindBin::RealBin/../data/sift20k";
}

# A reference to an array of rows (array references). Optional: first row, number of rows.
sub read_rows
{
    my ($name, $first, $count) = @_;
    my $file = folder() . "/$name";
    my ($template, $width) =
        $name =~ /\.u8bin$/ ? ('C', 1) : $name =~ /\.fbin$/ ? ('f<', 4) : ('l<', 4);
    open(my $in, '<:raw', $file) or die "$file: $!";
    read($in, my $head, 8) == 8 or die "$file: no head";
    my ($n, $d) = unpack('VV', $head);
    $first //= 0;
    $count = $n - $first if !defined $count || $first + $count > $n;
    seek($in, 8 + $first * $d * $width, 0);
    my @rows;
    for (1 .. $count)
    {
        read($in, my $bytes, $d * $width) == $d * $width or die "$file: short";
        push @rows, [ unpack("($template)*", $bytes) ];
    }
    return \@rows;
}

# One row as the text of an array, for use in a statement: '{1,2,3}'.
sub array_text
{
    my ($row) = @_;
    return '{' . join(',', @$row) . '}';
}

# Copies rows of a file into a table (id, v) that exists. Through a file, because the server reads it faster than psql
# takes statements.
sub copy_rows
{
    my ($node, $table, $name, %options) = @_;
    my $first = $options{first} // 0;
    my $id    = $first + ($options{id_offset} // 0);
    my $file  = File::Temp->new(SUFFIX => '.copy');
    for my $row (@{ read_rows($name, $first, $options{count}) })
    {
        print $file $id++, "\t", array_text($row), "\n";
    }
    $file->flush;
    my $path = $file->filename;
    $node->safe_psql($options{dbname} // 'postgres', "COPY $table FROM '$path'");
    return;
}

# Creates the table unless create => 0. Options: first, count (rows of the sample), id_offset, dbname, create,
# definition (columns; default 'id int PRIMARY KEY, v real[]').
sub load_base
{
    my ($node, $table, %options) = @_;
    if ($options{create} // 1)
    {
        my $definition = $options{definition} // 'id int PRIMARY KEY, v real[]';
        $node->safe_psql($options{dbname} // 'postgres', "CREATE TABLE $table ($definition)");
    }
    copy_rows($node, $table, 'base.u8bin', %options);
    return;
}

# sample_queries (id, v); sample_truth (id, d, ids): squared L2 distances and ids of the 100 nearest of all base rows.
sub load_queries
{
    my ($node, %options) = @_;
    my $dbname = $options{dbname} // 'postgres';
    $node->safe_psql(
        $dbname, q{
        CREATE TABLE sample_queries (id int PRIMARY KEY, v real[]);
        CREATE TABLE sample_truth (id int PRIMARY KEY, d float8[], ids int[]);
        CREATE TABLE sample_d (id int, d float8[]);
        CREATE TABLE sample_i (id int, ids int[]);
    });
    copy_rows($node, 'sample_queries', 'query.u8bin', dbname => $dbname);
    copy_rows($node, 'sample_d', 'gt100.fbin', dbname => $dbname);
    copy_rows($node, 'sample_i', 'gt100.ibin', dbname => $dbname);
    $node->safe_psql(
        $dbname, q{
        INSERT INTO sample_truth SELECT id, d, ids FROM sample_d JOIN sample_i USING (id);
        DROP TABLE sample_d, sample_i;
        ANALYZE sample_queries, sample_truth;
    });
    return;
}

# Recall of the index scan on `table`, in SQL. Options:
#   k (10), operator ('<->'), queries (how many, all), settings (list of 'name = value'), dbname,
#   where (a condition on table t; it applies to both sides)
#   truth ('exact': a sequential scan now, right for any content of the table and any operator; 'file': the sample's own
#   ground truth, for '<->' on all 20,000 rows only)
# A result counts if its distance is at most the true k-th, because equal distances may come in any order.
sub recall
{
    my ($node, $table, %options) = @_;
    my $k        = $options{k}        // 10;
    my $operator = $options{operator} // '<->';
    my $limit    = $options{queries}  // $queries;
    my $where    = $options{where} ? "WHERE $options{where}" : '';
    my $truth    = $options{truth} // 'exact';
    my $settings = join('', map { "SET $_;\n" } @{ $options{settings} // [] });
    my $dbname   = $options{dbname} // 'postgres';

    my $search = "SELECT t.v $operator q.v AS distance FROM $table t $where ORDER BY t.v $operator q.v LIMIT $k";
    my $bound =
      $truth eq 'file'
      ? "SELECT id, sqrt(d[$k] + 0.5) AS bound, $k AS expected FROM sample_truth WHERE id < $limit"
      : "SELECT q.id, max(e.distance) AS bound, count(*) AS expected
         FROM sample_queries q CROSS JOIN LATERAL ($search) e WHERE q.id < $limit GROUP BY q.id";

    # LOAD first: the module's settings exist only once it is loaded. The exact side runs as a sequential scan, the
    # measured one must not fall back to it.
    my $result = VecgpuTest::vg_sql(
        $node, qq{
        SET client_min_messages = warning;
        LOAD 'vecgpu';
        SET enable_indexscan = off;
        CREATE TEMP TABLE bounds AS $bound;
        RESET enable_indexscan;
        ANALYZE bounds;
        SET enable_seqscan = off;
        $settings
        SELECT sum(f.hits)::float8 / sum(b.expected)
        FROM bounds b JOIN sample_queries q USING (id)
             CROSS JOIN LATERAL (SELECT count(*) FILTER (WHERE s.distance <= b.bound) AS hits FROM ($search) s) f;
    }, dbname => $dbname);
    return $result;
}

# Does the planner take the index for this search?
sub uses_index
{
    my ($node, $table, $index, %options) = @_;
    my $operator = $options{operator} // '<->';
    my $plan     = $node->safe_psql($options{dbname} // 'postgres',
        "EXPLAIN (COSTS OFF) SELECT id FROM $table ORDER BY v $operator (SELECT v FROM sample_queries WHERE id = 0) LIMIT 10"
    );
    return $plan =~ /Index Scan using \Q$index\E/;
}

1;
