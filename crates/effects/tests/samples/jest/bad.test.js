describe('wrong', () => {
  test('fails', () => { expect({ a: 1 }).toEqual({ a: 2 }); });
  test('throws', () => { throw new Error('boom'); });
  test('takes its time', async () => { await new Promise((done) => setTimeout(done, 30)); });
});
