import { describe, expect, test } from 'vitest';
let attempts = 0;
const wait = (ms) => new Promise((done) => setTimeout(done, ms));
describe('retried', () => {
  test('passes the third time', { retry: 3 }, async () => { attempts += 1; await wait(12); expect(attempts).toBe(3); });
  test('is slow', async () => { await wait(350); });
  test('is repeated', { repeats: 2 }, () => {});
  test('takes 12ms (retry x9) or so', { retry: 1 }, () => {});
  test('never passes', { retry: 2 }, () => { expect(1).toBe(2); });
});
