// Loaded before the page is drawn, so that it is not drawn in the other theme, or with texts for browsers without scripts.
document.documentElement.dataset.scripted = "";
try {
  const theme = localStorage.getItem("deferd-theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // storage is switched off: the system's theme stays
}
