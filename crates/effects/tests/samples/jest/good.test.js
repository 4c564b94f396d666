test('passes', () => { expect(1).toBe(1); });
describe('group', () => {
  test('inside', () => { console.log('Tests:       9 failed, 9 total'); });
  describe('deeper', () => { test('still inside (later)', () => {}); });
  test.skip('left out', () => {});
  test.todo('to be written');
  test.each([1, 2])('each %i', (n) => { expect(n).toBeGreaterThan(0); });
});
