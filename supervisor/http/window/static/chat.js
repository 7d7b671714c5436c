// The chat: conversations at the left, the branch in view, what people do with it. Everything stays in this browser;
// the server sees what it is asked to answer.

import { Answer } from "./answer.js";
import { askJson } from "./api.js";
import { attachments } from "./attachments.js";
import { Tree, asJson, asMarkdown, asRequestMessages, newConversation, readFile, titleOf } from "./conversation.js";
import { at, button, download, make, say } from "./dom.js";
import { LiveCard, editor, messageCard } from "./message_card.js";
import { openSettings, requestFields } from "./settings.js";
import * as store from "./store.js";

const PAGE = 60;  // messages that are drawn at first: the others on demand
const SAVE_MS = 1000;
const NEAR_END = 80;

const HINTS = [  // what else people come for, and where it is
  ["Which texts are cached?", "memory", "Memory"],
  ["Why was the last request slow?", "now", "Activity"],
  ["Claude Code, Codex, an SDK:", "connect", "Connect"],
];

const answers = new Map();  // that are being written, by their conversation's id
let known = [];  // conversations, the newest first
let tree = new Tree(newConversation(), []);
let nDrawn = PAGE;
let model = "";
let models = [];  // names of a server that has several models
let asked = null;
const props = () => asked ??= askJson("props");
const files = attachments(notice, async () => Boolean((await props()).modalities?.vision));

function notice(said) { say("notice", said); }

// What is kept

async function keep(it, ...messages) {
  if (!known.includes(it.conversation)) known.unshift(it.conversation);
  try {
    await store.put(it.conversation, ...messages);
  } catch (error) {
    tellUnkept(error);
  }
}

const tellUnkept = error => { tellBelow("This browser cannot store this conversation: " + error.message); };

function tellBelow(said) {
  at("log").append(make("p", { class: "failure" }, said));
  notice(said);
}

async function openConversation(conversation) {
  const live = answers.get(conversation.id);
  tree = live ? live.tree : new Tree(conversation, await store.messagesOf(conversation.id));
  const unfinished = live ? [] : [...tree.messages.values()].filter(message => message.state === "streaming");
  for (const message of unfinished) message.state = "cut";
  sessionStorage.setItem("luce-conversation", conversation.id);
  nDrawn = PAGE;
  closeList();
  draw();
  keepFocus();
  toEndOfAll();
  const last = unfinished.find(message => message.stream);
  if (last) write(last, null);
}

function begin() {
  tree = new Tree(newConversation(), []);
  sessionStorage.removeItem("luce-conversation");
  closeList();
  draw();
  at("prompt").focus();
}

async function forget(conversation) {
  if (!confirm("Delete “" + (conversation.title || "New conversation") + "”?")) return;
  answers.get(conversation.id)?.stop();
  known = known.filter(other => other !== conversation);
  await store.remove(conversation.id).catch(tellUnkept);
  if (conversation.id === tree.conversation.id) begin();
  else {
    drawList();
    at("new").focus();
  }
}

// What is drawn

// Where the focused element is gone with what was drawn before.
function keepFocus() {
  if (document.activeElement === document.body) at("log").focus({ preventScroll: true });
}

function drawList() {
  at("no-conversations").hidden = known.length > 0;
  known.sort((a, b) => b.updated - a.updated);
  at("conversation-list").replaceChildren(...known.map(conversation => make("li", {},
    button(conversation.title || "New conversation", () => openConversation(conversation).catch(tellUnkept),
      { "aria-current": conversation.id === tree.conversation.id ? "true" : null }),
    button("×", () => forget(conversation), { "aria-label": "Delete " + conversation.title }))));
}

