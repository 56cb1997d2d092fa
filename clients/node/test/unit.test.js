// Tests without a network: addresses, options, the table.

'use strict';

const assert = require('node:assert/strict');
const test = require('node:test');
const { Gatekeeper } = require('../lib/index.js');
const { endpoints } = require('../lib/address.js');
const { Table, keyOf } = require('../lib/table.js');

test('S24: where the master is', () => {
  for (const [server, accounting, control] of [
    ['localhost', 'tcp://localhost:10004', 'tcp://localhost:10005'],
    ['host:9', 'tcp://host:9', 'tcp://host:10'],
    ['tcp://h:1', 'tcp://h:1', 'tcp://h:2'],
    ['[::1]:5', 'tcp://[::1]:5', 'tcp://[::1]:6'],
    ['tcp://[2001:db8::1]', 'tcp://[2001:db8::1]:10004', 'tcp://[2001:db8::1]:10005'],
    ['192.0.2.1:65534', 'tcp://192.0.2.1:65534', 'tcp://192.0.2.1:65535'],
  ]) {
    assert.deepEqual(endpoints(server), { accounting, control }, server);
  }
  for (const server of [undefined, null, 10004, '', ':10004', '::1', 'h:0', 'h:65535', 'h:99999', 'h:x',
    'tcp://*:77', 'ipc://h', 'http://h', 'h:1/x', 'a b', 'tcp://', 'x'.repeat(1000) + ':']) {
    assert.throws(() => endpoints(server), TypeError, String(server));
  }
});

test('options that are wrong are told at once', () => {
  const good = { domain: 'd', identifier: () => 'c' };
  for (const wrong of [
    undefined, {}, { domain: 'd' }, { identifier: () => 'c' }, { ...good, domain: '' },
    { ...good, domain: 'a\0b' }, { ...good, domain: 'x'.repeat(256) }, { ...good, server: '' },
    { ...good, control: 'x:' }, { ...good, maxDelay: -1 }, { ...good, maxDelay: NaN },
    { ...good, maxDelay: 2 ** 31 }, { ...good, maxDelay: '5' }, { ...good, status: 200 },
    { ...good, rejectedSample: 2 }, { ...good, heldMax: 1.5 }, { ...good, entriesMax: Infinity },
    { ...good, onReject: 'x' }, { ...good, identifier: 'ip' }, { ...good, clock: {} },
    { ...good, maxdelay: 5 },
  ]) {
    assert.throws(() => new Gatekeeper(wrong), /^(Type|Range)Error: [a-z]\w*[.:]/i, JSON.stringify(wrong));
  }
});

test('S8: times roll forward only', () => {
  const table = new Table(10, 10_000);
  table.tell('c', 2000);
  table.tell('c', 1500);
  assert.equal(table.until('c'), 2000);
  table.tell('c', 2500);
  assert.equal(table.until('c'), 2500);
});

test('S16: names of properties are identifiers like any other', () => {
  const table = new Table(10, 10_000);
  for (const key of ['constructor', '__proto__', 'toString', '', 'a;b', 'x'.repeat(300)]) {
    assert.equal(table.until(key), 0, key);
    table.tell(key, 5);
    assert.equal(table.until(key), 5, key);
  }
});

test('what is over is forgotten, and bytes are given back', () => {
  const table = new Table(100, 20 * 74);
  for (let n = 0; n < 20; n += 1) assert.equal(table.tell(`key-000000`.slice(0, 10 - String(n).length) + n, n), 0);
  table.sweep(9);
  assert.equal(table.size, 10);
  for (let n = 20; n < 30; n += 1) assert.equal(table.tell(`key-000000`.slice(0, 8) + n, 100), 0);
  assert.equal(table.tell('one-more-x', 100), 1);
});

test('a full table forgets who waits least of those told longest ago', () => {
  const table = new Table(4, 10_000);
  table.tell('long', 9000);
  table.tell('short', 10);
  table.tell('a', 100);
  table.tell('b', 200);
  assert.equal(table.tell('c', 300), 1);
  assert.equal(table.until('short'), 0);
  assert.equal(table.until('long'), 9000);
  // One that would take all the room has none.
  assert.ok(table.tell('x'.repeat(20_000), 99_999) > 0);
  assert.equal(table.until('x'.repeat(20_000)), 0);
  const none = new Table(0, 0);
  assert.equal(none.tell('c', 1), 1);
  assert.equal(none.size, 0);
});

test('a flood of names leaves the table within its bounds', () => {
  const table = new Table(1000, 100_000);
  for (let n = 0; n < 50_000; n += 1) table.tell(`k${n}`, 1000 + (n % 7));
  assert.ok(table.size <= 1000);
});

test('keys are bytes: no two identifiers share one', () => {
  assert.equal(keyOf('é'), keyOf(Buffer.from('é')));
  assert.notEqual(keyOf('é'), keyOf(Buffer.from('é', 'latin1')));
  assert.notEqual(keyOf(Buffer.from([0xff])), keyOf(Buffer.from([0xfe])));
  assert.equal(keyOf('plain'), keyOf(new Uint8Array(Buffer.from('plain'))));
});

test('who asks', () => {
  const at = (ip, remoteAddress) => Gatekeeper.REMOTE_ADDR({ ip, socket: { remoteAddress } });
  assert.equal(at('192.0.2.1', '127.0.0.1'), '192.0.2.1');
  assert.equal(at(undefined, '::ffff:192.0.2.7'), '192.0.2.7');
  assert.equal(at(undefined, '2001:db8::ffff:1'), '2001:db8::ffff:1');
  assert.equal(Gatekeeper.REMOTE_ADDR({}), undefined);
  const key = Gatekeeper.header('X-Api-Key');
  assert.equal(key({ headers: { 'x-api-key': 'k' } }), 'k');
  assert.equal(key({ headers: {} }), undefined);
});

test('the lock file fetches from whatever registry the reader uses', () => {
  const lock = require('../package-lock.json');
  const named = Object.entries(lock.packages).filter(([, entry]) => entry.resolved !== undefined);
  assert.deepEqual(named, []);
});
