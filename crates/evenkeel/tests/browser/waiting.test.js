// A browser without scripts walks from the waiting page to the site while a swarm is there, and an
// operator sees the swarm on the page, and denies it.

import assert from "node:assert/strict";
import { once } from "node:events";
import http from "node:http";
import { after, before, test } from "node:test";
import { browse, look, pause, serve, until } from "./stage.js";

// Each page takes this time of the only worker.
const PAGE_MS = 200;
const CONNECTIONS = 160;
// Visitors that were here before the swarm.
const RETURNING = 60;

let browser, site, server, swarm;

// Pages with a link, one after the other, and light ones at once.
function open_site() {
  let last = Promise.resolve();
  return http.createServer((request, answer) => {
    if (request.url === "/light") {
      answer.end("light");
      return;
    }
    last = last.then(() => pause(PAGE_MS)).then(() => {
      answer.setHeader("content-type", "text/html");
      answer.end(`<title>site</title><h1>${request.url}</h1><a id="next" href="/page/next">next</a>`);
    });
  });
}

// Each is served several times.
async function serve_returning(address) {
  for (let round = 0; round < 4; round += 1) {
    for (let n = 0; n < RETURNING; n += 1) {
      const headers = { "X-Forwarded-For": `10.${n}.0.1`, "User-Agent": `browser/${n % 4}` };
      await (await fetch(`http://${address}/light`, { headers })).text();
    }
  }
}

// Each request comes from another address, and none keeps a cookie.
function open_swarm(address) {
  const [host, port] = address.split(":");
  const agent = new http.Agent({ keepAlive: true, maxSockets: CONNECTIONS });
  let [count, going] = [0, true];
  const ask = () => new Promise((done) => {
    count += 1;
    // Spread over all networks: no limit by network catches them.
    const bits = Math.imul(count, 0x9e3779b1) >>> 0;
    const who = `${1 + (bits >>> 24) % 120}.${(bits >>> 16) & 255}.${(bits >>> 8) & 255}.${bits & 255}`;
    const headers = { "X-Forwarded-For": who, Accept: "text/html", "Sec-Fetch-Mode": "navigate" };
    http.get({ host, port, path: "/page/first", agent, headers }, (answer) => {
      answer.resume();
      answer.on("close", done);
    }).on("error", done);
  });
  const connection = async () => {
    while (going) await ask();
  };
  // Not in step.
  for (let n = 0; n < CONNECTIONS; n += 1) pause(2000 * Math.random()).then(connection);
  return () => {
    going = false;
    agent.destroy();
  };
}

before(async () => {
  site = open_site();
  site.listen(0, "127.0.0.1");
  await once(site, "listening");
  const backend = `http://127.0.0.1:${site.address().port}`;
  server = await serve({ cpus: 1, cost: "wall", queue: { concurrency: 1, known: "auto" } }, { backend });
  browser = await browse();
  swarm = open_swarm(server.proxy);
  await until("pages are sent", async () => {
    const text = await (await fetch(`http://${server.admin}/metrics`)).text();
    return Number(text.match(/^evenkeel_waiting_room_pages_total{door="proxy"} (.*)$/m)?.[1]) > 0;
  });
});

after(async () => {
  swarm?.();
  await browser?.close();
  await server?.stop();
  site?.closeAllConnections();
  site?.close();
});

// A visitor at the waiting page. A stranger may get its turn before two seconds have passed; then
// another one comes.
async function visit(statuses) {
  for (let n = 1; n < 10; n += 1) {
    const page = await (await browser.createBrowserContext()).newPage();
    await page.setJavaScriptEnabled(false);
    await page.setExtraHTTPHeaders({ "X-Forwarded-For": `192.0.2.${n}` });
    page.on("response", (answer) => {
      if (answer.request().isNavigationRequest()) statuses.push(answer.status());
    });
    const arrived = page.goto(`http://${server.proxy}/page/first`, { waitUntil: "domcontentloaded" });
    const title = await until("a page", () => page.title().catch(() => ""));
    if (title === "Please wait") return { page, arrived };
    await arrived;
    statuses.length = 0;
    await page.close();
  }
  throw new Error("no visitor has to wait");
}

