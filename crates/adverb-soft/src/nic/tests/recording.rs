use adverb_proto::trace::{ClockOrigin, RecorderOptions, StopCause, StopOn, TraceEvent};

use super::*;

#[test]
fn recording_shows_a_request_from_post_to_poll_and_its_notification() {
    let nic = Nic::open(NicOptions::loopback()).unwrap();
    let (a, b) = (End::new(&nic, Transport::Rc), End::new(&nic, Transport::Rc));
    a.connect(&b);
    b.connect(&a);
    nic.start_recording(&RecorderOptions { payload_limit: 4, ..RecorderOptions::default() }, None).unwrap();
    assert_eq!(nic.start_recording(&RecorderOptions::default(), None), Err(Error::AlreadyRecording));
    let area = Area::new(&nic, a.pd, 64);
    let target = Area::new(&nic, b.pd, 64);
    area.fill(3);
    nic.arm_cq(a.cq, ArmFor::Any).unwrap();
    a.send(9, SendOperation::Write(target.remote(0)), &[area.segment(0, 64)]).unwrap();
    assert!(a.completion().outcome.is_ok());
    let recording = nic.stop_recording("soft0", ClockOrigin::default()).unwrap();
    assert!(nic.stop_recording("soft0", ClockOrigin::default()).is_none());
    assert_eq!((recording.device.as_str(), recording.lost_count), ("soft0", 0));

    let steps: Vec<(&str, Qpn)> = recording
        .events
        .iter()
        .filter_map(|recorded| {
            let name = match recorded.event {
                TraceEvent::Connected { .. } => "connected",
                TraceEvent::PostedSend { .. } => "posted",
                TraceEvent::Doorbell { .. } => "doorbell",
                TraceEvent::PacketSent { .. } => "out",
                TraceEvent::PacketReceived { .. } => "in",
                TraceEvent::Completed { .. } => "completed",
                TraceEvent::Acknowledged { .. } => "acknowledged",
                TraceEvent::CqEventDelivered { .. } => return Some(("event", a.qpn)),
                TraceEvent::Polled { .. } => "polled",
                _ => return None,
            };
            Some((name, recorded.event.qpn()?))
        })
        .collect();
    let steps_of = |qpn: Qpn| {
        steps.iter().filter(|(_, step_qpn)| *step_qpn == qpn).map(|(name, _)| *name).collect::<Vec<_>>()
    };
    let expected =
        ["connected", "posted", "doorbell", "out", "in", "completed", "acknowledged", "event", "polled"];
    assert_eq!(steps_of(a.qpn), expected);
    assert_eq!(steps_of(b.qpn), ["connected", "in", "out"]);
    assert!(recording.events.is_sorted_by_key(|event| event.time));

    // The first bytes of the payload are kept at both queue pairs.
    let payloads = recording.events.iter().filter(|recorded| match recorded.event {
        TraceEvent::PacketSent { payload_len, .. } | TraceEvent::PacketReceived { payload_len, .. } => {
            payload_len == 64
        }
        _ => false,
    });
    let expected = &area.words[0].load(Ordering::Relaxed).to_ne_bytes()[..4];
    let payloads: Vec<_> = payloads.map(|recorded| recorded.payload.as_deref()).collect();
    assert_eq!(payloads, [Some(expected), Some(expected)]);
}

#[test]
fn flight_recorder_stops_when_the_nic_fails() {
    let (first, second, wire_mode) = two_nics();
    let (one, other) = (End::new(&first, Transport::Rc), End::new(&second, Transport::Rc));
    one.connect(&other);
    let stopped = Arc::new(Channel::new().unwrap());
    let options = RecorderOptions { stop_on: StopOn::Failure, ..RecorderOptions::default() };
    first.start_recording(&options, Some(Arc::clone(&stopped))).unwrap();
    *wire_mode.lock() = Some(WireMode::Panics);
    one.send(1, SendOperation::Send, &[]).unwrap();
    assert_eq!(one.completion().outcome.unwrap_err().status, Status::Flushed);
    assert!(stopped.take().unwrap());
    assert_eq!(first.recording_stop_cause(), Some(StopCause::Failure));
}

#[test]
fn flight_recorder_stops_at_the_first_failure_and_announces_it() {
    let nic = Nic::open(NicOptions::loopback()).unwrap();
    let (a, b) = (End::new(&nic, Transport::Rc), End::new(&nic, Transport::Rc));
    a.connect(&b);
    b.connect(&a);
    let stopped = Arc::new(Channel::new().unwrap());
    let options = RecorderOptions { capacity: 64, stop_on: StopOn::Failure, ..RecorderOptions::default() };
    nic.start_recording(&options, Some(Arc::clone(&stopped))).unwrap();
    let area = Area::new(&nic, a.pd, 64);
    let bad = RemoteAddress { addr: 0, rkey: 1 };
    for _ in 0..100 {
        a.send(1, SendOperation::Send, &[]).unwrap_or_else(|error| panic!("{error}"));
        b.post_recv(2, &[]).unwrap();
        assert!(a.completion().outcome.is_ok() && b.completion().outcome.is_ok());
    }
    assert!(!stopped.take().unwrap());
    a.send(3, SendOperation::Write(bad), &[area.segment(0, 8)]).unwrap();
    assert!(a.completion().outcome.is_err());
    assert!(stopped.take().unwrap() && !stopped.take().unwrap());
    assert_eq!(nic.recording_stop_cause(), Some(StopCause::Failure));
    let recording = nic.stop_recording("soft0", ClockOrigin::default()).unwrap();
    assert_eq!((recording.events.len(), recording.stop_cause), (64, StopCause::Failure));
    assert!(recording.lost_count > 0);
    let last = recording.events.last().map(|recorded| recorded.event);
    let Some(TraceEvent::Completed { wr_id: 3, outcome: Err(failure), .. }) = last else {
        panic!("{last:?}")
    };
    assert_eq!(failure.status, Status::RemoteAccess);
    // The connections were overwritten in the ring, and are kept separately.
    assert_eq!(recording.earlier_connections.len(), 2);
}
