// The page: controls, keyboard, selection and search.

const controls = Object.fromEntries(["view", "search", "matches", "previous", "next", "failure", "failures", "scale",
  "zoom-out", "zoom-in", "theme", "help", "keys", "summary", "notes", "announce"].map((id) => [id, document.getElementById(id)]));

// Redraws everything after a change of the view, the filter or the scale. The row at the top stays at the top.
function refresh(keepStep = state.rows[firstRowAt(scroller.scrollTop)] ?? -1) {
  layOut();
  drawLanes();
  search(false);
  const twoClocks = hasTwoClocks(state.view);
  controls.scale.value = state.scale;
  controls.scale.disabled = twoClocks;
  controls.scale.title = twoClocks ? "The two hosts' clocks can't be compared" : "Distances between rows (t)";
  showNotes();
  let step = keepStep;
  while (step > 0 && state.rowOfStep[step] < 0) step--;
  scroller.scrollTop = step > 0 ? state.tops[state.rowOfStep[step]] : 0;
  draw(true);
  drawOverview();
}

function setView(index) {
  state.view = state.views[index];
  state.sideOf = sides(state.view);
  controls.view.value = String(index);
}

function showNotes() {
  const notes = [];
  if (hasTwoClocks(state.view)) {
    notes.push("The clocks of the two hosts are not compared: each side has its own time column. Packets are matched by their sequence numbers and drawn horizontally, in the order of cause and effect; where packets crossed, a time may be smaller than the one above it.");
  }
  if (state.scale === "time") notes.push("Distances show time. Gaps that are too long for the screen are shortened and labeled.");
  for (const device of new Set(state.view.devices.filter((index) => index >= 0))) {
    const { name, lostCount } = DATA.devices[device];
    if (lostCount > 0) notes.push(`${name}: ${plural(lostCount, "older event")} overwritten in the recorder's ring buffer.`);
  }
  controls.notes.replaceChildren(...notes.map((note) => html("p", {}, note)));
}

function showSummary() {
  const count = (test) => { let total = 0; for (let step = 0; step < STEP_COUNT; step++) if (test(step)) total++; return total; };
  const failures = DATA.requests.filter(isFailed).length;
  const packets = count((step) => kindOf(step) === PACKET);
  const retransmissions = count((step) => kindOf(step) === PACKET && marks[step] & RETRANSMISSION);
  const lost = DATA.packets.filter((packet) => packet[PACKET_FLAGS] & FLAG_LOST).length;
  const naks = count((step) => kindOf(step) === PACKET && DATA.packets[indexOf(step)][PACKET_ROLE][0] === "nak");
  const dropped = DATA.packets.filter((packet) => packet[PACKET_DROPPED] !== null).length;
  const parts = [plural(DATA.devices.length, "device"), plural(DATA.requests.length, "request"), plural(packets, "packet")];
  const bad = [[retransmissions, "retransmission"], [lost, "lost packet"], [dropped, "dropped packet"], [naks, "NAK"], [failures, "failed request"]];
  controls.summary.replaceChildren(parts.join(" · "), ...bad.filter(([number]) => number > 0).flatMap(([number, noun]) => [" · ", html("strong", {}, plural(number, noun))]));
}

function select(step, intoView) {
  state.selected = step;
  state.related = new Set(step < 0 ? [] : requestsOf(step).slice(0, 1));
  const row = step < 0 ? -1 : state.rowOfStep[step];
  if (row >= 0 && intoView) {
    const top = state.tops[row], bottom = state.tops[row + 1];
    if (top < scroller.scrollTop + 20) scroller.scrollTop = top - scroller.clientHeight / 3;
    else if (bottom > scroller.scrollTop + scroller.clientHeight - 20) scroller.scrollTop = top - scroller.clientHeight * 2 / 3;
  }
  draw(true);
  showDetail(step);
  controls.announce.textContent = step < 0 ? "" : sentence(step);
}

function selectRow(row) {
  if (state.rows.length === 0) return;
  select(state.rows[Math.max(0, Math.min(state.rows.length - 1, row))], true);
}

function selectedRow() { return state.selected < 0 ? -1 : state.rowOfStep[state.selected]; }

// Selects the next row, in a direction, that passes a test. The search goes on at the other end.
function selectNext(direction, test) {
  const count = state.rows.length;
  const start = selectedRow() >= 0 ? selectedRow() : direction > 0 ? firstRowAt(scroller.scrollTop) - 1 : count;
  for (let distance = 1; distance <= count; distance++) {
    const row = ((start + direction * distance) % count + count) % count;
    if (test(row)) return selectRow(row);
  }
}

