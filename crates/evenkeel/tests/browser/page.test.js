// Clicks through the page while a site is calm, crawled, stopped and started.

import assert from "node:assert/strict";
import os from "node:os";
import { after, before, test } from "node:test";
import { CRAWLER, LIMITS, browse, free_port, look, open, until } from "./stage.js";

let browser;
before(async () => {
  browser = await browse();
});
after(() => browser.close());

// Runs `what` with a site and the page that shows it; nothing may go wrong on that.
async function stage({ proxy, more, address, ...view }, what) {
  const site = await open(proxy, more);
  try {
    const at = address ? address(site.server.admin) : site.server.admin;
    const seen = await look(browser, at, view);
    await what({ site, ...seen });
    assert.deepEqual(seen.wrong, [], "nothing goes wrong on the page");
    assert.deepEqual(seen.strangers, [], "no request leaves the host");
    await seen.page.close();
  } finally {
    await site.stop();
  }
}

const rows = (page) => page.$$eval("#clients tbody tr", (all) =>
  all.map((row) => [...row.children].map((cell) => (cell.querySelector(".who button") ?? cell).innerText.trim())));

async function choose(page, tab) {
  await page.evaluate((name) => {
    const tabs = [...document.querySelectorAll("#tabs button")];
    tabs.find((one) => one.firstChild.textContent === name).click();
  }, tab);
}

async function open_client(page, name) {
  await until(`${name} is listed`, async () => (await rows(page)).some(([key]) => key.startsWith(name)));
  await page.evaluate((key) => {
    const all = [...document.querySelectorAll("#clients td.name button")];
    all.find((one) => one.textContent === key).click();
  }, name);
  await page.waitForSelector("#client[open]");
}

test("a calm site: nothing is wrong, and it says so", async () => {
  await stage({}, async ({ site, page, text, live, says }) => {
    site.people();
    await live();
    await says(/No problems\. .* of 2 CPUs used; no request waits, and no client is in debt\./);
    await until("nobody waits", async () => (await text("#tile-waiting b")) === "0");
    assert.equal(await text("#tile-debt b"), "0");
    await until("answers are timed", async () => /ms|s/.test(await text("#tile-typical b")));
    await until("people are listed", async () => (await rows(page)).length >= 6);
    assert.equal((await page.$$(".charts canvas")).length, 3);
    await until("the title says so", async () => /No problems/.test(await page.title()));
    await choose(page, "routes");
    await until("routes", async () => (await rows(page)).some(([key]) => key === "GET /page/*"));
  });
});

test("a crawl: who it is, what is done about it, and that it works", async () => {
  await stage({}, async ({ site, page, text, live, says }) => {
    site.people();
    site.crawler();
    await live();
    await says(new RegExp(`${CRAWLER.replaceAll(".", "\\.")} uses \\d+% of the CPU\\. It waits behind all clients in credit: \\d+ requests wait\\.`));
    await says(/The typical client is answered in .*, and 95% of clients within .*; slowest: .*203\.0\.113\.7, in debt at its last request, is answered in/);
    const [[first, , level]] = await rows(page);
    assert.equal(first, CRAWLER);
    assert.match(level, /^-/);
    const what = await text("#clients tbody tr .what");
    assert.equal(what, "GET /search · ExampleBot/2.1 (+http://bot.example)");
    assert.match(await text("#clients tbody tr .group"), /^since \d\d:\d\d$/);
    assert.notEqual(await text("#tile-waiting b"), "0");
    await page.type("#filter", "198.51");
    assert.ok((await rows(page)).every(([key]) => key.startsWith("198.51")));
    await page.$eval("#filter", (input) => {
      input.value = "";
      input.dispatchEvent(new Event("input"));
    });
    await page.click("#clients thead [data-order=key]");
    const names = (await rows(page)).map(([key]) => key);
    assert.deepEqual(names, [...names].sort((a, b) => a.localeCompare(b)));
    await page.click("#ranges [data-seconds='3600']");
    assert.equal(await page.$eval("#ranges [data-seconds='3600']", (b) => b.ariaPressed), "true");
  });
});

test("a rate limit that refuses most requests is what it speaks of", async () => {
  const calls = { name: "calls", by: "ip/32", rate: "1/m", burst: 1, action: "reject", when: { path: "/page/*" } };
  await stage({ proxy: { limits: [...LIMITS, calls] } }, async ({ site, page, live, says }) => {
    site.people(4);
    await live();
    const most = "Most requests are refused: [\\d.]+ of [\\d.]+ per second\\. The log names the limits\\.";
    await says(new RegExp(`${most} No client is in debt\\.`));
    await until("the title says so", async () => /Most requests are refused/.test(await page.title()));
  });
});

