// The chat: answers stream in, and each says what it cost and what the cache gave.
import {ApiError, postStream} from "./api.js";
import {byId, count, duration, element, percent, plural, rate, show, whyMissed} from "./words.js";

const kFinishes = {length: "ended at the token limit", stop: "", content_filter: "filtered", tool_calls: "tool call"};

// Text with ``` fences and `code` as elements; everything else stays text.
function rendered(text) {
  const parts = [];
  text.split(/^```([^\n]*)\n?/m).forEach((part, i) => {
    if (i % 2 === 1) return;  // the language behind a fence
    const inFence = (i / 2) % 2 === 1;
    if (inFence) { parts.push(element("pre", {}, element("code", {}, part.replace(/\n$/, "")))); return; }
    for (const paragraph of part.split(/\n{2,}/)) {
      if (!paragraph.trim()) continue;
      const made = element("p");
      paragraph.trim().split(/`([^`\n]+)`/).forEach((piece, j) => made.append(j % 2 === 1 ? element("code", {}, piece) : piece));
      parts.push(made);
    }
  });
  return parts;
}

// What the last chunk says, in words. `own`: what Quire adds to OpenAI's usage. `watch`: seconds as this page saw
// them.
function figures(usage, own, watch, finish) {
  const facts = [];
  const cached = usage?.prompt_tokens_details?.cached_tokens ?? 0;
  if (usage) {
    facts.push(["prompt", plural(usage.prompt_tokens, "prompt token")]);
    facts.push(["cached", `${count(cached)} cached (${percent(cached / Math.max(1, usage.prompt_tokens))})`]);
    const miss = own?.cache_miss;
    if (miss && miss !== "none") facts.push(["miss", `the rest: ${whyMissed(miss)}`]);
  }
  if (watch.first !== null) facts.push(["first", `first token after ${duration(watch.first)}`]);
  const tokens = usage?.completion_tokens ?? 0;
  if (tokens > 1 && watch.last > watch.first) facts.push(["rate", `${rate((tokens - 1) / (watch.last - watch.first))} tok/s`]);
  if (usage) facts.push(["tokens", plural(tokens, "token")]);
  if (kFinishes[finish] ?? finish) facts.push(["finish", kFinishes[finish] ?? finish]);
  return facts;
}

export class Chat {
  constructor() {
    this.model = "";
    this.turns = [];  // {role, content}
    this.abort = null;
    byId("composer").addEventListener("submit", (event) => { event.preventDefault(); this.abort ? this.stop() : this.send(); });
    byId("prompt").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); if (!this.abort) this.send(); }
    });
    byId("prompt").addEventListener("input", () => this.grow());
    byId("new-chat").addEventListener("click", () => this.clear());
    byId("settings-button").addEventListener("click", () => {
      const open = byId("settings").hidden;
      byId("settings").hidden = !open;
      byId("settings-button").setAttribute("aria-expanded", String(open));
    });
    byId("settings").addEventListener("submit", (event) => event.preventDefault());
    document.addEventListener("keydown", (event) => { if (event.key === "Escape" && this.abort) this.stop(); });
    this.showEmpty();
  }

  showEmpty() {
    byId("messages").replaceChildren(element("div", {class: "empty"},
      element("p", {}, "Ask the model something. Send the same start again and see how much of it comes from the cache.")));
  }

  clear() {
    this.stop();
    this.turns = [];
    this.showEmpty();
    byId("prompt").focus();
  }

  grow() {
    const area = byId("prompt");
    area.style.height = "auto";
    area.style.height = `${Math.min(area.scrollHeight + 2, 200)}px`;
  }

  stop() { this.abort?.abort(); }

  // What to ask, by the settings; an empty field is left to the model.
  question() {
    const body = {model: this.model, stream: true, stream_options: {include_usage: true}};
    for (const name of ["temperature", "top_p", "max_tokens", "seed"]) {
      const value = byId(name).value.trim();
      if (value !== "") body[name] = Number(value);
    }
    const system = byId("system").value.trim();
    if (byId("plain").checked) {
      body.prompt = this.turns.map((turn) => turn.content).join("");
      return {path: "/v1/completions", body};
    }
    body.messages = [...(system ? [{role: "system", content: system}] : []), ...this.turns];
    return {path: "/v1/chat/completions", body};
  }

  async send() {
    const text = byId("prompt").value;
    if (!text.trim()) return;
    byId("prompt").value = "";
    this.grow();
    if (this.turns.length === 0) byId("messages").replaceChildren();
    this.turns.push({role: "user", content: text});
    this.message("user").querySelector(".text").replaceChildren(...rendered(text));
    await this.answer();
  }

  message(role) {
    const made = element("article", {"data-role": role, "aria-label": role === "user" ? "You" : "Answer"},
      element("div", {class: "text"}), element("p", {class: "figures"}));
    byId("messages").append(made);
    this.follow(true);
    return made;
  }

  follow(always) {
    const box = byId("messages");
    if (always || box.scrollHeight - box.scrollTop - box.clientHeight < 80) box.scrollTop = box.scrollHeight;
  }

  async answer() {
    const {path, body} = this.question();
    const made = this.message("assistant");
    made.setAttribute("aria-busy", "true");
    made.classList.add("busy");
    this.abort = new AbortController();
    show(byId("send"), "Stop");
    show(byId("chat-state"), "The answer is on its way.");
    const begin = performance.now();
    const watch = {first: null, last: 0};
    let text = "", usage = null, own = null, finish = "", problem = null, drawn = false;
    const draw = () => {
      drawn = false;
      made.querySelector(".text").replaceChildren(...rendered(text));
      this.follow(false);
    };
    try {
      for await (const event of postStream(path, body, this.abort.signal)) {
        usage = event.usage ?? usage;
        own = event.quire?.[0] ?? own;
        const choice = event.choices?.[0];
        if (!choice) continue;
        finish = choice.finish_reason ?? finish;
        const piece = choice.delta?.content ?? choice.text ?? "";
        if (!piece) continue;
        watch.last = (performance.now() - begin) / 1000;
        watch.first ??= watch.last;
        text += piece;
        if (!drawn) { drawn = true; requestAnimationFrame(draw); }
      }
    } catch (error) {
      if (this.abort.signal.aborted) finish = "stopped by you"; else problem = error;
    }
    draw();
    this.finish(made, {text, usage, own, watch, finish, problem});
  }

  finish(made, {text, usage, own, watch, finish, problem}) {
    this.abort = null;
    show(byId("send"), "Send");
    made.classList.remove("busy");
    made.removeAttribute("aria-busy");
    const line = made.querySelector(".figures");
    line.replaceChildren(...figures(usage, own, watch, finish).map(([name, value]) => element("span", {"data-fact": name}, value)));
    if (problem) {
      const where = problem instanceof ApiError && problem.param ? ` (${problem.param})` : "";
      const again = element("button", {type: "button"}, "Try again");
      again.addEventListener("click", () => { made.remove(); this.answer(); });
      made.append(element("p", {class: "problem", role: "alert"}, `${problem.message}${where} `, again));
    }
    if (text) this.turns.push({role: "assistant", content: text});
    show(byId("chat-state"), problem ? "The answer failed." : `The answer: ${text}`);
    this.follow(false);
  }
}
