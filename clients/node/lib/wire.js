// The two sockets to the master: accounting sends reports, control receives orders.
//
// Reports are never stored: without a connection they are dropped, and so are unsent reports if a
// connection ends or the network is too slow. A master that does not answer heartbeats counts as
// disconnected. The meaning of messages: gatekeeper.js. The protocol: docs/guide/master.md of
// Evenkeel.

'use strict';

const { Publisher, Subscriber } = require('zeromq');

/** The maximum of queued messages for a master that reads too slowly; more are dropped. */
const READY_MAX = 1000;
/** The maximum of queued orders while this program is busy; more wait at the master, which has a bound. */
const ORDERS_MAX = 10_000;
/** The maximum size of an order; a longer one ends the connection. An identifier of 64 kB fits twice. */
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
   * @param {Buffer} topic the first frame of orders
   * @param {{order: (frames: Buffer[]) => void, state: (up: boolean) => void,
   *   end: (error: Error) => void}} on the handlers of an order, of a change of the connections,
   *   and of an error after which no more orders arrive
   */
  constructor(endpoints, topic, on) {
    this.#onState = on.state;
    this.#onEnd = on.end;
    this.#accounts = new Publisher({
      ...COMMON,
      sendHighWaterMark: READY_MAX,
      sendTimeout: 0,
      // Sends only over an established connection; otherwise ZeroMQ would store messages.
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
   * Sends a report to the master if it is connected.
   * @param {(string | Buffer)[]} frames
   */
  tell(frames) {
    if (!this.#accounts.closed) this.#accounts.send(frames).catch(() => {});
  }

  /** Closes both sockets; unsent messages are dropped. */
  close() {
    this.#accounts.close();
    this.#orders.close();
  }

  /** Whether both connections are established. */
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
        // The socket is closed or has failed: no more orders arrive.
        if (!this.#orders.closed) this.#onEnd(error);
        return;
      }
      order(frames);
    }
  }
}

module.exports = { Wire };
