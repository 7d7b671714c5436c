// Why an answer took as long as it did, in sentences: of the figures that the server gives with each.
// `figures`: prompt, cached, generated (tokens), first_s, queue_s, prefill_s, decode_s, tier, miss, resumes. Pure.

import { duration, rate, share, whole } from "./dom.js";

export const TIERS = { resident: "the device's memory", host: "the host's memory", disk: "the disk" };

const MISSES = {
  no_tail: "more is cached, but this model can continue only from a checkpoint, and there is none yet",
  evicted: "more had been cached and was evicted",
  identity: "the disk cache belongs to another model or other cache types",
  off: "the request or the server's options disabled the cache",
};
const HELPS = {
  no_tail: "The next prompt with this beginning will find a checkpoint.",
  evicted: "Use a larger --host-cache, or a --disk-cache.",
  identity: "Start the server with the model and cache types of the disk cache.",
  differs_at: "Move parts that change with each request (a date, an id) from the beginning to the end.",
};
const MUCH = 256;  // tokens read anew: less needs no advice

export function missReason(miss) {
  if (!miss || miss === "none") return "";
  const [word, position] = miss.split(":");
  if (word === "differs_at") return "first difference at token " + whole(position);
  return MISSES[word] || miss;
}

export function fromUsage(usage, seen = {}) {
  const luce = usage.luce || {};
  return {
    prompt: usage.prompt_tokens, cached: usage.prompt_tokens_details?.cached_tokens || 0, generated: usage.completion_tokens,
    queue_s: luce.queue_s, prefill_s: luce.prefill_s, decode_s: luce.decode_s, tier: luce.cache_tier, miss: luce.cache_miss,
    resumes: luce.resumes || 0, ...seen,
  };
}

export const speed = figures => (figures.decode_s > 0 ? (figures.generated - 1) / figures.decode_s : 0);

function advice(figures) {
  const [word, position] = (figures.miss || "").split(":");
  if (figures.prompt - figures.cached < MUCH || (word === "differs_at" && Number(position) > figures.prompt / 2)) return "";
  return HELPS[word] || "";
}

// What took its time, in the order in which it was done.
export const timesOf = figures => [
  { seconds: figures.queue_s, what: "waiting for a free lane", kind: "queue" },
  { seconds: figures.prefill_s, what: "reading the prompt", kind: "read" },
  { seconds: figures.decode_s, what: "generating the answer", kind: "written" },
].filter(part => part.seconds !== undefined);

// One line under an answer.
export function brief(figures) {
  const parts = [];
  if (speed(figures) > 0) parts.push(rate(speed(figures)) + " tokens/s");
  if (figures.first_s !== undefined) parts.push("first token after " + duration(figures.first_s));
  const why = missReason(figures.miss);
  parts.push(whole(figures.cached) + " of " + whole(figures.prompt) + " prompt tokens cached (" +
    share(figures.cached, figures.prompt) + ")" + (why ? "; " + why : ""));
  if (figures.resumes) parts.push("continued after the loss of " + figures.resumes + (figures.resumes > 1 ? " engines" : " engine"));
  return parts.join(" · ");
}

// Several sentences, the slowest part first; `alone`: nothing beside it shows the parts.
export function atLength(figures, alone = true) {
  const parts = timesOf(figures);
  const slowest = parts.reduce((most, part) => (part.seconds > most.seconds ? part : most), parts[0]);
  const said = ["Most of the time (" + duration(slowest.seconds) + ") was spent on " + slowest.what +
    (alone ? ": " + parts.map(part => part.what + " took " + duration(part.seconds)).join(", ") : "") + "."];
  said.push(figures.cached > 0
    ? whole(figures.cached) + " of " + whole(figures.prompt) + " prompt tokens came from " + (TIERS[figures.tier] || "the cache") + "."
    : "None of the " + whole(figures.prompt) + " prompt tokens were cached.");
  const why = missReason(figures.miss);
  if (why) said.push((figures.cached > 0 ? "Why not more: " : "Why: ") + why + ".", advice(figures));
  else if (figures.cached < figures.prompt) said.push("The other " + whole(figures.prompt - figures.cached) + " are new.");
  if (speed(figures) > 0) said.push("It wrote " + whole(figures.generated) + " tokens at " + rate(speed(figures)) + " per second.");
  if (figures.resumes) said.push("Its engine died, and another one continued from the last token.");
  return said.filter(Boolean).join(" ");
}
