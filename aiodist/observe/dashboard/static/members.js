// Who takes part, on which host, and what has happened to the membership.
import { clock, element, find } from "./format.js";

let told = "";

export function draw({ columns, rows, history }) {
  const hosts = new Map(), host = columns.indexOf("host"), doing = columns.indexOf("doing");
  for (const row of rows.values()) {
    const one = hosts.get(row[host]) ?? { ranks: [], states: {} };
    one.ranks.push(row[0]);
    one.states[row[doing]] = (one.states[row[doing]] ?? 0) + 1;
    hosts.set(row[host], one);
  }
  find("members").tBodies[0].replaceChildren(...[...hosts].map(([name, { ranks, states }]) => element("tr", {}, element("td", {}, name), element("td", {}, spans(ranks)), element("td", { class: "number" }, String(ranks.length)), element("td", {}, Object.entries(states).map(([state, count]) => `${count} ${state}`).join(", ")))));
  const now = JSON.stringify(history);
  if (now === told) return;
  told = now;
  find("history").replaceChildren(...[...history].reverse().map(({ at, kind, text }) => element("li", {}, element("time", { datetime: new Date(at * 1000).toISOString() }, clock(at)), element("b", { class: `kind ${kind}` }, kind), element("span", {}, text))));
}

function spans(ranks) {
  const found = [];
  for (const rank of [...ranks].sort((a, b) => a - b)) {
    const last = found.at(-1);
    if (last && last[1] === rank - 1) last[1] = rank; else found.push([rank, rank]);
  }
  return found.map(([low, high]) => low === high ? `${low}` : `${low}–${high}`).join(", ");
}