const searchTexts = [];

// Finds the rows that contain the searched words. A number matches whole numbers only.
function search(goToFirst) {
  const words = controls.search.value.trim().toLowerCase().split(/\s+/).join(" ");
  state.matches = [];
  if (words !== "") {
    const escaped = words.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
    const pattern = new RegExp(`(^|[^0-9a-z])${escaped}${/[0-9]$/.test(words) ? "(?![0-9a-z])" : ""}`);
    state.rows.forEach((step, row) => {
      searchTexts[step] ??= searchText(step);
      if (pattern.test(searchTexts[step])) state.matches.push(row);
    });
  }
  state.matchedRows = new Set(state.matches);
  if (goToFirst) {
    if (state.matches.length > 0) {
      const from = firstRowAt(scroller.scrollTop);
      selectRow(state.matches.find((row) => row >= from) ?? state.matches[0]);
    } else draw(true);
    drawOverview();
  }
  showMatches();
}

function showMatches() {
  const at = state.matches.indexOf(selectedRow());
  const total = state.matches.length;
  controls.matches.textContent = controls.search.value.trim() === "" ? "" : at >= 0 ? `${at + 1} of ${total}` : total === 0 ? "none" : String(total);
  controls.previous.disabled = controls.next.disabled = total === 0;
}

function goToMatch(direction) {
  selectNext(direction, (row) => state.matchedRows.has(row));
  showMatches();
}

function goToFailure(direction) { selectNext(direction, (row) => (marks[state.rows[row]] & FAILURE) !== 0 && kindOf(state.rows[row]) !== ARRIVED); }

function setZoom(factor) {
  state.zoom = Math.min(1e4, Math.max(state.scale === "time" ? 1e-5 : 1, state.zoom * factor));
  refresh(state.selected >= 0 ? state.selected : undefined);
}

function setScale(scale) {
  state.scale = scale;
  state.zoom = 1;
  if (scale === "time") {
    // Rows are a row's height apart in the median.
    state.zoom = ROW_HEIGHT * 100 / Math.max(1, typicalPause(0.5));
  }
  refresh();
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  controls.theme.textContent = theme === "dark" ? "Light" : "Dark";
}

