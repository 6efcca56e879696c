// The page map: one canvas per KV group, one cell per page, coloured by who has it. Points at a page with
// the mouse, a finger or the arrow keys; the card says what /v1/kv says of it.
import {byId, bytes, count, element, plural} from "./words.js";

export const kUses = ["free", "tree", "request", "shared", "reserved", "elsewhere"];
export const kUseNames = {
  free: "free", tree: "prefix cache", request: "one request", shared: "shared", reserved: "padding",
  elsewhere: "another group's",
};
const kMostHeight = 420;  // a map grows over it only with the smallest cells
const kLargest = 20, kSmallest = 3;  // pixels of a cell with its gap

const free = () => ({use: "free", references: 0, node: 0, requests: 0, ids: []});

class GroupMap {
  constructor(group, owner) {
    this.owner = owner;
    this.name = group.name;
    this.pages = [];
    this.at = -1;  // pointed at
    this.canvas = element("canvas", {tabindex: "0", role: "application", "data-group": group.name,
      "aria-label": `Pages of the group ${group.name}. Arrow keys go from page to page.`});
    this.context = this.canvas.getContext("2d", {alpha: false, willReadFrequently: true});
    this.facts = element("p", {class: "sub"});
    this.box = element("div", {class: "map"}, this.facts, this.canvas);
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerdown", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") this.leave(); });
    this.canvas.addEventListener("keydown", (event) => this.press(event));
    this.canvas.addEventListener("focus", () => { if (this.at < 0 && this.canvas.matches(":focus-visible")) this.choose(0); });
    this.canvas.addEventListener("blur", () => this.leave());
  }

  // `group` of /v1/kv; `whole`: pages that are not listed are free.
  update(group, whole) {
    const changed = [];
    if (whole || this.pages.length !== group.pages) {
      this.pages = Array.from({length: group.pages}, free);
      this.stale = true;
    }
    for (const [id, use, references, node, requests, ids] of group.page_list) {
      this.pages[id] = {use, references, node, requests, ids};
      changed.push(id);
    }
    this.facts.textContent = `Group ${group.name}: ${plural(group.pages, "page")} of ${plural(group.page_tokens, "token")}, ` +
      `${bytes(group.bytes_per_page)} each` +
      (group.keep === "all" ? "" : `; keeps a ${group.keep} of ${plural(group.width, "token")}`);
    if (this.stale) this.fit(); else for (const id of changed) this.paint(id);
    if (this.at >= 0) { this.outline(); this.owner.tell(this); }
  }

  fit() {
    const width = this.facts.clientWidth;
    if (width === 0 || this.pages.length === 0) return;
    this.stale = false;
    let cell = kLargest;
    const height = (size) => Math.ceil(this.pages.length / Math.floor(width / size)) * size;
    while (cell > kSmallest && height(cell) > kMostHeight) --cell;
    this.cell = cell;
    this.columns = Math.floor(width / cell);
    this.gap = cell >= 5 ? 1 : 0;
    const rows = Math.ceil(this.pages.length / this.columns);
    const ratio = Math.max(1, Math.round(window.devicePixelRatio));
    this.ratio = ratio;
    this.canvas.width = this.columns * cell * ratio;
    this.canvas.height = rows * cell * ratio;
    this.canvas.style.width = `${this.columns * cell}px`;
    this.canvas.style.height = `${rows * cell}px`;
    Object.assign(this.canvas.dataset, {cell, columns: this.columns, pages: this.pages.length});
    this.paintAll();
  }

  paintAll() {
    if (!this.cell) return;
    this.context.fillStyle = this.owner.colours.ground;
    this.context.fillRect(0, 0, this.canvas.width, this.canvas.height);
    for (let id = 0; id < this.pages.length; ++id) this.paint(id);
    if (this.at >= 0) this.outline();
  }

  paint(id) {
    const page = this.pages[id];
    const {context, cell, ratio} = this;
    const x = (id % this.columns) * cell * ratio, y = Math.floor(id / this.columns) * cell * ratio;
    context.fillStyle = this.owner.colours.ground;
    context.fillRect(x, y, cell * ratio, cell * ratio);
    const picked = this.owner.picked;
    context.globalAlpha = picked && !picked(page) ? 0.2 : 1;
    context.fillStyle = this.owner.colours[page.use];
    const size = (cell - this.gap) * ratio;
    context.fillRect(x, y, size, size);
    context.globalAlpha = 1;
  }

  outline() {
    const {context, cell, ratio, at} = this;
    const x = (at % this.columns) * cell * ratio, y = Math.floor(at / this.columns) * cell * ratio;
    context.strokeStyle = this.owner.colours.ink;
    context.lineWidth = ratio;
    const size = (cell - this.gap) * ratio;
    context.strokeRect(x + ratio / 2, y + ratio / 2, size - ratio, size - ratio);
  }

  point(event) {
    const column = Math.floor(event.offsetX / this.cell), row = Math.floor(event.offsetY / this.cell);
    const id = row * this.columns + column;
    if (column < 0 || column >= this.columns || row < 0 || id >= this.pages.length) return this.leave();
    this.choose(id, event);
  }

  press(event) {
    const rows = Math.max(1, Math.floor(this.pages.length / this.columns / 8));
    const moves = {ArrowLeft: -1, ArrowRight: 1, ArrowUp: -this.columns, ArrowDown: this.columns,
      PageUp: -rows * this.columns, PageDown: rows * this.columns, Home: -this.pages.length, End: this.pages.length};
    if (event.key === "Escape") return this.leave();
    if (!(event.key in moves) || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    const to = Math.max(0, this.at) + moves[event.key];
    const edge = event.key === "Home" || event.key === "End";
    if (edge || (to >= 0 && to < this.pages.length)) this.choose(Math.min(Math.max(to, 0), this.pages.length - 1));
  }

  choose(id, event) {
    if (this.at >= 0 && this.at !== id) this.paint(this.at);
    this.at = id;
    this.outline();
    this.owner.tell(this, event);
  }

  leave() {
    if (this.at >= 0) this.paint(this.at);
    this.at = -1;
    this.owner.hush(this);
  }
}

