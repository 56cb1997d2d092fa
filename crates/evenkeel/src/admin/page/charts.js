// The history of the last hour, and its charts; and the chart of one client.
//
// The numbers arrive as columns (`/api/history`) and grow by one point per second.

import { chart, describe, from_zero, line, logarithmic, plain, range_of, thinned } from "/plot.js";
import { number, time, tokens, unit_of } from "/text.js";

const POINTS_MAX = 3_600;
const HEIGHT = 128;

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

// Requests are whole at a moment, and rates seldom are.
const few = (value) => (Number.isInteger(value) ? String(value) : number(value));
// A power of ten of seconds.
const decade = (seconds) => (seconds > 1 ? `${seconds} s` : time(seconds));
const singles = (value) => tokens(value == null ? value : value / 1000);

// The small charts of the page: three, and two more if costs are counted in tokens.
export class Charts {
  constructor(past) {
    this.past = past;
    this.seconds = 900;
    this.draw();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      this.draw();
      this.update();
    });
  }

  draw() {
    for (const { plot } of this.all ?? []) plot.destroy();
    this.in_tokens = this.past.in_tokens;
    for (const figure of document.querySelectorAll("figure.tokens")) figure.hidden = !this.in_tokens;
    const add = (id, name, columns, series, scale, values) => {
      const at = document.getElementById(id);
      return { at, name, columns, plot: chart(at, series, { scale, values, height: HEIGHT, sync: "hour" }) };
    };
    const dashed = { dash: [5, 4] };
    const dotted = { dash: [2, 3], width: 1.4 };
    this.all = [
      add("chart-latency", "Time to answer, by client", ["client_max", "client_p95", "client_p50", "client_debt_p50"], [
        line("slowest", "--warn", time, dotted), line("95% within", "--good", time, dashed),
        line("typical", "--good", time, { width: 2.2 }), line("typical in debt", "--bad", time, dotted),
      ], logarithmic, decade),
      add("chart-load", "Requests", ["slots", "working", "waiting"], [
        line("slots", "--faint", few, { ...dashed, width: 1.2 }),
        line("in flight", "--busy", few, { fill: 0.12 }), line("waiting", "--warn", few, { ...dotted, width: 1.8 }),
      ], from_zero(1), plain),
      add("chart-decisions", "Decisions per second", ["allow", "queue", "hold", "delay", "reject", "deny", "would"], [
        line("allowed", "--good", few, { fill: 0.1 }), line("queued", "--busy", few, dashed),
        line("held", "--warn", few, dashed), line("delayed", "--warn", few, dotted),
        line("rejected", "--bad", few), line("denied", "--bad", few, dotted),
        line("in shadow", "--note", few, dashed),
      ], from_zero(1), plain),
    ];
    if (this.in_tokens) {
      this.all.push(
        add("chart-first", "Time to the first byte, by request", ["credit_first_p50", "credit_first_p95", "debt_first_p50", "debt_first_p95"], [
          line("in credit, median", "--good", time, { ...dotted, width: 1.2 }), line("in credit, p95", "--good", time),
          line("in debt, median", "--bad", time, { ...dotted, width: 1.2 }), line("in debt, p95", "--bad", time, dashed),
        ], logarithmic, decade),
        add("chart-tokens", "Tokens per second", ["tokens_prompt", "tokens_cached", "tokens_output"], [
          line("prompt", "--busy", singles, { fill: 0.1 }), line("of it cached", "--note", singles, dotted),
          line("output", "--good", singles, dashed),
        ], from_zero(10), singles),
      );
    }
  }

  show(seconds) {
    this.seconds = seconds;
    this.update();
  }

  update() {
    if (this.in_tokens !== this.past.in_tokens) this.draw();
    const { t } = this.past.columns;
    const { min, max } = range_of(t, this.seconds);
    const from = t.findIndex((at) => at >= min);
    const cut = (column) => (column ?? []).slice(from < 0 ? 0 : from);
    for (const { at, name, plot, columns } of this.all) {
      const logs = plot.scales.y.distr === 3;
      const values = columns.map((column) => cut(this.past.columns[column]).map((value) => (logs && value === 0 ? null : value)));
      plot.batch(() => {
        // A line that is zero all the time says nothing; the first one stays.
        values.forEach((column, index) => {
          const says = column.some((value) => value);
          if (plot.series[index + 1].show !== says) plot.setSeries(index + 1, { show: says });
        });
        plot.setData(thinned(cut(t), values), false);
        plot.setScale("x", { min, max });
      });
      describe(at, name, plot.series.slice(1)
        .map((series, index) => (series.show && values[index].at(-1) != null ? `${series.label} ${series.said(values[index].at(-1))}` : ""))
        .filter(Boolean));
    }
  }
}

// The chart of one client: its cost, and its level.
export function of_client(at, limit, past) {
  at.replaceChildren();
  const { figure, rate, level } = unit_of(limit);
  const plot = chart(at, [
    line(rate, "--busy", figure, { fill: 0.18 }),
    line("level", "--bad", level, { scale: "level", dash: [5, 4] }),
  ], {
    scale: from_zero(limit.unit === "money" ? 0.0001 : 0.05), values: figure === number ? plain : figure, height: 150,
    level: (_, min, max) => [Math.min(min ?? 0, 0), Math.max(max ?? 0, 0.1)],
  });
  const { min, max } = range_of(past.t, 3_600);
  plot.setData([past.t, past.cost, past.level], false);
  plot.setScale("x", { min, max });
  describe(at, "The client's last hour", [`${rate} ${figure(past.cost.at(-1))}`, `level ${level(past.level.at(-1))}`]);
  return plot;
}
