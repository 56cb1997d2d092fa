// The state in one sentence: the costliest client, the reaction of the throttle and its effect.

import { capacity, client_times, clock, count, counts_work, number, percent, time, tokens } from "/text.js";

// A backend that uses this part of its CPUs is full.
const FULL = 0.85;

// A client without requests for this time, in seconds, has stopped. Its cost is a recent mean, which decays over ten seconds.
const STOPPED = 5;

// The costliest client in debt. A network is named only if no single client in it explains its cost.
function culprit(limits) {
  const in_debt = (row) => row.wait > 0 || (row.level ?? 0) < 0;
  let found;
  for (const limit of limits.filter((limit) => limit.open && counts_work(limit))) {
    const row = limit.rows.filter(in_debt).sort((a, b) => b.cpu_per_second - a.cpu_per_second)[0];
    if (!row) continue;
    if (!found || row.cpu_per_second > 1.4 * found.row.cpu_per_second) found = { limit, row };
  }
  return found;
}

function does(action, { waiting, waits, reject, wait }) {
  switch (action) {
    case "queue":
      return waiting >= 1
        ? `It waits behind all clients in credit: ${waits}.`
        : "It waits behind all clients in credit whenever the backend is full.";
    case "hold": return `Its responses are held, ${time(wait)} on average.`;
    case "delay": return `Its requests are delayed, ${time(wait)} on average.`;
    default: return `It is refused ${number(reject)} times per second.`;
  }
}

// How long the typical client waits, and which one does not wait as the others do. Each client
// counts once, however many requests it sends.
function times(now, { in_tokens }) {
  const [credit, debt] = ["credit", "debt"].map((tier) => client_times(now.doors, tier));
  const gets = (seconds) => (in_tokens ? `gets its first byte in ${time(seconds)}` : `is answered in ${time(seconds)}`);
  const parts = [];
  if (credit?.clients === 1) parts.push(`${credit.slowest ?? "The only client in credit"} ${gets(credit.median)}.`);
  else if (credit) {
    parts.push(`The typical client ${gets(credit.median)}, and 95% of clients within ${time(credit.p95)}; slowest: ${credit.slowest ?? "?"} (${time(credit.longest)}).`);
  }
  if (debt?.clients === 1) parts.push(`${debt.slowest ?? "A client"}, in debt at its last request, ${gets(debt.median)}.`);
  else if (debt) parts.push(`Of ${debt.clients} clients in debt at their last requests, the typical one ${gets(debt.median)}.`);
  return parts.join(" ");
}

// The refusals of limits, if there are enough to speak of: a few of many requests are no news, but
// most of a few are.
function refusals(past) {
  const mean = (name) => past.mean(name) ?? 0;
  const refused = mean("reject");
  const all = ["allow", "queue", "hold", "delay"].reduce((sum, name) => sum + mean(name), refused);
  const most = refused > all / 2;
  if (refused < 0.5 && !most) return undefined;
  return {
    most,
    kind: most ? "warn" : "note",
    said: most
      ? `Most requests are refused: ${number(refused)} of ${number(all)} per second.`
      : `${number(refused)} requests per second are refused.`,
  };
}

// { kind, said, more } for the current data and the history. A refused configuration comes first.
export function verdict(now, past) {
  const state = state_of(now, past);
  const refused = now.refused_config;
  if (!refused) return state;
  const more = refused.faults > 1 ? ` (and ${refused.faults - 1} more)` : "";
  return {
    kind: state.kind === "bad" ? "bad" : "warn",
    said: `The configuration on disk has been refused since ${clock(refused.since)}, and ${refused.meanwhile}: ${refused.fault}${more}.`,
    more: `${state.said} ${state.more}`,
  };
}

function state_of(now, past) {
  const cpus = capacity(now.doors);
  // Of all instances that share the queue.
  const waiting = now.doors.reduce((sum, { shared_queue, crowd }) => sum + (shared_queue?.waiting ?? crowd?.waiting ?? 0), 0);
  const waits = waiting_text(now, waiting);
  const busy = past.mean("busy", 5) ?? 0;
  const failed = past.mean("failed") ?? 0;
  const guilty = culprit(now.limits);
  const here = now.doors.some((door) => door.shared_queue) ? " by requests of this instance" : "";
  const used = past.in_tokens
    ? `${tokens(busy)}${cpus ? ` of ${tokens(cpus)}` : ""} weighted tokens per second used${here}`
    : `${number(busy)} of ${count(cpus, "CPU", "CPUs")} used${here}`;
  if (now.stage === "draining") {
    return { kind: "warn", said: "This server is stopping: running requests may finish, new ones are refused.", more: used };
  }
  if (past.empty) return { kind: "", said: "No data yet.", more: "The first numbers arrive within a second." };
  if (failed >= 0.5) {
    return {
      kind: "bad",
      said: `The backend fails ${number(failed)} requests per second.`,
      more: `See the log. Throttling is not the cause. ${used}.`,
    };
  }
  if (!now.doors.length) return doors_only(now, past);
  const full = busy >= FULL * cpus || waiting >= 1;
  const swarms = now.doors.map((door) => door.swarm).filter(Boolean);
  if (swarms.length) return in_swarm(swarms, { now, used, past });
  const refused = refusals(past);
  // A client in debt that a limit of costs refuses is the better explanation.
  const explained = guilty && !guilty.limit.shadow && guilty.limit.action === "reject";
  if (refused && !explained && (refused.most || !full)) {
    const debts = guilty ? `${takes_of(guilty.row, cpus, past)} It is in debt.` : "No client is in debt.";
    const { kind, said } = refused;
    return { kind, said, more: `The log names the limits. ${debts} ${used}; ${waiting >= 1 ? waits : "no request waits"}. ${times(now, past)}` };
  }
  if (guilty) return in_debt(guilty, { full, cpus, waiting, waits, used, now, past });
  if (full) {
    const state = busy >= FULL * cpus ? "The backend is full" : "Requests wait in the queue";
    return {
      kind: "warn",
      said: refused ? `${state}. ${refused.said}` : `${state}, and no client is over a limit.`,
      more: `${refused ? "The log names the limits. " : ""}${used}; ${waits}. All clients get the same share. ${times(now, past)}`,
    };
  }
  return { kind: "good", said: "No problems.", more: `${used}; no request waits, and no client is in debt. ${times(now, past)}` };
}

