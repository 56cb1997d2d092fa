// The tables of the busiest clients: a tab for each limit and view, a row for each client.
//
// Rows keep their elements from one second to the next, so that a click meets the right row.

import { amount, capacity, counts_work, element, number, percent, put, time, unit_of } from "/text.js";

const ABOUT = {
  queue: "queue: while the backend is full, clients in debt wait behind all clients in credit",
  hold: "hold: responses to clients in debt are held until the debt is paid",
  delay: "delay: requests of clients in debt wait before they are sent to the backend",
  reject: "reject: requests over the limit are refused",
};
const VIEWS = {
  routes: "by route: method and path without identifiers, for all clients",
  agents: "by user agent, for information; no limit applies",
};

const UNNAMED = "The name is unknown: other clients displaced this one from the list while its request ran. The next request shows the name again.";

const in_debt = (row) => row.wait > 0 || (row.level ?? 0) < 0;
const name_of = (limit) => `${limit.door} ${limit.name}`;

export class Clients {
  constructor(opened) {
    this.rows = new Map();
    this.order = "cpu_per_second";
    this.turned = false;
    this.filter = "";
    this.body = document.querySelector("#clients tbody");
    this.tabs = document.getElementById("tabs");
    this.body.addEventListener("click", ({ target }) => {
      const row = target.closest("tr");
      if (row && this.limit?.open) opened(this.limit, row.client);
    });
    this.tabs.addEventListener("click", ({ target }) => {
      const tab = target.closest("button");
      if (tab) this.choose(tab.limit);
    });
    for (const button of document.querySelectorAll("#clients thead button")) {
      button.addEventListener("click", () => this.sort(button.dataset.order));
    }
    document.getElementById("filter").addEventListener("input", ({ target }) => {
      this.filter = target.value.toLowerCase();
      this.draw();
    });
  }

  choose(name) {
    this.chosen = name;
    this.draw();
  }

  sort(order) {
    this.turned = this.order === order && !this.turned;
    this.order = order;
    for (const button of document.querySelectorAll("#clients thead button")) {
      button.setAttribute("aria-pressed", String(button.dataset.order === order));
    }
    this.draw();
  }

  update(now) {
    this.now = now;
    this.draw();
  }

  get limit() {
    const limits = this.now?.limits ?? [];
    return limits.find((limit) => name_of(limit) === this.chosen) ?? limits[0];
  }

  draw() {
    if (!this.now) return;
    this.draw_tabs();
    const { limit } = this;
    const rows = limit ? this.shown(limit) : [];
    const cpus = capacity(this.now.doors) ?? 0;
    put(document.querySelector("#clients [data-order=cpu_per_second]"), unit_of(limit).head);
    const kept = new Map();
    let before = null;
    for (const row of rows) {
      const at = this.rows.get(row.id) ?? made_row();
      kept.set(row.id, at);
      fill(at, row, limit, cpus, this.overridden(row));
      const next = before ? before.nextSibling : this.body.firstChild;
      if (next !== at) this.body.insertBefore(at, next);
      before = at;
    }
    for (const [id, at] of this.rows) if (kept.get(id) !== at) at.remove();
    this.rows = kept;
    const nobody = document.getElementById("nobody");
    nobody.hidden = rows.length > 0;
    put(nobody, limit?.rows.length ? "No client matches the filter." : "No clients yet.");
    document.getElementById("clients").hidden = rows.length === 0;
    put(document.getElementById("about"), about(limit));
  }

  draw_tabs() {
    const { limits } = this.now;
    const tabs = [...this.tabs.children];
    limits.forEach((limit, at) => {
      const tab = tabs[at] ?? this.tabs.appendChild(made_tab());
      tab.limit = name_of(limit);
      put(tab.firstChild, limit.name);
      put(tab.lastChild, limit.in_debt ? ` ${limit.in_debt}` : "");
      tab.lastChild.title = limit.in_debt ? "of the listed clients are in debt" : "";
      tab.setAttribute("aria-selected", String(limit === this.limit));
    });
    tabs.slice(limits.length).forEach((tab) => tab.remove());
  }

  shown(limit) {
    const key = this.order;
    const value = (row) => row[key] ?? Infinity;
    const ascending = ["level", "last_seen"].includes(key);
    const order = key === "key"
      ? (a, b) => a.key.localeCompare(b.key)
      : (a, b) => (ascending ? value(a) - value(b) : value(b) - value(a)) || 0;
    const rows = limit.rows.filter((row) => row.key.toLowerCase().includes(this.filter)).sort(order);
    return this.turned ? rows.reverse() : rows;
  }

  overridden(row) {
    return this.now.overrides.find((said) => said.id === row.id);
  }
}

function about(limit) {
  if (!limit) return "";
  if (VIEWS[limit.name] && !limit.action) return VIEWS[limit.name];
  const shadow = limit.shadow ? "shadow, not enforced; " : "";
  const unit = ["work", "tokens", "money"].includes(limit.unit) ? `in ${unit_of(limit).left}; ` : "";
  return `${limit.door}; ${unit}${shadow}${ABOUT[limit.action] ?? limit.action}`;
}

function made_tab() {
  const tab = element("button");
  tab.type = "button";
  tab.setAttribute("role", "tab");
  tab.append(element("span"), element("span", "count"));
  return tab;
}

function made_row() {
  const row = element("tr");
  const name = element("td", "name");
  const open = element("button");
  open.type = "button";
  name.append(open, element("span", "mark"));
  const cpu = element("td", "cpu");
  cpu.append(element("span"), element("i"));
  row.append(name, cpu, element("td", "level"), element("td", "wait"),
    element("td", "less"), element("td", "less"), element("td", "less"));
  return row;
}

function fill(at, row, limit, cpus, said) {
  at.client = row;
  at.classList.toggle("debt", in_debt(row));
  const [name, cpu, level, wait, requests, mean, seen] = at.children;
  put(name.firstChild, row.key);
  name.firstChild.disabled = !limit.open;
  name.title = row.key === "?" ? UNNAMED : row.key;
  const mark = said ? (said.do === "exempt" ? "exempt" : `weight ${number(said.weight)}`) : "";
  put(name.lastChild, mark);
  name.lastChild.hidden = !mark;
  const share = cpus > 0 ? row.cpu_per_second / cpus : 0;
  const of_work = counts_work(limit);
  const { figure, used } = unit_of(limit);
  put(cpu.firstChild, limit.unit === "cpu" && cpus > 0 ? percent(share) : `${figure(row.cpu_per_second)}/s`);
  cpu.title = of_work && cpus > 0 ? `${figure(row.cpu_per_second)} ${used}, ${percent(share)} of all` : used;
  cpu.lastChild.style.width = of_work ? `${Math.min(100, 100 * share)}%` : "0";
  put(level, amount(row.level, limit));
  put(wait, row.wait > 0 ? time(row.wait) : "–");
  put(requests, number(row.requests_per_second));
  put(mean, row.wait_average > 0.0005 ? time(row.wait_average) : "–");
  put(seen, row.last_seen < 1.5 ? "now" : time(row.last_seen));
}
