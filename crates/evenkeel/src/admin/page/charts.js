// Charts of the last hour, and of one client.
//
// The numbers arrive as columns (`/api/history`) and grow by one point per second.

import { number, time, tokens, unit_of } from "/text.js";

const POINTS_MAX = 3_600;
const HEIGHT = 150;

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// A canvas does not support light-dark(): the browser resolves it on an element.
function resolved(name) {
  const probe = document.createElement("i");
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found || color(name);
}

function faded(rgb, part) {
  return rgb.replace(/^rgb\((.*)\)$/, (_, inside) => `rgba(${inside}, ${part})`);
}

// The history: columns by name, the oldest value first.
export class Past {
  constructor() {
    this.columns = { t: [] };
    this.in_tokens = false;
  }

  take({ work_unit, ...columns }) {
    this.in_tokens = work_unit === "tokens";
    this.columns = columns;
  }

  add(point) {
    const { t } = this.columns;
    if (!point || point.t <= (t.at(-1) ?? 0)) return;
    for (const name of Object.keys(point)) {
      const column = (this.columns[name] ??= new Array(t.length).fill(null));
      column.push(point[name]);
    }
    if (t.length > POINTS_MAX) for (const column of Object.values(this.columns)) column.shift();
  }

  // The mean of a column over the last seconds; undefined without values.
  mean(name, seconds = 10) {
    const column = (this.columns[name] ?? []).slice(-seconds).filter((value) => value != null);
    return column.length ? column.reduce((sum, value) => sum + value, 0) / column.length : undefined;
  }

  last(name) {
    return this.columns[name]?.at(-1) ?? undefined;
  }

  get empty() {
    return this.columns.t.length === 0;
  }
}

// Grid lines at whole powers of ten only.
const decades = (_, __, min, max) => {
  const splits = [];
  for (let power = Math.ceil(Math.log10(min) - 1e-9); 10 ** power <= max * 1.001; power += 1) splits.push(10 ** power);
  return splits;
};

function axes(values, level, splits) {
  const [text, line] = [resolved("--faint"), resolved("--line")];
  const axis = { stroke: text, font: "11px system-ui, sans-serif", ticks: { stroke: line, width: 1 } };
  const clock = (_, splits) => splits.map((at) => {
    const date = new Date(at * 1000);
    const two = (n) => String(n).padStart(2, "0");
    const seconds = date.getSeconds() ? `:${two(date.getSeconds())}` : "";
    return `${two(date.getHours())}:${two(date.getMinutes())}${seconds}`;
  });
  return [
    { ...axis, grid: { show: false }, values: clock, space: 70 },
    { ...axis, grid: { stroke: line, width: 1 }, values: (_, at) => at.map(values), size: 58, ...(splits ? { splits, filter: (_, at) => at } : {}) },
    ...(level ? [{ ...axis, scale: "level", side: 1, grid: { show: false }, values: (_, splits) => splits.map(level.values), size: 46 }] : []),
  ];
}

function line(label, name, value, more = {}) {
  const stroke = resolved(name);
  const { fill, ...rest } = more;
  return {
    label, stroke, width: 1.6, value: (_, at) => value(at), points: { show: false },
    fill: fill ? faded(stroke, fill) : undefined, ...rest,
  };
}

// `level`: a second scale, on the right.
function chart(at, series, scale, values, sync, level) {
  const wide = () => Math.max(at.clientWidth, 200);
  const plot = new uPlot({
    width: wide(), height: HEIGHT,
    cursor: { y: false, points: { size: 6 }, ...(sync ? { sync: { key: sync } } : {}), drag: { x: false } },
    scales: { x: { time: true }, y: scale, ...(level ? { level: level.scale } : {}) },
    axes: axes(values, level, scale.distr === 3 ? decades : undefined),
    series: [{ value: (_, t) => (t == null ? "–" : new Date(t * 1000).toLocaleTimeString()) }, ...series],
    legend: { live: true },
  }, [[], ...series.map(() => [])], at);
  new ResizeObserver(() => plot.setSize({ width: wide(), height: HEIGHT })).observe(at);
  return plot;
}

// Axis labels have no trailing zeros.
const plain = (value) => String(Number(value.toPrecision(3)));
const singles = (value) => tokens(value == null ? value : value / 1000);
const fromZero = (least) => ({ range: (_, __, max) => [0, Math.max(max ?? 0, least) * 1.08] });
const logarithmic = {
  distr: 3, log: 10,
  range: (_, min, max) => {
    const floor = 10 ** Math.floor(Math.log10(Math.max(min ?? 1e-3, 1e-5)));
    return [floor, Math.max(10 ** Math.ceil(Math.log10(Math.max(max ?? 1, 1e-4))), floor * 100)];
  },
};

