// Markdown as it comes: what has ended (a paragraph, a list, a block of code) is drawn once, and only the block that
// still grows is drawn anew, at most once a frame. Nothing of a text is trusted: HTML in it is shown as text, and
// images are links, so that no text can make the browser ask for anything.

import markdownit from "./vendor/markdown-it.js";

const LANGUAGES = {
  bash: "bash", sh: "bash", zsh: "bash", shell: "shell", console: "shell", c: "c", h: "c", cpp: "cpp", "c++": "cpp",
  cc: "cpp", cs: "csharp", csharp: "csharp", css: "css", diff: "diff", patch: "diff", dockerfile: "dockerfile", go: "go",
  ini: "ini", toml: "ini", java: "java", js: "javascript", javascript: "javascript", jsx: "javascript", json: "json",
  kotlin: "kotlin", kt: "kotlin", make: "makefile", makefile: "makefile", md: "markdown", markdown: "markdown",
  py: "python", python: "python", rb: "ruby", ruby: "ruby", rs: "rust", rust: "rust", sql: "sql", ts: "typescript",
  tsx: "typescript", typescript: "typescript", html: "xml", svg: "xml", xml: "xml", yaml: "yaml", yml: "yaml",
};
const MOST_HIGHLIGHTED = 100000;

const markdown = markdownit({ html: false, linkify: true, breaks: false });
markdown.disable("image");
markdown.renderer.rules.link_open = (tokens, index, options, _, self) => {
  tokens[index].attrSet("target", "_blank");
  tokens[index].attrSet("rel", "noopener noreferrer");
  return self.renderToken(tokens, index, options);
};

// Below the page's own headings: h1 to h3 are those of the view and the conversation.
for (const rule of ["heading_open", "heading_close"]) {
  markdown.renderer.rules[rule] = (tokens, index, options, _, self) => {
    tokens[index].tag = "h" + Math.min(6, Number(tokens[index].tag[1]) + 2);
    return self.renderToken(tokens, index, options);
  };
}

let core = null;
const loaded = new Map();  // languages: promises

function highlighter(language) {
  core ??= import("./vendor/highlight/core.js").then(module => module.default);
  if (!loaded.has(language)) {
    loaded.set(language, Promise.all([core, import("./vendor/highlight/languages/" + language + ".js")])
      .then(([hljs, grammar]) => { hljs.registerLanguage(language, grammar.default); return hljs; }));
  }
  return loaded.get(language);
}

// Colours blocks of code that have ended. Without the files (the server is gone) they stay as they are.
async function colour(element) {
  for (const code of element.querySelectorAll("pre > code[class^=language-]")) {
    const language = LANGUAGES[code.className.slice("language-".length).toLowerCase()];
    if (!language || code.textContent.length > MOST_HIGHLIGHTED) continue;
    try {
      const hljs = await highlighter(language);
      code.innerHTML = hljs.highlight(code.textContent, { language, ignoreIllegals: true }).value;
    } catch (error) {
      console.warn("not coloured:", error);
    }
  }
}

export function drawMarkdown(element, text) {
  element.innerHTML = markdown.render(text);
  colour(element);
}

export class LiveText {
  // `drawn(cost)`: after each drawing, with the milliseconds that it took.
  constructor(element, drawn) {
    this.element = element;
    this.drawn = drawn;
    this.text = "";
    this.nEnded = 0;  // characters of the text that are drawn for good
    this.growing = document.createElement("div");
    element.replaceChildren(this.growing);
    this.nextAt = 0;
    this.frame = 0;
  }

  append(text) {
    this.text += text;
    this.frame ||= requestAnimationFrame(() => this.#tick());
  }

  #tick() {
    this.frame = 0;
    const began = performance.now();
    if (began < this.nextAt) {
      this.frame = requestAnimationFrame(() => this.#tick());
      return;
    }
    this.#draw();
    const cost = performance.now() - began;
    this.nextAt = began + 4 * cost;  // a long block does not take the frames of the rest
    this.drawn(cost);
  }

  #draw() {
    const rest = this.text.slice(this.nEnded);
    const blocks = markdown.parse(rest, {}).filter(token => token.level === 0 && token.map && token.nesting >= 0);
    const last = blocks[blocks.length - 1];
    if (blocks.length > 1) {
      const nChars = lineStart(rest, last.map[0]);
      const ended = document.createElement("div");
      drawMarkdown(ended, rest.slice(0, nChars));
      this.growing.before(ended);
      this.nEnded += nChars;
    }
    this.growing.innerHTML = markdown.render(this.text.slice(this.nEnded));
  }

  end() {
    cancelAnimationFrame(this.frame);
    drawMarkdown(this.element, this.text);  // whole: a link's address may stand at the text's end
  }
}

function lineStart(text, line) {
  let at = 0;
  for (let i = 0; i < line; i++) at = text.indexOf("\n", at) + 1;
  return at;
}
