// The first chart: the work of the backend over time, by client. Five clients have names; the rest
// is everybody else, and on top is what is free.
//
// The server keeps the history (`/api/clients`), so the chart is full as soon as the page is open.

import { chart, describe, faded, from_zero, plain, range_of, resolved, shown_at } from "/plot.js";
import { get } from "/server.js";
import { counts_work, number, percent, put, tokens } from "/text.js";

const EVERY_MS = 5_000;
const HEIGHT = 250;
// The part of the capacity from which on a client is said to have begun, and the number of steps for
// which it must have that.
const NOTABLE = 0.2;
const LASTING = 3;
const COLORS = { calm: ["--calm-1", "--calm-2", "--calm-3", "--calm-4", "--calm-5"], debt: ["--debt-1", "--debt-2", "--debt-3", "--debt-4", "--debt-5"] };
const SHADES = 5;
const MARKS_MAX = 5;

export class Shares {
  constructor() {
    this.at = document.getElementById("chart-shares");
    this.names = document.getElementById("shares");
    this.limits = document.getElementById("shares-limit");
    this.seconds = 900;
    this.limits.addEventListener("change", () => {
      this.chosen = this.limits.value;
      this.fetch();
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    setInterval(() => this.fetch(), EVERY_MS);
  }

  show(seconds) {
    this.seconds = seconds;
    this.draw();
  }

  // Lists the limits by whose clients the chart can be drawn. The first one is chosen.
  update({ limits }) {
    const all = limits.filter((limit) => limit.open && counts_work(limit));
    const figure = this.at.closest("figure");
    figure.hidden = all.length === 0;
    const values = all.map(({ door, name }) => `${door} ${name}`);
    if (this.values?.join() !== values.join()) {
      this.values = values;
      this.limits.replaceChildren(...all.map(({ name }, at) => new Option(`by ${name}`, values[at])));
      if (values.includes(this.chosen)) this.limits.value = this.chosen;
      this.limits.hidden = values.length < 2;
      this.fetch();
    }
  }

  async fetch() {
    if (!this.values?.length || document.hidden) return;
    const [door, limit] = (this.limits.value || this.values[0]).split(" ");
    try {
      this.data = await get(`/api/clients?${new URLSearchParams({ door, limit })}`);
      this.draw();
    } catch {
      // The page says itself that the connection is lost; the next look brings the chart up to date.
    }
  }

  draw() {
    const { data } = this;
    if (!data) return;
    const { min, max } = range_of(data.t, this.seconds);
    this.layers = layers_of(data, min);
    this.marks = marks_of(data);
    const drawn = JSON.stringify([data.work_unit, resolved("--others"), this.layers.map(({ color }) => color)]);
    if (this.drawn !== drawn) this.make(data.work_unit === "tokens");
    this.drawn = drawn;
    this.plot.batch(() => {
      this.plot.setData([data.t, ...this.layers.map(({ top }) => top).reverse()], false);
      this.plot.setScale("x", { min, max });
    });
  }

  // The highest sum is drawn first, and the lower ones over it.
  make(in_tokens) {
    this.plot?.destroy();
    const series = [...this.layers].reverse().map(({ color, free }) => ({
      stroke: free ? "transparent" : resolved(color),
      fill: free ? faded(resolved(color), 0.35) : resolved(color),
      width: free ? 0 : 1, points: { show: false },
    }));
    this.plot = chart(this.at, series, {
      scale: from_zero(in_tokens ? 0.01 : 0.1), values: in_tokens ? tokens : plain, height: HEIGHT, space: 40, room: () => 28,
      draw: (plot) => {
        this.mark(plot);
        this.label(plot);
        this.tell(plot);
      },
    });
  }

  // The names with their parts, at the pointer or now.
  tell(plot) {
    const at = shown_at(plot);
    const all = this.data.capacity[at] ?? this.data.busy[at];
    const said = ({ values }) => {
      const value = values[at] ?? 0;
      return all > 0 ? percent(value / all) : this.data.work_unit === "tokens" ? tokens(value) : number(value);
    };
    const layers = this.layers.filter(({ free }) => !free).reverse();
    layers.push(...this.layers.filter(({ free }) => free));
    const rows = [...this.names.children];
    layers.forEach((layer, index) => {
      const row = rows[index] ?? this.names.appendChild(made());
      row.firstChild.style.background = `var(${layer.color})`;
      row.classList.toggle("free", Boolean(layer.free));
      put(row.children[1], layer.name);
      put(row.lastChild, said(layer));
    });
    rows.slice(layers.length).forEach((row) => row.remove());
    describe(this.at, "CPU by client", layers.map((layer) => `${layer.name} ${said(layer)}`));
  }

  // Writes each name into its layer where that is highest, if it is high enough.
  label(plot) {
    const { ctx, bbox } = plot;
    const ratio = devicePixelRatio;
    ctx.save();
    ctx.font = `${600} ${12 * ratio}px system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif`;
    ctx.textAlign = "center";
    ctx.textBaseline = "middle";
    for (const { name, values, top, color, free } of this.layers) {
      const width = ctx.measureText(name).width;
      const place = room_for(plot, { values, top, width });
      if (!place) continue;
      ctx.fillStyle = free ? resolved("--faint") : text_on(resolved(color));
      const x = Math.min(Math.max(place.x, bbox.left + width / 2 + 6 * ratio), bbox.left + bbox.width - width / 2 - 6 * ratio);
      // So that no line goes through it.
      ctx.lineWidth = 6 * ratio;
      ctx.lineJoin = "round";
      ctx.strokeStyle = resolved(color);
      if (!free) ctx.strokeText(name, x, place.y);
      ctx.fillText(name, x, place.y);
    }
    ctx.restore();
  }

  // Draws what has happened as lines with a text each.
  mark(plot) {
    const { ctx, bbox } = plot;
    const ratio = devicePixelRatio;
    const { min, max } = plot.scales.x;
    const shown = this.marks.filter(({ t }) => t > min && t < max).slice(-MARKS_MAX);
    ctx.save();
    ctx.font = `${11 * ratio}px system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif`;
    ctx.textBaseline = "top";
    ctx.lineWidth = ratio;
    ctx.strokeStyle = ctx.fillStyle = resolved("--text");
    const ends = [];
    for (const { t, text } of shown) {
      const x = Math.round(plot.valToPos(t, "x", true));
      const width = ctx.measureText(text).width + 10 * ratio;
      const is_right = x + width > bbox.left + bbox.width;
      const from = is_right ? x - width : x;
      let row = 0;
      while (ends[row] !== undefined && ends[row] > from) row += 1;
      ends[row] = from + width;
      const y = bbox.top + row * 16 * ratio;
      ctx.setLineDash([3 * ratio, 3 * ratio]);
      ctx.beginPath();
      ctx.moveTo(x, y);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      ctx.setLineDash([]);
      ctx.fillStyle = faded(resolved("--card"), 0.85);
      ctx.fillRect(is_right ? from + 2 * ratio : x + 2 * ratio, y, width - 4 * ratio, 14 * ratio);
      ctx.fillStyle = resolved("--text");
      ctx.textAlign = is_right ? "right" : "left";
      ctx.fillText(text, is_right ? x - 5 * ratio : x + 5 * ratio, y + ratio);
    }
    ctx.restore();
  }
}

// The layers from the bottom to the top: everybody else, the named clients, and what is free. `top`
// is the sum of a layer and all below it. Clients that were in debt since `since` have colours of
// their own.
function layers_of({ t, busy, capacity, clients }, since) {
  const named = [...clients].reverse();
  const sum = (at) => clients.reduce((all, { used }) => all + (used[at] ?? 0), 0);
  const taken = { calm: 0, debt: 0 };
  const color = new Map(clients.map((client) => {
    const kind = client.level.some((level, at) => level < 0 && t[at] >= since) ? "debt" : "calm";
    return [client, COLORS[kind][taken[kind]++ % SHADES]];
  }));
  const layers = [
    { name: "everybody else", color: "--others", values: t.map((_, at) => Math.max(0, (busy[at] ?? 0) - sum(at))) },
    ...named.map((client) => ({ name: client.key, color: color.get(client), values: t.map((_, at) => client.used[at] ?? 0) })),
  ];
  if (capacity.some((value) => value != null)) {
    const used = (at) => Math.max(busy[at] ?? 0, sum(at));
    layers.push({ name: "free", color: "--line", free: true, values: t.map((_, at) => Math.max(0, (capacity[at] ?? 0) - used(at))) });
  }
  const below = t.map(() => 0);
  for (const layer of layers) {
    layer.top = layer.values.map((value, at) => (below[at] += value));
  }
  return layers;
}

// What the columns show to have happened, beside what the server says: a client has begun, or its
// burst is used up.
function marks_of({ t, capacity, busy, clients, marks }) {
  const found = [...marks];
  const all = (at) => capacity[at] ?? Math.max(...busy);
  for (const { key, used, level } of clients) {
    for (let at = 1; at < t.length; at += 1) {
      const quiet = used.slice(Math.max(0, at - 6), at).every((value) => (value ?? 0) < 0.02 * all(at));
      const next = used.slice(at, at + LASTING);
      const lasts = next.length === LASTING && next.every((value) => value >= NOTABLE * all(at));
      if (quiet && lasts) found.push({ t: t[at - 1], text: `${key} starts` });
      if (level[at] < 0 && level[at - 1] >= 0 && level[at - 1] != null && used[at] >= NOTABLE * all(at)) {
        found.push({ t: t[at], text: "its burst is used up", of: key });
      }
    }
  }
  found.sort((a, b) => a.t - b.t);
  const starts = found.filter(({ text }) => text.endsWith(" starts"));
  return found.map((mark) => (mark.of && starts.length !== 1 ? { ...mark, text: `${mark.of}: burst used up` } : mark));
}

// Where a text of this width fits into a layer best: the place with most height around it.
function room_for(plot, { values, top, width }) {
  const ratio = devicePixelRatio;
  const { t, from, to } = { t: plot.data[0], from: plot.scales.x.min, to: plot.scales.x.max };
  let best;
  const inside = t.map((_, at) => at).filter((at) => t[at] >= from && t[at] <= to);
  for (const at of inside) {
    const x = plot.valToPos(t[at], "x", true);
    const near = inside.filter((one) => Math.abs(plot.valToPos(t[one], "x", true) - x) <= width / 2 + 4 * ratio);
    const upper = Math.max(...near.map((one) => plot.valToPos(top[one], "y", true)));
    const lower = Math.min(...near.map((one) => plot.valToPos(top[one] - values[one], "y", true)));
    const height = lower - upper;
    const is_whole = x - width / 2 > plot.bbox.left && x + width / 2 < plot.bbox.left + plot.bbox.width;
    if (is_whole && height > 16 * ratio && (!best || height > best.height)) best = { x, y: (upper + lower) / 2, height };
  }
  return best;
}

// Black or white, whichever is easier to read on this colour.
function text_on(rgb) {
  const [red, green, blue] = rgb.match(/[\d.]+/g).map((part) => (Number(part) / 255) ** 2.2);
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.3 ? "#14171a" : "#ffffff";
}

function made() {
  const row = document.createElement("li");
  row.append(...["i", "span", "b"].map((name) => document.createElement(name)));
  return row;
}
