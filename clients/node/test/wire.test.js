// Orders and reports of gatekeepers: libzmq at both ends, and the other end is scripted by the
// test.

'use strict';

const assert = require('node:assert/strict');
const http = require('node:http');
const test = require('node:test');
const express = require('express');
const { Gatekeeper } = require('../lib/index.js');
const { FakeClock, Peer, eventually, request } = require('./stage.js');

const T = 1_795_206_188_293;

/** A test with a peer, and gatekeepers on a clock that is set; all closed at its end. */
function staged(name, run) {
  test(name, async () => {
    const peer = await Peer.start();
    const clock = new FakeClock(T);
    const made = [];
    const gatekeeper = async (options) => {
      const one = await peer.gatekeeper({ clock, ...options });
      made.push(one);
      return one;
    };
    try {
      await run({ peer, clock, gatekeeper });
    } finally {
      made.forEach((one) => one.close());
      peer.stop();
    }
  });
}

staged('S14: what is told, frame by frame', async ({ peer, clock, gatekeeper }) => {
  const one = await gatekeeper();
  assert.deepEqual(peer.subscriptions.map(([frame]) => frame), [Buffer.from('\x01d\0')]);
  const gate = one.middleware();
  request(gate);
  await peer.order(one, 'c', T + 540);
  request(gate);
  await peer.order(one, 'c', T + 5_001);
  request(gate);
  clock.advance(7);
  request(gate, { id: Buffer.from([0, 0xff]) });
  assert.deepEqual(await peer.messages(4), [
    ['d\0', 'ACCEPTED', 'c', `${T}`, '', ''],
    ['d\0', 'DELAYED', 'c', `${T}`, `${T + 540}`, ''],
    ['d\0', 'REJECTED', 'c', `${T}`, '', ''],
    ['d\0', 'ACCEPTED', '\0\xff', `${T + 7}`, '', ''],
  ]);
});

staged('S7: up to the longest delay it waits, beyond it is refused', async ({ peer, clock, gatekeeper }) => {
  const one = await gatekeeper();
  const gate = one.middleware();
  await peer.order(one, 'c', T + 5_000);
  const held = request(gate);
  assert.equal(held.passed, 0);
  clock.advance(4_999);
  assert.equal(held.passed, 0);
  clock.advance(1);
  assert.equal(held.passed, 1);
  await peer.order(one, 'c', T + 5_000 + 5_001);
  const refused = request(gate);
  assert.deepEqual([refused.passed, refused.status, refused.headers['Retry-After']], [0, 503, '6']);
  assert.equal(refused.body, 'Rejected\n');
  assert.deepEqual([one.stats.delayed, one.stats.rejected, one.stats.held], [1, 1, 0]);
});

staged('S9: who has waited long enough runs, and is forgotten within a second', async ({ peer, clock, gatekeeper }) => {
  const one = await gatekeeper();
  await peer.order(one, 'c', T + 300);
  clock.advance(300);
  assert.equal(request(one.middleware()).passed, 1);
  clock.advance(1_000);
  assert.equal(one.stats.known, 0);
  assert.equal(one.until('c'), 0);
});

staged('S8, S15: what is no order changes nothing', async ({ peer, gatekeeper }) => {
  const one = await gatekeeper();
  await peer.order(one, 'c', T + 2_000);
  for (const frames of [
    ['d\0', 'DELAY_UNTIL', 'c', `${T + 1_500}`],
    ['d\0', 'FORGIVE', 'c', `${T + 9_000}`],
    ['d\0', 'DELAY_UNTIL', 'c'],
    ['d\0'],
    ['d\0x', 'DELAY_UNTIL', 'c', `${T + 9_000}`],
    ['d\0', 'DELAY_UNTIL', 'c', 'NaN'],
    ['d\0', 'DELAY_UNTIL', 'c', ''],
    ['d\0', 'DELAY_UNTIL', 'c', 'Infinity'],
    ['d\0', 'DELAY_UNTIL', 'c', `-${T}`],
    ['d\0', 'DELAY_UNTIL', 'c', '0x7fffffffffff'],
    ['d\0', 'DELAY_UNTIL', 'c', '9'.repeat(400)],
    ['d\0', 'DELAY_UNTIL', 'x'.repeat(70_000), `${T + 9_000}`],
    [Buffer.from('d\0'), Buffer.from([0xff, 0]), Buffer.alloc(3), Buffer.from([0xff])],
  ]) {
    await peer.say(one, frames);
    assert.equal(one.until('c'), T + 2_000, frames.join('|').slice(0, 100));
  }
  await peer.say(one, ['d\0', 'DELAY_UNTIL', 'c', `${T + 2_500}`, 'a fifth frame']);
  assert.equal(one.until('c'), T + 2_500);
  assert.deepEqual([one.stats.orders, one.stats.ignored, one.stats.known], [3, 12, 1]);
});

