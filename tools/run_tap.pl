#!/usr/bin/perl
#
# Runs TAP test files as prove does and ends with "N passed, M failed", counting assertions. A file that died, lost its
# plan or exited badly without a failed assertion counts as one failure, so that it cannot pass unseen.
#
# usage: run_tap.pl JOBS INCLUDE_DIRS(colon-separated) FILE...
use strict;
use warnings;
use TAP::Harness;

my ($jobs, $include, @files) = @ARGV;
die "usage: $0 JOBS INCLUDE_DIRS FILE...\n" if !@files;

my $harness = TAP::Harness->new(
    { jobs => $jobs, timer => 1, failures => 1, lib => [ split /:/, $include ], merge => 0, verbosity => 0 });
my $result = $harness->runtests(@files);

my $passed = $result->passed;
my $failed = $result->failed;
for my $parser ($result->parsers)
{
    my $broken = $parser->exit || $parser->wait || $parser->parse_errors;
    $failed++ if $broken && !$parser->failed;
}
# A file that left early: planned assertions that never ran are in no list above.
$failed++ if !$result->all_passed && !$failed;
print "$passed passed, $failed failed\n";
exit($failed ? 1 : 0);
