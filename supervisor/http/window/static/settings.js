// How a conversation's answers are made: by which model, system text, sampling, a JSON schema, tools. A conversation keeps its own; a
// field that is empty leaves the choice to the server. Draws the dialog; asks nothing.

import { button, make } from "./dom.js";

const NUMBERS = [
  ["temperature", "Temperature", 0, 5, false], ["top_p", "Top p", 0.01, 1, false], ["top_k", "Top k", 0, 100000, true],
  ["min_p", "Min p", 0, 1, false], ["repeat_penalty", "Repeat penalty", 0.5, 3, false], ["seed", "Seed", 0, 2 ** 53 - 1, true],
  ["max_tokens", "Maximum tokens", 1, 10000000, true],
];
const JSON_FIELDS = ["schema", "tools"];

// The fields of a request that the settings say.
export function requestFields(settings) {
  const fields = {};
  for (const [name] of NUMBERS) if (settings?.[name] !== undefined) fields[name] = settings[name];
  if (settings?.model) fields.model = settings.model;
  if (settings?.effort) fields.reasoning_effort = settings.effort;
  if (settings?.schema) {
    fields.response_format = { type: "json_schema", json_schema: { name: "answer", schema: JSON.parse(settings.schema) } };
  }
  if (settings?.tools) {
    fields.tools = JSON.parse(settings.tools);
    if (settings.tool_choice) fields.tool_choice = settings.tool_choice;
  }
  return fields;
}

// Shows the dialog; `keep(settings)` when it is closed with "Keep". `models`: the names of a server that has several.
export function openSettings(dialog, settings, models, keep) {
  const now = settings || {};
  const field = (name, label, input) => make("label", {}, label, Object.assign(input, { name, value: now[name] ?? "" }));
  const numbers = NUMBERS.map(([name, label, min, max, isWhole]) => {
    // Not of type number: of an empty one Chromium tells a screen reader that it is 0.
    const input = make("input", { inputmode: "decimal", placeholder: "server's" });
    input.addEventListener("input", () => {
      const value = Number(input.value), isFit = value >= min && value <= max && (!isWhole || Number.isInteger(value));
      input.setCustomValidity(input.value && !isFit ? (isWhole ? "A whole number" : "A number") + " from " + min + " to " + max : "");
    });
    return field(name, label, input);
  });
  const choice = (name, label, values, unset) => {
    const select = make("select", {}, ...["", ...values].map(value => make("option", { value }, value || unset)));
    return field(name, label, select);
  };
  const refused = make("p", { class: "failure", role: "alert" });
  const form = make("form", { method: "dialog" },
    make("h2", { id: "settings-title" }, "Settings of this conversation"),
    models.length > 1 ? choice("model", "Model", models, "the first") : null,
    field("system", "System text", make("textarea", { rows: 4 })),
    make("div", { class: "numbers" }, ...numbers),
    choice("effort", "Reasoning", ["none", "low", "medium", "high"], "server default"),
    field("schema", "JSON schema for answers", make("textarea", { rows: 3, placeholder: '{"type": "object", "properties": {…}}', spellcheck: "false" })),
    field("tools", "Tools, as a list of OpenAI functions. You enter the results of calls", make("textarea", { rows: 3, placeholder: '[{"type": "function", "function": {"name": "…"}}]', spellcheck: "false" })),
    choice("tool_choice", "Calls", ["required", "none"], "automatic"),
    refused,
    make("div", { class: "row" }, make("button", { class: "main" }, "Keep"), button("Cancel", () => dialog.close())));
  form.addEventListener("submit", event => {
    event.preventDefault();
    const said = JSON_FIELDS.map(name => wrongJson(name, form.elements[name].value)), wrong = said.findIndex(Boolean);
    JSON_FIELDS.forEach((name, place) => form.elements[name].setAttribute("aria-invalid", String(Boolean(said[place]))));
    if (wrong >= 0) {
      refused.textContent = said[wrong];
      form.elements[JSON_FIELDS[wrong]].focus();
      return;
    }
    keep(read(form));
    dialog.close();
  });
  dialog.replaceChildren(form);
  dialog.showModal();
}

function wrongJson(name, text) {
  if (!text.trim()) return null;
  try {
    const value = JSON.parse(text);
    return name === "tools" && !Array.isArray(value) ? "tools: this is not a list." : null;
  } catch (error) {
    return name + ": " + error.message;
  }
}

function read(form) {
  const settings = {};
  for (const name of ["model", "system", "effort", "tool_choice", ...JSON_FIELDS]) {
    const value = form.elements[name]?.value.trim();
    if (value) settings[name] = value;
  }
  for (const [name] of NUMBERS) {
    const value = form.elements[name].value.trim();
    if (value !== "") settings[name] = Number(value);
  }
  return settings;
}
