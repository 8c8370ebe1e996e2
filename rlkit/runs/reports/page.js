"use strict";
(() => {
  let { figures, refresh } = JSON.parse(document.getElementById("data").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const light_lines = ["#3465a4", "#d9822b", "#4e9a5d", "#b5484f", "#7c5ca8", "#8a6d54", "#cc6fa5", "#7a7a7a"];
  const dark_lines = ["#7ea6e0", "#f0a35a", "#7cc48a", "#e5838a", "#b39ddb", "#c2a286", "#eb9ccb", "#b0b0b0"];
  const themes = {
    light: { ink: "#1d2025", soft: "#5d646f", line: "#e3e6ea", paper: "#ffffff", low: "#d9822b", middle: "#f4f4f4",
      high: "#5b8fd0" },
    dark: { ink: "#e7e9ec", soft: "#a0a7b2", line: "#343a44", paper: "#15181d", low: "#a85f1c", middle: "#2a2f37",
      high: "#3f70b5" },
  };
  const scale = { light: ["#f0c26b", "#3f9e86", "#20317e"], dark: ["#6d5aa8", "#3fa796", "#ffe07a"] };  // low to high
  const dashes = ["", "7 4", "2 3"];
  const hidden = new Set();
  let axis = "steps";

  const bytes = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
  const blend = (stops, share) => {
    const place = share * (stops.length - 1), first = Math.min(Math.floor(place), stops.length - 2);
    const [a, b] = [bytes(stops[first]), bytes(stops[first + 1])];
    const mixed = a.map((x, i) => Math.round(x + (b[i] - x) * (place - first)));
    return "#" + mixed.map((x) => x.toString(16).padStart(2, "0")).join("");
  };

  const color = (name) => {
    if (/^\d+$/.test(name)) return (dark.matches ? dark_lines : light_lines)[Number(name) % light_lines.length];
    if (/^s[\d.]+$/.test(name)) return blend(scale[dark.matches ? "dark" : "light"], Number(name.slice(1)));
    return themes[dark.matches ? "dark" : "light"][name];
  };

  // The figure with the colors of the theme and the chosen horizontal axis.
  const resolve = (value) => {
    if (typeof value === "string") return value.startsWith("@") && color(value.slice(1)) || value;
    if (Array.isArray(value)) return value.every((item) => typeof item === "number") ? value : value.map(resolve);
    if (value === null || typeof value !== "object") return value;
    if ("steps" in value && "time" in value) return resolve(value[axis]);
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, resolve(item)]));
  };

  const translucent = (hex) => `rgba(${bytes(hex).join(",")},0.2)`;

  // The band around a line as polygons, one for each stretch without a gap.
  const band = (trace) => {
    const [low, high] = trace.band, step = trace.line.shape === "hv", x = [], y = [];
    let stretch = [];
    const close = () => {
      if (stretch.length) {
        const upper = [], lower = [];
        stretch.forEach((i, k) => {
          if (step && k) {
            upper.push([trace.x[i], high[stretch[k - 1]]]);
            lower.push([trace.x[i], low[stretch[k - 1]]]);
          }
          upper.push([trace.x[i], high[i]]);
          lower.push([trace.x[i], low[i]]);
        });
        if (x.length) { x.push(null); y.push(null); }
        [...upper, ...lower.reverse()].forEach(([a, b]) => { x.push(a); y.push(b); });
      }
      stretch = [];
    };
    trace.x.forEach((place, i) => {
      if (place === null || low[i] === null || high[i] === null) close();
      else stretch.push(i);
    });
    close();
    return { type: "scatter", mode: "lines", x, y, fill: "toself", fillcolor: translucent(trace.line.color),
      line: { width: 0 }, hoverinfo: "skip", showlegend: false, meta: trace.meta };
  };

  const traces = (data) => {
    const shown = data.filter((trace) => !(trace.meta && hidden.has(trace.meta.run))).map(resolve);
    const bands = shown.filter((trace) => trace.band).map(band);
    return [...bands, ...shown.map(({ band: _, ...trace }) => trace)];
  };

  const layout = (given) => {
    const axes = Object.fromEntries(["xaxis", "yaxis", ...Object.keys(given).filter((k) => /^[xy]axis\d+$/.test(k))]
      .map((key) => [key, { gridcolor: color("line"), zerolinecolor: color("line"), linecolor: color("line"),
        automargin: true, ...resolve(given[key] || {}) }]));
    return {
      font: { family: "system-ui, sans-serif", size: 12, color: color("ink") },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", hovermode: "closest",
      dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",  // fingers scroll
      margin: { l: 56, r: 12, t: 12, b: 44 },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: color("soft"), activecolor: color("ink") }, ...resolve(given), ...axes,
      uirevision: axis, autosize: true,
    };
  };

  const drawn = new Set();
  // No button sends a chart to a server.
  const settings = (place) => ({ displaylogo: false, showSendToCloud: false, plotlyServerURL: "", responsive: true,
    displayModeBar: place.closest(".grid") ? false : "hover",
    modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d", "sendDataToCloud", "sendChartToCloud"] });
  const draw = (place) => {
    const { data, layout: given } = figures[Number(place.dataset.figure)];
    drawn.add(place);
    Plotly.react(place, traces(data), layout(given), settings(place));
  };
  const redraw = () => {
    document.querySelectorAll(".run").forEach((button) => {
      const index = Number(button.dataset.run), line = button.querySelector("line");
      line.setAttribute("stroke", color(String(index)));
      line.setAttribute("stroke-dasharray", dashes[Math.floor(index / light_lines.length) % dashes.length]);
      button.setAttribute("aria-pressed", String(!hidden.has(index)));
    });
    drawn.forEach(draw);
  };

  document.querySelectorAll("[name=axis]").forEach((input) => input.addEventListener("change", () => {
    axis = input.value;
    redraw();
  }));
  document.querySelectorAll(".run").forEach((button) => button.addEventListener("click", () => {
    const index = Number(button.dataset.run);
    hidden.has(index) ? hidden.delete(index) : hidden.add(index);
    redraw();
  }));
  dark.addEventListener("change", redraw);
  redraw();

  const watcher = new IntersectionObserver((entries) => entries.filter((e) => e.isIntersecting).forEach((entry) => {
    watcher.unobserve(entry.target);
    draw(entry.target);
  }), { rootMargin: "300px" });
  document.querySelectorAll(".plot").forEach((place) => watcher.observe(place));

  // A page of `rlkit watch`: newer figures and tables, until the run has ended. Zoomed axes stay.
  const titles = (root) => [...root.querySelectorAll("h2, [data-figure]")]
    .map((place) => place.getAttribute("aria-label") || place.textContent).join("\n");
  const update = async () => {
    const status = document.getElementById("status");
    try {
      const answer = await fetch(refresh, { cache: "no-store" });
      if (!answer.ok) throw new Error(answer.statusText);
      const newer = await answer.json(), body = new DOMParser().parseFromString(newer.body, "text/html");
      if (titles(body) !== titles(document.querySelector("main"))) return location.reload();
      figures = newer.figures;
      body.querySelectorAll("section").forEach((section) => {
        if (!section.querySelector(".plot, .picture")) document.getElementById(section.id).replaceWith(section);
      });
      redraw();
      status.textContent = newer.state;
      if (!newer.ended) setTimeout(update, 3000);
    } catch {
      status.textContent = "no connection to rlkit watch";
      setTimeout(update, 3000);
    }
  };
  if (refresh) update();
})();
