// Tests with the real master. Requests are reported with times ahead of the master's clock, so that
// its orders depend on these times alone, not on the speed of a test.

'use strict';

const assert = require('node:assert/strict');
const test = require('node:test');
const { FakeClock, Master, eventually, settled } = require('./stage.js');

const HISTORY = { rate: '2/s', burst: 3 };
const GCRA = { ...HISTORY, algorithm: 'gcra' };

/** A test with a master of these rules, and gatekeepers whose clocks are ahead. */
function staged(name, domains, run) {
  test(name, async () => {
    const stage = { master: await Master.start(domains), made: [], start: Date.now() + 30_000 };
    stage.gatekeeper = async (options) => {
      const one = stage.master.gatekeeper({ clock: new FakeClock(stage.start), ...options });
      stage.made.push(one);
      await settled(one);
      return one;
    };
    try {
      await run(stage);
    } finally {
      stage.made.forEach((one) => one.close());
      await stage.master.kill();
    }
  });
}

/** Requests at these times, each after the master has answered the one before: `A`, `R`, `D540`. */
async function outcomes({ gatekeeper, start }, times) {
  const clock = new FakeClock(start);
  const one = await gatekeeper({ clock });
  const found = [];
  for (const time of times) {
    clock.advance(start + time - clock.at);
    const { status, until } = one.ask('c');
    found.push(status === 'DELAYED' ? `D${until - start}` : status[0]);
    await settled(one);
  }
  return found.join(' ');
}

const MIXED = [0, 20, 40, 60, 80, 100, 120, 140, 3_000, 6_000];
const TWENTY = Array.from({ length: 20 }, (_, n) => 10 * n);

staged('S1: history', { d: [HISTORY] }, async (stage) => {
  assert.equal(await outcomes(stage, MIXED), 'A A A D540 D1040 D1540 D2040 D2540 D3040 A');
});

staged('S2: gcra', { d: [GCRA] }, async (stage) => {
  assert.equal(await outcomes(stage, MIXED), 'A A A A D500 D1000 D1500 D2000 A A');
});

staged('S3: history, until it refuses', { d: [{ rate: '1/s', burst: 10 }] }, async (stage) => {
  const expected = `${'A '.repeat(10)}D1090 D2090 D3090 D4090 D5090 R R R R R`;
  assert.equal(await outcomes(stage, TWENTY), expected);
});

staged('S4: gcra, until it refuses', { d: [{ rate: '1/s', burst: 10, algorithm: 'gcra' }] }, async (stage) => {
  const expected = `${'A '.repeat(11)}D1000 D2000 D3000 D4000 D5000 R R R R`;
  assert.equal(await outcomes(stage, TWENTY), expected);
});

const STEADY = Array.from({ length: 10 }, (_, n) => 500 * n);

staged('S5: who keeps to the rate waits for nobody', { d: [HISTORY], k: [GCRA] }, async (stage) => {
  assert.equal(await outcomes(stage, STEADY), 'A A A A A A A A A A');
  const gcra = (options) => stage.gatekeeper({ ...options, domain: 'k' });
  assert.equal(await outcomes({ ...stage, gatekeeper: gcra }, STEADY), 'A A A A A A A A A A');
});

staged('S6, S25: more at once than the master can answer', { d: [HISTORY], k: [GCRA] }, async ({ gatekeeper, start }) => {
  for (const [domain, six, then] of [['d', 500, 1_000], ['k', 1_500, 3_000]]) {
    const one = await gatekeeper({ domain });
    const burst = () => [0, 1, 2].map(() => one.ask('c'));
    assert.ok([...burst(), ...burst()].every(({ status }) => status === 'ACCEPTED'));
    await settled(one);
    assert.equal(one.until('c') - start, six, domain);
    assert.ok(burst().every(({ status, until }) => status === 'DELAYED' && until - start === six));
    await settled(one);
    assert.equal(one.until('c') - start, then, domain);
  }
});

staged('S11, S12: refusals and unknown domains change nothing', { d: [HISTORY] }, async ({ master, gatekeeper, start }) => {
  const one = await gatekeeper({ maxDelay: 0 });
  for (let n = 0; n < 3; n += 1) one.ask('c');
  await settled(one);
  for (let n = 0; n < 50; n += 1) assert.equal(one.ask('c').status, 'REJECTED');
  await settled(one);
  assert.equal(one.until('c') - start, 500);
  assert.equal(await master.metric('evenkeel_master_messages_total{status="rejected"}'), 50);
  const lost = master.gatekeeper({ domain: 'nobody' });
  await eventually('it is heard', () => lost.up);
  for (let n = 0; n < 10; n += 1) assert.equal(lost.ask('c').status, 'ACCEPTED');
  assert.equal(lost.until('c'), 0);
  lost.close();
});

