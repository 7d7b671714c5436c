// Making elements and saying numbers. Knows nothing of what they are about.

export const at = id => document.getElementById(id);

// make("p", { class: "soft", onclick: act }, "text", element): `on…` are listeners, null children are left out.
export function make(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter(child => child !== null && child !== undefined));
  return made;
}

export const button = (said, onclick, attributes = {}) => make("button", { type: "button", onclick, ...attributes }, said);

// Sets a text only where it is another: a screen reader says what changes.
export const say = (id, said) => { const to = at(id); if (to.textContent !== said) to.textContent = said; };

const english = new Intl.NumberFormat("en");
export const whole = number => english.format(Math.round(number));
export const rate = number => (number < 10 ? (Math.round(number * 10) / 10).toString() : whole(number));
export const share = (part, all) => (all > 0 ? Math.round(100 * part / all) + " %" : "–");

export function size(bytes) {
  let step = 0;
  while (bytes >= 1024 && step < 4) { bytes /= 1024; step++; }
  return (step && bytes < 10 ? bytes.toFixed(1) : Math.round(bytes)) + [" ", " K", " M", " G", " T"][step] + "B";
}

export function duration(seconds) {
  if (seconds < 1) return Math.round(seconds * 1000) + " ms";
  if (seconds < 10) return seconds.toFixed(1) + " s";
  if (seconds < 120) return Math.round(seconds) + " s";
  return seconds < 7200 ? Math.round(seconds / 60) + " min" : Math.round(seconds / 3600) + " h";
}

export const clock = seconds => new Date(seconds * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });

export function download(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  make("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}
