// The last seconds of some ranks: what they waited for, and what they moved.
import { colour, element, find, put, share, span, surface, tells } from "./format.js";
import { ask, shown } from "./main.js";
import { chosen } from "./ranks.js";

const TOP = 24, LEFT = 64, RIGHT = 76, MOST = 24, INSET = 4;
let ROW = 26;
const canvas = find("timeline");
let told = null, paused = false, asking = false, marks = [], shownRanks = "";

find("pause").addEventListener("click", () => {
  paused = !paused;
  find("pause").setAttribute("aria-pressed", String(paused));
  put(find("pause"), paused ? "Go on" : "Pause");
  draw(shown);
});
for (const id of ["lanes", "span"]) find(id).addEventListener("change", () => { told = null; draw(shown); });

function wanted() {
  const written = find("lanes").value.trim();
  if (written) return written;
  return chosen().slice(0, MOST).map((row) => row[0]).sort((a, b) => a - b).join(",");
}

export async function draw() {
  paint();
  if (paused || asking || !shown.rows.size) return;
  asking = true;
  const ranks = wanted();
  const answer = ranks ? await ask("timeline", { ranks, seconds: find("span").value }) : null;
  asking = false;
  if (answer && !paused) { told = answer; shownRanks = ranks; paint(); summed(); }
  else if (!answer && find("lanes").value) put(find("timeline-note"), "Ranks are written as 0-3,7; 64 at most.");
}

function paint() {
  if (find("panel-timeline").hidden) return;
  const lanes = told ? told.ranks : [];
  ROW = lanes.length <= 8 ? 44 : 26;
  const on = surface(canvas, TOP + Math.max(1, lanes.length) * ROW + 8);
  if (!on) return;
  const { context, width } = on, seconds = told ? told.seconds : 10, across = width - LEFT - RIGHT;
  const x = (time) => LEFT + across * (1 + time / seconds);
  const palette = Object.fromEntries(["text", "dim", "line", "soft", "waits", "moves", "brief", "failed", "unknown", "asleep"].map((name) => [name, colour(name)]));
  context.font = "12px system-ui, sans-serif";
  context.textBaseline = "middle";
  marks = [];
  context.fillStyle = palette.dim;
  context.textAlign = "center";
  for (let part = 0; part <= 5; part += 1) {
    const time = -seconds * (1 - part / 5);
    context.fillText(part === 5 ? "now" : `−${+(-time).toFixed(1)} s`, x(time), 10);
    context.fillRect(Math.round(x(time)), TOP - 3, 1, 3);
  }
  lanes.forEach((lane, place) => {
    const y = TOP + place * ROW;
    context.textAlign = "right";
    context.fillStyle = palette.text;
    context.fillText(`rank ${lane.rank}`, LEFT - 8, y + ROW / 2);
    context.fillStyle = palette.soft;
    context.fillRect(LEFT, y + 2, across, ROW - 4);
    if (lane.known > -seconds) { context.fillStyle = palette.unknown; context.fillRect(LEFT, y + 2, x(lane.known) - LEFT, ROW - 4); hatch(context, LEFT, y + 2, x(lane.known) - LEFT, ROW - 4, palette.line); }
    const deep = Math.max(1, ...lane.spans.map((one) => one[7] + 1)), high = (ROW - 2 * INSET) / deep;
    let waited = 0;
    for (const one of lane.spans) {
      const [start, end, until, state, , , count, row] = one, begin = Math.max(LEFT, x(start)), stop = Math.max(begin, x(end));
      const top = y + INSET + row * high, tall = Math.max(3, high - (deep > 1 ? 1 : 0));
      const middle = until === null ? begin : Math.min(stop, Math.max(begin, x(until)));
      if (state === "brief") { context.fillStyle = palette.brief; context.fillRect(begin, top, 1.5, tall); }
      else if (state === "many") { context.fillStyle = palette.brief; context.fillRect(begin, top, Math.max(1.5, stop - begin), tall); if (until !== null) { context.fillStyle = palette.waits; context.fillRect(begin, top, middle - begin, tall); } }
      else {
        context.fillStyle = state === "failed" ? palette.failed : until === null && state === "pending" ? palette.asleep : palette.moves;
        context.fillRect(begin, top, Math.max(1.5, stop - begin), tall);
        if (middle > begin) { context.fillStyle = palette.waits; context.fillRect(begin, top, Math.max(1, middle - begin), tall); }
      }
      if (until !== null) waited += Math.max(0, Math.min(end, until) - Math.max(start, -seconds));
      if (count === 1 && stop - begin > 110) {
        context.save(); context.beginPath(); context.rect(begin, top, stop - begin - 4, tall); context.clip();
        context.textAlign = "left"; context.fillStyle = state === "failed" || middle <= begin ? "#fff" : "#2a1c00"; context.font = "11px system-ui, sans-serif";
        context.fillText(told.lines[one[4]], begin + 5, top + tall / 2 + 0.5); context.restore();
      }
      marks.push([begin, top, Math.max(4, stop - begin), tall, one, lane.rank]);
    }
    context.textAlign = "left";
    context.fillStyle = palette.dim;
    context.fillText(share(waited / Math.max(0.001, -lane.known)), width - RIGHT + 30, y + ROW / 2);
  });
  context.textAlign = "left"; context.fillStyle = palette.dim; context.fillText("waits", width - RIGHT + 30, 10);
}

