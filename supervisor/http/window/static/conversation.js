// A conversation as a tree of messages: each knows its parent, and the conversation which leaf is in view. Editing a
// message or asking again makes a sibling. Pure: nothing is drawn, asked or stored here.

export const newId = () => Date.now().toString(36) + "-" + crypto.getRandomValues(new Uint32Array(2)).join("-");

export function newConversation() {
  const now = Date.now();
  return { id: newId(), title: "", created: now, updated: now, leaf: null, settings: null };
}

export class Tree {
  constructor(conversation, messages) {
    this.conversation = conversation;
    this.messages = new Map(messages.map(message => [message.id, message]));
    this.children = new Map();  // by parent's id, "" for none: ids in the order in which they came
    for (const message of [...messages].sort((a, b) => a.created - b.created)) this.#hang(message);
  }

  #hang(message) {
    const key = message.parent || "";
    if (!this.children.has(key)) this.children.set(key, []);
    this.children.get(key).push(message.id);
  }

  // From the first message to the one in view.
  path() {
    const path = [];
    for (let id = this.conversation.leaf; id; id = this.messages.get(id)?.parent) {
      const message = this.messages.get(id);
      if (!message) break;
      path.push(message);
    }
    return path.reverse();
  }

  add(parent, fields) {
    const message = { id: newId(), conversation: this.conversation.id, parent, created: Date.now(), content: "", ...fields };
    this.messages.set(message.id, message);
    this.#hang(message);
    this.conversation.leaf = message.id;
    this.conversation.updated = Date.now();
    return message;
  }

  // Those that stand in this one's place in other branches, itself among them.
  siblings(message) { return this.children.get(message.parent || "").map(id => this.messages.get(id)); }

  // Brings the branch of this message into view, at its newest end.
  show(message) {
    let id = message.id;
    for (let below = this.children.get(id); below?.length; below = this.children.get(id)) id = below[below.length - 1];
    this.conversation.leaf = id;
  }
}

export function titleOf(text) {
  const line = text.trim().split("\n", 1)[0];
  return line.length > 60 ? line.slice(0, 59) + "…" : line || "New conversation";
}

// As the chat API takes them.
export function asRequestMessages(path, system) {
  const messages = system ? [{ role: "system", content: system }] : [];
  for (const message of path) {
    if (message.role === "user") messages.push({ role: "user", content: userContent(message) });
    else if (message.role === "tool") messages.push({ role: "tool", tool_call_id: message.call, content: message.content });
    else messages.push(assistantMessage(message));
  }
  return messages;
}

function assistantMessage(message) {
  const calls = message.calls?.length
    ? { tool_calls: message.calls.map(call => ({ id: call.id, type: "function", function: { name: call.name, arguments: call.arguments } })) }
    : {};
  return { role: "assistant", content: message.content, ...(message.reasoning ? { reasoning_content: message.reasoning } : {}), ...calls };
}

// With the files that go with it.
function textOf(message) {
  const files = (message.files || []).filter(file => !file.image);
  const fence = text => "`".repeat(Math.max(3, ...[...text.matchAll(/`+/g)].map(run => run[0].length + 1)));
  const texts = files.map(file => file.name + "\n" + fence(file.text) + "\n" + file.text + "\n" + fence(file.text) + "\n\n");
  return texts.join("") + message.content;
}

function userContent(message) {
  const text = textOf(message);
  const images = (message.files || []).filter(file => file.image);
  if (!images.length) return text;
  return [...images.map(file => ({ type: "image_url", image_url: { url: file.image } })), { type: "text", text }];
}

// Files

const FORMAT = "luce-conversation-1";

export const asJson = tree =>
  JSON.stringify({ format: FORMAT, conversation: tree.conversation, messages: [...tree.messages.values()] }, null, 1);

// The branch in view. Marks that no reader shows say where each message begins, so that it can be read back.
export const asMarkdown = tree => tree.path().map(message => {
  const calls = (message.calls || []).map(call => "\n\n```json\n" + call.name + " " + call.arguments + "\n```").join("");
  return "<!-- luce: " + message.role + " -->\n## " + message.role[0].toUpperCase() + message.role.slice(1) + "\n\n" + textOf(message) + calls + "\n";
}).join("\n");

// What a file holds, under ids of its own: the same file may be read twice. Throws an Error that says what is wrong.
export function readFile(text) {
  return text.trimStart().startsWith("{") ? readJson(text) : readMarkdown(text);
}

const ROLES = ["user", "assistant", "tool"];

function readJson(text) {
  let read;
  try { read = JSON.parse(text); } catch (error) { throw new Error("This is not JSON: " + error.message); }
  if (read.format !== FORMAT || !Array.isArray(read.messages)) throw new Error("This JSON file is not a conversation of this page.");
  const conversation = { ...newConversation(), title: String(read.conversation?.title || ""), settings: read.conversation?.settings || null };
  const ids = new Map(read.messages.map(message => [message.id, newId()]));
  const messages = read.messages.map(({ stream, ...message }, number) => {
    if (!ROLES.includes(message.role) || typeof message.content !== "string") throw new Error("Message " + (number + 1) + " has no role or no text.");
    return { ...message, id: ids.get(message.id), conversation: conversation.id, parent: ids.get(message.parent) || null,
      created: Number(message.created) || number, state: message.state === "streaming" ? "cut" : message.state };
  });
  conversation.leaf = ids.get(read.conversation?.leaf) || (messages.length ? messages[messages.length - 1].id : null);
  if (reachable(messages) !== messages.length) throw new Error("Messages of this file form a cycle.");
  return { conversation, messages };
}

function reachable(messages) {
  const tree = new Tree({}, messages);
  const found = [...(tree.children.get("") || [])];
  for (const id of found) found.push(...(tree.children.get(id) || []));
  return found.length;
}

function readMarkdown(text) {
  const parts = text.split(/^<!-- luce: (user|assistant|tool) -->\n## .*\n\n/m);
  if (parts.length < 3) throw new Error("This Markdown file is not a conversation of this page: the marks between messages are missing.");
  const tree = new Tree(newConversation(), []);
  let parent = null;
  for (let i = 1; i < parts.length; i += 2) {
    parent = tree.add(parent, { role: parts[i], content: parts[i + 1].trim(), created: i, state: "done" }).id;
  }
  const first = tree.path().find(message => message.role === "user");
  tree.conversation.title = titleOf(first?.content || "");
  return { conversation: tree.conversation, messages: [...tree.messages.values()] };
}
