//! Traces: the recorded events of requests, from posting to polling, and the flight recorder.

#![cfg(feature = "soft")]

mod common;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::mpsc;
use std::time::Duration;

use adverb::verbs::recording::{Queue, Recording, RecvQueueId, RetryCause, StopCause, TimerKind, TraceEvent};
use adverb::verbs::{
    Access, Completion, ConnectOptions, Device, Error, Qpn, RecvRequest, SendRequest, SoftDevice, Status,
    Switch,
};

use common::{End, TIMEOUT, connect, device, pair};

/// Returns an address of a device of this process, on the loopback interface.
fn host(last: u8) -> IpAddr {
    let process = std::process::id();
    IpAddr::V4(Ipv4Addr::new(127, 216 + (process >> 8 & 15) as u8, process as u8, last))
}

/// Returns the index of the first event that `matches` accepts.
#[track_caller]
fn position(recording: &Recording, description: &str, matches: impl Fn(&TraceEvent) -> bool) -> usize {
    let found = recording.events.iter().position(|recorded| matches(&recorded.event));
    found.unwrap_or_else(|| panic!("no event: {description}\n{}", text(recording)))
}

fn text(recording: &Recording) -> String {
    recording
        .events
        .iter()
        .map(|recorded| format!("{} {}\n", recorded.time.as_nanos(), recorded.event))
        .collect()
}

fn count(recording: &Recording, matches: impl Fn(&TraceEvent) -> bool) -> usize {
    recording.events.iter().filter(|recorded| matches(&recorded.event)).count()
}

/// Checks that the events of a send request are complete and in order.
#[track_caller]
fn check_send(recording: &Recording, qpn: Qpn, wanted_tag: u64, wanted_name: &str, packets: usize) {
    let is_posted = |event: &TraceEvent| matches!(event, TraceEvent::PostedSend { qpn: at, tag, .. } if (*at, *tag) == (qpn, wanted_tag));
    let posted = position(recording, wanted_name, is_posted);
    let TraceEvent::PostedSend { request: number, wr_id: id, operation, length, .. } =
        recording.events[posted].event
    else {
        unreachable!("the event is a posted send")
    };
    assert_eq!((operation.name(), length), (wanted_name, 4096));
    let is_packet = |event: &TraceEvent| matches!(event, TraceEvent::PacketSent { qpn: at, request: Some(request), is_retransmission: false, .. } if (*at, *request) == (qpn, number));
    assert_eq!(count(recording, is_packet), packets, "{wanted_name}\n{}", text(recording));
    let is_completed = |event: &TraceEvent| matches!(event, TraceEvent::Completed { qpn: at, queue: Queue::Send, request, wr_id, outcome: Ok(_), .. } if (*at, *request, *wr_id) == (qpn, number, id));
    let is_polled = |event: &TraceEvent| matches!(event, TraceEvent::Polled { qpn: at, wr_id, .. } if (*at, *wr_id) == (qpn, id));
    let order = [
        posted,
        position(recording, "packet", is_packet),
        position(recording, "completed", is_completed),
        position(recording, "polled", is_polled),
    ];
    assert!(order.is_sorted(), "{wanted_name}: {order:?}\n{}", text(recording));
}

