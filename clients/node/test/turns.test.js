// Turns at the real line door, with the client here and with a Redis client; and what a door must
// not reply.

'use strict';

const assert = require('node:assert/strict');
const { spawn } = require('node:child_process');
const { once } = require('node:events');
const net = require('node:net');
const path = require('node:path');
const test = require('node:test');
const Redis = require('ioredis');
const { TurnClient, TurnError } = require('../lib/index.js');
const { LineDoor, eventually } = require('./stage.js');

/** Answers may take as long as a slow machine needs. */
const PATIENT = { connectTimeout: 60_000, answerTimeout: 60_000 };
/** A door with one slot. */
const ONE = { turns: { slots: 1, wait_max: '1h' } };
const LIBRARY = JSON.stringify(path.join(__dirname, '../lib/index.js'));

/** A test with a door; `client` makes clients. All are closed at its end. */
function atDoor(name, keys, run) {
  test(name, async () => {
    const door = await LineDoor.start(keys);
    const made = [];
    const client = (address = door.tcp) => {
      const one = new TurnClient(address, PATIENT);
      one.on('warning', (error) => assert.fail(error.message));
      made.push(one);
      return one;
    };
    try {
      await run(door, client);
    } finally {
      made.forEach((one) => one.close());
      await door.kill();
    }
  });
}

/** Waits until this number of programs wait for their turn. */
function waiting(door, count) {
  return eventually(`${count} wait`, async () => await door.waiting() === count);
}

const late = (error) => error instanceof TurnError && error.code === 'LATE';
const busy = (error) => error instanceof TurnError && error.code === 'BUSY';

atDoor('a turn is waited for and given back', ONE, async (door, client) => {
  for (const one of [client(door.tcp), client(door.unix)]) {
    const held = await one.take('a täg', { cost: 120.5 });
    assert.match(held.id, /^\d+$/);
    await assert.rejects(one.take('b', { wait: 1 }), late);
    await assert.rejects(one.take('b', { wait: 0, cost: 1 }), late);
    await assert.rejects(one.tryTake('b'), busy);
    const next = one.take('b');
    await waiting(door, 1);
    await held.done(250);
    await held.done();
    await (await next).done();
  }
});

atDoor('run gives back the turn of a job that fails', ONE, async (door, client) => {
  const one = client();
  assert.equal(await one.run('a', {}, () => 7), 7);
  const fails = () => { throw new Error('no disk'); };
  await assert.rejects(one.run('a', { wait: 50_000 }, fails), /no disk/);
  await one.run('costs', undefined, (turn) => turn.done(2_000));
  await assert.rejects(one.run('a', {}, () => one.tryTake('b')), busy);
  const top = await (await fetch(`http://${door.admin}/api/top?limit=turns`)).json();
  const row = top.limits[0].rows.find(({ key }) => key === 'costs');
  assert.ok(row.cpu_total > 1.9 && row.cpu_total < 2.1, JSON.stringify(row));
});

atDoor('a program that is killed gives its turn back', ONE, async (door, client) => {
  const made = `new (require(${LIBRARY}).TurnClient)('${door.tcp}')`;
  const program = `${made}.take('a').then(({ id }) => console.log(id))`;
  const child = spawn(process.execPath, ['-e', program], { stdio: ['ignore', 'pipe', 'inherit'] });
  // It holds a turn, so it does not end by itself.
  assert.match(String(await once(child.stdout, 'data')), /^\d+\n$/);
  const next = client().take('b');
  await waiting(door, 1);
  child.kill('SIGKILL');
  await (await next).done();
});

atDoor('idle connections do not keep a program running', ONE, async (door) => {
  const program = `new (require(${LIBRARY}).TurnClient)('${door.tcp}').run('a', {}, () => {})`;
  const child = spawn(process.execPath, ['-e', program], { stdio: 'inherit' });
  assert.deepEqual(await once(child, 'exit'), [0, null]);
});

test('a door that was started again gives out turns', async () => {
  const door = await LineDoor.start(ONE);
  const one = new TurnClient(door.tcp, PATIENT);
  const warnings = [];
  one.on('warning', (error) => warnings.push(error.message));
  await one.run('a', {}, (turn) => assert.ok(turn.id));
  await door.kill();
  const nobody = await one.run('a', {}, (turn) => turn.id);
  assert.equal(nobody, null);
  assert.match(warnings[0], /^no turn, because Evenkeel does not answer: .*ECONNREFUSED/);
  const again = await LineDoor.start({ ...ONE, listen: [door.tcp] });
  await one.run('a', {}, (turn) => assert.ok(turn.id));
  assert.equal(warnings.length, 1);
  one.close();
  await again.kill();
});

atDoor('a door without turns is an error', { rate: '1/s' }, async (door, client) => {
  await assert.rejects(client().take('a'), { code: 'ERR', message: /line\.turns/ });
});

