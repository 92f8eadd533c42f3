// A row for each rank; a map of all of them where they are many.
import { colour, element, find, put, rate, share, size, span, surface, tells } from "./format.js";
import { open, shown } from "./main.js";
import { choose } from "./logs.js";

const PAGE = 50, MANY = 32;
const STATES = ["dead", "stopped", "held", "blocked", "waiting", "running", "left"];
const COLUMNS = [
  ["rank", "rank", "number"], ["host", "host", ""], ["doing", "state", ""], ["what", "operation", ""], ["line", "line", ""],
  ["ops", "ops/s", "number"], ["nbytes", "bytes/s", "number"], ["waiting", "waits", "number"], ["late", "lag", "number"],
  ["memory", "memory", "number"], ["cpu", "cpu", "number"], ["epoch", "epoch", "number"], ["failure", "last failure", ""],
];
let sort = { by: "", down: false }, page = 0, only = "", places = {}, failures = new Map();
const body = find("ranks").tBodies[0];
const cell = (row, name) => row[places[name]];

const heads = COLUMNS.map(([name, label, kind]) => {
  const arrow = element("span", { class: "sort", "aria-hidden": "true" });
  const button = element("button", { type: "button" }, ...(kind ? [arrow, label] : [label, arrow]));
  const head = element("th", { scope: "col", class: kind }, button);
  button.addEventListener("click", () => {
    sort = sort.by !== name ? { by: name, down: kind === "number" && name !== "rank" } : sort.down === (kind === "number" && name !== "rank") ? { by: name, down: !sort.down } : { by: "", down: false };
    page = 0; draw(shown);
  });
  return head;
});
find("ranks").tHead.rows[0].append(...heads);
find("filter").addEventListener("input", () => { page = 0; draw(shown); });

function wanted(words) {
  const spans = [], texts = [];
  for (const word of words.toLowerCase().split(/[\s,]+/).filter(Boolean)) {
    const match = /^(\d+)(?:-(\d+))?$/.exec(word);
    if (match) spans.push([+match[1], +(match[2] ?? match[1])]); else texts.push(word);
  }
  return (row) => (!only || cell(row, "doing") === only)
    && (!spans.length || spans.some(([low, high]) => low <= row[0] && row[0] <= high))
    && texts.every((text) => ["host", "doing", "what", "line", "group"].some((name) => String(cell(row, name)).toLowerCase().includes(text)));
}

function trouble(row) {
  const doing = cell(row, "doing"), place = STATES.indexOf(doing);
  return [place < 4 ? place : 4, doing === "waiting" ? -cell(row, "since") : 0, row[0]];
}

export function chosen() {
  const found = [...shown.rows.values()].filter(wanted(find("filter").value));
  const { by, down } = sort, many = shown.rows.size > PAGE;
  const blamed = new Set(shown.verdicts.flatMap((one) => one.ranks));
  const key = by ? (row) => [by === "failure" ? failures.get(row[0]) ?? "" : cell(row, by) ?? -1, row[0]] : many ? (row) => [blamed.has(row[0]) ? 0 : 1, ...trouble(row)] : (row) => [row[0]];
  return found.map((row) => [key(row), row]).sort(([a], [b]) => {
    for (let i = 0; i < a.length; i += 1) if (a[i] !== b[i]) return (a[i] < b[i] ? -1 : 1) * (down && i === 0 ? -1 : 1);
    return 0;
  }).map(([, row]) => row);
}

export function draw({ columns, rows, job, news, verdicts, state }) {
  places = Object.fromEntries(columns.map((name, place) => [name, place]));
  failures = new Map();
  for (const one of news) if (!one.past && !failures.has(one.rank)) failures.set(one.rank, `${span(one.ago)} ago: ${one.text}`);
  heads.forEach((head, place) => {
    const on = COLUMNS[place][0] === sort.by;
    if (on) head.setAttribute("aria-sort", sort.down ? "descending" : "ascending"); else head.removeAttribute("aria-sort");
    put(head.querySelector(".sort"), on ? (sort.down ? " ↓ " : " ↑ ") : "");
  });
  const found = chosen(), pages = Math.max(1, Math.ceil(found.length / PAGE));
  page = Math.min(page, pages - 1);
  const blamed = new Set(verdicts.flatMap((one) => one.ranks));
  const visible = found.slice(page * PAGE, (page + 1) * PAGE);
  const hosts = job ? job.hosts.length : 1;
  while (body.rows.length > visible.length) body.deleteRow(-1);
  visible.forEach((row, place) => fill(body.rows[place] ?? fresh(), row, blamed, state));
  if (!visible.length) {
    body.replaceChildren(element("tr", {}, element("td", { colspan: String(COLUMNS.length), class: "empty" }, rows.size ? "No rank fits the filter." : "No rank is seen yet: they are as soon as they have called init_process_group.")));
  }
  put(find("count"), found.length === rows.size ? `${rows.size} rank${rows.size === 1 ? "" : "s"} on ${hosts} host${hosts === 1 ? "" : "s"}` : `${found.length} of ${rows.size} ranks`);
  chips(rows);
  pager(pages);
  map(rows, blamed);
}

function fresh() {
  const row = body.insertRow();
  for (const [, , kind] of COLUMNS) row.insertCell().className = kind;
  const [rank, host, doing, what, line, , , waiting] = row.cells;
  rank.classList.add("rank"); host.classList.add("host");
  doing.className = "state-cell"; what.className = "op"; line.className = "at"; row.cells[12].className = "failure";
  doing.append(element("span", { class: "dot" }), element("span"), element("span", { class: "since" }));
  waiting.append(element("span"), element("span", { class: "meter", "aria-hidden": "true" }, element("i")));
  row.addEventListener("dblclick", () => { choose(+row.dataset.rank); open("logs"); });
  return row;
}

