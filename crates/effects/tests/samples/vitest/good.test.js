import { describe, expect, test } from 'vitest';
test('passes', () => { expect(1).toBe(1); });
describe('group', () => {
  test('inside', () => { console.log('      Tests  9 failed | 2 passed (11)'); });
  test.skip('left out', () => {});
  test.todo('to be written');
  test.each([1, 2])('each %i', (n) => { expect(n).toBeGreaterThan(0); });
  test('slow', async () => { await new Promise((done) => setTimeout(done, 320)); });
});
