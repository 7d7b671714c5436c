// Activity: the server's present state, the last hour as charts, the last requests and why each took as
// long as it did. What status.json says it draws; it works nothing out but rates.

import { askJson } from "./api.js";
import { Charts } from "./charts.js";
import { make, rate, share, whole } from "./dom.js";
import { drawEngine } from "./engine_card.js";
import { RequestTable, drawLast, isRefused } from "./request_table.js";

let parts = null;
let before = null;
let speed = 0;
let refused = "";  // of the last requests, in words: the engines never saw these
let askedAfter = 0;  // the last sample that the charts have

const total = (seen, name) => seen.engines.reduce((sum, engine) => sum + (engine.figures[name] || 0), 0);

// Tokens since the look before, of engines that have gone on: one that was replaced counts from 0 again.
const written = seen => seen.engines.reduce((sum, engine, number) => {
  const now = engine.figures.tokens_out, then = before.engines[number]?.figures.tokens_out;
  return sum + (now >= then ? now - then : 0);
}, 0);

function build(view) {
  const tile = (name, label) => {
    const value = make("dd", { id: name }, "–"), note = make("dd", { class: "note", id: name + "-note" });
    return { element: make("div", { class: "card" }, make("dt", {}, label), value, note), value, note };
  };
  const tiles = {
    speed: tile("speed", "Tokens per second"), cached: tile("cached", "Prompt tokens from the cache"),
    running: tile("running", "Running"), waiting: tile("waiting", "Waiting"), requests: tile("requests", "Requests"),
  };
  const last = make("div", { id: "last-request" }), engines = make("div", { id: "engines" }), charts = new Charts(), table = new RequestTable();
  view.replaceChildren(make("h1", { class: "aside" }, "Activity"),
    make("dl", { class: "tiles" }, ...Object.values(tiles).map(each => each.element)),
    make("section", { class: "card" }, make("h2", {}, "The last request: where its time went"), last), engines,
    make("section", { class: "card" }, make("h2", {}, "The last hour"), charts.since, charts.element),
    make("section", { class: "card" }, make("h2", {}, "The last requests"), table.element));
  return { tiles, last, engines, charts, table };
}

function put(tile, value, note) {
  if (tile.value.textContent !== value) tile.value.textContent = value;
  if (tile.note.textContent !== note) tile.note.textContent = note;
}

function drawTiles(seen, tiles) {
  if (before && seen.time_s > before.time_s) speed = written(seen) / (seen.time_s - before.time_s);
  const reused = total(seen, "tokens_reused"), read = total(seen, "tokens_in");
  const lanes = seen.engines.reduce((sum, engine) => sum + engine.lanes, 0);
  const running = seen.engines.reduce((sum, engine) => sum + engine.running.length, 0);
  put(tiles.speed, rate(speed), "now, of all answers together");
  put(tiles.cached, share(reused, reused + read), "since the start: " + whole(reused) + " of " + whole(reused + read) + " tokens were not read again");
  put(tiles.running, whole(running), "of " + lanes + " lanes");
  put(tiles.waiting, whole(seen.waiting), "at most " + whole(seen.max_waiting));
  put(tiles.requests, whole(seen.requests.total), "since the start: " + whole(seen.requests.finished) + " done, " +
    whole(seen.requests.cancelled) + " given up, " + whole(seen.requests.failed) + " failed." + refused);
}

export async function look(seen, view) {
  parts ??= build(view);
  drawTiles(seen, parts.tiles);
  parts.engines.replaceChildren(...seen.engines.map(drawEngine));
  before = seen;
  const [samples, told] = await Promise.all([askJson("history.json?after=" + askedAfter), askJson("requests.json")]);
  const nRefused = told.requests.filter(isRefused).length;
  refused = nRefused ? " Refused requests are not counted: " + whole(nRefused) + " of the last " + whole(told.requests.length) + "." : "";
  askedAfter = samples.time.length ? samples.time[samples.time.length - 1] : askedAfter;
  if (parts.table.draw(told.requests)) parts.last.replaceChildren(drawLast(told.requests));
  await parts.charts.add(samples);
}
