// Opens the page in the file named by the first argument in the browser at $CHROME_BIN, and asks it
// over DevTools. Prints the browser's own version, and how long the page says it took; a second
// argument is an expression that must be true of the page.
const { spawn } = require('child_process');
const { readFileSync } = require('fs');

const [page, wanted] = process.argv.slice(2);
const flags = ['--headless', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--no-first-run',
  '--disable-quic', '--disable-background-networking', '--disable-component-update', '--disable-sync',
  '--remote-debugging-pipe', `--user-data-dir=${process.env.RETAKE_TMP}/profile`];
const browser = spawn(process.env.CHROME_BIN, flags, { stdio: ['ignore', 'ignore', 'inherit', 'pipe', 'pipe'] });
const [, , , commands, answers] = browser.stdio;
const waiting = new Map();
let received = '';
answers.on('data', (bytes) => {
  received += bytes;
  const messages = received.split('\0');
  received = messages.pop();
  for (const { id, method, params, result = params, error } of messages.map((text) => JSON.parse(text))) {
    const [resolve, reject] = waiting.get(id ?? method) ?? [];
    waiting.delete(id ?? method);
    if (error) reject?.(new Error(error.message)); else resolve?.(result);
  }
});
let last = 0;
const ask = (method, params = {}, sessionId = undefined) => new Promise((resolve, reject) => {
  const id = ++last;
  waiting.set(id, [resolve, reject]);
  commands.write(JSON.stringify({ id, method, params, sessionId }) + '\0');
});

const event = (method) => new Promise((...both) => waiting.set(method, both));

async function main() {
  const { product } = await ask('Browser.getVersion');
  const url = `data:text/html;base64,${readFileSync(page).toString('base64')}`;
  const { targetId } = await ask('Target.createTarget', { url: 'about:blank' });
  const { sessionId } = await ask('Target.attachToTarget', { targetId, flatten: true });
  const value = async (expression) => {
    const asked = { expression, returnByValue: true };
    return (await ask('Runtime.evaluate', asked, sessionId)).result.value;
  };
  await ask('Page.enable', {}, sessionId);
  const loaded = event('Page.loadEventFired');
  await ask('Page.navigate', { url }, sessionId);
  await loaded;
  console.log(product);
  console.log(`metric: page=${await value('document.title')} ms`);
  const held = wanted === undefined || await value(wanted);
  await ask('Browser.close');
  return held ? 0 : 1;
}

browser.on('error', (error) => { console.error(error); process.exit(2); });
main().then((code) => { process.exitCode = code; }, (error) => {
  console.error(error);
  browser.kill('SIGKILL');
  process.exitCode = 2;
});
