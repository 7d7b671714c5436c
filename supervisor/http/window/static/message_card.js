// One message on the page: its text, reasoning, tool calls, figures, and what can be done with it. `actions` does it.
// Knows no conversation: what branches there are it is told.

import { button, make } from "./dom.js";
import { brief } from "./explain.js";
import { LiveText, drawMarkdown } from "./live_text.js";

const NAMES = { user: "You", assistant: "Model", tool: "Tool" };

// `branches`: { number, count }. `isLast`: it ends the branch, so that calls wait for their answers here.
export function messageCard(message, branches, isLast, actions) {
  const card = make("article", { class: "message " + message.role, "data-id": message.id, "aria-label": NAMES[message.role] + " said" });
  card.append(make("header", {}, make("strong", {}, NAMES[message.role] + (message.name ? " " + message.name : "")), branchButtons(message, branches, actions)));
  if (message.files?.length) card.append(make("p", {}, ...message.files.map(attachment)));
  if (message.reasoning) card.append(reasoning(message.reasoning));
  const body = make("div", { class: "body" });
  if (message.role === "assistant") drawMarkdown(body, message.content);
  else body.textContent = message.content;
  card.append(body);
  for (const call of message.calls || []) card.append(callCard(call));
  if (message.calls?.length && isLast && message.state === "done") card.append(callForm(message, actions));
  if (message.error) card.append(make("p", { class: "failure" }, message.error));
  card.append(footer(message, actions));
  return card;
}

const attachment = file => make("span", { class: "attachment" }, file.image ? make("img", { src: file.image, alt: file.name }) : null, file.name);

const reasoning = text => make("details", { class: "reasoning" }, make("summary", {}, "Reasoning"), make("div", {}, text));

function branchButtons(message, branches, actions) {
  if (branches.count < 2) return null;
  const step = (said, by, label) => button(said, () => actions.step(message, by), { "aria-label": label, disabled: !branches.at(by) });
  return make("span", { class: "branches" }, step("‹", -1, "Previous branch"),
    " branch " + branches.number + " of " + branches.count + " ", step("›", 1, "Next branch"));
}

function callCard(call) {
  return make("div", { class: "call" }, make("strong", {}, "Calls " + call.name),
    make("pre", {}, make("code", {}, pretty(call.arguments))));
}

function pretty(text) {
  try { return JSON.stringify(JSON.parse(text), null, 2); } catch { return text; }
}

function callForm(message, actions) {
  const inputs = message.calls.map(call => make("textarea", { rows: 2, required: true, "data-call": call.id }));
  const form = make("form", { class: "call" },
    ...message.calls.map((call, number) => make("label", {}, "What " + call.name + " gives", inputs[number])),
    make("button", { class: "main" }, "Send the result"));
  form.addEventListener("submit", event => {
    event.preventDefault();
    actions.answerCalls(message, inputs.map(input => input.value));
  });
  return form;
}

function footer(message, actions) {
  const copy = button("Copy", () => actions.copy(message.content, copy));
  const made = make("footer", {}, copy, button("Edit", () => actions.edit(message)));
  if (message.role === "assistant") {
    made.append(button("Regenerate", () => actions.regenerate(message)));
    if (message.state !== "done" || message.finish === "length") made.append(button("Go on", () => actions.goOn(message)));
    if (message.state === "stopped") made.append(make("span", {}, "stopped"));
    if (message.state === "cut") made.append(make("span", {}, "cut off"));
    if (message.figures) made.append(make("p", { class: "figures" }, brief(message.figures)));
  }
  return made;
}

// In place of the card, while its text is changed.
export function editor(message, actions) {
  const input = make("textarea", { "aria-label": "The message's text" });
  input.value = message.content;
  const save = button(message.role === "user" ? "Send as a branch" : "Keep as a branch", () => actions.keepEdit(message, input.value), { class: "main" });
  input.addEventListener("keydown", event => {
    if (event.key === "Escape") { event.stopPropagation(); actions.redraw(message.id); }
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) save.click();
  });
  return make("article", { class: "message editing " + message.role, "data-id": message.id }, input,
    make("div", { class: "row" }, save, button("Cancel", () => actions.redraw(message.id))));
}

// An answer that is being written.
export class LiveCard {
  constructor(message, drawn) {
    this.message = message;
    this.body = make("div", { class: "body" });
    this.reasoningText = make("div");
    this.reasoning = make("details", { class: "reasoning", hidden: !message.reasoning }, make("summary", {}, "Reasoning"), this.reasoningText);
    this.reasoningText.textContent = message.reasoning || "";
    this.progress = make("p", { class: "soft small told" });
    this.calls = make("div");
    this.element = make("article", { class: "message assistant live", "data-id": message.id, "aria-label": "Model says", "aria-busy": "true" },
      make("header", {}, make("strong", {}, NAMES.assistant)), this.reasoning, this.body, this.calls, this.progress);
    this.text = new LiveText(this.body, drawn);
    if (message.content) this.text.append(message.content);
  }

  content(text) { this.message.content += text; this.text.append(text); }

  reason(text) {
    this.message.reasoning = (this.message.reasoning || "") + text;
    this.reasoning.hidden = false;
    this.reasoningText.append(text);
  }

  call(piece) {
    this.message.calls ??= [];
    const call = (this.message.calls[piece.index] ??= { id: "", name: "", arguments: "" });
    call.id ||= piece.id || "";
    call.name ||= piece.function?.name || "";
    call.arguments += piece.function?.arguments || "";
    this.calls.replaceChildren(...this.message.calls.filter(Boolean).map(callCard));
  }

  told(said) { if (this.progress.textContent !== said) this.progress.textContent = said; }

  end() { this.text.end(); }
}
