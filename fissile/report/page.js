"use strict";
(() => {
  // ---------------------------------------------------------------- data
  const doc = JSON.parse(document.getElementById("data").textContent);
  const DISPATCH = 1e-6; // a floor below this is less than starting the kernel and meeting at its end costs
  const MOST_NODES = 3000;
  const LIMITS = {
    compute: "arithmetic", memory: "DRAM", cache: "a cache", dispatch: "starting it (floor under 1 µs)",
    python: "runs in Python", package: "another package runs it", unknown: "not known",
  };
  const subjects = doc.artifacts.map((artifact) => ({ artifact, record: artifact.record, runs: artifact.runs || [] }));
  const main = subjects[0];
  const state = {
    kernel: null, run: main.runs.length - 1, least: 1, sort: "time", picture: "map",
    depth: main.record.operators.length ? "operators" : "kernels", folded: true, query: "", rule: "", found: 0,
  };

  const median = (row) => {
    if (!row || !row.length) return null;
    const sorted = [...row].sort((a, b) => a - b), half = sorted.length >> 1;
    return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
  };
  const quantile = (row, q) => {
    const sorted = [...row].sort((a, b) => a - b);
    return sorted[Math.min(sorted.length - 1, Math.floor(q * sorted.length))];
  };
  const sum = (row) => row.reduce((a, b) => a + b, 0);
  const digits = (x) => (x >= 100 ? x.toFixed(0) : x >= 10 ? x.toFixed(1) : x.toFixed(2));
  const time = (s) => (s == null ? "–" : s === 0 ? "0" : Math.abs(s) >= 1e-4 ? `${digits(s * 1e3)} ms` : `${digits(s * 1e6)} µs`);
  const bytes = (n) => (n == null ? "–" : n >= 1e6 ? `${digits(n / 1e6)} MB` : n >= 1e3 ? `${digits(n / 1e3)} kB` : `${n} B`);
  const times = (x) => (x == null || !isFinite(x) ? "–" : `${digits(x)}×`);
  const percent = (x) => (x == null ? "–" : `${digits(100 * x)} %`);
  const flop = (n) => (n == null ? "–" : n >= 1e9 ? `${digits(n / 1e9)} GFLOP` : n >= 1e6 ? `${digits(n / 1e6)} MFLOP` : `${n} FLOP`);

  function limitOf(kernel) {
    if (kernel.anchor === "foreign") return "python";
    if (!kernel.function) return "package";
    if (kernel.floor == null) return "unknown";
    if (kernel.floor < DISPATCH) return "dispatch";
    return kernel.level === "compute" || kernel.level === "memory" ? kernel.level : "cache";
  }

  function kernelsOf(subject, at) {
    const { record, artifact } = subject, run = subject.runs[at];
    const text = (i) => record.texts[i];
    const tuned = artifact.tuning && artifact.tuning.kernels.length === record.kernels.length ? artifact.tuning.kernels : null;
    const types = new Map(record.operators.map(([name, title]) => [text(name), text(title).replace(/\(\d+\)$/, "")]));
    return record.kernels.map((row, i) => {
      const primitive = (n) => text(record.primitives[n][0]);
      const names = row.nodes.map(primitive), serves = row.serves.map(text), tuning = tuned ? tuned[i] : null;
      const head = row.anchor === "pack" ? "pack" : operatorsOf(types, serves) || names[names.length - 1];
      const more = serves.length > 1 ? ` +${serves.length - 1}` : "";
      const samples = run ? run.samples[i] : tuning ? tuning.whole_seconds : [];
      const kernel = {
        i, ...row, names, serves, tuning, samples, title: head || row.function || row.anchor,
        label: `${head || row.function || row.anchor}${serves.length ? ` · ${serves[0]}${more}` : ""}`,
        time: median(samples), floor: run ? run.floors[i] : tuning ? tuning.bound_seconds : null,
        level: run ? run.limits[i] : null, bytes: run ? run.bytes[i] : number(row.work[0], row.work[1]),
        operations: run ? run.operations[i] : number(row.work[2]),
      };
      kernel.limit = limitOf(kernel);
      kernel.ratio = kernel.time != null && kernel.floor ? kernel.time / kernel.floor : null;
      kernel.waste = kernel.time == null ? null : kernel.time - (kernel.floor || 0);
      return kernel;
    });
  }

  function operatorsOf(types, serves) {
    const found = [...new Set(serves.map((name) => types.get(name)).filter(Boolean))];
    return found.length > 4 ? `${found.slice(0, 3).join(" ")} +${found.length - 3}` : found.join(" ");
  }

  function number(...texts) {
    const found = texts.map(Number);
    return texts.some((t) => t === "") || found.some(isNaN) ? null : sum(found);
  }

  let kernels = kernelsOf(main, state.run);
  const isTimed = () => kernels.some((k) => k.time != null);
  const weight = (k) => (isTimed() ? k.time || 0 : (k.operations || 0) + (k.bytes || 0));
  const total = () => sum(kernels.map(weight)) || 1;
  const isShown = (k) => state.least <= 1 || (k.ratio != null && k.ratio > state.least);

  // ---------------------------------------------------------------- elements

  function fill(element, attributes, children) {
    for (const [name, value] of Object.entries(attributes || {})) {
      if (value == null || value === false) continue;
      if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else element.setAttribute(name, value === true ? "" : value);
    }
    for (const child of children.flat(3)) {
      if (child != null && child !== false) element.append(child.nodeType ? child : document.createTextNode(String(child)));
    }
    return element;
  }
  const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
  const g = (tag, attributes, ...children) => fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
  const badge = (limit) => h("span", { class: `badge b-${limit}`, "aria-hidden": "true" });
  const cut = (text, most) => (text.length > most ? `${text.slice(0, Math.max(1, most - 1))}…` : text);

  function copying(label, text) {
    const button = h("button", { type: "button" }, label);
    const say = (word) => { button.textContent = word; setTimeout(() => { button.textContent = label; }, 1500); };
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(text());
        say("copied");
      } catch {
        const area = h("textarea", { readonly: true }, text());
        document.body.append(area);
        area.select();
        say(document.execCommand("copy") ? "copied" : "press Ctrl+C");
        area.remove();
      }
    });
    return button;
  }

  function table(columns, rows, options = {}) {
    const head = columns.map((c) => h("th", { scope: "col", class: `${c.number ? "n" : ""} ${c.wide ? "wide" : ""}` }, c.name));
    const body = rows.map((row, at) => {
      const cells = columns.map((c) => h("td", { class: `${c.number ? "n" : ""} ${c.wide ? "wide" : ""} ${c.class || ""}` }, c.cell(row)));
      const pick = options.pick;
      return h("tr", {
        class: `${pick ? "row" : ""} ${options.isOn && options.isOn(row) ? "on" : ""}`, tabindex: pick ? (at === 0 ? 0 : -1) : null,
        "data-key": pick ? `row-${options.key}-${row.i ?? at}` : null, onclick: pick && (() => pick(row)),
      }, cells);
    });
    const inside = h("table", {}, h("thead", {}, h("tr", {}, head)), h("tbody", {}, body));
    if (options.pick) roving(inside, "tbody tr", (element) => options.pick(rows[body.indexOf(element)]));
    return h("div", { class: "scroll", tabindex: options.pick ? null : 0, role: "region", "aria-label": options.label || "table" }, inside);
  }

  // One element of a group is in the tab order; arrows move among them, Enter and space pick.
  function roving(container, selector, pick) {
    container.addEventListener("keydown", (event) => {
      const all = [...container.querySelectorAll(selector)], at = all.indexOf(event.target);
      if (at < 0) return;
      const steps = { ArrowDown: at + 1, ArrowRight: at + 1, ArrowUp: at - 1, ArrowLeft: at - 1, Home: 0, End: all.length - 1 };
      if (event.key in steps) {
        const next = all[Math.max(0, Math.min(all.length - 1, steps[event.key]))];
        all.forEach((x) => x.setAttribute("tabindex", x === next ? 0 : -1));
        next.focus();
      } else if (event.key === "Enter" || event.key === " ") pick(event.target);
      else return;
      event.preventDefault();
    });
  }

  const choice = (label, value, options, change) =>
    h("label", {}, label, h("select", { "data-key": `choice-${label}`, onchange: (e) => change(e.target.value) },
      options.map(([key, name]) => h("option", { value: key, selected: key === value }, name))));
  const group = (label, value, options, change) =>
    h("span", { class: "group", role: "group", "aria-label": label }, options.map(([key, name]) =>
      h("button", { type: "button", "data-key": `group-${label}-${key}`, "aria-pressed": String(key === value), onclick: () => change(key) }, name)));

  // ---------------------------------------------------------------- sections

  const views = [];
  let chartWidth = 600;
  function section(id, title, question, draw) {
    const body = h("div", {});
    document.getElementById("main").append(h("section", { id, "aria-labelledby": `${id}-title` },
      h("h2", { id: `${id}-title` }, title), h("p", { class: "question" }, question), body));
    document.getElementById("nav").append(h("a", { href: `#${id}` }, title));
    views.push({ id, body, draw });
  }
  function drawView(view) {
    const active = document.activeElement, key = view.body.contains(active) ? active.dataset.key : null;
    const places = [...view.body.querySelectorAll(".scroll")].map((x) => x.scrollTop);
    view.body.replaceChildren(...[view.draw()].flat(3).filter(Boolean));
    [...view.body.querySelectorAll(".scroll")].forEach((x, i) => { x.scrollTop = places[i] || 0; });
    const again = key && view.body.querySelector(`[data-key="${CSS.escape(key)}"]`);
    if (again) { again.setAttribute("tabindex", 0); again.focus({ preventScroll: true }); }
  }
  const redraw = (...ids) => views.filter((v) => !ids.length || ids.includes(v.id)).forEach(drawView);

  function select(kernel, shouldShow) {
    state.kernel = kernel;
    const chip = document.getElementById("chip");
    chip.hidden = kernel == null;
    if (kernel != null) {
      chip.replaceChildren(badge(kernels[kernel].limit), h("span", {}, `kernel ${kernel}: ${kernels[kernel].label}`),
        h("button", { type: "button", onclick: () => select(null) }, "show all"));
    }
    redraw("where", "kernel", "changed", "proof", "compare");
    paintGraph();
    showInGraph();
    if (shouldShow) document.getElementById("kernel").scrollIntoView({ block: "start" });
  }

  // ---------------------------------------------------------------- 1. summary

  function wholeOf(subject, at) {
    const run = subject.runs[at];
    return run ? median(run.whole) : null;
  }

  function summaryFigures() {
    const { artifact } = main, found = [];
    main.runs.forEach((run, at) => {
      const count = `${run.threads} thread${run.threads > 1 ? "s" : ""}`;
      found.push([time(wholeOf(main, at)), `one call, ${count}, median of ${run.whole.length}`]);
    });
    const proof = artifact.manifest.certificate || {};
    if (proof.untuned_seconds && proof.measured_seconds) {
      found.push([times(proof.untuned_seconds / proof.measured_seconds), `as fast as untuned (${time(proof.untuned_seconds)} → ${time(proof.measured_seconds)} when tuned)`]);
    }
    for (const r of (doc.bench ? doc.bench.records : []).filter((r) => r.engine !== "fissile")) {
      found.push([times(r.ratio), `${r.engine}'s time over fissile's, ${r.threads} thread${r.threads > 1 ? "s" : ""}: ${time(r.p10_seconds)}, ${r.verdict}`]);
    }
    if (artifact.call) {
      found.push([bytes(artifact.call.arena + artifact.call.scratch), "memory of one call, beside weights"]);
      found.push([bytes(artifact.call.weights), "weights, shared by all processes"]);
    }
    found.push([bytes(artifact.bytes), "artifact"]);
    found.push([String(kernels.length), `kernels of ${main.record.operators.length || "?"} operators`]);
    found.push([String((artifact.manifest.foreign || []).length), "operators that run in Python"]);
    return found;
  }

  function summaryFacts() {
    const { artifact } = main, { manifest } = artifact, machine = doc.machine || {};
    const options = manifest.options || {}, off = options.disable || [];
    const rows = [
      ["proved", proofText(manifest.certificate)],
      ["machine", machine.cpu && `${machine.cpu} · ${machine.allowed} of ${machine.cpus} CPUs · load ${machine.load}${machine.virtual ? " · virtual" : ""}`],
      ["measured", main.runs.length ? `${doc.date}, inputs ${artifact.call.inputs.join(", ")}, random` : artifact.error || "not run"],
      ["compiled for", `${artifact.targets.join(", ")} · ${manifest.threads} thread${manifest.threads > 1 ? "s" : ""}`],
      ["model", `${manifest.model.name || "(bytes)"} · opset ${manifest.model.opset} · sha256 ${manifest.model.sha256}`],
      ["artifact", `${artifact.name} · manifest sha256 ${artifact.sha256}`],
      ["versions", `compiled by fissile ${manifest.fissile}, reported by ${doc.fissile}`],
      ["in Python", (manifest.foreign || []).join(", ")],
      ["in other packages", Object.entries(manifest.providers || {}).map(([name, calls]) => `${name}: ${calls.length}`).join(", ")],
      ["left out", off.map((r) => `--disable ${r}`).join(" ")],
    ];
    return rows.filter((row) => row[1]);
  }

  function proofText(proof) {
    if (!proof || proof.candidates == null) return "nothing: the artifact carries no certificate";
    const share = `${proof.measured} of ${proof.candidates} candidate kernels measured`;
    if (!proof.measured) return `nothing was measured: times are predicted for a nominal machine (${share})`;
    if (proof.window_gap === null) return `nothing yet: measuring stopped early; gap ${percent(proof.gap)}, ${share}`;
    const gap = proof.gap > 1e-6 ? `within ${percent(proof.gap)} of the cheapest plan` : "the cheapest plan";
    const open = proof.complete === false ? "; the budget ended before all were timed again" : "";
    const strict = proof.admissible_gap > 1e-6 ? `, ${percent(proof.admissible_gap)} if nothing is taken for granted of those that were not measured` : "";
    return `${gap} of these candidates under measured costs${strict}; ${share}${open}`;
  }

  section("summary", "Summary", "How fast is it, compared with what, and what is it made of?", () => {
    const { artifact } = main, figures = summaryFigures(), facts = summaryFacts();
    const text = () => [`fissile report: ${artifact.name}`, ...figures.map((f) => `${f[0].padStart(10)}  ${f[1]}`), ...facts.map((f) => `${f[0]}: ${f[1]}`)].join("\n");
    const json = () => JSON.stringify({ name: artifact.name, figures, facts: Object.fromEntries(facts), manifest: artifact.manifest, machine: doc.machine, whole: main.runs.map((r) => ({ threads: r.threads, seconds: r.whole })) }, null, 1);
    return h("div", { class: "card" },
      h("h1", {}, artifact.manifest.model.name || artifact.name),
      artifact.error && h("p", { class: "bad" }, artifact.error),
      h("div", { class: "figures" }, figures.map(([value, what]) => h("div", { class: "figure" }, h("b", {}, value), h("span", {}, what)))),
      h("dl", {}, facts.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
      h("div", { class: "tools" }, copying("Copy as text", text), copying("Copy as JSON", json)));
  });

  // ---------------------------------------------------------------- 2. where the time goes

  function squarify(items, x, y, w, hh) {
    const out = [];
    let rest = items.filter((k) => weight(k) > 0).sort((a, b) => weight(b) - weight(a));
    let scale = (w * hh) / (sum(rest.map(weight)) || 1);
    while (rest.length) {
      const side = Math.max(1e-6, Math.min(w, hh));
      let row = [], area = 0, worst = Infinity;
      for (const k of rest) {
        const more = area + weight(k) * scale, big = weight((row[0] || k)) * scale, small = weight(k) * scale;
        const now = Math.max((side * side * big) / (more * more), (more * more) / (side * side * small));
        if (now > worst) break;
        row.push(k); area = more; worst = now;
      }
      const thick = area / side;
      let at = 0;
      for (const k of row) {
        const long = (weight(k) * scale) / thick;
        out.push(w >= hh ? { k, x, y: y + at, w: thick, h: long } : { k, x: x + at, y, w: long, h: thick });
        at += long;
      }
      if (w >= hh) { x += thick; w -= thick; } else { y += thick; hh -= thick; }
      rest = rest.slice(row.length);
    }
    return out;
  }

  function patterns() {
    return g("defs", {},
      g("pattern", { id: "hatch", width: 8, height: 8, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" }, g("path", { d: "M0 0V8", class: "hatch" })),
      g("pattern", { id: "dots", width: 9, height: 9, patternUnits: "userSpaceOnUse" }, g("circle", { cx: 3, cy: 3, r: 1.3, class: "dots" })));
  }
  const texture = (limit) => ({ memory: "url(#hatch)", cache: "url(#dots)" })[limit];

  function tile(at, first) {
    const { k } = at, w = Math.max(at.w, 0.5), hh = Math.max(at.h, 0.5), lines = [];
    if (w > 44 && hh > 18) lines.push(cut(k.title, Math.floor((w - 8) / 6.6)));
    if (w > 58 && hh > 36) lines.push(cut(k.time == null ? flop(k.operations) : time(k.time), Math.floor((w - 8) / 6.6)));
    if (w > 58 && hh > 54 && k.ratio) lines.push(cut(`${times(k.ratio)} floor`, Math.floor((w - 8) / 6.6)));
    const said = `kernel ${k.i}: ${k.label}, ${time(k.time)}, ${times(k.ratio)} its floor, limited by ${LIMITS[k.limit]}`;
    const area = { x: at.x, y: at.y, width: w, height: hh };
    return g("g", {
      class: `tile ${isShown(k) ? "" : "dim"} ${state.kernel === k.i ? "on" : ""}`, role: "button", "aria-label": said, tabindex: first ? 0 : -1,
      "data-key": `tile-${k.i}`, "data-kernel": k.i, onclick: () => select(k.i),
    }, g("title", {}, said), g("rect", { ...area, class: `face is-${k.limit}` }),
      texture(k.limit) && g("rect", { ...area, fill: texture(k.limit), "pointer-events": "none" }),
      lines.map((line, i) => g("text", { x: at.x + 5, y: at.y + 15 + 16 * i }, line)));
  }

  function picture(width) {
    const height = state.picture === "map" ? Math.round(Math.max(220, Math.min(420, width * 0.42))) : 64;
    let places;
    if (state.picture === "map") places = squarify(kernels, 0, 0, width, height);
    else {
      let x = 0;
      places = kernels.filter((k) => weight(k) > 0).map((k) => {
        const at = { k, x, y: 0, w: (weight(k) / total()) * width, h: height };
        x += at.w;
        return at;
      });
    }
    const chosen = places.findIndex((p) => p.k.i === state.kernel);
    const svg = g("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "group", "aria-label": "kernels by time; arrows move, Enter selects" },
      patterns(), places.map((p, i) => tile(p, i === Math.max(0, chosen))),
      chosen >= 0 && g("rect", { x: places[chosen].x, y: places[chosen].y, width: Math.max(2, places[chosen].w), height: Math.max(2, places[chosen].h), class: "chosen" }));
    roving(svg, ".tile", (element) => select(Number(element.dataset.kernel)));
    return h("div", { class: "chart" }, svg);
  }

  const orders = {
    time: (a, b) => weight(b) - weight(a),
    waste: (a, b) => (b.waste ?? -1) - (a.waste ?? -1),
    order: (a, b) => a.i - b.i,
  };
  const kernelName = (k) => [h("div", {}, badge(k.limit), k.title), h("div", { class: "names" }, cut(k.serves.join(", "), 90))];

  function kernelTable() {
    const rows = kernels.filter(isShown).sort(orders[state.sort]);
    return table([
      { name: "#", number: true, wide: true, cell: (k) => k.i },
      { name: "kernel", class: "name", cell: kernelName },
      { name: "limit", wide: true, cell: (k) => LIMITS[k.limit].replace(/ \(.*/, "") },
      { name: "time", number: true, cell: (k) => time(k.time) },
      { name: "share", number: true, wide: true, cell: (k) => percent(weight(k) / total()) },
      { name: "floor", number: true, wide: true, cell: (k) => time(k.floor) },
      { name: "time / floor", number: true, cell: (k) => times(k.ratio) },
      { name: "waste", number: true, cell: (k) => time(k.waste) },
    ], rows, { pick: (k) => select(k.i), isOn: (k) => k.i === state.kernel, key: "kernel", label: "kernels" });
  }

  section("where", "Where the time goes", "Which kernels take the time, what limits them, and how far are they from what the machine could do at best?", () => {
    chartWidth = Math.round(Math.max(260, document.getElementById("main").clientWidth - 32));
    const slow = kernels.filter(isShown), part = sum(slow.map(weight)) / total();
    const range = h("input", { type: "range", min: 1, max: 8, step: 0.5, value: state.least, "data-key": "least", "aria-label": "least time over floor",
      oninput: (e) => { state.least = Number(e.target.value); redraw("where"); } });
    return [
      h("div", { class: "tools" },
        main.runs.length > 1 && choice("threads", String(state.run), main.runs.map((r, i) => [String(i), String(r.threads)]), (v) => { state.run = Number(v); kernels = kernelsOf(main, state.run); redraw(); paintGraph(); }),
        group("picture", state.picture, [["map", "map"], ["bar", "in order"]], (v) => { state.picture = v; redraw("where"); }),
        choice("sort by", state.sort, [["time", "time"], ["waste", "waste (time − floor)"], ["order", "order of running"]], (v) => { state.sort = v; redraw("where"); }),
        h("label", {}, "only above", range, state.least > 1 ? `${state.least}× its floor` : "any")),
      !isTimed() && h("p", { class: "bad" }, "Nothing was measured: areas show bytes and operations, not time."),
      picture(chartWidth),
      h("div", { class: "legend" }, Object.keys(LIMITS).filter((l) => kernels.some((k) => k.limit === l)).map((l) =>
        h("span", {}, g("svg", { viewBox: "0 0 14 14", "aria-hidden": "true" }, g("rect", { width: 14, height: 14, rx: 2, class: `is-${l}` }),
          texture(l) && g("rect", { width: 14, height: 14, fill: texture(l) })), `limited by ${LIMITS[l]}`.replace("limited by runs", "runs").replace("limited by not", "limit not")))),
      h("p", { class: "soft" }, `${slow.length} of ${kernels.length} kernels shown, ${percent(part)} of the time. The floor is the roofline: every byte once at the highest rate measured here, every operation at the highest rate measured here. Times are read on the first thread: what it waits for at the end of a kernel belongs to that kernel.`),
      kernelTable(),
    ];
  });

  // ---------------------------------------------------------------- 3. the kernel sheet

  const primitive = (n) => {
    const [name, attrs, type, reads, origins] = main.record.primitives[n], text = main.record.texts;
    return { n, name: text[name], attrs: text[attrs], type: text[type], reads, origins: origins.map((o) => text[o]) };
  };
  const current = () => kernels[state.kernel ?? [...kernels].sort(orders.waste)[0]?.i ?? 0];

  const plotWidth = () => Math.max(240, Math.min(560, chartWidth - 40));
  const ruleName = (name) => h("code", {}, name.split(/(?<=_)/).map((part) => [part, h("wbr", {})]));

  function stripPlot(rows) {
    const all = rows.flatMap((r) => r.samples);
    if (!all.length) return null;
    const low = Math.min(...all), high = Math.max(...all), span = high - low || low || 1, width = plotWidth();
    const x = (s) => 12 + ((s - low) / span) * (width - 24);
    return g("svg", { viewBox: `0 0 ${width} ${rows.length * 34 + 22}`, class: "plot", role: "img", "aria-label": "measured samples" },
      rows.map((r, i) => [
        g("line", { x1: 12, x2: width - 12, y1: 26 + i * 34, y2: 26 + i * 34, class: "axis" }),
        r.samples.map((s, j) => g("circle", { cx: x(s), cy: 26 + i * 34 + ((j * 7) % 9) - 4, r: 3, class: `is-${i ? "cache" : "compute"} ghost` })),
        r.samples.length && g("line", { x1: x(median(r.samples)), x2: x(median(r.samples)), y1: 15 + i * 34, y2: 37 + i * 34, class: "curve" }),
        g("text", { x: 12, y: 12 + i * 34, class: "axis-text" }, `${r.name}: median ${time(median(r.samples))}`)]),
      g("text", { x: 12, y: rows.length * 34 + 18, class: "axis-text" }, time(low)),
      g("text", { x: width - 12, y: rows.length * 34 + 18, class: "axis-text", "text-anchor": "end" }, time(high)));
  }

  function roofline(kernel) {
    const peaks = doc.peaks, run = main.runs[state.run];
    if (!peaks || !run) return null;
    const flops = peaks.operations * run.threads, dots = kernels.filter((k) => k.operations > 0 && k.bytes > 0 && k.time);
    if (!dots.length) return h("p", { class: "soft" }, "no kernel with operations and bytes that are known");
    const width = plotWidth(), height = 260, log = Math.log10, low = -2, high = 3.5;
    const top = log(flops) + 0.3, bottom = Math.min(top - 4, Math.min(...dots.map((k) => log(k.operations / k.time))) - 0.2);
    const x = (v) => 46 + ((Math.max(low, Math.min(high, v)) - low) / (high - low)) * (width - 58);
    const y = (v) => 10 + ((top - Math.max(bottom, Math.min(top, v))) / (top - bottom)) * (height - 44);
    const roofs = Object.entries(peaks.bytes).map(([level, rate]) => {
      const points = [];
      for (let v = low; v <= high + 1e-9; v += 0.05) points.push(`${x(v).toFixed(1)},${y(log(Math.min(flops, rate * run.threads * 10 ** v))).toFixed(1)}`);
      return g("polyline", { points: points.join(" "), class: "roof" }, g("title", {}, `${level}: ${digits(rate / 1e9)} GB/s of one core`));
    });
    const dot = (k, isOn) => g("circle", { cx: x(log(k.operations / k.bytes)), cy: y(log(k.operations / k.time)), r: isOn ? 7 : 3.5, class: `dot is-${k.limit} ${isOn ? "on" : "ghost"}` }, g("title", {}, k.label));
    const ticks = [-2, -1, 0, 1, 2, 3];
    return g("svg", { viewBox: `0 0 ${width} ${height}`, class: "plot", role: "img", "aria-label": "roofline" }, roofs,
      ticks.map((t) => g("text", { x: x(t), y: height - 16, class: "axis-text", "text-anchor": "middle" }, t >= 0 ? 10 ** t : `1/${10 ** -t}`)),
      [9, 10, 11, 12].filter((t) => t > bottom && t < top).map((t) => g("text", { x: 2, y: y(t) + 4, class: "axis-text" }, `${10 ** (t - 9)}`)),
      dots.filter((k) => k !== kernel).map((k) => dot(k, false)), dots.includes(kernel) && dot(kernel, true));
  }

  function sheetFacts(k) {
    const at = k.time;
    return [
      ["built around", `${k.anchor}, step ${k.step}, function ${k.function || `(${LIMITS[k.limit]})`}${k.tasks ? `, tasks ${k.tasks}` : ""}`],
      ["time", `${time(at)} · floor ${time(k.floor)} · ${times(k.ratio)} · ${percent(weight(k) / total())} of the ${isTimed() ? "time" : "work"}`],
      ["limited by", `${LIMITS[k.limit]}${k.level ? ` (${k.level})` : ""}`],
      ["at least", `${bytes(k.bytes)} moved, ${flop(k.operations)}${main.runs.length ? "" : ` (weights ${k.work[0]} B, others ${k.work[1]} B, operations ${k.work[2]})`}`],
      ["achieved", at && k.operations != null ? `${digits(k.operations / at / 1e9)} GFLOP/s · ${digits(k.bytes / at / 1e9)} GB/s` : "–"],
    ];
  }

  function whyNot(k) {
    const rows = main.record.refusals.filter((r) => r[0] === k.i || r[1] === k.i)
      .map((r) => ({ other: kernels[r[0] === k.i ? r[1] : r[0]], how: r[0] === k.i ? "is read by" : "reads", reason: r[2] }));
    if (!rows.length) return h("p", { class: "soft" }, "It shares no tensor with another kernel, or nothing was recorded.");
    return table([
      { name: "", cell: (r) => r.how },
      { name: "kernel", class: "name", cell: (r) => [`${r.other.i}: `, r.other.label] },
      { name: "why they are two", cell: (r) => r.reason },
    ], rows, { pick: (r) => select(r.other.i), key: "why", label: "why not fused" });
  }

  function alternatives(k) {
    const rows = k.tuning ? k.tuning.alternatives : [];
    if (!rows.length) return h("p", { class: "soft" }, main.artifact.tuning ? "No other kernel that writes the same was considered." : "Alternatives are recorded by tuning.");
    return table([
      { name: "kernel", class: "name", cell: (r) => [`${r.anchor}: ${r.label}`, h("div", { class: "names" }, r.primitives.join(", "))] },
      { name: "measured", number: true, cell: (r) => time(r.seconds) },
      { name: "at least", number: true, cell: (r) => time(r.bound_seconds) },
      { name: "plan dearer by", number: true, cell: (r) => time(r.extra_seconds) },
    ], rows, { label: "rejected alternatives" });
  }

  function tensors(k) {
    const row = (how) => (n) => ({ how: k.stored.includes(n) ? (primitive(n).name === "input" ? "model input" : "weight") : how, ...primitive(n) });
    const rows = [...k.inputs.map(row("reads")), ...k.outputs.map(row("writes"))];
    return table([
      { name: "", cell: (r) => r.how },
      { name: "tensor and format", cell: (r) => h("code", {}, r.type) },
      { name: "of", wide: true, cell: (r) => `${r.name}${r.origins.length ? ` (${cut(r.origins.join(", "), 60)})` : ""}` },
    ], rows, { label: "tensors" });
  }

  section("kernel", "Kernel", "What does one kernel compute, at what speed, and why is it cut where it is?", () => {
    const k = current();
    if (!k) return h("p", {}, "The artifact has no kernels.");
    const order = [...kernels].sort(orders[state.sort]), at = order.indexOf(k);
    const step = (by) => select(order[(at + by + order.length) % order.length].i);
    const rows = [{ name: "in the model", samples: main.runs.length ? k.samples : [] }];
    if (k.tuning) rows.push({ name: "in the model when tuned", samples: k.tuning.whole_seconds }, { name: "alone, when tuned", samples: k.tuning.samples });
    const loop = main.record.loops[k.function];
    const nodes = k.serves.map((name) => name);
    return h("div", { class: "card", onkeydown: (e) => { if (e.target.matches(".steps button") && e.key === "ArrowRight") step(1); if (e.target.matches(".steps button") && e.key === "ArrowLeft") step(-1); } },
      h("div", { class: "tools steps" }, h("button", { type: "button", "data-key": "before", onclick: () => step(-1) }, "← previous"), h("button", { type: "button", "data-key": "after", onclick: () => step(1) }, "next →"),
        h("span", { class: "soft" }, `${at + 1} of ${order.length} by ${state.sort}${state.kernel == null ? "; none is selected, this one wastes most" : ""}`)),
      h("h3", {}, badge(k.limit), `kernel ${k.i}: ${k.label}`),
      h("dl", {}, sheetFacts(k).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
      h("div", { class: "split" },
        h("div", {}, h("h3", {}, "Samples"), stripPlot(rows.filter((r) => r.samples.length)) || h("p", { class: "soft" }, "not measured")),
        h("div", {}, h("h3", {}, "Roofline"), roofline(k) ? [roofline(k), h("p", { class: "soft" }, "across: operations per byte; up: GFLOP/s; lines: L1, L2, L3, DRAM")] : h("p", { class: "soft" }, "not measured"))),
      h("div", { class: "split" },
        h("div", {}, h("h3", {}, `ONNX nodes it serves (${nodes.length})`), h("pre", { tabindex: 0 }, nodes.join("\n") || "none: it was made by the compiler")),
        h("div", {}, h("h3", {}, `Primitives (${k.nodes.length})`), h("pre", { tabindex: 0 }, k.nodes.map((n) => { const p = primitive(n); return `${p.name}(${p.reads.map((r) => `%${r}`).join(", ")}${p.attrs ? `; ${p.attrs}` : ""})\n  %${n}: ${p.type}`; }).join("\n")))),
      h("h3", {}, "Formats in and out"), tensors(k),
      h("h3", {}, "Why is it not one kernel with its neighbours?"), whyNot(k),
      h("h3", {}, "What was considered instead"), alternatives(k),
      loop && h("details", {}, h("summary", {}, `Loop program (${main.record.target}, ${loop.split("\n").length} lines)`), h("pre", { tabindex: 0 }, loop)));
  });

  // ---------------------------------------------------------------- 4. the graph

  function graphOf(depth) {
    const { record } = main, text = (i) => record.texts[i];
    const served = new Map();
    kernels.forEach((k) => k.serves.forEach((name) => served.set(name, [...(served.get(name) || []), k.i])));
    if (depth === "operators") {
      return record.operators.map(([name, title, reads]) => {
        const own = served.get(text(name)) || [];
        return { label: text(title).replace(/\(\d+\)$/, ""), sub: text(name), kernels: own, reads, sign: text(title), note: own.length ? "" : "no kernel of its own: folded, or followed by its readers" };
      });
    }
    if (depth === "kernels") return kernelGraph();
    return primitiveGraph();
  }

  function writers() {
    const found = new Map();
    kernels.forEach((k) => k.outputs.forEach((n) => found.set(n, [...(found.get(n) || []), k.i])));
    return found;
  }

  function kernelGraph() {
    const written = writers();
    return kernels.map((k) => ({
      label: k.anchor === "pack" ? `→ panels ${time(k.time)}` : `${k.title} ${k.time == null ? "" : time(k.time)}`, sub: k.serves.join(", "), kernels: [k.i], isEdge: k.anchor === "pack",
      reads: [...new Set(k.inputs.flatMap((n) => written.get(n) || []))].filter((i) => i !== k.i), sign: `${k.anchor} ${k.function}`, note: `format of ${k.outputs.length ? primitive(k.outputs[0]).type : ""}`,
    }));
  }

  function primitiveGraph() {
    const { record } = main, nodes = [], place = new Map(), written = writers(), owners = new Map();
    const fixed = new Set(); // computed from constants alone: not drawn, but where a kernel computes it
    kernels.forEach((k) => k.nodes.forEach((n) => owners.set(n, [...(owners.get(n) || []), k])));
    const copies = (n) => (owners.get(n) || []).filter((k) => k.anchor !== "piece" && k.function).length;
    record.primitives.forEach((row, n) => {
      const p = primitive(n);
      const isConstant = !p.reads.length || p.reads.every((m) => fixed.has(m));
      if (!owners.has(n) && p.name !== "input" && isConstant) { fixed.add(n); return; }
      const own = owners.get(n) || [null];
      own.forEach((k) => {
        place.set(`${k ? k.i : ""}:${n}`, nodes.length);
        nodes.push({ label: p.name, sub: p.origins.join(", "), kernels: k ? [k.i] : [], n, k, isAgain: copies(n) > 1, reads: [], sign: `${p.name} ${p.type}`, note: `%${n}: ${p.type}${k ? "" : "; never stored, its readers follow it"}` });
      });
    });
    nodes.forEach((node) => {
      const found = primitive(node.n).reads.flatMap((m) => {
        const inside = node.k && place.get(`${node.k.i}:${m}`), free = place.get(`:${m}`);
        if (inside != null) return [inside];
        if (free != null) return [free];
        const from = (written.get(m) || []).map((i) => place.get(`${i}:${m}`)).filter((x) => x != null);
        return from.length ? from : (owners.get(m) || []).slice(0, 1).map((k) => place.get(`${k.i}:${m}`));
      });
      node.reads = [...new Set(found)].filter((x) => x != null);
    });
    return nodes;
  }

  // Runs of equal stretches in the order of the file: [start, length of one, how many].
  function repeats(signs) {
    const found = [];
    for (let i = 0; i < signs.length;) {
      let best = null;
      for (let p = 2; p <= Math.min(240, (signs.length - i) >> 1); p++) {
        let length = 0;
        while (i + p + length < signs.length && signs[i + length] === signs[i + p + length]) length++;
        const count = 1 + Math.floor(length / p);
        if (count > 1 && count * p >= 6 && (!best || count * p > best[1] * best[2])) best = [i, p, count];
      }
      if (best) { found.push(best); i += best[1] * best[2]; } else i++;
    }
    return found;
  }

  function foldedGraph(nodes) {
    const blocks = state.folded ? repeats(nodes.map((x) => x.sign)) : [], to = nodes.map((_, i) => i), copy = nodes.map(() => -1), of = nodes.map(() => -1);
    blocks.forEach(([start, length, count], b) => {
      for (let i = start; i < start + length * count; i++) { to[i] = start + ((i - start) % length); copy[i] = Math.floor((i - start) / length); of[i] = b; }
    });
    const kept = new Map();
    nodes.forEach((node, i) => { if (to[i] === i) kept.set(i, { ...node, id: i, block: of[i], reads: new Set(), all: [...node.kernels], names: node.sub }); });
    nodes.forEach((node, i) => {
      const target = kept.get(to[i]);
      if (to[i] !== i) { target.all.push(...node.kernels); target.names += `, ${node.sub}`; }
      node.reads.forEach((r) => { if (to[r] !== to[i] && !(of[r] === of[i] && of[i] >= 0 && copy[r] !== copy[i])) target.reads.add(to[r]); });
    });
    return { nodes: [...kept.values()], blocks };
  }

  function arrange(nodes) {
    const at = new Map(nodes.map((x) => [x.id, x])), rows = [], left = new Map(nodes.map((x) => [x.id, x.reads.size])), readers = new Map();
    nodes.forEach((x) => x.reads.forEach((r) => readers.set(r, [...(readers.get(r) || []), x])));
    const ready = nodes.filter((x) => !x.reads.size);
    nodes.forEach((x) => { x.rank = 0; x.w = Math.max(44, Math.min(230, cut(x.label, 30).length * 7.2 + 18)); });
    while (ready.length) {
      const x = ready.shift();
      (rows[x.rank] ||= []).push(x);
      (readers.get(x.id) || []).forEach((y) => { y.rank = Math.max(y.rank, x.rank + 1); left.set(y.id, left.get(y.id) - 1); if (!left.get(y.id)) ready.push(y); });
    }
    rows.forEach((row) => {
      row.forEach((x) => { const from = [...x.reads].map((r) => at.get(r).x); x.wish = from.length ? sum(from) / from.length : 0; });
      row.sort((a, b) => a.wish - b.wish || a.id - b.id);
      let edge = -Infinity;
      row.forEach((x) => { x.x = Math.max(x.wish, edge + x.w / 2 + 14); edge = x.x + x.w / 2; });
      const shift = sum(row.map((x) => x.wish - x.x)) / row.length;
      row.forEach((x) => { x.x += shift; x.y = x.rank * 52; });
    });
    return at;
  }

  let drawn = null;
  function drawGraph(box) {
    const { nodes, blocks } = foldedGraph(graphOf(state.depth));
    drawn = { nodes, elements: new Map(), edges: [], view: null, svg: null };
    if (nodes.length > MOST_NODES) {
      box.replaceChildren(h("p", { class: "soft" }, `${nodes.length} nodes are too many to draw; this is the list.`), table([
        { name: "node", class: "name", cell: (x) => x.label }, { name: "name", cell: (x) => cut(x.names, 120) }, { name: "kernel", number: true, cell: (x) => x.kernels.join(", ") },
      ], nodes, { pick: (x) => pickNode(x), key: "node", label: "nodes" }));
      return;
    }
    const at = arrange(nodes);
    const edges = nodes.flatMap((x) => [...x.reads].map((r) => {
      const a = at.get(r), path = g("path", { class: "edge", d: `M${a.x} ${a.y + 26}C${a.x} ${a.y + 44} ${x.x} ${x.y - 18} ${x.x} ${x.y}` });
      drawn.edges.push({ path, from: a, to: x });
      return path;
    }));
    const frames = blocks.map(([start, length, count], b) => {
      const inside = nodes.filter((x) => x.block === b);
      if (!inside.length) return null;
      const x0 = Math.min(...inside.map((x) => x.x - x.w / 2)) - 8, x1 = Math.max(...inside.map((x) => x.x + x.w / 2)) + 8;
      const y0 = Math.min(...inside.map((x) => x.y)) - 8, y1 = Math.max(...inside.map((x) => x.y)) + 34;
      return [g("rect", { x: x0, y: y0, width: x1 - x0, height: y1 - y0, rx: 6, class: "block" }), g("text", { x: x1 + 6, y: (y0 + y1) / 2, class: "times" }, `×${count}`)];
    });
    const faces = nodes.map((x) => {
      const limit = x.all.length ? kernels[x.all[0]].limit : null;
      const said = `${x.label} ${x.sub}${x.note ? ` · ${x.note}` : ""}${x.isAgain ? " · computed again in each of its kernels" : ""}`;
      const face = g("rect", { x: x.x - x.w / 2, y: x.y, width: x.w, height: x.isEdge ? 20 : 26, rx: x.isEdge ? 10 : 4, class: `face ${limit ? `is-${limit}` : "plain"} ${x.isAgain ? "again" : ""}` });
      const element = g("g", { class: `node ${limit ? "" : "pale"}`, tabindex: -1, role: "button", "aria-label": said, onclick: () => pickNode(x) }, g("title", {}, said), face,
        g("text", { x: x.x, y: x.y + (x.isEdge ? 14 : 17), "text-anchor": "middle" }, cut(x.label, 30)));
      drawn.elements.set(x.id, element);
      return element;
    });
    const canvas = h("div", { class: "canvas" });
    const svg = g("svg", { tabindex: 0, role: "application", "aria-label": "graph; arrows move it, plus and minus zoom, n and p go through the nodes, Enter selects", "data-key": "canvas" }, edges, frames, faces);
    canvas.append(svg);
    box.replaceChildren(canvas);
    drawn.svg = svg;
    const xs = nodes.flatMap((x) => [x.x - x.w / 2, x.x + x.w / 2]), wide = Math.max(...xs, 100) - Math.min(...xs, 0) + 90;
    const size = canvas.getBoundingClientRect(), scale = Math.min(1.3, Math.max(0.8, size.width / wide));
    const first = nodes.length ? nodes.reduce((a, b) => (b.y < a.y ? b : a)) : { x: 0, y: 0 };
    drawn.view = { x: (wide * scale <= size.width ? (Math.max(...xs) + Math.min(...xs)) / 2 : first.x) - size.width / scale / 2, y: -20, scale };
    moveView();
    navigate(svg);
    paintGraph();
    showInGraph();
  }

  function moveView() {
    const { view, svg } = drawn, size = svg.parentNode.getBoundingClientRect();
    svg.setAttribute("viewBox", `${view.x} ${view.y} ${Math.max(1, size.width) / view.scale} ${Math.max(1, size.height) / view.scale}`);
  }
  function zoom(by, px, py) {
    const { view, svg } = drawn, size = svg.parentNode.getBoundingClientRect(), x = px ?? size.width / 2, y = py ?? size.height / 2;
    const next = Math.max(0.05, Math.min(4, view.scale * by));
    view.x += x / view.scale - x / next; view.y += y / view.scale - y / next; view.scale = next;
    moveView();
  }
  function centre(node) {
    const { view, svg } = drawn;
    if (!svg) return;
    const size = svg.parentNode.getBoundingClientRect();
    if (view.scale < 0.5) view.scale = 0.9;
    view.x = node.x - size.width / view.scale / 2; view.y = node.y - size.height / view.scale / 2;
    moveView();
  }
  function showInGraph() {
    const node = drawn && drawn.svg && state.kernel != null && drawn.nodes.find((x) => x.all.includes(state.kernel));
    if (!node) return;
    const { view, svg } = drawn, size = svg.parentNode.getBoundingClientRect();
    const x = (node.x - view.x) * view.scale, y = (node.y - view.y) * view.scale;
    if (x < 0 || y < 0 || x > size.width || y + 30 * view.scale > size.height) centre(node);
  }
  let focused = -1;
  function navigate(svg) {
    focused = -1;
    let from = null;
    svg.addEventListener("pointerdown", (e) => { from = { x: e.clientX, y: e.clientY, moved: false, id: e.pointerId }; });
    svg.addEventListener("pointermove", (e) => {
      if (!from || e.buttons === 0) return;
      if (!from.moved && Math.hypot(e.clientX - from.x, e.clientY - from.y) < 4) return;
      if (!from.moved) svg.setPointerCapture(from.id);
      from.moved = true;
      drawn.view.x -= (e.clientX - from.x) / drawn.view.scale; drawn.view.y -= (e.clientY - from.y) / drawn.view.scale;
      from.x = e.clientX; from.y = e.clientY;
      moveView();
    });
    svg.addEventListener("click", (e) => { if (from && from.moved) e.stopPropagation(); from = null; }, true);
    svg.addEventListener("wheel", (e) => {
      if (!e.ctrlKey && !e.metaKey && document.activeElement !== svg) return;
      e.preventDefault();
      const size = svg.getBoundingClientRect();
      zoom(Math.exp(-e.deltaY / 300), e.clientX - size.left, e.clientY - size.top);
    }, { passive: false });
    svg.addEventListener("keydown", (e) => {
      const by = 60 / drawn.view.scale, moves = { ArrowLeft: [-by, 0], ArrowRight: [by, 0], ArrowUp: [0, -by], ArrowDown: [0, by] };
      if (e.key in moves) { drawn.view.x += moves[e.key][0]; drawn.view.y += moves[e.key][1]; moveView(); }
      else if (e.key === "+" || e.key === "=") zoom(1.25);
      else if (e.key === "-") zoom(0.8);
      else if (e.key === "n" || e.key === "p") {
        focused = (focused + (e.key === "n" ? 1 : -1) + drawn.nodes.length) % drawn.nodes.length;
        centre(drawn.nodes[focused]);
        drawn.elements.get(drawn.nodes[focused].id).focus();
      } else if (e.key === "Enter" && focused >= 0) pickNode(drawn.nodes[focused]);
      else return;
      e.preventDefault();
    });
  }

  function pickNode(x) {
    if (!x.all.length) return;
    const at = x.all.indexOf(state.kernel);
    select(x.all[(at + 1) % x.all.length]);
  }
  const isFound = (x) => state.query && `${x.label} ${x.names}`.toLowerCase().includes(state.query);

  function paintGraph() {
    if (!drawn) return;
    const hit = (x) => state.kernel == null || x.all.includes(state.kernel);
    drawn.nodes.forEach((x) => {
      const element = drawn.elements.get(x.id);
      if (!element) return;
      element.classList.toggle("dim", !hit(x));
      element.classList.toggle("on", state.kernel != null && hit(x));
      element.classList.toggle("found", Boolean(isFound(x)));
    });
    drawn.edges.forEach(({ path, from, to }) => path.classList.toggle("hot", state.kernel != null && (hit(from) || hit(to))));
  }

  section("graph", "Graph", "Which operators became which primitives and which kernels? The selection is the same in all three depths.", () => {
    const box = h("div", {}), note = h("span", { class: "soft", "aria-live": "polite" });
    const search = h("input", { type: "search", placeholder: "node name", "aria-label": "search a node; Enter goes to the next", value: state.query, "data-key": "search" });
    const count = () => { const n = drawn.nodes.filter(isFound).length; note.textContent = state.query ? `${n} found` : `${drawn.nodes.length} nodes drawn`; };
    search.addEventListener("input", () => { state.query = search.value.toLowerCase(); state.found = 0; paintGraph(); count(); });
    search.addEventListener("keydown", (e) => {
      const all = drawn.nodes.filter(isFound);
      if (e.key === "Enter" && all.length) centre(all[state.found++ % all.length]);
    });
    const depths = [["operators", "operators"], ["primitives", "primitives"], ["kernels", "kernels"]].filter(([d]) => d === "kernels" || main.record[d].length);
    requestAnimationFrame(() => { drawGraph(box); count(); });
    return [
      h("div", { class: "tools" },
        group("depth", state.depth, depths, (v) => { state.depth = v; redraw("graph"); }), search, note,
        h("button", { type: "button", "data-key": "fold", "aria-pressed": String(state.folded), onclick: () => { state.folded = !state.folded; redraw("graph"); } }, "collapse repeated blocks"),
        h("span", { class: "group" }, h("button", { type: "button", "aria-label": "zoom in", onclick: () => drawn.svg && zoom(1.25) }, "+"), h("button", { type: "button", "aria-label": "zoom out", onclick: () => drawn.svg && zoom(0.8) }, "−"))),
      box,
      h("p", { class: "soft" }, "Colours as above. Pale: no kernel of its own. Dashed: computed again in several kernels. Rounded: a conversion of format, drawn on the edge with its time. Drag or arrows move; + and −, or Ctrl and the wheel, zoom; n and p go from node to node."),
    ];
  });

  // ---------------------------------------------------------------- 5. what changed

  const firing = ([rule, where, before, after, saved]) => ({ rule, where, before, after, saved });
  const concerns = (row) => state.kernel == null || row.where.split(", ").some((name) => kernels[state.kernel].serves.includes(name));

  section("changed", "What changed", "Which rewrite rules fired, where, and how do I switch one off?", () => {
    const { record } = main, rules = Object.entries(record.rules).sort((a, b) => b[1].fired - a[1].fired);
    const rows = [...record.firings, ...record.examples].map(firing).filter((r) => (!state.rule || r.rule === state.rule) && concerns(r));
    const shown = rows.slice(0, 200), misses = Object.entries(doc.misses || {}).filter(([rule]) => !state.rule || rule === state.rule);
    return [
      h("div", { class: "tools" }, choice("rule", state.rule, [["", "all"], ...rules.map(([name, r]) => [name, `${name} (${r.fired})`])], (v) => { state.rule = v; redraw("changed"); }),
        state.rule && [h("code", {}, `--disable ${state.rule}`), copying("Copy", () => `--disable ${state.rule}`)]),
      state.rule && record.rules[state.rule] && h("p", {}, `${record.rules[state.rule].law} · ${record.rules[state.rule].regime === "substitute" ? "chosen by predicted cost" : "always applied"}`),
      rules.length ? table([
        { name: "rule", class: "rule", cell: (r) => ruleName(r[0]) }, { name: "law", wide: true, cell: (r) => r[1].law },
        { name: "chosen", wide: true, cell: (r) => (r[1].regime === "substitute" ? "by cost" : "always") }, { name: "fired", number: true, cell: (r) => r[1].fired },
      ], rules, { pick: (r) => { state.rule = state.rule === r[0] ? "" : r[0]; redraw("changed"); }, isOn: (r) => r[0] === state.rule, key: "rule", label: "rules" }) : h("p", { class: "soft" }, "No rule fired, or nothing was recorded."),
      h("h3", {}, `Firings${state.kernel == null ? "" : ` that concern kernel ${state.kernel}`} (${rows.length}${rows.length > shown.length ? `, ${shown.length} shown` : ""})`),
      h("p", { class: "soft" }, "Every substitution is listed, and the first dozen firings of each rule that always applies. A compilation does not check its own firings by running them; fissile verify MODEL --bisect does."),
      shown.length > 0 && table([
        { name: "rule", class: "rule", cell: (r) => ruleName(r.rule) }, { name: "where", wide: true, cell: (r) => cut(r.where, 80) },
        { name: "before → after", cell: (r) => [h("code", {}, r.before), h("div", {}, "→ ", h("code", {}, r.after))] },
        { name: "predicted gain", number: true, wide: true, cell: (r) => (r.saved ? time(r.saved) : "–") },
      ], shown, { label: "firings" }),
      h("h3", {}, "Nearest misses"),
      misses.length ? table([
        { name: "rule", class: "rule", cell: (r) => ruleName(r.rule) }, { name: "why it does not fire", cell: (r) => r.reason }, { name: "times", number: true, cell: (r) => r.count }, { name: "first at", wide: true, cell: (r) => cut(r.where || r.node, 80) },
      ], misses.flatMap(([rule, found]) => found.map((m) => ({ rule, ...m }))), { label: "nearest misses" })
        : h("p", { class: "soft" }, doc.misses ? "None." : "They need the model: fissile report with --model FILE, or the model beside the artifact."),
    ];
  });

  // ---------------------------------------------------------------- 9. proof

  function lines(rounds) {
    const width = plotWidth(), height = 200, last = Math.max(...rounds.map((r) => r.seconds), 1e-9), high = Math.max(...rounds.map((r) => r.plan_seconds)) * 1.05 || 1;
    const x = (r) => 50 + (r.seconds / last) * (width - 64), y = (s) => 10 + (1 - s / high) * (height - 40);
    const line = (key, kind) => g("polyline", { class: `curve ${kind}`, points: rounds.map((r) => `${x(r).toFixed(1)},${y(r[key]).toFixed(1)}`).join(" ") });
    return g("svg", { viewBox: `0 0 ${width} ${height}`, class: "plot", role: "img", "aria-label": "plan and bound by round" }, g("line", { x1: 50, x2: width - 14, y1: y(0), y2: y(0), class: "axis" }),
      line("plan_seconds", ""), line("bound_seconds", "second"), g("text", { x: 2, y: y(high / 1.05) + 4, class: "axis-text" }, time(high / 1.05)), g("text", { x: 2, y: y(0), class: "axis-text" }, "0"),
      g("text", { x: width - 14, y: height - 8, class: "axis-text", "text-anchor": "end" }, `${digits(last)} s of tuning; solid: plan, dashed: bound`));
  }

  function scatter(points, what) {
    const width = plotWidth(), height = 300, log = Math.log10, all = points.flatMap((p) => [p.a, p.b]).map(log), low = Math.min(...all) - 0.1, high = Math.max(...all) + 0.1;
    const x = (v) => 56 + ((log(v) - low) / (high - low)) * (width - 70), y = (v) => 8 + ((high - log(v)) / (high - low)) * (height - 46), ends = [10 ** low, 10 ** high];
    const marks = [];
    for (let t = Math.ceil(low); t <= high; t += width < 400 ? 2 : 1) marks.push(t);
    return g("svg", { viewBox: `0 0 ${width} ${height}`, class: "plot", role: "img", "aria-label": `${what} against measured` },
      g("line", { x1: x(ends[0]), y1: y(ends[0]), x2: x(ends[1]), y2: y(ends[1]), class: "identity" }),
      marks.map((t) => [g("text", { x: x(10 ** t), y: height - 20, class: "axis-text", "text-anchor": "middle" }, time(10 ** t)), g("text", { x: 2, y: y(10 ** t) + 4, class: "axis-text" }, time(10 ** t))]),
      points.map((p) => g("circle", { cx: x(p.a), cy: y(p.b), r: p.k.i === state.kernel ? 7 : 4, class: `dot is-${p.k.limit} ${state.kernel != null && p.k.i !== state.kernel ? "ghost" : ""} ${p.k.i === state.kernel ? "on" : ""}`, onclick: () => select(p.k.i) }, g("title", {}, `${p.k.label}: ${time(p.a)} → ${time(p.b)}`))),
    );
  }

  function sumCheck() {
    const run = main.runs[state.run];
    if (!run) return h("p", { class: "soft" }, "Not run here.");
    const parts = sum(kernels.map((k) => k.time || 0)), whole = wholeOf(main, state.run);
    const alone = kernels.every((k) => k.tuning && k.tuning.predicted_seconds != null) ? sum(kernels.map((k) => k.tuning.predicted_seconds)) : null;
    const stamped = median(run.samples[0] ? run.samples[0].map((_, j) => sum(run.samples.map((row) => row[j]))) : []);
    return h("p", {}, `Whole calls took ${time(whole)}, whole calls with time stamps ${time(stamped)} inside kernels (medians); the medians of the kernels add up to ${time(parts)}. The call itself and its outputs are not in a kernel, and a stall that hits another kernel in each run is in no kernel's median.`,
      alone != null && ` Measured alone when tuned, they add up to ${time(alone)}: the whole took ${times(whole / alone)} of that.`);
  }

  section("proof", "Proof", "What is proved, under which costs, and do the parts add up to the whole?", () => {
    const { tuning, manifest } = main.artifact, proof = manifest.certificate;
    const predicted = kernels.filter((k) => k.time > 0 && k.tuning && k.tuning.predicted_seconds > 0).map((k) => ({ k, a: k.tuning.predicted_seconds, b: k.time }));
    const floors = kernels.filter((k) => k.time > 0 && k.floor > 0).map((k) => ({ k, a: k.floor, b: k.time }));
    const points = predicted.length ? predicted : floors, what = predicted.length ? "predicted (measured alone)" : "floor";
    const pairs = (map) => Object.entries(map).sort((a, b) => b[1] - a[1]);
    return [
      h("p", {}, proofText(proof), "."),
      proof && h("dl", {}, Object.entries(proof).map(([name, value]) => [h("dt", {}, name.replaceAll("_", " ")), h("dd", {}, name.endsWith("seconds") && typeof value === "number" ? time(value) : name.endsWith("gap") && typeof value === "number" ? percent(value) : String(value))])),
      h("h3", {}, "Do the parts add up?"), sumCheck(),
      points.length > 0 && [h("h3", {}, `${what[0].toUpperCase()}${what.slice(1)} against measured`), scatter(points, what), h("p", { class: "soft" }, `across: ${what}; up: measured in the model; dashed: the same`)],
      !tuning && h("p", { class: "soft" }, "This artifact was not tuned, so there are no rounds: fissile tune MODEL --budget 10m -o FILE."),
      tuning && [
        h("h3", {}, "Rounds"), h("p", { class: "soft" }, `${tuning.machine} · ${tuning.threads} threads · budget ${tuning.budget} · ${digits(tuning.seconds)} s${Object.keys(tuning.extents).length ? ` · at ${Object.entries(tuning.extents).map(([n, v]) => `${n}=${v}`).join(", ")}` : ""}`),
        tuning.rounds.length > 1 && lines(tuning.rounds),
        table([
          { name: "round", number: true, cell: (r) => r.number }, { name: "after", number: true, wide: true, cell: (r) => `${digits(r.seconds)} s` }, { name: "measured", number: true, cell: (r) => r.measured },
          { name: "plan", number: true, cell: (r) => time(r.plan_seconds) }, { name: "bound", number: true, cell: (r) => time(r.bound_seconds) }, { name: "gap", number: true, cell: (r) => percent(r.gap) },
        ], tuning.rounds, { label: "rounds" }),
        h("h3", {}, "Whole models, run in turns"), table([
          { name: "plan", cell: (r) => `${r.name}${r.is_kept ? " (kept)" : ""}` }, { name: "predicted", number: true, wide: true, cell: (r) => time(r.predicted_seconds) },
          { name: "p10", number: true, cell: (r) => time(r.p10_seconds) }, { name: "median", number: true, cell: (r) => time(r.median_seconds) }, { name: "first / this", number: true, cell: (r) => `${digits(r.ratio)} [${digits(r.ratio_low)}, ${digits(r.ratio_high)}]` },
        ], tuning.whole, { label: "whole models" }),
        h("h3", {}, `Kernels that could not be measured (${Object.keys(tuning.rejected).length})`),
        Object.keys(tuning.rejected).length > 0 && table([{ name: "kernel", cell: (r) => r[0] }, { name: "reason", cell: (r) => r[1] }], Object.entries(tuning.rejected), { label: "rejects" }),
        h("h3", {}, "Why sets of primitives are no kernels"), table([{ name: "reason", cell: (r) => r[0] }, { name: "times", number: true, cell: (r) => r[1] }], pairs(tuning.refused), { label: "refusals" }),
      ],
    ];
  });

  // ---------------------------------------------------------------- 10. compare

  // Kernels are the same if they serve the same nodes with the same primitives; else those that serve the same nodes, in order.
  function matched(before, after) {
    const rows = [], left = new Set(after), key = [(k) => `${k.anchor}|${k.names}|${k.serves}|${k.piece || ""}`, (k) => `${k.serves}`];
    let rest = [...before];
    for (const of of key) {
      const places = new Map();
      for (const k of left) places.set(of(k), [...(places.get(of(k)) || []), k]);
      rest = rest.filter((a) => {
        const same = places.get(of(a));
        if (!same || !same.length || (of === key[1] && !a.serves.length)) return true;
        const b = same.shift();
        left.delete(b);
        rows.push({ a, b, isChanged: of !== key[0] });
        return false;
      });
    }
    return [...rows, ...rest.map((a) => ({ a, b: null })), ...[...left].map((b) => ({ a: null, b }))];
  }

  function judged({ a, b, isChanged }) {
    if (!a) return "appeared";
    if (!b) return "gone";
    if (a.samples.length > 3 && b.samples.length > 3) {
      if (quantile(b.samples, 0.25) > quantile(a.samples, 0.75)) return "slower";
      if (quantile(b.samples, 0.75) < quantile(a.samples, 0.25)) return "faster";
    }
    return isChanged ? "changed" : "same";
  }

  if (subjects[1]) {
    section("compare", "Comparison", `What is different in ${subjects[1].artifact.name} (the second) from ${main.artifact.name} (the first)?`, () => {
      const at = Math.min(state.run, subjects[1].runs.length - 1), others = kernelsOf(subjects[1], at);
      const rows = matched(kernels, others).map((r) => ({ ...r, verdict: judged(r), delta: ((r.b && r.b.time) || 0) - ((r.a && r.a.time) || 0) }))
        .filter((r) => state.kernel == null || (r.a && r.a.i === state.kernel)).sort((x, y) => Math.abs(y.delta) - Math.abs(x.delta) || (x.verdict > y.verdict ? 1 : -1));
      const counts = {};
      rows.forEach((r) => { counts[r.verdict] = (counts[r.verdict] || 0) + 1; });
      const whole = [wholeOf(main, state.run), wholeOf(subjects[1], at)];
      const tone = { slower: "bad", appeared: "", gone: "", faster: "good" };
      return [
        h("div", { class: "figures" }, [[time(whole[0]), `first: ${main.artifact.name}`], [time(whole[1]), `second: ${subjects[1].artifact.name}`], [whole[0] && whole[1] ? times(whole[0] / whole[1]) : "–", "first over second; above 1: the second is faster"], ...Object.entries(counts).map(([name, n]) => [String(n), `kernels ${name}`])]
          .map(([value, name]) => h("div", { class: "figure" }, h("b", {}, value), h("span", {}, name)))),
        subjects[1].artifact.error && h("p", { class: "bad" }, subjects[1].artifact.error),
        main.artifact.manifest.model.sha256 !== subjects[1].artifact.manifest.model.sha256 && h("p", { class: "bad" }, "The two come from different models."),
        h("p", { class: "soft" }, "Both were run in turns, just now. Slower and faster: the middle halves of their samples do not overlap."),
        table([
          { name: "", cell: (r) => h("span", { class: tone[r.verdict] || "" }, r.verdict) }, { name: "kernel", class: "name", cell: (r) => kernelName(r.a || r.b) },
          { name: "first", number: true, cell: (r) => (r.a ? time(r.a.time) : "") }, { name: "second", number: true, cell: (r) => (r.b ? time(r.b.time) : "") }, { name: "difference", number: true, cell: (r) => (r.delta ? `${r.delta > 0 ? "+" : "−"}${time(Math.abs(r.delta))}` : "0") },
        ], rows, { pick: (r) => r.a && select(r.a.i), isOn: (r) => r.a && r.a.i === state.kernel, key: "compare", label: "comparison" }),
      ];
    });
  }

  // ---------------------------------------------------------------- start

  document.title = `${main.artifact.manifest.model.name || main.artifact.name} · fissile report`;
  document.getElementById("foot").textContent = `fissile ${doc.fissile} · ${doc.date} · one file, nothing is loaded from elsewhere`;
  redraw();
  let waiting = 0;
  addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      if (Math.round(Math.max(260, document.getElementById("main").clientWidth - 32)) === chartWidth) return;
      redraw("where");
      if (drawn && drawn.svg) moveView();
    }, 120);
  });
  addEventListener("keydown", (e) => { if (e.key === "Escape" && state.kernel != null) select(null); });
})();
