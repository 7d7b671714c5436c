// Why an answer took as long as it did, in sentences: of the figures that the server gives with each.
// `figures`: prompt, cached, generated (tokens), first_s, queue_s, prefill_s, decode_s, tier, miss, resumes. Pure.

import { duration, rate, share, whole } from "./dom.js";

const TIERS = { resident: "the device's memory", host: "the host's memory", disk: "the disk" };

const MISSES = {
  no_tail: "its pages are still there, but no checkpoint from which this model could go on",
  evicted: "more was known once, and had to make room for others",
  identity: "what is on disk belongs to another model or other cache types",
  off: "nothing was looked for: the request, or the server's options, said so",
};

export function missReason(miss) {
  if (!miss || miss === "none") return "";
  const [word, position] = miss.split(":");
  if (word === "differs_at") return "from token " + whole(position) + " on the text differs from all that is remembered";
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

// One line under an answer.
export function brief(figures) {
  const parts = [];
  if (speed(figures) > 0) parts.push(rate(speed(figures)) + " tokens/s");
  if (figures.first_s !== undefined) parts.push("first token after " + duration(figures.first_s));
  parts.push(whole(figures.prompt - figures.cached) + " prompt tokens read anew, " + whole(figures.cached) +
    " from memory (" + share(figures.cached, figures.prompt) + ")");
  const why = missReason(figures.miss);
  if (why) parts.push("not more because " + why);
  if (figures.resumes) parts.push("went on after " + figures.resumes + (figures.resumes > 1 ? " engines were" : " engine was") + " lost");
  return parts.join(" · ");
}

// Several sentences, the slowest part first named.
export function atLength(figures) {
  const parts = [
    { seconds: figures.queue_s, what: "waiting for a free lane" },
    { seconds: figures.prefill_s, what: "reading the prompt" },
    { seconds: figures.decode_s, what: "writing the answer" },
  ].filter(part => part.seconds !== undefined);
  const slowest = parts.reduce((most, part) => (part.seconds > most.seconds ? part : most), parts[0]);
  const said = ["Most of the time (" + duration(slowest.seconds) + ") went into " + slowest.what + ": " +
    parts.map(part => part.what + " took " + duration(part.seconds)).join(", ") + "."];
  said.push(figures.cached > 0
    ? whole(figures.cached) + " of " + whole(figures.prompt) + " prompt tokens came from " + (TIERS[figures.tier] || "memory") + " and were not read again."
    : "None of the " + whole(figures.prompt) + " prompt tokens came from memory.");
  const why = missReason(figures.miss);
  if (why) said.push("More did not, because " + why + ".");
  else if (figures.cached < figures.prompt) said.push("The other " + whole(figures.prompt - figures.cached) + " had not been seen before.");
  if (speed(figures) > 0) said.push("It wrote " + whole(figures.generated) + " tokens at " + rate(speed(figures)) + " a second.");
  if (figures.resumes) said.push("An engine was lost under it, and another one went on from its last token.");
  return said.join(" ");
}
