// Ctrl-K: go to a page, a topic or a job by typing a part of its name. The server knows the names; this sends what was
// typed, shows the links that come back, and moves between them.
const WAIT_MS = 120;
let timer = 0;
let sent = 0;

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
    const here = /\/console\/topics\/([^/?]+)/.exec(location.pathname)?.[1] ?? "";
    const query = new URLSearchParams({ q: input.value.trim(), here: decodeURIComponent(here), fragment: "found" });
    try {
      const response = await fetch(new URL(`console/go?${query}`, document.baseURI));
      const text = response.ok ? await response.text() : "";
      if (number !== sent) return; // a later one is under way
      list.innerHTML = text || "<p class=\"muted\">Nothing can be looked up now.</p>";
      links().forEach((link, index) => { link.id = `go-${index}`; });
      choose(0);
    } catch {
      if (number === sent) list.textContent = "The service can't be reached.";
    }
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
      links()[chosen()]?.click();
    }
  });
  palette.addEventListener("click", (event) => { if (event.target === palette) palette.close(); });
}
