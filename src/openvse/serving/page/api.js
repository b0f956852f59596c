// Requests to the server. Addresses are relative, so that a proxy may serve the page below a path.

export class Refusal extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function ask(path, options = {}) {
  let reply;
  try {
    reply = await fetch(path, { credentials: "same-origin", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal(0, "The server cannot be reached. It may have been stopped.");
  }
  const body = await reply.json().catch(() => ({}));
  if (!reply.ok) throw new Refusal(reply.status, sentence(body.error || `The server replied with status ${reply.status}.`));
  return body;
}

function sentence(text) {
  const whole = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?]$/.test(whole) ? whole : `${whole}.`;
}

function parameters(query, page) {
  const all = new URLSearchParams();
  if (query.q) all.set("text", query.q);
  if (query.like !== null) all.set("like", query.like);
  if (query.image) all.set("image", query.image);
  for (const each of query.avoid) all.append("avoid", each);
  for (const each of query.where) all.append("where", each);
  if (query.scenes) all.set("one_per", "scene");
  if (query.least !== null) all.set("min_score", query.least);
  if (query.q && (query.image || query.like !== null)) all.set("image_weight", query.weight);
  for (const [name, value] of Object.entries(page)) all.set(name, value);
  return all;
}

export const search = (query, page, signal) => ask(`api/search?${parameters(query, page)}`, { signal });

// The server keeps an image for later searches, makes a picture of it that every browser shows, and returns its name.
export async function keep(file, signal) {
  const form = new FormData();
  form.set("image", file, "query");
  return (await ask("api/images", { method: "POST", body: form, signal })).image;
}

const json = (body) => ({ method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });

export const info = () => ask("api/info");
export const item = (key, signal) => ask(`api/items/${key}`, { signal });
export const looked = (key, q, signal) => ask(`api/items/${key}/looked?${new URLSearchParams({ q })}`, { signal });
export const question = (key, text, signal) => ask(`api/items/${key}/ask`, { ...json({ question: text }), signal });
export const teachNext = (passed) => ask(`api/teach?${new URLSearchParams(passed.map((key) => ["passed", key]))}`);
export const teach = (key, captions) => ask(`api/items/${key}/captions`, json({ captions }));
export const train = () => ask("api/teach/train", { method: "POST" });
export const undo = () => ask("api/teach/undo", { method: "POST" });
export const judged = (text) => ask(`api/judgements?${new URLSearchParams({ text })}`);
export const judge = (said) => ask("api/judgements", json(said));
export const enter = (token) => ask("session", json({ token }));
export const address = (path) => path.replace(/^\//, "");
