// Elements, numbers and names as people read them.

// element("td", {class: "n"}, "text", child): children are text or nodes, never markup.
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

export const byId = (id) => document.getElementById(id);

const whole = new Intl.NumberFormat("en");
export const count = (value) => whole.format(Math.round(value));
export const plural = (value, one, many = `${one}s`) => `${count(value)} ${value === 1 ? one : many}`;
export const percent = (share) => `${(100 * share).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`;

export function bytes(value) {
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) { value /= 1024; ++unit; }
  return `${unit === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${units[unit]}`;
}

export function duration(seconds) {
  if (seconds < 0.9995) return `${Math.round(1000 * seconds)} ms`;
  if (seconds < 100) return `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
  const minutes = Math.floor(seconds / 60);
  return minutes < 60 ? `${minutes} min ${Math.floor(seconds % 60)} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export function rate(perSecond) {
  return perSecond >= 100 ? count(perSecond) : perSecond.toFixed(1);
}

const kMisses = {
  none: "all that may be cached was",
  off: "the prefix cache is off",
  no_prefix: "nothing like it was seen before",
  evicted: "it was evicted to make room",
  other_namespace: "only another cache salt has it",
  window_gone: "its window had left the cache",
  below_copy_limit: "too few tokens to be worth a copy",
};
// "evicted at 17 for growth" and the like: the reason is the first word.
export const whyMissed = (reason) => kMisses[String(reason).split(" ")[0]] ?? String(reason);

// Replaces what `parent` shows only where it differs, so that selections and focus survive.
export function show(parent, text) {
  if (parent.textContent !== text) parent.textContent = text;
}
