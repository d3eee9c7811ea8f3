//! Tests of the page with a trace that has many kinds of requests, packets and events.

use serde_json::Value;

use super::*;
use crate::model::{Direction, PacketRole};
use crate::sample;

fn page(trace: &Trace) -> String {
    let mut page = Vec::new();
    trace.write_html(&mut page).unwrap();
    String::from_utf8(page).unwrap()
}

fn data(page: &str) -> Value {
    let (_, rest) = page.split_once(r#"id="trace-data">"#).unwrap();
    serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
}

#[test]
fn page_is_balanced_and_refers_to_nothing_outside() {
    let page = page(&sample::trace());
    for element in ["html", "head", "body", "style", "main", "header", "footer", "aside", "dialog", "script"]
    {
        let opened =
            page.matches(&format!("<{element}>")).count() + page.matches(&format!("<{element} ")).count();
        assert_eq!(opened, page.matches(&format!("</{element}>")).count(), "{element}");
        assert!(opened > 0, "{element}");
    }
    assert!(!page.contains("{{") && !page.contains("}}</"), "a placeholder is left");
    let without_namespace = page.replace("http://www.w3.org/2000/svg", "");
    for reference in ["http:", "https:", "src=", "url(", "@import", "<link", "import("] {
        assert!(!without_namespace.contains(reference), "{reference}");
    }
}

#[test]
fn page_draws_500_rows_at_most() {
    assert_eq!(data(&page(&Trace::default()))["rowLimit"], 500);
    assert!(SCRIPTS.concat().contains("from + DATA.rowLimit"));
}

#[test]
fn every_object_of_the_trace_is_in_the_page() {
    let trace = sample::trace();
    let data = data(&page(&trace));
    let count = |name: &str| data[name].as_array().unwrap().len();
    assert_eq!(count("devices"), trace.devices.len());
    assert_eq!(count("requests"), trace.requests.len());
    assert_eq!(count("packets"), trace.packets.len());
    assert_eq!(count("otherEvents"), trace.other_events.len());
    let kinds = data["stepKinds"].as_str().unwrap();
    assert_eq!(kinds.len(), count("stepIndices"));
    let step_count = |kind: char| kinds.matches(kind).count();
    let all_times = || trace.requests.iter().map(|request| request.times);
    assert_eq!(step_count('p'), all_times().filter(|times| times.posted.is_some()).count());
    assert_eq!(step_count('c'), all_times().filter(|times| times.completed.is_some()).count());
    assert_eq!(step_count('l'), all_times().filter(|times| times.polled.is_some()).count());
    let failed = trace.requests.iter().filter_map(|request| request.outcome?.err());
    for failure in failed {
        let statuses = data["statuses"].as_array().unwrap();
        let status = statuses.iter().find(|status| status[0] == failure.status.code()).unwrap();
        let explanation = adverb_proto::explain::status(failure.status).unwrap();
        assert_eq!((&status[2], &status[3][1]), (&explanation.name.into(), &explanation.meaning.into()));
    }
    for packet in data["packets"].as_array().unwrap().iter().filter(|packet| packet[13][0] == "nak") {
        let syndromes = data["syndromes"].as_array().unwrap();
        let syndrome = syndromes.iter().find(|syndrome| syndrome[0] == packet[13][5]).unwrap();
        assert!(!syndrome[1][1].as_str().unwrap().is_empty());
    }
}

#[test]
fn packets_have_their_headers_and_roles() {
    let trace = sample::trace();
    let data = data(&page(&trace));
    let name = |index: &Value| data["names"][index.as_u64().unwrap() as usize].as_str().unwrap().to_owned();
    for (packet, written) in trace.packets.iter().zip(data["packets"].as_array().unwrap()) {
        assert_eq!(written.as_array().unwrap().len(), 18);
        assert_eq!(written[2].as_u64().unwrap() & 1 == 1, packet.direction == Direction::Out);
        assert_eq!(name(&written[4]), packet.header.opcode().name());
        assert_eq!(written[6], packet.header.psn.get());
        let role = match packet.role {
            PacketRole::Request(_) => "request",
            PacketRole::Response(_) => "response",
            PacketRole::Ack { .. } => "ack",
            PacketRole::Nak { .. } => "nak",
            PacketRole::Cm { .. } => "cm",
            PacketRole::Cnp => "cnp",
        };
        assert_eq!(written[13][0], role);
        // Each extended header has a name, and a value for each field.
        for header in written[9].as_array().unwrap() {
            assert!(!name(&header[0]).is_empty());
            assert_eq!(header.as_array().unwrap().len() % 2, 1);
        }
        let length: usize =
            written[9].as_array().unwrap().iter().map(|header| header_len(&name(&header[0]))).sum();
        let cnp_reserved = if packet.role == PacketRole::Cnp { 16 } else { 0 };
        assert_eq!(12 + length + cnp_reserved, packet.header.len(), "{}", packet.header);
    }
}

fn header_len(name: &str) -> usize {
    match name {
        "DETH" | "AtomicAckETH" => 8,
        "RETH" => 16,
        "AtomicETH" => 28,
        "AETH" | "ImmDt" | "IETH" | "FETH" => 4,
        other => panic!("unknown header {other}"),
    }
}

#[test]
fn scripts_are_short_enough_to_read() {
    for script in SCRIPTS {
        assert!(script.lines().count() < 800);
        assert!(script.ends_with('\n') && !script.contains("</script"), "a script must not end its element");
    }
}
