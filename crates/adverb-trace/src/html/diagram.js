// The sequence diagram: rows of the selected view, drawn as SVG for the visible part only.

const ROW_HEIGHT = 26;
const ARRIVAL_HEIGHT = 12;
const LINE_Y = 18; // of the arrow in its row
const LABEL_Y = 12; // of the label's baseline
const MIN_GAP = 5; // pixels between two rows, by time
const MAX_GAP = 96;
const PAGE_SHAPE = 0.55; // the height of the rows on a printed page, divided by their width
const OVERSCAN = 30; // rows above and below the visible ones
const PAUSE_HEIGHT = 18; // above a row that follows a long pause, if rows are spaced evenly

const state = {
  views: makeViews(),
  view: null,
  sideOf: () => HIDDEN,
  rows: new Int32Array(0), // the steps of the view
  rowOfStep: new Int32Array(STEP_COUNT),
  tops: new Float64Array(1), // the position of each row, and the total height
  longPause: Infinity, // the shortest pause that is marked, in nanoseconds
  scale: "even",
  zoom: 1,
  onlyFailures: false,
  selected: -1, // a step
  related: new Set(), // the requests of the selected step
  matches: [], // rows
  matchedRows: new Set(),
  drawnFrom: 0,
  drawnTo: 0,
};

let isPrinting = false;
const scroller = document.getElementById("scroll");
const content = document.getElementById("content");

function svg(name, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const key in attributes) element.setAttribute(key, attributes[key]);
  element.append(...children);
  return element;
}

function hasTwoClocks(view) {
  const [left, right] = view.devices;
  return left >= 0 && right >= 0 && DATA.devices[left].clock !== DATA.devices[right].clock;
}

// Chooses the rows of the view.
function layOut() {
  const { view, sideOf, onlyFailures } = state;
  const rows = [];
  state.rowOfStep.fill(-1);
  for (let step = 0; step < STEP_COUNT; step++) {
    if (foldedDoorbells[step] || (onlyFailures && marks[step] === 0) || sideOf(step) === HIDDEN) continue;
    state.rowOfStep[step] = rows.length;
    rows.push(step);
  }
  state.rows = Int32Array.from(rows);
  if (hasTwoClocks(view)) state.scale = "even";
  placeRows();
}

// Computes the position of each row.
function placeRows() {
  const { rows, zoom } = state;
  const tops = new Float64Array(rows.length + 1);
  const byTime = state.scale === "time";
  const nanosPerPixel = 100 / zoom; // by time
  state.longPause = byTime || hasTwoClocks(state.view) ? Infinity : Math.max(10_000, 25 * typicalPause(0.5), 2 * typicalPause(0.9));
  let top = 6;
  for (let row = 0; row < rows.length; row++) {
    if (byTime && row > 0) top += Math.min(Math.max(pauseBefore(row) / nanosPerPixel, MIN_GAP), MAX_GAP);
    if (pauseBefore(row) >= state.longPause) top += PAUSE_HEIGHT;
    tops[row] = top;
    if (!byTime) top += (isSmallRow(rows[row]) ? ARRIVAL_HEIGHT : ROW_HEIGHT) * Math.min(zoom, 3);
  }
  tops[rows.length] = top + (byTime ? ROW_HEIGHT : 0) + 10;
  state.tops = tops;
  content.style.height = `${tops[rows.length]}px`;
}

// The time between a row and the row above it. Only rows of one clock have one.
function pauseBefore(row) { return row === 0 ? 0 : timeOf(state.rows[row]) - timeOf(state.rows[row - 1]); }

// The pause that is longer than this share of all pauses.
function typicalPause(share) {
  const pauses = Float64Array.from(state.rows, (_, row) => pauseBefore(row)).sort();
  return pauses.length > 0 ? pauses[Math.floor((pauses.length - 1) * share)] : 0;
}

// The arrival of a packet needs no label, unless the packet was dropped.
function isSmallRow(step) { return kindOf(step) === ARRIVED && DATA.packets[indexOf(step)][PACKET_DROPPED] === null; }

