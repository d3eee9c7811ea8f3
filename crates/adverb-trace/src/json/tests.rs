use serde_json::Value;

use super::*;
use crate::model::{PsnRange, RequestTimes};
use crate::sample;

fn lines(trace: &Trace) -> Vec<Value> {
    let mut text = Vec::new();
    trace.write_json_lines(&mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn of_type<'a>(lines: &'a [Value], name: &str) -> Vec<&'a Value> {
    lines.iter().filter(|line| line["type"] == name).collect()
}

fn hex(value: &Value) -> u64 {
    u64::from_str_radix(value.as_str().unwrap().strip_prefix("0x").unwrap(), 16).unwrap()
}

fn nanos(value: &Value) -> Option<Time> {
    value.as_u64().map(Time::from_nanos)
}

fn number<T: TryFrom<u64>>(value: &Value) -> Option<T> {
    value.as_u64().and_then(|number| number.try_into().ok())
}

#[test]
fn first_line_names_format_and_version() {
    let trace = sample::trace();
    let lines = lines(&trace);
    assert_eq!(lines[0]["format"], "adverb-trace");
    assert_eq!(lines[0]["version"], 1);
    let kinds = ["device", "request", "packet", "other_event"];
    for kind in kinds {
        let count = lines[0][format!("{kind}_count")].as_u64().unwrap() as usize;
        assert_eq!(of_type(&lines, kind).len(), count);
    }
    let connections = of_type(&lines, "connection").len();
    let counted: usize = kinds.iter().map(|kind| of_type(&lines, kind).len()).sum();
    assert_eq!(lines.len(), 1 + counted + connections);
}

#[test]
fn devices_and_connections_keep_their_values() {
    let trace = sample::trace();
    let lines = lines(&trace);
    let devices = of_type(&lines, "device");
    assert_eq!(devices.len(), 3);
    for (index, (line, device)) in devices.into_iter().zip(trace.devices()).enumerate() {
        assert_eq!(line["device"], index);
        assert_eq!(line["name"], device.name);
        let host_id = line["host_id"].as_str().unwrap().strip_prefix("0x").unwrap();
        assert_eq!(u128::from_str_radix(host_id, 16).unwrap(), device.clock.host_id);
        assert_eq!(line["unix_nanos"].as_str().unwrap(), device.clock.unix_nanos.to_string());
        assert_eq!(line["monotonic_nanos"].as_str().unwrap(), device.clock.monotonic_nanos.to_string());
        assert_eq!(line["lost_count"], device.lost_count);
        assert_eq!(line["stop_cause"], device.stop_cause.name());
    }
    let connections = of_type(&lines, "connection");
    let expected = trace.devices().iter().flat_map(|device| &device.connections);
    assert_eq!(connections.len(), 2);
    for (line, connection) in connections.into_iter().zip(expected) {
        assert_eq!(nanos(&line["time"]), Some(connection.time));
        assert_eq!(line["transport"], "RC");
        assert_eq!(line["qpn"], connection.qpn.get());
        assert_eq!(line["remote_qpn"], connection.remote_qpn.get());
        assert_eq!(line["local"], connection.local.to_string());
        assert_eq!(line["remote"], connection.remote.to_string());
        assert_eq!(line["path_mtu"], 1024);
        assert_eq!(line["recv_psn"], connection.recv_psn.get());
        assert_eq!(number::<u32>(&line["send_psn"]), connection.send_psn.map(|psn| psn.get()));
    }
}

