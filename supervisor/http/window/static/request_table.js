// The last requests: what each took, and, on demand, why. A row that is open stays so while the table is drawn anew.

import { button, clock, duration, make, rate, share, whole } from "./dom.js";
import { atLength, missReason, speed, timesOf } from "./explain.js";

const MOST_ROWS = 100;
const PLACES = { resident: "device" };
const APIS = { chat_completions: "chat", completions: "completion", responses: "responses", messages: "messages" };

const HEADS = [["Started"], ["Client", "word"], ["API", "word"], ["Prompt tokens"], ["Cached"], ["First token"], ["Tokens/s"], ["Total"], ["Outcome", "word"]];

const figuresOf = seen => ({
  prompt: seen.prompt_tokens, cached: seen.cached_tokens, generated: seen.generated_tokens, first_s: seen.first_token_s,
  queue_s: seen.queue_s, prefill_s: seen.prefill_s, decode_s: seen.decode_s, tier: seen.cache_tier, miss: seen.cache_miss, resumes: seen.resumes,
});

export const isRefused = seen => seen.status >= 400 && seen.status < 500 && seen.status !== 499;

function outcome(seen) {
  if (seen.seconds === null) return "running";
  if (seen.status === 499) return "client left";
  if (isRefused(seen)) return "refused (" + seen.status + ")";
  if (seen.status >= 500) return "failed (" + seen.status + ")";
  return seen.prompt_tokens === null && seen.api in APIS ? "ended early" : "done";
}

function whyOf(seen, figures, alone) {
  if (seen.prompt_tokens !== null) return atLength(figures, alone);
  return seen.seconds === null ? "It is running." : "It ended without an answer: " + outcome(seen) + ".";
}

// The last one that has ended, in words: what people come for.
export function drawLast(requests) {
  const seen = requests.find(request => request.seconds !== null);
  if (!seen) return make("p", { class: "soft" }, "None yet. Chat with the model, or connect a client.");
  const figures = figuresOf(seen), parts = seen.prompt_tokens === null ? [] : timesOf(figures);
  const all = parts.reduce((sum, part) => sum + part.seconds, 0) || 1;
  const track = make("div", { class: "track times", "aria-hidden": "true" }, ...parts.map(part => {
    const made = make("i", { class: part.kind, title: part.what + ": " + duration(part.seconds) });
    made.style.width = 100 * part.seconds / all + "%";
    return made;
  }));
  const key = make("p", { class: "key", "aria-hidden": "true" }, ...parts.map(part => make("span", {}, make("i", { class: part.kind }), part.what + " " + duration(part.seconds))));
  const who = ["started " + clock(seen.time), seen.client, seen.agent, APIS[seen.api] || seen.api].filter(Boolean).join(" · ");
  return make("div", {}, make("p", {}, make("strong", {}, "It took " + duration(seen.seconds)), " ", make("span", { class: "soft" }, who)),
    ...(parts.length ? [track, key] : []), make("p", { class: "reason" }, whyOf(seen, figures, false)));
}

export class RequestTable {
  constructor() {
    this.open = new Set();
    this.drawn = "";
    // Roles are named: as cards, on a narrow screen, a table would be none for screen readers.
    this.rows = make("tbody", { role: "rowgroup" });
    this.element = make("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "The last requests" },
      make("table", { class: "requests", role: "table" }, make("thead", { role: "rowgroup" }, make("tr", { role: "row" },
        ...HEADS.map(([head, kind]) => make("th", { scope: "col", role: "columnheader", class: kind }, head)), make("th", { role: "columnheader" }, make("span", { class: "aside" }, "Why")))), this.rows));
  }

  // Whether anything has changed.
  draw(requests) {
    const now = JSON.stringify(requests);
    if (now === this.drawn) return false;
    this.drawn = now;
    const focused = this.rows.contains(document.activeElement) ? document.activeElement.dataset.id : null;
    this.rows.replaceChildren(...requests.slice(0, MOST_ROWS).flatMap(seen => this.#rowsOf(seen)));
    if (!requests.length) this.rows.append(make("tr", { role: "row" }, make("td", { colspan: 10, role: "cell", class: "word soft" }, "None yet.")));
    if (focused) this.rows.querySelector(`button[data-id="${focused}"]`)?.focus();
    return true;
  }

  #rowsOf(seen) {
    const has = seen.prompt_tokens !== null, figures = figuresOf(seen), isOpen = this.open.has(seen.id);
    const why = make("tr", { class: "why", role: "row", hidden: !isOpen }, make("td", { colspan: 10, role: "cell" }, this.#why(seen, figures)));
    const opener = button("Why?", () => {
      why.hidden = !why.hidden;
      opener.setAttribute("aria-expanded", String(!why.hidden));
      if (why.hidden) this.open.delete(seen.id); else this.open.add(seen.id);
    }, { "aria-expanded": String(isOpen), "data-id": seen.id, "aria-label": "Why did the request of " + clock(seen.time) + " take so long?" });
    const isBad = seen.status >= 400 && seen.status !== 499;
    const values = [
      clock(seen.time),
      [seen.client, seen.agent].filter(Boolean).join(" · ") || "–",
      APIS[seen.api] || seen.api,
      has ? whole(seen.prompt_tokens) : "–",
      has ? share(seen.cached_tokens, seen.prompt_tokens) + (seen.cached_tokens ? ", " + (PLACES[seen.cache_tier] || seen.cache_tier) : "") : "–",
      seen.first_token_s === null ? "–" : duration(seen.first_token_s),
      has && speed(figures) > 0 ? rate(speed(figures)) : "–",
      seen.seconds === null ? "–" : duration(seen.seconds),
      outcome(seen),
    ];
    const row = make("tr", { role: "row" },
      ...HEADS.map(([name, kind], number) => make("td", { role: "cell", "data-name": name,
        class: [kind, values[number] === "–" && "none", isBad && number >= 7 && "bad"].filter(Boolean).join(" ") || null }, values[number])),
      make("td", { role: "cell" }, opener));
    return [row, why];
  }

  #why(seen, figures) {
    return whyOf(seen, figures) + (missReason(figures.miss) ? " (" + figures.miss + ")" : "") + " Request " + seen.id + ".";
  }
}
