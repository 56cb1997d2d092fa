// The time until which each identifier must wait: the basis of each decision.
//
// It is a Map, so that `constructor` and `__proto__` are ordinary names. Times only move forward,
// expired entries are swept out, and the table is bounded: if it is full, it evicts the entry with
// the earliest end among the entries with the oldest orders. Requests of an evicted identifier
// pass until the master sends the next order for it. The table reads no clock.

'use strict';

/** The approximate size of an entry without its name. */
const ENTRY_BYTES = 64;
/** The number of entries with the oldest orders among which one is chosen for eviction. */
const LOOKED_AT = 8;

class Table {
  #until = new Map();
  #bytes = 0;
  #entriesMax;
  #bytesMax;

  /**
   * @param {number} entriesMax the maximum number of identifiers
   * @param {number} bytesMax the approximate maximum of their memory, in bytes
   */
  constructor(entriesMax, bytesMax) {
    this.#entriesMax = entriesMax;
    this.#bytesMax = bytesMax;
  }

  /** The number of known identifiers. */
  get size() {
    return this.#until.size;
  }

  /**
   * @param {string} key
   * @returns {number} the end of its wait, in ms since the epoch; 0 if unknown
   */
  until(key) {
    return this.#until.get(key) ?? 0;
  }

  /**
   * Records an order of the master.
   * @param {string} key
   * @param {number} until ms since the epoch
   * @returns {number} the number of entries that were evicted for it
   */
  tell(key, until) {
    const before = this.#until.get(key);
    if (before !== undefined) {
      // The entry moves to the end: the Map is ordered by the time of the last order.
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
   * Removes expired entries.
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
 * Identifiers are bytes on the wire. A key is a text in which each character is one byte, so that
 * different identifiers have different keys.
 * @param {string | Uint8Array} identifier a text means its UTF-8 bytes
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