function draw() {
  const path = tree.path(), first = Math.max(0, path.length - nDrawn), live = answers.get(tree.conversation.id);
  const log = at("log"), focused = log.contains(document.activeElement) ? document.activeElement : null;
  const focusedId = focused?.closest(".message")?.dataset.id, focusedName = focused?.textContent;
  const edited = log.querySelector(".editing");  // stays, with what was typed
  log.replaceChildren();
  if (!path.length) {
    log.append(make("div", { class: "welcome" }, make("h2", {}, "Chat with the model"),
      make("p", { class: "soft" }, "Your messages are stored in this browser and sent only to this server. Edit any message to branch; the shared part is not read again."),
      make("ul", { class: "hints" }, ...HINTS.map(([said, view, name]) => make("li", {}, said + " ", make("a", { href: "#" + view }, name))))));
  }
  if (first > 0) {
    log.append(button("Show " + Math.min(first, 200) + " earlier messages", () => {
      const before = log.scrollHeight;
      nDrawn += 200;
      draw();
      log.scrollTop += log.scrollHeight - before;
    }, { id: "earlier" }));
  }
  path.slice(first).forEach((message, index) => {
    if (live?.message === message) log.append(live.card.element);
    else if (edited?.dataset.id === message.id) log.append(edited);
    else log.append(card(message, first + index === path.length - 1));
  });
  say("title", tree.conversation.title || "New conversation");
  at("export").hidden = !path.length;
  at("stop").hidden = !live;
  at("send").disabled = Boolean(live);
  drawList();
  if (!focused || focused === log) return;
  const again = log.contains(focused) ? focused
    : [...log.querySelectorAll(`[data-id="${focusedId}"] button`)].find(other => other.textContent === focusedName);
  again?.focus({ preventScroll: true });
}

function card(message, isLast) {
  const siblings = tree.siblings(message), place = siblings.indexOf(message);
  return messageCard(message, { number: place + 1, count: siblings.length, at: by => siblings[place + by] }, isLast, actions);
}

const isAtEnd = () => at("log").scrollHeight - at("log").scrollTop - at("log").clientHeight < NEAR_END;
const toEnd = () => { at("log").scrollTop = at("log").scrollHeight; };

// Where much is new: what comes into view is measured only then.
function toEndOfAll() {
  toEnd();
  requestAnimationFrame(() => { toEnd(); requestAnimationFrame(toEnd); });
}

// What is done

const actions = {
  async copy(text, from) {
    await navigator.clipboard.writeText(text);
    from.textContent = "Copied";
    notice("Copied");
    setTimeout(() => { from.textContent = "Copy"; }, 1500);
  },
  edit(message) {
    const shown = editor(message, actions);
    at("log").querySelector(`[data-id="${message.id}"]`).replaceWith(shown);
    shown.querySelector("textarea").focus();
  },
  redraw(id) {
    at("log").querySelector(".editing")?.remove();
    draw();
    const shown = at("log").querySelector(`[data-id="${id}"]`);
    shown?.scrollIntoView({ block: "nearest" });
    shown?.querySelector("footer button + button")?.focus();
  },
  keepEdit(message, text) {
    const made = tree.add(message.parent, { role: message.role, content: text, files: message.files, call: message.call, name: message.name, state: "done" });
    keep(tree, made);
    if (message.role === "assistant") actions.redraw(made.id); else answer();
  },
  step(message, by) {
    const siblings = tree.siblings(message), other = siblings[siblings.indexOf(message) + by];
    tree.show(other);
    keep(tree);
    draw();
    at("log").querySelector(`[data-id="${other.id}"] .branches button:not(:disabled)`)?.focus();
  },
  regenerate(message) {
    tree.conversation.leaf = message.parent;
    answer();
  },
  goOn(message) {
    tree.conversation.leaf = message.id;
    if (message.stream) write(message, null);
    else if (message.content) answer(message);
    else actions.regenerate(message);
  },
  answerCalls(message, results) {
    let parent = message.id;
    const made = message.calls.map((call, number) => {
      const told = tree.add(parent, { role: "tool", content: results[number], call: call.id, name: call.name, state: "done" });
      parent = told.id;
      return told;
    });
    keep(tree, ...made);
    answer();
  },
};

// The model's next message behind the branch in view, or the rest of one that was cut off.
async function answer(goesOn = null) {
  const its = tree;
  if (answers.has(its.conversation.id)) return;
  const path = its.path();
  let body;
  try {
    body = { model, messages: asRequestMessages(path, its.conversation.settings?.system), ...requestFields(its.conversation.settings) };
  } catch (error) {
    tellBelow("The settings of this conversation are invalid: " + error.message);
    return;
  }
  if (goesOn) body.continue_final_message = true;
  await write(goesOn || its.add(its.conversation.leaf, { role: "assistant", state: "streaming" }), body);
}

