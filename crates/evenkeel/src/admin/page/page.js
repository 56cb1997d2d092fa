// The page: passes the data that the server sends each second to its parts.

import { Charts, Past } from "/charts.js";
import { Client, Overrides } from "/client.js";
import { Clients } from "/clients.js";
import { Groups } from "/groups.js";
import { get, keep, watch } from "/server.js";
import { Shares } from "/shares.js";
import { capacity, client_times, clock, count, element, in_tokens, number, of_backends, percent, put, put_rich, time, tokens } from "/text.js";
import { verdict } from "/verdict.js";

// Seconds from which on a request with the backend is listed; most end before.
const SHOWN_FROM_S = 1;

const at = (id) => document.getElementById(id);
const past = new Past();
const charts = new Charts(past);
const shares = new Shares();
const overrides = new Overrides(changed, undone_not, wanted);
const client = new Client(changed, wanted);
const clients = new Clients((limit, row) => client.open(limit, row), changed, wanted);
const groups = new Groups(changed, wanted);
let now;

function changed(all) {
  if (now) {
    now.overrides = all;
    groups.update(now);
  }
  overrides.update(all);
  clients.draw();
}

function undone_not(why) {
  const told = element("p", "done bad", why.message);
  at("overrides").append(told);
  setTimeout(() => told.remove(), 5_000);
}

function event(data) {
  now = data;
  past.in_tokens = in_tokens(now.doors);
  for (const limit of now.limits) {
    if (limit.unit === "cpu" && in_tokens(now.doors.filter(({ door }) => door === limit.door))) limit.unit = "work";
  }
  state("live", `live, ${clock(now.now)}`);
  past.add(now.point);
  put(at("host"), now.host);
  put(at("version"), `Evenkeel ${now.version}`);
  tiles();
  sentence();
  charts.update();
  shares.update(now);
  overrides.update(now.overrides);
  groups.update(now);
  clients.update(now);
  client.update(now);
  running();
  engines();
  robots();
  others();
}

function state(kind, text) {
  put(at("state"), text);
  at("state").className = `state ${kind}`;
  document.body.classList.toggle("stale", kind === "lost");
}

function lost(why) {
  const reason = why?.status === 503 ? "too many open pages; trying again" : "connection lost; trying again";
  state("lost", reason);
  document.title = "Evenkeel: connection lost";
}

function sentence() {
  const { kind, said, more } = verdict(now, past);
  at("verdict").className = `verdict ${kind}`;
  put_rich(at("verdict").querySelector(".said"), said);
  put_rich(at("verdict").querySelector(".more"), more);
  document.title = `Evenkeel${now.host ? ` ${now.host}` : ""}: ${said}`;
}

function tile(id, value, note, kind = "") {
  const [text, small] = at(`tile-${id}`).querySelectorAll("b, span");
  put(text, value);
  put(small, note);
  at(`tile-${id}`).className = `tile ${kind}`;
}

function tiles() {
  const sum = (value) => now.doors.reduce((all, door) => all + (value(door) ?? 0), 0);
  const cpus = capacity(now.doors) ?? 0;
  const weighted = past.in_tokens;
  const busy = past.mean("busy", 5) ?? 0;
  const debt = Math.min(past.mean("debt", 5) ?? 0, busy);
  const part = cpus > 0 ? busy / cpus : 0;
  const measured = [...new Set(of_backends(now.doors).map((door) => door.measured))].join(", ");
  const estimated = measured === "shared";
  const queue = now.doors.find((door) => door.shared_queue);
  const by = queue ? "by requests here, " : "";
  if (weighted) tile("cpu", `${tokens(busy)}/s`, by + of_tokens(cpus, part));
  else tile("cpu", cpus > 0 ? percent(part) : "–", `${by}of ${count(cpus, "CPU", "CPUs")}`, part > 0.95 ? "warn" : "");
  put(at("tile-cpu").querySelector("h2"), weighted ? "Weighted tokens" : "CPU in use");
  put(at("use"), `${weighted ? "Weighted tokens" : "CPU"} by client`);
  const [others, theirs] = at("tile-cpu").querySelectorAll("i");
  const width = (value) => `${Math.max(0, Math.min(100, (100 * value) / (cpus || 1)))}%`;
  others.style.width = width(busy - debt);
  theirs.style.width = width(debt);
  at("tile-cpu").title = weighted
    ? `${tokens(debt)} of ${tokens(busy)} weighted tokens per second used by clients in debt`
    : `${number(debt)} of ${number(busy)} CPUs used by clients in debt`;
  const slots = sum((door) => door.crowd?.concurrency);
  const room = queue ? `here, ${sum(all_running)} of ${slots} in all` : `normally ${slots}`;
  tile("working", `${sum((door) => door.working)}`, slots ? room : "");
  put(at("measured"), weighted ? rates() : estimated ? "in CPUs, estimated" : measured ? `in CPUs, measured by ${measured}` : "in CPUs");
  const waiting = sum((door) => door.crowd?.waiting);
  const queues = now.doors.some((door) => door.crowd);
  const strangers = sum((door) => door.swarm?.strangers);
  const notes = [queue ? `here, ${sum(all_waiting)} in all` : "", strangers ? `${strangers} of strangers` : ""];
  tile("waiting", queues ? `${waiting}` : "–", queues ? notes.filter(Boolean).join(", ") : "no queue", waiting ? "warn" : "");
  put(at("load-of"), queue ? "of this instance; slots of all" : "");
  const debtors = now.limits.filter((limit) => limit.in_debt > 0);
  const first = debtors[0];
  tile("debt", `${first?.in_debt ?? 0}`, debtors.map((limit) => limit.name).join(", "), first ? "bad" : "");
  waits();
}

