// The choice of dark or light is applied before anything is drawn.
"use strict";
try {
  const chosen = localStorage.getItem("openvse-theme");
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
} catch { /* a browser may refuse storage */ }
