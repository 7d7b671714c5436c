// The last hour as charts, by uPlot. Samples are added as they come; what is older than an hour goes.

import { clock, duration, make, rate, size, whole } from "./dom.js";

const MOST_SAMPLES = 720, HEIGHT = 130;
const WHOLE = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 100000, 1000000];
const CHARTS = [
  { title: "Tokens a second", names: ["tokens_per_s"], shown: rate },
  { title: "First token", names: ["first_token_s"], shown: duration },
  { title: "Prompts from memory", names: ["cached_share"], shown: value => Math.round(100 * value) + " %" },
  { title: "Running and waiting", names: ["running", "waiting"], shown: whole, least: 2, incrs: WHOLE },
  { title: "Pages in the device", names: ["device_pages"], shown: whole, least: 2, incrs: WHOLE },
  { title: "Host memory and disk", names: ["host_bytes", "disk_bytes"], shown: size },
];
const SPARSE = new Set(["first_token_s", "cached_share"]);  // only where something came
const COLOURS = ["--run", "--keep"];

let loaded = null;
function library() {
  loaded ??= new Promise((resolve, reject) => {
    document.head.append(make("link", { rel: "stylesheet", href: "window/vendor/uplot.css" }),
      make("script", { src: "window/vendor/uplot.js", onload: () => resolve(window.uPlot), onerror: () => reject(new Error("uplot.js did not come")) }));
  });
  return loaded;
}

export class Charts {
  constructor() {
    this.samples = null;
    this.plots = [];
    this.restarts = make("p", { class: "soft small" });
    this.boxes = CHARTS.map(({ title }) => {
      const latest = make("span", {}), plot = make("div", { role: "img" });
      return { latest, plot, element: make("div", { class: "chart" }, make("h3", {}, make("span", {}, title), latest), plot) };
    });
    this.element = make("div", {}, make("div", { class: "charts" }, ...this.boxes.map(box => box.element)), this.restarts);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#build());
    new ResizeObserver(() => {
      this.plots.forEach((plot, number) => plot.setSize({ width: this.boxes[number].plot.clientWidth, height: HEIGHT }));
    }).observe(this.element);
  }

  async add(samples) {
    if (!samples.time.length) return;
    const names = Object.keys(samples).filter(name => Array.isArray(samples[name]));
    this.samples ??= Object.fromEntries(names.map(name => [name, []]));
    for (const name of names) this.samples[name] = [...this.samples[name], ...samples[name]].slice(-MOST_SAMPLES);
    this.uPlot = await library();
    if (!this.plots.length) this.#build();
    CHARTS.forEach((chart, number) => this.#draw(chart, number));
    this.#sayRestarts();
  }

  #build() {
    if (!this.uPlot) return;
    this.plots.forEach(plot => plot.destroy());
    const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    const axis = { stroke: colour("--soft"), grid: { stroke: colour("--free") }, ticks: { stroke: colour("--free") }, font: "11px system-ui" };
    this.plots = CHARTS.map(({ names, shown, least = 1e-9, incrs }, number) => new this.uPlot({
      width: this.boxes[number].plot.clientWidth || 300, height: HEIGHT, legend: { show: false }, cursor: { y: false },
      scales: { y: { range: (_, __, most) => [0, Math.max(most, least) * 1.1] } },
      axes: [{ ...axis, space: 70, values: (_, times) => times.map(clock) }, { ...axis, size: 58, values: (_, values) => values.map(shown), ...(incrs ? { incrs } : {}) }],
      series: [{}, ...names.map((name, series) => ({ stroke: colour(COLOURS[series]), width: 1.5, label: name, spanGaps: true, points: { show: SPARSE.has(name), size: 4, fill: colour(COLOURS[series]) } }))],
    }, this.#data(names), this.boxes[number].plot));
  }

  #data(names) { return [this.samples.time, ...names.map(name => this.samples[name])]; }

  #draw({ title, names, shown }, number) {
    this.plots[number].setData(this.#data(names));
    const said = names.map(name => {
      const values = this.samples[name].filter(value => value !== null);
      const words = name.replaceAll("_", " ").replace(/ (per )?s$/, "").replace(/ bytes$/, "");
      return (names.length > 1 ? words + " " : "") + (values.length ? shown(values[values.length - 1]) : "–");
    }).join(", ");
    this.boxes[number].latest.textContent = said;
    const all = names.flatMap(name => this.samples[name]).filter(value => value !== null);
    this.boxes[number].plot.setAttribute("aria-label", title + " in the last hour: now " + said +
      (all.length ? ", at most " + shown(Math.max(...all)) : ""));
  }

  #sayRestarts() {
    const { time, deaths } = this.samples;
    const when = time.filter((_, i) => i > 0 && deaths[i] > deaths[i - 1]).map(clock);
    this.restarts.textContent = when.length ? "Engines were replaced: " + when.join(", ") : "No engine was replaced.";
  }
}