// What part of the capacity that is, in tokens.
function of_tokens(all, part) {
  return all > 0 ? `${percent(part)} of ${tokens(all)}/s` : "capacity not measured yet";
}

// How much the backends can do, measured while requests wait.
function rates() {
  const rates = now.doors.map((door) => door.work_rate).filter((rate) => rate != null);
  return rates.length
    ? `per second; measured capacity ${rates.map(tokens).join(", ")}`
    : "per second; capacity is measured when requests wait";
}

// Requests with a slot, and those that wait, of all instances that share the queue.
const all_running = ({ shared_queue, crowd }) => shared_queue?.running ?? crowd?.running;
const all_waiting = ({ shared_queue, crowd }) => shared_queue?.waiting ?? crowd?.waiting;

// How long the typical client waits, and which one does not wait as the others do. Of models, the
// time to the first byte: how long an answer takes depends on its length.
function waits() {
  const [credit, debt] = ["credit", "debt"].map((tier) => client_times(now.doors, tier));
  const slow = [credit, debt].filter(Boolean).sort((a, b) => b.longest - a.longest)[0];
  const what = past.in_tokens ? ", first byte" : "";
  put(at("tile-typical").querySelector("h2"), `Typical client${what}`);
  put(at("tile-slowest").querySelector("h2"), `Slowest client${what}`);
  tile("typical", time(credit?.median), credit ? `95% within ${time(credit.p95)}` : "no requests");
  tile("slowest", time(slow?.longest), slow?.slowest ?? "", slow && slow === debt ? "bad" : "");
}

// Requests that the backend has had for a while, and the oldest one that waits for it.
function running() {
  const all = now.doors.flatMap((door) => door.running).sort((a, b) => b.age - a.age);
  const waits = now.doors.map((door) => door.oldest_waiting).filter(Boolean).sort((a, b) => b.age - a.age)[0];
  const old = all.filter((request) => request.age >= SHOWN_FROM_S);
  at("running").hidden = old.length === 0;
  const rows = old.map(({ client, route, age, stalled }) => [time(age), client, route, stalled ? "waits for its client" : "working"]);
  const here = now.doors.some((door) => door.shared_queue) ? " here" : "";
  const text = waits ? `The oldest waiting request${here}, ${waits.route} of ${waits.client}, has waited for ${time(waits.age)}.` : `No request waits${here}.`;
  table(at("running").lastElementChild, text, ["For", "Client", "Request", "State"], rows, []);
}

// What inference engines report of their own queues.
function engines() {
  const all = now.doors.flatMap((door) => door.engines);
  at("engines").hidden = all.length === 0;
  const rows = all.map(({ backend, running, waiting, cache_used, room }) =>
    [backend, `${running}`, `${waiting}`, percent(cache_used), room == null ? "–" : `${room}`]);
  const text = "As the backends report. While requests wait inside of one, it is sent no more than it runs.";
  table(at("engines").lastElementChild, text, ["Backend", "Running", "Waiting inside", "Cache used", "Sent at most"], rows, []);
}

// A sentence for each robot that has to prove who it is.
function robots() {
  at("robots").hidden = now.robots.length === 0;
  const lines = now.robots.map((text) => {
    const line = document.createElement("li");
    const span = document.createElement("span");
    span.textContent = text;
    line.append(span);
    return line;
  });
  at("robots").lastElementChild.replaceChildren(...lines);
}

