// The tables of the busiest clients: a tab for each limit and view, a row for each client.
//
// Rows keep their elements from one second to the next, so that a click meets the right row.

import { act_on, unavailable } from "/client.js";
import { order } from "/server.js";
import { amount, capacity, clock, counts_work, element, number, percent, put, time, unit_of } from "/text.js";

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
  constructor(opened, changed, wanted) {
    Object.assign(this, { opened, changed, wanted });
    this.menu = new Menu((what, row, said) => this.act(what, row, said));
    this.rows = new Map();
    this.order = "cpu_per_second";
    this.turned = false;
    this.filter = "";
    this.body = document.querySelector("#clients tbody");
    this.tabs = document.getElementById("tabs");
    this.body.addEventListener("click", ({ target }) => {
      const row = target.closest("tr");
      if (!row || !this.limit?.open) return;
      const more = target.closest("td.more button");
      if (more) this.menu.show(more, row.client, this.limit, this.overridden(row.client));
      else if (target.closest("td.name button")) opened(this.limit, row.client);
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
    const focused = document.activeElement;
    let before = null;
    for (const row of rows) {
      const at = this.rows.get(row.id) ?? made_row();
      kept.set(row.id, at);
      fill(at, row, { limit, cpus, now: this.now.now, said: this.overridden(row) });
      const next = before ? before.nextSibling : this.body.firstChild;
      if (next !== at) this.body.insertBefore(at, next);
      before = at;
    }
    for (const [id, at] of this.rows) if (kept.get(id) !== at) at.remove();
    this.rows = kept;
    // A row that moves loses the focus.
    if (focused !== document.activeElement && this.body.contains(focused)) focused.focus({ preventScroll: true });
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

  // Carries out what was chosen in the menu of a row, which has the override `said` if any. The
  // data of the second may no longer have it.
  async act(what, row, said) {
    const { limit } = this;
    const done = document.getElementById("acted");
    try {
      if (what === "open") return this.opened(limit, row);
      if (what === "undo") {
        this.changed(await order({ do: "undo", override_id: said.override_id }, this.wanted));
        put(done, `The override of ${row.key} is undone.`);
      } else {
        const [all, told] = await act_on(what, limit, row, this.wanted);
        this.changed(all);
        put(done, told);
      }
      done.classList.remove("bad");
    } catch (why) {
      put(done, why.message);
      done.classList.add("bad");
    }
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
  const first = element("div", "who");
  first.append(open, element("span", "group"), element("span", "mark"));
  name.append(first, element("div", "what"));
  const cpu = element("td", "cpu");
  const bar = element("div", "bar");
  bar.append(element("i"));
  cpu.append(element("span"), bar);
  const act = element("td", "more");
  const more = element("button", "", "⋯");
  more.type = "button";
  more.setAttribute("aria-haspopup", "menu");
  act.append(more);
  row.append(name, cpu, element("td", "less level"), element("td", "less wait"),
    element("td", "least"), element("td", "less"), element("td", "least"), act);
  return row;
}

const MARKS = { exempt: "exempt", deny: "denied" };

function fill(at, row, { limit, cpus, now, said }) {
  at.client = row;
  at.classList.toggle("debt", in_debt(row));
  const [name, cpu, level, wait, requests, answered, seen, act] = at.children;
  const [who, what] = name.children;
  const [open, group, mark] = who.children;
  put(open, row.key);
  open.disabled = !limit.open;
  name.title = row.key === "?" ? UNNAMED : "";
  const since = limit.open && row.first_seen > 0 ? `since ${clock(now - row.first_seen, false)}` : "";
  put(group, [row.group, row.asn, row.country, since].filter(Boolean).join(" · "));
  put(mark, said ? MARKS[said.do] ?? (said.weight < 1 ? "slowed down" : `weight ${number(said.weight)}`) : "");
  mark.hidden = !said;
  // What most of its requests are, unless that is what the limit counts by.
  const agent = row.agent === row.key || row.agent === "-" ? "" : row.agent;
  put(what, [row.route, agent].filter(Boolean).join(" · "));
  what.title = what.textContent;
  const share = cpus > 0 ? row.cpu_per_second / cpus : 0;
  const of_work = counts_work(limit);
  const { figure, used } = unit_of(limit);
  put(cpu.firstChild, limit.unit === "cpu" && cpus > 0 ? percent(share) : `${figure(row.cpu_per_second)}/s`);
  cpu.title = of_work && cpus > 0 ? `${figure(row.cpu_per_second)} ${used}, ${percent(share)} of all` : used;
  cpu.lastChild.hidden = !of_work || cpus <= 0;
  cpu.lastChild.firstChild.style.width = `${Math.min(100, 100 * share)}%`;
  put(level, amount(row.level, limit));
  put(wait, row.wait > 0 ? time(row.wait) : "–");
  put(requests, number(row.requests_per_second));
  put(answered, time(row.answered));
  put(seen, row.last_seen < 1.5 ? "now" : time(row.last_seen));
  act.firstChild.hidden = !limit.open;
  act.firstChild.setAttribute("aria-label", `Actions for ${row.key}`);
}

// The menu at the end of a row.
class Menu {
  constructor(chosen) {
    this.at = document.getElementById("menu");
    this.at.addEventListener("click", ({ target }) => {
      const item = target.closest("button");
      if (!item) return;
      this.at.hidePopover();
      chosen(item.dataset.do, this.row, this.said);
    });
    this.at.addEventListener("keydown", (event) => {
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      const items = this.items();
      const next = items.indexOf(document.activeElement) + step;
      items[(next + items.length) % items.length].focus();
    });
    this.at.addEventListener("toggle", ({ newState }) => {
      if (newState === "closed") this.button?.setAttribute("aria-expanded", "false");
    });
    // After a scroll it would no longer be beside its row. The browser also scrolls by itself, to
    // keep the rows in their place when something above them goes: no reason to close the menu.
    for (const scroll of ["wheel", "touchmove"]) {
      addEventListener(scroll, () => this.at.matches(":popover-open") && this.at.hidePopover(), { passive: true });
    }
  }

  items() {
    return [...this.at.querySelectorAll("button")].filter((item) => !item.hidden && !item.disabled);
  }

  show(button, row, limit, said) {
    Object.assign(this, { button, row, said });
    for (const item of this.at.querySelectorAll("button")) {
      const what = item.dataset.do;
      item.title = unavailable(what, limit);
      item.disabled = Boolean(item.title) || (what === "clear" && !in_debt(row));
      item.hidden = what === "undo" && !said;
    }
    this.at.showPopover();
    button.setAttribute("aria-expanded", "true");
    const [place, own] = [button, this.at].map((at) => at.getBoundingClientRect());
    const below = place.bottom + own.height + 8 < innerHeight;
    this.at.style.left = `${Math.max(8, place.right - own.width)}px`;
    this.at.style.top = `${below ? place.bottom + 4 : Math.max(8, place.top - own.height - 4)}px`;
    this.items()[0]?.focus({ preventScroll: true });
  }
}
