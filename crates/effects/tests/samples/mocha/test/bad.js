const assert = require('node:assert');
describe('bad', () => {
  it('fails', () => { assert.deepEqual({ a: 1 }, { a: 2 }); });
  it('throws', () => { throw new Error('boom'); });
  describe('with a hook', () => {
    before(() => { throw new Error('hook is broken'); });
    it('never runs', () => {});
  });
});
