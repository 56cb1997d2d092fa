import { EventEmitter } from 'node:events';
import { IncomingMessage, ServerResponse } from 'node:http';

/** An identifier: bytes; a text stands for its UTF-8. Longer than 65536 bytes is not gated. */
export type Identifier = string | Uint8Array;

/** What becomes of a request, in the words of the protocol. */
export type Status = 'ACCEPTED' | 'DELAYED' | 'REJECTED';

/** A decision. */
export interface Verdict {
  status: Status;
  /** Until when the identifier has to wait, in ms since the epoch; 0 or past: not at all. */
  until: number;
  /** The same from now on, in ms; 0: not at all. */
  wait: number;
  /** The same as a Retry-After says it: whole seconds, at least 1. */
  retryAfter: number;
}

/** A request that is refused. */
export interface Refusal extends Verdict {
  status: 'REJECTED';
  identifier: Identifier;
}

/** Counts since the start; `held` and `known` are of this moment. */
export interface Stats {
  accepted: number;
  delayed: number;
  rejected: number;
  /** Requests that passed because they have no identifier, or finding it went wrong. */
  ungated: number;
  /** Delayed requests whose client went away first. */
  cancelled: number;
  /** Orders of the master that were taken in, */
  orders: number;
  /** and messages that are none. */
  ignored: number;
  /** Identifiers forgotten because the table was full. */
  forgotten: number;
  /** Requests that are delayed right now. */
  held: number;
  /** Identifiers in the table. */
  known: number;
}

/** Time, for tests. */
export interface Clock {
  /** Milliseconds since the epoch. */
  now(): number;
  setTimeout(call: () => void, ms: number): unknown;
  clearTimeout(handle: any): void;
}

/** What `next` of Express and Connect is called with. */
export type Next = (error?: unknown) => void;

/** Answers a refused request, or lets it pass by calling `next`. */
export type OnReject<Req = IncomingMessage, Res = ServerResponse> = (
  req: Req,
  res: Res,
  next: Next,
  refusal: Refusal,
) => void;

export interface Options<Req = IncomingMessage, Res = ServerResponse> {
  /** The master's name for what is protected; 1 to 255 bytes. */
  domain: string;
  /**
   * Says who asks; nothing: the request is not gated. Must not take long: every request waits for
   * it. What it throws lets the request pass, and is a `warning`.
   */
  identifier?: (req: Req) => Identifier | number | bigint | null | undefined;
  /** The same under its name in Smockron. */
  identifierCB?: Options<Req, Res>['identifier'];
  /** The master: `[tcp://]host[:port]`; control is the next port. Default: `localhost`, 10004. */
  server?: string;
  /** Where control is, if it is not the next port. Written like `server`. */
  control?: string;
  /**
   * The longest delay, in ms, 0 to 86400000; who would wait longer is refused. Too high: requests
   * pile up, and clients give up first. Default: 5000.
   */
  maxDelay?: number;
  /** What refused requests are answered with, unless there is `onReject`. Default: 503. */
  status?: number;
  /** Answers refused requests. Default: the status, `Retry-After`, and a line of text. */
  onReject?: OnReject<Req, Res>;
  /**
   * Makes a text of a request that the master logs, of which at most 1024 bytes are sent. What it
   * throws is a `warning`. Default: none.
   */
  logInfo?: (req: Req) => string | Uint8Array | undefined;
  /** How many of the refused requests the master is told of, 0 to 1; it only counts them. Default: 1. */
  rejectedSample?: number;
  /** Requests delayed at once; who would be one more is refused. Default: 1000. */
  heldMax?: number;
  /** Identifiers in the table; of more, some are forgotten, and pass. Default: 100000. */
  entriesMax?: number;
  /** What they may take, in bytes, about. Default: 32 MiB. */
  bytesMax?: number;
  /** Default: this machine's. */
  clock?: Clock;
}

/**
 * Lets requests run, delays or refuses them by what a master has said, and tells it of them.
 *
 * Events: `up` and `down` when the connections to the master come to stand or break (requests pass
 * as what is known lets them); `warning` with an Error when a request was not gated because its
 * identifier could not be found, or no orders can come any more.
 */
export class Gatekeeper<
  Req extends IncomingMessage = IncomingMessage,
  Res extends ServerResponse = ServerResponse,
> extends EventEmitter {
  /** @throws TypeError or RangeError if an option is not what it should be. */
  constructor(options: Options<Req, Res>);

  /** The client's address: Express's `req.ip`, else the peer's. IPv4 is written as IPv4. */
  static REMOTE_ADDR(req: IncomingMessage): string | undefined;
  /** What a header says; requests without it are not gated. */
  static header(name: string): (req: IncomingMessage) => string | undefined;

  /** For `app.use`. `onReject` takes the place of the option. */
  middleware(onReject?: OnReject<Req, Res>): (req: Req, res: Res, next: Next) => void;
  /**
   * Decides on a request and tells the master, for other servers: who is answered DELAYED is to
   * wait for `wait` ms. `heldMax` is then up to the caller. The master logs `logInfo`.
   */
  ask(identifier: Identifier, logInfo?: string | Uint8Array): Verdict;
  /** Until when the next request has to wait, in ms since the epoch; 0: nothing is known. */
  until(identifier: Identifier): number;
  /** Whether both connections to the master stand. */
  readonly up: boolean;
  readonly stats: Stats;
  /** Leaves the master, so that the program can end. Requests pass as what is known lets them. */
  close(): void;

  on(event: 'up' | 'down', listener: () => void): this;
  on(event: 'warning', listener: (error: Error) => void): this;
  once(event: 'up' | 'down', listener: () => void): this;
  once(event: 'warning', listener: (error: Error) => void): this;
}
