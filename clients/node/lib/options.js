// The options of a gatekeeper, each checked when it is made: a slip is told at once, and nothing is
// found wrong while requests come in.

'use strict';

const { endpoints } = require('./address');

/** The longest delay that may be asked for, as timers count: 24 days would overflow. */
const DELAY_MAX_MS = 86_400_000;
const COUNT_MAX = 10_000_000;
const DOMAIN_BYTES_MAX = 255;

/** The clock of this machine. */
const SYSTEM_CLOCK = {
  now: () => Date.now(),
  setTimeout: (call, ms) => setTimeout(call, ms),
  clearTimeout: (handle) => clearTimeout(handle),
};

const DEFAULTS = {
  server: 'localhost',
  maxDelay: 5_000,
  status: 503,
  rejectedSample: 1,
  heldMax: 1_000,
  entriesMax: 100_000,
  bytesMax: 32 * 1024 * 1024,
  clock: SYSTEM_CLOCK,
};

const KNOWN = [...Object.keys(DEFAULTS), 'domain', 'identifier', 'identifierCB', 'onReject', 'control', 'logInfo'];

/**
 * @param {object} given
 * @returns {object} all of them, with defaults, and with `endpoints`
 * @throws {TypeError | RangeError}
 */
function read(given) {
  const named = given ?? {};
  for (const key of Object.keys(named)) {
    if (!KNOWN.includes(key)) throw new TypeError(`${key}: no such option`);
  }
  const written = Object.entries(named).filter(([, value]) => value !== undefined);
  const options = { ...DEFAULTS, ...Object.fromEntries(written) };
  options.identifier ??= options.identifierCB;
  options.domain = domain(options.domain);
  func(options.identifier, 'identifier: a function that says who asks, such as Gatekeeper.REMOTE_ADDR');
  if (options.logInfo !== undefined) func(options.logInfo, "logInfo: a function that makes a text of a request");
  if (options.onReject !== undefined) func(options.onReject, 'onReject: a function');
  for (const key of ['now', 'setTimeout', 'clearTimeout']) {
    func(options.clock?.[key], `clock.${key}: a function`);
  }
  within(options, 'maxDelay', 0, DELAY_MAX_MS);
  within(options, 'rejectedSample', 0, 1);
  for (const key of ['heldMax', 'entriesMax']) whole(options, key, 0, COUNT_MAX);
  whole(options, 'bytesMax', 0, Number.MAX_SAFE_INTEGER);
  whole(options, 'status', 400, 599);
  options.endpoints = endpoints(options.server);
  if (options.control !== undefined) {
    // Written alike; here the port is that of control itself.
    options.endpoints.control = endpoints(options.control).accounting;
  }
  return options;
}

function domain(name) {
  const fits = typeof name === 'string' && name !== '' && !name.includes('\0');
  if (!fits || Buffer.byteLength(name) > DOMAIN_BYTES_MAX) {
    throw new TypeError(`domain: a name of 1 to ${DOMAIN_BYTES_MAX} bytes, none of which is NUL`);
  }
  return name;
}

function func(value, what) {
  if (typeof value !== 'function') throw new TypeError(what);
}

function within(options, key, least, most) {
  const value = options[key];
  if (typeof value !== 'number' || !(value >= least && value <= most)) {
    throw new RangeError(`${key}: a number from ${least} to ${most}`);
  }
}

function whole(options, key, least, most) {
  within(options, key, least, most);
  if (!Number.isInteger(options[key])) throw new RangeError(`${key}: a whole number`);
}

module.exports = { read };
