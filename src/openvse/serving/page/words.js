// How numbers are written.

const whole = new Intl.NumberFormat("en");

export const count = (number) => whole.format(number);

export function percent(share) {
  const rounded = Math.round(100 * share);
  if (rounded === 0 && share > 0) return "<1 %";
  if (rounded === 100 && share < 1) return ">99 %";
  return `${rounded} %`;
}

export const score = (number) => number.toFixed(3).replace("-", "−");

export function size(bytes) {
  if (bytes < 1000) return `${bytes} bytes`;
  const power = Math.min(3, Math.floor(Math.log10(bytes) / 3));
  return `${(bytes / 1000 ** power).toPrecision(3)} ${["", "kB", "MB", "GB"][power]}`;
}

// Lines of text, each with its page where another one begins.
export const paged = (lines) => lines.map(({ text, page }, place) => (page && page !== lines[place - 1]?.page ? `page ${page}: ${text}` : text));

export const date = (text) => new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" }).format(new Date(text));

export function make(tag, attributes = {}, ...inside) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name in made && name !== "list") made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...inside);
  return made;
}
