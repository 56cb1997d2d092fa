// The setting of the tests: a site, visitors, Evenkeel between them, and a browser with the page.
//
// The site burns nothing: two of its requests are worked on at a time, and each takes its time by a
// timer. Costs follow from that all the same, as `cost: shared` is read off a clock, so the picture
// does not depend on the machine. Visitors come from loopback and say by X-Forwarded-For who they
// are.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { rmSync } from "node:fs";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import http from "node:http";
import net from "node:net";
import { tmpdir } from "node:os";
import path from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import puppeteer from "puppeteer-core";

const ROOT = fileURLToPath(new URL("../../../..", import.meta.url));
const BINARY = process.env.EVENKEEL ?? path.join(ROOT, "target/debug/evenkeel");
const CHROMIUM = process.env.CHROMIUM ?? "/usr/bin/chromium";
const WORKERS = 2;
const COSTS_MS = { "/page": 2, "/search": 100 };

export const pause = (ms) => new Promise((done) => setTimeout(done, ms));

// Looks until `what` is so; with a deadline.
export async function until(what, look, seconds = 40) {
  const end = Date.now() + seconds * 1000;
  for (;;) {
    const found = await look();
    if (found) return found;
    if (Date.now() > end) throw new Error(`not in ${seconds} s: ${what}`);
    await pause(100);
  }
}

async function open_site() {
  let working = 0;
  const waiting = [];
  const next = () => {
    while (working < WORKERS && waiting.length) {
      const { url, answer } = waiting.shift();
      working += 1;
      const cost = COSTS_MS[new URL(url, "http://site").pathname] ?? 1;
      setTimeout(() => {
        working -= 1;
        answer.end("here you are\n");
        next();
      }, cost);
    }
  };
  const site = http.createServer((request, answer) => {
    request.resume();
    waiting.push({ url: request.url, answer });
    next();
  });
  site.listen(0, "127.0.0.1");
  await once(site, "listening");
  return site;
}

// A port on which nothing listens.
export async function free_port() {
  const one = net.createServer().listen(0, "127.0.0.1");
  await once(one, "listening");
  const { port } = one.address();
  one.close();
  await once(one, "close");
  return port;
}

// What is left to stop if this process ends before `stop` is called, because something was thrown.
const running = new Set();
process.on("exit", () => running.forEach((end) => end()));

// Evenkeel with this configuration; `proxy` and `admin` are where it listens.
export async function serve(proxy, { admin = "127.0.0.1:0", token, backend, port, peers } = {}) {
  const folder = await mkdtemp(path.join(tmpdir(), "evenkeel-"));
  const token_file = path.join(folder, "token");
  if (token) await writeFile(token_file, token, { mode: 0o600 });
  const file = path.join(folder, "evenkeel.yaml");
  await writeFile(file, JSON.stringify({
    log: { format: "json" },
    admin: { listen: admin, ...(token ? { token_file } : {}) },
    proxy: { listen: `127.0.0.1:${port ?? 0}`, backend, trusted_proxies: ["127.0.0.1"], cpus: 2, ...proxy },
    ...(peers ? { peers } : {}),
  }));
  const child = spawn(BINARY, ["serve", "--config", file], { stdio: ["ignore", "inherit", "pipe"] });
  const end = () => {
    child.kill("SIGKILL");
    rmSync(folder, { recursive: true, force: true });
  };
  running.add(end);
  const lines = [];
  const opened = new Promise((done, failed) => {
    child.on("error", failed);
    child.on("exit", (code) => failed(new Error(`it ended with ${code}:\n${lines.join("\n")}`)));
    createInterface({ input: child.stderr }).on("line", (line) => {
      lines.push(line);
      const { fields } = JSON.parse(line);
      if (fields?.message !== "proxy open") return;
      const first = (list) => list.slice(1, -1).split(",")[0].trim();
      done({ proxy: first(fields.listen), admin: first(fields.admin) });
    });
  });
  const addresses = await opened;
  return {
    ...addresses,
    folder,
    lines,
    async stop() {
      if (child.exitCode == null) {
        child.kill("SIGKILL");
        await once(child, "exit");
      }
      await rm(folder, { recursive: true, force: true });
      running.delete(end);
    },
  };
}

