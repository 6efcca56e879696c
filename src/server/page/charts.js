// Small line charts of the last minutes, drawn as SVG. Every series of a chart shares its scale.
import {element} from "./words.js";

const kSeconds = 300;
const kHeight = 96, kBottom = 14, kTop = 6;

function svg(tag, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

// The next of 1, 2, 5, 10, 20, ... from `value` up.
function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].find((step) => step * power >= value * 0.999) * power;
}

class Chart {
  // series: [{name, colour (a CSS class), of(sample)}]; `most` fixes the top of the scale; write(value).
  constructor({title, series, most, least, write}) {
    Object.assign(this, {series, most, least, write});
    this.legend = element("p", {class: "legend"});
    for (const one of series)
      this.legend.append(element("span", {class: one.colour}, element("i", {"aria-hidden": "true"}), `${one.name} `, element("b", {}, "–")));
    this.svg = svg("svg", {role: "img", "aria-label": `${title}, the last ${kSeconds / 60} minutes`});
    this.box = element("figure", {}, element("figcaption", {}, title), this.legend, this.svg);
    this.at = null;  // seconds before now that are pointed at
    this.svg.addEventListener("pointermove", (event) => { this.at = (1 - event.offsetX / this.svg.clientWidth) * kSeconds; this.draw(); });
    this.svg.addEventListener("pointerleave", () => { this.at = null; this.draw(); });
  }

  draw(samples = this.samples) {
    this.samples = samples;
    if (!samples || samples.length === 0) return;
    const width = this.svg.clientWidth || 240, now = samples[samples.length - 1].t;
    const x = (t) => width * (1 - (now - t) / kSeconds);
    const values = this.series.map((one) => samples.map(one.of));
    const highest = Math.max(...values.flat().filter((value) => value !== null), 0);
    const top = this.most ?? roundUp(Math.max(highest, this.least ?? 1));
    const y = (value) => kTop + (kHeight - kTop - kBottom) * (1 - value / top);
    this.svg.setAttribute("viewBox", `0 0 ${width} ${kHeight}`);
    const drawn = [];
    for (const part of [1, 0.5, 0]) {
      drawn.push(svg("line", {x1: 0, x2: width, y1: y(top * part), y2: y(top * part), class: "grid"}));
    }
    this.series.forEach((one, s) => {
      let path = "", open = false;
      values[s].forEach((value, i) => {
        if (value === null) { open = false; return; }
        path += `${open ? "L" : "M"}${x(samples[i].t).toFixed(1)},${y(value).toFixed(1)}`;
        open = true;
      });
      drawn.push(svg("path", {d: path, class: `line ${one.colour}`}));
    });
    const label = (text, at, anchor, line) => {
      const made = svg("text", {x: at, y: line, "text-anchor": anchor});
      made.textContent = text;
      drawn.push(made);
    };
    label(this.write(top), 2, "start", y(top) + 10);
    label(`${kSeconds / 60} min ago`, 2, "start", kHeight - 2);
    label("now", width - 2, "end", kHeight - 2);
    let shown = samples.length - 1;
    if (this.at !== null) {
      const wanted = now - this.at;
      shown = samples.reduce((best, sample, i) => Math.abs(sample.t - wanted) < Math.abs(samples[best].t - wanted) ? i : best, 0);
      const line = x(samples[shown].t);
      drawn.push(svg("line", {x1: line, x2: line, y1: kTop, y2: kHeight - kBottom, class: "cursor"}));
    }
    this.svg.replaceChildren(...drawn);
    [...this.legend.children].forEach((item, s) => {
      const value = values[s][shown];
      item.lastElementChild.textContent = value === null ? "–" : this.write(value);
    });
  }
}

// Samples of counters into rates between them.
export class Charts {
  constructor(parent, charts) {
    this.samples = [];
    this.before = null;
    this.charts = charts.map((chart) => new Chart(chart));
    parent.append(...this.charts.map((chart) => chart.box));
    new ResizeObserver(() => this.draw()).observe(parent);
  }

  // The history that the server kept: [{time, ...counters}], oldest first.
  start(history) {
    if (this.samples.length > 0) return;
    for (const counters of history) this.add(counters, false);
    this.draw();
  }

  add(counters, draw = true) {
    const before = this.before;
    if (before && counters.time - before.time < 0.4) return;
    this.before = counters;
    // A server that was started anew counts from zero again.
    if (!before || counters.output_tokens < before.output_tokens || counters.time <= before.time) return;
    const seconds = counters.time - before.time;
    const grown = (name) => counters[name] - before[name];
    const looked = grown("looked_up_tokens");
    this.samples.push({
      t: counters.time,
      output: grown("output_tokens") / seconds,
      prompt: grown("prompt_tokens") / seconds,
      hit: looked > 0 ? grown("cached_tokens") / looked : null,
      running: counters.running, waiting: counters.waiting,
      held: counters.kv_held, used: counters.kv_used,
    });
    while (this.samples[0].t < counters.time - kSeconds) this.samples.shift();
    if (draw) this.draw();
  }

  // The share of looked-up tokens that were cached: a line over moments without lookups holds the last one.
  draw() {
    let last = null;
    for (const sample of this.samples) {
      if (sample.hit !== null) last = sample.hit;
      sample.hit_held = last;
    }
    for (const chart of this.charts) chart.draw(this.samples);
  }
}
