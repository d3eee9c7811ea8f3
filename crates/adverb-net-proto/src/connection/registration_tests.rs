//! Memory that is registered for a lane that has failed, or can't be registered, and time limits of a lane.

use super::*;
use crate::types::RegisterTarget;

impl Pair {
    /// Ends the lane of side 0, and lets it dial again.
    pub(super) fn reconnect(&mut self) {
        let now = self.now;
        self.side(0).0.handle_lane_failed(now);
        while self.step(0) {}
        let lane = self.config.lane();
        assert!(self.side(0).0.attach(lane, now));
    }

    /// Exchanges the hellos of the new lane.
    fn resume(&mut self) {
        while self.side(0).0.phase() != PhaseKind::Established {
            assert!((0..2).any(|side| self.step(side)), "the session does not resume");
        }
    }

    /// Takes the events of a side after the end of its connection.
    fn events_of_end(&mut self, side: usize) -> Vec<Event<TestRegion>> {
        let (connection, memory) = self.side(side);
        let mut events = Vec::new();
        while let Some(event) = connection.poll_event() {
            if event == Event::Drain {
                connection.handle_drained(memory, Vec::new(), Time::ZERO);
            }
            events.push(event);
        }
        events
    }
}

#[test]
fn a_message_that_cannot_be_registered_is_reported() {
    let mut pair = Pair::new(resumable());
    pair.send(0, b"first").expect("credits");
    pair.run();
    pair.send_rendezvous(0, &[2; 300]).expect("credits");
    pair.reconnect();
    pair.resume();
    assert_eq!((pair.side(0).0.lane(), pair.side(0).0.check_send()), (1, Err(SendError::WouldBlock)));
    let connection = pair.side(0).0;
    let Register { id, memory } = connection.poll_register().expect("the message");
    assert_eq!(connection.poll_register(), None);
    let RegisterMemory::Message(payload) = memory.clone() else { panic!("{memory:?}") };
    connection.handle_register_failed(id, memory);
    let events = pair.events_of_end(0);
    assert!(events.contains(&Event::Closed(EndReason::OutOfMemory)), "{events:?}");
    let connection = pair.side(0).0;
    assert_eq!(connection.unacknowledged(), 1..2);
    assert_eq!(connection.take_unacknowledged(), [Unacknowledged { number: 1, payload, immediate: Some(5) }]);
}

#[test]
fn a_lack_of_memory_is_an_abort_for_the_peer() {
    let mut pair = Pair::new(resumable());
    pair.send_rendezvous(0, &[2; 300]).expect("credits");
    pair.reconnect();
    pair.resume();
    let connection = pair.side(0).0;
    let Register { id, memory } = connection.poll_register().expect("the message");
    connection.handle_register_failed(id, memory);
    let post = connection.abort_write();
    let Some(Post::Write { buf: None, immediate, .. }) = post else { panic!("{post:?}") };
    let (connection, memory) = pair.side(1);
    connection.handle_completion(memory, Completed::Received { immediate, len: 0 }, Time::ZERO);
    assert!(pair.events_of_end(1).contains(&Event::Closed(EndReason::PeerAborted)));
}

#[test]
fn an_exposed_region_that_cannot_be_registered_is_released() {
    let mut pair = Pair::new(resumable());
    let (connection, memory) = pair.side(0);
    let region = memory.register(vec![1; 8]);
    connection.expose(&"x".repeat(MAX_NAME_LEN), region.clone(), 1).expect("an open connection");
    assert_eq!(connection.post_operation(1), Err(SendError::StaleRegion));
    pair.run();
    // The region was registered for the first lane.
    let region = pair.memory[0].only_region_of(8);
    pair.reconnect();
    pair.resume();
    let connection = pair.side(0).0;
    assert_eq!(connection.check_send(), Err(SendError::WouldBlock));
    let Register { id, memory } = connection.poll_register().expect("the region");
    assert_eq!(memory, RegisterMemory::Exposed(region.clone()));
    connection.handle_register_failed(id, memory);
    let events = pair.events_of_end(0);
    assert!(events.contains(&Event::Release(region)), "{events:?}");
    assert_eq!(pair.end(0), Some(EndReason::OutOfMemory));
}

