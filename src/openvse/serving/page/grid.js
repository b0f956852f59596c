// The images that were found: one card each, moved through with the arrow keys.

import { address } from "./api.js";
import { make, paged, score } from "./words.js";

export class Grid {
  constructor(list, { onOpen, onMore, under }) {
    this.list = list;
    this.onOpen = onOpen;
    this.under = under;
    this.hits = [];
    this.sentinel = document.getElementById("more");
    this.watcher = new IntersectionObserver((seen) => seen.some((each) => each.isIntersecting) && onMore(), { rootMargin: "900px" });
    list.addEventListener("click", (event) => {
      const card = event.target.closest(".card");
      if (card?.dataset.place) onOpen(Number(card.dataset.place));
    });
    list.addEventListener("focusin", (event) => {
      const card = event.target.closest(".card");
      if (card?.dataset.place) this.#tabTo(Number(card.dataset.place));
    });
  }

  ghosts(number = 18) {
    this.watcher.disconnect();
    this.hits = [];
    const ghost = () => make("li", { className: "ghost" }, make("div", { className: "card" }, make("span", { className: "shot" }), make("span", { className: "line" })));
    this.list.replaceChildren(...Array.from({ length: number }, ghost));
    this.list.setAttribute("aria-busy", "true");
    this.list.hidden = false;
  }

  show(hits) {
    const before = new Map(this.hits.map((hit, place) => [hit.key, this.#card(place)?.getBoundingClientRect()]));
    this.hits = [];
    this.list.replaceChildren();
    this.list.removeAttribute("aria-busy");
    this.add(hits);
    this.list.hidden = !hits.length;
    this.#glide(before);
  }

  add(hits) {
    const first = this.hits.length;
    this.hits.push(...hits);
    this.list.append(...hits.map((hit, place) => this.#made(hit, first + place)));
    this.watcher.disconnect();
    this.watcher.observe(this.sentinel);
  }

  clear() {
    this.watcher.disconnect();
    this.hits = [];
    this.list.replaceChildren();
    this.list.hidden = true;
  }

  mark(place) {
    for (const card of this.list.querySelectorAll('[aria-current="true"]')) card.removeAttribute("aria-current");
    if (place === null) return;
    const card = this.#card(place);
    card?.setAttribute("aria-current", "true");
    card?.scrollIntoView({ block: "nearest" });
    this.#tabTo(place);
  }

  focus(place) {
    const card = this.#card(place);
    card?.focus({ preventScroll: true });
    card?.scrollIntoView({ block: "nearest" });
  }

  focused() {
    const place = document.activeElement?.closest?.(".card")?.dataset.place;
    return place === undefined ? null : Number(place);
  }

  #card(place) {
    return this.list.children[place]?.firstElementChild;
  }

  #tabTo(place) {
    this.list.querySelector('.card[tabindex="0"]')?.setAttribute("tabindex", "-1");
    this.#card(place)?.setAttribute("tabindex", "0");
  }

  #made(hit, place) {
    const picture = make("img", { alt: "", loading: "lazy", decoding: "async" });
    const fit = hit.fit;
    const likely = fit ? `, ${fit}` : "";
    const said = hit.matched.length ? `, has the words ${hit.matched.join(", ")}` : "";
    const read = paged(hit.text).join(" … ");
    const others = hit.alike ? `, and ${hit.alike} more that ${hit.alike === 1 ? "is" : "are"} nearly the same` : "";
    const moved = hit.was === null || hit.was === hit.rank ? "" : `, was ${hit.was}`;
    const card = make("button", { type: "button", className: "card", tabIndex: place ? -1 : 0, "aria-label": `${hit.rank}. ${hit.title}, score ${score(hit.score)}${likely}${said}${read ? `, text: ${read}` : ""}${others}${moved}` });
    card.dataset.place = place;
    picture.addEventListener("load", () => {
      const shape = picture.naturalWidth / picture.naturalHeight;
      card.classList.toggle("is-square", shape > 0.9 && shape < 1.12);  // drawings and icons are often on white
      card.classList.add("is-loaded");
    });
    picture.addEventListener("error", () => card.classList.add("is-broken"));
    picture.src = address(hit.thumbnail);
    const shot = make("span", { className: "shot" }, picture);
    if (hit.was !== null) shot.append(move(hit));
    if (hit.alike) shot.append(make("span", { className: "alike", title: `${hit.alike} more nearly the same` }, `+${hit.alike}`));
    if (hit.matched.length) shot.append(make("span", { className: "said", title: hit.by === "both" ? "found by its words and by similarity" : "found by its words" }, read ? `text: ${read}` : hit.matched.join(" ")));
    const name = make("span", { className: "name", title: hit.id }, hit.title);
    card.append(shot, make("span", { className: "line" }, name, make("span", { className: `worth ${fit}` }, fit || (hit.probability === null ? score(hit.score) : ""))));
    return make("li", {}, card, ...this.under(hit));
  }

  // Cards that stay slide from their old places to the new ones, so that a new order can be seen.
  #glide(before) {
    if (!before.size || matchMedia("(prefers-reduced-motion: reduce)").matches) return;
    this.hits.forEach((hit, place) => {
      const old = before.get(hit.key), card = this.#card(place);
      if (!old || !card || old.top > 2 * innerHeight) return;
      const now = card.getBoundingClientRect();
      const x = old.left - now.left, y = old.top - now.top;
      if (x || y) card.animate([{ transform: `translate(${x}px, ${y}px)` }, { transform: "none" }], { duration: 420, easing: "cubic-bezier(.2, .7, .2, 1)" });
    });
  }

  // Focus the image that a key leads to from a place, or the first one; return whether the key leads anywhere.
  follow(key, place) {
    const last = this.hits.length - 1;
    const columns = getComputedStyle(this.list).gridTemplateColumns.split(" ").length;
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns, Home: -place, End: last - place };
    if (!(key in steps) || last < 0 || (place === null && !key.startsWith("Arrow"))) return false;
    const to = place === null ? 0 : key === "ArrowDown" ? Math.min(last, place + columns) : place + steps[key];
    if (to >= 0 && to <= last) this.focus(to);
    return true;
  }
}

function move(hit) {
  const by = hit.was - hit.rank;
  const text = by === 0 ? "=" : by > 0 ? `▲ ${by}` : `▼ ${-by}`;
  const kind = by === 0 ? "" : by > 0 ? " up" : " down";
  return make("span", { className: `move${kind}`, title: `rank ${hit.was} before, now ${hit.rank}` }, text);
}