#[test]
fn requests_keep_their_values() {
    let trace = sample::trace();
    let lines = lines(&trace);
    let requests = of_type(&lines, "request");
    assert_eq!(requests.len(), trace.requests().len());
    for (index, (line, request)) in requests.into_iter().zip(trace.requests()).enumerate() {
        assert_eq!(line["request"], index);
        assert_eq!(line["device"], request.device.0);
        assert_eq!(number::<u32>(&line["qpn"]), request.qpn.map(|qpn| qpn.get()));
        assert_eq!(line["queue"], request.queue.name());
        assert_eq!(line["number_in_queue"], request.number_in_queue);
        assert_eq!(hex(&line["wr_id"]), request.wr_id);
        let times = &line["times"];
        let parsed = RequestTimes {
            posted: nanos(&times["posted"]),
            doorbell: nanos(&times["doorbell"]),
            first_packet: nanos(&times["first_packet"]),
            last_packet: nanos(&times["last_packet"]),
            acknowledged: nanos(&times["acknowledged"]),
            completed: nanos(&times["completed"]),
            polled: nanos(&times["polled"]),
            processed: nanos(&times["processed"]),
        };
        assert_eq!(parsed, request.times);
        let psns = number::<u32>(&line["first_psn"]).zip(number::<u32>(&line["last_psn"]));
        assert_eq!(psns, request.psn_range.map(|range| (range.first.get(), range.last.get())));
        for (key, expected) in [("packets", &request.packets), ("acks", &request.acks)] {
            let packets = line[key].as_array().unwrap();
            assert_eq!(packets.len(), expected.len());
            assert!(packets.iter().zip(expected).all(|(value, id)| *value == id.0));
        }
        assert_eq!(number(&line["connection"]), request.connection);
        let retransmissions = line["retransmissions"].as_array().unwrap();
        assert_eq!(retransmissions.len(), request.retransmissions.len());
        for (value, retransmission) in retransmissions.iter().zip(&request.retransmissions) {
            assert_eq!(nanos(&value["time"]), Some(retransmission.time));
            assert_eq!(value["psn"], retransmission.psn.get());
            assert_eq!(value["cause"], retransmission.cause.name());
        }
        assert_eq!(number::<u32>(&line["cq"]), request.cq.map(Cq::number));
        assert_eq!(number(&line["peer_request"]).map(RequestId), request.peer_request);
        check_posted(&line["posted"], request.posted.as_ref());
        match &request.outcome {
            Some(Ok(success)) => {
                assert_eq!(line["outcome"]["status"], 0);
                assert_eq!(line["outcome"]["length"], success.length);
            }
            Some(Err(failure)) => {
                assert_eq!(line["outcome"]["status"], failure.status.code());
                assert_eq!(line["outcome"]["vendor_error"], failure.vendor_error);
            }
            None => assert!(line["outcome"].is_null()),
        }
    }
}

fn check_posted(line: &Value, posted: Option<&WorkRequest>) {
    let Some(posted) = posted else { return assert!(line.is_null()) };
    assert_eq!(hex(&line["tag"]), posted.tag);
    assert_eq!(line["length"], posted.length);
    assert_eq!(line["sge_count"], posted.sge_count);
    if let Some(segment) = posted.first_sge {
        assert_eq!(hex(&line["first_sge"]["addr"]), segment.addr);
        assert_eq!(line["first_sge"]["length"], segment.length);
        assert_eq!(line["first_sge"]["lkey"], segment.lkey);
    }
    let srq = posted.recv_queue.and_then(|queue| match queue {
        RecvQueueId::Srq(srq) => Some(srq.number()),
        RecvQueueId::Qp(_) => None,
    });
    assert_eq!(number::<u32>(&line["srq"]), srq);
    let check_remote = |remote: &RemoteAddress| {
        assert_eq!(hex(&line["remote_addr"]), remote.addr);
        assert_eq!(line["rkey"], remote.rkey);
    };
    match &posted.operation {
        Some(SendOperation::SendWithImm(immediate)) => {
            assert_eq!(
                (&line["operation"], &line["immediate"]),
                (&"send_with_imm".into(), &(*immediate).into())
            );
        }
        Some(SendOperation::Write(to)) => {
            assert_eq!(line["operation"], "write");
            check_remote(to);
        }
        Some(SendOperation::Read(from)) => {
            assert_eq!(line["operation"], "read");
            check_remote(from);
        }
        Some(SendOperation::CompareSwap { remote: word, compare, swap }) => {
            assert_eq!(line["operation"], "compare_swap");
            assert_eq!((hex(&line["compare"]), hex(&line["swap"])), (*compare, *swap));
            check_remote(word);
        }
        None => assert!(line["operation"].is_null()),
        other => panic!("the sample has no {other:?}"),
    }
    if posted.operation.is_some() {
        assert_eq!(line["flags"], serde_json::json!(["fence", "signaled"]));
    }
}

