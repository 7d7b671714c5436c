// What is asked of the server: with the key, if it wants one, and with an answer's stream read event by event.
// The key is kept for this tab only. Addresses are relative: the page may lie under a path of another server.

import { at, say } from "./dom.js";

let key = sessionStorage.getItem("luce-key") || "";
let waiting = null;  // for a key: a promise that all share

export class ApiError extends Error {
  constructor(status, text) { super(text); this.status = status; }
}

// Asks until the server takes the key; any other failure ends it: ApiError, TypeError (nobody answers), or a
// DOMException where it took longer than `timeoutMs`.
export async function ask(path, { timeoutMs, ...options } = {}) {
  for (;;) {
    const headers = { ...options.headers, ...(key ? { Authorization: "Bearer " + key } : {}) };
    const tried = key;
    const signal = timeoutMs ? AbortSignal.timeout(timeoutMs) : options.signal;
    const answer = await fetch(path, { cache: "no-store", ...options, headers, signal });
    if (answer.status === 401) {
      if (tried === key) await askForKey(tried !== "");
      continue;
    }
    if (!answer.ok) throw new ApiError(answer.status, await failure(answer));
    if (key) sessionStorage.setItem("luce-key", key);
    return answer;
  }
}

export const askJson = async (path, options) => (await ask(path, options)).json();

export const post = (path, body, signal) => ask(path, {
  method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal,
});

async function failure(answer) {
  try {
    const told = await answer.json();
    return told.error?.message || "status " + answer.status;
  } catch {
    return "status " + answer.status;
  }
}

function askForKey(isRefused) {
  waiting ??= new Promise(resolve => {
    key = "";
    sessionStorage.removeItem("luce-key");
    at("ask").hidden = false;
    say("state", "locked");
    at("state").className = "state";
    say("refused", isRefused ? "That key is not accepted." : "");
    at("key").focus();
    at("ask").addEventListener("submit", event => {
      event.preventDefault();
      key = at("key").value.trim();
      at("key").value = "";
      at("ask").hidden = true;
      waiting = null;
      resolve();
    }, { once: true });
  });
  return waiting;
}

// The data of each server-sent event of an answer, as text.
export async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const data = block.split("\n").filter(line => line.startsWith("data:")).map(line => line.slice(5).trimStart());
      if (data.length) yield data.join("\n");
    }
  }
}
