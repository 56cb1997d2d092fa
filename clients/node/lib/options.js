// The options of a gatekeeper. All are checked in the constructor, so that an error is reported at
// once and not while requests arrive.

'use strict';

const { endpoints } = require('./address');

/** The maximum of `maxDelay`: a day. Timers overflow after 24 days. */
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
 * @returns {object} all options, with defaults, and with `endpoints`
 * @throws {TypeError | RangeError}
 */
function read(given) {
  const named = given ?? {};
  for (const key of Object.keys(named)) {
    if (!KNOWN.includes(key)) throw new TypeError(`${key}: unknown option`);
  }
  const written = Object.entries(named).filter(([, value]) => value !== undefined);
  const options = { ...DEFAULTS, ...Object.fromEntries(written) };
  options.identifier ??= options.identifierCB;
  options.domain = domain(options.domain);
  func(options.identifier, 'identifier: must be a function that returns the client, such as Gatekeeper.REMOTE_ADDR');
  if (options.logInfo !== undefined) func(options.logInfo, "logInfo: must be a function that returns a text for a request");
  if (options.onReject !== undefined) func(options.onReject, 'onReject: must be a function');
  for (const key of ['now', 'setTimeout', 'clearTimeout']) {
    func(options.clock?.[key], `clock.${key}: must be a function`);
  }
  within(options, 'maxDelay', 0, DELAY_MAX_MS);
  within(options, 'rejectedSample', 0, 1);
  for (const key of ['heldMax', 'entriesMax']) whole(options, key, 0, COUNT_MAX);
  whole(options, 'bytesMax', 0, Number.MAX_SAFE_INTEGER);
  whole(options, 'status', 400, 599);
  options.endpoints = endpoints(options.server);
  if (options.control !== undefined) {
    // The form is the same, but the port is that of control itself.
    options.endpoints.control = endpoints(options.control).accounting;
  }
  return options;
}

function domain(name) {
  const fits = typeof name === 'string' && name !== '' && !name.includes('\0');
  if (!fits || Buffer.byteLength(name) > DOMAIN_BYTES_MAX) {
    throw new TypeError(`domain: must be a name of 1 to ${DOMAIN_BYTES_MAX} bytes without NUL`);
  }
  return name;
}

function func(value, what) {
  if (typeof value !== 'function') throw new TypeError(what);
}

function within(options, key, least, most) {
  const value = options[key];
  if (typeof value !== 'number' || !(value >= least && value <= most)) {
    throw new RangeError(`${key}: must be a number from ${least} to ${most}`);
  }
}

function whole(options, key, least, most) {
  within(options, key, least, most);
  if (!Number.isInteger(options[key])) throw new RangeError(`${key}: must be a whole number`);
}

module.exports = { read };
