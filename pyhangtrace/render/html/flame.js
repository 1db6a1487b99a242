"use strict";
// Draws the merged stacks of all ranks. One column per class of equal stacks (not per thread): with width
// proportional to threads, the one odd rank of a thousand would be thinner than a pixel. Equal neighbouring
// frames become one box; children are ordered by their rarest class, so the odd one stands at the left.
// Where the data has a unit, columns are as wide as what their classes weigh, the heaviest at the left.
(function () {
  const data = JSON.parse(document.getElementById("hangtrace-data").textContent);
  const chart = document.getElementById("flame");
  const details = document.getElementById("details");
  const search = document.getElementById("search");
  const found = document.getElementById("found");
  const service = document.getElementById("service");
  const back = document.getElementById("back");
  const ROW = 20;
  const weighed = Boolean(data.unit);
  const whole = data.classes.reduce((sum, item) => sum + widest(item), 0);
  // What is there can be seen, and all that together takes next to no room from what is measured.
  const thinnest = Math.min(1 / 400, 1 / (50 * (data.classes.length || 1)));
  const LEGIBLE = 30; // pixels: below that, letters of a name say nothing

  function widest(item) {
    return Math.max(item.weight || 0, item.before || 0);
  }

  function columnsOf(item) {
    return weighed ? Math.max(widest(item), whole * thinnest) : 1;
  }

  function sum(at, member) {
    return at.classes.reduce((total, item) => total + (item[member] || 0), 0);
  }

  function amount(value) {
    if (data.unit !== "seconds") return String(Math.round(value));
    if (value >= 1) return value.toFixed(value < 100 ? 2 : 0) + " s";
    return value >= 1e-3 ? (value * 1e3).toFixed(1) + " ms" : Math.round(value * 1e6) + " µs";
  }

  function node(frame, parent) {
    return { frame, parent, children: [], byKey: new Map(), classes: [], rarest: Infinity, columns: 0 };
  }

  // The prefix tree of all shown classes.
  function build() {
    const root = node(null, null);
    root.label = "all";
    for (const item of data.classes) {
      if (item.service && !service.checked) continue;
      let at = root;
      at.classes.push(item);
      for (const index of item.frames) {
        let next = at.byKey.get(index);
        if (!next) {
          next = node(data.frames[index], at);
          at.byKey.set(index, next);
          at.children.push(next);
        }
        next.classes.push(item);
        at = next;
      }
      at.ends = (at.ends || 0) + columnsOf(item);
    }
    finish(root);
    return root;
  }

  // Iterative: a stack may be deeper than the script engine's own.
  function finish(root) {
    const order = [root];
    for (let i = 0; i < order.length; i++) order.push(...order[i].children);
    for (let i = order.length - 1; i >= 0; i--) {
      const at = order[i];
      for (const item of at.classes) at.rarest = Math.min(at.rarest, item.members.length);
      const below = at.children.reduce((sum, child) => sum + child.columns, 0);
      if (weighed) {
        at.children.sort((a, b) => b.columns - a.columns);
        at.columns = below + (at.ends || 0);
      } else {
        at.children.sort((a, b) => a.rarest - b.rarest);
        at.columns = Math.max(1, below + (at.ends && at.children.length ? 1 : 0));
      }
    }
  }

  function ranksOf(at) {
    return at.classes.flatMap((item) => item.members.map((m) => m.rank).filter((r) => r !== null));
  }

  function fold(numbers) {
    const sorted = [...new Set(numbers)].sort((a, b) => a - b);
    const parts = [];
    for (let i = 0; i < sorted.length; ) {
      let j = i;
      while (j + 1 < sorted.length && sorted[j + 1] === sorted[j] + 1) j++;
      parts.push(i === j ? String(sorted[i]) : sorted[i] + "-" + sorted[j]);
      i = j + 1;
    }
    return parts.join(",");
  }

  function rankText(at) {
    if (weighed) return amount(sum(at, "weight"));
    const ranks = fold(ranksOf(at));
    const threads = at.classes.reduce((sum, item) => sum + item.members.length, 0);
    return ranks ? "[" + ranks + "]" : "[" + threads + (threads === 1 ? " thread]" : " threads]");
  }

  let root = build();
  let drawnFor = 0; // which width of the chart
  let zoomed = root;
  let selected = null;

  function box(at, depth, left, width) {
    const element = document.createElement("button");
    element.type = "button";
    element.className = "box " + (at.frame ? at.frame.kind : "root");
    element.style.top = depth * ROW + "px";
    element.style.left = left * 100 + "%";
    element.style.width = "calc(" + width * 100 + "% - 1px)";
    const name = at.frame ? at.frame.label : "all ranks";
    const text = rankText(at) + " " + name;
    if (width * chart.clientWidth >= LEGIBLE) element.textContent = text;
    element.setAttribute("aria-label", text);
    element.title = text;
    element.dataset.ranks = fold(ranksOf(at));
    element.dataset.label = name;
    if (data.compared) shade(element, at);
    if (matches(at)) element.classList.add("match");
    element.addEventListener("click", () => {
      select(at);
      zoom(at);
    });
    element.addEventListener("mouseenter", () => show(at));
    element.addEventListener("focus", () => show(at));
    element.addEventListener("mouseleave", () => selected && show(selected));
    return element;
  }

  // Red for what has grown, blue for what has shrunk, the stronger the larger its part of the whole.
  function shade(element, at) {
    const change = sum(at, "weight") - sum(at, "before");
    const part = Math.min(1, (4 * Math.abs(change)) / (whole || 1));
    const rest = Math.round(235 - 130 * part);
    element.style.background = change > 0 ? `rgb(245, ${rest}, ${rest})` : `rgb(${rest}, ${rest}, 245)`;
  }

  function draw() {
    chart.replaceChildren();
    let deepest = 0;
    // What leads to the zoomed frame stays on top, full width, so that one click goes back.
    const path = [];
    for (let at = zoomed.parent; at; at = at.parent) path.unshift(at);
    path.forEach((at, depth) => {
      const element = box(at, depth, 0, 1);
      element.classList.add("path");
      chart.append(element);
    });
    const queue = [[zoomed, path.length, 0, 1]];
    while (queue.length) {
      const [at, depth, left, width] = queue.pop();
      deepest = Math.max(deepest, depth);
      chart.append(box(at, depth, left, width));
      let from = left;
      for (const child of at.children) {
        const share = (width * child.columns) / at.columns;
        queue.push([child, depth + 1, from, share]);
        from += share;
      }
    }
    chart.style.height = (deepest + 1) * ROW + "px";
    drawnFor = chart.clientWidth;
    back.disabled = zoomed === root;
    count();
  }

  function zoom(at) {
    zoomed = at;
    draw();
  }

  function select(at) {
    selected = at;
    show(at);
  }

  function line(parent, name, text) {
    const row = document.createElement("div");
    const label = document.createElement("b");
    label.textContent = name + " ";
    row.append(label, text);
    parent.append(row);
  }

  // Each thread once, also where it has several stacks.
  function membersOf(at) {
    const members = at.classes.flatMap((item) => item.members);
    if (!weighed) return members;
    const threads = new Map();
    for (const member of members) {
      const known = threads.get(member.pid + ":" + member.tid);
      if (known) known.weight += member.weight;
      else threads.set(member.pid + ":" + member.tid, { ...member });
    }
    const sorted = [...threads.values()].sort((a, b) => b.weight - a.weight);
    for (const member of sorted) member.wait = amount(member.weight) + (data.unit === "seconds" ? "" : " " + data.unit);
    return sorted;
  }

  function show(at) {
    details.replaceChildren();
    const frame = at.frame;
    line(details, frame ? frame.kind : "all", frame ? frame.function : "every stack of every rank");
    if (frame && frame.file) line(details, "at", frame.file + (frame.line ? ":" + frame.line : ""));
    if (frame && frame.module) line(details, "in", frame.module);
    if (frame) line(details, "found by", frame.found_by);
    const ranks = ranksOf(at);
    if (ranks.length) {
      line(details, "ranks", fold(ranks));
      const others = data.ranks.filter((rank) => !ranks.includes(rank));
      if (others.length) line(details, "not here", fold(others));
    }
    if (weighed) {
      const share = ((100 * sum(at, "weight")) / (sum(root, "weight") || 1)).toFixed(1) + " %";
      line(details, data.measure, amount(sum(at, "weight")) + (data.compared ? "" : ", " + share));
      if (data.compared) line(details, "before", amount(sum(at, "before")));
    }
    const members = membersOf(at);
    line(details, "threads", String(members.length));
    for (const member of members.slice(0, 64)) {
      const who = member.rank === null ? "pid " + member.pid : "rank " + member.rank + ", pid " + member.pid;
      const row = document.createElement("div");
      row.textContent = who + ", " + member.thread + " (" + member.tid + ")" + (member.wait ? ": " + member.wait : "");
      details.append(row);
    }
    if (members.length > 64) line(details, "and", members.length - 64 + " more");
  }

  function matches(at) {
    const wanted = search.value.trim().toLowerCase();
    return Boolean(wanted && at.frame && at.frame.label.toLowerCase().includes(wanted));
  }

  function count() {
    if (!search.value.trim()) {
      found.textContent = "";
      return;
    }
    const hit = [...chart.querySelectorAll(".match")];
    const threads = new Set();
    const walk = [root];
    while (walk.length) {
      const at = walk.pop();
      if (matches(at)) at.classes.forEach((item) => item.members.forEach((m) => threads.add(m.tid)));
      else walk.push(...at.children);
    }
    found.textContent = hit.length + " frames shown, " + threads.size + " threads in all";
  }

  search.addEventListener("input", draw);
  service.addEventListener("change", () => {
    root = zoomed = build();
    selected = null;
    draw();
    show(root);
  });
  back.addEventListener("click", () => zoom(root));
  window.addEventListener("resize", () => chart.clientWidth !== drawnFor && draw());
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") zoom(root);
    if (event.key === "/" && document.activeElement !== search) {
      event.preventDefault();
      search.focus();
    }
  });
  draw();
  show(root);
})();
