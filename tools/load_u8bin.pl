#!/usr/bin/perl
#
# Writes the rows of a .u8bin, .fbin or .ibin file as text for
#   COPY table (id, v) FROM STDIN        one line a row: id <tab> {1,2,...}
# Ids are row numbers, from 0. Perl, because every machine with a Debian PostgreSQL has it.
#
# usage: load_u8bin.pl FILE [first_row [row_count]]
use strict;
use warnings;

die "usage: $0 FILE [first_row [row_count]]\n" if @ARGV < 1 || @ARGV > 3;
my ($file, $first, $count) = @ARGV;
$first //= 0;

my ($template, $width) =
    $file =~ /\.u8bin$/ ? ('C', 1)
  : $file =~ /\.fbin$/  ? ('f<', 4)
  : $file =~ /\.ibin$/  ? ('l<', 4)
  :                       die "$0: $file: unknown kind of file\n";

open(my $in, '<:raw', $file) or die "$0: $file: $!\n";
read($in, my $head, 8) == 8 or die "$0: $file: no head\n";
my ($rows, $dimensions) = unpack('VV', $head);
my $row_bytes = $dimensions * $width;
die "$0: $file: size does not fit $rows x $dimensions\n" if -s $file != 8 + $rows * $row_bytes;

$count = $rows - $first if !defined $count || $first + $count > $rows;
seek($in, 8 + $first * $row_bytes, 0);
for my $row ($first .. $first + $count - 1)
{
    read($in, my $bytes, $row_bytes) == $row_bytes or die "$0: $file: short at row $row\n";
    print $row, "\t{", join(',', unpack("($template)*", $bytes)), "}\n";
}
close(STDOUT) or die "$0: $!\n";
