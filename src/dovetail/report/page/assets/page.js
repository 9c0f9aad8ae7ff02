"use strict";
// Draws what the page's data describes: charts by Plotly, the pipeline timeline and the designs of a study here.
(() => {
  const root = document.documentElement;
  const style = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const dataOf = (id) => JSON.parse(document.querySelector(`script[data-of="${id}"]`).textContent);
  const element = (name, properties = {}, ...children) => {
    const made = Object.assign(document.createElement(name), properties);
    made.append(...children);
    return made;
  };
  const redraws = [];

  // --- charts
  const themed = (layout) => {
    const ink = style("--ink"), line = style("--line");
    const narrow = window.innerWidth < 640;
    const axis = (given = {}) => ({ gridcolor: line, zerolinecolor: line, linecolor: line, ...given });
    return {
      ...layout, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: ink, size: narrow ? 11 : 13, family: "system-ui, sans-serif" },
      margin: { l: narrow ? 48 : 64, r: 16, t: layout.showlegend ? 44 : 16, b: 48 }, xaxis: axis(layout.xaxis), yaxis: axis(layout.yaxis),
      legend: { orientation: "h", x: 0, y: 1.01, yanchor: "bottom" }, hoverlabel: { namelength: -1 },
    };
  };
  const CONFIG = { responsive: true, displaylogo: false, displayModeBar: false };
  const drawChart = (place) => {
    const { data, layout } = dataOf(place.id);
    const draw = () => Plotly.react(place, data, themed(layout), CONFIG);
    draw();
    redraws.push(draw);
  };

  // --- the pipeline: a row for each stage, time from left to right
  const LEFT = 74, ROW = 18, BAR = 14, TOP = 4, AXIS = 26;
  const drawTimeline = (place) => {
    const { seconds, rows, kinds } = dataOf(place.id);
    place.classList.add("timeline");
    const height = TOP + rows.length * ROW + AXIS;
    const canvas = element("canvas", { tabIndex: 0, height });
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", `What each of ${rows.length} pipeline stages works on during a step of ${seconds.toPrecision(3)} seconds`);
    canvas.style.height = `${height}px`;
    const told = element("div", { className: "told" });
    told.setAttribute("aria-live", "polite");
    let from = 0, to = 1e6;
    const zoom = (factor, middle = (from + to) / 2) => {
      const length = Math.min(Math.max((to - from) * factor, 200), 1e6);
      const share = (middle - from) / (to - from);
      move(middle - share * length - from, length);
    };
    const move = (by, length = to - from) => {
      from = Math.min(Math.max(from + by, 0), 1e6 - length);
      to = from + length;
      draw();
    };
    const buttons = [["Zoom in", () => zoom(0.5)], ["Zoom out", () => zoom(2)], ["Whole step", () => zoom(1e9)]]
      .map(([name, act]) => element("button", { type: "button", textContent: name, onclick: act }));
    const legend = Object.values(kinds).map(({ name, colour }) => {
      const mark = element("i");
      mark.style.background = colour;
      return element("span", { className: "legend" }, mark, name);
    });
    place.append(element("div", { className: "controls" }, ...buttons, ...legend), canvas, told);
    const secondsText = (value) => (value >= 1 ? `${value.toPrecision(4)} s` : `${(1e3 * value).toPrecision(4)} ms`);
    const draw = () => {
      const ratio = window.devicePixelRatio || 1, width = place.clientWidth;
      canvas.width = width * ratio;
      canvas.height = height * ratio;
      const pen = canvas.getContext("2d");
      pen.scale(ratio, ratio);
      pen.clearRect(0, 0, width, height);
      pen.font = "12px system-ui, sans-serif";
      const scale = (width - LEFT - 8) / (to - from);
      rows.forEach((row, number) => {
        const y = TOP + number * ROW;
        pen.fillStyle = style("--ink");
        pen.textAlign = "right";
        pen.fillText(row.name, LEFT - 8, y + 11);
        for (let i = 0; i < row.begin.length; i++) {
          const begin = row.begin[i], end = begin + row.length[i];
          if (end < from || begin > to) continue;
          const x = LEFT + Math.max(begin - from, 0) * scale;
          const wide = Math.max((Math.min(end, to) - Math.max(begin, from)) * scale, 0.4);
          pen.fillStyle = kinds[row.kind[i]].colour;
          pen.fillRect(x, y, wide > 3 ? wide - 0.6 : wide, BAR);
          if (wide > 22) {
            pen.fillStyle = "#ffffff";
            pen.textAlign = "center";
            pen.fillText(String(row.microbatch[i]), x + wide / 2, y + 11);
          }
        }
      });
      pen.fillStyle = style("--faint");
      for (const part of [0, 0.25, 0.5, 0.75, 1]) {
        pen.textAlign = part === 0 ? "left" : part === 1 ? "right" : "center";
        const at = ((from + part * (to - from)) / 1e6) * seconds;
        pen.fillText(secondsText(at), LEFT + part * (width - LEFT - 8), height - 8);
      }
    };
    const timeAt = (event) => from + ((event.offsetX - LEFT) / (place.clientWidth - LEFT - 8)) * (to - from);
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && Math.abs(event.deltaX) > Math.abs(event.deltaY)) return;
      event.preventDefault();
      zoom(event.deltaY > 0 ? 1.25 : 0.8, timeAt(event));
    }, { passive: false });
    let held = null;
    canvas.addEventListener("pointerdown", (event) => { held = event.offsetX; });
    window.addEventListener("pointerup", () => { held = null; });
    canvas.addEventListener("pointermove", (event) => {
      if (held !== null) {
        move((held - event.offsetX) * ((to - from) / (place.clientWidth - LEFT - 8)));
        held = event.offsetX;
        return;
      }
      const row = rows[Math.floor((event.offsetY - TOP) / ROW)], at = timeAt(event);
      const i = row ? row.begin.findIndex((begin, k) => begin <= at && at <= begin + row.length[k]) : -1;
      told.textContent = i < 0 ? "" : `${row.name}: ${kinds[row.kind[i]].name} of micro-batch ${row.microbatch[i]}, ` +
        `${secondsText((row.length[i] / 1e6) * seconds)} from ${secondsText((row.begin[i] / 1e6) * seconds)} on`;
    });
    canvas.addEventListener("keydown", (event) => {
      const acts = {
        "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), 0: () => zoom(1e9),
        ArrowLeft: () => move(-0.1 * (to - from)), ArrowRight: () => move(0.1 * (to - from)),
      };
      if (event.key in acts) { event.preventDefault(); acts[event.key](); }
    });
    new ResizeObserver(draw).observe(place);
    redraws.push(draw);
  };

  // --- the designs of a study: axes and filters to choose, a design's details on a click
  const drawDesigns = (place) => {
    const { columns, names, axes, filters, groups, group, detail } = dataOf(place.id);
    const count = group.length;
    const chart = element("div", { className: "chart" });
    chart.style.height = "430px";
    chart.setAttribute("role", "img");
    const panel = element("div", { className: "detail" });
    panel.setAttribute("aria-live", "polite");
    const chosen = { x: axes[1] ?? axes[0], y: axes[0] }, wanted = {};
    const choose = (label, values, value, act) => {
      const select = element("select", {}, ...values.map(([key, text]) => element("option", { value: key, textContent: text, selected: key === value })));
      select.onchange = () => { act(select.value); draw(); };
      return element("label", {}, label, select);
    };
    const named = axes.map((axis) => [axis, names[axis] ?? axis]);
    const controls = element("div", { className: "controls" },
      choose("across", named, chosen.x, (value) => { chosen.x = value; }),
      choose("up", named, chosen.y, (value) => { chosen.y = value; }),
      ...Object.entries(filters).map(([name, values]) =>
        choose(names[name] ?? name, [["", "any"], ...values.map(([value, text]) => [String(value), text])], "", (value) => { wanted[name] = value; })));
    const left = element("div", {}, controls, chart);
    place.classList.add("designs");
    place.append(left, panel);
    const matches = (i) => Object.entries(wanted).every(([name, value]) => value === "" || String(columns[name][i]) === value);
    const draw = () => {
      const data = groups.map(({ name, colour, symbol, size }, number) => {
        const rows = [];
        for (let i = 0; i < count; i++) if (group[i] === number && matches(i)) rows.push(i);
        return {
          type: "scatter", mode: "markers", name: `${name} (${rows.length.toLocaleString("en")})`, customdata: rows,
          x: rows.map((i) => columns[chosen.x][i]), y: rows.map((i) => columns[chosen.y][i]),
          marker: { color: colour, symbol, size, opacity: number === 0 ? 1 : 0.6 },
          hovertemplate: `%{x:.4g}, %{y:.4g}<extra>${name}</extra>`,
        };
      }).reverse();
      chart.setAttribute("aria-label", `Designs by ${names[chosen.x] ?? chosen.x} and ${names[chosen.y] ?? chosen.y}: ${data.map((each) => each.name).join(", ")}`);
      Plotly.react(chart, data, themed({
        xaxis: { title: { text: names[chosen.x] ?? chosen.x } }, yaxis: { title: { text: names[chosen.y] ?? chosen.y } },
        showlegend: true, dragmode: "pan",
      }), CONFIG);
    };
    const show = (i) => {
      panel.replaceChildren();
      const told = detail[String(columns.code[i])];
      panel.append(element("h3", { textContent: `Design ${columns.code[i].toLocaleString("en")}` }));
      if (told && told.picture) {
        const sketch = element("div", { className: "drawing" });
        sketch.innerHTML = told.picture;  // SVG that Dovetail drew, no text of a user's in it
        panel.append(sketch);
      }
      const text = (name) => {
        const known = (filters[name] ?? []).find(([value]) => value === columns[name][i]);
        return known ? known[1] : Number(columns[name][i]).toLocaleString("en", { maximumSignificantDigits: 5 });
      };
      const rows = told ? told.rows : Object.keys(columns).filter((name) => name !== "code").map((name) => [names[name] ?? name, text(name)]);
      panel.append(element("table", {}, element("tbody", {}, ...rows.map(([name, text]) => {
        const heading = element("th", { textContent: name });
        heading.setAttribute("scope", "row");
        return element("tr", {}, heading, element("td", { textContent: text }));
      }))));
    };
    draw();
    show(0);
    chart.on("plotly_click", (event) => show(event.points[0].customdata));
    redraws.push(draw);
  };

  const WIDGETS = { timeline: drawTimeline, designs: drawDesigns };
  // a picture is drawn when it comes near the window, or when the page is printed
  const waiting = new Map();
  const near = new IntersectionObserver((entries) => {
    entries.filter((entry) => entry.isIntersecting).forEach((entry) => drawNow(entry.target));
  }, { rootMargin: "300px" });
  const drawNow = (place) => {
    const draw = waiting.get(place);
    waiting.delete(place);
    near.unobserve(place);
    if (draw) draw(place);
  };
  const drawAll = (within) => {
    within.querySelectorAll(".chart[id]").forEach((place) => waiting.set(place, drawChart));
    within.querySelectorAll(".widget").forEach((place) => waiting.set(place, WIDGETS[place.dataset.kind]));
    waiting.forEach((_, place) => near.observe(place));
  };

  // --- light and dark
  const button = document.getElementById("theme");
  const setTheme = (name) => {
    root.dataset.theme = name;
    button.setAttribute("aria-pressed", String(name === "dark"));
    redraws.forEach((draw) => draw());
  };
  const asked = new URLSearchParams(location.search).get("theme");
  root.dataset.theme = asked === "dark" || asked === "light" ? asked
    : matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  button.setAttribute("aria-pressed", String(root.dataset.theme === "dark"));
  button.onclick = () => setTheme(root.dataset.theme === "dark" ? "light" : "dark");
  addEventListener("beforeprint", () => {
    [...waiting.keys()].forEach(drawNow);
    setTheme("light");
  });
  drawAll(document);
  window.dovetail = { drawAll, redraws };
})();
