// A reporter for node:test that writes [name, status] lines.
export default async function* events(source) {
  const open = [];
  for await (const { type, data } of source) {
    if (type === 'test:start') {
      open.length = data.nesting;
      open.push(data.name);
    }
    if (type !== 'test:pass' && type !== 'test:fail') continue;
    if (data.details?.type === 'suite') continue;
    const name = [...open.slice(0, data.nesting), data.name].join(' > ');
    const left = data.skip !== undefined || data.todo !== undefined;
    const status = left ? 'skipped' : type === 'test:pass' ? 'passed' : 'failed';
    yield JSON.stringify([name, status]) + '\n';
  }
}
