// The panel beside the images: one image, what is known of it, what the model looked at, and questions about it.

import * as api from "./api.js";
import { describeLooked, drawLooked, shadedWords } from "./heat.js";
import { date, make, paged, percent, score, size } from "./words.js";

const by = (id) => document.getElementById(id);
const ANIMATED = /\.(gif|webp)$/i;
const TAKEN = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d/;
const HIDDEN_KEYS = new Set(["file_name", "image", "path", "captions", "caption", "sentences"]);

export class Panel {
  constructor({ onClose, onSimilar, onStep }) {
    this.box = by("panel");
    this.hit = null;
    this.query = null;
    this.leaving = new AbortController();
    this.looks = false;
    by("close").addEventListener("click", onClose);
    by("previous").addEventListener("click", () => onStep(-1));
    by("next").addEventListener("click", () => onStep(1));
    by("similar").addEventListener("click", () => onSimilar(this.hit));
    by("look").addEventListener("click", () => this.toggleLook());
    by("panel-image").addEventListener("load", () => this.#fitStage());
    by("panel-video").addEventListener("loadedmetadata", () => { if (by("veil").hidden) this.#film(true); });
    by("ask-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#ask(by("question").value.trim());
    });
  }

  get isOpen() {
    return !this.box.hidden;
  }

  open(hit, query, { answers, looks, shows, isFirst, isLast }) {
    this.leaving.abort();
    this.leaving = new AbortController();
    Object.assign(this, { hit, query, moves: false });
    this.box.hidden = false;
    by("panel-name").textContent = hit.title;
    by("panel-name").title = hit.id;
    by("panel-body").scrollTop = 0;
    by("previous").disabled = isFirst;
    by("next").disabled = isLast;
    const page = hit.text[0]?.page ?? 1;  // the model has seen the first one
    by("ask-form").hidden = !answers || !shows || page > 1;
    by("stage").hidden = by("original").hidden = !shows;
    by("answers").replaceChildren();
    const image = by("panel-image");
    image.alt = hit.id;
    image.src = api.address(hit.thumbnail);
    const large = new Image();
    large.onload = () => { if (this.hit === hit && !this.moves) image.src = large.src; };
    large.src = `${api.address(hit.thumbnail)}&large=true&page=${page}`;
    this.#scores(hit);
    this.#mark(hit.text.filter((line) => (line.page ?? 1) === page));
    this.#unload();
    this.#clearLook();
    by("look").hidden = !query.q || !looks || !shows || page > 1;
    this.#facts(hit);
    if (this.looks && !by("look").hidden) this.#look();
  }

  close() {
    this.leaving.abort();
    this.#unload();
    this.box.hidden = true;
    this.hit = null;
  }

  toggleLook() {
    if (!this.hit || by("look").hidden) return;
    this.looks = !this.looks;
    if (this.looks) this.#look();
    else this.#clearLook();
  }

  // A clip takes the place of its image as soon as the browser can play it; a segment plays from its beginning to its end.
  #load(item) {
    const video = by("panel-video");
    video.poster = by("panel-image").src;
    video.src = api.address(item.file) + (/#t=[\d.,]+$/.exec(item.id) || [""])[0];
  }

  // An animated picture moves: its file takes the place of the still image.
  #animate(item, signal) {
    const moving = new Image();
    moving.onload = () => {
      if (signal.aborted) return;
      this.moves = true;
      by("panel-image").src = moving.src;
    };
    moving.src = api.address(item.file);
  }

  // The stage has the shape of the image, so that what is drawn over it lies right; a small image is enlarged a little.
  #fitStage() {
    const { naturalWidth: width, naturalHeight: height } = by("panel-image");
    if (!height) return;
    by("stage").style.setProperty("--shape", width / height);
    by("stage").style.setProperty("--most", `${3 * height}px`);
  }