test('what is no reply of a door means no turn', async () => {
  let reply;
  const server = net.createServer((socket) => {
    socket.on('error', () => {}).once('data', () => reply(socket));
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  const address = `tcp://127.0.0.1:${server.address().port}`;
  const ask = async (say, answerTimeout = 60_000) => {
    reply = say;
    const client = new TurnClient(address, { connectTimeout: 60_000, answerTimeout });
    const warned = once(client, 'warning');
    const turn = await client.take('a', { wait: 0 });
    await turn.done();
    const [{ message }] = await warned;
    client.close();
    return [turn.id, message.replace(/^no turn, because Evenkeel does not answer: /, '')];
  };
  const text = (bytes) => (socket) => socket.end(bytes);
  for (const [bytes, why] of [
    ['', 'the door closed the connection'],
    ['TURN 1', 'the door closed the connection'],
    ['TURN x\n', 'it replies "TURN x"'],
    ['HTTP/1.1 400 Bad Request\r\n', 'it replies "HTTP/1.1 400 Bad Request\\r"'],
    ['TURN 1\nTURN 2\n', 'it replies more than was asked'],
    ['x'.repeat(2_000), 'it replies more than was asked'],
  ]) {
    assert.deepEqual(await ask(text(bytes)), [null, why]);
  }
  assert.deepEqual(await ask(() => {}, 1), [null, 'it does not reply in time']);
  reply = text('ERR `x` is wrong\n');
  const refused = new TurnClient(address, PATIENT).take('a');
  await assert.rejects(refused, { code: 'ERR', message: '`x` is wrong' });
  server.close();
});

test('arguments that are wrong are refused', async () => {
  for (const wrong of ['', '127.0.0.1:7070', 'tcp://', 'tcp://:1', 'tcp://a:b', 'tcp://a:65536',
    'unix://a', 'udp://a:1']) {
    assert.throws(() => new TurnClient(wrong), TypeError, wrong);
  }
  for (const good of ['unix:///run/a', 'tcp://door.example:7', 'tcp://[::1]:7']) {
    new TurnClient(good).close();
  }
  assert.throws(() => new TurnClient(undefined, { connectTimeout: -1 }), RangeError);
  const client = new TurnClient();
  for (const tag of ['a\nb', undefined, 7]) await assert.rejects(client.take(tag), TypeError);
  for (const wait of [-1, NaN, '5', 1e12]) {
    await assert.rejects(client.take('a', { wait }), RangeError);
  }
});

atDoor('a Redis client takes turns', ONE, async (door) => {
  const redis = new Redis(door.resp, '127.0.0.1');
  const others = [];
  try {
    const id = await redis.call('EK.TAKE', 'a', 'wait=60s', 'cost=100ms');
    assert.match(id, /^\d+$/);
    assert.equal(await redis.call('EK.TRY', 'b'), null);
    assert.equal(await redis.call('EK.TAKE', 'b', 'wait=10ms'), null);
    // A job that waits has a connection of its own.
    const order = [];
    const jobs = ['x', 'y', 'z'].map(async (tag) => {
      const own = redis.duplicate();
      others.push(own);
      const turn = await own.call('EK.TAKE', tag);
      order.push(tag);
      assert.equal(await own.call('EK.DONE', turn, 'cost=20ms'), 1);
    });
    await waiting(door, 3);
    assert.equal(await redis.call('EK.DONE', id), 1);
    await Promise.all(jobs);
    assert.deepEqual(order.sort(), ['x', 'y', 'z']);
    assert.equal(await redis.call('EK.DONE', id), 0);
    await assert.rejects(redis.call('EK.TAKE', 'a', 'now'), /unknown word `now`/);
    // The turn of a connection that ends is free.
    assert.ok(await others[0].call('EK.TAKE', 'x'));
    others[0].disconnect();
    assert.ok(await redis.call('EK.TAKE', 'a'));
  } finally {
    [redis, ...others].forEach((one) => one.disconnect());
  }
});

/** The tenants of a pool, each with its jobs and its workers. All jobs fill whole rounds. */
const TENANTS = [['A', 200, 40], ['B', 2, 2], ['C', 2, 2], ['D', 2, 2], ['E', 2, 2]];
const SLOTS = 4;

/** Returns a function that waits until it was called this number of times. */
function rounds(size) {
  let waiting = [];
  return () => new Promise((resolve) => {
    waiting.push(resolve);
    if (waiting.length < size) return;
    waiting.forEach((go) => go());
    waiting = [];
  });
}

// The order is compared, not the time: jobs run in rounds of one job for each slot.
const POOL = { turns: { slots: SLOTS, wait_max: '1h' } };
atDoor('tenants with few jobs are done first in a pool of workers', POOL, async (door, client) => {
  const [turns, round, order] = [client(), rounds(SLOTS), []];
  const first = await Promise.all(Array.from({ length: SLOTS }, () => turns.take('start')));
  const workers = TENANTS.flatMap(([tenant, jobs, count]) => {
    let left = jobs;
    return Array.from({ length: count }, async () => {
      while (left > 0) {
        left -= 1;
        await turns.run(tenant, { cost: 10 }, async (turn) => {
          await round();
          order.push(tenant);
          await turn.done(10);
        });
      }
    });
  });
  await waiting(door, workers.length);
  first.forEach((turn) => turn.done());
  await Promise.all(workers);
  TENANTS.forEach(([tenant, jobs]) => {
    assert.equal(order.filter((one) => one === tenant).length, jobs, tenant);
  });
  const last = order.findLastIndex((tenant) => tenant !== 'A');
  const before = order.slice(0, last).filter((tenant) => tenant === 'A').length;
  assert.ok(before <= 2 + SLOTS, `${before} turns of A in ${order.join('')}`);
});
