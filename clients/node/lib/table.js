// Until when each identifier has to wait: all that a gatekeeper decides by.
//
// A Map, so that `constructor` and `__proto__` are names like any other. Times only roll forward,
// what is over is swept out, and the table is bounded: when it is full, of the entries told
// longest ago the one is forgotten whose wait is over first. Who is forgotten is let in, and is
// told again with its next request. It reads no clock.

'use strict';

/** What an entry takes beside its name, roughly. */
const ENTRY_BYTES = 64;
/** How many of the entries told longest ago are looked at for one to forget. */
const LOOKED_AT = 8;

class Table {
  #until = new Map();
  #bytes = 0;
  #entriesMax;
  #bytesMax;

  /**
   * @param {number} entriesMax identifiers at once
   * @param {number} bytesMax what they may take, about
   */
  constructor(entriesMax, bytesMax) {
    this.#entriesMax = entriesMax;
    this.#bytesMax = bytesMax;
  }

  /** How many identifiers are known. */
  get size() {
    return this.#until.size;
  }

  /**
   * @param {string} key
   * @returns {number} until when it has to wait, in ms since the epoch; 0 if nothing is known
   */
  until(key) {
    return this.#until.get(key) ?? 0;
  }

  /**
   * Takes in what the master says.
   * @param {string} key
   * @param {number} until ms since the epoch
   * @returns {number} how many entries had to be forgotten for it
   */
  tell(key, until) {
    const before = this.#until.get(key);
    if (before !== undefined) {
      // It moves to the end: the order of the Map is the order of telling.
      this.#until.delete(key);
      this.#until.set(key, Math.max(before, until));
      return 0;
    }
    this.#until.set(key, until);
    this.#bytes += bytes(key);
    let forgotten = 0;
    while (this.#until.size > this.#entriesMax || this.#bytes > this.#bytesMax) {
      this.#forgetOne();
      forgotten += 1;
    }
    return forgotten;
  }

  /**
   * Forgets what is over.
   * @param {number} now ms since the epoch
   */
  sweep(now) {
    for (const [key, until] of this.#until) {
      if (until <= now) this.#forget(key);
    }
  }

  #forgetOne() {
    let [first, soonest] = [undefined, Infinity];
    let looked = 0;
    for (const [key, until] of this.#until) {
      if (until < soonest) [first, soonest] = [key, until];
      looked += 1;
      if (looked === LOOKED_AT) break;
    }
    this.#forget(first);
  }

  #forget(key) {
    this.#until.delete(key);
    this.#bytes -= bytes(key);
  }
}

function bytes(key) {
  return key.length + ENTRY_BYTES;
}

/**
 * Identifiers are bytes on the wire. As keys they are texts of which each character is a byte, so
 * that no two share one.
 * @param {string | Uint8Array} identifier a text stands for its UTF-8
 * @returns {string}
 */
function keyOf(identifier) {
  if (typeof identifier === 'string') {
    // eslint-disable-next-line no-control-regex
    if (/^[\x00-\x7f]*$/.test(identifier)) return identifier;
    return Buffer.from(identifier, 'utf8').latin1Slice();
  }
  return Buffer.from(identifier.buffer, identifier.byteOffset, identifier.byteLength).latin1Slice();
}

module.exports = { Table, keyOf };
