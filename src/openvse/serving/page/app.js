// The page: what is asked, what is shown, and how the keys, the address and dropped images lead from one to the other.

import * as api from "./api.js";
import { Grid } from "./grid.js";
import { Panel } from "./panel.js";
import { Tools } from "./tools.js";
import { count, make } from "./words.js";

const by = (id) => document.getElementById(id);
const PAGE = 48;
const SLOW_MS = 1500;
const QUERY_PX = 800;
const FALLBACK = ["a dog on a beach", "people at a table", "a red car in the snow", "children playing outside"];

const query = { q: "", image: null, like: null, likeThumbnail: "", avoid: [], where: [], least: null, weight: 0.5, again: false, scenes: false };
let info = { answer: null, rerank: null };
let running = null;
let more = false;
let open = null;
let asked = "";
let judging = null;

const grid = new Grid(by("grid"), { onOpen: (place) => (open === place ? closePanel() : openPanel(place)), onMore: nextPage, under: (hit) => judging?.under(hit) ?? [] });
const panel = new Panel({ onClose: closePanel, onSimilar: similar, onStep: step });
const tools = new Tools(query, () => { remember(true); run(); });

const isAsked = () => Boolean(query.q || query.image || query.like !== null);

// What is asked, and what comes back.

async function run() {
  running?.abort();
  running = new AbortController();
  const { signal } = running;
  asked = location.search;
  closePanel();
  tools.show();
  showChip();
  for (const id of ["trouble", "nothing"]) by(id).hidden = true;
  document.documentElement.classList.toggle("is-asked", isAsked());
  by("tools").hidden = by("heading").hidden = !isAsked();
  by("hero").hidden = isAsked();
  document.title = query.q ? `${query.q} · ${info.title || "openvse"}` : info.title || "openvse";
  if (!isAsked()) {
    grid.clear();
    say("");
    by("learned").hidden = true;
    return;
  }
  by("heading").textContent = `Images for ${query.q || "an image"}`;
  grid.ghosts();
  say("Searching …");
  const slow = setTimeout(() => say("Still searching. The server is busy, or this is its first question …"), SLOW_MS);
  try {
    await judging?.begin(query.image || query.like !== null || query.avoid.length ? "" : query.q);
    const page = await api.search(query, { top_k: PAGE }, signal);
    if (signal.aborted) return;
    clearTimeout(slow);
    showPage(page);
    if (query.again && info.rerank && page.hits.length && !by("again").disabled) await rankAgain(page, signal);
  } catch (error) {
    if (error.name !== "AbortError") trouble(error);
  } finally {
    clearTimeout(slow);
  }
}

function showPage(page) {
  tools.learn(page);
  grid.show(page.hits);
  more = page.more;
  const found = new Set(page.hits.flatMap((hit) => hit.matched)); // by their words, which the model need not know
  const unknown = page.unknown_words.filter((each) => !found.has(each.word)).map((each) => `“${each.word}”`);
  const note = unknown.length ? ` The model does not know ${unknown.join(", ")}.` : "";
  by("nothing").hidden = page.hits.length > 0;
  if (!page.hits.length) {
    const limited = query.where.length || query.least !== null;
    by("nothing-text").textContent = limited ? "No image passes these filters and limits." : "The index holds no image yet.";
    by("loosen").hidden = !limited;
    say("");
  } else {
    say(`Best of ${count(page.searched)} image${page.searched === 1 ? "" : "s"}.${note}${info.shows ? "" : " Their files are not on the server, so only their names are shown."}`);
  }
}

async function rankAgain(page, signal) {
  say(`The second model looks at the first ${Math.min(info.rerank_top, page.hits.length)} …`);
  // The limits of the query are of the scores of the first model, so what is shown stays, in another order.
  const shown = new Set(page.hits.map((hit) => hit.key));
  const again = await api.search({ ...query, least: null }, { top_k: PAGE, rerank: true }, signal);
  if (signal.aborted) return;
  const hits = again.hits.filter((hit) => shown.has(hit.key));
  grid.show(hits);
  const moved = hits.filter((hit) => hit.was !== null && hit.was !== hit.rank).length;
  say(`Best of ${count(page.searched)} images. ${info.rerank} moved ${moved} of the first ${Math.min(info.rerank_top, page.hits.length)}.`);
}

async function nextPage() {
  if (!more || !grid.hits.length || grid.hits.length >= 10_000) return;
  more = false;
  const { signal } = running;
  try {
    const page = await api.search(query, { top_k: PAGE, skip: grid.hits.length }, signal);
    if (signal.aborted) return;
    grid.add(page.hits);
    more = page.more;
  } catch (error) {
    if (error.name !== "AbortError") say(`${error.message} Scroll to try again.`);
    more = error.status === 429 || error.status === 503;
  }
}

function say(text) {
  by("status").textContent = text;
}

by("chip-image").addEventListener("error", () => { by("chip-image").hidden = true; });
by("chip-image").addEventListener("load", () => { by("chip-image").hidden = false; });

