// Filters, what to avoid, the lowest score, and the second model.

import { make, score } from "./words.js";

const by = (id) => document.getElementById(id);
const BUILT_IN = [
  { name: "path", values: [], hint: "holiday/*", operator: "~" },
  { name: "date", values: [], hint: "2024-05", operator: ">=" },
  { name: "taken", values: [], hint: "2024-05", operator: ">=" },
  { name: "near", values: [], hint: "52.5,13.4,20km", operator: "=" },
  { name: "size", values: [], hint: "2MB", operator: ">=" },
  { name: "kind", values: ["image", "clip"], hint: "clip", operator: "=" },
  { name: "text", values: [], hint: "words in the image", operator: "contains" },
];

export class Tools {
  constructor(query, onChange) {
    Object.assign(this, { query, onChange, fits: {}, best: 1, fields: BUILT_IN });
    for (const [button, form, input] of [["add-filter", "filter-form", "filter-value"], ["add-avoid", "avoid-form", "avoid-value"]]) {
      by(button).addEventListener("click", () => this.#toggle(by(button), by(form), by(input)));
      by(form).addEventListener("keydown", (event) => {
        if (event.key !== "Escape") return;
        event.stopPropagation();
        this.#toggle(by(button), by(form), by(input));
        by(button).focus();
      });
    }
    by("filter-form").addEventListener("submit", (event) => {
      event.preventDefault();
      const field = by("filter-field").value, value = by("filter-value").value.trim();
      if (value) this.#add("where", `${/^[\w.]+$/.test(field) ? field : `"${field}"`} ${by("filter-operator").value} ${value}`);
      by("filter-value").value = "";
    });
    by("avoid-form").addEventListener("submit", (event) => {
      event.preventDefault();
      if (by("avoid-value").value.trim()) this.#add("avoid", by("avoid-value").value.trim());
      by("avoid-value").value = "";
    });
    by("filter-field").addEventListener("change", () => this.#fieldChosen());
    let waiting = 0;
    by("least").addEventListener("input", () => {
      const value = Number(by("least").value);
      this.query.least = value <= Number(by("least").min) ? null : value;
      this.showLeast();
      clearTimeout(waiting);
      waiting = setTimeout(onChange, 220);
    });
    by("weight").addEventListener("input", () => {
      this.query.weight = Number(by("weight").value);
      clearTimeout(waiting);
      waiting = setTimeout(onChange, 220);
    });
    by("scenes").addEventListener("change", () => {
      this.query.scenes = by("scenes").checked;
      onChange();
    });
    by("again").addEventListener("change", () => {
      this.query.again = by("again").checked;
      onChange();
    });
  }

  offer(info) {
    const taken = new Set(BUILT_IN.map((each) => each.name));
    const own = info.fields.map(({ name, values }) => ({ name: taken.has(name) ? `meta.${name}` : name, values, hint: values[0] || "words", operator: values.length ? "=" : "contains" }));
    this.fields = [...BUILT_IN, ...own];
    by("filter-field").replaceChildren(...this.fields.map((each) => make("option", { value: each.name }, each.name)));
    this.#fieldChosen();
    by("again-box").hidden = !info.rerank;
    if (info.rerank) by("again-name").textContent = `Rank the first ${info.rerank_top} again with ${info.rerank}`;
  }

  show() {
    const chip = (kind, text, label) => {
      const button = make("button", { type: "button", title: "Remove", "aria-label": `Remove: ${label}` }, label);
      button.addEventListener("click", () => {
        this.query[kind] = this.query[kind].filter((each) => each !== text);
        this.show();
        this.onChange();
      });
      return make("li", {}, button);
    };
    by("chips").replaceChildren(...this.query.where.map((text) => chip("where", text, text)), ...this.query.avoid.map((text) => chip("avoid", text, `not: ${text}`)));
    by("mix").hidden = !(this.query.q && (this.query.image || this.query.like !== null));
    by("weight").value = this.query.weight;
    by("again").checked = this.query.again;
    by("scenes").checked = this.query.scenes;
    const isSentence = this.query.q && !this.query.image && this.query.like === null && !this.query.avoid.length;
    by("again").disabled = !isSentence;
    this.showLeast();
  }

  // The range of the slider goes from what speaks for nothing to a little above the best hit.
  learn(page) {
    this.fits = page.fits;
    if (this.query.least === null && page.hits.length) {
      this.best = Math.max(...page.hits.map((hit) => hit.score));
      const low = Math.min(0, Math.floor(20 * Math.min(...page.hits.map((hit) => hit.score))) / 20);
      Object.assign(by("least"), { min: low, max: (Math.ceil(50 * this.best) / 50 || 1).toFixed(2) });
      by("least").value = low;
    }
    this.showLeast();
  }

  showLeast() {
    const { least } = this.query;
    if (least === null) by("least").value = by("least").min;
    else by("least").value = least;
    const fit = Object.entries(this.fits).find(([, from]) => from !== null && least >= from)?.[0] || "unlikely";
    by("least-value").textContent = least === null ? "any" : Object.keys(this.fits).length ? `${score(least)} · ${fit}` : score(least);
    by("least").setAttribute("aria-valuetext", by("least-value").textContent);
  }

  #add(kind, text) {
    if (!this.query[kind].includes(text)) this.query[kind] = [...this.query[kind], text];
    this.show();
    this.onChange();
  }

  #toggle(button, form, input) {
    const opens = form.hidden;
    for (const [name, other] of [["add-filter", "filter-form"], ["add-avoid", "avoid-form"]]) {
      by(other).hidden = true;
      by(name).setAttribute("aria-expanded", "false");
    }
    form.hidden = !opens;
    button.setAttribute("aria-expanded", String(opens));
    if (opens) input.focus();
  }

  #fieldChosen() {
    const field = this.fields.find((each) => each.name === by("filter-field").value) || this.fields[0];
    by("filter-values").replaceChildren(...field.values.map((value) => make("option", { value })));
    by("filter-value").placeholder = field.hint;
    by("filter-operator").value = field.operator;
  }
}