staged('a client that goes away is held no longer', async ({ peer, clock, gatekeeper }) => {
  const one = await gatekeeper();
  await peer.order(one, 'c', T + 2_000);
  const timers = clock.timers;
  const [gone, stays] = [request(one.middleware()), request(one.middleware())];
  assert.equal(one.stats.held, 2);
  gone.res.emit('close');
  assert.deepEqual([one.stats.held, one.stats.cancelled, clock.timers], [1, 1, timers + 1]);
  clock.advance(2_000);
  // That its answer is over closes it too.
  stays.res.emit('close');
  assert.deepEqual([gone.passed, stays.passed, one.stats.held, one.stats.cancelled], [0, 1, 0, 1]);
  const late = request(one.middleware());
  assert.equal(late.passed, 1);
});

staged('S25: all who come while the time stands are released at it', async ({ peer, clock, gatekeeper }) => {
  const one = await gatekeeper();
  await peer.order(one, 'c', T + 500);
  const held = [0, 1, 2, 3].map(() => request(one.middleware()));
  await peer.order(one, 'c', T + 1_000);
  held.push(request(one.middleware()));
  clock.advance(500);
  assert.deepEqual(held.map(({ passed }) => passed), [1, 1, 1, 1, 0]);
  const told = await peer.messages(5);
  assert.deepEqual(told.map((frames) => frames[4] - T), [500, 500, 500, 500, 1_000]);
});

staged('more than may be held are refused with a true time', async ({ peer, clock, gatekeeper }) => {
  const one = await gatekeeper({ heldMax: 2 });
  await peer.order(one, 'c', T + 1_200);
  const all = [0, 1, 2].map(() => request(one.middleware()));
  assert.deepEqual(all.map(({ status }) => status), [undefined, undefined, 503]);
  assert.equal(all[2].headers['Retry-After'], '2');
  clock.advance(1_200);
  assert.deepEqual(all.map(({ passed }) => passed), [1, 1, 0]);
});

staged('refusals: told of in part, and answered as the application wants', async ({ peer, gatekeeper }) => {
  const asked = [];
  const onReject = (req, res, next, refusal) => {
    asked.push(refusal);
    next();
  };
  const one = await gatekeeper({ rejectedSample: 0.25, status: 429, onReject });
  await peer.order(one, 'c', T + 60_000);
  for (let n = 0; n < 8; n += 1) assert.equal(request(one.middleware()).passed, 1);
  assert.deepEqual(asked[0], {
    identifier: 'c', status: 'REJECTED', until: T + 60_000, wait: 60_000, retryAfter: 60,
  });
  assert.equal(request(one.middleware(null)).status, 429);
  one.ask('last');
  const told = await peer.messages(3);
  assert.deepEqual(told.map((frames) => frames[1]), ['REJECTED', 'REJECTED', 'ACCEPTED']);
});

staged('whom nobody can name passes, and is told of to nobody', async ({ peer, clock, gatekeeper }) => {
  const warnings = [];
  let answer = () => undefined;
  const one = await gatekeeper({ identifier: () => answer() });
  one.on('warning', (error) => warnings.push(error.message));
  const gate = one.middleware();
  for (const nobody of [() => undefined, () => null]) {
    answer = nobody;
    assert.equal(request(gate).passed, 1);
  }
  assert.equal(warnings.length, 0);
  for (const wrong of [() => { throw new Error('no session'); }, () => ({}), () => 'x'.repeat(65_537)]) {
    answer = wrong;
    assert.equal(request(gate).passed, 1);
  }
  assert.equal(warnings[0], 'no session');
  assert.deepEqual([warnings.length, one.stats.ungated], [3, 5]);
  answer = () => 7;
  request(gate);
  assert.deepEqual(await peer.messages(1), [['d\0', 'ACCEPTED', '7', `${clock.at}`, '', '']]);
});

staged('S13: a domain is not the beginning of another', async ({ peer, gatekeeper }) => {
  const short = await gatekeeper({ domain: 'ab' });
  const long = await gatekeeper({ domain: 'abc' });
  await peer.say(long, ['abc\0', 'DELAY_UNTIL', 'c', `${T + 1}`]);
  await peer.say(short, ['ab\0', 'DELAY_UNTIL', 'd', `${T + 1}`]);
  assert.deepEqual([short.until('c'), short.until('d'), short.stats.ignored], [0, T + 1, 0]);
  assert.deepEqual([long.until('c'), long.until('d')], [T + 1, 0]);
});

