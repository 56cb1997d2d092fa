// Answers with the tokens of the path and of the header; where it reads the body, if all of it
// belongs to them.
const http = require('http');

const server = http.createServer((request, response) => {
  const [, way, path] = request.url.split('/');
  const token = request.headers['x-token'] || 'none';
  const said = `${path};${token};`;
  const head = { 'x-token': token, 'content-length': Buffer.byteLength(said) };
  if (way === 'close') head.connection = 'close';
  const answer = (status) => {
    response.writeHead(status, head);
    response.end(said);
  };
  if (way === 'head') {
    response.writeHead(200, head);
    response.flushHeaders();
    setTimeout(() => response.end(said), 5);
    return;
  }
  if (way !== 'read') return answer(200);
  const pieces = [];
  request.on('data', (piece) => pieces.push(piece));
  request.on('end', () => {
    const body = Buffer.concat(pieces).toString('latin1');
    answer((token + ',').repeat(body.length / token.length + 1).startsWith(body) ? 200 : 599);
  });
  request.on('error', () => {});
});
server.keepAliveTimeout = 60000;
server.listen(Number(process.argv[2]), '127.0.0.1');