// The horizontal positions of the lanes.
function lanesOf(view) {
  const width = scroller.clientWidth;
  const start = 96;
  const end = width - (hasTwoClocks(view) ? 92 : 14);
  const inner = end - start;
  const leftShare = hasRight(view) ? 0.262 : 0.3;
  const rightShare = hasRight(view) ? 0.262 : 0.15;
  const xs = { width, start, appL: start + 10, nicL: start + inner * leftShare, nicR: end - inner * rightShare, appR: end - 10 };
  xs.middle = (xs.nicL + xs.nicR) / 2;
  return xs;
}

function hasRight(view) { return view.devices[1] >= 0; }

function drawLanes() {
  const { view } = state;
  const xs = lanesOf(view);
  const absent = !hasRight(view);
  const name = (device) => (device < 0 ? "" : DATA.devices[device].name);
  const [left, right] = [name(view.devices[0]), absent ? "" : name(view.devices[1])];
  const qps = (ends) => (ends.length === 1 ? endName(ends[0]) : ends.length > 1 ? `${ends.length} queue pairs` : "");
  const drawing = svg("svg", { width: xs.width, height: 42, viewBox: `0 0 ${xs.width} 42`, role: "img", "aria-label": `Lanes: application, NIC ${left}, network, NIC ${right || "not recorded"}, application` });
  const lane = (x, title, subtitle, anchor, isAbsent) => {
    drawing.append(
      svg("text", { x, y: 17, "text-anchor": anchor, class: isAbsent ? "title unrecorded" : "title" }, title),
      svg("text", { x, y: 33, "text-anchor": anchor, class: "subtitle" }, subtitle),
    );
  };
  const two = hasTwoClocks(view);
  lane(xs.start - 12, "time", two ? `µs, ${ending(left)}` : "µs", "end");
  if (two) lane(xs.width - 10, "time", `µs, ${ending(right)}`, "end");
  lane(xs.appL - 4, "application", "", "start");
  // The titles of the application and of the network are about 75 and 50 pixels wide.
  const nic = (name, x) => fit(`NIC ${name}`, 2 * Math.min(Math.abs(x - xs.middle) - 35, (x < xs.middle ? x - xs.appL : xs.appR - x) - 80), true);
  lane(xs.nicL, nic(left, xs.nicL), qps(view.left), "middle");
  lane(xs.middle, "network", "", "middle");
  lane(xs.nicR, absent ? "NIC" : nic(right, xs.nicR), absent ? "" : qps(view.right), "middle", absent);
  lane(xs.appR + 4, "application", "", "end", absent);
  if (absent) lane((xs.nicR + xs.appR) / 2, "", "not recorded", "middle", true);
  document.getElementById("lanes").replaceChildren(drawing);
}

// The end of a name, which tells devices apart.
function ending(name) { return name.length > 9 ? `…${name.slice(-8)}` : name; }

const measurer = document.createElement("canvas").getContext("2d");

// Shortens a text to a width in pixels.
function fit(text, width, isBold) {
  measurer.font = `${isBold ? "600 " : ""}11.5px ${getComputedStyle(document.body).fontFamily}`;
  const full = measurer.measureText(text).width;
  return full <= width ? text : shorten(text, Math.floor(text.length * width / full) - 1);
}

function shorten(text, count) { return text.length > count ? text.slice(0, Math.max(1, count - 1)) + "…" : text; }

// The rows in a range of positions, as [first, after the last].
function rowsBetween(from, to) {
  return [firstRowAt(from), Math.min(state.rows.length, firstRowAt(to) + 1)];
}

function firstRowAt(position) {
  let low = 0, high = state.rows.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (state.tops[middle + 1] <= position) low = middle + 1; else high = middle;
  }
  return low;
}

// Draws the visible rows, unless they are drawn already.
function draw(force) {
  const top = scroller.scrollTop;
  const [first, last] = rowsBetween(top, top + scroller.clientHeight);
  if (!force && first >= state.drawnFrom && last <= state.drawnTo) return;
  drawRows(Math.max(0, first - OVERSCAN), last + OVERSCAN);
}

