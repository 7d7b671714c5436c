// How to connect clients: lines to copy, which the server makes. Knows no client.

import { askJson } from "./api.js";
import { button, make, whole } from "./dom.js";

let isDrawn = false;

// JSON as people write it into files.
function laidOut(lines) {
  return lines.startsWith("{") ? JSON.stringify(JSON.parse(lines), null, 2) : lines;
}

// What each answer and its prompt have to fit into: clients that ask for it find it in their lines as well.
function contextSaid(engines) {
  const sizes = engines.map(engine => engine.ctx).filter(Boolean);
  return sizes.length ? "The context window has " + whole(Math.min(...sizes)) + " tokens. " : "";
}

export async function look(seen, view) {
  if (isDrawn) return;
  const told = await askJson("clients.json?" + new URLSearchParams({ url: location.origin + location.pathname.replace(/\/$/, "") }));
  isDrawn = true;
  view.classList.add("connect");
  view.replaceChildren(
    make("h1", {}, "Connect a client"),
    make("p", { class: "soft" }, contextSaid(seen.engines) + "Copy your client's settings into a terminal, or into the named file. ", told.needs_key ? "Replace YOUR_KEY by your API key." : "This server needs no key: enter any word if a client requires one."),
    make("p", { class: "soft" }, "If the file exists, add these lines to it: in JSON inside the outermost braces; in TOML the lines above the first [heading] at the top, the others at the end."),
    ...Object.entries(told.clients).map(([name, told]) => {
      const lines = laidOut(told);
      const copy = button("Copy", async () => {
        await navigator.clipboard.writeText(lines);
        copy.textContent = "Copied";
        setTimeout(() => { copy.textContent = "Copy"; }, 1500);
      }, { "aria-label": "Copy the lines for " + name });
      return make("section", { class: "card" }, make("div", { class: "row" }, make("h2", {}, name), copy), make("pre", { tabindex: "0" }, make("code", {}, lines)));
    }));
}