// The charts of the page: four, and two more if costs are counted in tokens.
export class Charts {
  constructor(past) {
    this.past = past;
    this.seconds = 300;
    this.draw();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      this.draw();
      this.update();
    });
  }

  draw() {
    for (const { plot } of this.all ?? []) plot.destroy();
    this.in_tokens = this.past.in_tokens;
    const work = this.in_tokens ? tokens : number;
    for (const figure of document.querySelectorAll("figure.tokens")) figure.hidden = !this.in_tokens;
    const at = (id) => document.getElementById(id);
    const add = (id, columns, series, scale, values) =>
      ({ columns, plot: chart(at(id), series, scale, values, "hour") });
    const sparse = { width: 1.8 };
    this.all = [
      add("chart-cpu", ["cpus", "busy", "debt"], [
        line(this.in_tokens ? "capacity" : "available", "--faint", work, { dash: [5, 4], width: 1.2 }),
        line("used", "--busy", work, { fill: 0.18 }),
        line("by clients in debt", "--bad", work, { fill: 0.16 }),
      ], fromZero(0.1), this.in_tokens ? tokens : plain),
      add("chart-latency", ["credit_p95", "debt_p95"], [
        line("in credit", "--good", time, sparse), line("in debt", "--bad", time, sparse),
      ], logarithmic, time),
      add("chart-load", ["working", "waiting", "slots"], [
        line("in flight", "--busy", number, { fill: 0.12 }), line("waiting", "--warn", number),
        line("slots", "--faint", number, { dash: [5, 4], width: 1.2 }),
      ], fromZero(2), plain),
      add("chart-decisions", ["allow", "queue", "delay", "hold", "reject", "deny", "would"], [
        line("allowed", "--good", number), line("queued", "--warn", number),
        line("delayed", "--busy", number), line("held", "--note", number),
        line("refused", "--bad", number), line("denied", "--bad", number, { dash: [2, 3] }), line("shadow", "--note", number, { dash: [4, 3] }),
      ], fromZero(1), plain),
      ...(this.in_tokens ? [
        add("chart-first", ["credit_first_p95", "debt_first_p95", "credit_first_p50", "debt_first_p50"], [
          line("in credit", "--good", time, sparse), line("in debt", "--bad", time, sparse),
          line("half, in credit", "--good", time, { dash: [2, 3] }), line("half, in debt", "--bad", time, { dash: [2, 3] }),
        ], logarithmic, time),
        add("chart-tokens", ["tokens_prompt", "tokens_cached", "tokens_output"], [
          line("prompt", "--busy", singles), line("prompt from the cache", "--faint", singles), line("output", "--good", singles),
        ], fromZero(10), singles),
      ] : []),
    ];
  }

  show(seconds) {
    this.seconds = seconds;
    this.update();
  }

  update() {
    if (this.in_tokens !== this.past.in_tokens) this.draw();
    const { t } = this.past.columns;
    const end = t.at(-1) ?? Date.now() / 1000;
    const begin = end - this.seconds;
    const from = t.findIndex((at) => at >= begin);
    const cut = (column) => (column ?? []).slice(from < 0 ? 0 : from);
    for (const { plot, columns } of this.all) {
      // Slots are shown only if they exist.
      const values = columns.map((name) => cut(this.past.columns[name]).map((value) =>
        (name === "slots" && !value) || (plot.scales.y.distr === 3 && value === 0) ? null : value));
      plot.batch(() => {
        plot.setData([cut(t), ...values], false);
        plot.setScale("x", { min: begin, max: end });
      });
      // Without a pointer on the chart, the legend shows the last second.
      if ((plot.cursor.left ?? -1) < 0 && t.length) plot.setLegend({ idx: plot.data[0].length - 1 }, false);
    }
  }
}

// The chart of one client: its cost, and its level.
export function ofClient(at, limit, past) {
  at.replaceChildren();
  const { figure, rate } = unit_of(limit);
  const axis = figure === number ? plain : figure;
  const plot = chart(at, [
    line(rate, "--busy", figure, { fill: 0.18 }),
    line("level", "--bad", figure, { scale: "level", width: 1.8 }),
  ], fromZero(limit.unit === "money" ? 0.0001 : 0.05), axis, undefined, {
    scale: { range: (_, min, max) => [Math.min(min ?? 0, 0), Math.max(max ?? 0, 0.1)] },
    values: axis,
  });
  plot.setData([past.t, past.cost, past.level]);
  return plot;
}
