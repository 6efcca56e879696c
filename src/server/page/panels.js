// The tables and bars beside the map: requests, prefix cache, memory, backends.
import {getJson} from "./api.js";
import {byId, bytes, count, duration, element, percent, plural, show, whyMissed} from "./words.js";

const kNodesShown = 12;

function bar(name, value, most, text, kind = "") {
  const fill = element("i", {class: kind});
  fill.style.width = `${most > 0 ? Math.max(value > 0 ? 0.5 : 0, 100 * value / most) : 0}%`;
  return element("div", {class: "bar"}, element("span", {}, name), element("b", {}, text), element("div", {class: "track", "aria-hidden": "true"}, fill));
}

// Rows of a table that stay the same elements while their request or node lives, so that the pointer and the
// focus stay where they are.
function showRows(body, rows, pick) {
  const old = new Map([...body.children].map((row) => [row.dataset.id, row]));
  const wanted = rows.map(({id, cells}) => {
    const row = old.get(String(id)) ?? element("tr", {"data-id": id, tabindex: "0"}, ...cells.map((cell) => element("td", cell.class ? {class: cell.class} : {})));
    cells.forEach((cell, i) => show(row.children[i], cell.text));
    return row;
  });
  if (wanted.length !== body.children.length || wanted.some((row, i) => row !== body.children[i])) {
    const focused = wanted.find((row) => row === document.activeElement);
    body.replaceChildren(...wanted);
    focused?.focus({preventScroll: true});
  }
  body.dataset.bound ??= (bindPick(body, pick), "yes");
}

// Pointing at a row (or going to it by keyboard) shows its pages in the map.
function bindPick(body, pick) {
  let shown = null;
  const over = (event) => {
    const row = event.target.closest("tr");
    if (row && row.dataset.id !== shown) pick(Number(shown = row.dataset.id));
  };
  const out = () => { if (shown !== null) pick(shown = null); };
  body.addEventListener("pointerover", over);
  body.addEventListener("pointerleave", out);
  body.addEventListener("focusin", over);
  body.addEventListener("focusout", out);
}

export class Panels {
  constructor(maps) {
    this.maps = maps;
    this.ledger = "";
  }

  update(kv) {
    this.showRequests(kv);
    this.showCache(kv);
    this.showLedger(kv);
  }

  showRequests(kv) {
    const {queue, requests} = kv;
    show(byId("queue"), `${count(queue.running)} of ${count(queue.max_running)} places taken, ${plural(queue.waiting, "request")} waiting` +
      (queue.room === 0 ? ", the queue is full" : "") + (requests.length > 0 ? "; prompt, cached and answer in tokens" : ""));
    const text = (value, kind = "n") => ({text: value, class: kind});
    const rows = requests.map((request) => ({id: request.id, cells: [
      text(String(request.id), ""), text(request.state, ""), text(count(request.prompt_tokens)),
      text(request.state === "running" ? count(request.cached_tokens) : "–"), text(count(request.output_tokens)), text(duration(request.age_s))]}));
    showRows(byId("request-rows"), rows, (id) => this.maps.pick(id === null ? null : (page) => page.ids.includes(id)));
    byId("requests").classList.toggle("none", rows.length === 0);
    byId("requests").dataset.none = "Nothing runs or waits.";
  }

  showCache(kv) {
    const {stats, tree} = kv;
    const share = stats.looked_up_tokens > 0 ? percent(stats.cached_tokens / stats.looked_up_tokens) : "–";
    show(byId("tree-facts"), `${share} of ${plural(stats.looked_up_tokens, "prompt token")} found; holds ${plural(tree.tokens, "token")} in ` +
      `${plural(tree.nodes, "stretch", "stretches")}; ${plural(tree.evicted_pages, "page")} evicted so far`);
    const misses = Object.entries(kv.why_miss).filter(([, requests]) => requests > 0).sort((a, b) => b[1] - a[1]);
    const most = Math.max(...misses.map(([, requests]) => requests), 1);
    byId("misses").replaceChildren(...misses.map(([reason, requests]) =>
      bar(whyMissed(reason), requests, most, plural(requests, "request"), reason === "none" ? "good" : "")));
    byId("misses").classList.toggle("none", misses.length === 0);
    byId("misses").dataset.none = "No request yet.";
    if (!tree.list) return;
    const nodes = [...tree.list].sort((a, b) => b.locks - a.locks || b.hits - a.hits || a.id - b.id).slice(0, kNodesShown);
    const cell = (value) => ({text: value, class: "n"});
    showRows(byId("node-rows"), nodes.map((node) => ({id: node.id, cells: [
      cell(String(node.id)), {text: `${count(node.begin)} to ${count(node.begin + node.tokens)}`}, cell(count(node.pages)), cell(count(node.hits)), cell(count(node.locks))]})),
    (id) => this.maps.pick(id === null ? null : (page) => page.node === id));
  }

