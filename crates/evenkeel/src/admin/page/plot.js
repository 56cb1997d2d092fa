// What all charts share: colours, axes, and labels at the lines themselves, so that colour is not
// the only difference and no legend has to be looked up.

import { clock } from "/text.js";

const FONT = "11px system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif";
const LABEL_HEIGHT = 13;

// A canvas does not support light-dark(): the browser resolves it on an element.
export function resolved(name) {
  const probe = document.createElement("i");
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

export function faded(rgb, part) {
  return rgb.replace(/^rgb\((.*)\)$/, (_, inside) => `rgba(${inside}, ${part})`);
}

// Grid lines at whole powers of ten only.
export const decades = (_, __, min, max) => {
  const splits = [];
  for (let power = Math.ceil(Math.log10(min) - 1e-9); 10 ** power <= max * 1.001; power += 1) splits.push(10 ** power);
  return splits;
};

function axes(values, { splits, space = 30 }) {
  const [text, line] = [resolved("--faint"), resolved("--line")];
  const axis = { stroke: text, font: FONT, ticks: { show: false }, gap: 4 };
  const times = (_, all) => all.map((at) => clock(at, all.some((one) => one % 60)));
  // As wide as its labels.
  const size = (plot, labels) => {
    plot.ctx.font = FONT;
    const widths = (labels ?? []).map((label) => plot.ctx.measureText(label).width / devicePixelRatio);
    return Math.ceil(Math.max(14, ...widths)) + 10;
  };
  return [
    { ...axis, grid: { show: false }, values: times, space: 64, size: 20 },
    { ...axis, grid: { stroke: line, width: 1 }, space, values: (_, at) => at.map(values), size, ...(splits ? { splits, filter: (_, at) => at } : {}) },
  ];
}

export function line(label, name, value, more = {}) {
  const stroke = resolved(name);
  const { fill, ...rest } = more;
  return { label, stroke, color: stroke, width: 1.6, said: value, points: { show: false }, fill: fill ? faded(stroke, fill) : undefined, ...rest };
}

// The place in the columns whose values are shown: that of the pointer, otherwise the last one.
export function shown_at(plot) {
  const { idx, left } = plot.cursor ?? {};
  return idx != null && left >= 0 ? idx : plot.data[0].length - 1;
}

// The name and the value of each line that is shown.
function labels_of(plot) {
  // The room is asked for before there is any data.
  if (!plot.data?.[0]) return [];
  const at = shown_at(plot);
  return plot.series.map((series, index) => ({ series, value: plot.data[index]?.[at] }))
    .filter(({ series, value }, index) => index > 0 && series.show && value != null)
    .map(({ series, value }) => ({ series, value, text: `${series.label} ${series.said(value)}` }));
}

// The room for labels at the right edge.
function label_room(plot) {
  plot.ctx.save();
  plot.ctx.font = FONT;
  const widths = labels_of(plot).map(({ text }) => plot.ctx.measureText(text).width);
  plot.ctx.restore();
  return Math.ceil(Math.max(24, ...widths)) + 12;
}

// Writes the labels right of the ends of their lines, one above the other where those are close
// together.
function label_lines(plot) {
  const { ctx, bbox } = plot;
  const ratio = devicePixelRatio;
  const labels = labels_of(plot).map(({ series, value, text }) =>
    ({ text, color: series.color, wanted: plot.valToPos(value, series.scale, true) }));
  const step = LABEL_HEIGHT * ratio;
  labels.sort((a, b) => b.wanted - a.wanted);
  let free = bbox.top + bbox.height - step / 2 + 4 * ratio;
  for (const label of labels) {
    label.y = Math.min(label.wanted, free);
    free = label.y - step;
  }
  // Those that were pushed beyond the top come down again.
  let top = bbox.top + step / 2;
  for (const label of [...labels].reverse()) {
    label.y = Math.max(label.y, top);
    top = label.y + step;
  }
  ctx.save();
  ctx.font = FONT.replace("11px", `${11 * ratio}px`);
  ctx.textAlign = "left";
  ctx.textBaseline = "middle";
  for (const { text, color, y } of labels) {
    ctx.fillStyle = color;
    ctx.fillText(text, bbox.left + bbox.width + 6 * ratio, y);
  }
  ctx.restore();
}

// A chart with series of `line`. `level`: the range of a second scale, which has no axis.
export function chart(at, series, { scale, values, height, sync, level, room = label_room, draw = label_lines, ...more }) {
  const wide = () => Math.max(at.clientWidth, 160);
  const hooks = { draw: [draw], setCursor: [(plot) => plot.redraw(false)] };
  const plot = new uPlot({
    width: wide(), height,
    padding: [6, room, 0, 0],
    cursor: { y: false, points: { size: 6 }, ...(sync ? { sync: { key: sync } } : {}), drag: { x: false } },
    scales: { x: { time: true }, y: scale, ...(level ? { level: { range: level } } : {}) },
    axes: axes(values, { splits: scale.distr === 3 ? decades : undefined, ...more }),
    series: [{}, ...series],
    legend: { show: false },
    hooks,
  }, [[], ...series.map(() => [])], at);
  const observer = new ResizeObserver(() => plot.setSize({ width: wide(), height }));
  observer.observe(at);
  const destroy = plot.destroy;
  plot.destroy = () => {
    observer.disconnect();
    destroy();
  };
  return plot;
}

// Describes the last values of a chart in its label.
export function describe(at, name, parts) {
  at.setAttribute("role", "img");
  at.setAttribute("aria-label", `${name}: ${parts.length ? parts.join(", ") : "no data yet"}`);
}

// Axis labels have no trailing zeros.
export const plain = (value) => String(Number(value.toPrecision(3)));
export const from_zero = (least) => ({ range: (_, __, max) => [0, Math.max(max ?? 0, least) * 1.15] });
export const logarithmic = {
  distr: 3, log: 10,
  range: (_, min, max) => {
    const floor = 10 ** Math.floor(Math.log10(Math.max(min ?? 1e-3, 1e-5)));
    return [floor, Math.max(10 ** Math.ceil(Math.log10(Math.max(max ?? 1, 1e-4))), floor * 100)];
  },
};

// The range of the time axis: what was chosen, or as far as there is data, but some seconds at least.
export function range_of(t, seconds) {
  const end = t.at(-1) ?? Date.now() / 1000;
  return { min: Math.min(Math.max(end - seconds, t[0] ?? end), end - 20), max: end };
}

// Means of the columns over steps of time, so that a chart has as many points as it can show. The
// last value stays as it is.
export function thinned(t, columns, points_max = 90) {
  const step = Math.ceil(t.length / points_max);
  if (step <= 1) return [t, ...columns];
  const last = t.length - 1;
  // Steps stand still as time goes by.
  const group_of = (at) => (at === last ? Infinity : Math.floor(t[at] / step));
  const groups = [];
  for (let at = 0; at <= last; at += 1) {
    if (at === 0 || group_of(at) !== group_of(at - 1)) groups.push([at, at]);
    groups.at(-1)[1] = at;
  }
  const mean = (column) => groups.map(([from, to]) => {
    const values = column.slice(from, to + 1).filter((value) => value != null);
    return values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null;
  });
  return [groups.map(([, to]) => t[to]), ...columns.map(mean)];
}
