// Files that go with the next message: texts, and images where the model takes them. Knows no conversation.
// `takesImages()`: a promise, since the server may not have said yet whether its model does.

import { at, button, make } from "./dom.js";

const MOST_BYTES = 16 << 20;
const READ_BY_SERVER = ["image/png", "image/jpeg", "image/gif", "image/bmp"];

export function attachments(notice, takesImages) {
  let attached = [];

  function draw() {
    at("attached").replaceChildren(...attached.map(file => make("li", { class: "attachment" }, file.image ? make("img", { src: file.image, alt: "" }) : null, file.name, " ",
      button("×", () => { attached = attached.filter(other => other !== file); draw(); at("attach").focus(); }, { "aria-label": "Leave out " + file.name }))));
  }

  async function add(file) {
    if (file.size > MOST_BYTES) throw new Error("it is larger than 16 MB");
    if (file.type.startsWith("image/")) {
      if (!await takesImages()) throw new Error("this model cannot read images");
      attached.push({ name: file.name, image: await asUrl(READ_BY_SERVER.includes(file.type) ? file : await asPng(file)) });
    } else {
      const text = await file.text();
      if (text.includes("\0")) throw new Error("it is not text");
      attached.push({ name: file.name, text });
    }
  }

  async function addAll(files) {
    const refused = [];
    for (const file of files) await add(file).catch(error => refused.push(file.name + ": " + error.message));
    draw();
    notice(refused.length ? "Not attached: " + refused.join("; ") : "");
    at("attached").append(...refused.map(said => make("li", { class: "failure" }, said)));
  }

  at("attach").addEventListener("click", () => at("attach-file").click());
  at("attach-file").addEventListener("change", async () => {
    await addAll([...at("attach-file").files]);
    at("attach-file").value = "";
  });
  at("prompt").addEventListener("paste", event => {
    if (event.clipboardData.files.length) { event.preventDefault(); addAll([...event.clipboardData.files]); }
  });
  at("composer").addEventListener("dragover", event => event.preventDefault());
  at("composer").addEventListener("drop", event => { event.preventDefault(); addAll([...event.dataTransfer.files]); });

  return {
    count: () => attached.length,
    take() { const taken = attached; attached = []; draw(); return taken; },
  };
}

// WebP, AVIF and whatever else the browser can draw.
async function asPng(file) {
  const picture = await createImageBitmap(file).catch(() => { throw new Error("this browser cannot read it"); });
  const canvas = make("canvas", { width: picture.width, height: picture.height });
  canvas.getContext("2d").drawImage(picture, 0, 0);
  return new Promise(resolve => canvas.toBlob(resolve, "image/png"));
}

const asUrl = file => new Promise((resolve, reject) => {
  const reader = new FileReader();
  reader.onload = () => resolve(reader.result);
  reader.onerror = () => reject(reader.error);
  reader.readAsDataURL(file);
});
