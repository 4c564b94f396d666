use strict;
use warnings;
use Test::More;

my $good = @ARGV && $ARGV[0] eq 'good';

ok(1, 'passes');
ok(1);
subtest 'group' => sub {
    plan tests => 2;
    ok(1, 'inside');
    ok($good, 'fails inside');
};
ok($good, 'fails with a # sign');
SKIP: {
    skip 'not today', 1;
    ok(0, 'left out');
}
TODO: {
    local $TODO = 'a bug';
    ok(0, 'known to fail');
}
print "not ok, said nobody\n";
done_testing();