test("each client counts once: a crawler of eight addresses, in credit, beside twenty people", async () => {
  const limits = LIMITS.map((limit) => ({ ...limit, burst: "600s" }));
  await stage({ proxy: { limits } }, async ({ site, page, text, live, says }) => {
    site.people(20);
    site.crawlers(8);
    await live();
    await until("all are counted", async () => {
      const top = await (await fetch(`http://${site.server.admin}/api/top?limit=ip`)).json();
      return top.load[0].client_times.credit?.clients === 28;
    });
    // By request it would be the crawler's time: nearly all requests are its.
    await says(/The typical client is answered in [\d.]+ ms, and 95% of clients within [\d.]+ s; slowest: 203\.0\.113\.\d \([\d.]+ s\)\./);
    assert.match(await text("#tile-typical b"), / ms$/);
    assert.match(await text("#tile-slowest"), /s 203\.0\.113\.\d$/);
    const label = () => page.$eval("#chart-latency", (at) => at.getAttribute("aria-label"));
    await until("the chart has it", async () => /typical [\d.]+\sms/.test(await label()));
  });
});

test("the first chart: the clients by name, everybody else and what is free, full when the page opens", async () => {
  await stage({}, async ({ site, page, live }) => {
    site.people(8);
    site.crawler();
    await live();
    const steps = async () => (await (await fetch(`http://${site.server.admin}/api/clients`)).json()).t.length;
    await until("the server has a past", async () => (await steps()) >= 4);
    await page.reload();
    await live();
    const names = () => page.$$eval("#shares li span", (all) => all.map((one) => one.textContent));
    await until("they are named", async () => (await names()).length >= 4);
    const all = await names();
    assert.deepEqual([all[0], ...all.slice(-2)], [CRAWLER, "everybody else", "free"], `${all}`);
    const said = await page.$eval("#chart-shares", (at) => at.getAttribute("aria-label"));
    assert.match(said, /^CPU by client: 203\.0\.113\.7 \d+%, .*free /);
    await page.waitForSelector("#chart-shares canvas");
    const heads = () => page.$$eval("#shares-limit option", (options) => options.map((one) => one.textContent));
    assert.deepEqual(await heads(), ["by ip", "by net24", "by agent"]);
    await page.select("#shares-limit", "proxy net24");
    await until("it is by network", async () => (await names()).includes("203.0.113.0/24"));
  });
});

test("the menu of a row: by keyboard, and what it does can be undone", async () => {
  await stage({}, async ({ site, page, text, live, expect }) => {
    expect("status of 404");
    site.people(3);
    site.crawler();
    await live();
    const row = `[aria-label="Actions for ${CRAWLER}"]`;
    await page.waitForSelector(row);
    const focused = () => page.evaluate(() => document.activeElement.textContent);
    const focus_item = (name) => until(`${name} is in the menu`, async () => {
      await page.focus(row);
      await page.keyboard.press("Enter");
      await page.waitForSelector("#menu:popover-open");
      for (let n = 0; n < 8; n += 1) {
        if ((await focused()) === name) return true;
        await page.keyboard.press("ArrowDown");
      }
      await page.keyboard.press("Escape");
      return false;
    });
    const choose_item = async (name) => {
      await focus_item(name);
      await page.keyboard.press("Enter");
    };
    await choose_item("Deny for an hour");
    await until("it is said", async () => (await text("#acted")).includes(`${CRAWLER} is denied for an hour`));
    const [host, port] = site.server.proxy.split(":");
    const status = () => fetch(`http://${host}:${port}/page`, { headers: { "X-Forwarded-For": CRAWLER } }).then((answer) => answer.status);
    assert.equal(await status(), 403);
    await until("the row says so", async () => /denied/.test(await text("#clients tbody")));
    await focus_item("Undo");
    await page.evaluate(async () => {
      const [{ override_id }] = await (await fetch("/api/overrides")).json();
      const body = JSON.stringify({ do: "undo", override_id });
      await fetch("/api/overrides", { method: "POST", body, headers: { "Content-Type": "application/json" } });
    });
    await until("it has ended elsewhere", async () => !/denied/.test(await text("#clients tbody")));
    await page.keyboard.press("Enter");
    await until("the page says why", async () => (await text("#acted")).includes("it may have ended"));
    assert.notEqual(await status(), 403);
    await choose_item("Slow down for an hour");
    await until("it is listed", async () => (await text("#overrides ul")).includes("slowed down: weight 0.10"));
    await choose_item("Undo");
    await until("it is undone", async () => (await text("#acted")).includes("is undone"));
    for (const close of [() => page.mouse.wheel({ deltaY: 100 }), () => page.keyboard.press("Escape")]) {
      await page.focus(row);
      await page.keyboard.press("Enter");
      await page.waitForSelector("#menu:popover-open");
      await close();
      await until("it is closed", () => page.$eval("#menu", (at) => !at.matches(":popover-open")));
    }
    assert.equal(await page.evaluate(() => document.activeElement.getAttribute("aria-label")), `Actions for ${CRAWLER}`);
  });
});

