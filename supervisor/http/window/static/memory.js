// What is remembered: the tree of texts, by engine. A run is a stretch of text without a branch; behind it stand the
// texts that go on from it. Where its pages lie, what holds them, and what it would cost to read it again.

import { askJson, post } from "./api.js";
import { button, duration, make, size, whole } from "./dom.js";

const LOOK_EVERY_MS = 3000;
const MOST_WORDS = 160;

let drawn = "";
let lookedAt = 0;
let failure = "";

export async function look(_, view) {
  if (performance.now() - lookedAt < LOOK_EVERY_MS) return;
  lookedAt = performance.now();
  const told = await askJson("memory.json");
  const now = JSON.stringify(told.engines.map(engine => ({ ...engine, runs: engine.runs.map(run => ({ ...run, age_s: ageOf(run) })) }))) + failure;
  if (now === drawn) return;
  drawn = now;
  const focused = view.contains(document.activeElement) ? document.activeElement.dataset.act : null;
  view.replaceChildren(make("h1", {}, "What is remembered"),
    make("p", { class: "soft" }, "A prompt that begins like one of these texts goes on where the text ends. What several texts begin with is kept once."),
    key(), make("p", { class: "failure", role: "alert" }, failure), ...told.engines.map((engine, number) => drawEngine(engine, number, told.read_s)));
  if (focused) view.querySelector(`[data-act="${focused}"]`)?.focus();
}

const ageOf = run => (run.age_s === null ? "" : duration(run.age_s < 60 ? 10 * Math.round(run.age_s / 10) : run.age_s));

const key = () => make("div", { class: "key", "aria-hidden": "true" }, ...[["device", "device"], ["host", "host memory only"], ["disk", "disk only"]]
  .map(([kind, said]) => make("span", {}, make("i", { class: kind }), said)));

async function act(path, body) {
  failure = "";
  try {
    await post(path, body);
  } catch (error) {
    failure = error.message;
  }
  lookedAt = 0;
  drawn = "";
}

function drawEngine(engine, number, readS) {
  const behind = new Map();  // runs by their parent's page
  for (const run of engine.runs) behind.set(run.parent, [...(behind.get(run.parent) || []), run]);
  const known = new Set(engine.runs.map(run => run.page));
  const tops = engine.runs.filter(run => run.parent === null || !known.has(run.parent));
  const context = { number, readS, behind, pageBytes: engine.page_bytes, pageTokens: engine.page_tokens };
  const more = engine.total - engine.runs.length;
  return make("section", { class: "card texts" },
    make("div", { class: "row" }, make("h2", {}, engine.name[0].toUpperCase() + engine.name.slice(1)), make("span", { class: "grow" }),
      button(engine.parked ? "Take the device's memory again" : "Park: give the device's memory back", () => act("memory/park", { on: !engine.parked }), { "data-act": "park-" + number })),
    engine.parked ? make("p", { class: "soft" }, "Parked: the texts lie in host memory. The next request takes the device's memory again.") : null,
    tops.length ? make("ul", {}, ...tops.map(run => drawRun(run, context))) : make("p", { class: "soft" }, "No text of " + (engine.page_tokens || 64) + " tokens or more yet."),
    engine.short ? make("p", { class: "soft" }, whole(engine.short) + " checkpoints of texts shorter than a page.") : null,
    more > 0 ? make("p", { class: "soft" }, whole(more) + " more are not shown.") : null);
}

function drawRun(run, context) {
  const nPages = (run.end - run.begin) / context.pageTokens, nTokens = run.end - run.begin;
  const said = [whole(nTokens) + " tokens (" + whole(run.begin) + " to " + whole(run.end) + ")", whole(run.n_checkpoints) + " checkpoints"];
  if (context.pageBytes) said.push(size(nPages * context.pageBytes));
  if (run.age_s !== null) said.push("used " + ageOf(run) + " ago");
  if (context.readS) said.push(duration(nTokens * context.readS) + " to read again");
  if (run.n_lanes) said.push("in use by " + run.n_lanes + (run.n_lanes > 1 ? " requests" : " request"));
  if (run.n_pinned) said.push(whole(run.n_pinned) + " pages held" + (run.is_held ? ", by your pin" : ""));
  const lies = "Of " + whole(nPages) + " pages " + whole(run.n_device) + " in the device, " + whole(run.n_host) + " in host memory, " + whole(run.n_disk) + " on disk";
  const words = run.words.length > MOST_WORDS ? run.words.slice(0, MOST_WORDS) + "…" : run.words;
  const below = context.behind.get(run.page) || [];
  return make("li", { class: "text" },
    make("p", { class: "words" }, words),
    bar(run, nPages, lies),
    make("p", { class: "soft small" }, said.join(" · ")),
    make("div", { class: "row" },
      button(run.is_held ? "Unpin" : "Pin", () => act("memory/hold", { engine: context.number, page: run.page, on: !run.is_held }),
        { "data-act": "hold-" + run.page, "aria-label": (run.is_held ? "Unpin: " : "Pin: ") + words.slice(0, 40) }),
      button("Forget", () => {
        if (confirm("Forget this text" + (below.length ? " and all that goes on from it" : "") + "? It will have to be read again.")) act("memory/forget", { engine: context.number, page: run.page });
      }, { "data-act": "forget-" + run.page, "aria-label": "Forget: " + words.slice(0, 40) })),
    below.length ? make("ul", {}, ...below.map(other => drawRun(other, context))) : null);
}

// A page in the device counts there, whatever copies it has.
function bar(run, nPages, label) {
  const host = Math.max(0, Math.min(run.n_host, nPages - run.n_device)), disk = Math.max(0, Math.min(run.n_disk, nPages - run.n_device - host));
  const made = make("div", { class: "where", role: "img", "aria-label": label, title: label });
  for (const [kind, n] of [["device", run.n_device], ["host", host], ["disk", disk]]) {
    const part = make("i", { class: kind });
    part.style.width = 100 * n / nPages + "%";
    made.append(part);
  }
  return made;
}