function trouble(error) {
  if (error.status === 401) {
    login();
    return;
  }
  grid.clear();
  say("");
  by("trouble-text").textContent = error.message;
  by("trouble").hidden = false;
}

// The panel.

function openPanel(place) {
  const covers = matchMedia("(max-width: 60rem)").matches;
  if (covers && open === null) history.pushState({ panel: true }, "");  // so that Back closes it
  open = place;
  panel.open(grid.hits[place], query, { answers: Boolean(info.answer), looks: info.looks, shows: info.shows, isFirst: place === 0, isLast: place === grid.hits.length - 1 });
  grid.mark(place);
  if (covers) by("close").focus();
}

function closePanel() {
  if (open === null) return;
  const place = open;
  const held = by("panel").contains(document.activeElement);
  open = null;
  panel.close();
  grid.mark(null);
  if (held || document.activeElement === document.body) grid.focus(place);
  if (history.state?.panel) history.back();
}

// What the model looked at, of an image that may not be open yet.
function look(place) {
  if (!query.q) say("The model looks at an image with words in mind: search with words.");
  const wasOpen = open !== null;
  if (!wasOpen) openPanel(place);
  if (wasOpen || !panel.looks) panel.toggleLook();
}

function step(by_) {
  const place = open + by_;
  if (open === null || place < 0 || place >= grid.hits.length) return;
  const focused = document.activeElement?.classList.contains("card");
  openPanel(place);
  if (focused) grid.focus(place);
}

function similar(hit) {
  Object.assign(query, { q: "", image: null, like: hit.key, likeThumbnail: hit.thumbnail, least: null });
  by("q").value = "";
  remember(true);
  run();
  scrollTo({ top: 0 });
  by("results").focus({ preventScroll: true });
}

// An image as the query.

async function useImage(file) {
  if (!file) return;
  if (file.type && !file.type.startsWith("image/")) {
    say("Only images can be searched with.");
    return;
  }
  if (!info.images) {
    say("The model of this index cannot read images, so it is searched with words.");
    return;
  }
  running?.abort();
  running = new AbortController();
  const { signal } = running;
  say("Sending the image …");
  try {
    const image = await api.keep(await smaller(file), signal);
    if (signal.aborted) return;
    Object.assign(query, { image, like: null, least: null });
    remember(true);
    run();
  } catch (error) {
    if (error.name !== "AbortError") trouble(error);
  }
}

// A large photo is sent as a small one, which the model would make of it anyway; what cannot be drawn is sent as it is.
async function smaller(file) {
  try {
    const drawn = await createImageBitmap(file);
    const scale = Math.min(1, QUERY_PX / Math.max(drawn.width, drawn.height));
    if (scale === 1 && file.size < 500_000) return file;
    const canvas = make("canvas", { width: Math.round(drawn.width * scale), height: Math.round(drawn.height * scale) });
    const pen = canvas.getContext("2d");
    Object.assign(pen, { fillStyle: "#fff", imageSmoothingQuality: "high" });
    pen.fillRect(0, 0, canvas.width, canvas.height);  // what is transparent is white, as on the server
    pen.drawImage(drawn, 0, 0, canvas.width, canvas.height);
    return await new Promise((done) => canvas.toBlob((made) => done(made || file), "image/jpeg", 0.92));
  } catch {
    return file;
  }
}

function showChip() {
  const { image, like } = query;
  by("chip").hidden = !image && like === null;
  if (image) by("chip-image").src = `api/images/${image}`;
  else if (like !== null) by("chip-image").src = api.address(query.likeThumbnail || `api/items/${like}/thumbnail`);
  by("chip-image").alt = image ? "The image that is searched with" : "The image whose likes are searched";
  by("q").placeholder = by("chip").hidden ? "Describe an image, or give a name" : "Add words";
}

// The address remembers what was asked, so that the browser's buttons work.

function remember(anew) {
  const all = new URLSearchParams();
  if (query.q) all.set("q", query.q);
  if (query.like !== null) all.set("like", query.like);
  if (query.image) all.set("image", query.image);
  if (query.weight !== 0.5 && (query.image || query.like !== null)) all.set("weight", query.weight);
  for (const kind of ["avoid", "where"]) for (const each of query[kind]) all.append(kind, each);
  if (query.least !== null) all.set("least", query.least);
  if (query.again) all.set("again", "1");
  if (query.scenes) all.set("scenes", "1");
  const place = `${location.pathname}${all.size ? `?${all}` : ""}`;
  if (anew && place !== `${location.pathname}${location.search}`) history.pushState(null, "", place);
}

function recall() {
  const all = new URLSearchParams(location.search);
  const like = all.get("like"), image = all.get("image");
  const number = (name, otherwise) => (all.get(name) && Number.isFinite(Number(all.get(name))) ? Number(all.get(name)) : otherwise);
  Object.assign(query, {
    q: all.get("q") || "", image: /^[0-9a-f]{32}$/.test(image || "") ? image : null, like: /^\d+$/.test(like || "") ? Number(like) : null, likeThumbnail: "",
    avoid: all.getAll("avoid"), where: all.getAll("where"), least: number("least", null), weight: number("weight", 0.5), again: all.has("again"), scenes: all.has("scenes"),
  });
  by("q").value = query.q;
}

