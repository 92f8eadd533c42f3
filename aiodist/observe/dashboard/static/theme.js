// Light or dark: as the system says, until somebody chooses. Before anything is drawn, so that nothing flashes.
"use strict";
(() => {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const chosen = () => localStorage.getItem("aiodist.theme");
  const set = () => { root.dataset.theme = chosen() || (system.matches ? "dark" : "light"); };
  set();
  const changed = () => { set(); document.dispatchEvent(new Event("theme")); };
  system.addEventListener("change", changed);
  document.addEventListener("DOMContentLoaded", () => {
    document.getElementById("theme").addEventListener("click", () => {
      localStorage.setItem("aiodist.theme", root.dataset.theme === "dark" ? "light" : "dark");
      changed();
    });
  });
})();
