//! Pages of recorded devices, opened in a browser if there is one.

mod harness;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use adverb_proto::trace::{ClockOrigin, Recording, TraceEvent};
use adverb_proto::types::{ArmFor, RemoteAddress, SendFlags, SendOperation, Transport};
use adverb_trace::Trace;
use harness::{Faults, Seen, World};
use serde_json::Value;

const SIGNALED: SendFlags = SendFlags::SIGNALED;

/// Posts SENDs, WRITEs, a READ and an atomic, one after the other. The last WRITE has a wrong key, so it and the SEND
/// after it fail.
fn post_operations(world: &mut World) {
    for (wr_id, length) in [(100, 256), (101, 4096)] {
        world.sides[1].recv(world.now, wr_id, wr_id, length);
        world.advance_clock(300);
    }
    let remote = world.sides[1].remote_address(4096);
    let wrong = RemoteAddress { rkey: remote.rkey ^ 0x5a5a, ..remote };
    let operations = [
        (SendOperation::Send, 64, 1),
        (SendOperation::Write(remote), 4096, 2),
        (SendOperation::Read(remote), 3000, 3),
        (SendOperation::CompareSwap { remote, compare: 1, swap: 2 }, 8, 4),
        (SendOperation::SendWithImm(7), 2000, 5),
        (SendOperation::Write(wrong), 64, 6),
        (SendOperation::Send, 32, 7),
    ];
    for (operation, length, wr_id) in operations {
        for side in &mut world.sides {
            side.device.arm_cq(side.cq, ArmFor::Any);
        }
        world.advance_clock(1_200);
        let segments = [world.sides[0].segment(0, length)];
        world.sides[0].send(world.now, (wr_id, 0x100 + wr_id), operation, SIGNALED, &segments);
        // The last two are posted together.
        if wr_id != 6 {
            settle(world);
        }
    }
}

/// Runs the devices until nothing more happens, and polls the completions of both sides as they arrive.
fn settle(world: &mut World) {
    loop {
        world.transmit();
        let is_over = !world.handle_next_event();
        for index in 0..2 {
            while world.sides[index].device.poll_cq_event().is_some() {
                let (now, cq) = (world.now, world.sides[index].cq);
                world.sides[index].device.record(now, || TraceEvent::CqEventDelivered { cq });
            }
            world.advance_clock(400);
            let now = world.now;
            while world.sides[index].poll(now).is_some() {}
        }
        if is_over {
            return;
        }
    }
}

fn recorded(faults: Faults, seed: u64) -> World {
    let mut world = World::connected(Transport::Rc, faults, seed, 0xff_fffe);
    world.advance_clock(2_000);
    post_operations(&mut world);
    world
}

const LOSSY: Faults = Faults { loss: 14, duplication: 3, reordering: 8 };

/// Writes a page of the trace and returns its path and its text.
fn write_page(name: &str, recordings: impl IntoIterator<Item = Recording>) -> (PathBuf, String) {
    let mut bytes = Vec::new();
    Trace::new(recordings).write_html(&mut bytes).unwrap();
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("trace_{name}.html"));
    std::fs::write(&path, &bytes).unwrap();
    (path, String::from_utf8(bytes).unwrap())
}

/// Returns the JSON data of a page.
fn data(page: &str) -> Value {
    let start = r#"<script type="application/json" id="trace-data">"#;
    let (_, rest) = page.split_once(start).unwrap();
    serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
}

fn with_other_host([one, mut other]: [Recording; 2]) -> [Recording; 2] {
    other.clock = ClockOrigin { host_id: 0, monotonic_nanos: 77_000_000, unix_nanos: 5 };
    [one, other]
}

