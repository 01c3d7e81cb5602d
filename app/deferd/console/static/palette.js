// Ctrl-K: go to a page, a topic or a job by typing a part of its name. The server knows the names; this sends what was
// typed, shows the links that come back, and moves between them.
const WAIT_MS = 120;
let timer = 0;
let sent = 0;
let shownFor = null; // the text whose links are shown

export function startPalette() {
  const palette = document.getElementById("palette");
  if (!palette) return;
  const input = palette.querySelector("input");
  const list = document.getElementById("palette-list");
  const links = () => [...list.querySelectorAll("a")];

  function choose(place) {
    const all = links();
    const at = all.length ? (place + all.length) % all.length : -1;
    all.forEach((link, index) => {
      link.setAttribute("aria-selected", String(index === at));
      if (index === at) {
        link.scrollIntoView({ block: "nearest" });
        input.setAttribute("aria-activedescendant", link.id);
      }
    });
  }

  const chosen = () => links().findIndex((link) => link.getAttribute("aria-selected") === "true");

  async function look() {
    const number = ++sent;
    const typed = input.value.trim();
    const here = /\/console\/topics\/([^/?]+)/.exec(location.pathname)?.[1] ?? "";
    const query = new URLSearchParams({ q: typed, here: decodeURIComponent(here), fragment: "found" });
    try {
      const response = await fetch(new URL(`console/go?${query}`, document.baseURI));
      const text = response.ok ? await response.text() : "";
      if (number !== sent) return; // a later one is under way
      list.innerHTML = text || "<p class=\"muted\">Nothing can be looked up now.</p>";
      links().forEach((link, index) => { link.id = `go-${index}`; });
      choose(0);
      shownFor = typed;
    } catch {
      if (number === sent) list.textContent = "The service can't be reached.";
    }
  }

  // Enter may come before the links of what was typed: those of an earlier text lead elsewhere.
  async function follow() {
    if (shownFor !== input.value.trim()) {
      clearTimeout(timer);
      await look();
    }
    if (shownFor === input.value.trim()) links()[chosen()]?.click();
  }

  function open() {
    if (palette.open) return;
    palette.showModal();
    input.select();
    look();
  }

  document.getElementById("palette-button")?.addEventListener("click", open);
  document.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && !event.altKey && event.key.toLowerCase() === "k") {
      event.preventDefault();
      open();
    }
  });
  input.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(look, WAIT_MS);
  });
  input.addEventListener("keydown", (event) => {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (by) {
      event.preventDefault();
      choose(chosen() + by);
    } else if (event.key === "Enter") {
      event.preventDefault();
      follow();
    }
  });
  palette.addEventListener("click", (event) => { if (event.target === palette) palette.close(); });
}
