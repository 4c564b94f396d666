# What sample.t is made to do, as [name, status] lines.
my $failed = @ARGV && $ARGV[0] eq 'good' ? 'passed' : 'failed';
print qq(["$_->[0]", "$_->[1]"]\n) for
    ['passes', 'passed'], ['#2', 'passed'],
    ['group > inside', 'passed'], ['group > fails inside', $failed],
    ['fails with a # sign', $failed], ['#5', 'skipped'], ['known to fail', 'skipped'];
