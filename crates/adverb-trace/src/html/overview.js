// The overview: the whole trace in one strip. A bar's height is the rate of steps, on a logarithmic scale.

const overview = document.getElementById("overview");
const OVERVIEW_HEIGHT = 56;
const BAR_WIDTH = 3;

let overviewWindow = null;

function drawOverview() {
  const width = overview.clientWidth;
  const { rows } = state;
  const drawing = svg("svg", { width, height: OVERVIEW_HEIGHT, "aria-hidden": "true" });
  const count = Math.min(Math.max(1, Math.floor(width / BAR_WIDTH)), rows.length);
  const bars = [];
  for (let bar = 0; bar < count; bar++) bars.push(measure(Math.floor(bar * rows.length / count), Math.floor((bar + 1) * rows.length / count)));
  const rates = bars.map(({ rate }) => rate).filter((rate) => rate > 0);
  const low = Math.log(Math.min(...rates) / 2), high = Math.log(Math.max(...rates) * 1.01);
  const barWidth = width / count;
  bars.forEach((bar, index) => {
    const x = index * barWidth;
    const share = bar.rate > 0 && high > low ? (Math.log(bar.rate) - low) / (high - low) : 0.1;
    const height = 3 + Math.max(0, share) * 22;
    drawing.append(svg("rect", { x, y: 40 - height, width: Math.max(1, barWidth - 0.6), height, fill: "var(--bar-1)" }));
    if (bar.hasRetry) drawing.append(svg("path", { d: `M${x + barWidth / 2} 3v9`, stroke: "var(--retry)", "stroke-width": 2, "stroke-dasharray": "3 2" }));
    if (bar.hasFailure) drawing.append(svg("path", { d: `M${x + barWidth / 2} 2l4.5 9h-9z`, fill: "var(--bad)" }));
    if (bar.hasMatch) drawing.append(svg("rect", { x: x + barWidth / 2 - 1, y: 36, width: 2.5, height: 6, fill: "var(--match)" }));
  });
  drawTicks(drawing, width);
  overviewWindow = svg("rect", { y: 0.75, height: OVERVIEW_HEIGHT - 1.5, rx: 4, fill: "var(--accent)", "fill-opacity": 0.13, stroke: "var(--accent)", "stroke-width": 1.5 });
  drawing.append(overviewWindow);
  overview.replaceChildren(drawing);
  moveOverviewWindow();
}

// The rate and the marks of the rows in a range.
function measure(from, to) {
  const { rows, matchedRows } = state;
  const clock = clockOf(rows[from]);
  let first = Infinity, last = -Infinity, hasFailure = false, hasRetry = false, hasMatch = false;
  // The row before the range counts too, so that a bar of one row has a duration.
  for (let row = Math.max(0, from - 1); row < Math.max(to, from + 1) && row < rows.length; row++) {
    const step = rows[row];
    if (clockOf(step) === clock) {
      first = Math.min(first, timeOf(step));
      last = Math.max(last, timeOf(step));
    }
    if (row < from) continue;
    hasFailure ||= (marks[step] & FAILURE) !== 0;
    hasRetry ||= (marks[step] & RETRANSMISSION) !== 0;
    hasMatch ||= matchedRows.has(row);
  }
  const rate = Math.max(1, to - from) / Math.max(100, last - first);
  return { rate: Number.isFinite(rate) ? rate : 0, hasFailure, hasRetry, hasMatch };
}

function clockOf(step) { return DATA.devices[deviceOf(step)].clock; }

function drawTicks(drawing, width) {
  const { rows } = state;
  if (rows.length === 0) return;
  const count = Math.min(rows.length, Math.max(2, Math.floor(width / 170)));
  for (let tick = 0; tick < count; tick++) {
    const row = Math.round(tick * (rows.length - 1) / Math.max(1, count - 1));
    const x = count === 1 ? 6 : 6 + tick * (width - 12) / (count - 1);
    const anchor = tick === 0 ? "start" : tick === count - 1 ? "end" : "middle";
    drawing.append(svg("text", { class: "time", x, y: 52, "text-anchor": anchor }, `${clockTime(timeOf(rows[row]))} µs`));
  }
}

function moveOverviewWindow() {
  if (overviewWindow === null) return;
  const width = overview.clientWidth;
  const count = Math.max(1, state.rows.length);
  const [first, last] = rowsBetween(scroller.scrollTop, scroller.scrollTop + scroller.clientHeight);
  const x = Math.min(first / count * width, width - 8);
  overviewWindow.setAttribute("x", x + 0.75);
  overviewWindow.setAttribute("width", Math.max(6, Math.min(width - x, (last - first) / count * width) - 1.5));
  overview.setAttribute("aria-valuemin", 1);
  overview.setAttribute("aria-valuemax", state.rows.length);
  overview.setAttribute("aria-valuenow", first + 1);
  overview.setAttribute("aria-valuetext", state.rows.length > 0 ? `rows ${first + 1} to ${last} of ${state.rows.length}` : "no rows");
}

// Scrolls so that the middle of the window is at a position of the strip.
function scrollToOverview(event) {
  const box = overview.getBoundingClientRect();
  const share = (event.clientX - box.left) / box.width;
  const row = Math.max(0, Math.min(state.rows.length - 1, Math.floor(share * state.rows.length)));
  scroller.scrollTop = state.tops[row] - scroller.clientHeight / 2;
}

overview.addEventListener("pointerdown", (event) => {
  overview.setPointerCapture(event.pointerId);
  scrollToOverview(event);
});
overview.addEventListener("pointermove", (event) => {
  if (overview.hasPointerCapture(event.pointerId)) scrollToOverview(event);
});
overview.addEventListener("keydown", (event) => {
  const pages = { ArrowLeft: -0.5, ArrowRight: 0.5, PageUp: -1, PageDown: 1 }[event.key];
  if (pages === undefined) return;
  scroller.scrollTop += pages * scroller.clientHeight;
  event.preventDefault();
  event.stopPropagation();
});
