//! A member that breaks the rules of calls, over queue pairs of the software NIC.

use std::time::Instant;

use adverb_cluster_proto::MAX_COUNT;
use adverb_cluster_proto::rpc::{Header, WireId};

use super::tests::{TEST_DEADLINE, brokers, config, connect};
use super::*;

const SERVER: PeerId = PeerId(0);
const HONEST: PeerId = PeerId(1);
const HOSTILE: PeerId = PeerId(2);

/// The number of messages of the hostile member.
const MESSAGES: usize = 6000;

/// The maximum number of requests of a member that wait for an answer.
const MAX_REQUESTS: u16 = 16;

/// The hostile member's messages. Each is determined by the number of messages before it, so every run is the same.
struct Messages(u64);

impl Messages {
    fn number(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Returns a request, an answer or a cancellation with any id, or bytes without a meaning.
    fn next_message(&mut self) -> Vec<u8> {
        let (choice, len) = (self.number() % 8, self.number() as usize % 256);
        let mut bytes: Vec<u8> = (0..len).map(|_| self.number() as u8).collect();
        // Half of the indices are in the table of requests.
        let index_count = if self.number().is_multiple_of(2) { MAX_REQUESTS } else { u16::MAX };
        let index = self.number() as u16 % index_count;
        let id = WireId { index, generation: self.number() as u32 % 1000 };
        let header = match choice {
            0..=3 => Header::Request { id, method: self.number() as u16 % 4, timeout: None },
            4 => Header::Reply { id },
            5 => Header::Failure { id, failure: Failure::NoReply },
            6 => Header::Cancel { id },
            _ => return bytes,
        };
        bytes.truncate(if matches!(header, Header::Request { .. } | Header::Reply { .. }) { 200 } else { 0 });
        [&header.to_bytes()[..], &bytes].concat()
    }
}

#[test]
fn a_hostile_member_occupies_bounded_memory_and_delays_no_other_member() {
    let [server, honest, mut hostile] = brokers::<3>(config());
    let rpc_config = RpcConfig { max_calls: 16, max_requests: MAX_REQUESTS };
    let mut server = Rpc::new(server, rpc_config).unwrap();
    let mut honest = Rpc::new(honest, rpc_config).unwrap();
    connect(&mut server, HONEST, &mut honest, SERVER);
    let offer_of_server = server.broker_mut().prepare(HOSTILE).unwrap();
    let offer_of_hostile = hostile.prepare(SERVER).unwrap();
    server.broker_mut().establish(HOSTILE, &offer_of_hostile).unwrap();
    hostile.establish(SERVER, &offer_of_server).unwrap();

    let slot_size = server.broker().config().slot_size as usize;
    // The requests of two members, and an answer for each of them.
    let max_growth = 2 * usize::from(MAX_REQUESTS) * 2 * slot_size;
    let (state_before, memory_before) = (server.core.state_bytes(), server.broker().memory_use());
    let mut messages = Messages(1);
    let (mut sent, mut answered, mut kept, mut call) = (0_usize, 0, Vec::new(), None);
    let started = Instant::now();
    while sent < MESSAGES || answered < 100 {
        while sent < MESSAGES && hostile.send(SERVER, &messages.next_message()).is_ok() {
            sent += 1;
        }
        // Until half of the messages are sent, the hostile member takes no message, so it grants no credits.
        if sent < MESSAGES / 2 {
            hostile.poll_sq(|_, _| ()).unwrap();
        } else {
            hostile.poll(|_, _| ()).unwrap();
        }
        server
            .poll(|server, event| {
                let RpcEvent::Request { method, bytes, reply, .. } = event else { return };
                match method {
                    0 => server.reply(reply, bytes).unwrap(),
                    1 => kept.push(reply),
                    2 => server.reject(reply, Failure::UnknownMethod),
                    _ => drop(reply),
                }
            })
            .unwrap();
        kept.retain(|reply| server.is_pending(reply));
        if sent.is_multiple_of(3) {
            for reply in kept.drain(..) {
                server.reply(reply, &[7; 100]).unwrap();
            }
        }
        if call.is_none() {
            call = honest.call(SERVER, 0, b"echo", Some(TEST_DEADLINE)).ok();
        }
        honest
            .poll(|_, event| {
                if let RpcEvent::CallEnded { result, .. } = event {
                    assert_eq!(result, Ok(&b"echo"[..]));
                    (answered, call) = (answered + 1, None);
                }
            })
            .unwrap();

        assert!(server.pending_request_count(HOSTILE) <= usize::from(MAX_REQUESTS));
        let growth = server.core.state_bytes().saturating_sub(state_before);
        // The ids of refused requests are kept, in a list that may be half empty.
        let refused_count = server.counters().refused_requests.min(MAX_COUNT.into()) as usize;
        let max_growth = max_growth + refused_count * 2 * size_of::<WireId>();
        assert!(growth <= max_growth, "{growth} bytes after {sent} messages");
        assert_eq!(server.broker().queued_event_count(), 0);
        assert!(started.elapsed() < TEST_DEADLINE, "{sent} messages, {answered} calls of the honest member");
    }
    let memory = server.broker().memory_use();
    println!("{answered} calls, {:?}, {:?}", server.counters(), started.elapsed());
    assert_eq!(memory.message_bytes, memory_before.message_bytes);
    assert!(server.broker().is_open(HOSTILE) && server.broker().is_open(HONEST));
    let RpcCounters { malformed_messages, unknown_replies, duplicate_requests, refused_requests, .. } =
        *server.counters();
    let counts = [malformed_messages, unknown_replies, duplicate_requests, refused_requests];
    assert!(!counts.contains(&0), "{counts:?}");
}
