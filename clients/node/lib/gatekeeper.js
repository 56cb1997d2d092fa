// The gatekeeper: admits, delays or refuses a request by the master's last order for its
// identifier, and reports the request to the master.
//
// A decision is a lookup in a table. No request waits for the master, and after an error here the
// request passes. The table: table.js. The sockets: wire.js. How the master counts: its guide.

'use strict';

const { EventEmitter } = require('node:events');
const options = require('./options');
const { Table, keyOf } = require('./table');
const { Wire } = require('./wire');

/** Requests with a longer identifier are not gated, because the master ignores it too. */
const IDENTIFIER_BYTES_MAX = 65_536;
/** The maximum size of a text for the master's log; a longer one is cut. */
const LOG_INFO_BYTES_MAX = 1_024;
/** The interval at which expired entries are removed. */
const SWEEP_MS = 1_000;
const EMPTY = Buffer.alloc(0);
const TIME = /^\d{1,16}(\.\d{1,9})?$/;

class Gatekeeper extends EventEmitter {
  #options;
  #topic;
  #table;
  #wire;
  #sweeper;
  #held = 0;
  /** The fraction of a refusal that is still to be reported. */
  #untold = 0;
  #stats = {
    accepted: 0, delayed: 0, rejected: 0, ungated: 0, cancelled: 0, orders: 0, ignored: 0, forgotten: 0,
  };

  constructor(given) {
    super();
    this.#options = options.read(given);
    const { domain, endpoints, entriesMax, bytesMax } = this.#options;
    this.#topic = Buffer.from(`${domain}\0`, 'utf8');
    this.#table = new Table(entriesMax, bytesMax);
    this.#wire = new Wire(endpoints, this.#topic, {
      order: (frames) => this.#order(frames),
      state: (up) => this.emit(up ? 'up' : 'down'),
      end: (error) => this.emit('warning', error),
    });
    this.#sweepLater();
  }

  /** The address of the client: Express's `req.ip`, which respects trusted proxies, else the peer's. */
  static REMOTE_ADDR(req) {
    const address = req.ip ?? req.socket?.remoteAddress;
    return address?.replace(/^::ffff:(?=\d+\.)/i, '');
  }

  /** The value of a header; requests without it are not gated. */
  static header(name) {
    const key = name.toLowerCase();
    return (req) => {
      const value = req.headers[key];
      return Array.isArray(value) ? value.join(', ') : value;
    };
  }

  /** Whether both connections to the master are established. */
  get up() {
    return this.#wire.up;
  }

  /** Counts since the start, and the current numbers of held requests and known identifiers. */
  get stats() {
    return { ...this.#stats, held: this.#held, known: this.#table.size };
  }

  /** The time until which the next request of `identifier` must wait, in ms since the epoch; 0: unknown. */
  until(identifier) {
    return this.#table.until(keyOf(identifier));
  }

  /**
   * Decides on a request of `identifier`, and reports it to the master. For servers other than
   * Express and Connect; a DELAYED request must wait until `until`. `logInfo` is for the master's log.
   */
  ask(identifier, logInfo = EMPTY) {
    return this.#ask(identifier, logInfo, true);
  }

  #ask(identifier, logInfo, mayWait) {
    const now = this.#options.clock.now();
    const until = this.#table.until(keyOf(identifier));
    const wait = until - now;
    let status = 'ACCEPTED';
    if (wait > this.#options.maxDelay || (wait > 0 && !mayWait)) status = 'REJECTED';
    else if (wait > 0) status = 'DELAYED';
    this.#stats[status.toLowerCase()] += 1;
    if (status !== 'REJECTED' || this.#isTold()) {
      this.#tell(status, identifier, now, until, logInfo);
    }
    const retryAfter = Math.max(1, Math.ceil(wait / 1000));
    return { status, until, wait: Math.max(0, wait), retryAfter };
  }

  /** Reports the configured fraction of refusals, evenly spread. */
  #isTold() {
    this.#untold += this.#options.rejectedSample;
    if (this.#untold < 1) return false;
    this.#untold -= 1;
    return true;
  }

  #tell(status, identifier, now, until, logInfo) {
    const delayedUntil = status === 'DELAYED' ? String(until) : EMPTY;
    this.#wire.tell([this.#topic, status, identifier, String(now), delayedUntil, text(logInfo)]);
  }

  /**
   * For `app.use`. Refused requests are answered by `onReject`, or else with the status and a
   * Retry-After.
   */
  middleware(onReject = this.#options.onReject) {
    return (req, res, next) => {
      const identifier = this.#identify(req);
      if (identifier === undefined) return next();
      const logInfo = this.#logInfo(req);
      const verdict = this.#ask(identifier, logInfo, this.#held < this.#options.heldMax);
      switch (verdict.status) {
        case 'ACCEPTED': return next();
        case 'DELAYED': return this.#hold(res, next, verdict.wait);
        default: return this.#refuse(req, res, next, onReject, { identifier, ...verdict });
      }
    };
  }

  /** The identifier of the client; undefined if there is none, or if finding it fails. */
  #identify(req) {
    let found;
    try {
      found = this.#options.identifier(req);
      if (typeof found === 'number' || typeof found === 'bigint') found = String(found);
      const length = typeof found === 'string' ? Buffer.byteLength(found) : found?.byteLength;
      const fits = typeof found === 'string' || found instanceof Uint8Array;
      if (fits && length <= IDENTIFIER_BYTES_MAX) return found;
      if (found !== undefined && found !== null) {
        throw new TypeError(`identifier: must be a text or bytes, at most ${IDENTIFIER_BYTES_MAX} bytes`);
      }
    } catch (error) {
      this.emit('warning', error);
    }
    this.#stats.ungated += 1;
    return undefined;
  }

  /** The text for the master's log; empty if making it fails. */
  #logInfo(req) {
    try {
      return this.#options.logInfo?.(req) ?? EMPTY;
    } catch (error) {
      this.emit('warning', error);
      return EMPTY;
    }
  }

  #hold(res, next, wait) {
    const { clock } = this.#options;
    if (res.destroyed) {
      // The client disconnected before the hold, so no close event will follow.
      this.#stats.cancelled += 1;
      return;
    }
    this.#held += 1;
    const end = () => {
      this.#held -= 1;
      res.removeListener('close', cancel);
    };
    const timer = clock.setTimeout(() => {
      end();
      next();
    }, Math.ceil(wait));
    const cancel = () => {
      clock.clearTimeout(timer);
      end();
      this.#stats.cancelled += 1;
    };
    res.on('close', cancel);
  }

  #refuse(req, res, next, onReject, refusal) {
    if (onReject) return onReject(req, res, next, refusal);
    res.statusCode = this.#options.status;
    res.setHeader('Retry-After', String(refusal.retryAfter));
    res.setHeader('Content-Type', 'text/plain; charset=utf-8');
    res.end('Rejected\n');
    return undefined;
  }

  /** Handles a message of the master: four frames, the last of which is a time. */
  #order(frames) {
    const [topic, command, identifier, until] = frames;
    const known = frames.length >= 4 && this.#topic.equals(topic)
      && command.latin1Slice() === 'DELAY_UNTIL' && TIME.test(until.latin1Slice());
    if (!known || identifier.length > IDENTIFIER_BYTES_MAX) {
      this.#stats.ignored += 1;
      return;
    }
    this.#stats.orders += 1;
    this.#stats.forgotten += this.#table.tell(keyOf(identifier), Number(until.latin1Slice()));
  }

  #sweepLater() {
    const { clock } = this.#options;
    this.#sweeper = clock.setTimeout(() => {
      this.#table.sweep(clock.now());
      this.#sweepLater();
    }, SWEEP_MS);
    // The timer of the sweep must not keep the program running.
    this.#sweeper?.unref?.();
  }

  /** Disconnects from the master. Later requests are decided by the known orders. */
  close() {
    this.#options.clock.clearTimeout(this.#sweeper);
    this.#wire.close();
  }
}

/** The bytes for the master's log, cut to the maximum size. */
function text(logInfo) {
  const bytes = logInfo instanceof Uint8Array ? Buffer.from(logInfo) : Buffer.from(String(logInfo));
  return bytes.subarray(0, LOG_INFO_BYTES_MAX);
}

module.exports = { Gatekeeper };
