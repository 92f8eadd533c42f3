// All ranks together: a figure each, and how it went in the last two minutes.
import { colour, element, find, put, rate, share, size, span, surface } from "./format.js";

const KEPT = 120, LEAST = 30;
const TILES = [
  ["ops", "operations", (t) => [rate(t.ops), "/s"]],
  ["nbytes", "tensor bytes", (t) => [size(t.nbytes), "/s"]],
  ["waiting", "waiting for peers", (t) => [share(t.waiting), "mean"]],
  ["late", "lag of the loop", (t) => [span(t.late), "worst"]],
  ["cpu", "processors busy", (t) => [t.cpu === null ? "·" : t.cpu.toFixed(t.cpu < 10 ? 1 : 0), ""]],
  ["memory", "memory", (t) => [size(t.memory), ""]],
  ["failed", "failed operations", (t) => [`${t.failed}`, `of ${rate(t.issued)}`]],
];
const past = new Map(TILES.map(([name]) => [name, []]));
let made = false;

export function take({ totals, state }) {
  if (!totals || state === "ended") return;
  for (const [name, values] of past) { values.push(totals[name]); if (values.length > KEPT) values.shift(); }
}

export function draw({ totals }) {
  if (!totals) return;
  if (!made) {
    made = true;
    find("tiles").replaceChildren(...TILES.map(([name, label]) => element("div", { class: "tile" }, element("div", { class: "label" }, label), element("div", { class: "value" }, element("span", { id: `value-${name}` }), element("small", { id: `unit-${name}` })), element("canvas", { id: `spark-${name}`, "aria-hidden": "true" }))));
  }
  for (const [name, , words] of TILES) {
    const [value, unit] = words(totals);
    put(find(`value-${name}`), value);
    put(find(`unit-${name}`), unit);
    spark(find(`spark-${name}`), past.get(name), name);
  }
}

function spark(canvas, values, name) {
  const on = surface(canvas, 26);
  if (!on) return;
  const { context, width } = on;
  const known = values.filter((value) => value !== null);
  const most = Math.max(...known, name === "waiting" ? 0.2 : 0, 1e-9);
  context.strokeStyle = colour(name === "failed" ? "failed" : name === "waiting" || name === "late" ? "waits" : "moves");
  context.fillStyle = context.strokeStyle;
  context.lineWidth = 1.5;
  context.lineJoin = "round";
  const kept = Math.max(LEAST, values.length), line = new Path2D();
  let begun = false, last = 0;
  values.forEach((value, place) => {
    if (value === null) return;
    const x = width - (values.length - 1 - place) * (width / (kept - 1)), y = 24 - 21 * (value / most);
    if (begun) line.lineTo(x, y); else { line.moveTo(x, y); last = x; }
    begun = true;
  });
  if (!begun) return;
  context.stroke(line);
  line.lineTo(width, 26); line.lineTo(last, 26); line.closePath();
  context.globalAlpha = 0.12;
  context.fill(line);
  context.globalAlpha = 1;
}
