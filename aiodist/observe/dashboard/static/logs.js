// What a rank has printed. Lines are text, whatever is in them.
import { element, find, put } from "./format.js";
import { ask, shown } from "./main.js";

const MOST = 5000;
const log = find("log"), output = find("output");
let next = -1, asking = false, listed = "", wish = null;

export function choose(rank) { wish = rank; }

function begin() { next = -1; log.replaceChildren(); draw(shown); }
output.addEventListener("change", begin);
for (const input of document.querySelectorAll("input[name=stream]")) input.addEventListener("change", begin);
find("grep").addEventListener("input", () => { for (const line of log.children) line.hidden = !fits(line.textContent); });
log.addEventListener("scroll", () => { find("follow").checked = log.scrollTop + log.clientHeight > log.scrollHeight - 30; });
find("follow").addEventListener("change", () => { if (find("follow").checked) log.scrollTop = log.scrollHeight; });

const fits = (text) => text.toLowerCase().includes(find("grep").value.toLowerCase());

export async function draw({ logs, job }) {
  const now = JSON.stringify(logs.outputs);
  if (now !== listed) {
    listed = now;
    const kept = output.value, latest = logs.outputs.reduce((most, one) => Math.max(most, one.attempt), 0);
    const places = [...logs.outputs].sort((a, b) => b.attempt - a.attempt || (a.rank ?? a.local) - (b.rank ?? b.local));
    output.replaceChildren(...places.map((one) => element("option", { value: String(one.id) }, `${one.rank === null ? `worker ${one.local}` : `${one.rank}`}${latest ? `, attempt ${one.attempt}` : ""}`)));
    if (kept) output.value = kept;
  }
  if (wish !== null) {
    const meant = logs.outputs.findLast((one) => one.rank === wish);
    wish = null;
    if (meant && output.value !== String(meant.id)) { output.value = String(meant.id); begin(); return; }
  }
  const elsewhere = Object.entries(logs.elsewhere).map(([host, folder]) => `on ${host}, in ${folder}`).join("; ");
  if (!logs.outputs.length) {
    const how = "What the ranks print is not written to files that can be shown. 'aiodist run --dashboard' does it by itself; else give 'aiodist run' --log-dir DIR -t 3.";
    log.replaceChildren(element("div", { class: "empty" }, elsewhere ? `The logs lie ${elsewhere}.` : how));
    return;
  }
  put(find("log-note"), elsewhere ? `More logs ${elsewhere}` : "");
  if (asking) return;
  asking = true;
  const of = output.value, stream = document.querySelector("input[name=stream]:checked").value, from = next;
  const told = await ask("logs", { of, stream, from });
  asking = false;
  if (!told || of !== output.value || from !== next || find("panel-logs").hidden) return;
  if (told.error) { log.replaceChildren(element("div", { class: "empty" }, told.error)); return; }
  if (from < 0 || told.from < from) log.replaceChildren();
  if (!told.lines.length && !log.children.length) log.replaceChildren(element("div", { class: "empty" }, "nothing is printed yet"));
  if (told.lines.length && log.querySelector(".empty")) log.replaceChildren();
  next = told.next;
  log.append(...told.lines.map((line) => { const node = element("div", {}, line || "\u00a0"); node.hidden = !fits(line); if (/\b(error|exception|traceback)\b/i.test(line)) node.className = "error"; return node; }));
  while (log.children.length > MOST) log.firstChild.remove();
  if (find("follow").checked) log.scrollTop = log.scrollHeight;
}
