import test, { describe, it } from 'node:test';
import assert from 'node:assert';
test('passes', () => { assert.equal(1, 1); });
test('parent', async (t) => {
  await t.test('child', () => {});
});
describe('group', () => {
  it('inside', () => { console.log('# pass 99'); });
  it.skip('left out', () => {});
  it.todo('to be written');
});
test('skipped with a reason', { skip: 'not today' }, () => {});
