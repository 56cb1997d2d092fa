// Code of users, for the compiler only: a line that must be refused is marked.

import { createServer, IncomingMessage } from 'node:http';
import {
  Gatekeeper, Options, Refusal, Stats, Turn, TurnClient, TurnError, TurnOptions,
} from 'evenkeel-gatekeeper';

interface Request extends IncomingMessage {
  user?: { id: number };
}

const plain = new Gatekeeper({ domain: 'api', identifier: Gatekeeper.REMOTE_ADDR });
const gate = plain.middleware();
createServer((req, res) => gate(req, res, () => res.end('ok')));

const options: Options<Request> = {
  domain: 'api',
  server: 'tcp://master.example:10004',
  identifier: (req) => req.user?.id,
  maxDelay: 2_000,
  logInfo: (req) => `${req.method} ${req.url}`,
  onReject(req, res, next, refusal: Refusal) {
    res.writeHead(429, { 'Retry-After': refusal.retryAfter }).end(String(req.user?.id));
    next();
  },
};
const users = new Gatekeeper(options);
users.on('warning', (error) => error.message);
users.on('down', () => {});
const stats: Stats = users.stats;
users.ask('key', 'GET /');
const verdict = users.ask(Buffer.from('key'));
if (verdict.status === 'DELAYED') setTimeout(() => stats.held, verdict.wait);
new Gatekeeper({ domain: 'api', identifier: Gatekeeper.header('X-Api-Key') }).close();

// @ts-expect-error: the identifier must be a function
new Gatekeeper({ domain: 'api', identifier: 'ip' });
// @ts-expect-error: there is no such option
new Gatekeeper({ domain: 'api', identifier: () => 'x', maxdelay: 1 });
// @ts-expect-error: what it counts is not changed from outside
users.stats = stats;

const turns = new TurnClient('unix:///run/evenkeel/line.sock', { connectTimeout: 500 });
turns.on('warning', (error) => error.message);
const patient: TurnOptions = { cost: 120, wait: 30_000 };
const length: Promise<number> = turns.run('tenant-7', patient, async (turn) => {
  await turn.done(90);
  return turn.id?.length ?? 0;
});
turns.take('tenant-7').then((turn: Turn) => turn.done(), (error: unknown) => {
  if (error instanceof TurnError && error.code === 'LATE') turns.close();
});
// @ts-expect-error: it does not wait
turns.tryTake('tenant-7', { wait: 1 });
// @ts-expect-error: a turn is given back by its own function
turns.done(1);