function others() {
  const { peers, store } = now;
  const queues = now.doors.filter((door) => door.shared_queue);
  at("others").hidden = !peers && !store && !queues.length;
  at("queue").hidden = !queues.length;
  if (queues.length) show_queue(queues[0].shared_queue);
  at("peers").hidden = !peers;
  at("store").hidden = !store;
  if (peers) show_peers(peers);
  if (store) show_store(store);
}

// The queue that instances share: who owns it, and what each of them has.
function show_queue({ owner, owns, seconds, slots, waiting, running, instances }) {
  const taking_part = instances.filter((one) => !one.silent && !one.apart).length;
  const mine = instances.find((one) => one.here);
  const text = taking_part < 2
    ? "This instance shares its queue, and no other one takes part."
    : `One queue for ${taking_part} instances; ${owns ? "this instance" : owner} owns it for ${time(seconds)}. `
      + `Here ${mine.waiting} wait and ${mine.running} run; in all ${waiting} wait and ${running} run on ${count(slots, "slot", "slots")}.`;
  const state = (one) => [one.here && "this one", one.owns && "owns the queue", one.silent && "silent", one.apart && "has not joined"].filter(Boolean).join(", ") || "takes part";
  const rows = instances.map((one) => [one.name, state(one), `${one.waiting}`, `${one.running}`, `${one.kept ?? "–"}`]);
  table(at("queue"), text, ["Instance", "Queue", "Waiting", "Running", "Slots kept"], rows, instances.map((one) => one.silent || one.apart));
}

function show_peers({ queue, peers, live, via, cluster }) {
  const part = (peer) => peer.queue ? (peer.queue.owns ? "owns it" : "shares it") : (peer.queue_apart ?? "–");
  const rows = peers.map((peer) => [
    peer.name, peer.address, peer.live ? "live" : `silent for ${time(peer.silent_seconds)}`,
    peer.behind_seconds > 0 ? time(peer.behind_seconds) : "–", `${peer.lost_in + peer.lost_out}`,
    ...(queue ? [part(peer)] : []),
  ]);
  const bad = peers.map((peer) => !peer.live || Boolean(peer.queue_apart));
  const head = ["Instance", "Address", "State", "Behind", "Frames lost", ...(queue ? ["Queue"] : [])];
  table(at("peers"), `${live} of ${peers.length + 1} instances live (${via}, cluster ${cluster})`, head, rows, bad);
}

function show_store({ servers, good, failed, why, owed, local, answered, mode }) {
  const text = `Store ${servers.join(", ")} (${mode}): ${good} of ${good + failed} connections good`;
  const rows = [[`${answered}`, `${local}`, `${owed}`, why || "–"]];
  table(at("store"), text, ["Answered", "Decided here", "To be sent", "Last error"], rows, [failed > 0]);
}

function table(into, text, head, rows, bad) {
  if (!into.firstChild) {
    const made = element("table");
    made.append(element("thead"), element("tbody"));
    const wide = element("div", "wide");
    wide.append(made);
    into.append(element("p"), wide);
  }
  put(into.firstChild, text);
  const line = (cells, name) => {
    const row = element("tr");
    row.append(...cells.map((cell) => element(name, "", cell)));
    return row;
  };
  into.querySelector("thead").replaceChildren(line(head, "th"));
  into.querySelector("tbody").replaceChildren(...rows.map((cells, index) => {
    const row = line(cells, "td");
    row.classList.toggle("lost-row", Boolean(bad[index]));
    return row;
  }));
}

// Asks the operator for the token; false if the dialog is closed without one.
function wanted() {
  const dialog = at("token");
  const form = at("token-form");
  put(form.querySelector(".done"), dialog.asked ? "The server refuses this token." : "");
  dialog.asked = true;
  if (!dialog.open) dialog.showModal();
  return new Promise((given) => {
    form.onsubmit = (submitted) => {
      submitted.preventDefault();
      keep(form.elements.token.value);
      form.reset();
      given(true);
      dialog.close();
    };
    dialog.onclose = () => given(false);
  });
}

at("ranges").addEventListener("click", ({ target }) => {
  const chosen = target.closest("button");
  if (!chosen) return;
  for (const button of at("ranges").children) {
    button.setAttribute("aria-pressed", String(button === chosen));
  }
  charts.show(Number(chosen.dataset.seconds));
  shares.show(Number(chosen.dataset.seconds));
});

watch({
  event,
  lost,
  wanted: () => {
    state("", "a token is required");
    return wanted();
  },
  begun: async () => past.take(await get("/api/history")),
});
