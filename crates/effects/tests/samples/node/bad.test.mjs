import test, { describe, it } from 'node:test';
import assert from 'node:assert';
test('fails', () => { assert.equal(1, 2, 'numbers differ'); });
test('todo that fails', { todo: true }, () => { assert.fail('known'); });
describe('wrong group', () => {
  it('throws', () => { throw new Error('boom'); });
  it('passes beside', () => {});
});