function toggleTheme() { setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"); }

function drawLegend() {
  const sample = (text, tones, paint, width = 36) => {
    const drawing = svg("svg", { width, height: 16, "aria-hidden": "true" });
    const group = svg("g", { class: tones });
    paint({ group, y: 8, xs: {} });
    drawing.append(group);
    return html("span", {}, drawing, text);
  };
  const line = (painter) => arrow(painter, 2, 8, 35, 8);
  document.getElementById("legend").replaceChildren(
    sample("post with doorbell", "post", (painter) => { arrow(painter, 2, 8, 35, 8); arrow(painter, 2, 8, 27, 8); }),
    sample("request", "packet", line),
    sample("response", "packet response", line),
    sample("ACK", "packet ack", line),
    sample("retransmission", "packet retry", line),
    sample("NAK", "packet bad", (painter) => arrow(painter, 2, 8, 35, 8, true)),
    sample("lost", "packet bad", ({ group }) => group.append(svg("line", { class: "line", x1: 2, y1: 8, x2: 24, y2: 8 }), svg("path", { class: "cross", d: "M25 3l10 10m0 -10l-10 10" }))),
    sample("dropped", "packet bad", ({ group }) => group.append(svg("line", { class: "line", x1: 2, y1: 8, x2: 24, y2: 8 }), svg("circle", { class: "ring", cx: 30, cy: 8, r: 6 }), svg("path", { class: "cross", d: "M26 12l8 -8" }))),
    sample("CQE", "completion ok", ({ group }) => group.append(svg("rect", { class: "ring", x: 3, y: 3, width: 10, height: 10, rx: 1.5 })), 16),
    sample("poll", "poll", ({ group }) => group.append(svg("circle", { class: "dot", cx: 8, cy: 8, r: 4.5 })), 16),
    sample("event", "other-event", ({ group }) => group.append(svg("path", { class: "sign", d: "M8 2l6 6l-6 6l-6 -6z" })), 16),
    sample("failure", "bad", (painter) => warning(painter, 9, 9), 18),
  );
}

// Events.

let isDrawPending = false;
scroller.addEventListener("scroll", () => {
  if (isDrawPending) return;
  isDrawPending = true;
  requestAnimationFrame(() => {
    isDrawPending = false;
    draw(false);
    moveOverviewWindow();
  });
});
content.addEventListener("click", (event) => {
  const row = event.target.closest?.("[data-row]");
  if (row) { select(state.rows[row.dataset.row], false); showMatches(); }
});
addEventListener("resize", () => { if (!isPrinting) refresh(); });
let screenTheme = "light";
addEventListener("beforeprint", () => {
  isPrinting = true;
  screenTheme = document.documentElement.dataset.theme;
  setTheme("light");
  drawPages();
});
addEventListener("afterprint", () => {
  isPrinting = false;
  setTheme(screenTheme);
  refresh();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (event) => setTheme(event.matches ? "dark" : "light"));

controls.view.addEventListener("change", () => { setView(Number(controls.view.value)); refresh(); if (state.selected < 0) showDetail(-1); });
controls.failures.addEventListener("change", () => { state.onlyFailures = controls.failures.checked; refresh(); });
controls.scale.addEventListener("change", () => setScale(controls.scale.value));
controls["zoom-in"].addEventListener("click", () => setZoom(1.5));
controls["zoom-out"].addEventListener("click", () => setZoom(1 / 1.5));
controls.theme.addEventListener("click", toggleTheme);
controls.help.addEventListener("click", () => controls.keys.showModal());
controls.failure.addEventListener("click", () => goToFailure(1));
controls.next.addEventListener("click", () => goToMatch(1));
controls.previous.addEventListener("click", () => goToMatch(-1));

let searchTimer = 0;
controls.search.addEventListener("input", () => {
  clearTimeout(searchTimer);
  searchTimer = setTimeout(() => search(true), 150);
});
controls.search.addEventListener("keydown", (event) => {
  if (event.key === "Enter") goToMatch(event.shiftKey ? -1 : 1);
  else if (event.key === "Escape") { controls.search.value = ""; search(true); scroller.focus(); }
});

const KEYS = {
  ArrowDown: () => selectRow(selectedRow() < 0 ? firstRowAt(scroller.scrollTop) : selectedRow() + 1),
  ArrowUp: () => selectRow(selectedRow() < 0 ? firstRowAt(scroller.scrollTop) : selectedRow() - 1),
  PageDown: () => selectRow(Math.max(0, selectedRow()) + 20),
  PageUp: () => selectRow(selectedRow() - 20),
  Home: () => selectRow(0),
  End: () => selectRow(state.rows.length - 1),
  Escape: () => select(-1, false),
  "/": () => controls.search.focus(),
  n: () => goToMatch(1),
  N: () => goToMatch(-1),
  e: () => goToFailure(1),
  E: () => goToFailure(-1),
  f: () => controls.failures.click(),
  t: () => { if (!controls.scale.disabled) setScale(state.scale === "time" ? "even" : "time"); },
  "+": () => setZoom(1.5),
  "=": () => setZoom(1.5),
  "-": () => setZoom(1 / 1.5),
  d: toggleTheme,
  "?": () => controls.keys.showModal(),
};
KEYS.j = KEYS.ArrowDown;
KEYS.k = KEYS.ArrowUp;

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || controls.keys.open) return;
  if (/^(INPUT|SELECT)$/.test(event.target.tagName) || !Object.hasOwn(KEYS, event.key)) return;
  event.preventDefault();
  KEYS[event.key]();
  showMatches();
});

// The address may choose the first look, as in trace.html#theme=dark&search=NAK.
function start() {
  const wanted = new URLSearchParams(location.hash.slice(1));
  const isDark = matchMedia("(prefers-color-scheme: dark)").matches;
  setTheme(wanted.get("theme") ?? (isDark ? "dark" : "light"));
  state.views.forEach(({ label }, index) => controls.view.append(html("option", { value: index }, label)));
  controls.view.disabled = state.views.length < 2;
  if (DATA.devices.length > 0) document.title = `RDMA trace: ${DATA.devices.map(({ name }) => name).join(", ")}`;
  showSummary();
  drawLegend();
  setView(Math.min(state.views.length - 1, Number(wanted.get("view")) || 0));
  state.onlyFailures = controls.failures.checked = wanted.has("failures");
  refresh(-1);
  if (wanted.get("scale") === "time") setScale("time");
  showDetail(-1);
  if (wanted.has("row")) selectRow(Number(wanted.get("row")) - 1);
  if (wanted.has("search")) { controls.search.value = wanted.get("search"); search(true); }
  document.documentElement.dataset.ready = String(state.rows.length);
}

start();
