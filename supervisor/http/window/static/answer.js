// One answer on its way from the server into a message: asks for it, hands its pieces to a card, and leaves in the
// message what came and what it took. Knows no conversation and no page but the card.
//
// The answer has a name (`message.stream`), under which the server goes on with it when the connection breaks, and keeps
// it for some minutes: it is taken up again behind the last event that came, also by another page after a reload.

import { ApiError, ask, events, isPassing, post } from "./api.js";
import { newId } from "./conversation.js";
import { rate, whole } from "./dom.js";
import { fromUsage } from "./explain.js";

const PAUSES_MS = [0, 500, 1000, 2000, 4000];  // before it is asked for again; the last one stays
const PATIENCE_MS = 120000;  // since the connection broke

export class Answer {
  constructor(card) {
    this.card = card;
    this.message = card.message;
    this.abort = new AbortController();
    this.isStopped = false;
  }

  stop() {
    this.isStopped = true;
    this.abort.abort();
    if (this.message.stream) ask(address(this.message.stream.name), { method: "DELETE" }).catch(error => console.warn("not stopped:", error));
  }

  // Until its end, whichever it is: the message says in `state` and `error` which. `body`: what is asked for; null takes
  // up what was asked for before. `noted()`: something came.
  async run(body, noted) {
    const { message, card } = this;
    message.state = "streaming";
    delete message.error;
    if (body) {
      message.stream = { name: newId(), last: null };
      this.began = performance.now();
    }
    try {
      await this.#readAll(body, noted);
      message.state = "done";
    } catch (error) {
      message.state = this.isStopped ? "stopped" : "cut";
      if (!this.isStopped && !isGone(error)) message.error = error instanceof ApiError ? error.message : "The server no longer answers: " + error.message;
      if (!isPassing(error)) delete message.stream;  // else Go on asks for it once more
    }
    if (message.state === "done") delete message.stream;
    message.calls = message.calls?.filter(Boolean);
    card.end();
  }

  // Returns once the answer is whole.
  async #readAll(body, noted) {
    let isAsked = body === null, nBroken = 0, brokenAt = 0;
    for (;;) {
      let error;
      try {
        const stream = isAsked ? this.#takeUp() : this.#begin(body);
        isAsked = true;
        if (await this.#read(await stream, () => { nBroken = 0; }, noted)) return;
        throw new TypeError("the connection was closed");
      } catch (caught) {
        error = caught;
        if (this.isStopped) throw error;
        // The server has never heard of it: the request itself was lost.
        if (error.status === 404 && body && this.message.stream.last === null && nBroken) isAsked = false;
        else if (!isPassing(error)) throw error;
        if (nBroken === 0) brokenAt = performance.now();
        else if (performance.now() - brokenAt > PATIENCE_MS) throw error;
      }
      this.card.told((error instanceof ApiError ? error.message : "The connection broke.") + " Trying again …");
      await this.#pause(PAUSES_MS[Math.min(nBroken++, PAUSES_MS.length - 1)]);
    }
  }

  #begin(body) {
    return post("v1/chat/completions", { ...body, stream: true, stream_options: { include_usage: true }, return_progress: true },
      { headers: { "X-Conversation-Id": this.message.stream.name }, signal: this.abort.signal });
  }

  #takeUp() {
    const { name, last } = this.message.stream;
    return ask(address(name), { headers: last === null ? {} : { "Last-Event-ID": last }, signal: this.abort.signal });
  }

  // Shorter where the browser has a network again, or the answer is stopped.
  #pause(milliseconds) {
    return new Promise(resolve => {
      setTimeout(resolve, milliseconds);
      addEventListener("online", resolve, { once: true });
      this.abort.signal.addEventListener("abort", resolve);
    });
  }

  // Whether the stream came to the answer's end.
  async #read(stream, heard, noted) {
    const { message, card } = this;
    let nPieces = 0, firstAt = null;
    for await (const { id, data } of events(stream)) {
      heard();
      if (id !== undefined) message.stream.last = id;
      if (data === "[DONE]") return true;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ApiError(chunk.error.code, chunk.error.message);
      if (chunk.usage) message.figures = fromUsage(chunk.usage, "first_s" in message.stream ? { first_s: message.stream.first_s } : {});
      if (chunk.prompt_progress && firstAt === null) card.told(reading(chunk.prompt_progress));
      const choice = chunk.choices?.[0];
      if (!choice) continue;
      if (choice.finish_reason) message.finish = choice.finish_reason;
      if (!this.#take(choice.delta)) continue;
      firstAt ??= performance.now();
      if (this.began !== undefined) message.stream.first_s ??= (firstAt - this.began) / 1000;
      nPieces++;
      if (nPieces % 16 === 0) card.told(writing(nPieces, (performance.now() - firstAt) / 1000));
      noted();
    }
    return false;
  }

  // Whether the piece said anything.
  #take(delta) {
    if (!delta) return false;
    if (delta.reasoning_content) this.card.reason(delta.reasoning_content);
    if (delta.content) this.card.content(delta.content);
    for (const piece of delta.tool_calls || []) this.card.call(piece);
    return Boolean(delta.content || delta.reasoning_content || delta.tool_calls);
  }
}

const address = name => "v1/stream?" + new URLSearchParams({ conv_id: name });

// The server has not got the answer any more, or has lost the place: what came stays, and Go on asks for the rest.
const isGone = error => error instanceof ApiError && (error.status === 404 || error.code === "offset_lost");

const reading = told => "Reading the prompt: " + whole(told.processed) + " of " + whole(told.total) + " tokens, " +
  whole(told.cache) + " of them cached";

const writing = (nPieces, seconds) => whole(nPieces) + " pieces, " + rate(nPieces / Math.max(seconds, 0.001)) + " per second";
