// A browser that has a page open over HTTP/2 opens its WebSockets on that connection.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import http from "node:http";
import { tmpdir } from "node:os";
import path from "node:path";
import { after, before, test } from "node:test";
import { promisify } from "node:util";
import { WebSocketServer } from "ws";
import { browse, serve } from "./stage.js";

let browser, folder, site, server;
const handshakes = [];

before(async () => {
  folder = await mkdtemp(path.join(tmpdir(), "evenkeel-"));
  const [cert, key] = ["cert.pem", "key.pem"].map((name) => path.join(folder, name));
  await promisify(execFile)("openssl", [
    "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
    "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert,
  ]);
  site = http.createServer((_, answer) => answer.setHeader("content-type", "text/html").end("<title>chat</title>"));
  const sockets = new WebSocketServer({ server: site, handleProtocols: () => "chat" });
  sockets.on("connection", (socket, request) => {
    handshakes.push(request);
    socket.on("message", (data, binary) => socket.send(data, { binary }));
  });
  site.listen(0, "127.0.0.1");
  await once(site, "listening");
  server = await serve({ tls: { cert, key }, limits: [] }, { backend: `http://127.0.0.1:${site.address().port}` });
  browser = await browse({ acceptInsecureCerts: true });
});

after(async () => {
  await browser?.close();
  await server?.stop();
  site?.closeAllConnections();
  site?.close();
  await rm(folder, { recursive: true, force: true });
});

const metric = async (name) => {
  const text = await (await fetch(`http://${server.admin}/metrics`)).text();
  return Number(text.match(new RegExp(`^${name}{door="proxy"} (.*)$`, "m"))[1]);
};

test("WebSockets talk on the connection of their page, and end with it", async () => {
  const page = await browser.newPage();
  const opened = await page.goto(`https://${server.proxy}/`);
  assert.equal(opened.status(), 200);
  assert.equal(await page.evaluate(() => performance.getEntriesByType("navigation")[0].nextHopProtocol), "h2");
  const before = await metric("evenkeel_connections_accepted_total");
  const heard = await page.evaluate(async () => {
    const talk = async (text) => {
      const socket = new WebSocket(`wss://${location.host}/chat?x=1`, ["chat"]);
      await new Promise((done, failed) => Object.assign(socket, { onopen: done, onerror: () => failed(new Error("no WebSocket")) }));
      const heard = [];
      for (const piece of [text, "x".repeat(300_000)]) {
        const next = new Promise((done) => { socket.onmessage = done; });
        socket.send(piece);
        heard.push((await next).data.length);
      }
      const closed = new Promise((done) => { socket.onclose = done; });
      socket.close(4001, "enough");
      const { code, wasClean } = await closed;
      return { heard, protocol: socket.protocol, code, wasClean };
    };
    return Promise.all([talk("one"), talk("two!")]);
  });
  const proper = { protocol: "chat", code: 4001, wasClean: true };
  assert.deepEqual(heard, [{ heard: [3, 300_000], ...proper }, { heard: [4, 300_000], ...proper }]);
  assert.equal(await metric("evenkeel_connections_accepted_total"), before, "no connection but the page's");
  assert.deepEqual(handshakes.map(({ url, method }) => [method, url]), [["GET", "/chat?x=1"], ["GET", "/chat?x=1"]]);
  const { headers } = handshakes[0];
  assert.equal(headers["x-forwarded-proto"], "https");
  assert.equal(headers.origin, `https://${server.proxy}`);
  await page.close();
});