staged('S17: nothing is kept for a master that is away', async ({ peer, gatekeeper }) => {
  const one = await gatekeeper();
  const states = [];
  one.on('up', () => states.push('up')).on('down', () => states.push('down'));
  const [accounts, orders] = [peer.accounts.lastEndpoint, peer.orders.lastEndpoint];
  peer.stop();
  await eventually('it is missed', () => !one.up && states.includes('down'));
  for (let n = 0; n < 5_000; n += 1) assert.equal(one.ask('away').status, 'ACCEPTED');
  Object.assign(peer, new Peer());
  const { Subscriber, XPublisher } = require('zeromq');
  peer.accounts = new Subscriber({ linger: 0 });
  peer.orders = new XPublisher({ linger: 0 });
  peer.accounts.subscribe();
  await peer.accounts.bind(accounts);
  await peer.orders.bind(orders);
  (async () => { for await (const frames of peer.accounts) peer.heard.push(frames); })().catch(() => {});
  await eventually('it is back', () => {
    one.ask('back');
    return one.up && peer.heard.length > 0;
  });
  assert.ok(peer.heard.every((frames) => frames[2].toString() === 'back'));
  assert.deepEqual([states[0], states.at(-1)], ['down', 'up']);
});

test('Express: accepted, delayed, given up, refused', async () => {
  const peer = await Peer.start();
  const one = await peer.gatekeeper({ identifier: Gatekeeper.REMOTE_ADDR, maxDelay: 60_000 });
  const app = express();
  app.use(one.middleware());
  app.get('/', (req, res) => { res.send('ran'); });
  const server = http.createServer(app).listen(0, '127.0.0.1');
  await eventually('it listens', () => server.address());
  const ask = () => fetch(`http://127.0.0.1:${server.address().port}/`);
  try {
    assert.equal(await (await ask()).text(), 'ran');
    const until = Date.now() + 300;
    await peer.order(one, '127.0.0.1', until);
    assert.equal(await (await ask()).text(), 'ran');
    // A timer counts in whole milliseconds.
    assert.ok(Date.now() >= until - 1);
    await peer.order(one, '127.0.0.1', Date.now() + 50_000);
    const leaving = http.get({ host: '127.0.0.1', port: server.address().port }).on('error', () => {});
    await eventually('it is held', () => one.stats.held > 0);
    leaving.destroy();
    await eventually('it is held no longer', () => one.stats.cancelled === 1 && one.stats.held === 0);
    await peer.order(one, '127.0.0.1', Date.now() + 3_600_000);
    const refused = await ask();
    assert.deepEqual([refused.status, await refused.text()], [503, 'Rejected\n']);
    const after = Number(refused.headers.get('retry-after'));
    assert.ok(after > 3_000 && after <= 3_600, `${after}`);
  } finally {
    server.close();
    server.closeAllConnections();
    one.close();
    peer.stop();
  }
});

staged('orders of any bytes are passed over', async ({ peer, gatekeeper }) => {
  const one = await gatekeeper();
  let state = 1;
  const random = (below) => {
    state = (Math.imul(state, 1_103_515_245) + 12_345) >>> 0;
    return Math.floor((state / 2 ** 32) * below);
  };
  const frame = () => [
    () => 'DELAY_UNTIL',
    () => String(T + random(10_000)),
    () => Buffer.from(Array.from({ length: random(40) }, () => random(256))),
    () => Buffer.alloc(random(3_000), random(256)),
  ][random(4)]();
  for (let n = 0; n < 3_000; n += 1) {
    await peer.orders.send(['d\0', ...Array.from({ length: random(6) }, frame)]);
  }
  await eventually('all are read', () => one.stats.orders + one.stats.ignored === 3_000);
  assert.ok(one.stats.orders > 0 && one.stats.ignored > 0);
  await peer.order(one, 'c', T + 100);
  assert.equal(request(one.middleware()).passed, 0);
});

staged('the text for the log goes in the last frame, cut, and what goes wrong with it is a warning', async ({ peer, gatekeeper }) => {
  const logInfo = (req) => {
    if (req.id === 'bad') throw new Error('no text');
    return `page of ${req.id}`;
  };
  const one = await gatekeeper({ logInfo });
  const warnings = [];
  one.on('warning', (error) => warnings.push(error.message));
  const gate = one.middleware();
  request(gate, { id: 'c' });
  request(gate, { id: 'bad' });
  one.ask('d', Buffer.alloc(2_000, 'x'));
  one.ask('e');
  const told = await peer.messages(4);
  assert.deepEqual(told.map((frames) => frames[5]), ['page of c', '', 'x'.repeat(1_024), '']);
  assert.deepEqual(warnings, ['no text']);
});
