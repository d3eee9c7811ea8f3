// The panel with the details of the selected row.

const panel = document.getElementById("detail");

function html(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const key in attributes) element.setAttribute(key, attributes[key]);
  element.append(...children.filter((child) => child !== null));
  return element;
}

function showDetail(step) {
  panel.replaceChildren(...(step < 0 ? overviewDetail() : stepDetail(step)));
  panel.scrollTop = 0;
}

// Without a selection: the devices and connections of the view.
function overviewDetail() {
  const { view } = state;
  const parts = [html("h2", {}, "Select a row"), html("p", { class: "muted" }, "Click a row, or use ↑ and ↓. The key ? lists all keys.")];
  for (const device of new Set(view.devices.filter((device) => device >= 0))) {
    const { name, startMillis, lostCount, stopCause } = DATA.devices[device];
    parts.push(html("h3", {}, `Device ${name}`), table([
      ["time 0", startMillis === null ? "unknown" : new Date(startMillis).toISOString().replace("T", " ").replace("Z", " UTC")],
      ["recording ended", stopCause],
      ["overwritten events", String(lostCount)],
    ]));
  }
  for (const end of [...view.left, ...view.right].slice(0, 20)) parts.push(...endDetail(end));
  return parts;
}

function endDetail(index) {
  const end = DATA.ends[index];
  const rows = [["queue pair", hex(end.qpn)], ["device", DATA.devices[end.device].name]];
  if (end.transport) {
    rows.push(["transport", end.transport], ["peer's queue pair", hex(end.remoteQpn)], ["local", end.local], ["remote", end.remote]);
    rows.push(["path MTU", `${end.mtu} bytes`], ["first PSN received", String(end.recvPsn)]);
    if (end.sendPsn !== null) rows.push(["first PSN sent", String(end.sendPsn)]);
  }
  return [html("h3", {}, `Queue pair ${endName(index)}`), table(rows)];
}

function stepDetail(step) {
  const kind = kindOf(step);
  const ids = requestsOf(step);
  const time = `${clockTime(timeOf(step))} µs on the clock of ${DATA.devices[deviceOf(step)].name}`;
  if (kind === PACKET || kind === ARRIVED) return [...packetDetail(step), ...requestSections(ids)];
  const { label } = describe(step);
  if (ids.length === 1) return [...requestDetail(ids[0], label, time)];
  const end = endOf(step);
  return [html("h2", {}, label), html("p", { class: "muted" }, time), ...requestSections(ids), ...(end >= 0 ? endDetail(end) : [])];
}

// The requests of a packet: the first one in full, the others as links.
function requestSections(ids) {
  if (ids.length === 0) return [];
  const [first, ...others] = [...new Set(ids)];
  const parts = requestDetail(first, null, null);
  if (others.length > 0) {
    parts.push(html("h3", {}, "Other requests"), html("div", { class: "links" }, ...others.slice(0, 50).map(requestLink)));
    if (others.length > 50) parts.push(html("p", { class: "muted" }, `and ${others.length - 50} more`));
  }
  return parts;
}

function requestDetail(id, title, time) {
  const request = DATA.requests[id];
  const parts = [];
  if (title === null) parts.push(html("h3", {}, `Request ${requestName(id)}`));
  else parts.push(html("h2", {}, title), html("p", { class: "muted" }, time));
  const failed = isFailed(request);
  parts.push(html("div", { class: "states" },
    badge(`WQE ${request[REQUEST_WQE]}`, failed ? "bad" : request[REQUEST_WQE] === "COMPLETED" ? "good" : "plain"),
    badge(request[REQUEST_CQE] === null ? "no CQE (unsignaled)" : `CQE ${request[REQUEST_CQE]}`, /^(POLLED|PROCESSED)$/.test(request[REQUEST_CQE]) ? "good" : "plain")));
  parts.push(...timesSection(request));
  // A failure comes first, because the reader looks for its cause.
  const sections = [workRequestSection(request), completionSection(request)];
  parts.push(...(failed ? sections.reverse() : sections).flat());
  parts.push(...relatedSection(request, id));
  return parts;
}

function badge(text, tone) { return html("span", { class: `state ${tone}` }, text); }

