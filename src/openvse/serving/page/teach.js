// The page on which captions are typed: one photograph, a line, and what the model says of it.

import * as api from "./api.js";
import { count, make } from "./words.js";

const by = (id) => document.getElementById(id);
const FOUND = 12;
const SHOWN = 6;

const seen = [];  // the photographs that were shown, with what was typed
let place = -1;  // of the photograph that is shown, among them
let coming = [];  // the next ones
let saving = Promise.resolve();
let query = "";
let look;  // when the page looks again

const shown = () => seen[place];
const say = (text) => { by("status").textContent = text; };

function trouble(error) {
  if (error.status === 401) location.href = "./";  // which asks for the token
  by("trouble").textContent = error?.message || "";
}

// What comes next.

async function learn() {
  const passed = seen.map((each) => each.key);
  const now = await api.teachNext(passed.slice(-900));
  coming = now.next;
  const least = now.learns_from;
  const need = least === null ? "Captions are found by their words." : now.captioned < least ? `From ${least} on, the search learns from them.` : "The search has learned from them.";
  by("progress").textContent = `${count(now.captioned)} of ${count(now.items)} have captions. ${need}`;
  training(now);
  if (query) search();
}

// Training goes on in the background. The page looks now and then how far it is.

function training(now) {
  by("more").hidden = !now.can_train;
  by("trained").textContent = now.training && `Training: ${now.training}`;
  clearTimeout(look);
  if (now.is_training) look = setTimeout(() => learn().catch(trouble), 3000);
}

function show(at) {
  place = at;
  const { thumbnail, text, id } = shown();
  by("photo").src = api.address(`${thumbnail}&large=true`);
  by("photo").alt = `The photograph ${id}`;
  by("line").value = text;
  by("back").disabled = place === 0;
  offer();
  by("line").focus({ preventScroll: true });
}

async function next() {
  by("trouble").textContent = "";
  if (place >= 0) shown().text = by("line").value;
  if (place + 1 < seen.length) {
    show(place + 1);
    return;
  }
  const known = new Set(seen.map((each) => each.key));
  coming = coming.filter((each) => !known.has(each.key));
  if (!coming.length) await learn();
  if (!coming.length) {
    say("Every photograph has a caption, or was passed over.");
    return;
  }
  seen.push({ ...coming.shift(), text: "" });
  show(seen.length - 1);
}

function back() {
  if (place <= 0) return;
  shown().text = by("line").value;
  show(place - 1);
}

// What the model says: a click takes a word into the line, or strikes it out.

function offer() {
  by("words").replaceChildren(...shown().words.slice(0, SHOWN).map((word) => {
    const take = make("button", { type: "button", title: "Take it" }, word);
    const strike = make("button", { type: "button", title: "Strike it out", "aria-label": `Strike out ${word}` }, "×");
    take.addEventListener("click", () => {
      const line = by("line"), before = line.value.trim();
      line.value = before ? `${before}, ${word}` : word;
      drop(word);
    });
    strike.addEventListener("click", () => drop(word));
    return make("li", {}, take, strike);
  }));
}

function drop(word) {
  shown().words = shown().words.filter((each) => each !== word);
  offer();
  by("line").focus();
}

// Saving goes on while the next photograph is shown, one after the other.

export const captionsOf = (text) => text.split("\n").map((each) => each.trim()).filter(Boolean);

function save() {
  const captions = captionsOf(by("line").value), at = place, photo = shown();
  if (!captions.length) return next();
  saving = saving.then(async () => {
    try {
      await api.teach(photo.key, captions);
      say(`Saved: ${captions.join(" / ")}`);
      await learn();
    } catch (error) {
      photo.text = captions.join("\n");
      show(at);
      trouble(error);
    }
  });
  by("line").value = "";
  return next();
}

function undo() {
  saving = saving.then(async () => {
    try {
      const undone = await api.undo();
      const at = seen.findIndex((each) => each.key === undone.key);
      say(undone.key === null ? "There is nothing to undo." : `Undone: ${undone.id}`);
      if (at >= 0) show(at);
      await learn();
    } catch (error) {
      trouble(error);
    }
  });
}

async function search() {
  try {
    const page = await api.search({ q: query, like: null, image: null, avoid: [], where: [], least: null, scenes: false }, { top_k: FOUND });
    by("found").replaceChildren(...page.hits.map((hit) => make("li", {}, make("img", { src: api.address(hit.thumbnail), alt: hit.title, title: hit.title }))));
  } catch (error) {
    trouble(error);
  }
}

by("form").addEventListener("submit", (event) => { event.preventDefault(); save(); });
by("pass").addEventListener("click", next);
by("back").addEventListener("click", back);
by("undo").addEventListener("click", undo);
by("train").addEventListener("click", () => api.train().then(learn).catch(trouble));
by("try").addEventListener("submit", (event) => { event.preventDefault(); query = by("q").value.trim(); if (query) search(); });
by("line").addEventListener("keydown", (event) => {
  const line = by("line"), isOne = !line.value.includes("\n");
  if (event.isComposing) return;
  if (event.key === "Enter" && !event.shiftKey) save();
  else if (event.key === "ArrowDown" && isOne) next();
  else if (event.key === "ArrowUp" && isOne) back();
  else if (event.key === "z" && (event.ctrlKey || event.metaKey) && !line.value) undo();
  else return;
  event.preventDefault();
});

next().catch(trouble);
