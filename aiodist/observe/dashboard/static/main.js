// Signs in, keeps what the server tells, and has the views draw it.
import { clock, element, find, put, span } from "./format.js";
import * as tiles from "./tiles.js";
import * as ranks from "./ranks.js";
import * as timeline from "./timeline.js";
import * as bytes from "./bytes.js";
import * as members from "./members.js";
import * as logs from "./logs.js";

const PATH = "aiodist.path";
const views = { ranks, timeline, bytes, members, logs };
export const shown = { columns: [], rows: new Map(), job: null, totals: null, verdicts: [], news: [], history: [], logs: { outputs: [], elsewhere: {} }, state: "connecting", wall: 0 };
let path = localStorage.getItem(PATH);
let current = "ranks";
let beat = 0;

function notice(text) { const node = find("notice"); node.hidden = !text; put(node, text || ""); }

async function signIn() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (!token) return;
  history.replaceState(null, "", location.pathname);
  const answer = await fetch("/session", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ token }) });
  if (answer.ok) {
    path = (await answer.json()).path;
    localStorage.setItem(PATH, path);
  } else if (!path) {
    throw new Error(await answer.text());
  }
}

// Ask for data; null where there is none.
export async function ask(name, query = {}) {
  if (!path) return null;
  try {
    const answer = await fetch(`${path}${name}?${new URLSearchParams(query)}`);
    return answer.ok ? await answer.json() : null;
  } catch { return null; }
}

function take(told) {
  for (const [name, value] of Object.entries(told)) {
    if (name === "rows") for (const row of value) shown.rows.set(row[0], [...row]);
    else if (name === "gone") for (const rank of value) shown.rows.delete(rank);
    else if (name === "cells") for (const [rank, ...pairs] of value) { const row = shown.rows.get(rank); for (let i = 0; row && i < pairs.length; i += 2) row[pairs[i]] = pairs[i + 1]; }
    else shown[name] = value;
  }
}

function watch() {
  const events = new EventSource(`${path}events`);
  events.addEventListener("whole", (event) => { shown.rows.clear(); take(JSON.parse(event.data)); arrived(); });
  events.addEventListener("change", (event) => { take(JSON.parse(event.data)); arrived(); });
  events.addEventListener("error", async () => {
    find("pulse").classList.remove("on");
    if (events.readyState !== EventSource.CLOSED) { if (shown.state === "ended") events.close(); notice("The dashboard does not answer: it has ended, or the way to it is cut. What is shown is the last that was seen."); return; }
    try {
      const answer = await fetch(`${path}matrix`);
      notice(answer.status === 401 ? "This browser is not signed in. Open the address that the dashboard has printed; it works once. A new dashboard prints a new one." : await answer.text());
      if (answer.status === 401) localStorage.removeItem(PATH);
    } catch { notice("The dashboard has ended. What is shown is the last that was seen."); }
  });
}

function arrived() {
  beat += 1;
  const pulse = find("pulse");
  pulse.classList.add("on");
  pulse.classList.toggle("beat", beat % 2 === 1);
  document.body.dataset.beat = beat;
  notice(shown.error ? `Other hosts are not seen: ${shown.error}` : "");
  tiles.take(shown);
  draw();
}

function draw() {
  head();
  verdicts();
  tiles.draw(shown);
  views[current].draw(shown);
}

function head() {
  const { job, state, code } = shown;
  const failed = state === "ended" && code;
  const words = state === "ended" ? (code ? `failed, code ${code}` : code === 0 ? "ended well" : "ended") : state === "waiting" ? "waiting for ranks" : shown.verdicts.length ? (shown.verdicts.every(slow) ? "slow" : "stands still") : "live";
  put(find("state"), words);
  find("state").className = `state ${failed ? "failed" : state === "live" ? (!shown.verdicts.length ? "live" : shown.verdicts.every(slow) ? "trouble" : "failed") : ""}`;
  if (!job) return;
  put(find("script"), job.script);
  document.title = `${shown.verdicts.length ? "⚠ " : ""}${job.script} · aiodist`;
  const hosts = job.hosts.length > 2 ? `${job.hosts.length}` : job.hosts.join(", ");
  const facts = [["ranks", shown.rows.size === job.size ? `${job.size}` : `${shown.rows.size} of ${job.size}`], [job.hosts.length > 1 ? "hosts" : "host", hosts], ["epoch", `${job.epoch}`], ["for", span(job.age)], ["job", job.key], ["seen", clock(shown.wall)]];
  find("facts").replaceChildren(...facts.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", { title: value }, value))));
}

const slow = (one) => one.kind === "straggler" || one.kind === "slow link";

let told = "";
function verdicts() {
  const now = JSON.stringify(shown.verdicts);
  if (now === told) return;
  told = now;
  find("verdicts").replaceChildren(...shown.verdicts.map((one) => {
    const lines = one.lines.filter((line) => !line.startsWith("→"));
    const advice = one.lines.filter((line) => line.startsWith("→"));
    return element("article", { class: `verdict${slow(one) ? " slow" : ""}` }, element("h2", {}, one.title), ...(lines.length ? [element("pre", {}, lines.join("\n"))] : []), ...advice.map((line) => element("p", { class: "advice" }, line)));
  }));
}

export function open(name) {
  current = name;
  for (const view of Object.keys(views)) {
    const chosen = view === name, tab = find(`tab-${view}`);
    tab.setAttribute("aria-selected", String(chosen));
    tab.tabIndex = chosen ? 0 : -1;
    find(`panel-${view}`).hidden = !chosen;
  }
  views[name].draw(shown);
}

const tabs = [...document.querySelectorAll("[role=tab]")];
for (const [place, tab] of tabs.entries()) {
  tab.addEventListener("click", () => open(tab.id.slice(4)));
  tab.addEventListener("keydown", (event) => {
    const to = { ArrowRight: place + 1, ArrowLeft: place - 1, Home: 0, End: tabs.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    const next = tabs[(to + tabs.length) % tabs.length];
    next.focus();
    next.click();
  });
}
document.addEventListener("theme", draw);
addEventListener("resize", draw);

try {
  await signIn();
  if (path) watch(); else notice("Open the address that the dashboard has printed: it signs this browser in.");
} catch (error) { notice(error.message); put(find("state"), "not signed in"); }
