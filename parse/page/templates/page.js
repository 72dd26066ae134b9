"use strict";
(() => {
  const root = document.documentElement;
  const status = document.getElementById("status");

  function say(text) {
    status.replaceChildren(Object.assign(document.createElement("span"), { textContent: text }));
    setTimeout(() => status.replaceChildren(), 3000);
  }

  function isDark() {
    const chosen = root.dataset.theme;
    return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  }
  document.getElementById("theme").addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
  });

  // Spreadsheets take a cell that begins so for a formula; numbers with a sign are none.
  const FORMULA = /^[=@\t\r＝＠]|^[-+－＋](?!((\d+\.?\d*|\.\d+)([eE][-+]?\d+)?( ?%)?)?$)/;
  function cell(text) {
    const safe = FORMULA.test(text) ? `'${text}` : text;
    return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  }
  function csv(id) {
    const rows = [...document.querySelectorAll(`#${CSS.escape(id)} tr`)].map((row) => [...row.cells].map((each) => {
      const unit = each.querySelector(".unit");
      const text = each.firstChild ? each.firstChild.textContent.trim() : "";
      return cell(unit ? `${text} (${unit.textContent})` : text);
    }).join(","));
    return `${rows.join("\r\n")}\r\n`;
  }
  async function copy(text) {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = Object.assign(document.createElement("textarea"), { value: text });
      document.body.append(area);
      area.select();
      const copied = document.execCommand("copy");
      area.remove();
      if (!copied) throw new Error("refused");
    }
  }
  // A chart as a file of its own: in light colours, as wide as a page, the padding around its plot made of coordinates.
  function file(id) {
    const plot = document.querySelector(`#${CSS.escape(id)} svg.plot`), sides = getComputedStyle(plot), width = 900;
    const [top, right, bottom, left] = ["Top", "Right", "Bottom", "Left"].map((side) => parseFloat(sides[`padding${side}`]));
    const height = parseFloat(plot.style.height);
    const inner = plot.cloneNode(true), outer = plot.cloneNode(false);
    for (const name of ["class", "style", "role", "aria-label"]) [inner, outer].forEach((each) => each.removeAttribute(name));
    const box = { x: left, y: top, width: width - left - right, height: height - top - bottom, overflow: "visible" };
    Object.entries(box).forEach(([name, value]) => inner.setAttribute(name, value));
    Object.entries({ width, height, viewBox: `0 0 ${width} ${height}` }).forEach(([name, value]) => outer.setAttribute(name, value));
    outer.innerHTML = `<rect width="${width}" height="${height}" fill="var(--ground)"/>`;
    outer.append(inner);
    const chosen = root.dataset.theme;
    root.dataset.theme = "light";
    const colours = getComputedStyle(root);
    const text = new XMLSerializer().serializeToString(outer)
      .replaceAll(/var\((--[a-z]+)\)/g, (_, name) => colours.getPropertyValue(name).trim());
    if (chosen) root.dataset.theme = chosen; else delete root.dataset.theme;
    return { text, width, height };
  }
  async function image(id, format) {
    const { text, width, height } = file(id);
    let href = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
    if (format === "png") {
      const drawn = Object.assign(new Image(), { src: href });
      await drawn.decode();
      const canvas = Object.assign(document.createElement("canvas"), { width: 2 * width, height: 2 * height });
      canvas.getContext("2d").drawImage(drawn, 0, 0, canvas.width, canvas.height);
      href = canvas.toDataURL("image/png");
    }
    Object.assign(document.createElement("a"), { href, download: `${id}.${format}` }).click();
  }
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.dataset.csv) {
      copy(csv(button.dataset.csv)).then(() => say("Copied as CSV"), () => say("The browser allows no copying here"));
    } else if (button.dataset.image) {
      image(button.dataset.chart, button.dataset.image).then(() => say("Saved"), () => say("The browser allows no saving here"));
    }
  });

  // A table that is cut says so: shaded edges where it goes on, and words beside its caption.
  function showCut(scroll) {
    const right = scroll.scrollWidth - scroll.clientWidth, down = scroll.scrollHeight - scroll.clientHeight;
    const { scrollLeft: x, scrollTop: y } = scroll;
    const hidden = { left: x > 1, right: x < right - 1, up: y > 1, down: y < down - 1 };
    const table = scroll.closest(".table");
    table.dataset.hidden = Object.keys(hidden).filter((edge) => hidden[edge]).join(" ");
    table.querySelector(".cue").textContent = [right > 1 ? "scrolls ↔" : "", down > 1 ? "scrolls ↕" : ""].join(" ").trim();
  }
  const resized = new ResizeObserver((entries) => entries.forEach((each) => showCut(each.target.closest(".scroll"))));
  document.querySelectorAll(".scroll").forEach((scroll) => {
    scroll.addEventListener("scroll", () => showCut(scroll), { passive: true });
    resized.observe(scroll);
    resized.observe(scroll.firstElementChild);
  });

  // A link to what lies in a folded panel opens it.
  function unfold() {
    const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    for (let at = target; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
  }
  addEventListener("hashchange", unfold);
  unfold();

  function all() {
    document.querySelectorAll("details.panel, .listing details").forEach((each) => { each.open = true; });
  }
  window.rankwisePage = { showAll: all, csv };
})();