/// Opens the page in a browser and returns the document after the page's scripts have run, or `None` if there is no
/// browser.
fn browse(path: &Path, hash: &str) -> Option<String> {
    let browser = ["chromium", "chromium-browser", "google-chrome"]
        .into_iter()
        .find(|name| Command::new(name).arg("--version").output().is_ok());
    let Some(browser) = browser else {
        println!("skipped: chromium is not installed");
        return None;
    };
    let output = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1280,800", "--dump-dom"])
        .arg(format!("file://{}#{hash}", path.display()))
        .output()
        .unwrap();
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The elements of a packet's array that the tests read.
const TIME: usize = 1;
const FLAGS: usize = 2;
const DROPPED: usize = 12;
const PEER: usize = 14;
/// Bits of a packet's flags.
const OUT: u64 = 1;
const LOST: u64 = 4;
const UNKNOWN: u64 = 8;
const DUPLICATE: u64 = 16;

fn flags(packet: &Value) -> u64 {
    packet[FLAGS].as_u64().unwrap()
}

/// Returns the steps of a page: kinds and indices.
fn steps(data: &Value) -> Vec<(char, usize)> {
    let indices =
        data["stepIndices"].as_array().unwrap().iter().map(|index| index.as_u64().unwrap() as usize);
    data["stepKinds"].as_str().unwrap().chars().zip(indices).collect()
}

fn device_of_packet(data: &Value, packet: &Value) -> u64 {
    data["ends"][packet[0].as_u64().unwrap() as usize]["device"].as_u64().unwrap()
}

/// Returns the device and the time of a step.
fn device_and_time(data: &Value, (kind, index): (char, usize)) -> (u64, u64) {
    let of_request = |at: usize| {
        let request = &data["requests"][index];
        (request[0].as_u64().unwrap(), request[7][at].as_u64().unwrap())
    };
    let of_end = |list: &str| {
        let value = &data[list][index];
        let end = value[0].as_u64().unwrap() as usize;
        (data["ends"][end]["device"].as_u64().unwrap(), value[1].as_u64().unwrap())
    };
    match kind {
        'p' => of_request(0),
        'c' => of_request(5),
        'l' => of_request(6),
        'd' => of_end("doorbells"),
        'r' => of_end("retries"),
        'm' => {
            let timed = &data["otherEvents"][index];
            (timed[0].as_u64().unwrap(), timed[2].as_u64().unwrap())
        }
        _ => of_end("packets"),
    }
}

#[test]
fn lost_packets_are_those_that_the_network_lost() {
    let mut total = 0;
    for seed in 1..=20 {
        let world = recorded(Faults { duplication: 0, ..LOSSY }, seed);
        let (_, text) = write_page("lost", world.recordings(9));
        let data = data(&text);
        // Equal packets can't be told apart, so they are counted: those that the network lost, those that the page
        // shows as lost, and those whose arrival it doesn't know.
        let mut counts: BTreeMap<(usize, String), [usize; 3]> = BTreeMap::new();
        let mut numbers = [0; 2];
        for packet in data["packets"].as_array().unwrap().iter().filter(|packet| flags(packet) & OUT != 0) {
            let side = device_of_packet(&data, packet) as usize;
            let matches =
                |seen: &&Seen| !seen.is_received && seen.side == side && seen.number == numbers[side];
            let sent = world.seen.iter().find(matches).unwrap();
            let is_delivered =
                |seen: &Seen| seen.is_received && seen.side != side && seen.number == sent.number;
            let count = counts.entry((side, sent.header.to_string())).or_default();
            count[0] += usize::from(!world.seen.iter().any(is_delivered));
            count[1] += usize::from(flags(packet) & LOST != 0);
            count[2] += usize::from(flags(packet) & UNKNOWN != 0);
            numbers[side] += 1;
        }
        for ((side, header), [lost, shown, unknown]) in counts {
            assert_eq!(shown + unknown, lost, "seed {seed}, side {side}: {header}");
            total += shown;
        }
    }
    assert!(total > 50, "{total}");
}

#[test]
fn steps_of_one_clock_are_in_the_order_of_their_times() {
    let (_, text) = write_page("lossy", recorded(LOSSY, 5).recordings(9));
    let data = data(&text);
    let steps = steps(&data);
    let times: Vec<u64> = steps.iter().map(|step| device_and_time(&data, *step).1).collect();
    assert!(times.is_sorted());
    assert_eq!(times[0], 0);
    // Packets that arrived have two steps.
    let matched = data["packets"].as_array().unwrap().iter().filter(|packet| packet[PEER] != -1).count();
    let is_sent = |step: &&(char, usize)| step.0 == 's' && data["packets"][step.1][PEER] != -1;
    assert_eq!(
        steps.iter().filter(is_sent).count() + steps.iter().filter(|step| step.0 == 'a').count(),
        matched
    );
}

#[test]
fn packet_between_two_clocks_is_one_step_after_its_causes() {
    for seed in 1..=20 {
        let world = recorded(LOSSY, seed);
        let (_, text) = write_page("clocks", with_other_host(world.recordings(9)));
        let data = data(&text);
        assert_eq!((&data["devices"][0]["clock"], &data["devices"][1]["clock"]), (&0.into(), &1.into()));
        let steps = steps(&data);
        let mut shown = vec![0; data["packets"].as_array().unwrap().len()];
        let mut last = [0; 2];
        for &(kind, index) in &steps {
            assert_ne!(kind, 'a', "the arrival of a packet between two clocks is no step");
            if kind == 's' {
                shown[index] += 1;
                continue;
            }
            let (device, time) = device_and_time(&data, (kind, index));
            let last = &mut last[device as usize];
            assert!(time >= *last, "seed {seed}: the steps of device {device} are not in order");
            *last = time;
        }
        for (index, packet) in data["packets"].as_array().unwrap().iter().enumerate() {
            let is_shown_by_peer = flags(packet) & (OUT | DUPLICATE) == 0 && packet[PEER] != -1;
            assert_eq!(shown[index], u32::from(!is_shown_by_peer), "seed {seed}: packet {index}");
        }
        // A receive completes after its packets arrived, and a send after its packets were sent.
        let position = |wanted: (char, usize)| steps.iter().position(|step| *step == wanted);
        for (id, request) in data["requests"].as_array().unwrap().iter().enumerate() {
            let Some(completed) = position(('c', id)) else { continue };
            for packet in request[9].as_array().unwrap() {
                let index = packet.as_u64().unwrap() as usize;
                let packet = &data["packets"][index];
                if packet[TIME].as_u64() < request[7][5].as_u64() && shown[index] > 0 {
                    assert!(position(('s', index)).unwrap() < completed, "seed {seed}: request {id}");
                }
            }
        }
    }
}

#[test]
fn packet_that_a_failed_queue_pair_dropped_is_not_lost() {
    let (_, text) = write_page("plain", recorded(Faults::NONE, 1).recordings(9));
    let data = data(&text);
    let packets = data["packets"].as_array().unwrap();
    assert!(packets.iter().all(|packet| flags(packet) & (LOST | UNKNOWN) == 0));
    let dropped: Vec<&Value> = packets.iter().filter(|packet| !packet[DROPPED].is_null()).collect();
    assert_eq!(dropped.len(), 1);
    assert_eq!(data["names"][dropped[0][DROPPED][0].as_u64().unwrap() as usize], "wrong state");
}

#[test]
fn names_of_devices_cannot_inject_markup() {
    let name = "</script><script>document.documentElement.dataset.error = 1</script><img src=x>\u{2028}\"";
    let [mut one, other] = recorded(Faults::NONE, 1).recordings(9);
    one.device = name.to_owned();
    let (path, text) = write_page("names", [one, other]);
    assert_eq!(text.matches("</script>").count(), 2);
    assert!(!text.contains("<img") && !text.contains('\u{2028}'));
    assert_eq!(data(&text)["devices"][0]["name"], name);
    if let Some(document) = browse(&path, "") {
        assert!(is_ready(&document) && !document.contains("<img"), "{document:.300}");
    }
}

/// Whether the page's scripts ran to their end without an error.
fn is_ready(document: &str) -> bool {
    let root =
        document.split_once("<html").and_then(|(_, rest)| rest.split_once('>')).map_or("", |(root, _)| root);
    root.contains("data-ready=") && !root.contains("data-error=")
}

/// A script that presses every key, shows every view, and selects rows.
const USE_SCRIPT: &str = r#"
    for (const key of [...Object.keys(KEYS), "f", "e", "f"]) {
        document.body.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
        controls.keys.close();
    }
    state.views.forEach((_, index) => {
        controls.view.value = index;
        controls.view.dispatchEvent(new Event("change"));
        for (let row = 0; row < Math.min(150, state.rows.length); row++) selectRow(row);
    });
    controls.search.value = "psn";
    search(true);
    document.documentElement.dataset.used = "yes";
"#;

#[test]
fn browser_draws_every_page_without_an_error() {
    let [one, _] = recorded(LOSSY, 5).recordings(9);
    let mut large = World::connected(Transport::Rc, Faults { loss: 1, duplication: 0, reordering: 0 }, 3, 0);
    for wr_id in 0..8000 {
        large.sides[1].recv(large.now, wr_id, wr_id, 3000);
        let segments = [large.sides[0].segment(0, 3000)];
        large.sides[0].send(large.now, (wr_id, wr_id), SendOperation::Send, SIGNALED, &segments);
        if wr_id % 16 == 15 {
            settle(&mut large);
        }
    }
    let pages = [
        (write_page("browsed_lossy", recorded(LOSSY, 5).recordings(9)), "row=40&search=retransmission", 1),
        (
            write_page("browsed_clocks", with_other_host(recorded(LOSSY, 5).recordings(9))),
            "theme=dark&row=9",
            1,
        ),
        (write_page("browsed_one_end", [one]), "scale=time&failures", 1),
        (write_page("browsed_empty", []), "", 0),
        (
            write_page("browsed_idle", World::connected(Transport::Rc, Faults::NONE, 1, 0).recordings(9)),
            "",
            0,
        ),
        (write_page("browsed_large", large.recordings(9)), "row=50000&search=wr_id 0xf9f", 1),
    ];
    let (_, large) = &pages[5].0;
    let step_count = steps(&data(large)).len();
    assert!(step_count > 100_000, "{step_count}");
    for ((path, text), hash, min_rows) in &pages {
        // The script would take long on the large page.
        let is_used = text.len() < 1 << 20;
        if is_used {
            let used = text.replace("</body>", &format!("<script>{USE_SCRIPT}</script></body>"));
            std::fs::write(path, used).unwrap();
        }
        let Some(document) = browse(path, hash) else { return };
        assert!(is_ready(&document), "{}: {document:.300}", path.display());
        assert_eq!(document.contains("data-used="), is_used, "{}: {document:.300}", path.display());
        let rows = document.matches("data-row=").count();
        assert!((*min_rows..=500).contains(&rows), "{}: {rows} rows", path.display());
    }
}
