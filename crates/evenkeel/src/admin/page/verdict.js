// What is going on, in one sentence: who eats the server, what the throttle does, whether it works.

import { count, number, percent, time } from "/text.js";

// From this part of its CPUs on a backend is full.
const FULL = 0.85;

// Whoever was not seen for so long, in seconds, has stopped: what it takes is a mean of late, which fades over ten.
const STOPPED = 5;

// The client in debt that costs most. A network is named only where no one in it stands for it.
function culprit(limits) {
  const in_debt = (row) => row.wait > 0 || (row.level ?? 0) < 0;
  let found;
  for (const limit of limits.filter(({ open, unit }) => open && unit === "cpu")) {
    const row = limit.rows.filter(in_debt).sort((a, b) => b.cpu_per_second - a.cpu_per_second)[0];
    if (!row) continue;
    if (!found || row.cpu_per_second > 1.4 * found.row.cpu_per_second) found = { limit, row };
  }
  return found;
}

function does(action, { waiting, reject, wait }) {
  switch (action) {
    case "queue":
      return waiting >= 1
        ? `It waits behind everybody in credit: ${count(Math.round(waiting), "request waits", "requests wait")}.`
        : "It goes behind everybody in credit whenever there is no room.";
    case "hold": return `Its answers are held, ${time(wait)} on average.`;
    case "delay": return `Its requests are delayed, ${time(wait)} on average.`;
    default: return `It is refused, ${number(reject)} times a second.`;
  }
}

function times(past) {
  const [credit, debt] = [past.last("credit_p95"), past.last("debt_p95")];
  const parts = [];
  if (credit != null) parts.push(`Those in credit are answered within ${time(credit)}`);
  if (debt != null) parts.push(`${parts.length ? "those" : "Those"} in debt within ${time(debt)}`);
  return parts.length ? `${parts.join(", ")} (95 of 100).` : "";
}

// { kind, said, more } for what the server tells and what has been.
export function verdict(now, past) {
  const cpus = now.doors.reduce((sum, door) => sum + door.cpus, 0);
  const crowds = now.doors.map((door) => door.crowd).filter(Boolean);
  const waiting = crowds.reduce((sum, crowd) => sum + crowd.waiting, 0);
  const busy = past.mean("busy", 5) ?? 0;
  const failed = past.mean("failed") ?? 0;
  const guilty = culprit(now.limits);
  const used = `${number(busy)} of ${count(cpus, "CPU", "CPUs")} used`;
  if (now.stage === "draining") {
    return { kind: "warn", said: "This server is stopping: what runs may end, nothing more comes in.", more: used };
  }
  if (past.empty) return { kind: "", said: "No data yet.", more: "The first numbers are here in a second." };
  if (failed >= 0.5) {
    return {
      kind: "bad",
      said: `The backend fails ${number(failed)} requests a second.`,
      more: `The log says how; this is not the throttle. ${used}.`,
    };
  }
  if (!now.doors.length) return doors_only(now, past);
  const full = busy >= FULL * cpus || waiting >= 1;
  if (guilty) return in_debt(guilty, { full, cpus, waiting, used, past });
  if (full) {
    return {
      kind: "warn",
      said: busy >= FULL * cpus ? "The backend is full, and nobody is over a limit." : "Requests wait for room, and nobody is over a limit.",
      more: `${used}; ${count(waiting, "request waits", "requests wait")}. Everybody gets the same share. ${times(past)}`,
    };
  }
  return { kind: "good", said: "Nothing is wrong.", more: `${used}; nobody waits, nobody is in debt. ${times(past)}` };
}

function takes_of(row, cpus) {
  const share = percent(row.cpu_per_second / cpus);
  return row.last_seen < STOPPED
    ? `${row.key} takes ${share} of the CPU.`
    : `${row.key} took ${share} of the CPU of late. Nothing was seen of it for ${time(row.last_seen)}, so its share fades.`;
}

function in_debt({ limit, row }, { full, cpus, waiting, used, past }) {
  const takes = takes_of(row, cpus);
  if (limit.shadow) {
    return {
      kind: full ? "bad" : "note",
      said: `${takes} Nothing is done about it: this is shadow.`,
      more: `${used}. With \`shadow: false\` the limit ${limit.name} would ${would(limit.action)}. ${times(past)}`,
    };
  }
  const reject = past.mean("reject") ?? 0;
  const done = does(limit.action, { waiting, reject, wait: row.wait_average });
  if (!full && limit.action === "queue") {
    return { kind: "good", said: "Nothing is wrong.", more: `${takes} It is in debt, but there is room for all: nobody waits. ${times(past)}` };
  }
  return { kind: full ? "warn" : "note", said: `${takes} ${done}`, more: `${used}. ${times(past)}` };
}

const would = (action) => ({
  queue: "put it behind everybody in credit",
  hold: "hold its answers",
  delay: "delay it",
  reject: "refuse it",
})[action] ?? "slow it down";

function doors_only(now, past) {
  const refused = past.mean("reject") ?? 0;
  const all = refused + (past.mean("allow") ?? 0);
  const asked = all > 0 ? `${number(all)} decisions a second.` : "Nobody asks.";
  return refused > 0
    ? { kind: "note", said: `${number(refused)} requests a second are refused.`, more: asked }
    : { kind: "good", said: "Nothing is wrong.", more: `Nobody is refused. ${asked}` };
}