export class PageMaps {
  constructor() {
    this.groups = new Map();
    this.nodes = new Map();
    this.requests = new Map();
    this.version = 0;
    this.picked = null;
    this.readColours();
    new ResizeObserver(() => { for (const map of this.groups.values()) map.fit(); }).observe(byId("maps"));
  }

  readColours() {
    const style = getComputedStyle(document.documentElement);
    this.colours = Object.fromEntries(["ground", "ink", ...kUses].map(
      (name) => [name, style.getPropertyValue(`--page-${name}`).trim()]));
    for (const map of this.groups.values()) map.paintAll();
  }

  // An answer of /v1/kv.
  update(kv) {
    const whole = kv.since === 0;
    if (whole) {
      const names = kv.groups.map((group) => group.name);
      for (const [name, map] of this.groups) if (!names.includes(name)) { map.box.remove(); this.groups.delete(name); }
    }
    if (kv.tree.list) this.nodes = new Map(kv.tree.list.map((node) => [node.id, node]));
    this.requests = new Map(kv.requests.map((request) => [request.id, request]));
    this.version = kv.version;  // the card under the pointer is told again below
    for (const group of kv.groups) {
      if (!this.groups.has(group.name)) {
        const map = new GroupMap(group, this);
        this.groups.set(group.name, map);
        byId("maps").append(map.box);
      }
      this.groups.get(group.name).update(group, whole);
    }
    byId("maps").dataset.version = kv.version;
    this.showLegend(kv.groups);
  }

  showLegend(groups) {
    const legend = byId("legend");
    if (legend.children.length === 0) {
      for (const use of kUses) {
        legend.append(element("span", {"data-use": use}, element("i", {"aria-hidden": "true"}),
          `${kUseNames[use]} `, element("b", {}, "0")));
      }
    }
    for (const item of legend.children) {
      const pages = groups.reduce((sum, group) => sum + group.use[item.dataset.use], 0);
      item.lastElementChild.textContent = count(pages);
      item.hidden = item.dataset.use === "elsewhere" && pages === 0;
    }
  }

  // Dims every page but those for which `picked(page)` holds; null: none.
  pick(picked) {
    this.picked = picked;
    for (const map of this.groups.values()) map.paintAll();
  }

  describe(map) {
    const page = map.pages[map.at];
    const lines = [];
    if (page.requests > 0) {
      const named = page.ids.map((id) => {
        const request = this.requests.get(id);
        return request ? `${id} (${plural(request.prompt_tokens + request.output_tokens, "token")})` : `${id}, ending`;
      });
      if (page.requests > page.ids.length) named.push(`${count(page.requests - page.ids.length)} more`);
      lines.push([page.requests === 1 ? "Request" : "Requests", named.join(", ")]);
    }
    const node = this.nodes.get(page.node);
    if (page.node !== 0) {
      lines.push(["Node", node ? `${page.node}: tokens ${count(node.begin)} to ${count(node.begin + node.tokens)}, ` +
        `${plural(node.hits, "hit")}, ${node.locks > 0 ? `in use by ${node.locks}` : "may be evicted"}` : String(page.node)]);
    }
    if (page.use !== "reserved" && page.use !== "elsewhere") lines.push(["References", count(page.references)]);
    return lines;
  }

  tell(map, event) {
    const page = map.pages[map.at];
    const card = byId("card");
    const lines = this.describe(map);
    card.replaceChildren(
      element("p", {}, element("i", {"data-use": page.use}), element("b", {}, `Page ${map.at}`), ` of ${map.name}: ${kUseNames[page.use]}`),
      element("dl", {}, ...lines.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)])));
    Object.assign(card.dataset, {group: map.name, page: map.at, use: page.use, references: page.references,
      node: page.node, requests: page.requests, ids: page.ids.join(","), version: this.version});
    card.hidden = false;
    this.place(map, card, event);
    if (!event && document.activeElement === map.canvas) {
      byId("card-spoken").textContent = card.textContent;
    }
  }

  place(map, card, event) {
    const box = map.canvas.getBoundingClientRect();
    const x = box.left + (map.at % map.columns + 1) * map.cell, y = box.top + (Math.floor(map.at / map.columns) + 1) * map.cell;
    const narrow = window.innerWidth < 600;
    card.classList.toggle("docked", narrow);
    if (narrow) { card.style.left = card.style.top = ""; return; }
    card.style.left = `${Math.max(8, Math.min(x + 8, window.innerWidth - card.offsetWidth - 8))}px`;
    const below = y + 8 + card.offsetHeight < window.innerHeight;
    card.style.top = `${below ? y + 8 : Math.max(8, y - map.cell - 8 - card.offsetHeight)}px`;
    if (!event) map.canvas.scrollIntoView({block: "nearest"});
  }

  hush(map) {
    if (byId("card").dataset.group === map.name) byId("card").hidden = true;
  }
}
