// What all pages of the console do in the browser. Pages work without it: it only keeps them current and quick to use.
import { startTimes } from "./times.js";
import { startKeyboard } from "./keyboard.js";
import { startPalette } from "./palette.js";
import { startRegions } from "./regions.js";

const root = document.documentElement;

function startTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  document.getElementById("theme-switch")?.addEventListener("click", () => {
    const shown = root.dataset.theme ?? (dark.matches ? "dark" : "light");
    const theme = shown === "dark" ? "light" : "dark";
    root.dataset.theme = theme;
    document.dispatchEvent(new CustomEvent("deferd:theme", { detail: theme })); // charts draw themselves again
    try {
      localStorage.setItem("deferd-theme", theme);
    } catch {
      // storage is switched off: it lasts until the next page
    }
  });
}

startTheme();
startTimes();
startKeyboard();
startPalette();
startRegions();
