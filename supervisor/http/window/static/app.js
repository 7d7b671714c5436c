// The frame: which view is shown (by the address's fragment), and the line at the top that says how the server is.
// A view is started when it is first shown, and looks at the server only while somebody sees it.

import { ApiError, askJson } from "./api.js";
import { at, duration, make, say } from "./dom.js";
import * as chat from "./chat.js";

const LOOK_MS = 1000, IDLE_MS = 5000, TIMEOUT_MS = 10000;
const VIEWS = {
  chat: () => ({ look() {} }),
  memory: () => import("./memory.js"),
  now: () => import("./now.js"),
  connect: () => import("./connect.js"),
};
const started = new Map();  // views: promises of their modules
let view = "chat";
let timer = 0;

function route() {
  const wanted = location.hash.slice(1);
  view = wanted in VIEWS ? wanted : view;
  for (const name of Object.keys(VIEWS)) at(name).hidden = name !== view;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.view === view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  look();
}

function head(seen) {
  document.body.classList.remove("stale");
  document.title = seen.model + " – luce";
  say("model", seen.model);
  // Of several models some are away, and one is loaded when it is asked for.
  const fine = seen.models.length ? ["ready", "away", "starting"] : ["ready"];
  const down = seen.engines.filter(engine => !fine.includes(engine.state)).length;
  say("state", !seen.ready ? "not ready" : down ? "degraded" : "ready");
  at("state").className = "state " + (seen.ready && !down ? "good" : "bad");
  const up = Math.max(0, ...seen.engines.map(engine => engine.figures.uptime_s || 0));
  say("since", up ? "up " + duration(up) : "");
}

// A key that may ask for answers only does not see how the server stands, but may talk.
async function lookWithoutScope(refused) {
  say("state", "ready");
  at("state").className = "state good";
  if (view !== "chat") at(view).replaceChildren(make("p", { class: "card" }, "This view needs a key of scope admin. The server says: " + refused.message));
}

function noAnswer(error) {
  console.warn("no look:", error);
  document.body.classList.add("stale");
  say("state", "no answer");
  at("state").className = "state bad";
}

let looking = false;
async function look() {
  if (looking) return;
  looking = true;
  clearTimeout(timer);
  try {
    const seen = await askJson("status.json", { timeoutMs: TIMEOUT_MS });
    head(seen);
    const shown = view;
    if (!started.has(shown)) started.set(shown, Promise.resolve(VIEWS[shown]()));
    await (await started.get(shown)).look(seen, at(shown));
  } catch (error) {
    if (error instanceof ApiError && error.status === 403) await lookWithoutScope(error);
    else noAnswer(error);
  }
  looking = false;
  if (!document.hidden) timer = setTimeout(look, view === "chat" ? IDLE_MS : LOOK_MS);
}

// A screen reader says where it is now, and Tab goes on from there.
addEventListener("hashchange", () => {
  route();
  at(view).focus();
});
at("skip").addEventListener("click", event => {
  event.preventDefault();
  at(view === "chat" ? "prompt" : view).focus();
});
document.addEventListener("visibilitychange", () => { if (!document.hidden) look(); });
chat.start().catch(error => console.warn("the chat does not start:", error));
route();
