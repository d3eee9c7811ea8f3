use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::*;
use crate::sample;
use crate::sample::{CLIENT, FAR, SERVER, at};

fn events(trace: &Trace) -> Vec<Value> {
    let mut text = Vec::new();
    trace.write_perfetto(&mut text).unwrap();
    let parsed: Value = serde_json::from_slice(&text).unwrap();
    parsed["traceEvents"].as_array().unwrap().clone()
}

/// Returns the time of an event in nanoseconds.
fn nanos(event: &Value) -> u64 {
    (event["ts"].as_f64().unwrap() * 1000.0).round() as u64
}

fn with_phase<'a>(events: &'a [Value], phase: &str) -> Vec<&'a Value> {
    events.iter().filter(|event| event["ph"] == phase).collect()
}

/// A slice: its name, begin and end, and its depth.
type Slice = (String, u64, u64, usize);

/// Returns the slices of each asynchronous id, after checking that they nest.
fn slices(events: &[Value]) -> HashMap<String, Vec<Slice>> {
    let mut open: HashMap<String, Vec<(String, u64)>> = HashMap::new();
    let mut slices: HashMap<String, Vec<Slice>> = HashMap::new();
    let mut asynchronous: Vec<&Value> =
        events.iter().filter(|event| ["b", "e", "n"].contains(&event["ph"].as_str().unwrap())).collect();
    // Viewers sort events by time, and keep the order of those at one time.
    asynchronous.sort_by_key(|event| nanos(event));
    for event in asynchronous {
        let id = event["id"].as_str().unwrap().to_owned();
        let name = event["name"].as_str().unwrap().to_owned();
        let stack = open.entry(id.clone()).or_default();
        match event["ph"].as_str().unwrap() {
            "b" => stack.push((name, nanos(event))),
            "n" => assert!(!stack.is_empty(), "{name} is in no slice"),
            _ => {
                let (begun, start) = stack.pop().expect("a slice that began");
                assert_eq!(begun, name, "slices must nest");
                let depth = stack.len();
                slices.entry(id).or_default().push((name, start, nanos(event), depth));
            }
        }
    }
    assert!(open.values().all(Vec::is_empty));
    slices
}

#[test]
fn slices_nest_and_have_unique_ids() {
    let trace = sample::trace();
    let events = events(&trace);
    let slices = slices(&events);
    assert_eq!(slices.len(), trace.requests().len());
    for slices in slices.values() {
        let outermost: Vec<&Slice> = slices.iter().filter(|slice| slice.3 == 0).collect();
        assert_eq!(outermost.len(), 1, "two requests have one id");
        assert!(slices.iter().all(|(_, begin, end, _)| begin <= end));
        let (_, first, last, _) = outermost[0];
        assert!(slices.iter().all(|(_, begin, end, _)| begin >= first && end <= last));
    }
}

#[test]
fn slices_of_a_request_are_its_steps() {
    let trace = sample::trace();
    let slices = &slices(&events(&trace))["0x1"];
    // The clock's first event is the receive at the server's time 0, which is the client's time 5 µs.
    let steps: Vec<(&str, u64, u64)> =
        slices.iter().map(|(name, begin, end, _)| (name.as_str(), begin / 1000, end / 1000)).collect();
    let expected = [
        ("queued", 105, 107),
        ("on the wire", 107, 135),
        ("#1 RDMA WRITE 2500 bytes tag 0x8", 105, 136),
        ("completion pending", 136, 145),
        ("qp 0x000012 send", 105, 145),
    ];
    assert_eq!(steps, expected);
}

#[test]
fn unfinished_requests_last_until_the_end() {
    let trace = sample::trace();
    let slices = slices(&events(&trace));
    let named = |id: usize, name: &str| {
        slices[&format!("{id:#x}")].iter().find(|slice| slice.0.contains(name)).cloned().unwrap()
    };
    let end = (706 - 5) * 1000;
    assert_eq!(named(4, "failed").2, (441 - 5) * 1000);
    assert_eq!(named(4, "completion not polled").2, end);
    let last = trace.requests().len() - 1;
    let (name, begin, until, _) = named(last, "posted before the recording");
    assert_eq!((&*name, begin, until), ("#8, posted before the recording, not completed", 595_000, end));
    // The receive in the shared receive queue has the clock of its own device.
    assert_eq!(named(last - 1, "srq 0 recv").2, 3000);
}

