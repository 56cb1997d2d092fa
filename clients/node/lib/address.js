// The address of the master: one text for both of its sockets.
//
// `[scheme://]host[:port]`. Accounting uses that port, control the next one. Names are not
// resolved here; ZeroMQ resolves them each time it connects.

'use strict';

/** The default port of a master. */
const PORT = 10004;
const PORT_MAX = 65535;

const FORM = /^(?:([a-z]+):\/\/)?(\[[0-9A-Fa-f:.%\w]+\]|[^\s:/[\]*]+)(?::(\d{1,5}))?$/;

/**
 * @param {string} server `master.example`, `192.0.2.1:10004`, `tcp://[2001:db8::1]:10004`
 * @returns {{accounting: string, control: string}} the addresses of the two sockets
 * @throws {TypeError} if `server` has another form
 */
function endpoints(server) {
  if (typeof server !== 'string') {
    throw new TypeError('server: name the master, such as "127.0.0.1:10004"');
  }
  const [, scheme = 'tcp', host, digits] = FORM.exec(server) ?? [];
  const port = digits === undefined ? PORT : Number(digits);
  if (host === undefined || scheme !== 'tcp') {
    throw new TypeError(`server: ${shown(server)} is not [tcp://]host[:port]`);
  }
  if (port < 1 || port >= PORT_MAX) {
    throw new TypeError(`server: ${shown(server)}: the port must be 1 to ${PORT_MAX - 1}, because the next one is control`);
  }
  return { accounting: `tcp://${host}:${port}`, control: `tcp://${host}:${port + 1}` };
}

/** The text, shortened for an error message. */
function shown(text) {
  return JSON.stringify(text.length > 60 ? `${text.slice(0, 60)}...` : text);
}

module.exports = { endpoints };