staged('S13: domains are told apart', { ab: [HISTORY], abc: [HISTORY] }, async ({ gatekeeper }) => {
  const [short, long] = [await gatekeeper({ domain: 'ab' }), await gatekeeper({ domain: 'abc' })];
  for (let n = 0; n < 3; n += 1) long.ask('c');
  await settled(long);
  await settled(short);
  assert.ok(long.until('c') > 0);
  assert.deepEqual([short.until('c'), short.stats.ignored], [0, 0]);
});

staged('S16: identifiers of any bytes', { d: [{ rate: '1/h', burst: 1 }] }, async ({ gatekeeper }) => {
  const one = await gatekeeper();
  const names = ['constructor', '__proto__', '', 'x'.repeat(300), 'a;b', 'é', 'x'.repeat(65_536)];
  for (const identifier of [...names, Buffer.from([0, 1, 0xfe, 0xff])]) {
    assert.equal(one.ask(identifier).status, 'ACCEPTED');
    await settled(one);
    assert.equal(one.ask(identifier).status, 'REJECTED', String(identifier).slice(0, 20));
  }
});

staged('S17: the master is killed, and comes back', { d: [{ rate: '1/h', burst: 3 }] }, async (stage) => {
  const one = await stage.gatekeeper();
  for (let n = 0; n < 3; n += 1) one.ask('before');
  await settled(one);
  await stage.master.kill();
  await eventually('it is missed', () => !one.up);
  assert.equal(one.ask('before').status, 'REJECTED', 'what is known holds');
  for (let n = 0; n < 1_500; n += 1) assert.equal(one.ask('meanwhile').status, 'ACCEPTED');
  const ports = [stage.master.accounting, stage.master.control].map((at) => at.split(':')[1]);
  stage.master = await Master.start(stage.master.domains, ports);
  await settled(one);
  assert.equal(one.until('meanwhile'), 0, 'nothing of the outage counts');
  for (let n = 0; n < 3; n += 1) one.ask('after');
  await settled(one);
  assert.equal(one.ask('after').status, 'REJECTED');
});

staged('a master that does not read costs no request', { d: [{ rate: '1/h', burst: 3 }] }, async ({ master, gatekeeper }) => {
  const one = await gatekeeper();
  master.child.kill('SIGSTOP');
  for (let n = 0; n < 100_000; n += 1) assert.equal(one.ask(`client-${n}`).status, 'ACCEPTED');
  master.child.kill('SIGCONT');
  await settled(one);
  const told = await master.metric('evenkeel_master_messages_total{status="accepted"}');
  assert.ok(told < 100_000, `${told}: what did not fit is dropped`);
});

staged('a master that hangs counts as gone', { d: [{ rate: '1/h', burst: 3 }] }, async ({ master, gatekeeper }) => {
  const one = await gatekeeper();
  master.child.kill('SIGSTOP');
  await eventually('it is missed', () => !one.up);
  for (let n = 0; n < 100; n += 1) assert.equal(one.ask('meanwhile').status, 'ACCEPTED');
  master.child.kill('SIGCONT');
  await settled(one);
  assert.equal(one.until('meanwhile'), 0, 'nothing of that time counts');
});

staged('S18: who starts late is told what is in force', { d: [HISTORY] }, async (stage) => {
  const early = await stage.gatekeeper();
  for (let n = 0; n < 3; n += 1) early.ask('c');
  await settled(early);
  const late = stage.master.gatekeeper({ clock: new FakeClock(stage.start) });
  stage.made.push(late);
  await eventually('it is told', () => late.until('c') > 0);
  assert.equal(late.until('c'), early.until('c'));
});

staged('S19: two gatekeepers, one client', { d: [HISTORY] }, async ({ gatekeeper, start }) => {
  const [one, two] = [await gatekeeper(), await gatekeeper()];
  for (const each of [one, two, one, two]) assert.equal(each.ask('c').status, 'ACCEPTED');
  await eventually('both are told', () => one.until('c') > 0 && two.until('c') > 0);
  assert.deepEqual([one.until('c') - start, two.until('c') - start], [500, 500]);
  assert.deepEqual([one.ask('c').status, two.ask('c').status], ['DELAYED', 'DELAYED']);
});

staged('S20, S21: the later of two rules, and no rule at all', {
  d: [{ rate: '2/s', burst: 3 }, { rate: '10/min', burst: 10 }], none: [],
}, async ({ master, gatekeeper, start }) => {
  const one = await gatekeeper();
  for (let n = 0; n < 3; n += 1) one.ask('c');
  await settled(one);
  assert.equal(one.until('c') - start, 500);
  for (let n = 0; n < 7; n += 1) one.ask('c');
  await settled(one);
  // The seven were delayed to 500, and count as of then.
  assert.equal(one.until('c') - start, 6_500);
  const free = master.gatekeeper({ domain: 'none' });
  await eventually('it is up', () => free.up);
  for (let n = 0; n < 100; n += 1) assert.equal(free.ask('c').status, 'ACCEPTED');
  const heard = () => master.metric('evenkeel_master_messages_total{status="unknown"}');
  assert.deepEqual([await heard(), free.stats.orders], [0, 0]);
  free.close();
});
