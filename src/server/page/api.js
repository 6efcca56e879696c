// Talking to the server that this page came from: JSON, and streams of server-sent events.

let key = sessionStorage.getItem("quire-key") ?? "";
let onKeyWanted = () => {};

export class ApiError extends Error {
  constructor(status, body) {
    const error = body?.error ?? {};
    super(error.message ?? `The server answered with status ${status}.`);
    this.status = status;
    this.param = error.param ?? null;
  }
}

export function useKey(value) {
  key = value;
  sessionStorage.setItem("quire-key", value);
}
export const hasKey = () => key !== "";
export function whenKeyIsWanted(callback) { onKeyWanted = callback; }

async function ask(path, options = {}) {
  const headers = {...options.headers};
  if (key) headers.authorization = `Bearer ${key}`;
  const response = await fetch(path, {...options, headers, cache: "no-store"});
  if (response.ok) return response;
  if (response.status === 401) onKeyWanted();
  throw new ApiError(response.status, await response.json().catch(() => null));
}

export async function getJson(path, signal) {
  return (await ask(path, {signal})).json();
}

// Yields the JSON of every event up to [DONE]. An event with an error ends it with that error.
export async function* postStream(path, body, signal) {
  const response = await ask(path, {
    method: "POST", headers: {"content-type": "application/json"}, body: JSON.stringify(body), signal,
  });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const {value, done} = await reader.read();
    if (done) throw new Error("The stream ended before the answer was complete.");
    rest += value;
    const events = rest.split(/\r?\n\r?\n/);
    rest = events.pop();
    for (const event of events) {
      const data = event.split(/\r?\n/).filter((line) => line.startsWith("data:"))
        .map((line) => line.slice(5).trimStart()).join("\n");
      if (!data) continue;
      if (data === "[DONE]") return;
      const json = JSON.parse(data);
      if (json.error) throw new ApiError(response.status, json);
      yield json;
    }
  }
}
