// Turns at a line door of Evenkeel: a fair semaphore across processes and machines.
//
// Each turn has a connection of its own while it is waited for or held, because a closed connection
// gives its turns back: a program that crashes does not block the others. Idle connections are kept
// for later turns, and do not keep the program running. If the door does not answer, the job runs
// without a turn. The commands: docs/guide/turns.md of Evenkeel.

'use strict';

const { EventEmitter } = require('node:events');
const net = require('node:net');

const ADDRESS = /^(?:unix:\/\/(\/.*)|tcp:\/\/(?:\[([^\]]+)\]|([^:/[\]]+)):(\d{1,5}))$/;
/** The maximum number of idle connections that are kept. */
const IDLE_MAX = 16;
/** The maximum length of a reply; the longest tells what is wrong with a command. */
const REPLY_MAX = 1024;
/** The longest time that a door accepts: a year. */
const TIME_MAX_MS = 365 * 86_400_000;
/** Timers overflow after 24 days. */
const TIMER_MAX_MS = 2 ** 31 - 1;

/**
 * There is no turn. `code`: `LATE` if it did not come in time, `BUSY` if none is free or too many
 * programs wait, `ERR` if the door refuses the command.
 */
class TurnError extends Error {
  constructor(code, message) {
    super(message);
    this.name = 'TurnError';
    this.code = code;
  }
}

/** A turn that is held. `id` is null if the door did not answer. */
class Turn {
  #give;

  constructor(id, give) {
    this.id = id;
    this.#give = give;
  }

  /** Gives the turn back. `cost`: the ms that it cost; by default, as long as it was held. */
  async done(cost) {
    const option = word('cost', cost);
    const give = this.#give;
    this.#give = undefined;
    await give?.(`DONE ${this.id}${option}\n`);
  }
}

class TurnClient extends EventEmitter {
  #to;
  #connectTimeout;
  #answerTimeout;
  #idle = [];
  #closed = false;

  /** A client of the door at `address`. It connects when a turn is taken. */
  constructor(address = 'tcp://127.0.0.1:7070', timeouts = {}) {
    super();
    const { connectTimeout = 1_000, answerTimeout = 5_000 } = timeouts;
    this.#to = read(address);
    this.#connectTimeout = timer('connectTimeout', connectTimeout);
    this.#answerTimeout = timer('answerTimeout', answerTimeout);
  }

  /**
   * Waits for a turn of `tag`, for `wait` ms at most (by default as long as the door allows).
   * `cost`: the ms that it will probably cost.
   */
  async take(tag, { cost, wait } = {}) {
    const command = `TAKE ${text(tag)}${word('cost', cost)}${word('wait', wait)}\n`;
    return this.#begin(command, wait === undefined ? Infinity : wait + this.#answerTimeout);
  }

  /** Takes a turn of `tag` if one is free. */
  async tryTake(tag, { cost } = {}) {
    return this.#begin(`TRY ${text(tag)}${word('cost', cost)}\n`, this.#answerTimeout);
  }

  /** Waits for a turn of `tag`, runs `job`, and gives it back. Returns what `job` returns. */
  async run(tag, options, job) {
    const turn = await this.take(tag, options);
    try {
      return await job(turn);
    } finally {
      await turn.done();
    }
  }

  /** Closes the idle connections; those of turns are closed when the turns are given back. */
  close() {
    this.#closed = true;
    this.#idle.splice(0).forEach((connection) => connection.close());
  }

  async #begin(command, limit) {
    try {
      const idle = await this.#askIdle(command, limit);
      return this.#turn(...(idle ?? await this.#askNew(command, limit)));
    } catch (error) {
      if (error instanceof TurnError) throw error;
      const why = error.message || error.code;
      const warning = `no turn, because Evenkeel does not answer: ${why}`;
      this.emit('warning', new Error(warning, { cause: error }));
      return new Turn(null);
    }
  }

  /** Asks over an idle connection. Undefined if there is none, or if the door has closed it. */
  async #askIdle(command, limit) {
    const connection = this.#idle.pop();
    try {
      return connection && [connection, await connection.ask(command, limit)];
    } catch (error) {
      if (error.code === 'ETIMEDOUT') throw error;
      return undefined;
    }
  }

  async #askNew(command, limit) {
    const connection = new Connection(this.#to);
    await connection.open(this.#connectTimeout);
    return [connection, await connection.ask(command, limit)];
  }

  #turn(connection, reply) {
    const [, id] = /^TURN (\d+)$/.exec(reply) ?? [];
    if (id !== undefined) {
      return new Turn(id, async (command) => {
        try {
          await connection.ask(command, this.#answerTimeout);
          this.#keep(connection);
        } catch {
          // The turn has ended with its connection.
        }
      });
    }
    const error = refusal(reply);
    if (error === undefined) {
      connection.close();
      throw new Error(`it replies ${JSON.stringify(reply.slice(0, 60))}`);
    }
    this.#keep(connection);
    throw error;
  }

  #keep(connection) {
    if (this.#closed || this.#idle.length >= IDLE_MAX) connection.close();
    else this.#idle.push(connection.rest());
  }
}