function hatch(context, x, y, w, h, ink) {
  context.save(); context.beginPath(); context.rect(x, y, w, h); context.clip();
  context.strokeStyle = ink; context.lineWidth = 1; context.beginPath();
  for (let at = x - h; at < x + w; at += 7) { context.moveTo(at, y + h); context.lineTo(at + h, y); }
  context.stroke(); context.restore();
}

// The same as a table, for who does not see the picture.
function summed() {
  const { ranks, error, seconds } = told;
  const rows = ranks.map((lane) => {
    let waited = 0, moved = 0, count = 0;
    for (const [start, end, until, , , , many] of lane.spans) { count += many; const middle = until ?? start; waited += middle - start; moved += end - middle; }
    return [String(lane.rank), String(count), span(waited), span(moved)];
  });
  find("timeline-text").tBodies[0].replaceChildren(...rows.map((row) => element("tr", {}, ...row.map((text) => element("td", {}, text)))));
  canvas.setAttribute("aria-label", `Operations of ${ranks.length} ranks in the last ${seconds} seconds`);
  const many = shown.rows.size > ranks.length ? `${ranks.length} of ${shown.rows.size} ranks, those first in the list of ranks. ` : "";
  const clocks = error > 1e6 ? "The clocks of the hosts have not been compared. " : error ? `Times of different hosts may be wrong by ${span(error)}. ` : "";
  put(find("timeline-note"), `${many}${clocks}Between operations a rank computes. Of an operation that ended before the loop slept only the beginning is known. Point at one to read its line.`);
}

tells(canvas, (px, py) => {
  const mark = marks.findLast(([x, y, w, h]) => px >= x - 2 && px <= x + w + 2 && py >= y && py <= y + h);
  if (!mark) return "";
  const [, , , , [start, end, until, state, what, line, count], rank] = mark;
  const lines = [`rank ${rank}: ${told.lines[what]}${count > 1 ? ` and ${count - 1} more, drawn together` : ""}`];
  if (told.lines[line]) lines.push(told.lines[line]);
  if (state === "brief") lines.push("ended before the loop slept");
  else {
    lines.push(`${state === "pending" ? "pending for" : "took"} ${span(end - start)}${state === "failed" ? ", and failed" : ""}`);
    if (until !== null) lines.push(`waited ${span(until - start)} for peers, moved data for ${span(Math.max(0, end - until))}`);
  }
  return lines.join("\n");
});