#[test]
fn a_ring_of_a_failed_lane_is_not_used() {
    let mut pair = Pair::new(resumable());
    pair.reconnect();
    let Register { id, .. } = pair.side(0).0.poll_register().expect("the ring");
    for is_registered in [false, true] {
        pair.reconnect();
        let (connection, memory) = pair.side(0);
        if is_registered {
            let region = memory.register(vec![0; 512]);
            connection.handle_registered(id, region.clone(), Time::ZERO);
            assert_eq!(connection.poll_event(), Some(Event::Release(region)));
        } else {
            connection.handle_register_failed(id, RegisterMemory::Ring { len: 512 });
            assert_eq!((connection.poll_event(), connection.phase()), (None, PhaseKind::Handshake));
        }
        let next = connection.poll_register().map(|register| register.id);
        assert_eq!(next.map(|id| id.target), Some(RegisterTarget::Ring));
        assert_ne!(next, Some(id));
    }
}

#[test]
fn a_message_of_a_failed_lane_is_registered_again() {
    // The driver registers the memory before or after the session has resumed.
    for is_late in [false, true] {
        let mut pair = Pair::new(resumable());
        pair.send_rendezvous(0, &[2; 300]).expect("credits");
        pair.reconnect();
        pair.resume();
        let Register { id, .. } = pair.side(0).0.poll_register().expect("the message");
        let region = pair.memory[0].register(vec![2; 300]);
        if !is_late {
            pair.side(0).0.handle_lane_failed(Time::ZERO);
            pair.side(0).0.handle_registered(id, region.clone(), Time::ZERO);
        }
        pair.reconnect();
        pair.resume();
        if is_late {
            assert_eq!(pair.side(0).0.poll_register(), None);
            pair.side(0).0.handle_registered(id, region.clone(), Time::ZERO);
        }
        let next = pair.side(0).0.poll_register().map(|register| register.memory);
        assert_eq!(next, Some(RegisterMemory::Message(Payload::Region(region))));
    }
}

#[test]
fn a_write_over_a_lane_without_a_hello_is_ignored() {
    let mut pair = Pair::new(resumable());
    pair.reconnect();
    let (connection, memory) = pair.side(0);
    assert!(connection.is_flushed());
    connection.handle_lane_failed(Time::ZERO);
    connection.handle_completion(memory, Completed::Received { immediate: 0, len: 16 }, Time::ZERO);
    while pair.step(0) {}
    assert_eq!(pair.side(0).0.phase(), PhaseKind::Disconnected);
}

#[test]
fn time_limits_end_neither_early_nor_late() {
    let limit = Time::ZERO + small().handshake_timeout;
    let early = Time::ZERO + (small().handshake_timeout - Duration::from_nanos(1));
    let mut connection = TestConnection::connect(small(), [1; 16], Time::ZERO);
    let memory = &mut TestMemory::default();
    assert_eq!(connection.poll_timeout(), Some(limit));
    connection.handle_timeout(memory, early);
    assert_eq!(connection.phase(), PhaseKind::Handshake);
    connection.handle_timeout(memory, limit);
    assert_eq!(connection.phase(), PhaseKind::Draining);

    // A side whose peer has closed waits for the acknowledgement.
    let mut pair = pair_with_unreported_message();
    pair.side(1).0.close(Time::ZERO);
    while pair.step(1) {}
    let (connection, memory) = pair.side(0);
    while connection.poll_post(memory, Time::ZERO).is_some() {}
    let limit = connection.poll_timeout().expect("the linger time");
    assert_eq!(limit, Time::ZERO + small().linger);
    connection.handle_timeout(memory, Time::ZERO + (small().linger - Duration::from_nanos(1)));
    assert!(connection.is_lingering());
    connection.handle_timeout(memory, limit);
    assert_eq!((connection.is_lingering(), connection.phase()), (false, PhaseKind::Draining));
}

#[test]
fn the_driver_can_report_a_violation() {
    let mut pair = Pair::new(small());
    let violation = Violation("it exposed too many regions");
    pair.side(0).0.end_for_violation(violation);
    pair.run();
    assert_eq!(pair.end(0), Some(EndReason::ProtocolViolation(violation)));
}