function drawRows(from, to) {
  to = Math.min(state.rows.length, to, from + DATA.rowLimit);
  state.drawnFrom = from;
  state.drawnTo = to;
  if (state.rows.length === 0) {
    const text = document.createElement("p");
    text.textContent = state.onlyFailures ? "No failures, retransmissions, lost or dropped packets." : "The trace has no steps.";
    content.replaceChildren(text);
    return;
  }
  content.replaceChildren(drawingOf(from, to));
  const selected = document.getElementById(`row-${state.rowOfStep[state.selected]}`);
  if (selected) scroller.setAttribute("aria-activedescendant", selected.id);
}

// For printing: draws the rows from the first visible one, up to the limit, in parts that fit on a page.
function drawPages() {
  const first = firstRowAt(scroller.scrollTop);
  const end = Math.min(state.rows.length, first + DATA.rowLimit);
  const height = lanesOf(state.view).width * PAGE_SHAPE;
  const drawings = [];
  for (let from = first; from < end;) {
    let to = from + 1;
    while (to < end && state.tops[to + 1] - state.tops[from] <= height) to++;
    // An arrow from an earlier part is drawn again in the part of its end.
    state.drawnFrom = from;
    drawings.push(drawingOf(from, to));
    from = to;
  }
  content.style.height = "auto";
  content.replaceChildren(...drawings);
}

// Draws a range of rows.
function drawingOf(from, to) {
  const xs = lanesOf(state.view);
  const start = from === 0 ? 0 : state.tops[from];
  const height = Math.max(to === state.rows.length && !isPrinting ? scroller.clientHeight : 0, state.tops[to] - start);
  const drawing = svg("svg", { width: xs.width, height, style: `top:${start}px`, viewBox: `0 ${start} ${xs.width} ${height}` });
  // The rows' backgrounds take the pointer; lanes, marks and texts are above them, in this order.
  const backgrounds = svg("g");
  const layers = { backgrounds, lines: svg("g", { class: "marks", "aria-hidden": "true" }), texts: svg("g", { class: "marks", "aria-hidden": "true" }) };
  drawing.append(svg("rect", { class: "band", x: xs.middle - 34, y: start, width: 68, height }), backgrounds);
  const absent = hasRight(state.view) ? "" : " absent";
  for (const [x, mark] of [[xs.appL, ""], [xs.nicL, ""], [xs.nicR, absent], [xs.appR, absent]]) {
    drawing.append(svg("line", { class: `lane${mark}`, x1: x, x2: x, y1: start, y2: start + height }));
  }
  drawing.append(layers.lines, layers.texts);
  const labelled = visibleLabels(from, to);
  for (let row = from; row < to; row++) drawRow(row, xs, labelled, layers);
  return drawing;
}

// By time, labels may overlap: the rows whose labels and times are shown, or null if all are. Failures and the selected
// row come first.
function visibleLabels(from, to) {
  if (state.scale !== "time") return null;
  const placed = new Map(); // the positions of labels, by region
  const isFree = (region, top) => (placed.get(region) ?? []).every((other) => Math.abs(other - top) >= 14);
  const labelled = { labels: new Set(), times: new Set() };
  const place = (row, region, set) => {
    if (!isFree(region, state.tops[row])) return;
    placed.set(region, [...(placed.get(region) ?? []), state.tops[row]]);
    set.add(row);
  };
  const isImportant = (row) => state.rows[row] === state.selected || (marks[state.rows[row]] & FAILURE) !== 0;
  for (const turn of [true, false]) {
    for (let row = from; row < to; row++) {
      const step = state.rows[row];
      if (isImportant(row) !== turn || isSmallRow(step)) continue;
      place(row, kindOf(step) === PACKET ? "network" : state.sideOf(step), labelled.labels);
      place(row, "time", labelled.times);
    }
  }
  return labelled;
}