#[test]
fn requests_are_recorded_from_posting_to_polling() {
    let loopback = SoftDevice::loopback().open().unwrap();
    let switch = Switch::default();
    let [here, there] = ["10.0.0.1", "10.0.0.2"]
        .map(|address| SoftDevice::on_switch(&switch, address.parse().unwrap()).open().unwrap());
    let [client, server] = [1, 2].map(|last| SoftDevice::at_addr(host(last)).open().unwrap());
    for (name, one, other) in
        [("loopback", &loopback, &loopback), ("mem", &here, &there), ("udp", &client, &server)]
    {
        let active = one.recording().payload_limit(8).start().unwrap();
        // On loopback, both ends belong to one device.
        let other_active = other.recording().start().ok();
        assert_eq!(other_active.is_none(), name == "loopback");
        let (left, right) = (End::new(one, 16, false), End::new(other, 16, false));
        connect(&left, &right);
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let region = right.domain.allocate_region(4096, access).unwrap();
        let received = right.queue_pair.post_recv(RecvRequest::new(right.buffer(0, 4096)).tag(7)).unwrap();
        let send = SendRequest::send(left.buffer(1, 4096)).tag(1);
        let write = SendRequest::write(left.buffer(2, 4096), region.remote().at(0)).tag(2);
        let read = SendRequest::read(left.buffer(3, 4096), region.remote().at(0)).tag(3);
        for request in [send, write, read] {
            assert!(left.run(request).is_ok());
        }
        assert!(right.wait(received).is_ok());

        let recording = active.stop();
        let (qpn, peer) = (left.queue_pair.qpn(), right.queue_pair.qpn());
        assert_eq!(recording.device, one.name());
        assert_eq!((recording.lost_count, recording.stop_cause), (0, StopCause::Manual), "{name}");
        assert!(recording.events.is_sorted_by_key(|recorded| recorded.time), "{name}\n{}", text(&recording));
        let is_connected = |event: &TraceEvent| matches!(event, TraceEvent::Connected { qpn: at, remote_qpn, send_psn: Some(_), .. } if (*at, *remote_qpn) == (qpn, peer));
        let connected = position(&recording, "connected", is_connected);
        let packets = 4096usize.div_ceil(usize::from(left.queue_pair.endpoint().mtu));
        check_send(&recording, qpn, 1, "SEND", packets);
        check_send(&recording, qpn, 2, "RDMA WRITE", packets);
        // A READ is one request packet; its responses are the peer's.
        check_send(&recording, qpn, 3, "RDMA READ", 1);
        assert!(
            connected < position(&recording, "post", |event| matches!(event, TraceEvent::PostedSend { .. }))
        );
        let payload = recording.events.iter().find_map(|recorded| match recorded.event {
            TraceEvent::PacketSent { qpn: at, payload_len: 1.., .. } if at == qpn => {
                recorded.payload.as_deref()
            }
            _ => None,
        });
        assert_eq!(payload, Some(&[1; 8][..]), "{name}");

        let received_by = other_active.map_or(recording, |active| active.stop());
        let is_posted = |event: &TraceEvent| matches!(event, TraceEvent::PostedRecv { queue: RecvQueueId::Qp(at), tag: 7, length: 4096, .. } if *at == peer);
        let is_packet =
            |event: &TraceEvent| matches!(event, TraceEvent::PacketReceived { qpn: at, .. } if *at == peer);
        let is_completed = |event: &TraceEvent| matches!(event, TraceEvent::Completed { qpn: at, queue: Queue::Recv, outcome: Ok(success), .. } if *at == peer && success.length == 4096);
        let is_polled =
            |event: &TraceEvent| matches!(event, TraceEvent::Polled { qpn: at, .. } if *at == peer);
        let order = [
            position(&received_by, "recv posted", is_posted),
            position(&received_by, "packet received", is_packet),
            position(&received_by, "recv completed", is_completed),
            position(&received_by, "recv polled", is_polled),
        ];
        assert!(order.is_sorted(), "{name}: {order:?}\n{}", text(&received_by));
    }
}

#[test]
fn only_selected_queue_pairs_are_recorded() {
    let device = SoftDevice::loopback().open().unwrap();
    let [(one, one_peer), (other, other_peer)] = [(); 2].map(|()| pair(&device, 16, false));
    let active = device.recording().queue_pairs([&one.queue_pair]).start().unwrap();
    for (sender, receiver) in [(&one, &one_peer), (&other, &other_peer)] {
        let received = receiver.queue_pair.post_recv(receiver.buffer(0, 64)).unwrap();
        assert!(sender.run(SendRequest::send(sender.buffer(1, 64))).is_ok());
        assert!(receiver.wait(received).is_ok());
    }
    let recording = active.stop();
    let count_of = |qpn: Qpn| count(&recording, |event| event.qpn() == Some(qpn));
    assert!(count_of(one.queue_pair.qpn()) >= 4, "{}", text(&recording));
    for end in [&one_peer, &other, &other_peer] {
        assert_eq!(count_of(end.queue_pair.qpn()), 0, "{}", text(&recording));
    }
}

#[test]
fn a_full_recording_keeps_the_last_events_and_counts_the_others() {
    let device = SoftDevice::loopback().open().unwrap();
    let (left, right) = pair(&device, 16, false);
    let active = device.recording().capacity(16).start().unwrap();
    for tag in 1..=100 {
        let received = right.queue_pair.post_recv(right.buffer(0, 64)).unwrap();
        assert!(left.run(SendRequest::send(left.buffer(1, 64)).tag(tag)).is_ok());
        assert!(right.wait(received).is_ok());
    }
    let snapshot = active.snapshot();
    let recording = active.stop();
    assert_eq!(snapshot.events, recording.events);
    assert_eq!(recording.events.len(), 16);
    // At least posting, a sent and a received packet, completing and polling, at both ends.
    assert!(recording.lost_count > 99 * 8, "{}", recording.lost_count);
    // The connections are still described.
    let peers: Vec<Qpn> = recording.earlier_connections.iter().filter_map(|(_, event)| event.qpn()).collect();
    assert!(peers.contains(&left.queue_pair.qpn()) && peers.contains(&right.queue_pair.qpn()), "{peers:?}");
    let tags: Vec<u64> = recording
        .events
        .iter()
        .filter_map(|recorded| match recorded.event {
            TraceEvent::PostedSend { tag, .. } => Some(tag),
            _ => None,
        })
        .collect();
    assert!(tags.iter().all(|tag| *tag > 97), "{tags:?}");
}

