jest.retryTimes(2, { logErrorsBeforeRetry: true });
let attempts = 0;
const wait = (ms) => new Promise((done) => setTimeout(done, ms));
describe('retried', () => {
  test('passes the third time', async () => { attempts += 1; await wait(20); expect(attempts).toBe(3); });
  test('never passes', () => { expect(1).toBe(2); });
  test('passes at once', () => {});
});
