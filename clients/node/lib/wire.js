// The two sockets to the master: accounting goes out, orders come in.
//
// Nothing is kept for later: while no connection stands, what is told is dropped, and a connection
// that breaks takes with it what was not sent. A master that answers no heartbeat counts as gone.
// What is told never waits: what the network does not take in time is dropped. What messages mean
// to a gatekeeper: gatekeeper.js. The wire: docs/guide/master.md of Evenkeel.

'use strict';

const { Publisher, Subscriber } = require('zeromq');

/** Messages that lie ready for a master that reads too slowly; more are dropped. */
const READY_MAX = 1000;
/** Orders that lie ready while this program is busy; more wait with the master, which has a bound. */
const ORDERS_MAX = 10_000;
/** A longer order is none, and ends the connection: an identifier of 64 kB fits twice. */
const ORDER_BYTES_MAX = 256 * 1024;

const COMMON = {
  ipv6: true,
  linger: 0,
  heartbeatInterval: 2_000,
  heartbeatTimeout: 5_000,
  heartbeatTimeToLive: 10_000,
  reconnectInterval: 100,
  reconnectMaxInterval: 2_000,
};

class Wire {
  #accounts;
  #orders;
  #up = [false, false];
  #onState;
  #onEnd;

  /**
   * @param {{accounting: string, control: string}} endpoints
   * @param {Buffer} topic what orders begin with
   * @param {{order: (frames: Buffer[]) => void, state: (up: boolean) => void,
   *   end: (error: Error) => void}} on what happens with an order, when the connections come to
   *   stand or no longer do, and when no order will come any more
   */
  constructor(endpoints, topic, on) {
    this.#onState = on.state;
    this.#onEnd = on.end;
    this.#accounts = new Publisher({
      ...COMMON,
      sendHighWaterMark: READY_MAX,
      sendTimeout: 0,
      // Only to a connection that stands; without it messages are kept for the next one.
      immediate: true,
    });
    this.#orders = new Subscriber({
      ...COMMON,
      receiveHighWaterMark: ORDERS_MAX,
      maxMessageSize: ORDER_BYTES_MAX,
    });
    this.#watch(0, this.#accounts);
    this.#watch(1, this.#orders);
    try {
      this.#orders.subscribe(topic);
      this.#accounts.connect(endpoints.accounting);
      this.#orders.connect(endpoints.control);
    } catch (error) {
      this.close();
      throw error;
    }
    this.#read(on.order);
  }

  /**
   * Tells the master, if it is there.
   * @param {(string | Buffer)[]} frames
   */
  tell(frames) {
    if (!this.#accounts.closed) this.#accounts.send(frames).catch(() => {});
  }

  /** Closes both sockets; what was not sent is dropped. */
  close() {
    this.#accounts.close();
    this.#orders.close();
  }

  /** Whether both connections stand. */
  get up() {
    return this.#up[0] && this.#up[1];
  }

  #watch(index, socket) {
    const set = (up) => {
      const before = this.up;
      this.#up[index] = up;
      if (this.up !== before) this.#onState(this.up);
    };
    socket.events.on('handshake', () => set(true));
    socket.events.on('disconnect', () => set(false));
    socket.events.on('close', () => set(false));
  }

  async #read(order) {
    for (;;) {
      let frames;
      try {
        frames = await this.#orders.receive();
      } catch (error) {
        // It is closed, or the system takes it away: nothing more will come.
        if (!this.#orders.closed) this.#onEnd(error);
        return;
      }
      order(frames);
    }
  }
}

module.exports = { Wire };