#[test]
fn packets_keep_their_values() {
    let trace = sample::trace();
    let lines = lines(&trace);
    let packets = of_type(&lines, "packet");
    assert_eq!(packets.len(), trace.packets().len());
    for (index, (line, packet)) in packets.into_iter().zip(trace.packets()).enumerate() {
        assert_eq!(line["packet"], index);
        assert_eq!(line["device"], packet.device.0);
        assert_eq!(nanos(&line["time"]), Some(packet.time));
        assert_eq!(line["direction"] == "out", packet.direction == Direction::Out);
        assert_eq!(line["qpn"], packet.qpn.get());
        let addr = |value: &Value| value.as_str().map(|addr| addr.parse::<SocketAddr>().unwrap());
        assert_eq!(addr(&line["source"]), packet.source);
        assert_eq!(addr(&line["destination"]), packet.destination);
        let header = &line["header"];
        assert_eq!(header["opcode"], packet.header.opcode().byte());
        assert_eq!(header["psn"], packet.header.psn.get());
        assert_eq!(header["dest_qpn"], packet.header.dest_qp.get());
        assert_eq!(header["ack_request"], packet.header.ack_request);
        assert_eq!(header["pkey"], 0xffff);
        match packet.header.operation {
            Operation::Rc(Rc::Write(RdmaWrite::First(reth) | RdmaWrite::Only(reth, _))) => {
                assert_eq!(hex(&header["remote_addr"]), reth.va);
                assert_eq!(
                    (&header["rkey"], &header["dma_length"]),
                    (&reth.rkey.into(), &reth.length.into())
                );
            }
            Operation::Rc(Rc::AtomicAcknowledge(aeth, original)) => {
                assert_eq!(hex(&header["original"]), original);
                assert_eq!(header["msn"], aeth.msn);
            }
            Operation::Rc(Rc::Acknowledge(aeth)) => assert_eq!(header["syndrome"], aeth.syndrome.byte()),
            Operation::Ud(ud) => assert_eq!(header["qkey"], ud.qkey),
            _ => {}
        }
        assert_eq!(line["payload_len"], packet.payload_len);
        let payload = packet
            .payload
            .as_deref()
            .map(|payload| payload.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
        assert_eq!(line["payload"].as_str(), payload.as_deref());
        assert_eq!(line["is_retransmission"], packet.is_retransmission);
        assert_eq!(line["retry_cause"].as_str(), packet.retry_cause.map(|cause| cause.name()));
        assert_eq!(line["dropped"].as_str(), packet.dropped.map(|reason| reason.name()));
        assert_eq!(number::<usize>(&line["peer_packet"]), packet.peer_packet.map(|peer| peer.0));
        check_role(line, &packet.role);
    }
}

fn check_role(line: &Value, role: &PacketRole) {
    let check_acked = |psns: &Option<PsnRange>, requests: &[RequestId]| {
        let parsed = number::<u32>(&line["first_acked_psn"]).zip(number::<u32>(&line["last_acked_psn"]));
        assert_eq!(parsed, psns.map(|range| (range.first.get(), range.last.get())));
        let ids: Vec<u64> = requests.iter().map(|request| request.0 as u64).collect();
        assert_eq!(line["acked_requests"], serde_json::json!(ids));
    };
    match role {
        PacketRole::Request(request) | PacketRole::Response(request) => {
            assert_eq!(line["role"] == "request", matches!(role, PacketRole::Request(_)));
            assert_eq!(number(&line["request"]).map(RequestId), *request);
        }
        PacketRole::Ack { acked_psns, acked_requests } => {
            assert_eq!(line["role"], "ack");
            check_acked(acked_psns, acked_requests);
        }
        PacketRole::Nak { syndrome, acked_psns, acked_requests, nacked_request } => {
            assert_eq!(line["role"], "nak");
            assert_eq!(line["syndrome"], syndrome.byte());
            assert_eq!(number(&line["nacked_request"]).map(RequestId), *nacked_request);
            check_acked(acked_psns, acked_requests);
        }
        PacketRole::Cm { message } => {
            assert_eq!(line["role"], "cm");
            assert_eq!(line["message"].as_str(), *message);
        }
        PacketRole::Cnp => assert_eq!(line["role"], "cnp"),
    }
}

#[test]
fn other_events_keep_their_values() {
    let trace = sample::trace();
    let lines = lines(&trace);
    let other_events = of_type(&lines, "other_event");
    for (line, timed) in other_events.iter().zip(trace.other_events()) {
        assert_eq!(nanos(&line["time"]), Some(timed.time));
        assert_eq!(line["text"], timed.event.to_string());
        assert_eq!(number::<u32>(&line["qpn"]), timed.event.qpn().map(|qpn| qpn.get()));
    }
    let events: Vec<&str> = other_events.iter().map(|line| line["event"].as_str().unwrap()).collect();
    let expected = [
        "state_changed",
        "timer_expired",
        "cq_event_delivered",
        "queue_event_delivered",
        "queue_event_delivered",
        "retransmit",
        "cnp_received",
    ];
    assert_eq!(events, expected);
    assert_eq!(
        (&other_events[0]["from"], &other_events[0]["to"]),
        (&"init".into(), &"ready to receive".into())
    );
    assert_eq!(other_events[1]["timer"], "ack_timeout");
    assert_eq!(other_events[3]["queue_event"], "access_error");
    assert_eq!((&other_events[4]["queue_event"], &other_events[4]["srq"]), (&"srq_limit".into(), &0.into()));
    assert_eq!(other_events[5]["cause"], "implied_nak");
    assert_eq!(other_events[6]["rate"], 40_000_000_000_u64);
}
