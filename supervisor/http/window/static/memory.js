// What is remembered: the tree of texts, by engine. A run is a stretch of text without a branch; behind it stand the
// texts that go on from it. Where its pages lie, what holds them, and what it would cost to read it again.

import { askJson, post } from "./api.js";
import { button, duration, make, size, whole } from "./dom.js";

const LOOK_EVERY_MS = 3000;
const MOST_WORDS = 160;
const LEAST_BAR_REM = 1, MOST_BAR_REM = 20;
const ACTS = {
  Pin: "keeps a text and its prefix from eviction until you unpin it or the engine ends",
  Forget: "deletes a text and its continuations, from disk too; it asks first",
  Park: "moves the texts to host memory and frees the device's memory, weights included; the next request loads the model again",
};

let drawn = "";
let lookedAt = 0;
let failure = "";
let chosen = "";  // the model that is shown; empty: the only one, or the first

const of = path => (chosen ? path + "?model=" + encodeURIComponent(chosen) : path);

export async function look({ models }, view) {
  if (performance.now() - lookedAt < LOOK_EVERY_MS) return;
  lookedAt = performance.now();
  const told = await askJson(of("memory.json"));
  const now = JSON.stringify(models) + chosen + JSON.stringify(told.engines.map(engine => ({ ...engine, runs: engine.runs.map(run => ({ ...run, age_s: ageOf(run) })) }))) + failure;
  if (now === drawn) return;
  drawn = now;
  const focused = view.contains(document.activeElement) ? document.activeElement.dataset.act : null;
  view.replaceChildren(make("h1", { tabindex: "-1" }, "Cached texts"), choice(models),
    make("p", { class: "lead" }, summary(told)),
    make("p", { class: "soft" }, "These texts are cached: a prompt that begins with one of them is read only from there on. A beginning that several texts share is stored once, and its continuations are indented."),
    make("dl", { class: "acts-told small" }, ...Object.entries(ACTS).map(([name, does]) => make("div", {}, make("dt", {}, name), make("dd", { class: "soft" }, does)))),
    key(), make("p", { class: "failure", role: "alert" }, failure), ...told.engines.map((engine, number) => drawEngine(engine, number, told.read_s)));
  if (focused) (view.querySelector(`[data-act="${focused}"]`) || view.querySelector("h1")).focus();
}

// Which model's texts are shown, where there are several.
function choice(models) {
  if (models.length < 2) return "";
  const shown = chosen || models[0].name;
  return make("label", { class: "row" }, "Model", make("select", { "data-act": "model", onchange: event => { chosen = event.target.value; lookedAt = 0; } },
    ...models.map(({ name, state }) => make("option", { value: name, selected: name === shown }, name + " (" + state + ")"))));
}

const ageOf = run => (run.age_s === null ? "" : duration(run.age_s < 60 ? 10 * Math.round(run.age_s / 10) : run.age_s));

const key = () => make("div", { class: "key", "aria-hidden": "true" }, ...[["device", "on the device"], ["host", "in host memory"], ["disk", "on disk only"]]
  .map(([kind, said]) => make("span", {}, make("i", { class: "place " + kind }), said)));