/** A connection to the door, on which one command at a time is sent and answered. */
class Connection {
  #socket;
  #input = '';
  #end = new Error('the door closed the connection');
  /** What waits for the connection or for a reply. */
  #waiting;

  constructor(to) {
    this.#socket = net.connect({ ...to, noDelay: true });
    this.#socket.setEncoding('latin1');
    this.#socket.on('connect', () => this.#waiting?.resolve());
    this.#socket.on('data', (text) => this.#read(text));
    this.#socket.on('error', (error) => { this.#end = error; });
    this.#socket.on('close', () => this.#waiting?.reject(this.#end));
  }

  open(limit) {
    return this.#wait(limit, 'it accepts no connection in time');
  }

  /** Sends a command, and returns its reply without the newline. */
  async ask(command, limit) {
    this.#socket.ref();
    if (this.#socket.destroyed) throw this.#end;
    const reply = this.#wait(limit, 'it does not reply in time');
    this.#socket.write(command);
    return reply;
  }

  /** Nothing is asked now: the program may end. */
  rest() {
    this.#socket.unref();
    return this;
  }

  close(error) {
    if (error !== undefined) this.#end = error;
    this.#socket.destroy();
  }

  #read(text) {
    this.#input += text;
    const end = this.#input.indexOf('\n');
    const isWhole = end >= 0 && end === this.#input.length - 1;
    if (isWhole && this.#waiting !== undefined) {
      const reply = this.#input.slice(0, end);
      this.#input = '';
      this.#waiting.resolve(reply);
    } else if (end >= 0 || this.#input.length > REPLY_MAX) {
      this.close(new Error('it replies more than was asked'));
    }
  }

  async #wait(limit, late) {
    let clock;
    const waits = new Promise((resolve, reject) => { this.#waiting = { resolve, reject }; });
    if (limit <= TIMER_MAX_MS) {
      const timedOut = () => this.close(Object.assign(new Error(late), { code: 'ETIMEDOUT' }));
      clock = setTimeout(timedOut, Math.ceil(limit));
    }
    try {
      return await waits;
    } finally {
      clearTimeout(clock);
      this.#waiting = undefined;
    }
  }
}

/** Why there is no turn. Undefined if this is not the reply of a door. */
function refusal(reply) {
  if (reply === 'LATE') return new TurnError('LATE', 'the turn did not come in time');
  if (reply === 'BUSY') return new TurnError('BUSY', 'no turn is free, or too many programs wait');
  if (reply.startsWith('ERR ')) {
    return new TurnError('ERR', Buffer.from(reply.slice(4), 'latin1').toString());
  }
  if (reply !== 'OK' && reply !== 'NO') return undefined;
  return new TurnError('ERR', 'the door gives out no turns: set `line.turns`');
}

/** Where to connect to. */
function read(address) {
  const [, path, ipv6, host = ipv6, port] = ADDRESS.exec(address) ?? [];
  if (path !== undefined) return { path };
  if (host === undefined || Number(port) > 65_535) {
    throw new TypeError(`address: ${address} is not tcp://HOST:PORT or unix:///PATH`);
  }
  return { host, port: Number(port) };
}

function text(tag) {
  if (typeof tag !== 'string' || tag.includes('\n')) {
    throw new TypeError('tag: must be a text without a newline');
  }
  return tag;
}

/** An option of a command. */
function word(name, ms) {
  return ms === undefined ? '' : ` ${name}=${within(name, ms, TIME_MAX_MS).toFixed(3)}ms`;
}

function timer(name, ms) {
  return within(name, ms, TIMER_MAX_MS);
}

function within(name, ms, most) {
  if (typeof ms !== 'number' || !(ms >= 0 && ms <= most)) {
    throw new RangeError(`${name}: must be a number of ms from 0 to ${most}`);
  }
  return ms;
}

module.exports = { TurnClient, TurnError };