// Keys, forms, and dropped and pasted images.

by("search").addEventListener("submit", (event) => {
  event.preventDefault();
  Object.assign(query, { q: by("q").value.trim(), least: null });
  remember(true);
  run();
  if (isAsked()) by("results").focus({ preventScroll: true });
});
by("chip-remove").addEventListener("click", () => {
  Object.assign(query, { image: null, like: null, least: null });
  remember(true);
  run();
  by("q").focus();
});
by("pick").addEventListener("click", () => by("file").click());
by("file").addEventListener("change", () => {
  if (by("file").files[0]) useImage(by("file").files[0]);
  by("file").value = "";
});
by("retry").addEventListener("click", () => run());
by("loosen").addEventListener("click", () => {
  Object.assign(query, { where: [], least: null });
  remember(true);
  run();
});
by("help").addEventListener("click", () => by("keys").showModal());
by("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  try { localStorage.setItem("openvse-theme", root.dataset.theme); } catch { /* a browser may refuse storage */ }
});

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName) && event.target.type !== "checkbox" && event.target.type !== "range";
  if (event.key === "Escape") {
    if (open !== null) closePanel();
    else if (typing) event.target.blur();
    return;
  }
  if (typing) {
    if (event.target === by("q") && event.key === "ArrowDown" && grid.hits.length) {
      event.preventDefault();
      grid.focus(0);
    }
    return;
  }
  const place = open ?? grid.focused();
  const act = {
    "/": () => { by("q").focus(); by("q").select(); },
    "?": () => by("keys").showModal(),
    m: () => place !== null && similar(grid.hits[place]),
    l: () => place !== null && look(place),
    f: () => place !== null && judging?.toggle(grid.hits[place], true),
    x: () => place !== null && judging?.toggle(grid.hits[place], false),
  }[event.key.toLowerCase()];
  if (act) {
    act();
  } else if (event.target.matches("input, video")) {
    return;  // they have uses of their own for the arrows
  } else if (by("panel").contains(event.target)) {
    if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
    step(event.key === "ArrowLeft" ? -1 : 1);
  } else if (event.key === "Enter" && open !== null && !event.target.closest("button, a")) {
    closePanel();
  } else if (!grid.follow(event.key, grid.focused() ?? open)) {
    return;
  }
  event.preventDefault();
});
// Only the keyboard takes the panel along: a pressed mouse button would open it, and the click that follows close it again.
by("grid").addEventListener("focusin", (event) => {
  const place = event.target.matches(":focus-visible") ? grid.focused() : null;
  if (open !== null && place !== null && place !== open) openPanel(place);
});

let inside = 0;
const hasFile = (event) => [...(event.dataTransfer?.types || [])].includes("Files");
addEventListener("dragenter", (event) => { if (hasFile(event)) { inside += 1; by("drop").hidden = false; } });
addEventListener("dragleave", (event) => { if (hasFile(event)) { inside = Math.max(0, inside - 1); by("drop").hidden = inside === 0; } });
addEventListener("dragover", (event) => { if (hasFile(event)) event.preventDefault(); });
addEventListener("drop", (event) => {
  if (!hasFile(event)) return;
  event.preventDefault();
  inside = 0;
  by("drop").hidden = true;
  useImage(event.dataTransfer.files[0]);
});
addEventListener("paste", (event) => {
  const [file] = event.clipboardData?.files || [];
  if (!file) return;
  event.preventDefault();
  useImage(file);
});
addEventListener("popstate", () => {
  if (location.search === asked) {
    closePanel();
    return;
  }
  recall();
  run();
});

// The beginning.

function login() {
  if (!by("login").open) by("login").showModal();
}
by("login").addEventListener("cancel", (event) => event.preventDefault());
by("login-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  by("login-error").textContent = "";
  try {
    await api.enter(by("token").value);
    by("token").value = "";
    by("login").close();
    begin();
  } catch (error) {
    by("login-error").textContent = error.message;
  }
});

async function begin() {
  recall();
  try {
    info = await api.info();
  } catch (error) {
    by("hero").hidden = error.status !== 401;
    trouble(error);
    return;
  }
  document.title = by("brand").textContent = info.title;
  tools.offer(info);
  by("keys-judge").hidden = !info.judges;
  if (info.judges) judging = new (await import("./judge.js")).Judging(by("learned"), run);
  by("pick").hidden = !info.images;
  by("teach").hidden = !info.teaches;
  by("hero-note").textContent = `Describe one of ${count(info.items)} images in your own words, or search with an image.`;
  const examples = info.examples.length ? info.examples : FALLBACK;
  by("examples").replaceChildren(...examples.map((text) => {
    const button = make("button", { type: "button" }, text);
    button.addEventListener("click", () => {
      by("q").value = text;
      by("search").requestSubmit();
    });
    return make("li", {}, button);
  }));
  run();
  if (!isAsked() && matchMedia("(hover: hover)").matches) by("q").focus();
}

begin();