// A message of the model while it comes; `body`: what is asked for, null where it was before.
async function write(message, body) {
  const its = tree;
  let follows = true;
  const live = new Answer(new LiveCard(message, () => { if (its === tree && follows) toEnd(); }));
  live.tree = its;
  answers.set(its.conversation.id, live);
  draw();
  keepFocus();
  toEnd();
  notice("The model is answering");
  const onScroll = () => { follows = isAtEnd(); };
  at("log").addEventListener("scroll", onScroll, { passive: true });
  let savedAt = performance.now();
  const run = live.run(body, () => {
    if (performance.now() - savedAt < SAVE_MS) return;
    savedAt = performance.now();
    keep(its, message);
  });
  keep(its, message);
  await run;
  at("log").removeEventListener("scroll", onScroll);
  answers.delete(its.conversation.id);
  its.conversation.updated = Date.now();
  await keep(its, message);
  notice((its === tree ? "" : "“" + its.conversation.title + "”: ") + ended(message));
  if (its !== tree) return;
  draw();
  if (follows) toEnd();
}

function ended(message) {
  if (message.error) return "The answer failed: " + message.error;
  return { stopped: "The answer is stopped", cut: "The answer is cut off" }[message.state] || "The answer is complete";
}

function send() {
  const text = at("prompt").value.trim();
  if ((!text && !files.count()) || answers.has(tree.conversation.id)) return;
  const made = tree.add(tree.conversation.leaf, { role: "user", content: text, files: files.take(), state: "done" });
  tree.conversation.title ||= titleOf(text || made.files[0].name);
  sessionStorage.setItem("luce-conversation", tree.conversation.id);
  at("prompt").value = "";
  keep(tree, made);
  answer();
}

async function importFile(file) {
  try {
    const read = readFile(await file.text());
    known.unshift(read.conversation);
    await store.put(read.conversation, ...read.messages).catch(tellUnkept);
    await openConversation(read.conversation);
  } catch (error) {
    tellBelow(file.name + " cannot be read: " + error.message);
  }
}

// The frame

function closeList() {
  at("conversations").classList.remove("open");
  at("show-conversations").setAttribute("aria-expanded", "false");
}

function stop() { answers.get(tree.conversation.id)?.stop(); }

function onKey(event) {
  if (event.key !== "Escape" || at("settings").open || at("chat").hidden) return;
  if (at("conversations").classList.contains("open")) {
    closeList();
    at("show-conversations").focus();
  } else {
    stop();
  }
}

function onPromptKey(event) {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
  if (event.key === "ArrowUp" && !at("prompt").value) {
    const mine = tree.path().filter(message => message.role === "user").pop();
    if (mine && !answers.has(tree.conversation.id)) { event.preventDefault(); actions.edit(mine); }
  }
}

function exportAs(type, suffix, text) {
  download((tree.conversation.title || "conversation").replace(/[^\p{L}\p{N} _-]/gu, "").trim() + suffix, type, text);
}

export async function start() {
  at("composer").addEventListener("submit", event => { event.preventDefault(); send(); });
  at("prompt").addEventListener("keydown", onPromptKey);
  document.addEventListener("keydown", onKey);
  at("stop").addEventListener("click", stop);
  at("new").addEventListener("click", begin);
  at("import").addEventListener("click", () => at("import-file").click());
  at("import-file").addEventListener("change", async () => {
    for (const file of at("import-file").files) await importFile(file);
    at("import-file").value = "";
  });
  at("export-json").addEventListener("click", () => exportAs("application/json", ".json", asJson(tree)));
  at("export-markdown").addEventListener("click", () => exportAs("text/markdown", ".md", asMarkdown(tree)));
  at("show-conversations").addEventListener("click", () => {
    const isOpen = at("conversations").classList.toggle("open");
    at("show-conversations").setAttribute("aria-expanded", String(isOpen));
  });
  at("show-settings").addEventListener("click", () => openSettings(at("settings"), tree.conversation.settings, models, settings => {
    tree.conversation.settings = settings;
    if (tree.conversation.leaf) keep(tree);
  }));
  try {
    known = await store.conversations();
    const last = known.find(conversation => conversation.id === sessionStorage.getItem("luce-conversation"));
    if (last) await openConversation(last); else draw();
  } catch (error) {
    draw();
    tellUnkept(error);
  }
  model = (await props()).model_alias;
  models = (await askJson("v1/models")).data.filter(({ state }) => state).map(({ id }) => id);
}
