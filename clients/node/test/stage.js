// Shared by the tests: a clock that is set, requests without a network, and two kinds of master: a
// scripted peer in this program, and the real one; and the real line door.

'use strict';

const { EventEmitter } = require('node:events');
const { spawn } = require('node:child_process');
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const { Subscriber, XPublisher } = require('zeromq');
const { Gatekeeper } = require('../lib/index.js');

/** Time that passes when it is told to. */
class FakeClock {
  #timers = new Map();
  #next = 1;

  constructor(now) {
    this.at = now;
  }

  now() {
    return this.at;
  }

  setTimeout(call, ms) {
    const id = this.#next;
    this.#next += 1;
    this.#timers.set(id, { call, at: this.at + ms });
    return id;
  }

  clearTimeout(id) {
    this.#timers.delete(id);
  }

  /** Until then, with everything that is due on the way, in its order. */
  advance(ms) {
    const end = this.at + ms;
    for (;;) {
      const due = [...this.#timers].filter(([, timer]) => timer.at <= end);
      if (due.length === 0) break;
      const [id, timer] = due.reduce((a, b) => (b[1].at < a[1].at ? b : a));
      this.#timers.delete(id);
      this.at = Math.max(this.at, timer.at);
      timer.call();
    }
    this.at = end;
  }

  get timers() {
    return this.#timers.size;
  }
}

/** Waits for what is to come, and fails if it does not. */
async function eventually(what, seen) {
  const end = Date.now() + 60_000;
  while (!await seen()) {
    if (Date.now() > end) throw new Error(`not within a minute: ${what}`);
    await new Promise((resolve) => { setTimeout(resolve, 2); });
  }
}

/** A request through a middleware; `done` says what became of it. */
function request(gate, req = { headers: {} }) {
  const res = new EventEmitter();
  const found = { res, passed: 0, headers: {}, status: undefined, body: undefined };
  res.setHeader = (name, value) => { found.headers[name] = value; };
  res.end = (body) => { found.status = res.statusCode; found.body = body; };
  gate(req, res, () => { found.passed += 1; });
  return found;
}

/** A master's sockets, in this program. */
class Peer {
  constructor() {
    this.heard = [];
    this.subscriptions = [];
  }

  static async start() {
    const peer = new Peer();
    peer.accounts = new Subscriber({ linger: 0 });
    peer.orders = new XPublisher({ linger: 0, sendHighWaterMark: 0 });
    await peer.accounts.bind('tcp://127.0.0.1:*');
    await peer.orders.bind('tcp://127.0.0.1:*');
    peer.accounts.subscribe();
    const into = async (socket, list) => {
      for await (const frames of socket) list.push(frames);
    };
    into(peer.accounts, peer.heard).catch(() => {});
    into(peer.orders, peer.subscriptions).catch(() => {});
    return peer;
  }

  /** A gatekeeper that is connected to it, from the first message on. */
  async gatekeeper(options) {
    const before = this.subscriptions.length;
    const gatekeeper = new Gatekeeper({
      domain: 'd',
      server: this.accounts.lastEndpoint,
      control: this.orders.lastEndpoint,
      identifier: (req) => req.id ?? 'c',
      ...options,
    });
    await eventually('a subscription', () => this.subscriptions.length > before && gatekeeper.up);
    await eventually('a message', () => {
      if (this.heard.length === 0) gatekeeper.ask('first');
      return this.heard.some((frames) => frames[2].equals(Buffer.from('first')));
    });
    this.heard.length = 0;
    return gatekeeper;
  }

  /** Says something, and waits until `gatekeeper` has read it. */
  async say(gatekeeper, frames) {
    const read = () => gatekeeper.stats.orders + gatekeeper.stats.ignored;
    const before = read();
    await this.orders.send(frames);
    await eventually('an order is read', () => read() > before);
  }

  order(gatekeeper, identifier, until) {
    return this.say(gatekeeper, ['d\0', 'DELAY_UNTIL', identifier, String(until)]);
  }

  /** The next messages, frames as texts; the extra ones of the start are not among them. */
  async messages(count) {
    const told = () => this.heard.filter((frames) => frames[2].toString() !== 'first');
    await eventually(`${count} messages`, () => told().length >= count);
    return told().map((frames) => frames.map((frame) => frame.latin1Slice()));
  }