// The requests that wait, in words. If instances share the queue: of all, and of this one.
function waiting_text(now, waiting) {
  const text = count(waiting, "request waits", "requests wait");
  if (!now.doors.some((door) => door.shared_queue)) return text;
  const here = now.doors.reduce((sum, { crowd }) => sum + (crowd?.waiting ?? 0), 0);
  return `${text} at all instances together, ${here} of them here`;
}

// Clients in credit ask for more than the backend can do; most of them were not here before.
function in_swarm(swarms, { now, used, past }) {
  const sum = (value) => swarms.reduce((all, swarm) => all + value(swarm), 0);
  const since = Math.min(...swarms.map((swarm) => swarm.since));
  const strangers = count(sum((swarm) => swarm.strangers), "request of a stranger waits", "requests of strangers wait");
  const room = sum((swarm) => swarm.waiting_room_new + swarm.waiting_room_returned);
  const returned = sum((swarm) => swarm.waiting_room_returned);
  const waits = swarms.map((swarm) => swarm.newcomer_wait).filter((wait) => wait != null);
  const other = now.doors.find((door) => door.swarm && door.shared_queue && !door.shared_queue.owns);
  const parts = [
    "Clients that were here before go first.",
    other
      ? `${other.shared_queue.owner} owns the queue and has the figures of strangers.`
      : `${strangers}; strangers have used ${work(sum((swarm) => swarm.strangers_cost), past)} since then.`,
    `${count(room, "visitor is", "visitors are")} in the waiting room, ${returned} of them for a second time or more.`,
  ];
  if (waits.length) parts.push(`New visitors wait ${time(Math.max(...waits))} for their first page.`);
  for (const group of swarms.flatMap((swarm) => swarm.groups ?? [])) {
    parts.push(`${number(group.percent_of_strangers)}% of what strangers ask for has in common: ${group.name}. At most ${number(group.percent_of_clients)}% of returning clients are like that, so these strangers wait behind all others.`);
  }
  return {
    kind: "warn",
    said: `More is asked for than the backend can do, since ${clock(since)} (${time(now.now - since)}).`,
    more: `${parts.join(" ")} ${used}. ${times(now, past)}`,
  };
}

// An amount of work in words.
const work = (amount, { in_tokens }) => (in_tokens ? `${tokens(amount)} weighted tokens` : `${number(amount)} CPU-seconds`);

function takes_of({ key, cpu_per_second, last_seen }, cpus, { in_tokens }) {
  const share = percent(cpu_per_second / cpus);
  const rate = in_tokens
    ? `${tokens(cpu_per_second)} weighted tokens per second${cpus ? ` (${share} of all)` : ""}`
    : `${share} of the CPU`;
  return last_seen < STOPPED
    ? `${key} uses ${rate}.`
    : `${key} used ${rate} recently. It has sent no requests for ${time(last_seen)}, so ${in_tokens ? "this" : "its share"} decreases.`;
}

function in_debt({ limit, row }, { full, cpus, waiting, waits, used, now, past }) {
  const takes = takes_of(row, cpus, past);
  if (limit.shadow) {
    return {
      kind: full ? "bad" : "note",
      said: `${takes} Shadow mode: not enforced.`,
      more: `${used}. With \`shadow: false\` the limit ${limit.name} would ${would(limit.action)}. ${times(now, past)}`,
    };
  }
  const reject = past.mean("reject") ?? 0;
  const done = does(limit.action, { waiting, waits, reject, wait: row.wait_average });
  if (!full && limit.action === "queue") {
    return { kind: "good", said: "No problems.", more: `${takes} It is in debt, but the backend has room for every request, so none waits. ${times(now, past)}` };
  }
  return { kind: full ? "warn" : "note", said: `${takes} ${done}`, more: `${used}. ${times(now, past)}` };
}

const would = (action) => ({
  queue: "put it behind all clients in credit",
  hold: "hold its responses",
  delay: "delay it",
  reject: "refuse it",
})[action] ?? "slow it down";

function doors_only(now, past) {
  const refused = past.mean("reject") ?? 0;
  const all = refused + (past.mean("allow") ?? 0);
  const asked = all > 0 ? `${number(all)} decisions per second.` : "No requests.";
  return refused > 0
    ? { kind: "note", said: `${number(refused)} requests per second are refused.`, more: asked }
    : { kind: "good", said: "No problems.", more: `No request is refused. ${asked}` };
}
