import { describe, expect, test } from 'vitest';
describe('wrong', () => {
  test('fails', () => { expect({ a: 1 }).toEqual({ a: 2 }); });
  test('throws', () => { throw new Error('boom'); });
  test('passes beside', () => {});
  test.fails('is known to fail', () => { expect(1).toBe(2); });
});
