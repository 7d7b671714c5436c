// One answer on its way from the server into a message: asks for it, hands its pieces to a card, and leaves in the
// message what came and what it took. Knows no conversation and no page but the card.

import { ApiError, events, post } from "./api.js";
import { rate, whole } from "./dom.js";
import { fromUsage } from "./explain.js";

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
  }

  // Until its end, whichever it is: the message says in `state` and `error` which. `noted()`: something came.
  async run(body, noted) {
    const { message, card } = this;
    message.state = "streaming";
    delete message.error;
    const began = performance.now();
    let firstAt = null, nPieces = 0, isWhole = false;
    try {
      const stream = await post("v1/chat/completions",
        { ...body, stream: true, stream_options: { include_usage: true }, return_progress: true }, this.abort.signal);
      for await (const data of events(stream)) {
        if (data === "[DONE]") { isWhole = true; continue; }
        const chunk = JSON.parse(data);
        if (chunk.error) throw new ApiError(chunk.error.code, chunk.error.message);
        if (chunk.usage) message.figures = fromUsage(chunk.usage, firstAt === null ? {} : { first_s: (firstAt - began) / 1000 });
        if (chunk.prompt_progress && firstAt === null) card.told(reading(chunk.prompt_progress));
        const choice = chunk.choices?.[0];
        if (!choice) continue;
        if (choice.finish_reason) message.finish = choice.finish_reason;
        if (!this.#take(choice.delta)) continue;
        firstAt ??= performance.now();
        nPieces++;
        if (nPieces % 16 === 0) card.told(writing(nPieces, (performance.now() - firstAt) / 1000));
        noted();
      }
      message.state = isWhole ? "done" : "cut";
    } catch (error) {
      message.state = this.isStopped ? "stopped" : "cut";
      if (!this.isStopped) message.error = error instanceof ApiError ? error.message : "The server does not answer any more: " + error.message;
    }
    message.calls = message.calls?.filter(Boolean);
    card.end();
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

const reading = told => "Reading the prompt: " + whole(told.processed) + " of " + whole(told.total) + " tokens, " +
  whole(told.cache) + " of them from memory";

const writing = (nPieces, seconds) => whole(nPieces) + " pieces, " + rate(nPieces / Math.max(seconds, 0.001)) + " a second";