test("of a crawler that has stopped it says that its share fades, and then nothing", async () => {
  const limits = LIMITS.map((limit) => ({ ...limit, debt_max: "6s" }));
  await stage({ proxy: { limits } }, async ({ site, live, says }) => {
    site.people(2);
    const stop = site.crawler();
    await live();
    await says(/203\.0\.113\.7 uses \d+% of the CPU\./);
    // It pays 0.2 a second, and what its waiting requests were charged in advance comes back when it
    // stops: so that it is in debt still when it has not been seen for a while.
    await until("it owes enough", async () => {
      const top = await (await fetch(`http://${site.server.admin}/api/top?limit=ip`)).json();
      return top.limits[0].rows.some(({ key, level }) => key === CRAWLER && level < -5);
    });
    stop();
    await says(/203\.0\.113\.7 used (<1|\d+)% of the CPU recently\. It has sent no requests for [\d.]+ s, so its share decreases\./);
    await says(/no client is in debt/, 120);
  });
});

test("an operator exempts, weighs and clears a client, and takes it back", async () => {
  await stage({}, async ({ site, page, text, live }) => {
    site.people(2);
    site.crawler();
    await live();
    await open_client(page, CRAWLER);
    assert.equal(await text("#client-name"), CRAWLER);
    await until("its past is drawn", () => page.$("#chart-client canvas"));
    const act = async (what, said) => {
      await page.click(`#client [data-do=${what}]`);
      await until(said, async () => (await text("#client .acts ~ .done")).includes(said));
    };
    await act("exempt", "is exempt for an hour");
    await until("it is listed", async () => (await text("#overrides ul")).includes(`${CRAWLER} (ip): exempt`));
    await act("weigh", "is slowed down for an hour");
    await until("it is the other", async () => (await text("#overrides ul")).includes("weight 0.10"));
    assert.equal((await page.$$("#overrides li")).length, 1);
    await act("clear", "has no debt any more");
    await page.click("#client .close");
    await until("the list says so", async () => /slowed down/.test(await text("#clients tbody")));
    await page.click("#overrides .undo");
    await until("it is undone", () => page.$eval("#overrides", (at) => at.hidden));
    const said = () => site.server.lines.map((line) => JSON.parse(line).fields.message);
    const told = () => said().filter((message) => message.startsWith("an operator"));
    await until("each is written to the log", () => told().length >= 4);
    assert.equal(told().length, 4, `${told()}`);
  });
});

test("shadow: it says what would be done, and that nothing is", async () => {
  await stage({ proxy: { shadow: true } }, async ({ site, says, page, live }) => {
    site.people(2);
    site.crawler();
    await live();
    await says(/203\.0\.113\.7 uses \d+% of the CPU\. Shadow mode: not enforced\./);
    await says(/would put it behind all clients in credit/);
    assert.match(await page.$eval("#about", (at) => at.textContent), /shadow, not enforced/);
  });
});

test("one queue for two instances: who owns it, and what waits here and in all", async () => {
  const ports = [await free_port(), await free_port()];
  const peers = (port, join) => ({ listen: `127.0.0.1:${port}`, join, cpus_shared: true });
  const more = { peers: peers(ports[0], []) };
  await stage({ more, width: 390 }, async ({ site, page, text, live, says }) => {
    await live();
    await until("it is alone", async () => /no other one takes part/.test(await text("#queue")));
    const second = await site.second({ peers: peers(ports[1], [`127.0.0.1:${ports[0]}`]) });
    try {
      await until("both take part", async () => /One queue for 2 instances; .* owns it for/.test(await text("#queue")));
      const instances = () => page.$$eval("#queue tbody tr", (all) =>
        all.map((row) => [...row.children].map((cell) => cell.innerText.trim())));
      const are_known = (names) => names.length === 2 && ports.every((port) => names.some((name) => name.endsWith(`:${port}`)));
      await until("both have names", async () => are_known((await instances()).map(([name]) => name)));
      assert.match((await instances()).map(([, state]) => state).join(), /owns the queue/);
      await until("the peer shares it", async () => /owns it|shares it/.test(await text("#peers tbody")));
      const wide = await page.evaluate(() => document.documentElement.scrollWidth);
      assert.ok(wide <= 390, `${wide} of 390`);
      site.crawler();
      await says(/requests wait at all instances together, \d+ of them here/);
      await says(/of 2 CPUs used by requests of this instance/);
      await until("the tile has both", async () => /^here, [1-9]\d* in all$/.test(await text("#tile-waiting span")));
      assert.match(await text("#tile-working span"), /^here, \d+ of 2 in all$/);
      assert.match(await text("#queue p"), /Here \d+ wait and \d+ run; in all \d+ wait and \d+ run on 2 slots\./);
    } finally {
      await second.stop();
    }
    await until("it is alone again", async () => /no other one takes part/.test(await text("#queue")));
  });
});

