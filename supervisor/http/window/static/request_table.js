// The last requests: what each took, and, on demand, why. A row that is open stays so while the table is drawn anew.

import { button, duration, make, rate, share, whole } from "./dom.js";
import { atLength, missReason, speed } from "./explain.js";

const MOST_ROWS = 100;
const APIS = { chat_completions: "chat", completions: "completion", responses: "responses", messages: "messages" };

const figuresOf = seen => ({
  prompt: seen.prompt_tokens, cached: seen.cached_tokens, generated: seen.generated_tokens, first_s: seen.first_token_s,
  queue_s: seen.queue_s, prefill_s: seen.prefill_s, decode_s: seen.decode_s, tier: seen.cache_tier, miss: seen.cache_miss, resumes: seen.resumes,
});

function outcome(seen) {
  if (seen.seconds === null) return "at work";
  if (seen.status === 499) return "client left";
  if (seen.status >= 400) return "refused (" + seen.status + ")";
  return seen.prompt_tokens === null && seen.api in APIS ? "ended early" : "done";
}

export class RequestTable {
  constructor() {
    this.open = new Set();
    this.drawn = "";
    const heads = ["When", "Client", "API", "Prompt", "From memory", "First token", "Tokens/s", "In all", "Outcome", "Why"];
    this.rows = make("tbody");
    this.element = make("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "The last requests" },
      make("table", { class: "requests" }, make("thead", {}, make("tr", {}, ...heads.map(head => make("th", { scope: "col" }, head)))), this.rows));
  }

  draw(requests) {
    const now = JSON.stringify(requests);
    if (now === this.drawn) return;
    this.drawn = now;
    const focused = this.rows.contains(document.activeElement) ? document.activeElement.dataset.id : null;
    this.rows.replaceChildren(...requests.slice(0, MOST_ROWS).flatMap(seen => this.#rowsOf(seen)));
    if (!requests.length) this.rows.append(make("tr", {}, make("td", { colspan: 10, class: "word soft" }, "None yet.")));
    if (focused) this.rows.querySelector(`button[data-id="${focused}"]`)?.focus();
  }

  #rowsOf(seen) {
    const has = seen.prompt_tokens !== null, figures = figuresOf(seen), isOpen = this.open.has(seen.id);
    const cell = (said, attributes = {}) => make("td", attributes, said);
    const why = make("tr", { class: "why", hidden: !isOpen }, make("td", { colspan: 10 }, this.#why(seen, figures)));
    const opener = button("Why", () => {
      why.hidden = !why.hidden;
      opener.setAttribute("aria-expanded", String(!why.hidden));
      if (why.hidden) this.open.delete(seen.id); else this.open.add(seen.id);
    }, { "aria-expanded": String(isOpen), "data-id": seen.id });
    const isBad = seen.status >= 400 && seen.status !== 499;
    const row = make("tr", {},
      cell(new Date(seen.time * 1000).toLocaleTimeString()),
      cell([seen.client, seen.agent].filter(Boolean).join(" · ") || "–", { class: "word" }),
      cell(APIS[seen.api] || seen.api, { class: "word" }),
      cell(has ? whole(seen.prompt_tokens) : "–"),
      cell(has ? share(seen.cached_tokens, seen.prompt_tokens) + (seen.cached_tokens ? ", " + seen.cache_tier : "") : "–"),
      cell(seen.first_token_s === null ? "–" : duration(seen.first_token_s)),
      cell(has && speed(figures) > 0 ? rate(speed(figures)) : "–"),
      cell(seen.seconds === null ? "–" : duration(seen.seconds)),
      cell(outcome(seen), { class: "word" + (isBad ? " bad" : "") }),
      make("td", {}, opener));
    return [row, why];
  }

  #why(seen, figures) {
    const id = "Request " + seen.id + ". ";
    if (seen.prompt_tokens === null) return id + (seen.seconds === null ? "It is at work." : "It ended without an answer: " + outcome(seen) + ".");
    return id + atLength(figures) + (missReason(figures.miss) ? " (" + figures.miss + ")" : "");
  }
}
