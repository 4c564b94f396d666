<?php
use PHPUnit\Framework\TestCase;

final class BadTest extends TestCase
{
    public function testFails(): void { echo "OK (9 tests, 9 assertions)\n"; $this->assertSame(1, 2); }
    public function testErrors(): void { throw new RuntimeException('boom'); }
    public function testPassesBeside(): void { $this->assertTrue(true); }
}