function workRequestSection(request) {
  const posted = request[REQUEST_POSTED];
  const queue = request[REQUEST_QUEUE] === 1 ? "receive queue" : "send queue";
  const end = request[REQUEST_END];
  const rows = [["operation", request[REQUEST_OPERATION]], ["wr_id", request[REQUEST_WR_ID]]];
  if (posted !== null) rows.push(["tag", posted[POSTED_TAG]]);
  rows.push(["queue", `${queue}, number ${request[REQUEST_NUMBER_IN_QUEUE]}`]);
  if (end >= 0) rows.push(["queue pair", `${hex(DATA.ends[end].qpn)} of ${DATA.devices[request[REQUEST_DEVICE]].name}`]);
  if (posted !== null) {
    if (posted[POSTED_FLAGS] !== null) rows.push(["flags", posted[POSTED_FLAGS]]);
    rows.push(["length", `${grouped(posted[POSTED_LENGTH])} bytes`]);
    for (let at = 0; at < posted[POSTED_FIELDS].length; at += 2) rows.push([posted[POSTED_FIELDS][at], posted[POSTED_FIELDS][at + 1]]);
    rows.push(["segments", String(posted[POSTED_SGE_COUNT])]);
    if (posted[POSTED_FIRST_SGE] !== null) {
      const [address, length, key] = posted[POSTED_FIRST_SGE];
      rows.push(["segment 0", `${address}, ${grouped(length)} bytes, lkey ${key}`]);
    }
  }
  if (request[REQUEST_PSN_RANGE] !== null) rows.push(["PSNs", psnRange(request[REQUEST_PSN_RANGE])]);
  return [html("h3", {}, "Work request (WQE)"), table(rows)];
}

function psnRange([first, last]) { return first === last ? String(first) : `${first} to ${last}`; }

function completionSection(request) {
  const outcome = request[REQUEST_OUTCOME];
  const title = html("h3", {}, "Completion (CQE)");
  if (outcome === null) {
    const text = request[REQUEST_CQE] === null ? "None: the request is unsignaled, and it succeeded." : "None yet: the request is outstanding.";
    return [title, html("p", { class: "muted" }, text)];
  }
  const end = request[REQUEST_END];
  const rows = [["wr_id", request[REQUEST_WR_ID]], ["status", `${outcome[0]} (${STATUSES.get(outcome[0])?.constant ?? "IBV_WC_SUCCESS"})`]];
  const parts = [title];
  if (outcome[0] === 0) {
    rows.push(["opcode", outcome[1]], ["byte length", grouped(outcome[2])]);
    for (let at = 0; at < outcome[3].length; at += 2) rows.push([outcome[3][at], outcome[3][at + 1]]);
  } else {
    rows.push(["vendor error", outcome[1]]);
    parts.push(explanationBox(STATUSES.get(outcome[0]).explanation));
  }
  if (end >= 0) rows.push(["queue pair", hex(DATA.ends[end].qpn)]);
  if (request[REQUEST_CQ] >= 0) rows.push(["completion queue", String(request[REQUEST_CQ])]);
  parts.push(table(rows));
  return parts;
}

// A text whose parts between backticks are code.
function withCode(text) { return text.split("`").map((part, at) => (at % 2 === 1 ? html("code", {}, part) : part)); }

// The explanation of a status or a syndrome: its meaning, usual causes, and what to check.
function explanationBox(explanation) {
  if (!explanation) return "";
  const [, meaning, causes, checks] = explanation;
  const list = (title, texts) => (texts.length === 0 ? null : html("details", { open: "" }, html("summary", {}, title), html("ul", {}, ...texts.map((text) => html("li", {}, ...withCode(text))))));
  return html("div", { class: "meaning" }, html("p", {}, ...withCode(meaning)), list("Usual causes", causes), list("To check", checks));
}

// The steps of a request, with the state that each one begins.
function timeSteps(request) {
  const times = request[REQUEST_TIMES];
  const end = isFailed(request) ? "ERROR" : "COMPLETED";
  const hasEntry = request[REQUEST_OUTCOME] !== null;
  const isReceive = request[REQUEST_QUEUE] === 1;
  const steps = [
    ["posted", times[TIME_POSTED], "WQE POSTED", "var(--bar-1)"],
    ["doorbell", times[TIME_DOORBELL], "", "var(--bar-2)"],
    [times[TIME_LAST] > times[TIME_FIRST] ? "first packet" : "packet", times[TIME_FIRST], "WQE PROCESSING", "var(--bar-3)"],
    ["last packet", times[TIME_LAST] > times[TIME_FIRST] ? times[TIME_LAST] : null, "", "var(--bar-3)"],
    ["acknowledged", isReceive ? null : times[TIME_ACKNOWLEDGED], "", "var(--bar-4)"],
    ["completed", times[TIME_COMPLETED], `WQE ${end}${hasEntry ? ", CQE PENDING" : ""}`, isFailed(request) ? "var(--bad)" : "var(--bar-5)"],
    ["polled", times[TIME_POLLED], "CQE POLLED", "var(--good)"],
    ["processed", times[TIME_PROCESSED], "CQE PROCESSED", "var(--good)"],
  ].filter(([, time]) => time !== null);
  // The last packet may be the response that also acknowledges the request.
  return steps.sort((a, b) => a[1] - b[1]);
}