#[test]
fn a_device_has_one_recording_at_a_time() {
    let device = SoftDevice::loopback().open().unwrap();
    let active = device.recording().start().unwrap();
    let error = device.recording().start().unwrap_err();
    assert!(matches!(error, Error::InvalidRequest { .. }), "{error}");
    assert!(error.to_string().ends_with("is being recorded already: stop that recording first"), "{error}");
    drop(active);
    let active = device.recording().start().unwrap();
    assert!(!active.is_stopped() && active.stop_cause().is_none());
    assert!(!active.wait_stopped(Duration::from_millis(1)).unwrap());
}

#[test]
fn invalid_options_are_rejected() {
    let device = SoftDevice::loopback().open().unwrap();
    for capacity in [0, (1 << 24) + 1] {
        let error = device.recording().capacity(capacity).start().unwrap_err();
        assert!(matches!(error, Error::LimitExceeded { max: 0x100_0000, .. }), "{error}");
        assert!(error.hint().is_some());
    }
    let error = device.recording().on_stop(|_| ()).start().unwrap_err();
    assert!(error.to_string().contains("call `stop_on_failure` or `stop_on_timeout`"), "{error}");
    let other = SoftDevice::loopback().open().unwrap();
    let foreign = End::new(&other, 16, false);
    let error = device.recording().queue_pairs([&foreign.queue_pair]).start().unwrap_err();
    assert!(error.to_string().contains("record its own device"), "{error}");
    // No recording is active after these failures.
    assert_eq!(device.recording().start().unwrap().stop().events, []);
}

/// Opens two devices on a switch. Dropping the second one removes it from the switch.
fn peers() -> (Device, Device) {
    let switch = Switch::default();
    let open = |address: &str| SoftDevice::on_switch(&switch, address.parse().unwrap()).open().unwrap();
    (open("10.0.0.1"), open("10.0.0.2"))
}

fn status(completion: &Completion) -> Status {
    completion.outcome().map_or_else(|failure| failure.status, |_| Status::Success)
}

/// The code of a short acknowledgement timeout: 4.096 µs × 2¹² is about 17 ms.
const SHORT_TIMEOUT: u8 = 12;

/// Connects two ends with this acknowledgement timeout.
fn connect_with_timeout(left: &End, right: &End, ack_timeout: u8) {
    let options = ConnectOptions::new().ack_timeout(ack_timeout).retry_count(3);
    left.queue_pair.connect_with(&right.queue_pair.endpoint(), &options).unwrap();
    right.queue_pair.connect_with(&left.queue_pair.endpoint(), &options).unwrap();
}