  showLedger(kv) {
    const text = JSON.stringify(kv.ledger);
    if (text === this.ledger) return;
    this.ledger = text;
    const lines = [...kv.ledger].sort((a, b) => b.bytes - a.bytes);
    const sum = (kind) => lines.filter((line) => line.kind === kind).reduce((all, line) => all + line.bytes, 0);
    show(byId("ledger-facts"), `${bytes(sum("private"))} of its own` + (sum("mapped") ? `, ${bytes(sum("mapped"))} of mapped files` : "") +
      (sum("host") ? `, ${bytes(sum("host"))} of host memory` : "") + "; every byte has an owner before the first token");
    const most = lines[0]?.bytes ?? 1;
    byId("ledger").replaceChildren(...lines.map((line) => bar(line.owner, line.bytes, most, bytes(line.bytes), line.kind)));
  }
}

const kFeatures = {page_size_gt_1: "pages over 1 token", chunked: "prompt chunks", speculation: "speculation", mla: "MLA",
  multimodal: "multimodal", fp8_kv: "fp8 KV"};

// Every row with what it can do, and why it cannot run here if it cannot.
function backendTable(rows) {
  const features = Object.keys(kFeatures).filter((name) => rows.some((row) => name in row.features));
  const head = element("tr", {}, element("th", {}, "Row"), ...features.map((name) => element("th", {class: "c"}, kFeatures[name])),
    element("th", {}, "Determinism"), element("th", {}, "What it is"));
  const body = rows.map((row) => element("tr", {}, element("td", {}, element("code", {}, row.name)),
    ...features.map((name) => element("td", {class: "c"}, row.features[name] ? "✓" : "–")),
    element("td", {}, row.determinism.replaceAll("_", " ")),
    element("td", {}, row.description, row.available ? "" : element("span", {class: "sub"}, ` Not here: ${row.why_not}`))));
  return element("table", {}, element("thead", {}, head), element("tbody", {}, ...body));
}

// The backend of every attention call, and why each other row of the table was not taken.
export async function showBackends() {
  const report = await getJson("/v1/backends");
  const about = new Map(report.rows.map((row) => [row.name, row]));
  show(byId("backend-facts"), `${report.platform}, ${report.device}; pages of ${report.page_size.value} tokens: ${report.page_size.because}; ` +
    `determinism: ${report.determinism}`);
  byId("backend-rows").replaceChildren(backendTable(report.rows));
  byId("backend-calls").replaceChildren(...report.calls.map((call) => {
    const chosen = about.get(call.choice);
    const refused = call.refused.map((refusal) => element("tr", {}, element("td", {}, element("code", {}, refusal.row)),
      element("td", {}, refusal.reason), element("td", {}, refusal.fix)));
    // Rows behind the choice were not looked at: the table is in order of preference.
    const asked = new Set([call.choice, ...call.refused.map((refusal) => refusal.row)]);
    const behind = report.rows.filter((row) => !asked.has(row.name)).map((row) => row.name);
    return element("details", {},
      element("summary", {}, element("span", {}, call.call), element("code", {}, call.choice), element("span", {class: "sub"}, `${plural(call.layers.length ?? call.layers, "layer")}`)),
      element("p", {}, chosen?.description ?? ""),
      refused.length ? element("div", {class: "scroll"}, element("table", {}, element("thead", {}, element("tr", {}, element("th", {}, "Not taken"), element("th", {}, "Because"), element("th", {}, "It would be with"))),
        element("tbody", {}, ...refused))) : element("p", {class: "sub"}, "It is the first row of the table that can do this call."),
      behind.length ? element("p", {class: "sub"}, `Behind it in the table, so not asked: ${behind.join(", ")}.`) : "");
  }));
}