function drawRow(row, xs, labelled, layers) {
  const hasLabel = labelled === null || labelled.labels.has(row);
  const step = state.rows[row];
  const top = state.tops[row];
  const byTime = state.scale === "time";
  const seen = describe(step);
  const isSmall = isSmallRow(step);
  const y = lineOf(row);
  const text = sentence(step);
  const highlight = step === state.selected ? " selected" : requestsOf(step).some((id) => state.related.has(id)) ? " related" : "";
  const hit = { x: 0, y: byTime ? y - 9 : top, width: xs.width, height: byTime ? Math.min(ROW_HEIGHT, state.tops[row + 1] - top) : state.tops[row + 1] - top };
  if (row + 1 < state.rows.length && pauseBefore(row + 1) >= state.longPause) hit.height -= PAUSE_HEIGHT;
  const background = svg("g", { class: `row${highlight}`, id: `row-${row}`, role: "option", "aria-selected": step === state.selected, "aria-label": text, "data-row": row },
    svg("title", {}, text), svg("rect", { class: "hit", ...hit }));
  if (state.matchedRows.has(row)) background.append(svg("rect", { class: "matched", ...hit, width: 4 }));
  layers.backgrounds.append(background);
  const group = svg("g", { class: seen.tones + highlight });
  const texts = svg("g", { class: seen.tones + highlight });
  layers.lines.append(group);
  layers.texts.append(texts);
  const side = state.sideOf(step);
  if (!isSmall && (labelled === null || labelled.times.has(row))) drawTimes(texts, step, side, xs, y);
  drawPause(texts, row, xs, top);
  PAINT[seen.place]({ group, texts, xs, side, y, labelY: y - (LINE_Y - LABEL_Y), hasLabel, seen, step, row });
}

// Marks a pause that the distance between two rows doesn't show.
function drawPause(group, row, xs, top) {
  const pause = pauseBefore(row);
  if (pause >= state.longPause) {
    group.append(
      svg("line", { class: "gap-line", x1: xs.start, x2: xs.appR, y1: top - 8, y2: top - 8 }),
      svg("text", { class: "gap", x: xs.start - 12, y: top - 5, "text-anchor": "end" }, `+${duration(pause)}`),
    );
  } else if (state.scale === "time" && row > 0 && pause * state.zoom / 100 > MAX_GAP) {
    const y = top - MAX_GAP / 2 + 8;
    group.append(
      svg("line", { class: "gap-line", x1: xs.start, x2: xs.appR, y1: y + 4, y2: y + 4 }),
      svg("text", { class: "gap halo", x: xs.middle, y, "text-anchor": "middle" }, duration(pause)),
    );
  }
}

function drawTimes(group, step, side, xs, y) {
  const two = hasTwoClocks(state.view);
  const put = (nanos, isRight) => {
    const x = isRight && two ? xs.width - 10 : xs.start - 12;
    group.append(svg("text", { class: "time", x, y: y + 1, "text-anchor": "end" }, clockTime(nanos)));
  };
  put(timeOf(step), side === RIGHT);
  if (!two || kindOf(step) !== PACKET) return;
  const other = peerOf(DATA.packets[indexOf(step)]);
  if (other !== null && DATA.devices[DATA.ends[other[PACKET_END]].device].clock !== DATA.devices[deviceOf(step)].clock) {
    put(other[PACKET_TIME], side === LEFT);
  }
}

