// Takes the pictures of the guide: node pictures.js [FOLDER]

import { mkdir, stat } from "node:fs/promises";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { browse, look, open, pause } from "./stage.js";

const FOLDER = process.argv[2] ?? fileURLToPath(new URL("../../../../docs/pictures", import.meta.url));
const BYTES_MAX = 200_000;

const PICTURES = [
  { name: "calm", calm: 150 },
  { name: "crawl-without", proxy: { shadow: true }, calm: 90, crawl: 90 },
  { name: "crawl-with", calm: 90, crawl: 90 },
  { name: "crawl-dark", calm: 60, crawl: 60, dark: true },
  { name: "narrow", calm: 60, crawl: 60, width: 390, height: 844 },
];

await mkdir(FOLDER, { recursive: true });
const browser = await browse();
// All at once: each has a server of its own, and hardly costs anything.
await Promise.all(PICTURES.map(async ({ name, proxy, calm, crawl, ...view }) => {
  const site = await open(proxy);
  site.people();
  const { page, live } = await look(browser, site.server.admin, { width: 1200, height: 1000, ...view });
  await live();
  await pause(calm * 1000);
  if (crawl) {
    site.crawler();
    await pause(crawl * 1000);
  }
  // The name of the machine must not be in the pictures, and the next second can begin at any moment.
  await page.$eval("#host", (at) => {
    const name = at.cloneNode();
    name.removeAttribute("id");
    name.textContent = "web1";
    name.style.color = getComputedStyle(at).color;
    at.after(name);
    at.hidden = true;
  });
  const file = path.join(FOLDER, `${name}.png`);
  await page.screenshot({ path: file, optimizeForSpeed: false });
  const { size } = await stat(file);
  console.log(`${file}: ${size} bytes`);
  if (size > BYTES_MAX) throw new Error(`more than ${BYTES_MAX} bytes`);
  await page.close();
  await site.stop();
}));
await browser.close();
