// What people say of hits, and what was learned from it. Only a server that learns has this.

import * as api from "./api.js";
import { count, make, percent } from "./words.js";

const CHOICES = [[true, "Fits"], [false, "Does not fit"]];

export class Judging {
  constructor(box, onChange) {
    this.box = box;
    this.onChange = onChange;
    this.text = "";
    this.said = new Map();
  }

  // Learn what was said of the hits of a sentence; "" is a query that is none.
  async begin(text) {
    this.text = text;
    this.box.hidden = true;
    if (text) this.#show(await api.judged(text));
  }

  // Say whether a hit fits, or take it back if it was said before.
  toggle(hit, fits) {
    if (this.text) this.#say(hit.key, this.said.get(hit.key) === fits ? null : fits);
  }

  // The choices under a hit, which have keys of their own.
  under(hit) {
    if (!this.text) return [];
    const buttons = CHOICES.map(([fits, name]) => {
      const button = make("button", { type: "button", className: "small", tabIndex: -1, "aria-pressed": String(this.said.get(hit.key) === fits), "aria-label": `${name}: ${hit.title}` }, name);
      button.addEventListener("click", () => this.toggle(hit, fits));
      return button;
    });
    return [make("div", { className: "judge" }, ...buttons)];
  }

  async #say(key, fits) {
    try {
      await api.judge({ text: this.text, key, fits });
      await this.onChange();
    } catch (error) {
      this.box.hidden = false;
      this.box.replaceChildren(make("p", {}, error.message));
    }
    this.box.focus();
  }

  #show({ items, moving, half_is_now: half }) {
    this.said = new Map(items.map((item) => [item.key, item.fits]));
    const parts = [];
    if (items.length) parts.push(`You judged ${count(items.length)} image${items.length === 1 ? "" : "s"} for these words: what fits comes first, what does not is left out.`);
    if (moving) parts.push(`${count(moving)} judgement${moving === 1 ? "" : "s"} of all searches moved the probabilities: what was 50 % is now ${percent(half)}.`);
    this.box.hidden = !parts.length;
    const undo = items.map(({ key, id, fits }) => {
      const button = make("button", { type: "button", "aria-label": `Undo: ${id} ${fits ? "fits" : "does not fit"}` }, `${fits ? "✓" : "✗"} ${id}`);
      button.addEventListener("click", () => this.#say(key, null));
      return make("li", {}, button);
    });
    this.box.replaceChildren(make("p", {}, parts.join(" ")), make("ul", { className: "chips" }, ...undo));
  }
}
