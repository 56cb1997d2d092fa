# Apache with mod_perl 2 asks Evenkeel before a request runs, and reports afterwards the CPU time that
# this process has used for it, as the Stonehenge throttle measured it. After any error here, the
# request passes.
#
# For a folder in Perl's @INC, such as /etc/perl. In the configuration of Apache, with mpm_prefork (in
# another MPM the requests of all threads would share one figure):
#
#     PerlModule Evenkeel
#     <Location "/">
#         PerlAccessHandler Evenkeel::access
#         PerlLogHandler Evenkeel::log
#     </Location>
#
# Beside it runs Evenkeel with ../check.yaml. Debian: apt install libapache2-mod-perl2.

package Evenkeel;
use strict;
use warnings;
use Apache2::Connection ();
use Apache2::Const -compile => qw(OK DECLINED HTTP_BAD_REQUEST);
use Apache2::RequestRec ();
use Apache2::RequestUtil ();
use APR::Table ();
use IO::Select ();
use IO::Socket::INET ();

our ($host, $ask_port, $tell_port) = ("127.0.0.1", 9971, 5514);
# With `hold`, `delay` or `queue`, which answer when the wait is over: longer than `max_delay`.
our $timeout = 2;
# After a failure Evenkeel is not asked for this number of seconds (each process by itself).
our $pause = 5;
my $gone_until = 0;

# What this process has used so far, and those of its children that it has waited for.
sub used { my $all = 0; $all += $_ for times; return $all }

sub ask {
    my ($r) = @_;
    my $in = $r->headers_in;
    my @lines = ("GET /check?deny=status HTTP/1.1", "Host: evenkeel", "Connection: close",
                 "X-Real-IP: " . $r->useragent_ip, "X-Original-Method: " . $r->method,
                 "X-Original-URI: " . $r->unparsed_uri);
    my %as = (Host => "X-Original-Host", map { $_ => $_ } "User-Agent", "Cookie", "Signature",
              "Signature-Input", "Signature-Agent");
    for my $name (sort keys %as) {
        my $value = $in->get($name);
        push @lines, "$as{$name}: $value" if defined $value;
    }
    my $socket = IO::Socket::INET->new(PeerAddr => $host, PeerPort => $ask_port, Timeout => 1)
        or die "nothing listens: $@";
    print {$socket} join("\r\n", @lines), "\r\n\r\n" or die "not sent: $!";
    $socket->flush;
    my ($text, $ready, $until) = ("", IO::Select->new($socket), time + $timeout);
    while ($text !~ /\r\n\r\n/) {
        die "no answer in time" unless $ready->can_read($until - time > 0 ? $until - time : 0.01);
        sysread($socket, $text, 4096, length $text) or die "half an answer";
    }
    my ($status) = $text =~ m{^HTTP/1\.1 (\d+)} or die "no answer of Evenkeel's";
    my %head = map { /^([^:]+):\s*(.*)$/ ? (lc $1 => $2) : () } split /\r\n/, $text;
    return ($status, \%head);
}

sub access {
    my ($r) = @_;
    return Apache2::Const::DECLINED if !$r->is_initial_req || time < $gone_until;
    my ($status, $head) = eval { ask($r) };
    if ($@) {
        $gone_until = time + $pause;
        return Apache2::Const::DECLINED;
    }
    if (my $refused = $head->{"x-evenkeel-status"}) {
        # The other table, headers_out, is not used for errors.
        $r->err_headers_out->set("Retry-After" => $head->{"retry-after"});
        return $refused;
    }
    # The request is malformed, and must not pass because of that.
    return Apache2::Const::HTTP_BAD_REQUEST if $status >= 400 && $status < 500;
    $r->pnotes(evenkeel => { id => $head->{"x-evenkeel-id"}, used => used() });
    return Apache2::Const::DECLINED;
}

sub log {
    my ($r) = @_;
    my $asked = $r->pnotes("evenkeel");
    if ($asked && $asked->{id}) {
        my $line = sprintf 'evenkeel id=%s cost=%.6f', $asked->{id}, used() - $asked->{used};
        eval {
            my $socket = IO::Socket::INET->new(PeerAddr => $host, PeerPort => $tell_port,
                                               Proto => "udp");
            $socket->send($line) if $socket;
        };
    }
    return Apache2::Const::OK;
}

1;
