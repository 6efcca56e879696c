// Puts the page together: asks /v1/kv for what changed, twice a second while anybody looks.
import {ApiError, getJson, hasKey, useKey, whenKeyIsWanted} from "./api.js";
import {Charts} from "./charts.js";
import {Chat} from "./chat.js";
import {PageMaps} from "./map.js";
import {Panels, showBackends} from "./panels.js";
import {byId, count, percent, rate, show} from "./words.js";

const kPause = 500, kPauseAfterError = 2000;

// ---- colours ---------------------------------------------------------------------------------------------

const kThemes = ["auto", "light", "dark"];

function setTheme(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme; else document.documentElement.dataset.theme = theme;
  localStorage.setItem("quire-theme", theme);
  byId("theme").textContent = `Theme: ${theme}`;
  byId("theme").setAttribute("aria-label", `Colours: ${theme === "auto" ? "as the system says" : theme}`);
}

setTheme(kThemes.includes(localStorage.getItem("quire-theme")) ? localStorage.getItem("quire-theme") : "auto");
const maps = new PageMaps();
byId("theme").addEventListener("click", () => {
  setTheme(kThemes[(kThemes.indexOf(document.documentElement.dataset.theme ?? "auto") + 1) % kThemes.length]);
  maps.readColours();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => maps.readColours());

// ---- parts -----------------------------------------------------------------------------------------------

const panels = new Panels(maps);
const chat = new Chat();
const charts = new Charts(byId("charts"), [
  {title: "Tokens per second", least: 10, write: rate, series: [
    {name: "answers", colour: "c-request", of: (s) => s.output}, {name: "prompts computed", colour: "c-shared", of: (s) => s.prompt}]},
  {title: "Found in the prefix cache", most: 1, write: percent, series: [{name: "of prompt tokens", colour: "c-tree", of: (s) => s.hit_held}]},
  {title: "Requests", least: 4, write: count, series: [
    {name: "running", colour: "c-request", of: (s) => s.running}, {name: "waiting", colour: "c-shared", of: (s) => s.waiting}]},
  {title: "KV memory", most: 1, write: percent, series: [
    {name: "held by requests", colour: "c-request", of: (s) => s.held}, {name: "in use with the cache", colour: "c-tree", of: (s) => s.used}]},
]);

function status(state, text) {
  byId("status").dataset.state = state;
  show(byId("status-text"), text);
}

function showKv(kv) {
  chat.model = kv.model;
  show(byId("model"), kv.model);
  show(byId("facts"), `${kv.architecture} on ${kv.device}, context ${count(kv.max_context)} tokens, KV cache ${count(kv.kv_capacity_tokens)} tokens`);
  document.title = `${kv.model} · Quire`;
  maps.update(kv);
  panels.update(kv);
  charts.add({...kv.stats, running: kv.queue.running, waiting: kv.queue.waiting, time: kv.time});
  const busy = kv.queue.running + kv.queue.waiting;
  status("live", busy === 0 ? "idle" : `${count(kv.queue.running)} running${kv.queue.waiting ? `, ${count(kv.queue.waiting)} waiting` : ""}`);
}

// ---- the loop --------------------------------------------------------------------------------------------

let since = 0, wake = () => {}, backends = false;
const pause = (ms) => new Promise((resolve) => { const timer = setTimeout(resolve, ms); wake = () => { clearTimeout(timer); resolve(); }; });

async function look() {
  const kv = await getJson(`/v1/kv?since=${since}`);
  if (since === 0) charts.start(kv.history ?? []);
  showKv(kv);
  since = kv.version;
  if (backends) return;
  await showBackends();
  backends = true;
}

document.addEventListener("visibilitychange", () => wake());
whenKeyIsWanted(() => {
  byId("key-button").hidden = false;
  if (!byId("key-dialog").open && !hasKey()) byId("key-dialog").showModal();
});
byId("key-button").addEventListener("click", () => byId("key-dialog").showModal());
byId("key-cancel").addEventListener("click", () => byId("key-dialog").close());
byId("key-dialog").addEventListener("close", () => {
  if (byId("key-dialog").returnValue === "use") useKey(byId("key").value.trim());
  byId("key").value = "";
  wake();
});

for (;;) {
  let next = kPause;
  try {
    if (!document.hidden) await look();
  } catch (error) {
    since = 0;
    next = kPauseAfterError;
    status("lost", error instanceof ApiError ? error.message : "no connection to the server");
  }
  await pause(next);
}