// Asks again and again, as `who`, until stopped.
function visit(address, who, { path: asked, agent, connections, rest_ms }) {
  const [host, port] = address.split(":");
  const pool = new http.Agent({ keepAlive: true, maxSockets: connections });
  let going = true;
  const ask = () => new Promise((done) => {
    const headers = { "X-Forwarded-For": who, "User-Agent": agent };
    const request = http.get({ host, port, path: asked, agent: pool, headers }, (answer) => {
      answer.resume();
      answer.on("close", done);
    });
    request.on("error", done);
  });
  const loop = async () => {
    while (going) {
      await ask();
      if (rest_ms) await pause(rest_ms);
    }
  };
  for (let n = 0; n < connections; n += 1) loop();
  return () => {
    going = false;
    pool.destroy();
  };
}

export const CRAWLER = "203.0.113.7";

// Limits as they are by default, but for the burst: what takes a minute shows within seconds.
export const LIMITS = [
  { name: "ip", by: "ip/32", share: "10%", burst: "2s" },
  { name: "net24", by: "ip/24", share: "25%", burst: "2s" },
  { name: "agent", by: "user-agent", share: "40%", burst: "4s" },
];

// A site with visitors; stopped as a whole.
export async function open(proxy = {}, more = {}) {
  const site = await open_site();
  const backend = `http://127.0.0.1:${site.address().port}`;
  const configured = { limits: LIMITS, queue: { concurrency: WORKERS }, ...proxy };
  let server = await serve(configured, { ...more, backend });
  const visitors = [];
  return {
    get server() {
      return server;
    },
    people(count = 6) {
      for (let n = 1; n <= count; n += 1) {
        const agent = n % 2 ? "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0" : "Mozilla/5.0 (iPhone) Safari/605.1.15";
        const errand = { path: `/page/${n}`, agent, connections: 1, rest_ms: 300 };
        visitors.push(visit(server.proxy, `198.51.${n}.${10 * n}`, errand));
      }
    },
    crawler(agent = "ExampleBot/2.1 (+http://bot.example)") {
      const errand = { path: "/search?q=everything", agent, connections: 32, rest_ms: 0 };
      const stop = visit(server.proxy, CRAWLER, errand);
      visitors.push(stop);
      return stop;
    },
    // A crawler with this many addresses in one network, and the same work as one with one address.
    crawlers(count) {
      for (let n = 1; n <= count; n += 1) {
        const errand = { path: "/search?q=everything", agent: "ExampleBot/2.1 (+http://bot.example)", connections: 32 / count, rest_ms: 0 };
        visitors.push(visit(server.proxy, `203.0.113.${n}`, errand));
      }
    },
    // Another server before the same site.
    second(more) {
      return serve(configured, { ...more, backend });
    },
    // Another server at the same admin address.
    async restart() {
      const { admin } = server;
      await server.stop();
      return async () => {
        server = await serve(configured, { ...more, admin, backend });
      };
    },
    async stop() {
      visitors.forEach((stop) => stop());
      await server.stop();
      site.closeAllConnections();
      site.close();
    },
  };
}

export async function browse(options = {}) {
  return puppeteer.launch({
    ...options,
    executablePath: CHROMIUM,
    headless: true,
    args: [
      "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-proxy-server", "--lang=en",
      ...(options.args ?? []),
    ],
  });
}

// The page at `address`, with its errors and its requests to other hosts.
export async function look(browser, address, { width = 1200, height = 900, dark = false } = {}) {
  const page = await browser.newPage();
  const wrong = [];
  const strangers = [];
  const expected = [];
  page.on("pageerror", (error) => wrong.push(`error: ${error.message}`));
  page.on("console", (said) => {
    const text = `${said.type()}: ${said.text()} ${said.location()?.url ?? ""}`;
    if (["error", "warn"].includes(said.type()) && !expected.some((known) => text.includes(known))) wrong.push(text);
  });
  page.on("request", (request) => {
    const { host, protocol } = new URL(request.url());
    if (protocol !== "data:" && host !== address) strangers.push(request.url());
  });
  await page.setViewport({ width, height, isMobile: width < 500, hasTouch: width < 500 });
  await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: dark ? "dark" : "light" }]);
  await page.goto(`http://${address}/`, { waitUntil: "domcontentloaded" });
  const text = (what) => page.$eval(what, (at) => at.textContent.trim().replace(/\s+/g, " "));
  return {
    page, wrong, strangers, text,
    // Messages of the browser about intended errors.
    expect: (known) => expected.push(known),
    live: () => until("live", async () => (await text("#state")).startsWith("live")),
    says: (what, seconds) => until(`it says ${what}`, async () => (await text("#verdict")).match(what), seconds),
  };
}
