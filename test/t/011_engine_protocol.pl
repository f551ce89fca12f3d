# An engine that is not ours, older, newer, mad or mute: searches are answered from the pages. And sessions that are not ours: the engine
# goes on serving the others.
use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/../perl";
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Socket qw(AF_UNIX SOCK_SEQPACKET SOCK_STREAM pack_sockaddr_un);
use Test::More;
use Time::HiRes qw(sleep time);
use VecgpuEngine;
use VecgpuTest;

my $node = ve_node('protocol');
my $folder = $node->data_dir . '/pg_stat_tmp';

sub sql { return $node->safe_psql('postgres', $_[0]) }

# protocol/message.h: SocketPacket
use constant { MAGIC => 0x45504756, HELLO => 1, WELCOME => 2, STAGING => 3, OK => 0, BAD_VERSION => 11, FULL => 12 };

sub packet
{
    my (%set) = @_;
    return pack('L L L l L L Q Q L L', $set{magic} // MAGIC, $set{version} // 2, $set{type} // WELCOME, $set{status} // OK, $set{pid} // $$,
        $set{session} // 7, $set{generation} // 1, $set{bytes} // 0, $set{slots} // 0, 0);
}

sub unpacket
{
    my %got;
    @got{qw(magic version type status pid session generation bytes slots unused)} = unpack('L L L l L L Q Q L L', $_[0]);
    return %got;
}
is(length(packet()), 48, 'a packet has 48 bytes');

# ---- engines that are not ours ----

# A process that listens in place of the engine, and does with each connection what `serve` says. To be ended with stand_down.
sub stand_in
{
    my ($serve, $type) = @_;
    unlink("$folder/vecgpu.sock");
    my $pid = fork() // die "fork: $!";
    if ($pid == 0)
    {
        my $listener;
        $SIG{PIPE} = 'IGNORE';
        # A socket on which nobody listens yet would have the first session start an engine.
        chdir($folder) && socket($listener, AF_UNIX, $type // SOCK_SEQPACKET, 0) && bind($listener, pack_sockaddr_un('stand_in.sock'))
          && listen($listener, 100) && rename('stand_in.sock', 'vecgpu.sock') or POSIX::_exit(1);
        my @held;
        while (accept(my $connection, $listener))
        {
            push @held, $connection if $serve->($connection);
        }
        POSIX::_exit(0);
    }
    die 'the stand-in does not listen' if !ve_until(60, sub { return -S "$folder/vecgpu.sock" });
    return $pid;
}

sub stand_down
{
    my ($pid) = @_;
    kill('KILL', $pid);
    waitpid($pid, 0);
    unlink("$folder/vecgpu.sock");
    return;
}

sub hello { recv($_[0], my $hello, 1000, 0); return $hello // '' }
sub send_all { my ($connection, @packets) = @_; send($connection, $_, 0) for @packets; return 1 }

my $answers = sub { my (@packets) = @_; return sub { hello($_[0]); return send_all($_[0], @packets) } };
my %strangers = (
    'an older engine' => [ $answers->(packet(version => 0, slots => 4, bytes => 4096)), 'version' ],
    'a newer engine' => [ $answers->(packet(version => 3, slots => 4, bytes => 4096)), 'version' ],
    'a newer engine that declines' => [ $answers->(packet(version => 3, status => BAD_VERSION)), 'version' ],
    'an engine that is full' => [ $answers->(packet(status => FULL)) ],
    'an engine that sends no memory' => [ $answers->(packet(slots => 4, bytes => 4096 + 4 * 131456)) ],
    'an engine with 4 billion slots' => [ $answers->(packet(slots => 0xffffffff, bytes => 2**62)) ],
    'an engine that sends another message' => [ $answers->(packet(type => STAGING)) ],
    'an engine that sends garbage' => [ $answers->(join('', map { chr(int(rand(256))) } 1 .. 48)) ],
    'an engine that sends little' => [ $answers->(substr(packet(), 0, 20)) ],
    'an engine that sends much' => [ $answers->(packet() x 200) ],
    'an engine that sends nothing' => [ $answers->('') ],
    'an engine that closes at once' => [ sub { return 0 } ],
    'an engine that closes after the hello' => [ sub { hello($_[0]); return 0 } ],
    'an engine that never answers' => [ sub { return 1 }, 'hung' ],
    'a socket of another type' => [ sub { return 1 }, undef, SOCK_STREAM ],
    );

vg_fill($node, 'items', 5000);
my $exact = sql("SELECT exact('items')");
for my $what (sort keys %strangers)
{
    my ($serve, $reason, $type) = @{ $strangers{$what} };
    my $pid = stand_in($serve, $type);
    my $before = $reason ? ve_fallbacks($node, 'items_v', $reason) : 0;
    my $offset = -s $node->logfile;
    my $session = vg_open($node);
    # Several statements, so that there is a second attempt to connect; and again until the stand-in has got to say what it says.
    ve_until(60, sub {
        my ($out, $err) = vg_ask($session, join('; ', ("SELECT near('items')", 'SELECT pg_sleep(0.07)') x 3, "SELECT near('items')"));
        is($err, '', "$what: no error");
        is(join('|', grep { $_ ne '' } split /\n/, $out), join('|', (split /\n/, $exact) x 4), '... and right answers');
        return !$reason || ve_fallbacks($node, 'items_v', $reason) > $before;
    });
    my $expected = ($reason // '') eq 'version' ? 1 : 0;
    is(scalar(ve_log_lines($node, 'speaks version \d+ of the protocol', $offset)), $expected, "... $expected line in the log about the version");
    is(scalar(ve_log_lines($node, '(LOG|WARNING|ERROR|FATAL):', $offset)), $expected, '... and no other');
    cmp_ok(ve_fallbacks($node, 'items_v', $reason), '>', $before, "... counted as $reason") if $reason;
    like(vg_psql_error($node, "SET vecgpu.fallback = off; SELECT near('items')"), qr/^55000 could not search index "items_v" on the device: version/,
        '... which is an error with fallback = off') if $expected;
    # It goes, and the session gets an engine of ours.
    stand_down($pid);
    vg_close($session) if $what ne 'a newer engine';
    next if $what ne 'a newer engine';
    ve_on_device($node, 'items', "after $what");
    my $queries = ve_counter($node, 'items_v', 'queries');
    ok(ve_until(60, sub { ve_same([$session], 'items', "after $what, the old session"); return ve_counter($node, 'items_v', 'queries') > $queries }),
        '... which the old session finds');
    vg_close($session);
    ve_stop_supervisor($node);
    ok(ve_no_engine($node), '... and which goes again');
}
is(ve_supervisor($node) . join(' ', ve_engines($node)), '', 'as long as somebody listens nobody starts another engine');
{
    # Somebody who waits for an engine can be canceled while nobody answers.
    my $pid = stand_in(sub { return 1 });
    like(vg_psql_error($node, "SET statement_timeout = '1s'; SET vecgpu.fallback = off; SELECT near('items')"), qr/^57014/, 'waiting for an engine that never answers is canceled');
    my $started = time();
    vg_psql_error($node, 'SELECT * FROM vecgpu_mirrors()');
    cmp_ok(time() - $started, '<', 20, 'vecgpu_mirrors() does not wait for it');
    stand_down($pid);
}

# ---- sessions that are not ours ----
ve_on_device($node, 'items', 'our engine');
my $engine = ve_engine($node);
my $offset = -s $node->logfile;

# Connects from another process, which sends packets and then does what `then` says. Returns what it prints.
sub stranger
{
    my ($then) = @_;
    pipe(my $in, my $out) or die "pipe: $!";
    my $pid = fork() // die "fork: $!";
    if ($pid == 0)
    {
        close($in);
        $SIG{PIPE} = 'IGNORE';
        my @connections;
        my $connect = sub {
            my $socket;
            socket($socket, AF_UNIX, SOCK_SEQPACKET, 0) && connect($socket, pack_sockaddr_un('vecgpu.sock')) or return undef;
            push @connections, $socket;
            return $socket;
        };
        chdir($folder);
        alarm(60);
        my $result = eval { $then->($connect) } // "failed: $@";
        syswrite($out, $result);
        POSIX::_exit(0);
    }
    close($out);
    my $result = join('', <$in>);
    waitpid($pid, 0);
    return $result;
}

# What the engine answers to a hello: "status, closed", or "closed".
sub greeting
{
    my ($socket) = @_;
    my $got = '';
    defined(recv($socket, $got, 1000, 0)) or return "error $!";
    return 'closed' if $got eq '';
    my %welcome = unpacket($got);
    my $rest = '';
    recv($socket, $rest, 1000, Socket::MSG_DONTWAIT()) if $welcome{status} == OK;
    return "type $welcome{type}, version $welcome{version}, status $welcome{status}";
}
for my $case (
    [ 'an older session', packet(type => HELLO, version => 0), 'type 2, version 2, status 11' ],
    [ 'a newer session', packet(type => HELLO, version => 3), 'type 2, version 2, status 11' ],
    [ 'a session of our version', packet(type => HELLO), 'type 2, version 2, status 0' ])
{
    my ($what, $hello, $answer) = @$case;
    is(stranger(sub { my $s = $_[0]->(); send($s, $hello, 0); return greeting($s) }), $answer, "$what is told so");
}
for my $case (
    [ 'garbage', join('', map { chr(int(rand(256))) } 1 .. 48) ], [ 'a short packet', substr(packet(type => HELLO), 0, 10) ],
    [ 'a long packet', packet(type => HELLO) x 100 ], [ 'no hello', packet(type => STAGING, bytes => 4096) ],
    [ 'an unknown message', packet(type => 77) ], [ 'a welcome', packet(type => WELCOME) ])
{
    my ($what, $bytes) = @$case;
    # Whatever is said to it, and after a hello too.
    unlike(stranger(sub { my $s = $_[0]->(); send($s, $bytes, 0); return greeting($s) }), qr/status 0$/, "$what is no hello");
    is(stranger(sub { my $s = $_[0]->(); send($s, packet(type => HELLO), 0); greeting($s); send($s, $bytes, 0); recv($s, my $got, 1000, 0); return defined($got) && $got eq '' ? 'closed' : 'open' }),
        'closed', "$what after the hello ends the connection") if $what ne 'no hello';
}
is(stranger(sub { my $s = $_[0]->(); send($s, packet(type => HELLO), 0); greeting($s); send($s, packet(type => HELLO), 0);
            recv($s, my $got, 1000, 0); return defined($got) && $got eq '' ? 'closed' : 'open' }), 'closed', 'two hellos end the connection');
# Staging without memory: an error, or the end of the connection; the engine lives.
stranger(sub { my $s = $_[0]->(); send($s, packet(type => HELLO), 0); greeting($s); send($s, packet(type => STAGING, bytes => 2**40), 0); return greeting($s) });
# Many who say nothing, many who come and go.
is(stranger(sub { my ($connect) = @_; $connect->() or return "connect: $!" for 1 .. 200; return 'all' }), 'all', '200 connections without a word');
is(stranger(sub {
            my ($connect) = @_;
            for (1 .. 300) { my $s = $connect->() or return "connect: $!"; send($s, packet(type => HELLO), 0); close($s) }
            return 'all' }), 'all', '300 hellos without waiting for the answer');
ve_same([$node], 'items', 'with strangers around');
ve_lives($node, $engine, 'the engine has survived them');
ve_slots_free($node, 'after the strangers');
ve_on_device($node, 'items', 'after the strangers');
# None of them holds a descriptor any more.
my $open = sub { return scalar(my @files = glob("/proc/$engine/fd/*")) };
ok(ve_until(60, sub { return $open->() < 60 }), 'the engine has closed their connections') or diag($open->() . ' descriptors');
my @said = ve_log_lines($node, 'vecgpu engine:', $offset);
cmp_ok(scalar(@said), '<', 40, 'the log is not flooded');

vg_check($node, 'at the end');
vg_log_clean($node, 'the whole run', allow => '55000|57014|is disconnected');
$node->stop;
is(ve_leftovers($node, files => 1), '', 'nothing is left at the end');
done_testing();
