<?php
use PHPUnit\Framework\TestCase;

final class GoodTest extends TestCase
{
    public function testPasses(): void { $this->assertSame(1, 1); }
    public function testSkipped(): void { $this->markTestSkipped('not today'); }
    public function testIncomplete(): void { $this->markTestIncomplete('to be written'); }
    public function testRisky(): void { }

    /** @dataProvider numbers */
    public function testEach(int $n): void { $this->assertGreaterThan(0, $n); }
    public static function numbers(): array { return ['one' => [1], [2]]; }
}
