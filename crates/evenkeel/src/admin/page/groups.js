// The groups of strangers that wait behind all others, and the orders of an operator about them.
//
// Rows keep their elements from one second to the next, so that a click meets the right group.

import { order } from "/server.js";
import { element, number, put } from "/text.js";

const ACTS = { deny: "Deny for an hour", slow: "Slow down for an hour" };
const DONE = {
  deny: "For an hour strangers like that get status 403.",
  slow: "For an hour strangers like that wait behind all others while more is asked for than the backend can do.",
};

export class Groups {
  constructor(changed, wanted) {
    this.rows = new Map();
    this.changed = changed;
    this.wanted = wanted;
    this.at = document.getElementById("groups");
    this.list = this.at.querySelector("ul");
    this.list.addEventListener("click", ({ target }) => {
      const button = target.closest("button");
      if (button) this.act(button.dataset.do, button.closest("li").group);
    });
  }

  update({ doors, overrides }) {
    const all = doors.flatMap((door) => (door.swarm?.groups ?? []).map((group) => ({ ...group, door: door.door })));
    if (this.at.hidden && all.length) this.told("");
    this.at.hidden = all.length === 0;
    const kept = new Map();
    let before = null;
    for (const group of all) {
      const name = `${group.door} ${group.id}`;
      const row = this.rows.get(name) ?? made();
      kept.set(name, row);
      row.group = group;
      put(row.firstChild, `${group.name} (${number(group.percent_of_strangers)}% of what strangers ask for)`);
      put(row.lastChild, `when: ${group.when}`);
      for (const button of row.querySelectorAll("button")) {
        button.disabled = overrides.some((said) => said.id === group.id && said.do === button.dataset.do);
      }
      const next = before ? before.nextSibling : this.list.firstChild;
      if (next !== row) this.list.insertBefore(row, next);
      before = row;
    }
    for (const [name, row] of this.rows) if (!kept.has(name)) row.remove();
    this.rows = kept;
  }

  told(text, bad = false) {
    put(this.at.querySelector(".done"), text);
    this.at.querySelector(".done").classList.toggle("bad", bad);
  }

  async act(what, { door, id }) {
    try {
      this.changed(await order({ do: what, door, group: id, for_seconds: 3600 }, this.wanted));
      this.told(DONE[what]);
    } catch (why) {
      this.told(why.message, true);
    }
  }
}

function made() {
  const row = element("li");
  const acts = Object.entries(ACTS).map(([what, text]) => {
    const button = element("button", "act", text);
    button.type = "button";
    button.dataset.do = what;
    return button;
  });
  row.append(element("span"), ...acts, element("code"));
  return row;
}