function timesSection(request) {
  const steps = timeSteps(request);
  if (steps.length === 0) return [];
  // The bar ends with the poll: the time of processing is the application's.
  const bar = steps.filter(([name]) => name !== "processed");
  const total = bar[bar.length - 1][1] - bar[0][1];
  const parts = [html("h3", {}, `Life${total > 0 ? `: ${duration(total)}` : ""}`)];
  if (total > 0) parts.push(timesBar(bar, total));
  const rows = steps.map(([name, time, stateName], at) => html("tr", {},
    html("th", {}, name),
    html("td", { class: "number value" }, at === 0 ? clockTime(time) : `+${duration(time - steps[at - 1][1])}`),
    html("td", { class: "muted" }, stateName)));
  parts.push(html("table", {}, html("tbody", {}, ...rows)));
  return parts;
}

// A bar with a segment from each step to the next. Short segments are widened so that they stay visible.
function timesBar(steps, total) {
  const width = 340, least = 7;
  const spans = steps.slice(1).map(([, time], at) => time - steps[at][1]);
  const room = width - least * spans.length;
  const drawing = svg("svg", { width, height: 30, class: "times-bar", role: "img", "aria-label": steps.map(([name], at) => (at === 0 ? name : `${name} after ${duration(spans[at - 1])}`)).join(", ") });
  let x = 0;
  spans.forEach((span, at) => {
    const length = least + room * span / total;
    const part = svg("rect", { x, y: 1, width: Math.max(1, length - 1), height: 13, rx: 2, fill: steps[at][3] });
    part.append(svg("title", {}, `${steps[at][0]} → ${steps[at + 1][0]}: ${duration(span)}`));
    drawing.append(part);
    const text = duration(span);
    if (length > text.length * 6.4) drawing.append(svg("text", { class: "time", x: x + length / 2, y: 27, "text-anchor": "middle" }, text));
    x += length;
  });
  return drawing;
}

function relatedSection(request, id) {
  const parts = [];
  if (request[REQUEST_RETRIES].length > 0) {
    parts.push(html("h3", {}, "Retransmissions"), html("ul", { class: "tree" }, ...request[REQUEST_RETRIES].slice(0, 50).map(([time, psn, cause]) =>
      html("li", {}, `${clockTime(time)} µs: from PSN ${psn}, ${cause}`))));
  }
  const packets = request[REQUEST_PACKETS];
  if (packets.length > 0) {
    parts.push(html("h3", {}, `Packets (${packets.length})`), html("div", { class: "links" }, ...packets.slice(0, 60).map(packetLink)));
    if (packets.length > 60) parts.push(html("p", { class: "muted" }, `and ${packets.length - 60} more`));
  }
  const acks = request[REQUEST_ACKS];
  if (acks.length > 0) parts.push(html("h3", {}, `ACKs and NAKs (${acks.length})`), html("div", { class: "links" }, ...acks.slice(0, 60).map(packetLink)));
  const links = [];
  if (postSteps[id] >= 0) links.push(stepLink(postSteps[id], "post"));
  if (completionSteps[id] >= 0) links.push(stepLink(completionSteps[id], "completion"));
  if (request[REQUEST_PEER_REQUEST] >= 0) links.push(requestLink(request[REQUEST_PEER_REQUEST]));
  if (links.length > 0) parts.push(html("h3", {}, "Go to"), html("div", { class: "links" }, ...links));
  return parts;
}

function stepLink(step, text) {
  const button = html("button", { type: "button" }, text);
  button.addEventListener("click", () => select(step, true));
  button.disabled = step < 0 || state.rowOfStep[step] < 0;
  return button;
}

function requestLink(id) {
  const step = postSteps[id] >= 0 ? postSteps[id] : completionSteps[id];
  return stepLink(step, `${requestName(id)} of ${DATA.devices[DATA.requests[id][REQUEST_DEVICE]].name}`);
}

function packetLink(index) {
  const packet = DATA.packets[index];
  const own = sendSteps[index] >= 0 ? sendSteps[index] : arrivalSteps[index];
  const step = own >= 0 || packet[PACKET_PEER_PACKET] < 0 ? own : sendSteps[packet[PACKET_PEER_PACKET]];
  const mark = packet[PACKET_FLAGS] & FLAG_RETRANSMISSION ? " ↻" : packet[PACKET_FLAGS] & FLAG_LOST ? " ×" : "";
  return stepLink(step, `${packetName(packet)} ${packet[PACKET_PSN]}${mark}`);
}

