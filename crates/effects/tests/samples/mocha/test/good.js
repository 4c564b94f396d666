const assert = require('node:assert');
describe('good', () => {
  it('passes', () => { assert.equal(1, 1); });
  describe('nested', () => {
    it('inside', () => { console.log('  9 passing (3ms)'); });
    it('to be written');
    it('takes its time', (done) => { setTimeout(done, 90); });
  });
  it.skip('left out', () => {});
});
it('at the top', () => {});
