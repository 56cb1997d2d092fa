// Formats numbers for people.

const UNITS = [[1e-6, "µs"], [1e-3, "ms"], [1, "s"], [60, "min"], [3600, "h"]];

// At most three digits.
export function number(value) {
  if (value == null || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 100_000) return value.toExponential(1);
  if (size >= 100) return value.toFixed(0);
  if (size >= 10) return value.toFixed(1);
  return size < 0.005 ? "0.00" : value.toFixed(2);
}

// No line ends between a number and its unit.
export function time(seconds) {
  if (seconds == null || Number.isNaN(seconds)) return "–";
  if (seconds < 1e-6) return "0 s";
  let [size, unit] = UNITS[0];
  for (const [next, name] of UNITS) if (seconds >= next) [size, unit] = [next, name];
  const value = seconds / size;
  return `${value >= 9.95 ? value.toFixed(0) : Number(value.toFixed(1))}\u00a0${unit}`;
}

export function percent(part) {
  if (part == null || Number.isNaN(part)) return "–";
  const value = 100 * part;
  return value > 0 && value < 0.95 ? "<1%" : `${value.toFixed(0)}%`;
}

// The time of day at this many seconds since the epoch, the same everywhere on the page.
export function clock(seconds, with_seconds = true) {
  const date = new Date(seconds * 1000);
  const parts = [date.getHours(), date.getMinutes(), ...(with_seconds ? [date.getSeconds()] : [])];
  return parts.map((n) => String(n).padStart(2, "0")).join(":");
}

export function count(n, one, many) {
  return `${n} ${n === 1 ? one : many}`;
}

// Tokens, which arrive in thousands.
export function tokens(thousands) {
  if (thousands == null || Number.isNaN(thousands)) return "–";
  const size = Math.abs(thousands);
  if (size < 0.9995) return (1000 * thousands).toFixed(0);
  if (size < 999.5) return `${Number(thousands.toPrecision(3))} k`;
  return `${Number((thousands / 1000).toPrecision(3))} M`;
}

// Money, with at most four decimals.
export function money(value) {
  return value == null || Number.isNaN(value) ? "–" : String(Number(value.toFixed(4)));
}

// The units of limits and views. Shares of models are in weighted tokens: unit "work".
const UNITS_OF = {
  cpu: { figure: number, level: (value) => `${number(value)} s`, head: "CPU", rate: "CPUs", used: "CPU-seconds per second", left: "CPU-seconds" },
  work: { figure: tokens, level: tokens, head: "Tokens", rate: "weighted tokens/s", used: "weighted tokens per second", left: "weighted tokens" },
  tokens: { figure: tokens, level: tokens, head: "Tokens", rate: "tokens/s", used: "tokens per second", left: "tokens" },
  money: { figure: money, level: money, head: "Money", rate: "money/s", used: "money per second", left: "money" },
  hits: { figure: number, level: number, head: "Hits", rate: "requests/s", used: "hits per second", left: "requests" },
};

export const unit_of = (limit) => UNITS_OF[limit?.unit] ?? UNITS_OF.hits;

// A level or a cost with its unit.
export function amount(value, limit) {
  return value == null ? "–" : unit_of(limit).level(value);
}

// Whether the limit counts what the backend works.
export const counts_work = ({ unit }) => unit === "cpu" || unit === "work";

// Whether a door counts tokens in place of CPU time.
export const in_tokens = (doors) => doors.some((door) => door.work_unit === "tokens");

// The doors before backends. Turns have slots instead.
export const of_backends = (doors) => doors.filter((door) => door.work_unit !== "slots");

// What all backends can do in a second; undefined if it is still to be measured.
export function capacity(doors) {
  const all = of_backends(doors).map(({ measures_rate, work_rate, cpus }) => (measures_rate ? work_rate : cpus));
  return all.includes(null) ? undefined : all.reduce((sum, one) => sum + one, 0);
}

// How long clients wait for answers, each counted once: those in credit, and those in debt. With
// several doors, those of the door with most clients.
export function client_times(doors, tier) {
  const all = doors.map(({ client_times }) => client_times[tier]).filter(Boolean);
  return all.sort((a, b) => b.clients - a.clients)[0];
}

// Puts a text with `code` in backticks.
export function put_rich(element, text) {
  if (element.said === text) return;
  element.said = text;
  element.replaceChildren(...text.split("`").map((part, at) => {
    if (at % 2 === 0) return part;
    const code = document.createElement("code");
    code.textContent = part;
    return code;
  }));
}

export function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function element(name, classes = "", text = "") {
  const made = document.createElement(name);
  if (classes) made.className = classes;
  if (text) made.textContent = text;
  return made;
}
