// The fingerprints of a real browser: its headers agree with what it claims to be, whatever it
// fetches and from which origin, and its connections are alike.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import http from "node:http";
import https from "node:https";
import { tmpdir } from "node:os";
import path from "node:path";
import { after, before, test } from "node:test";
import { promisify } from "node:util";
import { WebSocketServer } from "ws";
import { browse, serve, until } from "./stage.js";

const run = promisify(execFile);

const PAGE = `<!doctype html><title>all</title>
<link rel="stylesheet" href="/style.css"><link rel="prefetch" href="/next"><link rel="manifest" href="/manifest.json">
<link rel="preload" as="font" href="/font.woff2" crossorigin><link rel="modulepreload" href="/module.js">
<script type="speculationrules">{"prefetch": [{"source": "list", "urls": ["/speculated"], "eagerness": "immediate"}]}</script>
<script src="/script.js"></script><script type="module" src="/module.js"></script>
<img src="/image.png"><video src="/video.mp4" preload="auto"></video><audio src="/audio.mp3" preload="auto"></audio>
<iframe name="frame" src="/frame"></iframe><object data="/object.svg"></object><embed src="/embed.svg">
<form id="form" action="/posted" method="post" target="frame"><input name="a" value="b"></form>`;

const ALL = async () => {
  const quiet = (promise) => Promise.resolve(promise).catch(() => {});
  await quiet(fetch("/fetched"));
  await quiet(fetch("/posted", { method: "POST", body: "{}", headers: { "content-type": "application/json" } }));
  await quiet(fetch("/put", { method: "PUT", headers: { "x-own": "1" } }));
  await quiet(fetch("/headers", { headers: { accept: "application/json" } }));
  navigator.sendBeacon("/beacon", "seen");
  const xhr = new XMLHttpRequest();
  xhr.open("GET", "/xhr", false);
  xhr.send();
  new EventSource("/events").onerror = (event) => event.target.close();
  new Worker("/worker.js");
  new SharedWorker("/shared.js");
  if (navigator.serviceWorker) await quiet(navigator.serviceWorker.register("/service.js"));
  const socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/socket`);
  await new Promise((done) => (socket.onopen = socket.onerror = done));
  socket.close();
  document.querySelector("#form").submit();
  await new Promise((done) => (document.querySelector("iframe").onload = done));
};

let browser, folder, site, server, plain, secure;

before(async () => {
  folder = await mkdtemp(path.join(tmpdir(), "evenkeel-"));
  const [cert, key] = ["cert.pem", "key.pem"].map((name) => path.join(folder, name));
  await run("openssl", [
    "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
    "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:site.example", "-keyout", key, "-out", cert,
  ]);
  site = http.createServer((request, answer) => {
    request.resume();
    if (request.url === "/to-https") {
      answer.writeHead(302, { location: `https://site.example:${secure.split(":")[1]}/landed` }).end();
      return;
    }
    const types = { js: "text/javascript", css: "text/css", svg: "image/svg+xml", json: "application/json" };
    answer.setHeader("content-type", types[request.url.split(".")[1]] ?? "text/html");
    answer.end(request.url === "/" ? PAGE : "");
  });
  new WebSocketServer({ server: site });
  site.listen(0, "127.0.0.1");
  await once(site, "listening");
  const limits = ["fetch", "ja4", "h2", "rtt"].map((name) => ({ name, by: name, rate: "10000/s", burst: 10000 }));
  const tls = { cert, key, listen: "127.0.0.1:0" };
  server = await serve({ tls, limits, trusted_proxies: [] }, { backend: `http://127.0.0.1:${site.address().port}` });
  const opened = server.lines.find((line) => line.includes("proxy open"));
  [plain, secure] = opened.match(/127\.0\.0\.1:\d+/g);
  browser = await browse({ acceptInsecureCerts: true, args: ["--host-resolver-rules=MAP site.example 127.0.0.1"] });
});

after(async () => {
  await browser?.close();
  await server?.stop();
  site?.closeAllConnections();
  site?.close();
  await rm(folder, { recursive: true, force: true });
});

const rows = async (name) => {
  const { limits } = await (await fetch(`http://${server.admin}/api/top`)).json();
  const found = limits.find((limit) => limit.name === name).rows.map((row) => [row.key, row.cpu_total]);
  return Object.fromEntries(found);
};

const port = (address) => address.split(":")[1];

for (const [origin, address] of [
  ["HTTPS", () => `https://site.example:${port(secure)}/`],
  ["an insecure origin", () => `http://site.example:${port(plain)}/`],
  ["localhost", () => `http://${plain}/`],
]) {
  test(`a browser agrees with itself over ${origin}, also in a private window`, async () => {
    for (const context of [browser.defaultBrowserContext(), await browser.createBrowserContext()]) {
      const page = await context.newPage();
      await page.goto(address(), { waitUntil: "load" });
      await page.evaluate(ALL);
      await page.reload();
      await page.goto(`${address()}next?from=page`);
      await page.goBack();
      await page.close();
    }
    assert.deepEqual(Object.keys(await rows("fetch")), ["agrees"]);
  });
}

test("a browser agrees with itself without scripts, and after a redirect to HTTPS", async () => {
  const page = await browser.newPage();
  await page.setJavaScriptEnabled(false);
  await page.goto(`https://site.example:${port(secure)}/`);
  await page.goto(`http://site.example:${port(plain)}/to-https`);
  assert.match(page.url(), /landed/);
  assert.deepEqual(Object.keys(await rows("fetch")), ["agrees"]);
  await page.close();
});

test("the connections of a browser are alike", async () => {
  const ja4 = Object.keys(await rows("ja4")).filter((key) => key !== "-");
  assert.equal(new Set(ja4.map((key) => key.split("_")[1])).size, 1, `ciphers of one program: ${ja4}`);
  const h2 = Object.keys(await rows("h2")).filter((key) => key !== "-");
  assert.equal(h2.length, 1, `${h2}`);
  assert.match(h2[0], /\|m,a,s,p$/);
  await until("direct", async () => (await rows("rtt")).direct > 0, 5);
});

test("programs that claim to be this browser differ, and others are none", async () => {
  const agent = (await browser.userAgent()).replace("Headless", "");
  const url = `https://${secure}/`;
  await run("curl", ["-sk", "-o", "/dev/null", "-A", agent, url]);
  await run("curl", ["-s", "-o", "/dev/null", "-A", agent, `http://${plain}/`]);
  const script = "import sys, ssl, urllib.request as u; c = ssl._create_unverified_context(); " +
    "u.urlopen(u.Request(sys.argv[1], headers={'User-Agent': sys.argv[2]}), context=c).read()";
  await run("python3", ["-c", script, url, agent]);
  await new Promise((done) => https.get(url, { rejectUnauthorized: false, headers: { "user-agent": agent } }, (answer) => answer.resume().on("end", done)));
  assert.equal((await rows("fetch")).differs, 4);
  await run("curl", ["-sk", "-o", "/dev/null", url]);
  assert.equal((await rows("fetch")).other, 1);
  const chromium = new Set(Object.keys(await rows("ja4")));
  assert.ok(chromium.size >= 4, `${[...chromium]}`);
});
