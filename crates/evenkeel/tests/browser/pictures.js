// Takes the pictures of the guide: node pictures.js [FOLDER]
//
// Each is taken after minutes of data, so that the charts are full, and is cropped to what it is
// about: at the width at which pages show it, its text can be read.

import { mkdir, stat } from "node:fs/promises";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { LIMITS, browse, look, open, pause } from "./stage.js";

const FOLDER = process.argv[2] ?? fileURLToPath(new URL("../../../../docs/pictures", import.meta.url));
const BYTES_MAX = 200_000;
const PEOPLE = 12;
// A burst that lasts for some of the minutes.
const BURSTS = LIMITS.map((limit) => ({ ...limit, burst: "40s" }));

// The seconds before the crawler comes, and after. `until`: the last thing in the picture.
const PICTURES = [
  { name: "calm", calm: 300, until: ".charts" },
  { name: "crawl-without", proxy: { shadow: true }, calm: 120, crawl: 180, until: ".charts" },
  { name: "crawl-with", calm: 120, crawl: 180, until: ".charts" },
  { name: "crawl-dark", calm: 120, crawl: 180, dark: true, until: ".charts" },
  { name: "narrow", calm: 120, crawl: 180, width: 390, until: ".hero" },
];

await mkdir(FOLDER, { recursive: true });
const browser = await browse();
// All at once: each has a server of its own, and hardly costs anything.
await Promise.all(PICTURES.map(async ({ name, proxy, calm, crawl, until, width = 980, ...view }) => {
  const site = await open({ limits: BURSTS, ...proxy });
  site.people(PEOPLE);
  await pause(calm * 1000);
  if (crawl) {
    site.crawler();
    await pause(crawl * 1000);
  }
  const { page, live } = await look(browser, site.server.admin, { width, height: 1600, ...view });
  await live();
  await page.waitForSelector("#chart-shares canvas");
  await pause(3_000);
  // The name of the machine must not be in the pictures, and the next second can begin at any moment.
  await page.$eval("#host", (at) => {
    const name = at.cloneNode();
    name.removeAttribute("id");
    name.textContent = "web1";
    name.style.color = getComputedStyle(at).color;
    at.after(name);
    at.hidden = true;
  });
  const height = await page.$eval(until, (at) => Math.ceil(at.getBoundingClientRect().bottom + (at.matches("tr") ? 0 : 12)));
  const file = path.join(FOLDER, `${name}.png`);
  await page.screenshot({ path: file, optimizeForSpeed: false, clip: { x: 0, y: 0, width, height } });
  const { size } = await stat(file);
  console.log(`${file}: ${size} bytes`);
  if (size > BYTES_MAX) throw new Error(`more than ${BYTES_MAX} bytes`);
  await page.close();
  await site.stop();
}));
await browser.close();