#[test]
fn processes_name_their_clocks() {
    let mut trace = sample::trace();
    let names = |trace: &Trace| {
        let events = events(trace);
        let processes = events.iter().filter(|event| event["name"] == "process_name");
        processes.map(|event| event["args"]["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let expected = [
        "soft0 (clock shared with soft1)",
        "soft1 (clock shared with soft0)",
        "far \"2\" (own clock) (3 events lost)",
    ];
    assert_eq!(names(&trace), expected);
    trace.devices.pop();
    trace.packets.retain(|packet| packet.device != FAR);
    trace.requests.retain(|request| request.device != FAR);
    assert_eq!(names(&trace), ["soft0", "soft1"]);
}

#[test]
fn each_clock_starts_at_zero() {
    let trace = sample::trace();
    let events = events(&trace);
    let first = |devices: &[DeviceId]| {
        let pids: HashSet<usize> = devices.iter().map(|device| process(*device)).collect();
        let of_devices = events
            .iter()
            .filter(|event| event["ph"] != "M" && pids.contains(&(event["pid"].as_u64().unwrap() as usize)));
        of_devices.map(nanos).min().unwrap()
    };
    assert_eq!(first(&[CLIENT, SERVER]), 0);
    assert_eq!(first(&[FAR]), 0);
    let trace_times = [trace.packets[0].time, at(12)];
    assert_eq!(trace_times[0], trace_times[1]);
    let packet = events.iter().find(|event| event["args"]["packet"] == 0).unwrap();
    assert_eq!(nanos(packet), (12 - 5) * 1000);
}

#[test]
fn packets_are_instants_whose_names_include_drops_naks_and_retransmissions() {
    let trace = sample::trace();
    let events = events(&trace);
    let packets: Vec<&Value> =
        with_phase(&events, "i").into_iter().filter(|event| event["cat"] == "packet").collect();
    assert_eq!(packets.len(), trace.packets().len());
    for (index, (event, comment)) in packets.iter().zip(trace.packet_comments()).enumerate() {
        assert_eq!(event["args"]["packet"], index);
        assert_eq!(event["args"]["comment"], comment);
        assert_eq!(event["s"], "t");
    }
    let names: Vec<&str> = packets.iter().map(|event| event["name"].as_str().unwrap()).collect();
    let expected = [
        "out RC WRITE first psn 0",
        "DROPPED in RC WRITE last psn 2",
        "NAK in psn 1: nak: PSN sequence error",
        "RETRANSMISSION out RC WRITE middle psn 1",
        "NAK out psn 6: RNR nak, wait 1.28ms",
        "out CM REQ",
        "in CNP psn 0",
    ];
    for name in expected {
        assert!(names.contains(&name), "{name} is missing in {names:?}");
    }
}

#[test]
fn arrows_connect_the_copies_of_a_packet() {
    let trace = sample::trace();
    let events = events(&trace);
    let [starts, ends] = ["s", "f"].map(|phase| {
        let ids = with_phase(&events, phase).into_iter().map(|event| (event["id"].as_u64().unwrap(), event));
        ids.collect::<HashMap<u64, &Value>>()
    });
    assert_eq!(starts.len(), with_phase(&events, "s").len(), "ids must be unique");
    let sent = trace
        .packets()
        .iter()
        .filter(|packet| packet.direction == Direction::Out && packet.peer_packet.is_some());
    assert_eq!(starts.len(), sent.count());
    assert_eq!(ends.len(), starts.len());
    for (id, start) in &starts {
        let end = ends[id];
        assert_eq!(nanos(end), nanos(start) + 3000);
        assert_ne!(start["pid"], end["pid"]);
        assert_eq!(end["bp"], "e");
    }
    // Each end of an arrow follows an instant event with the same time and track.
    for (index, event) in
        events.iter().enumerate().filter(|(_, event)| ["s", "f"].contains(&event["ph"].as_str().unwrap()))
    {
        let instant = &events[index - 1];
        assert_eq!(instant["ph"], "i");
        assert_eq!((&instant["ts"], &instant["tid"]), (&event["ts"], &event["tid"]));
    }
    // Devices without a common clock have no arrows.
    let mut trace = sample::trace();
    trace.devices[1].clock.host_id = 1;
    let events = super::tests::events(&trace);
    assert!(with_phase(&events, "s").is_empty() && with_phase(&events, "f").is_empty());
}

#[test]
fn threads_have_names_and_ids_of_their_own() {
    let trace = sample::trace();
    let events = events(&trace);
    let names = events.iter().filter(|event| event["name"] == "thread_name");
    let threads: HashMap<u64, &Value> = names.map(|event| (event["tid"].as_u64().unwrap(), event)).collect();
    for event in events.iter().filter(|event| event["ph"] != "M") {
        let Some(thread) = event["tid"].as_u64() else {
            assert_eq!(event["s"], "p");
            continue;
        };
        assert_eq!(threads[&thread]["pid"], event["pid"]);
        assert!(thread as usize > trace.devices().len(), "the id of a process");
    }
}
