import { EventEmitter } from 'node:events';
import { IncomingMessage, ServerResponse } from 'node:http';

/** An identifier: bytes, or a text for its UTF-8 bytes. Requests with more than 65536 bytes are not gated. */
export type Identifier = string | Uint8Array;

/** The decision on a request, in the terms of the protocol. */
export type Status = 'ACCEPTED' | 'DELAYED' | 'REJECTED';

/** A decision. */
export interface Verdict {
  status: Status;
  /** The time until which the identifier must wait, in ms since the epoch; 0 or past: no wait. */
  until: number;
  /** The remaining wait, in ms; 0: none. */
  wait: number;
  /** The remaining wait for a Retry-After header: whole seconds, at least 1. */
  retryAfter: number;
}

/** A refused request. */
export interface Refusal extends Verdict {
  status: 'REJECTED';
  identifier: Identifier;
}

/** Counts since the start; `held` and `known` are current numbers. */
export interface Stats {
  accepted: number;
  delayed: number;
  rejected: number;
  /** Requests that passed because they have no identifier, or because finding it failed. */
  ungated: number;
  /** Delayed requests of clients that disconnected before the end of the delay. */
  cancelled: number;
  /** Valid orders received from the master. */
  orders: number;
  /** Messages of the master that are not valid orders. */
  ignored: number;
  /** Identifiers evicted because the table was full. */
  forgotten: number;
  /** Requests that are delayed at present. */
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

/** The `next` function of Express and Connect. */
export type Next = (error?: unknown) => void;

/** Answers a refused request, or admits it by calling `next`. */
export type OnReject<Req = IncomingMessage, Res = ServerResponse> = (
  req: Req,
  res: Res,
  next: Next,
  refusal: Refusal,
) => void;

export interface Options<Req = IncomingMessage, Res = ServerResponse> {
  /** The master's name for the protected service; 1 to 255 bytes. */
  domain: string;
  /**
   * Returns the client of a request; without a value the request is not gated. It must be fast,
   * because every request waits for it. If it throws, the request passes and a `warning` is emitted.
   */
  identifier?: (req: Req) => Identifier | number | bigint | null | undefined;
  /** The same option under its name in Smockron. */
  identifierCB?: Options<Req, Res>['identifier'];
  /** The master: `[tcp://]host[:port]`; control is the next port. Default: `localhost`, 10004. */
  server?: string;
  /** The address of control if it is not the next port. Written like `server`. */
  control?: string;
  /**
   * The longest delay, in ms, 0 to 86400000; a request that would wait longer is refused. If it is
   * too high, requests accumulate and clients time out. Default: 5000.
   */
  maxDelay?: number;
  /** The status for refused requests, unless `onReject` is set. Default: 503. */
  status?: number;
  /** Answers refused requests. Default: the status, `Retry-After`, and a line of text. */
  onReject?: OnReject<Req, Res>;
  /**
   * Returns a text for the master's log; at most 1024 bytes are sent. If it throws, a `warning` is
   * emitted. Default: none.
   */
  logInfo?: (req: Req) => string | Uint8Array | undefined;
  /** The fraction of refused requests that is reported to the master, 0 to 1; the master only counts them. Default: 1. */
  rejectedSample?: number;
  /** The maximum of requests delayed at the same time; further ones are refused. Default: 1000. */
  heldMax?: number;
  /** The maximum of identifiers in the table; above it, some are evicted, and their requests pass. Default: 100000. */
  entriesMax?: number;
  /** The approximate maximum of their memory, in bytes. Default: 32 MiB. */
  bytesMax?: number;
  /** The clock. Default: the system clock. */
  clock?: Clock;
}

/**
 * Admits, delays or refuses requests by the orders of a master, and reports them to it.
 *
 * Events: `up` and `down` when the connections to the master are established or lost (without them
 * the known orders decide); `warning` with an Error when a request was not gated because its
 * identifier could not be found, or when no more orders can arrive.
 */
export class Gatekeeper<
  Req extends IncomingMessage = IncomingMessage,
  Res extends ServerResponse = ServerResponse,
> extends EventEmitter {
  /** @throws TypeError or RangeError if an option is invalid. */
  constructor(options: Options<Req, Res>);

  /** The client's address: Express's `req.ip`, else the peer's. IPv4 is written as IPv4. */
  static REMOTE_ADDR(req: IncomingMessage): string | undefined;
  /** The value of a header; requests without it are not gated. */
  static header(name: string): (req: IncomingMessage) => string | undefined;

  /** For `app.use`. `onReject` overrides the option. */
  middleware(onReject?: OnReject<Req, Res>): (req: Req, res: Res, next: Next) => void;
  /**
   * Decides on a request and reports it to the master, for other servers: a DELAYED request must
   * wait for `wait` ms. The caller enforces its own `heldMax`. The master logs `logInfo`.
   */
  ask(identifier: Identifier, logInfo?: string | Uint8Array): Verdict;
  /** The time until which the next request must wait, in ms since the epoch; 0: unknown. */
  until(identifier: Identifier): number;
  /** Whether both connections to the master are established. */
  readonly up: boolean;
  readonly stats: Stats;
  /** Disconnects from the master, so that the program can end. Later requests are decided by the known orders. */
  close(): void;

  on(event: 'up' | 'down', listener: () => void): this;
  on(event: 'warning', listener: (error: Error) => void): this;
  once(event: 'up' | 'down', listener: () => void): this;
  once(event: 'warning', listener: (error: Error) => void): this;
}

/** What is known of a job before it runs. Times are in ms, at most a year. */
export interface TurnOptions {
  /** What the job will probably cost. Default: what jobs of the tag usually cost. */
  cost?: number;
  /** The longest wait. Default: as long as the door allows (`wait_max`). */
  wait?: number;
}

export interface TurnTimeouts {
  /** The time limit for a connection, in ms. Default: 1000. */
  connectTimeout?: number;
  /**
   * The time limit for an answer, in ms, beyond the wait for the turn. It does not apply to `take`
   * without `wait`. Default: 5000.
   */
  answerTimeout?: number;
}

/** A turn that is held. */
export interface Turn {
  /** Null if the door did not answer: the job runs without a turn. */
  readonly id: string | null;
  /** Gives the turn back. `cost`: the ms that it cost; by default, as long as it was held. */
  done(cost?: number): Promise<void>;
}

/** There is no turn. */
export class TurnError extends Error {
  private constructor();
  /**
   * `LATE`: it did not come in time. `BUSY`: none is free, or too many programs wait. `ERR`: the
   * door refuses the command, or gives out no turns.
   */
  readonly code: 'LATE' | 'BUSY' | 'ERR';
}

/**
 * Takes turns at a line door of Evenkeel: a limited number of jobs runs at once, and tags share the
 * turns fairly. The turns of a program that ends are given back.
 *
 * Event: `warning` with an Error for each job that runs without a turn because the door does not
 * answer.
 */
export class TurnClient extends EventEmitter {
  /**
   * @param address `tcp://HOST:PORT` or `unix:///PATH`. Default: `tcp://127.0.0.1:7070`.
   * @throws TypeError or RangeError if an argument is invalid.
   */
  constructor(address?: string, timeouts?: TurnTimeouts);

  /** Waits for a turn of `tag`, a text without a newline. @throws TurnError */
  take(tag: string, options?: TurnOptions): Promise<Turn>;
  /** Takes a turn of `tag` if one is free. @throws TurnError */
  tryTake(tag: string, options?: Pick<TurnOptions, 'cost'>): Promise<Turn>;
  /**
   * Waits for a turn of `tag`, runs `job`, and gives the turn back. Returns what `job` returns.
   * The job may call `turn.done` itself to state its cost. @throws TurnError
   */
  run<T>(tag: string, options: TurnOptions, job: (turn: Turn) => T | Promise<T>): Promise<T>;
  /** Closes the idle connections. */
  close(): void;

  on(event: 'warning', listener: (error: Error) => void): this;
  once(event: 'warning', listener: (error: Error) => void): this;
}
