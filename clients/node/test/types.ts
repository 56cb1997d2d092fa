// Code of users, for the compiler only: a line that must be refused is marked.

import { createServer, IncomingMessage } from 'node:http';
import { Gatekeeper, Options, Refusal, Stats } from 'evenkeel-gatekeeper';

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
