// The bytes from each rank to each other one.
import { colour, element, find, put, size, surface, tells } from "./format.js";
import { ask, shown } from "./main.js";

const LEFT = 58, TOP = 30, EVERY = 2;
const WORDS = {
  implied: "What the calls of each rank imply since the job began: of a message its bytes; of a collective the least that has to go from member to member, whatever carries it out (an all_reduce over n ranks counts 2/n of its tensor for each pair). It is not measured: between ranks of one host data lies in shared memory, where nothing counts it.",
  counted: "What the kernel has counted since the job began: bytes that the peer's kernel has acknowledged on the TCP connections between ranks, with all that goes over them. Ranks of one host use shared memory, and show nothing here.",
};
const canvas = find("matrix");
let told = null, asked = 0, grid = null, kind = "implied";

for (const input of document.querySelectorAll("input[name=counted]")) input.addEventListener("change", () => { kind = input.value; paint(); });

export async function draw() {
  paint();
  asked += 1;
  if (told && asked % EVERY) return;
  const answer = await ask("matrix");
  if (answer) { told = answer; paint(); }
}

function paint() {
  if (find("panel-bytes").hidden) return;
  put(find("bytes-note"), WORDS[kind]);
  if (!told) return;
  const table = told[kind], count = told.labels.length, most = Math.max(1, ...table.flat());
  const step = Math.max(6, Math.min(84, Math.floor(((canvas.clientWidth || 600) - LEFT) / Math.max(1, count))));
  const on = surface(canvas, TOP + step * count + 6);
  if (!on) return;
  const { context } = on, [ink, dim, empty, accent] = ["text", "dim", "soft", "moves"].map(colour);
  context.font = "11px system-ui, sans-serif";
  context.textBaseline = "middle";
  const skip = Math.max(1, Math.ceil((told.each > 1 ? 54 : 22) / step)), down = Math.max(1, Math.ceil(13 / step));
  context.fillStyle = dim;
  context.textAlign = "left"; context.fillText("from ↓  to →", 0, 8);
  told.labels.forEach((label, place) => {
    context.fillStyle = dim;
    if (place % down === 0) { context.textAlign = "right"; context.fillText(label, LEFT - 6, TOP + step * (place + 0.5)); }
    if (place % skip === 0) { context.textAlign = "center"; context.fillText(label, LEFT + step * (place + 0.5), TOP - 9); }
    table[place].forEach((bytes, to) => {
      const [x, y] = [LEFT + step * to, TOP + step * place], gap = step > 10 ? 2 : 1;
      context.globalAlpha = 1;
      context.fillStyle = empty;
      context.fillRect(x, y, step - gap, step - gap);
      if (!bytes) return;
      const part = 0.12 + 0.88 * Math.max(0, 1 + Math.log10(bytes / most) / 4);
      context.globalAlpha = part;
      context.fillStyle = accent;
      context.fillRect(x, y, step - gap, step - gap);
      context.globalAlpha = 1;
      if (step >= 44) { context.fillStyle = part > 0.55 ? (document.documentElement.dataset.theme === "dark" ? "#0c1020" : "#fff") : ink; context.textAlign = "center"; context.font = step > 60 ? "12px system-ui, sans-serif" : "10px system-ui, sans-serif"; context.fillText(size(bytes), x + step / 2 - 1, y + step / 2); context.font = "11px system-ui, sans-serif"; }
    });
  });
  grid = { step, count };
  const flows = table.flatMap((row, from) => row.map((bytes, to) => [bytes, from, to])).filter(([bytes]) => bytes).sort((a, b) => b[0] - a[0]);
  const sum = flows.reduce((all, [bytes]) => all + bytes, 0);
  put(find("bytes-sum"), `${size(sum)} in sum${told.each > 1 ? `; each cell is ${told.each} × ${told.each} ranks` : ""}`);
  const rows = flows.slice(0, 10).map(([bytes, from, to]) => element("tr", {}, element("td", {}, told.labels[from]), element("td", {}, told.labels[to]), element("td", { class: "number" }, size(bytes))));
  find("flows").tBodies[0].replaceChildren(...(rows.length ? rows : [element("tr", {}, element("td", { colspan: "3" }, "nothing yet"))]));
  canvas.setAttribute("aria-label", `Bytes between ${shown.rows.size} ranks; the table beside it has the most`);
}

tells(canvas, (x, y) => {
  if (!grid || !told) return "";
  const from = Math.floor((y - TOP) / grid.step), to = Math.floor((x - LEFT) / grid.step);
  if (from < 0 || to < 0 || from >= grid.count || to >= grid.count) return "";
  return `rank ${told.labels[from]} → rank ${told.labels[to]}\n${size(told[kind][from][to])}`;
});
