// Theme, menu, confirmation and copying; everything else is pages and htmx.
(() => {
  "use strict";
  const root = document.documentElement;
  const saved = () => { try { return localStorage.getItem("weir-theme"); } catch { return null; } };
  const keep = (theme) => { try { localStorage.setItem("weir-theme", theme); } catch { /* private windows */ } };
  const theme = saved();
  if (theme === "dark" || theme === "light") root.dataset.theme = theme;

  const dark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";

  document.addEventListener("click", (event) => {
    const toggle = event.target.closest("[data-theme-toggle]");
    if (toggle) {
      root.dataset.theme = dark() ? "light" : "dark";
      keep(root.dataset.theme);
      return;
    }
    const menu = event.target.closest("[data-menu]");
    if (menu) {
      const open = document.body.classList.toggle("menu-open");
      menu.setAttribute("aria-expanded", String(open));
      return;
    }
    const copy = event.target.closest("[data-copy]");
    if (copy) {
      const from = document.getElementById(copy.dataset.copy);
      if (from && navigator.clipboard) {
        navigator.clipboard.writeText(from.textContent).then(() => { copy.textContent = "Copied"; }, () => {});
      }
    }
  });

  document.addEventListener("submit", (event) => {
    const question = event.target.dataset.confirm;
    if (question && !window.confirm(question)) event.preventDefault();
  });

  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
    if (/^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement?.tagName || "")) return;
    const search = document.querySelector("[data-search]");
    if (search) { event.preventDefault(); search.focus(); search.select(); }
  });

  document.addEventListener("change", (event) => {
    if (event.target.matches("[data-submit]")) event.target.form.requestSubmit();
  });
})();