test("a browser without scripts gets the page, waits, and gets what it asked for", async () => {
  const statuses = [];
  const { page, arrived } = await visit(statuses);
  const said = await page.$eval("main", (main) => main.textContent);
  assert.match(said, /Your turn is expected in about \d+ (second|minute)s?\./);
  assert.equal(await page.$eval("html", (html) => html.lang), "en");
  const [ticket] = await page.cookies();
  assert.equal(ticket.name, "evenkeel");
  assert.ok(ticket.httpOnly && ticket.sameSite === "Lax");
  // Nothing is clicked. The page comes by itself.
  await until("the site", async () => (await page.title().catch(() => "")) === "site", 60);
  assert.equal(await page.$eval("h1", (h1) => h1.textContent), "/page/first");
  await arrived;
  assert.equal(statuses.at(-1), 200);
  assert.ok(statuses.length > 1 && statuses.slice(0, -1).every((status) => status === 503), `${statuses}`);
  const [pass] = await page.cookies();
  assert.ok(pass.httpOnly && pass.value !== ticket.value);
  // The next page, with the pass.
  await Promise.all([page.waitForNavigation(), page.click("#next")]);
  await until("the next page", async () => (await page.title().catch(() => "")) === "site", 60);
  assert.equal(await page.$eval("h1", (h1) => h1.textContent), "/page/next");
  await page.close();
});

test("the operator's page says that there is a swarm", async () => {
  const { page, wrong, text, live, says } = await look(browser, server.admin);
  await live();
  await says(/More is asked for than the backend can do, since .* \(.*\)\./);
  await says(/Clients that were here before go first\. \d+ requests of strangers wait; strangers have used .* CPU-seconds since then\./);
  await says(/\d+ visitors? (is|are) in the waiting room, \d+ of them for a second time or more\. New visitors wait .* for their first page\./);
  await until("strangers", async () => /^\d+ of strangers$/.test(await text("#tile-waiting span")));
  assert.deepEqual(wrong, []);
  await page.close();
});

test("an operator denies what the swarm has in common, and takes it back", async () => {
  const { page, wrong, text, live, says } = await look(browser, server.admin, { width: 360, height: 740 });
  const status = async (agent) => {
    const headers = { "X-Forwarded-For": `172.31.${Math.trunc(256 * Math.random())}.1`, ...agent };
    const answer = await new Promise((done) => http.get(`http://${server.proxy}/light`, { headers }, done));
    answer.resume();
    return answer.statusCode;
  };
  // The swarm goes, and comes again when there are clients to compare it with.
  swarm();
  await until("it is over", async () => (await text("#tile-waiting span")) === "" && !(await text("#verdict")).includes("More is asked for"));
  await serve_returning(server.proxy);
  swarm = open_swarm(server.proxy);
  await live();
  await says(/\d% of what strangers ask for has in common: .*no User-Agent/);
  await until("it is listed", async () => (await text("#groups ul")).includes("no User-Agent"));
  assert.match(await text("#groups .about"), /also those of new people that are like it/);
  const wide = await page.evaluate(() => document.documentElement.scrollWidth);
  assert.ok(wide <= 360, `${wide}`);
  await page.click("#groups [data-do=deny]");
  await until("it says so", async () => (await text("#groups .done")).includes("get status 403"));
  await until("it is listed", async () => /no User-Agent.*: denied: strangers like that get status 403/.test(await text("#overrides ul")));
  assert.equal(await page.$eval("#groups [data-do=deny]", (button) => button.disabled), true);
  assert.equal(await status({}), 403);
  assert.equal(await status({ "User-Agent": "another", "Accept-Language": "de" }), 200);
  await until("the swarm is over", () => page.$eval("#groups", (at) => at.hidden), 60);
  await page.click("#overrides .undo");
  await until("it is undone", () => page.$eval("#overrides", (at) => at.hidden));
  await until("the swarm is back", async () => (await text("#verdict")).includes("no User-Agent"));
  await page.click("#groups [data-do=slow]");
  await until("it is slowed down", async () => (await text("#overrides ul")).includes("slowed down"));
  assert.deepEqual(wrong, []);
  await page.close();
});