function packetDetail(step) {
  const packet = DATA.packets[indexOf(step)];
  const other = peerOf(packet);
  const seen = describe(step);
  const parts = [html("h2", {}, seen.label)];
  const facts = [];
  for (const one of other === null ? [packet] : [packet, other]) {
    const device = DATA.devices[DATA.ends[one[PACKET_END]].device].name;
    facts.push([one[PACKET_FLAGS] & FLAG_OUT ? "sent" : "received", `${clockTime(one[PACKET_TIME])} µs, ${device}`]);
  }
  if (other !== null && clockOfPacket(packet) === clockOfPacket(other)) {
    facts.push(["transit", duration(Math.abs(other[PACKET_TIME] - packet[PACKET_TIME]))]);
  }
  if (seen.isLost) facts.push(["lost", "the other end was recorded and did not receive it"]);
  if (seen.isUnknown) facts.push(["arrival", "not recorded at the other end"]);
  if (seen.dropped) facts.push(["dropped", seen.dropText]);
  const role = packet[PACKET_ROLE];
  if ((role[0] === "ack" || role[0] === "nak") && role[1] !== null) facts.push(["acknowledges", `PSN ${psnRange(role[1])}, ${plural(role[2].length, "request")}`]);
  if (role[0] === "ack" && role[1] === null) facts.push(["acknowledges", "nothing new"]);
  parts.push(table(facts));
  if (role[0] === "nak") parts.push(explanationBox(SYNDROMES.get(role[5])));
  parts.push(html("h3", {}, "Packet"), headerTree(packet));
  if (packet[PACKET_PAYLOAD]) parts.push(hexDump(packet));
  return parts;
}

function clockOfPacket(packet) { return DATA.devices[DATA.ends[packet[PACKET_END]].device].clock; }

const BTH_FLAGS = ["solicited", "migrated", "FECN", "BECN", "ack request"];

function headerTree(packet) {
  const layers = [];
  const name = (index) => (index === null ? null : DATA.names[index]);
  const [source, destination] = [name(packet[PACKET_SOURCE]), name(packet[PACKET_DESTINATION])];
  if (source || destination) layers.push(["IP, UDP", [["source", source ?? "unknown"], ["destination", destination ?? "unknown"]]]);
  const flags = BTH_FLAGS.filter((_, bit) => packet[PACKET_BTH_FLAGS] >> bit & 1);
  layers.push(["BTH", [
    ["opcode", `${hex(packet[PACKET_OPCODE], 2)} ${DATA.names[packet[PACKET_NAME]]}`],
    ["destination QP", hex(packet[PACKET_DEST])],
    ["PSN", `${packet[PACKET_PSN]} (${hex(packet[PACKET_PSN])})`],
    ["P_Key", hex(packet[PACKET_PKEY], 4)],
    ["flags", flags.length > 0 ? flags.join(", ") : "none"],
  ]]);
  for (const [header, ...values] of packet[PACKET_HEADERS]) {
    const fields = [];
    for (let at = 0; at < values.length; at += 2) fields.push([DATA.names[values[at]], values[at + 1]]);
    layers.push([DATA.names[header], fields]);
  }
  const payload = packet[PACKET_LENGTH];
  layers.push(["payload", [["length", `${grouped(payload)} bytes`]]]);
  return html("ul", { class: "tree" }, ...layers.map(([header, fields]) => html("li", {},
    html("b", {}, header),
    html("ul", { class: "tree" }, ...fields.map(([field, value]) => html("li", {}, html("span", { class: "muted" }, `${field} `), value))))));
}

function hexDump(packet) {
  const bytes = packet[PACKET_PAYLOAD].match(/../g) ?? [];
  const lines = [];
  for (let at = 0; at < bytes.length; at += 8) {
    const part = bytes.slice(at, at + 8);
    const text = part.map((byte) => { const code = parseInt(byte, 16); return code > 31 && code < 127 ? String.fromCharCode(code) : "."; }).join("");
    lines.push(`${at.toString(16).padStart(4, "0")}  ${part.join(" ").padEnd(23)}  ${text}`);
  }
  const rest = packet[PACKET_LENGTH] - bytes.length;
  if (rest > 0) lines.push(`      ${plural(rest, "byte")} not shown`);
  return html("pre", { class: "bytes", "aria-label": "Payload bytes" }, lines.join("\n"));
}

function table(rows) {
  return html("table", {}, html("tbody", {}, ...rows.map(([name, value]) => html("tr", {}, html("th", {}, name), html("td", { class: "value" }, value)))));
}
