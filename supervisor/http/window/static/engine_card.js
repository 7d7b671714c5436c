// One engine as status.json describes it: its lanes, and where its pages lie. Draws; asks nothing.

import { make, share, size, whole } from "./dom.js";

const MOST_CELLS = 240;
const KINDS = { running: "in use", out: "in use, outside the pool", kept: "kept for later", pages: "kept for later", tails: "checkpoints" };
const TIERS = { device: "Device", host: "Host memory", disk: "Disk" };

function drawLane(lane, number, ctx) {
  const isReading = lane && lane.n_read < lane.n_prompt;
  const said = !lane ? "free" : isReading
    ? "reading " + whole(lane.n_read) + " of " + whole(lane.n_prompt)
    : "writing, " + whole(lane.n_generated) + " after " + whole(lane.n_prompt);
  const read = make("i", { class: "read" }), written = make("i", { class: "written" });
  if (lane) {
    const all = isReading ? lane.n_prompt : ctx || lane.n_prompt + lane.n_generated;
    read.style.width = 100 * lane.n_read / all + "%";
    written.style.width = 100 * lane.n_generated / all + "%";
  }
  return make("li", { class: "lane" }, make("span", {}, "Lane " + (number + 1)), " ", make("span", { class: lane ? "" : "soft" }, said),
    make("div", { class: "track", "aria-hidden": "true" }, read, written));
}

// What is used comes first, then of how much: nobody knows how large the disk's part could become.
function filled(tier, used) {
  if (tier.n_total === null) return whole(used) + (used === 1 ? " file, " : " files, ") + size(tier.bytes) + " used";
  const bytes = tier.n_total ? tier.bytes * used / tier.n_total : 0;
  return whole(used) + " of " + whole(tier.n_total) + " pages used (" + size(bytes) + " of " + size(tier.bytes) + ")";
}

function drawTier(tier) {
  const used = tier.parts.reduce((sum, part) => sum + part.n, 0);
  const isFiles = tier.n_total === null, all = isFiles ? used : Math.max(tier.n_total, used);
  const each = Math.max(1, Math.ceil(all / MOST_CELLS)), nCells = Math.ceil(all / each), cells = [];
  for (const part of tier.parts) {
    const n = Math.min(Math.ceil(part.n / each), nCells - cells.length);
    for (let i = 0; i < n; i++) cells.push(make("i", { class: part.kind }));
  }
  while (cells.length < nCells) cells.push(make("i"));
  const parts = isFiles ? [] : [...tier.parts.map(part => whole(part.n) + " " + (KINDS[part.kind] || part.kind)),
    whole(all - used) + " free"];
  const one = isFiles ? "file" : "page";
  const square = nCells ? "one square: " + (each > 1 ? "up to " + whole(each) + " " + one + "s" : "1 " + one) : "";
  const said = filled(tier, used), split = parts.join(", ");
  return make("div", { class: "tier " + tier.name },
    make("p", {}, make("b", {}, make("i", { class: "place", "aria-hidden": "true" }), TIERS[tier.name]), make("span", {}, said)),
    make("div", { class: "map", role: "img", "aria-label": TIERS[tier.name] + ": " + [split, said, square].filter(Boolean).join("; ") }, ...cells),
    make("p", { class: "soft", "aria-hidden": "true" }, make("span", {}, split), make("span", {}, square)));
}

function drawKey(tiers) {
  const outgrows = tiers.some(tier => tier.parts.some(part => part.kind === "out"));
  const kinds = [["running", "in use now"], ...(outgrows ? [["out", "in use, outside the pool"]] : []),
    ["kept", "kept for later"], ["tails", "checkpoints"], ["free", "free"]];
  return make("div", { class: "key uses", "aria-hidden": "true" },
    ...kinds.map(([kind, said]) => make("span", {}, make("i", { class: kind }), said)));
}

// What speculation has brought since the engine's start, as far as it has been measured.
function speculated(engine) {
  const seen = engine.figures, each = seen.spec_tokens_per_step;
  const said = "drafts: " + engine.speculation.replaceAll("+", ", ");
  if (each === undefined) return said;
  const right = seen.spec_drafted > 0 ? ", " + share(seen.spec_accepted, seen.spec_drafted) + " of drafted tokens accepted" : "";
  return said + "; " + each.toFixed(2) + " tokens per step" + right;
}

// Of texts that outgrow the pool: how many of the pages that mattered were there already, and what the others cost.
function recalled(engine) {
  const seen = engine.figures;
  if (!seen.page_choices) return "";
  const stood = seen.page_stall_s === undefined ? "" : ", " + seen.page_stall_s.toFixed(1) + " s of waiting for them";
  return share(seen.pages_found, seen.pages_wanted) + " of the selected pages were in the pool; " +
    size(seen.page_bytes_in) + " moved in, " + size(seen.page_bytes_out) + " moved out" + stood;
}

export function drawEngine(engine) {
  const isGood = engine.state === "ready", lanes = [];
  for (let number = 0; number < engine.lanes; number++) lanes.push(drawLane(engine.running[number], number, engine.ctx));
  const recall = recalled(engine);
  const memory = !engine.tiers.length ? [] : [make("h3", {}, "Pages"), ...engine.tiers.map(drawTier), drawKey(engine.tiers),
    make("p", { class: "soft small" }, "The server has pinned the prefixes of " + whole(engine.slots_used) +
      (engine.slots_used === 1 ? " prompt" : " prompts") + " (" + whole(engine.slots) + " at most)."),
    recall ? make("p", { class: "soft small recall" }, recall) : null];
  return make("section", { class: "card engine" },
    make("header", {}, make("h2", {}, engine.name[0].toUpperCase() + engine.name.slice(1)),
      make("span", { class: "state " + (isGood ? "good" : "bad") },
        engine.state + (engine.load_percent === null ? "" : ", " + engine.load_percent + " % loaded")), " ",
      engine.speculation === "none" ? null : make("span", { class: "soft" }, speculated(engine)), " ",
      engine.deaths ? make("span", { class: "soft" }, "replaced " + engine.deaths + (engine.deaths > 1 ? " times" : " time")) : null, " ",
      !isGood && engine.last_failure ? make("span", { class: "soft" }, engine.last_failure) : null),
    make("div", { class: "columns" }, make("div", {}, make("h3", {}, "Lanes"), make("ul", {}, ...lanes)), make("div", {}, ...memory)));
}
