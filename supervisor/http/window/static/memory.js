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
    make("p", { class: "soft" }, "What the server has read and keeps, so that it need not read it again: a prompt that begins like one of these texts goes on where that text ends. What several texts begin with is kept once; what follows it is indented."),
    key(), make("p", { class: "failure", role: "alert" }, failure), ...told.engines.map((engine, number) => drawEngine(engine, number, told.read_s)));
  if (focused) view.querySelector(`[data-act="${focused}"]`)?.focus();
}

const ageOf = run => (run.age_s === null ? "" : duration(run.age_s < 60 ? 10 * Math.round(run.age_s / 10) : run.age_s));

const key = () => make("div", { class: "key", "aria-hidden": "true" }, ...[["device", "in the device"], ["host", "in host memory"], ["disk", "on disk only"]]
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
    make("p", { class: "soft" }, summary(engine, readS)),
    engine.parked ? make("p", { class: "soft" }, "Parked: the texts lie in host memory. The next request takes the device's memory again.") : null,
    make("ul", {}, ...tops.map(run => drawRun(run, context))),
    engine.short ? make("p", { class: "soft" }, whole(engine.short) + " checkpoints of texts shorter than a page.") : null,
    more > 0 ? make("p", { class: "soft" }, whole(more) + " more are not shown.") : null);
}

function summary(engine, readS) {
  if (!engine.runs.length) return "Nothing of " + (engine.page_tokens || 64) + " tokens or more yet. Whatever the server reads, it remembers: talk to it under Chat, or connect a client.";
  const nTokens = engine.runs.reduce((sum, run) => sum + run.end - run.begin, 0);
  return whole(nTokens) + " tokens in " + whole(engine.total) + (engine.total > 1 ? " texts" : " text") +
    (readS ? "; reading all of it again would take " + duration(nTokens * readS) : "") + ".";
}

function drawRun(run, context) {
  const nPages = (run.end - run.begin) / context.pageTokens, nTokens = run.end - run.begin;
  const said = [];
  if (run.age_s !== null) said.push("used " + ageOf(run) + " ago");
  if (context.pageBytes) said.push(size(nPages * context.pageBytes));
  if (run.n_checkpoints) said.push(whole(run.n_checkpoints) + (run.n_checkpoints > 1 ? " checkpoints" : " checkpoint"));
  if (run.begin) said.push("goes on from token " + whole(run.begin));
  if (run.n_lanes) said.push("in use by " + run.n_lanes + (run.n_lanes > 1 ? " requests" : " request"));
  if (run.n_pinned) said.push(run.is_held ? "kept by your pin" : whole(run.n_pinned) + " pages kept by the server");
  const places = [[run.n_device, "in the device"], [run.n_host, "in host memory"], [run.n_disk, "on disk"]].filter(([n]) => n);
  const lies = whole(nPages) + (nPages > 1 ? " pages: " : " page: ") + (places.map(([n, where]) => whole(n) + " " + where).join(", ") || "none in memory");
  const words = run.words.length > MOST_WORDS ? run.words.slice(0, MOST_WORDS) + "…" : run.words;
  const below = context.behind.get(run.page) || [];
  return make("li", { class: "text" },
    make("p", { class: "words" }, words),
    make("div", { class: "row" }, bar(run, nPages, lies), make("strong", {}, whole(nTokens) + " tokens" + (context.readS ? ", " + duration(nTokens * context.readS) + " to read again" : ""))),
    make("p", { class: "soft small" }, [lies, ...said].join(" · ")),
    make("div", { class: "row acts" },
      button(run.is_held ? "Unpin" : "Pin", () => act("memory/hold", { engine: context.number, page: run.page, on: !run.is_held }),
        { "data-act": "hold-" + run.page, title: "Keeps it from leaving memory", "aria-label": (run.is_held ? "Unpin: " : "Pin: ") + words.slice(0, 40) }),
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
