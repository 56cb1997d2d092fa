// Where the master is: one text for both of its sockets.
//
// `[scheme://]host[:port]`. Accounting is on that port, control on the next one. Nothing is
// resolved here; ZeroMQ does that each time it connects.

'use strict';

/** Where masters listen unless they say otherwise. */
const PORT = 10004;
const PORT_MAX = 65535;

const FORM = /^(?:([a-z]+):\/\/)?(\[[0-9A-Fa-f:.%\w]+\]|[^\s:/[\]*]+)(?::(\d{1,5}))?$/;

/**
 * @param {string} server `master.example`, `192.0.2.1:10004`, `tcp://[2001:db8::1]:10004`
 * @returns {{accounting: string, control: string}} what the two sockets connect to
 * @throws {TypeError} if it is none of these
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
    throw new TypeError(`server: ${shown(server)}: the port is 1 to ${PORT_MAX - 1}, as the next one is control`);
  }
  return { accounting: `tcp://${host}:${port}`, control: `tcp://${host}:${port + 1}` };
}

/** A text short enough for a message. */
function shown(text) {
  return JSON.stringify(text.length > 60 ? `${text.slice(0, 60)}...` : text);
}

module.exports = { endpoints };
