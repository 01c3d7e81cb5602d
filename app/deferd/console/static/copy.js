// A button to copy each command of an empty list. Browsers allow copying only over HTTPS and on this machine.

function addButtons() {
  for (const code of document.querySelectorAll(".empty pre.code, .without-script pre.code")) {
    if (code.nextElementSibling?.classList.contains("copy")) continue;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "button small copy";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
    code.after(button);
  }
}

if (navigator.clipboard) {
  addButtons();
  document.addEventListener("htmx:afterSwap", addButtons);
}