// How the rows of each place are drawn.
const PAINT = {
  // An arrow from the application to the NIC.
  post(painter) {
    const { app, nic } = sideLanes(painter);
    arrow(painter, app, painter.y, nic, painter.y);
    // A second head: the post also rang the doorbell.
    if (painter.seen.hasDoorbell) arrow(painter, app, painter.y, nic - Math.sign(nic - app) * 8, painter.y);
    label(painter, app, nic);
  },
  // An arrow from the NIC to the application, which ends in a mark of the completion queue entry.
  completion(painter) {
    const { app, nic } = sideLanes(painter);
    const away = Math.sign(nic - app);
    const isBad = marks[painter.step] & FAILURE;
    arrow(painter, nic, painter.y, app + away * (isBad ? 13 : 11), painter.y);
    if (isBad) warning(painter, app + away * 5, painter.y); else {
      painter.group.append(svg("rect", { class: "ring", x: app - 5, y: painter.y - 5, width: 10, height: 10, rx: 1.5 }));
    }
    label(painter, app, nic, isBad ? 14 : 8);
  },
  application(painter) {
    const { app, nic } = sideLanes(painter);
    const { group, y, step } = painter;
    if (marks[step] & FAILURE) warning(painter, app, y);
    else if (kindOf(step) === POLLED) group.append(svg("circle", { class: "dot", cx: app, cy: y, r: 4.5 }));
    else group.append(svg("path", { class: "sign", d: `M${app} ${y - 6}l6 6l-6 6l-6 -6z` }));
    label(painter, app, nic, 7);
  },
  // A step inside the NIC: its label ends at the NIC's lane.
  inside(painter) {
    const { app, nic } = sideLanes(painter);
    const { group, y, step } = painter;
    if (marks[step] & FAILURE) warning(painter, nic, y);
    else if (kindOf(step) === RETRY) loop(painter, nic, y);
    else group.append(svg("circle", { class: "ring", cx: nic, cy: y, r: 4 }));
    label(painter, nic, app, 5);
  },
  packet(painter) { drawPacket(painter); },
  // The end of an arrow that a row above drew, or that a row above the drawn part would have drawn.
  arrival(painter) {
    const sent = DATA.packets[indexOf(painter.step)][PACKET_PEER_PACKET];
    const sendRow = sent < 0 ? -1 : state.rowOfStep[sendSteps[sent]];
    const isDuplicate = DATA.packets[indexOf(painter.step)][PACKET_FLAGS] & FLAG_DUPLICATE;
    if (sendRow >= 0 && isDuplicate) {
      // The arrow of the send row ends at the first copy.
      const [start, end] = painter.side === RIGHT ? [painter.xs.nicL, painter.xs.nicR] : [painter.xs.nicR, painter.xs.nicL];
      arrow(painter, start, lineOf(sendRow), end, painter.y, false, " unknown-way");
    } else if (sendRow >= 0 && sendRow < state.drawnFrom) {
      const step = state.rows[sendRow];
      drawPacket({ ...painter, step, row: sendRow, side: state.sideOf(step), y: lineOf(sendRow), hasLabel: false, seen: describe(step) });
    }
    if (painter.seen.dropped) dropMark(painter, 1 - painter.side, painter.y);
  },
};

function sideLanes({ xs, side }) {
  return side === RIGHT ? { app: xs.appR, nic: xs.nicR } : { app: xs.appL, nic: xs.nicL };
}

function lineOf(row) {
  if (isSmallRow(state.rows[row])) return state.tops[row];
  return state.tops[row] + LINE_Y - (state.scale === "time" ? 6 : 0);
}

function drawPacket(painter) {
  const { group, xs, y, seen, step } = painter;
  const packet = DATA.packets[indexOf(step)];
  const isSent = (packet[PACKET_FLAGS] & FLAG_OUT) !== 0;
  // The side of the sender.
  const from = isSent ? painter.side : 1 - painter.side;
  const [start, end] = from === LEFT ? [xs.nicL, xs.nicR] : [xs.nicR, xs.nicL];
  const away = Math.sign(end - start);
  const arrivalRow = isSent && packet[PACKET_PEER_PACKET] >= 0 && arrivalSteps[packet[PACKET_PEER_PACKET]] >= 0 ? state.rowOfStep[arrivalSteps[packet[PACKET_PEER_PACKET]]] : -1;
  const isMatched = packet[PACKET_PEER_PACKET] >= 0;
  const endY = arrivalRow < 0 ? y : lineOf(arrivalRow);
  if (seen.isLost || seen.isUnknown) {
    const x = xs.middle;
    group.append(svg("line", { class: "line", x1: start, y1: y, x2: x - away * 7, y2: y }));
    if (seen.isLost) group.append(svg("path", { class: "cross", d: `M${x - 5} ${y - 5}l10 10m0 -10l-10 10` }));
    else group.append(svg("circle", { class: "ring", cx: x, cy: y, r: 5 }));
    const note = seen.isLost ? "lost" : "no arrival recorded";
    label({ ...painter, labelY: painter.labelY - 2 }, start, end, 10);
    if (painter.hasLabel) painter.texts.append(svg("text", { class: "label", x: x + away * 11, y: y + 6, "text-anchor": away > 0 ? "start" : "end" }, note));
    return;
  }
  if (isMatched) {
    arrow(painter, start, y, end, endY, seen.tones.includes("bad"));
    if (arrivalRow < 0 && seen.dropped) dropMark(painter, from, endY);
  } else if (isSent && seen.dropped) {
    arrow(painter, start, y, end - away * 6, y);
    dropMark(painter, from, y);
  } else if (isSent) {
    group.append(svg("line", { class: "line", x1: start, y1: y, x2: xs.middle, y2: y }));
    arrow(painter, xs.middle, y, end, y, seen.tones.includes("bad"), " unknown-way");
  } else {
    group.append(svg("line", { class: "line unknown-way", x1: start, y1: y, x2: xs.middle, y2: y }));
    arrow(painter, xs.middle, y, end, y, seen.tones.includes("bad"));
    if (seen.dropped) dropMark(painter, from, y);
  }
  label(painter, start, end, 10);
}

