/** Light, dark, or as the system has it. */

import { byId } from "./dom.js";

const KEY = "holdfast.theme";
const NEXT = { system: "light", light: "dark", dark: "system" };
const WORDS = { system: "as the system", light: "light", dark: "dark" };

/** Let the button change the theme; `onChange` hears of every change, the system's included. */
export function installTheme(onChange) {
  const button = byId("theme");
  const show = () => {
    const theme = document.documentElement.dataset.theme ?? "system";
    button.dataset.shows = theme;
    button.setAttribute("aria-label", `Theme: ${WORDS[theme]}. Change`);
    button.title = `Theme: ${WORDS[theme]}`;
  };
  button.addEventListener("click", () => {
    choose(NEXT[document.documentElement.dataset.theme ?? "system"]);
    show();
    onChange();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", onChange);
  show();
}

function choose(theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  try {
    if (theme === "system") localStorage.removeItem(KEY);
    else localStorage.setItem(KEY, theme);
  } catch {
    // It holds for this page then.
  }
}
