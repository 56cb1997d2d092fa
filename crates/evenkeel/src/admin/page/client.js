// One client: its history, and the actions of an operator.

import { of_client } from "/charts.js";
import { get, order } from "/server.js";
import { amount, element, number, put, time, unit_of } from "/text.js";

const EVERY_MS = 5_000;
const WEIGHT = 0.1;
const DONE = {
  exempt: "is exempt for an hour: its requests are neither counted nor delayed.",
  weigh: "is slowed down for an hour: while requests wait, it gets a tenth of another client's share.",
  deny: "is denied for an hour: its requests get status 403.",
  clear: "has no debt any more: its bucket is full again.",
};

// Carries out an action on a client. Returns all overrides, and what was done in words.
export async function act_on(what, limit, row, wanted) {
  const sent = { do: what, door: limit.door, limit: limit.name, id: row.id };
  if (what !== "clear") sent.for_seconds = 3600;
  if (what === "weigh") sent.weight = WEIGHT;
  return [await order(sent, wanted), `${row.key} ${DONE[what]}`];
}

// Why an action is not available for the clients of a limit; empty if it is.
export const unavailable = (what, limit) =>
  (what === "weigh" && limit.action !== "queue" ? "has an effect only with the action queue" : "");

export class Client {
  constructor(changed, wanted) {
    this.wanted = wanted;
    this.dialog = document.getElementById("client");
    this.changed = changed;
    this.part = (what) => this.dialog.querySelector(what);
    this.dialog.addEventListener("close", () => this.closed());
    this.dialog.addEventListener("click", (event) => {
      if (event.target === this.dialog) this.dialog.close();
    });
    for (const button of this.dialog.querySelectorAll(".acts button")) {
      button.addEventListener("click", () => this.act(button.dataset.do));
    }
  }

  open(limit, row) {
    this.limit = limit;
    this.row = row;
    this.said("");
    put(this.part(".of"), `${limit.door}, limit ${limit.name}`);
    put(this.part("h2"), row.key);
    put(this.part(".unit"), `${unit_of(limit).used}, and level in ${unit_of(limit).left}`);
    const weigh = this.part("[data-do=weigh]");
    weigh.title = unavailable("weigh", limit);
    weigh.disabled = Boolean(weigh.title);
    put(this.part("p.about"), "Each action is logged, and is shown above the list until it ends or is undone. A cleared bucket is full again, and the debt cannot be restored.");
    this.facts();
    this.dialog.showModal();
    this.past();
    this.timer = setInterval(() => this.past(), EVERY_MS);
  }

  closed() {
    clearInterval(this.timer);
    this.plot?.destroy();
    this.plot = undefined;
    this.row = undefined;
  }

  // Refreshes the facts with the data of each second.
  update(now) {
    if (!this.row) return;
    const limit = now.limits.find((one) => one.door === this.limit.door && one.name === this.limit.name);
    const row = limit?.rows.find((one) => one.id === this.row.id);
    if (row) {
      [this.limit, this.row] = [limit, row];
      this.facts();
    }
  }

  facts() {
    const { limit, row } = this;
    const facts = [
      ["Level", amount(row.level, limit)],
      ["In credit in", row.wait > 0 ? time(row.wait) : "now"],
      [limit.unit === "cpu" ? "Recent CPUs" : `${unit_of(limit).head} per second`, unit_of(limit).figure(row.cpu_per_second)],
      ["Requests per second", number(row.requests_per_second)],
      ["Answered in", time(row.answered)],
      ["Mean wait", time(row.wait_average)],
      ["Total", amount(row.cpu_total, limit)],
    ];
    const list = this.part(".facts");
    if (list.children.length !== facts.length) {
      list.replaceChildren(...facts.map(() => {
        const pair = element("div");
        pair.append(element("dt"), element("dd"));
        return pair;
      }));
    }
    facts.forEach(([name, value], at) => {
      put(list.children[at].firstChild, name);
      put(list.children[at].lastChild, value);
    });
  }

  async past() {
    const { limit, row } = this;
    const where = new URLSearchParams({ door: limit.door, limit: limit.name, id: row.id });
    const empty = this.part("figure .empty");
    try {
      const past = await get(`/api/client?${where}`);
      if (row.id !== this.row?.id) return;
      put(empty, "No history yet: a point is recorded every five seconds.");
      empty.hidden = past.t.length > 0;
      this.plot?.destroy();
      this.plot = undefined;
      if (past.t.length) this.plot = of_client(document.getElementById("chart-client"), limit, past);
    } catch (why) {
      put(empty, String(why.message));
      empty.hidden = false;
    }
  }

  said(text, bad = false) {
    put(this.part(".done"), text);
    this.part(".done").classList.toggle("bad", bad);
  }

  async act(what) {
    const { limit, row } = this;
    try {
      const [all, done] = await act_on(what, limit, row, this.wanted);
      this.changed(all);
      this.said(done);
    } catch (why) {
      this.said(why.message, true);
    }
  }
}

// The list of overrides, each with a button to undo it.
export class Overrides {
  constructor(changed, failed, wanted) {
    this.at = document.getElementById("overrides");
    this.list = this.at.querySelector("ul");
    this.list.addEventListener("click", async ({ target }) => {
      const button = target.closest("button");
      if (!button) return;
      try {
        changed(await order({ do: "undo", override_id: button.override }, wanted));
      } catch (why) {
        failed(why);
      }
    });
  }

  update(all) {
    this.at.hidden = all.length === 0;
    const rows = [...this.list.children];
    all.forEach((said, at) => {
      const row = rows[at] ?? this.list.appendChild(made());
      const name = said.limit ? `${said.key} (${said.limit})` : said.key;
      put(row.firstChild, `${name}: ${does(said)}, for another ${time(said.left)}; set from ${said.by}`);
      row.lastChild.override = said.override_id;
    });
    rows.slice(all.length).forEach((row) => row.remove());
  }
}

function does(said) {
  switch (said.do) {
    case "exempt": return "exempt: neither counted nor delayed";
    case "deny": return said.limit ? "denied: its requests get status 403" : "denied: strangers like that get status 403";
    case "slow": return "slowed down: strangers like that wait behind all others";
    default: return said.weight < 1 ? `slowed down: weight ${number(said.weight)}` : `weight ${number(said.weight)}`;
  }
}

function made() {
  const row = element("li");
  const button = element("button", "undo", "Undo");
  button.type = "button";
  row.append(element("span"), button);
  return row;
}