// A circle with a bar at the receiving NIC, and the reason beside it. `from` is the side of the sender.
function dropMark({ group, texts, xs, seen, hasLabel }, from, y) {
  const [nic, app] = from === LEFT ? [xs.nicR, xs.appR] : [xs.nicL, xs.appL];
  const away = Math.sign(app - nic);
  const room = Math.abs(app - nic) - 16;
  const mark = svg("g", { class: "bad" },
    svg("circle", { class: "ring", cx: nic, cy: y, r: 6 }),
    svg("path", { class: "cross", d: `M${nic - 4} ${y + 4}l8 -8` }));
  if (hasLabel) {
    const text = svg("text", { class: "label", x: nic + away * 11, y: y + 4, "text-anchor": away > 0 ? "start" : "end" }, fit(`dropped: ${seen.dropped}`, room, true));
    texts.append(svg("g", { class: "bad" }, text));
  }
  group.append(mark);
}

function arrow({ group }, x1, y1, x2, y2, isBad, extra = "") {
  const length = Math.hypot(x2 - x1, y2 - y1);
  if (length < 1) return;
  const [dx, dy] = [(x2 - x1) / length, (y2 - y1) / length];
  const at = (back, aside) => `${(x2 - dx * back - dy * aside).toFixed(1)} ${(y2 - dy * back + dx * aside).toFixed(1)}`;
  group.append(
    svg("line", { class: `line${extra}`, x1, y1, x2: x2 - dx * 7, y2: y2 - dy * 7 }),
    svg("path", { class: "head", d: `M${at(0, 0)}L${at(9, 4.5)}L${at(9, -4.5)}z` }),
  );
  // A NAK also has a bar across the arrow, so that it differs by more than its color.
  if (isBad) group.append(svg("path", { class: "cross", d: `M${at(13, 6)}L${at(13, -6)}` }));
}

// A triangle with an exclamation mark.
function warning({ group }, x, y) {
  group.append(
    svg("path", { class: "sign", d: `M${x} ${y - 8}l8 14h-16z` }),
    svg("text", { class: "sign-text", x, y: y + 4, "text-anchor": "middle" }, "!"),
  );
}

// A circular arrow.
function loop({ group }, x, y) {
  group.append(
    svg("circle", { class: "ring", cx: x, cy: y, r: 5.5 }),
    svg("path", { class: "head", d: `M${x + 1} ${y - 9}l5 3.5l-5 3.5z` }),
  );
}

// The row's label, beside `from` and at most as long as the way to `to`.
function label({ texts, labelY, seen, hasLabel, y }, from, to, inset = 8) {
  if (!hasLabel) return;
  const away = Math.sign(to - from);
  const room = Math.abs(to - from) - inset - 8;
  const isOnLine = seen.place === "application" || seen.place === "inside";
  const attributes = { class: "label", x: from + away * (inset + (isOnLine ? 6 : 2)), y: isOnLine ? y + 4 : labelY, "text-anchor": away > 0 ? "start" : "end" };
  texts.append(svg("text", attributes, fit(seen.label, room, seen.tones.includes("bad"))));
}