function fill(node, row, blamed, state) {
  if (node.cells.length !== COLUMNS.length) { node.remove(); node = fresh(); }
  const get = (name) => cell(row, name);
  const doing = get("doing"), ended = state === "ended" || doing === "left";
  node.dataset.rank = row[0];
  node.className = `${blamed.has(row[0]) && !ended ? "culprit" : ""} ${ended && doing !== "dead" ? "ended" : ""}`;
  const cells = node.cells;
  put(cells[0], String(row[0]));
  put(cells[1], get("host")); cells[1].title = `process ${get("pid")}`;
  cells[2].className = `state-cell is-${doing}`;
  put(cells[2].children[1], doing); put(cells[2].children[2], get("since") ? span(get("since")) : "");
  put(cells[3], get("what")); put(cells[4], get("line"));
  cells[3].title = `${get("what")}${get("group") ? ` of ${get("group")}` : ""}${get("pending") ? ", pending" : ", the last one"}`; cells[4].title = get("line");
  cells[3].classList.toggle("past", !get("pending")); cells[4].classList.toggle("past", !get("pending"));
  put(cells[5], rate(get("ops"))); put(cells[6], size(get("nbytes")));
  put(cells[7].children[0], share(get("waiting")));
  cells[7].children[1].firstChild.style.width = `${Math.round(100 * (get("waiting") ?? 0))}%`;
  put(cells[8], span(get("late"))); cells[8].classList.toggle("bad", get("late") >= 1);
  put(cells[9], size(get("memory"))); put(cells[10], get("cpu") === null ? "·" : share(get("cpu")));
  put(cells[11], String(get("epoch")));
  const failure = failures.get(row[0]) ?? (get("failed") ? `${get("failed")} failed` : "");
  put(cells[12], failure || "–"); cells[12].title = failure; cells[12].className = failure ? "failure" : "none";
}

function chips(rows) {
  const counts = {};
  for (const row of rows.values()) counts[cell(row, "doing")] = (counts[cell(row, "doing")] ?? 0) + 1;
  const box = find("chips"), there = STATES.filter((name) => counts[name] || name === only);
  if (box.dataset.states !== there.join()) {
    box.dataset.states = there.join();
    box.replaceChildren(...there.map((name) => {
      const chip = element("button", { type: "button", class: "chip" }, element("span", { class: `dot is-${name}` }), element("span"));
      chip.addEventListener("click", () => { only = only === name ? "" : name; page = 0; draw(shown); });
      return chip;
    }));
  }
  there.forEach((name, place) => { put(box.children[place].children[1], `${counts[name] ?? 0} ${name}`); box.children[place].setAttribute("aria-pressed", String(only === name)); });
}

const before = element("button", { type: "button", "aria-label": "Page before" }, "‹"), after = element("button", { type: "button", "aria-label": "Next page" }, "›"), at = element("span", { "aria-live": "polite" });
before.addEventListener("click", () => { page -= 1; draw(shown); });
after.addEventListener("click", () => { page += 1; draw(shown); });
find("pager").append(before, at, after);
function pager(pages) {
  find("pager").hidden = pages < 2;
  put(at, `${page + 1} of ${pages}`);
  before.disabled = page === 0; after.disabled = page === pages - 1;
}

// Every rank is a square: its state, and the paler the more it waits. Ranks run from left to right.
const canvas = find("map-canvas");
let grid = null;
function map(rows, blamed) {
  find("map").hidden = rows.size <= MANY;
  if (rows.size <= MANY) return;
  const all = [...rows.values()].sort((a, b) => a[0] - b[0]);
  const width = canvas.clientWidth, step = all.length > 400 ? 12 : 16, across = Math.max(1, Math.floor(width / step));
  const on = surface(canvas, Math.ceil(all.length / across) * step);
  if (!on) return;
  const bright = { running: "brief", waiting: "waits" };
  const { context } = on, palette = Object.fromEntries(STATES.map((name) => [name, colour(bright[name] ?? name)])), alarm = colour("dead");
  all.forEach((row, place) => {
    const x = (place % across) * step, y = Math.floor(place / across) * step, doing = cell(row, "doing");
    context.globalAlpha = doing === "running" || doing === "waiting" ? 1 - 0.7 * (cell(row, "waiting") ?? 0) : 1;
    context.fillStyle = palette[doing];
    context.fillRect(x, y, step - 2, step - 2);
    context.globalAlpha = 1;
    if (blamed.has(row[0])) { context.strokeStyle = alarm; context.lineWidth = 2; context.strokeRect(x - 0.5, y - 0.5, step - 1, step - 1); }
  });
  grid = { all, across, step };
  canvas.setAttribute("aria-label", `${all.length} ranks by state; the table below says the same`);
  put(find("map-caption"), "A square for each rank, in their order: its state by colour, the paler the more it waits for others. The rank that does not wait is the one that others wait for.");
}
function under(x, y) {
  if (!grid) return null;
  const column = Math.floor(x / grid.step);
  return column < grid.across ? grid.all[Math.floor(y / grid.step) * grid.across + column] : null;
}
tells(canvas, (x, y) => { const row = under(x, y); return row ? `rank ${row[0]} on ${cell(row, "host")}: ${cell(row, "doing")}\n${cell(row, "what")} ${cell(row, "line")}\nwaits ${share(cell(row, "waiting"))}` : ""; });
canvas.addEventListener("click", (event) => {
  const box = canvas.getBoundingClientRect(), row = under(event.clientX - box.left, event.clientY - box.top);
  if (row) { find("filter").value = String(row[0]); page = 0; draw(shown); }
});
