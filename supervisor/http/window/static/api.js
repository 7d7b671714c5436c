// What is asked of the server: with the key, if it wants one, and with an answer's stream read event by event.
// The key is kept for this tab only. Addresses are relative: the page may lie under a path of another server.

import { at, say } from "./dom.js";

let key = sessionStorage.getItem("luce-key") || "";
let waiting = null;  // for a key: a promise that all share
const SILENCE_MS = 60000;  // a server gives signs of life every 10 s at least

// A header takes characters that stand for bytes; a key is UTF-8.
const asBytes = text => String.fromCharCode(...new TextEncoder().encode(text));

export class ApiError extends Error {
  constructor(status, text, code) { super(text); this.status = status; this.code = code; }
}

// What ends by itself: nobody answers, the connection breaks, or a proxy has lost its server for a while.
export const isPassing = error =>
  error instanceof TypeError || (error instanceof ApiError && [502, 503, 504].includes(error.status));

// Asks until the server takes the key; any other failure ends it: ApiError, TypeError (nobody answers), or a
// DOMException where it took longer than `timeoutMs`.
export async function ask(path, { timeoutMs, ...options } = {}) {
  for (;;) {
    const headers = { ...options.headers, ...(key ? { Authorization: asBytes("Bearer " + key) } : {}) };
    const tried = key;
    const signal = timeoutMs ? AbortSignal.timeout(timeoutMs) : options.signal;
    const answer = await fetch(path, { cache: "no-store", ...options, headers, signal });
    if (answer.status === 401) {
      if (tried === key) await askForKey(tried !== "");
      continue;
    }
    if (!answer.ok) throw await failure(answer);
    if (key) sessionStorage.setItem("luce-key", key);
    return answer;
  }
}

export const askJson = async (path, options) => (await ask(path, options)).json();

export const post = (path, body, { headers, ...options } = {}) => ask(path, {
  method: "POST", headers: { "Content-Type": "application/json", ...headers }, body: JSON.stringify(body), ...options,
});

async function failure(answer) {
  const told = await answer.json().catch(() => ({}));  // a proxy's page, say
  return new ApiError(answer.status, told.error?.message || "status " + answer.status, told.error?.code);
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
      document.querySelector("main:not([hidden])").focus();
      waiting = null;
      resolve();
    }, { once: true });
  });
  return waiting;
}

// The server-sent events of an answer: { id, data }. A connection on which nothing comes for SILENCE_MS, not even a sign
// of life, is taken for a broken one: TypeError.
export async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "", timer = 0;
  const next = () => new Promise((resolve, reject) => {
    timer = setTimeout(() => reject(new TypeError("the server has said nothing for " + SILENCE_MS / 1000 + " s")), SILENCE_MS);
    reader.read().then(resolve, reject).finally(() => clearTimeout(timer));
  });
  try {
    for (;;) {
      const { value, done } = await next();
      if (done) return;
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) {
        const lines = block.split("\n"), field = name => lines.filter(line => line.startsWith(name + ":")).map(line => line.slice(name.length + 1).trimStart());
        const data = field("data");
        if (data.length) yield { id: field("id")[0], data: data.join("\n") };
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