async function act(path, body) {
  failure = "";
  try {
    await post(of(path), body);
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
  const context = { number, readS, behind, pageBytes: engine.page_bytes, pageTokens: engine.page_tokens, most: Math.max(...engine.runs.map(run => run.end - run.begin)) };
  const more = engine.total - engine.runs.length;
  return make("section", { class: "card texts" },
    make("div", { class: "row" }, make("h2", {}, engine.name[0].toUpperCase() + engine.name.slice(1)), make("span", { class: "grow" }),
      button(engine.parked ? "Load the model again" : "Park: free the device's memory", () => act("memory/park", { on: !engine.parked }),
        { "data-act": "park-" + number, title: engine.parked ? null : "Park " + ACTS.Park })),
    engine.parked ? make("p", { class: "soft" }, "Parked: the texts are in host memory. The next request loads the model again.") : null,
    make("ul", {}, ...tops.map(run => drawRun(run, context))),
    engine.short ? make("p", { class: "soft" }, whole(engine.short) + " checkpoints of texts shorter than a page.") : null,
    more > 0 ? make("p", { class: "soft" }, whole(more) + " more are not shown.") : null);
}

// The view's first sentence: how much there is, and what it would cost if it were gone.
function summary({ engines, read_s: readS }) {
  const runs = engines.flatMap(engine => engine.runs), total = engines.reduce((sum, engine) => sum + engine.total, 0);
  if (!runs.length) return "No text of " + (engines[0]?.page_tokens || 64) + " tokens or more is cached yet. Chat with the model, or connect a client.";
  const nTokens = runs.reduce((sum, run) => sum + run.end - run.begin, 0);
  return "The server caches " + whole(total) + (total > 1 ? " texts, " : " text, ") + (total > runs.length ? "more than " : "") + whole(nTokens) + " tokens." +
    (readS ? " Reading them again would take " + duration(nTokens * readS) + "." : "");
}

// What a text begins with, and whose words they are. Only its first tokens are known, so there is always more.
function spoken(words) {
  const parts = words.slice(0, MOST_WORDS).split(/(?:^|\n)(system|developer|user|assistant|tool)\n/);
  return parts.map((text, number) => ({ role: number % 2 === 1, text: text.trim() })).filter(({ text }) => text);
}

const holds = (run, behind) => run.is_held || (behind.get(run.page) || []).some(other => holds(other, behind));

// Who keeps it from leaving memory: a pin holds what the text begins with, too.
function keeper(run, nPages, behind) {
  if (run.is_held) return "kept by your pin";
  if (holds(run, behind)) return "kept by your pin of a continuation";
  return run.n_pinned < nPages ? "kept by the server itself: its first " + whole(run.n_pinned) + (run.n_pinned > 1 ? " pages" : " page") : "kept by the server itself";
}

function drawRun(run, context) {
  const nPages = (run.end - run.begin) / context.pageTokens, nTokens = run.end - run.begin;
  const said = [];
  if (run.age_s !== null) said.push("used " + ageOf(run) + " ago");
  if (context.pageBytes) said.push(size(nPages * context.pageBytes));
  if (run.n_checkpoints) said.push(whole(run.n_checkpoints) + (run.n_checkpoints > 1 ? " checkpoints" : " checkpoint"));
  if (run.begin) said.push("continues from token " + whole(run.begin));
  if (run.n_lanes) said.push("in use by " + run.n_lanes + (run.n_lanes > 1 ? " requests" : " request"));
  if (run.n_pinned) said.push(keeper(run, nPages, context.behind));
  const places = [[run.n_device, "on the device"], [run.n_host, "in host memory"], [run.n_disk, "on disk"]].filter(([n]) => n);
  const lies = whole(nPages) + (nPages > 1 ? " pages: " : " page: ") + (places.map(([n, where]) => whole(n) + " " + where).join(", ") || "none");
  const words = spoken(run.words), start = words.map(word => word.text).join(" ").slice(0, 40) + "…";
  const below = context.behind.get(run.page) || [];
  return make("li", { class: "text" },
    make("p", { class: "words" }, ...words.map(({ role, text }, place) => (role ? make("span", { class: "role" }, text + ": ") : text + (place < words.length - 1 ? " " : ""))), "…"),
    make("div", { class: "row" }, bar(run, nPages, lies, context.most), make("strong", {}, whole(nTokens) + " tokens" + (context.readS ? ", " + duration(nTokens * context.readS) + " to read again" : ""))),
    make("p", { class: "soft small" }, [lies, ...said].join(" · ")),
    make("div", { class: "row acts" },
      button(run.is_held ? "Unpin" : "Pin", () => act("memory/hold", { engine: context.number, page: run.page, on: !run.is_held }),
        { "data-act": "hold-" + run.page, title: run.is_held ? "Allows its eviction" : "Pin " + ACTS.Pin, "aria-label": (run.is_held ? "Unpin: " : "Pin: ") + start }),
      button("Forget", () => {
        if (confirm("Forget this text" + (below.length ? " and all its continuations" : "") + "? It will have to be read again.")) act("memory/forget", { engine: context.number, page: run.page });
      }, { "data-act": "forget-" + run.page, title: "Forget " + ACTS.Forget, "aria-label": "Forget: " + start })),
    below.length ? make("ul", {}, ...below.map(other => drawRun(other, context))) : null);
}

// A page in the device counts there, whatever copies it has.
function bar(run, nPages, label, most) {
  const host = Math.max(0, Math.min(run.n_host, nPages - run.n_device)), disk = Math.max(0, Math.min(run.n_disk, nPages - run.n_device - host));
  const made = make("div", { class: "where", "aria-hidden": "true", title: label });
  made.style.width = Math.max(LEAST_BAR_REM, MOST_BAR_REM * (run.end - run.begin) / most) + "rem";  // as long as its tokens are many
  for (const [kind, n] of [["device", run.n_device], ["host", host], ["disk", disk]]) {
    const part = make("i", { class: kind });
    part.style.width = 100 * n / nPages + "%";
    made.append(part);
  }
  return made;
}