test("a server that goes away is told of, and taken up again when it is back", async () => {
  await stage({}, async ({ site, page, text, live, expect }) => {
    expect("ERR_CONNECTION_REFUSED");
    expect("ERR_INCOMPLETE_CHUNKED_ENCODING");
    await live();
    const begin = await site.restart();
    await until("it is lost", async () => (await text("#state")).startsWith("connection lost"));
    assert.ok(await page.$("body.stale"), "old figures are seen to be old");
    assert.match(await page.title(), /connection lost/);
    await begin();
    await live();
    assert.equal(await page.$("body.stale"), null);
  });
});

test("what clients call themselves is text and nothing else", async () => {
  await stage({}, async ({ site, page, live }) => {
    site.crawler("<img src=x onerror=alert(1)><b>bold</b>");
    await live();
    await choose(page, "agents");
    await until("it is listed", async () => (await rows(page)).some(([key]) => key.includes("<img src=x")));
    assert.equal(await page.$("#clients img, #clients tbody b"), null);
  });
});

test("a narrow screen shows all of it, and nothing sticks out", async () => {
  for (const width of [360, 320]) {
    await stage({ width, height: 740 }, async ({ site, page, live, says }) => {
      site.people(3);
      site.crawler();
      await live();
      await says(/uses \d+% of the CPU/);
      const wide = await page.evaluate(() => document.documentElement.scrollWidth);
      assert.ok(wide <= width, `${wide} of ${width}`);
      await open_client(page, CRAWLER);
      await page.click("#client [data-do=weigh]");
      const marks = () => page.$$eval("#clients .mark", (all) => all.filter((mark) => !mark.hidden).map((mark) => {
        const [own, cell] = [mark, mark.closest("td")].map((at) => at.getBoundingClientRect());
        return { own: own.toJSON(), cell: cell.toJSON(), lines: mark.getClientRects().length };
      }));
      await until("it is marked", async () => (await marks()).length === 1);
      const [{ own, cell, lines }] = await marks();
      const whole = own.left >= cell.left && own.right <= cell.right && own.bottom <= cell.bottom;
      assert.ok(whole && lines === 1 && own.width > 40, JSON.stringify({ own, cell, lines }));
      const box = await page.$eval("#client", (at) => at.getBoundingClientRect().toJSON());
      assert.ok(box.left >= 0 && box.right <= width, JSON.stringify(box));
    });
  }
});

test("beyond loopback it asks for the token, and orders want it everywhere", async (t) => {
  const all = Object.values(os.networkInterfaces()).flat();
  const own = all.find(({ family, internal }) => family === "IPv4" && !internal)?.address;
  const token = "correct-horse-battery";
  const give = async (page, given) => {
    await page.waitForSelector("#token[open]");
    await page.type("#token input", given);
    await page.click("#token button");
  };
  if (!own) t.diagnostic("no other address than loopback: only orders are looked at");
  else {
    const view = { more: { admin: "0.0.0.0:0", token }, address: (at) => at.replace("0.0.0.0", own) };
    await stage(view, async ({ page, text, live, expect }) => {
      expect("status of 401");
      await give(page, "not-the-right-one");
      await until("it is refused", async () => (await text("#token .done")).includes("refuses this token"));
      await give(page, token);
      await live();
    });
  }
  await stage({ more: { token } }, async ({ site, page, text, live, expect }) => {
    expect("status of 401");
    site.crawler();
    await live();
    await page.evaluate(() => sessionStorage.clear());
    await page.reload();
    await live();
    await open_client(page, CRAWLER);
    await page.click("#client [data-do=exempt]");
    await give(page, token);
    await until("it is done", async () => (await text("#client .acts ~ .done")).includes("is exempt"));
  });
});
