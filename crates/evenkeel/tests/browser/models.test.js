// The page before a language model: everything is in tokens, and the first byte by tier.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { open_models } from "./models.js";
import { browse, look, until } from "./stage.js";

let browser;
before(async () => {
  browser = await browse();
});
after(() => browser.close());

async function stage(tokens, view, what) {
  const site = await open_models(tokens);
  try {
    const seen = await look(browser, site.server.admin, view);
    await what({ site, ...seen });
    assert.deepEqual(seen.wrong, [], "nothing goes wrong on the page");
    assert.deepEqual(seen.strangers, [], "no request leaves the host");
    await seen.page.close();
  } finally {
    await site.stop();
  }
}

const cells = (page, where) => page.$$eval(`${where} tbody tr`, (all) =>
  all.map((row) => [...row.children].map((cell) => (cell.querySelector(".who button") ?? cell).innerText.trim())));
const rows = (page) => cells(page, "#clients");

async function choose(page, tab) {
  await page.evaluate((name) => {
    const tabs = [...document.querySelectorAll("#tabs button")];
    tabs.find((one) => one.firstChild.textContent === name).click();
  }, tab);
}

const AMOUNT = String.raw`[\d.]+( k| M)?`;

test("a tenant that asks for more than there is: who it is, in tokens", async () => {
  await stage({ per_second: 5000 }, {}, async ({ site, page, text, live, says }) => {
    site.light("team-a");
    site.heavy("batch");
    await live();
    await says(new RegExp(`batch uses ${AMOUNT} weighted tokens per second \\(\\d+% of all\\)\\. It waits behind all clients in credit: \\d+ requests? waits?\\.`));
    await says(new RegExp(`${AMOUNT} of 5 k weighted tokens per second used\\.`));
    await says(/gets its first byte in .*batch, in debt at its last request, gets its first byte in/);
    assert.match(await text("#tile-cpu h2"), /^Weighted tokens$/);
    assert.match(await text("#tile-cpu"), new RegExp(`${AMOUNT}/s \\d+% of 5 k/s`));
    await until("the typical client", async () => /^Typical client, first byte ?\d.* 95% within /.test(await text("#tile-typical")));
    await until("the slowest", async () => /^Slowest client, first byte ?\d.*batch/.test(await text("#tile-slowest")));
    await until("five charts are drawn", async () => (await page.$$(".charts figure:not([hidden]) canvas")).length === 5);
    assert.equal(await text("#clients [data-order=cpu_per_second]"), "Tokens");
    assert.match(await text("#about"), /in weighted tokens/);
    const [[first, cost, level]] = await rows(page);
    assert.equal(first, "batch");
    assert.match(cost, new RegExp(`^${AMOUNT}/s$`));
    assert.match(level, new RegExp(`^-${AMOUNT}$`));
    await until("the engine is listed", async () => (await cells(page, "#engines")).some(([, , , cache]) => /^\d+%$/.test(cache)));
    await choose(page, "budget");
    await until("money", async () => (await text("#clients [data-order=cpu_per_second]")) === "Money");
    assert.match((await rows(page))[0][2], /^\d(\.\d{1,4})?$/);
    assert.doesNotMatch(await text("main"), /CPU/, "nothing is in CPU time");
  });
});

test("an unmeasured capacity is said to be so, on a telephone", async () => {
  const view = { width: 390, height: 844, dark: true };
  await stage({}, view, async ({ site, page, text, live, says }) => {
    site.light("team-a");
    await live();
    await says(new RegExp(`No problems\\. ${AMOUNT} weighted tokens per second used;`));
    assert.match(await text("#tile-cpu"), /capacity not measured yet/);
    await until("the tenant is listed", async () => (await rows(page)).some(([key]) => key === "team-a"));
    const wide = await page.evaluate(() => document.documentElement.scrollWidth);
    assert.ok(wide <= 390, `the page is ${wide} wide`);
    await page.evaluate(() => document.querySelector("#clients td.name button").click());
    await page.waitForSelector("#client[open]");
    await until("in tokens", async () => /Tokens per second/.test(await text("#client .facts")));
    assert.match(await text("#client .unit"), /weighted tokens per second, and level in weighted tokens/);
  });
});
