"use strict";
(() => {
  // The charts' library and data wait as text until a chart comes near the view: the verdict can be read at once.
  let parsed = null;
  function figure(id) {
    parsed ??= JSON.parse(document.getElementById("data").textContent);
    return parsed[id];
  }
  function plotly() {
    if (!window.Plotly) {
      const text = document.getElementById("plotly").textContent;
      document.head.append(Object.assign(document.createElement("script"), { textContent: text }));
    }
    return window.Plotly;
  }
  const root = document.documentElement;
  const status = document.getElementById("status");
  const narrow = () => window.innerWidth < 640;
  const FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif';

  // The stylesheet has the colours of both themes; figures name them as it does.
  function colour(name) { return getComputedStyle(root).getPropertyValue(`--${name}`).trim(); }
  function coloured(value, key) {
    if (Array.isArray(value)) return typeof value[0] === "object" ? value.map((each) => coloured(each)) : value;
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([name, each]) => [name, coloured(each, name)]));
    }
    const named = (key === "color" || key === "fillcolor") && /^var\(--([a-z]+)\)$/.exec(value);
    return named ? colour(named[1]) : value;
  }
  function inLight(make) {
    const chosen = root.dataset.theme;
    root.dataset.theme = "light";
    try { return make(); } finally {
      if (chosen) root.dataset.theme = chosen; else delete root.dataset.theme;
    }
  }

  function axis(given) {
    return {
      gridcolor: colour("grid"), zerolinecolor: colour("line"), linecolor: colour("line"), tickcolor: colour("line"), ticks: "outside",
      ticklen: 4, automargin: true, fixedrange: false, ...given,
      title: { ...(given && given.title), font: { size: 12, color: colour("soft") }, standoff: 8 },
    };
  }

  function layoutOf(id, height) {
    const given = coloured(figure(id).layout);
    return {
      ...given, height, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", hovermode: "closest",
      dragmode: narrow() ? false : "zoom", font: { family: FONT, size: 12.5, color: colour("ink") },
      margin: { l: 12, r: 12, t: 12, b: 12, pad: 2 },
      legend: { orientation: "h", yanchor: "bottom", y: 1.02, x: 0, xanchor: "left", font: { size: 12 } },
      hoverlabel: { font: { family: FONT, size: 12.5 }, namelength: -1 },
      xaxis: axis(given.xaxis), yaxis: axis(given.yaxis),
    };
  }

  const config = { displayModeBar: false, responsive: true, displaylogo: false, scrollZoom: false };
  const drawn = new Set();
  const PAPER = 640;  // pixels: what fits beside the margins of A4 and letter, however wide the window is
  let before = null;  // while it is printed: what is to come back

  function draw(plot) {
    const id = plot.dataset.plot;
    drawn.add(plot);
    const layout = layoutOf(id, Number(plot.dataset.height));
    const size = before ? { width: PAPER, autosize: false } : { autosize: true };
    return plotly().react(plot, coloured(figure(id).data), { ...layout, ...size }, { ...config, responsive: !before });
  }

  const plots = [...document.querySelectorAll("[data-plot]")];
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting && !drawn.has(entry.target)) draw(entry.target);
    }
  }, { rootMargin: "400px" });
  plots.forEach((plot) => seen.observe(plot));

  function say(text) {
    status.replaceChildren(Object.assign(document.createElement("span"), { textContent: text }));
    setTimeout(() => status.replaceChildren(), 3000);
  }

  function redraw() { drawn.forEach(draw); }

  function isDark() {
    const chosen = root.dataset.theme;
    return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  }
  document.getElementById("theme").addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    redraw();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

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
  async function image(id, format) {
    const width = format === "png" ? 1000 : 900;
    const height = Number(document.querySelector(`[data-plot="${CSS.escape(id)}"]`).dataset.height) + 40;
    const [data, layout] = inLight(() => {
      const ground = colour("ground");
      return [coloured(figure(id).data), { ...layoutOf(id, height), width, height, paper_bgcolor: ground, plot_bgcolor: ground }];
    });
    await plotly().downloadImage({ data, layout }, { format, width, height, scale: format === "png" ? 2 : 1, filename: id });
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

  function drawAll() {
    return Promise.all(plots.filter((plot) => !drawn.has(plot) && !plot.closest("details:not([open])")).map(draw));
  }
  function all() {
    document.querySelectorAll("details.panel, .listing details").forEach((each) => { each.open = true; });
    return drawAll();
  }
  // On paper is what is open, in dark ink, with all of its charts.
  addEventListener("beforeprint", () => {
    before = { theme: root.dataset.theme };
    root.dataset.theme = "light";
    drawAll();
    redraw();
  });
  addEventListener("afterprint", () => {
    if (!before) return;
    if (before.theme) root.dataset.theme = before.theme; else delete root.dataset.theme;
    before = null;
    redraw();
    drawn.forEach((plot) => plotly().Plots.resize(plot));
  });
  window.rankwisePage = { showAll: all, csv };
})();
