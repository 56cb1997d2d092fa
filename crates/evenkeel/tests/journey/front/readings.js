// Says which ways of reading a target end at /login. Each is that of frameworks in use.
'use strict';
const http = require('http');

const below = (path) => path === '/login' || path.startsWith('/login/');
const decoded = (path) => { try { return decodeURIComponent(path); } catch { return path; } };
const cut = (path) => path.split('/').map((segment) => segment.split(';')[0]).join('/');
const merged = (path) => path.replace(/\/+/g, '/');
const resolved = (path) => {
  const kept = [];
  for (const segment of path.split('/').slice(1)) {
    if (segment === '..') kept.pop();
    else if (segment !== '.') kept.push(segment);
  }
  return '/' + kept.join('/');
};

const readings = {
  // `new URL(request.url, ...)`, as bare Node is written for.
  whatwg: (path) => new URL('http://site' + path).pathname,
  // Express: as it was sent, in any case.
  express: (path) => path.toLowerCase(),
  // Symfony and Laravel: decoded, dots left alone.
  symfony: (path) => decoded(path),
  // Werkzeug and Rails: decoded, slashes merged.
  werkzeug: (path) => merged(decoded(path)),
  // Tomcat and Jetty: parameters cut, then decoded, then resolved.
  tomcat: (path) => resolved(merged(decoded(cut(path)))),
  // Spring before its firewall: the same, and encoded slashes stay.
  spring: (path) => resolved(merged(cut(path)
    .replace(/%(?!2f)([0-9a-f]{2})/gi, (_, code) => String.fromCharCode(parseInt(code, 16))))),
  // IIS: backslashes are slashes, any case.
  iis: (path) => resolved(merged(decoded(path).replace(/\\/g, '/'))).toLowerCase(),
};

http.createServer((request, response) => {
  const path = request.url.split(/[?#]/)[0];
  const serve = Object.keys(readings).filter((name) => {
    try { return below(readings[name](path)); } catch { return false; }
  });
  response.end(serve.length > 0 ? `limited: ${serve.join(' ')}\n` : 'free\n');
}).listen(Number(process.argv[2]), '127.0.0.1');
