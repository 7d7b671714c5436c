// The last hour as charts, by uPlot. Samples are added as they come; what is older than an hour goes.

import { clock, duration, make, rate, size, whole } from "./dom.js";

const MOST_SAMPLES = 720, HEIGHT = 130, MOST_STEPS = 4, DASH = [6, 4];  // dashed is a second line: the first is seen through it
const HOUR_S = 3600, SAMPLE_S = 5;
// A chart's lines: what it is called where a chart has several, its column, its colour.
const line = (name, column, colour = "--line") => ({ name, column, colour });
const CHARTS = [
  { title: "Tokens per second", lines: [line("", "tokens_per_s")], shown: rate, least: 4 },
  { title: "First token", lines: [line("", "first_token_s")], shown: duration, least: 0.004 },
  { title: "Prompt tokens from the cache, per 5 s", lines: [line("", "cached_share")], shown: value => Math.round(100 * value) + " %", top: 1 },
  { title: "Running and waiting", lines: [line("running", "running", "--write"), line("waiting", "waiting", "--queue")], shown: whole, least: 2, isWhole: true },
  { title: "Pages on the device", lines: [line("", "device_pages", "--device")], shown: whole, least: 2, isWhole: true },
  { title: "Host memory and disk", lines: [line("host", "host_bytes", "--host"), line("disk", "disk_bytes", "--disk")], shown: size, least: 4096, base: 1024 },
];
const SPARSE = new Set(["first_token_s", "cached_share"]);  // only where something came

// The distance between labels: round, and so that the topmost stands above every line.
function stepFor(most, { least = 1e-9, isWhole = false, base = 10 }) {
  const wanted = Math.max(most, least) / MOST_STEPS, power = base ** Math.floor(Math.log(wanted) / Math.log(base));
  const rounds = base === 10 ? [1, 2, 5, 10] : [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];
  const step = power * rounds.find(round => round * power >= wanted * (1 - 1e-9));
  return isWhole ? Math.max(1, step) : step;
}

let loaded = null;
function library() {
  loaded ??= new Promise((resolve, reject) => {
    document.head.append(make("link", { rel: "stylesheet", href: "window/vendor/uplot.css" }),
      make("script", { src: "window/vendor/uplot.js", onload: () => resolve(window.uPlot), onerror: () => reject(new Error("uplot.js could not be loaded")) }));
  });
  return loaded;
}

const topOf = (most, chart) => {
  const step = stepFor(most, chart);
  return chart.top || step * Math.ceil(Math.max(most, chart.least || 1e-9) / step - 1e-9);
};

function labelsTo(top, chart) {
  const step = chart.top ? chart.top / MOST_STEPS : stepFor(top, chart);
  return Array.from({ length: Math.round(top / step) + 1 }, (_, number) => number * step);
}

export class Charts {
  constructor() {
    this.samples = null;
    this.plots = [];
    this.restarts = make("p", { class: "soft small" });
    this.since = make("p", { class: "soft" }, "No sample yet.");
    this.boxes = CHARTS.map(({ title, lines }) => {
      const values = lines.map(() => make("span", {})), plot = make("div", { role: "img", "aria-label": title + ": no sample yet" });
      const latest = lines.map(({ name, colour }, number) => make("span", {},
        name ? make("i", { class: "place swatch" + colour, "aria-hidden": "true" }) : null, name ? name + " " : null, values[number]));
      return { values, plot, element: make("div", { class: "chart" }, make("h3", {}, title), make("p", { class: "latest" }, ...latest), plot) };
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
    this.#saySince();
    this.#sayRestarts();
  }

  #build() {
    if (!this.uPlot) return;
    this.plots.forEach(plot => plot.destroy());
    const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    const axis = { stroke: colour("--soft"), grid: { stroke: colour("--free") }, ticks: { stroke: colour("--free") }, font: "11px system-ui" };
    this.plots = CHARTS.map((chart, number) => new this.uPlot({
      width: this.boxes[number].plot.clientWidth || 300, height: HEIGHT, legend: { show: false }, cursor: { y: false },
      scales: { y: { range: (_, __, most) => [0, topOf(most, chart) * 1.03] } },
      axes: [{ ...axis, space: 70, values: (_, times) => times.map(clock) },
        { ...axis, size: 58, values: (_, values) => values.map(chart.shown), splits: (_, __, ___, top) => labelsTo(top / 1.03, chart) }],
      series: [{}, ...chart.lines.map(({ column, colour: of }, place) => ({ stroke: colour(of), width: 1.5, dash: place ? DASH : undefined, label: column, spanGaps: true, points: { show: SPARSE.has(column), size: 4, fill: colour(of) } }))],
    }, this.#data(chart), this.boxes[number].plot));
    this.plots.forEach(plot => plot.root.setAttribute("aria-hidden", "true"));  // the box around it says it in words
  }

  #data({ lines }) { return [this.samples.time, ...lines.map(({ column }) => this.samples[column])]; }

  #draw(chart, number) {
    const { title, lines, shown } = chart, box = this.boxes[number];
    this.plots[number].setData(this.#data(chart));
    const said = lines.map(({ name, column }, place) => {
      const value = this.#latest(column, shown);
      box.values[place].textContent = value;
      return (name ? name + " " : "") + value;
    }).join(", ");
    const all = lines.flatMap(({ column }) => this.samples[column]).filter(value => value !== null);
    box.plot.setAttribute("aria-label", title + ", since " + clock(this.samples.time[0]) + ": latest " + said +
      (all.length ? ", at most " + shown(Math.max(...all)) : ""));
  }

  // Where values come only now and then, the last one stands with its time.
  #latest(column, shown) {
    const values = this.samples[column], last = values.findLastIndex(value => value !== null);
    if (last < 0) return SPARSE.has(column) ? "none yet" : "–";
    return shown(values[last]) + (SPARSE.has(column) ? ", at " + clock(this.samples.time[last]) : "");
  }

  #saySince() {
    const { time } = this.samples, passed = time[time.length - 1] - time[0];
    this.since.textContent = passed > HOUR_S - 2 * SAMPLE_S ? "A sample every " + SAMPLE_S + " s."
      : "Since " + clock(time[0]) + ", when the server started (" + duration(passed) + "). A sample every " + SAMPLE_S + " s.";
  }

  #sayRestarts() {
    const { time, deaths } = this.samples;
    const when = time.filter((_, i) => i > 0 && deaths[i] > deaths[i - 1]).map(clock);
    this.restarts.textContent = when.length ? "Engines were replaced: " + when.join(", ") : "No engine was replaced.";
  }
}