  #unload() {
    this.#film(false);
    by("panel-video").removeAttribute("src");
    by("panel-video").load();
  }

  #film(shown) {
    const video = by("panel-video");
    if (!shown) video.pause();
    video.hidden = !shown;
    by("panel-image").hidden = shown;
  }

  #scores(hit) {
    const entries = [["Rank", String(hit.rank)]];
    if (hit.was !== null) {
      const kind = hit.was > hit.rank ? "up" : hit.was < hit.rank ? "down" : "";
      entries[0] = ["Rank, was → now", `${hit.was} → ${hit.rank}`, kind];
    }
    entries.push(["Score", score(hit.score)]);
    if (hit.matched.length) entries.push(["Words", hit.matched.join(", ")]);
    if (hit.alike) entries.push(["Nearly the same", `${hit.alike} more`]);
    if (hit.fit) entries.push(["Fit", hit.fit]);
    if (hit.probability !== null) entries.push(["Probability", percent(hit.probability)]);
    by("scores").replaceChildren(...entries.map(([name, value, kind = ""]) => make("div", {}, make("dt", {}, name), make("dd", { className: kind }, value))));
  }

  // The lines that have words of the query, framed over the image.
  #mark(lines) {
    const shapes = lines.map(({ box }) => {
      const shape = document.createElementNS("http://www.w3.org/2000/svg", "polygon");
      shape.setAttribute("points", box.map((corner) => corner.join(",")).join(" "));
      return shape;
    });
    by("marks").replaceChildren(...shapes);
  }

  async #facts(hit) {
    const signal = this.leaving.signal;
    by("facts").replaceChildren(...rows({ Name: hit.id }));
    by("captions-box").hidden = by("metadata-box").hidden = by("text-box").hidden = true;
    by("original").removeAttribute("href");
    try {
      const item = await api.item(hit.key, signal);
      by("original").href = api.address(item.file);
      if (item.kind === "clip" && !by("stage").hidden) this.#load(item);
      if (ANIMATED.test(item.id) && !by("stage").hidden) this.#animate(item, signal);
      by("facts").replaceChildren(...rows({ Name: item.id, Size: size(item.size), Changed: date(item.modified), ...(item.kind === "image" ? {} : { Kind: item.kind }) }));
      by("captions").replaceChildren(...item.captions.map((text) => make("li", {}, text)));
      by("captions-box").hidden = !item.captions.length;
      const found = new Set(hit.text.map((line) => `${line.page} ${line.text}`)), read = paged(item.text);
      by("text").replaceChildren(...item.text.map((line, place) => make("li", { className: found.has(`${line.page} ${line.text}`) ? "found" : "" }, read[place])));
      by("text-box").hidden = !item.text.length;
      if (item.captions.length) by("panel-image").alt = item.captions[0];
      const said = Object.entries(item.metadata).filter(([key]) => !HIDDEN_KEYS.has(key));
      by("metadata").replaceChildren(...rows(Object.fromEntries(said)));
      by("metadata-box").hidden = !said.length;
    } catch (error) {
      if (error.name !== "AbortError") by("facts").append(...rows({ Note: error.message }));
    }
  }

  #clearLook() {
    by("veil").hidden = true;
    by("outlines").setAttribute("hidden", "");
    by("looked").hidden = true;
    by("look").setAttribute("aria-pressed", "false");
    if (by("panel-video").readyState > 0) this.#film(true);
  }

  async #look() {
    by("look").setAttribute("aria-pressed", "true");
    by("looked").hidden = false;
    by("looked-words").replaceChildren();
    by("looked-note").textContent = "Looking …";
    try {
      this.#draw(await api.looked(this.hit.key, this.query.q, this.leaving.signal));
    } catch (error) {
      if (error.name !== "AbortError") by("looked-note").textContent = error.message;
    }
  }

  #draw(looked) {
    by("looked").hidden = false;
    this.#film(false);
    const image = by("panel-image");
    drawLooked(looked, by("veil"), by("outlines"), image.naturalWidth / image.naturalHeight || 1);
    by("looked-words").replaceChildren(...shadedWords(looked));
    by("looked-note").textContent = describeLooked(looked);
  }

  async #ask(text) {
    if (!text || !this.hit) return;
    const box = by("answers");
    box.replaceChildren(make("p", { className: "fine" }, "Looking for an answer …"));
    try {
      const reply = await api.question(this.hit.key, text, this.leaving.signal);
      box.replaceChildren(...reply.answers.map(answerRow));
      const unknown = reply.unknown_words.map((each) => each.word);
      if (unknown.length) box.append(make("p", { className: "fine" }, `The model does not know: ${unknown.join(", ")}.`));
      this.looks = false;
      this.#clearLook();
      if (reply.looked) {
        this.#draw(reply.looked);
        by("panel-body").scrollTo({ top: 0, behavior: "smooth" });
      }
    } catch (error) {
      if (error.name !== "AbortError") box.replaceChildren(make("p", { className: "error" }, error.message));
    }
  }
}

function rows(facts) {
  const text = (value) => (Array.isArray(value) ? value.join(", ") : value !== null && typeof value === "object" ? JSON.stringify(value) : String(value));
  const taken = (value) => (TAKEN.test(value) ? `${date(value.slice(0, 19))} ${value.slice(19)}` : text(value));  // as the clock there showed it
  return Object.entries(facts).map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, ["date", "taken"].includes(name) ? taken(value) : text(value))));
}

function answerRow({ answer, probability }) {
  const meter = make("meter", { min: 0, max: 1, value: probability, "aria-label": `probability of ${answer}` });
  return make("div", { className: "answer" }, make("span", {}, answer), meter, make("span", { className: "share" }, percent(probability)));
}
