import { test } from 'vitest';
test('passes but leaves a rejection', () => { Promise.reject(new Error('nobody caught me')); });
