// Numbers for people, as `aiodist top` has them; and elements made of text. No text ever becomes markup.
const UNKNOWN = "·";

export function scaled(number, units) {
  if (number === null || number === undefined) return UNKNOWN;
  let power = 0;
  while (number >= 999.5 && power < units.length - 1) { number /= 1000; power += 1; }
  const whole = number >= 9.95 || Number.isInteger(number);
  return `${number.toFixed(whole ? 0 : 1)} ${units[power]}`.trim();
}
export const rate = (number) => scaled(number, ["", "k", "M", "G"]);
export const size = (bytes) => scaled(bytes, ["B", "kB", "MB", "GB", "TB", "PB"]);
export const share = (part) => part === null || part === undefined ? UNKNOWN : `${Math.round(part * 100)} %`;
export function span(seconds) {
  if (seconds === null || seconds === undefined) return UNKNOWN;
  if (!seconds) return "0";
  if (seconds < 0.0009995) return `${Math.round(seconds * 1e6)} µs`;
  if (seconds < 0.9995) return `${(seconds * 1000).toFixed(seconds < 0.00995 ? 1 : 0)} ms`;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  for (const [unit, one, most] of [["s", 1, 100], ["min", 60, 100], ["h", 3600, 48]]) if (seconds < most * one) return `${Math.round(seconds / one)} ${unit}`;
  return `${Math.round(seconds / 86400)} d`;
}
export const clock = (time) => new Date(time * 1000).toLocaleTimeString([], { hour12: false });

export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "class") made.className = value; else if (value !== null) made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}
export const find = (id) => document.getElementById(id);
export function put(node, text) { if (node.textContent !== text) node.textContent = text; }
export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

// A canvas of the width that it has on the page; the context draws in CSS pixels.
export function surface(canvas, height) {
  const width = canvas.clientWidth, ratio = devicePixelRatio || 1;
  if (!width) return null;
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w || canvas.height !== h) { canvas.width = w; canvas.height = h; canvas.style.height = `${height}px`; }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width };
}

const tip = find("tip");
// What is told of the place under the pointer; '' hides it.
export function tells(canvas, words) {
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const text = words(event.clientX - box.left, event.clientY - box.top);
    tip.hidden = !text;
    if (!text) return;
    tip.textContent = text;
    const { offsetWidth: w, offsetHeight: h } = tip;
    tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - w - 8))}px`;
    tip.style.top = `${event.clientY + 18 + h > innerHeight ? event.clientY - h - 10 : event.clientY + 18}px`;
  });
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
}