#[test]
fn a_flight_recorder_shows_the_retries_before_a_failure() {
    let (here, there) = peers();
    let (left, right) = (End::new(&here, 16, false), End::new(&there, 16, false));
    // This timeout is about 0.5 s, so that the first message doesn't fail on a busy machine.
    connect_with_timeout(&left, &right, 17);
    let (sender, receiver) = mpsc::channel();
    let starter = std::thread::current().id();
    let active = here
        .recording()
        .capacity(1000)
        .stop_on_failure()
        .on_stop(move |recording| {
            assert_ne!(std::thread::current().id(), starter);
            sender.send(recording).unwrap();
        })
        .start()
        .unwrap();
    let peer = right.queue_pair.qpn();
    // Successful requests, flushed ones, and lost packets don't stop the recording.
    let received = right.queue_pair.post_recv(right.buffer(0, 64)).unwrap();
    assert!(left.run(SendRequest::send(left.buffer(1, 64)).tag(1)).is_ok());
    assert!(right.wait(received).is_ok());
    assert!(!active.is_stopped());
    drop((right, there));

    let completion = left.run(SendRequest::send(left.buffer(2, 64)).tag(2));
    assert_eq!(status(&completion), Status::RetryExceeded);
    assert!(active.wait_stopped(TIMEOUT).unwrap());
    assert_eq!(active.stop_cause(), Some(StopCause::Failure));
    let dump = receiver.recv_timeout(TIMEOUT).unwrap();
    assert_eq!(dump.stop_cause, StopCause::Failure);

    // The queue pair was connected before the recording started.
    let qpn = left.queue_pair.qpn();
    let connected = dump.events.iter().map(|recorded| recorded.event).find_map(|event| match event {
        TraceEvent::Connected { qpn: at, remote_qpn, remote, send_psn, .. } if at == qpn => {
            Some((remote_qpn, remote.ip(), send_psn))
        }
        _ => None,
    });
    let (remote_qpn, remote, first_psn) = connected.expect("the connection was recorded");
    assert_eq!((remote_qpn, remote), (peer, "10.0.0.2".parse::<IpAddr>().unwrap()));
    let acknowledged = dump.events.iter().rev().find_map(|recorded| match recorded.event {
        TraceEvent::Acknowledged { qpn: at, psn } if at == qpn => Some(psn),
        _ => None,
    });
    // The first message was acknowledged, the second was not.
    assert_eq!(acknowledged, first_psn.map(|psn| psn + 1));
    // On a busy machine, the first message may have been retransmitted, too.
    let second = position(&dump, "second", |event| matches!(event, TraceEvent::PostedSend { tag: 2, .. }));
    let count_after = |matches: &dyn Fn(&TraceEvent) -> bool| {
        dump.events[second..].iter().filter(|recorded| matches(&recorded.event)).count()
    };
    let timeouts = count_after(
        &|event| matches!(event, TraceEvent::TimerExpired { qpn: at, timer: TimerKind::AckTimeout } if *at == qpn),
    );
    let retries = count_after(
        &|event| matches!(event, TraceEvent::Retransmit { qpn: at, psn, cause: RetryCause::Timeout } if *at == qpn && Some(*psn) == acknowledged),
    );
    let resent = count_after(
        &|event| matches!(event, TraceEvent::PacketSent { qpn: at, is_retransmission: true, .. } if *at == qpn),
    );
    assert_eq!((timeouts, retries, resent), (4, 3, 3), "{}", text(&dump));
    let last = dump.events.last().map(|recorded| recorded.event);
    let is_failure = matches!(last, Some(TraceEvent::Completed { qpn: at, outcome: Err(failure), .. }) if at == qpn && failure.status == Status::RetryExceeded);
    assert!(is_failure, "{last:?}");

    // The recording stays available, and nothing was added to it.
    assert_eq!(active.stop().events, dump.events);
}

#[test]
fn a_timeout_stops_a_recording_before_the_request_fails() {
    let (here, there) = peers();
    let (left, right) = (End::new(&here, 16, false), End::new(&there, 16, false));
    connect_with_timeout(&left, &right, SHORT_TIMEOUT);
    drop((right, there));
    let active = here.recording().stop_on_timeout().start().unwrap();
    left.queue_pair.post_send(SendRequest::send(left.buffer(2, 64))).unwrap();
    // The progress thread detects the timeout: the program neither polls nor waits for a completion.
    assert!(active.wait_stopped(TIMEOUT).unwrap());
    let recording = active.stop();
    assert_eq!(recording.stop_cause, StopCause::Timeout);
    assert_eq!(count(&recording, |event| matches!(event, TraceEvent::Completed { .. })), 0);
}

#[test]
fn the_stop_callback_is_not_called_after_a_manual_stop() {
    let device = SoftDevice::loopback().open().unwrap();
    let (sender, receiver) = mpsc::channel();
    let on_stop = move |recording| sender.send(recording).unwrap();
    drop(device.recording().stop_on_failure().on_stop(on_stop.clone()).start().unwrap());
    let active = device.recording().stop_on_failure().on_stop(on_stop).start().unwrap();
    assert_eq!(active.stop().stop_cause, StopCause::Manual);
    // Both functions were dropped, and none was called.
    assert!(receiver.recv_timeout(TIMEOUT).is_err_and(|error| error == mpsc::RecvTimeoutError::Disconnected));
}

#[test]
fn a_panic_in_the_stop_callback_ends_only_its_thread() {
    let (here, there) = peers();
    let (left, right) = (End::new(&here, 16, false), End::new(&there, 16, false));
    connect_with_timeout(&left, &right, SHORT_TIMEOUT);
    drop((right, there));
    let active = here.recording().stop_on_failure().on_stop(|_| panic!("injected panic")).start().unwrap();
    assert_eq!(status(&left.run(SendRequest::send(left.buffer(1, 64)))), Status::RetryExceeded);
    assert_eq!(active.stop().stop_cause, StopCause::Failure);
    assert_eq!(here.recording().start().unwrap().stop().stop_cause, StopCause::Manual);
}