  stop() {
    this.accounts.close();
    this.orders.close();
  }
}

/** The binary, as cargo builds it; EVENKEEL names another. */
function binary() {
  const target = process.env.CARGO_TARGET_DIR ?? path.join(__dirname, '../../../target');
  return process.env.EVENKEEL ?? path.join(target, 'debug/evenkeel');
}

/** The program with a configuration that has an admin door. */
class Program {
  /** Starts it in `folder`, and waits for the log line with `open`. */
  async serve(folder, configuration, open) {
    this.folder = folder;
    const file = path.join(folder, 'evenkeel.json');
    const admin = { listen: '127.0.0.1:0' };
    fs.writeFileSync(file, JSON.stringify({ admin, ...configuration }));
    const stdio = ['ignore', 'ignore', 'pipe'];
    this.child = spawn(binary(), ['serve', '--config', file], { stdio });
    let log = '';
    this.child.stderr.setEncoding('utf8').on('data', (text) => { log += text; });
    this.ended = new Promise((resolve) => { this.child.on('close', resolve); });
    this.child.on('error', (error) => { log += error; });
    const line = () => log.split('\n').slice(0, -1).find((one) => one.includes(open));
    await eventually(`${binary()} listens: ${log}`, () => line() || this.child.exitCode !== null);
    const addresses = line()?.match(/127\.0\.0\.1:\d+/g);
    if (addresses?.length !== 3) throw new Error(`not open:\n${log}`);
    this.admin = addresses.pop();
    return addresses;
  }

  /** The value of one series. */
  async metric(series) {
    const text = await (await fetch(`http://${this.admin}/metrics`)).text();
    const line = text.split('\n').find((one) => one.startsWith(`${series} `));
    return Number(line?.slice(series.length + 1));
  }

  async kill() {
    this.child.kill('SIGKILL');
    await this.ended;
    fs.rmSync(this.folder, { recursive: true });
  }
}

/** A folder for the files of a program. */
function folder() {
  return fs.mkdtempSync(path.join(os.tmpdir(), 'evenkeel-'));
}

/** The real master, with these domains. */
class Master extends Program {
  static async start(domains, [accounting, control] = [0, 0]) {
    const master = new Master();
    master.domains = domains;
    const address = (port) => `tcp://127.0.0.1:${port}`;
    const sockets = { accounting: address(accounting), control: address(control) };
    [master.accounting, master.control] = await master.serve(
      folder(), { master: { ...sockets, domains } }, 'master open',
    );
    return master;
  }

  gatekeeper(options) {
    return new Gatekeeper({
      domain: 'd', server: this.accounting, control: this.control, identifier: () => 'c', ...options,
    });
  }

  /** Kills it, and starts it again where it was. */
  async restart() {
    await this.kill();
    return Master.start(this.domains, [this.accounting, this.control].map((at) => at.split(':')[1]));
  }
}

/** The real line door: `tcp` and `unix` are its addresses, `resp` is its port for Redis clients. */
class LineDoor extends Program {
  /** Starts it with these keys in its section. */
  static async start(keys) {
    const door = new LineDoor();
    const home = folder();
    door.unix = `unix://${path.join(home, 'line.sock')}`;
    const listen = ['tcp://127.0.0.1:0', door.unix];
    const line = { listen, resp: '127.0.0.1:0', ...keys };
    const [tcp, resp] = await door.serve(home, { line }, 'line open');
    door.tcp = `tcp://${tcp}`;
    door.resp = Number(resp.split(':')[1]);
    return door;
  }

  /** The number of programs that wait for their turn. */
  waiting() {
    return this.metric('evenkeel_waiting_requests{door="turns"}');
  }
}

let probes = 0;

/**
 * Waits until the master has answered all earlier reports: messages keep their order, so the order
 * for the last report arrives last.
 * @param {number} enough requests that bring an order about
 */
async function settled(gatekeeper, enough = 12) {
  probes += 1;
  const probe = `probe-${probes}`;
  await eventually('an order for a probe', () => {
    if (gatekeeper.until(probe) > 0) return true;
    for (let n = 0; n < enough; n += 1) gatekeeper.ask(probe);
    return false;
  });
}

module.exports = { FakeClock, LineDoor, Master, Peer, eventually, request, settled };