/// Runs on any device. `cargo xtask device-tests` runs it on soft-RoCE.
#[test]
fn ping_pong_is_recorded_on_the_first_device() {
    let Some(device) = device() else { return };
    let (left, right) = pair(&device, 16, false);
    let active = device.recording().start().unwrap();
    for round in 1..=10 {
        for (sender, receiver) in [(&left, &right), (&right, &left)] {
            let received = RecvRequest::new(receiver.buffer(0, 64)).tag(100 + round);
            let received = receiver.queue_pair.post_recv(received).unwrap();
            assert!(sender.run(SendRequest::send(sender.buffer(1, 64)).tag(round)).is_ok());
            assert!(receiver.wait(received).is_ok());
        }
    }
    // Unsignaled requests complete with the next signaled one.
    let region = right.domain.allocate_region(64, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
    let write = || SendRequest::write(left.buffer(1, 64), region.remote().at(0));
    left.queue_pair.post_send(write().unsignaled().tag(11)).unwrap();
    assert!(left.run(write().tag(12)).is_ok());
    left.queue_pair.move_to_error().unwrap();
    let recording = active.stop();
    assert_eq!(recording.lost_count, 0);
    assert!(recording.events.is_sorted_by_key(|recorded| recorded.time), "{}", text(&recording));
    let (qpn, peer) = (left.queue_pair.qpn(), right.queue_pair.qpn());
    let all = recording.earlier_connections.iter().map(|(_, event)| *event);
    let mut all = all.chain(recording.events.iter().map(|recorded| recorded.event));
    let is_connected = |event: TraceEvent| matches!(event, TraceEvent::Connected { qpn: at, remote_qpn, send_psn: Some(_), .. } if (at, remote_qpn) == (qpn, peer));
    assert!(all.any(is_connected), "{recording:?}");
    for (sender, receiver) in [(qpn, peer), (peer, qpn)] {
        for round in 1..=10 {
            let is_sent = |event: &TraceEvent| matches!(event, TraceEvent::PostedSend { qpn, tag, length: 64, sge_count: 1, first_sge: Some(_), .. } if (*qpn, *tag) == (sender, round));
            let is_posted = |event: &TraceEvent| matches!(event, TraceEvent::PostedRecv { queue: RecvQueueId::Qp(qpn), tag, length: 64, .. } if (*qpn, *tag) == (receiver, 100 + round));
            let (sent, posted) =
                (position(&recording, "sent", is_sent), position(&recording, "posted", is_posted));
            let ends = [(sender, Queue::Send, sent), (receiver, Queue::Recv, posted)];
            for (wanted_qpn, wanted_queue, start) in ends {
                let (number, id) = match recording.events[start].event {
                    TraceEvent::PostedSend { request, wr_id, .. }
                    | TraceEvent::PostedRecv { request, wr_id, .. } => (request, wr_id),
                    _ => unreachable!("both were posted"),
                };
                let is_completed = |event: &TraceEvent| matches!(event, TraceEvent::Completed { qpn, queue, request, wr_id, outcome: Ok(_), .. } if (*qpn, *queue, *request, *wr_id) == (wanted_qpn, wanted_queue, number, id));
                let is_polled = |event: &TraceEvent| matches!(event, TraceEvent::Polled { qpn, wr_id, .. } if (*qpn, *wr_id) == (wanted_qpn, id));
                let order = [
                    start,
                    position(&recording, "completed", is_completed),
                    position(&recording, "polled", is_polled),
                ];
                assert!(order.is_sorted(), "{order:?}\n{}", text(&recording));
            }
        }
    }
    let is_write =
        |event: &TraceEvent| matches!(event, TraceEvent::PostedSend { qpn: at, tag: 11, .. } if *at == qpn);
    let TraceEvent::PostedSend { request: number, .. } =
        recording.events[position(&recording, "write", is_write)].event
    else {
        unreachable!("the event is a posted send")
    };
    position(
        &recording,
        "unsignaled",
        |event| matches!(event, TraceEvent::CompletedUnsignaled { qpn: at, request } if (*at, *request) == (qpn, number)),
    );
    position(
        &recording,
        "error state",
        |event| matches!(event, TraceEvent::StateChanged { qpn: at, to: adverb::verbs::QpState::Error, .. } if *at == qpn),
    );
}
