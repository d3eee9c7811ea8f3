//! Calls between two state machines.

mod model;

use core::time::Duration;

use adverb_proto::Time;

use super::*;

const PEER: PeerId = PeerId(0);

fn pair(config: RpcConfig) -> (Rpc, Rpc) {
    let [mut a, mut b] = [config; 2].map(|config| Rpc::new(config, 2).unwrap());
    for rpc in [&mut a, &mut b] {
        rpc.open(PEER, 1).unwrap();
        rpc.open(PeerId(1), 1).unwrap();
    }
    (a, b)
}

fn message(header: Header, data: &[u8]) -> Vec<u8> {
    let mut message = header.to_bytes().to_vec();
    message.extend(data);
    message
}

fn call(rpc: &mut Rpc, data: &[u8]) -> (CallId, Vec<u8>) {
    let (call, header) = rpc.call(PEER, 1, None, Time::ZERO).unwrap();
    (call, message(header, data))
}

fn receive(rpc: &mut Rpc, message: &[u8]) -> RequestId {
    match rpc.handle_message(PEER, message) {
        Incoming::Request { request, .. } => request,
        other => panic!("{other:?}"),
    }
}

fn output(rpc: &mut Rpc) -> Vec<u8> {
    assert_eq!(rpc.poll_ready(), Some(PEER));
    let Output { header, data } = rpc.poll_output(PEER).unwrap();
    message(header, data)
}

fn micros(micros: u64) -> Time {
    Time::ZERO + Duration::from_micros(micros)
}

#[test]
fn headers_round_trip() {
    let id = WireId { index: 0x1234, generation: 0xfedc_ba98 };
    let headers = [
        Header::Request { id, method: 0xabcd, timeout: None },
        Header::Request { id, method: 0, timeout: Some(Duration::from_micros(u64::from(u32::MAX))) },
        Header::Reply { id },
        Header::Failure { id, failure: Failure::NoReply },
        Header::Failure { id, failure: Failure::Overloaded },
        Header::Failure { id, failure: Failure::UnknownMethod },
        Header::Failure { id, failure: Failure::Application(0xffff) },
        Header::Cancel { id },
    ];
    for header in headers {
        let bytes = header.to_bytes();
        assert_eq!(Header::parse(&bytes), Some((header, &[][..])));
        assert_eq!(Header::parse(&bytes[..HEADER_LEN - 1]), None, "too short");
        let longer = message(header, b"data");
        let has_data = matches!(header, Header::Request { .. } | Header::Reply { .. });
        assert_eq!(Header::parse(&longer), has_data.then_some((header, &b"data"[..])));
    }
    // A timeout is never rounded down to none.
    for (timeout, rounded) in [(0, 1), (1, 1), (1001, 2)] {
        let timeout = Some(Duration::from_nanos(timeout));
        let bytes = Header::Request { id, method: 0, timeout }.to_bytes();
        let expected = Header::Request { id, method: 0, timeout: Some(Duration::from_micros(rounded)) };
        assert_eq!(Header::parse(&bytes), Some((expected, &[][..])));
    }
}

#[test]
fn bytes_without_a_meaning_are_zero() {
    let id = WireId { index: 1, generation: 1 };
    let valid = Header::Reply { id }.to_bytes();
    for position in [0, 1, 2, 3, 4, 5, 6, 7, 14, 15] {
        let mut bytes = valid;
        bytes[position] ^= 0x80;
        assert_eq!(Header::parse(&bytes), None, "byte {position}");
    }
}

#[test]
fn a_message_is_split_into_its_frames() {
    let id = WireId { index: 1, generation: 1 };
    let frames = [
        message(Header::Request { id, method: 7, timeout: None }, b"data"),
        message(Header::Cancel { id }, b""),
        message(Header::Reply { id }, b""),
        message(Header::Reply { id }, &[9; 300]),
    ];
    let mut whole = Vec::new();
    for (index, frame) in frames.iter().enumerate() {
        let start = whole.len();
        whole.extend_from_slice(frame);
        if index + 1 < frames.len() {
            assert!(set_frame_len(&mut whole[start..]));
        }
    }
    let mut rest = &whole[..];
    for frame in &frames {
        let (first, others) = split_frame(rest);
        assert_eq!(Header::parse(first), Header::parse(frame));
        rest = others;
    }
    assert!(rest.is_empty());
    assert!(!set_frame_len(&mut [0; HEADER_LEN - 1]) && !set_frame_len(&mut [0; 1 << 16]));
}

#[test]
fn frames_with_an_impossible_length_are_refused() {
    let (mut a, _) = pair(RpcConfig::default());
    let id = WireId { index: 1, generation: 1 };
    let valid = message(Header::Reply { id }, b"data");
    // The last frame may have its length.
    for (length, is_valid) in [(0, true), (1, false), (15, false), (19, false), (20, true), (21, false)] {
        let mut bytes = valid.clone();
        bytes[14] = length;
        let (frame, rest) = split_frame(&bytes);
        // A shorter length leaves a rest, which is no frame.
        let is_refused = Header::parse(frame).is_none() || !rest.is_empty() && Header::parse(rest).is_none();
        assert_eq!(is_refused, !is_valid, "length {length}");
    }
    for bytes in [&[][..], &[0; 15], &[0xff; 64]] {
        assert_eq!(split_frame(bytes), (bytes, &[][..]));
        assert_eq!(a.handle_message(PEER, bytes), Incoming::Ignored);
    }
    assert_eq!(a.counters().malformed_messages, 3);
}

#[test]
fn replies_arrive_in_any_order() {
    let (mut a, mut b) = pair(RpcConfig::default());
    let (first, request) = call(&mut a, b"first");
    let first_request = receive(&mut b, &request);
    let (second, request) = call(&mut a, b"second");
    let second_request = receive(&mut b, &request);
    for (call, request) in [(second, second_request), (first, first_request)] {
        let reply = message(b.answer(request).unwrap(), b"reply");
        assert_eq!(a.handle_message(PEER, &reply), Incoming::Reply { call, result: Ok(b"reply") });
        assert!(!b.is_pending(request));
        assert_eq!(b.answer(request), Err(PostError::RequestEnded { peer: PEER }), "answered twice");
        assert_eq!(a.handle_message(PEER, &reply), Incoming::Ignored, "replied twice");
    }
    assert_eq!((a.counters().answered_calls, a.counters().late_replies), (2, 2));
}

#[test]
fn cancelled_calls_count_until_the_cancellation_is_sent() {
    let (mut a, mut b) = pair(RpcConfig { max_calls: 2, max_requests: 2 });
    let (first, request) = call(&mut a, b"");
    let first_request = receive(&mut b, &request);
    let (_, request) = call(&mut a, b"");
    receive(&mut b, &request);
    let refused = PostError::TooManyCalls { peer: PEER, max: 2 };
    assert_eq!(a.call(PEER, 1, None, Time::ZERO), Err(refused));
    assert!(a.call(PeerId(1), 1, None, Time::ZERO).is_ok(), "each session has its own bound");

    assert!(a.cancel(first) && !a.cancel(first));
    assert_eq!(a.call(PEER, 1, None, Time::ZERO), Err(refused), "the peer still has the request");
    let cancellation = output(&mut a);
    let (_, request) = call(&mut a, b"");
    assert_eq!(b.handle_message(PEER, &cancellation), Incoming::Ignored);
    assert!(!b.is_pending(first_request));
    receive(&mut b, &request);
    assert_eq!((b.pending_request_count(PEER), b.counters().cancelled_requests), (2, 1));
}

#[test]
fn deadlines_expire_in_order() {
    let (mut a, mut b) = pair(RpcConfig::default());
    let mut start = |timeout: u64| {
        let timeout = Some(Duration::from_micros(timeout));
        a.call(PEER, 1, timeout, Time::ZERO).unwrap()
    };
    let [(late, _), (early, early_header), (answered, header)] = [30, 10, 20].map(&mut start);
    let Incoming::Request { request, timeout, .. } = b.handle_message(PEER, &header.to_bytes()) else {
        unreachable!()
    };
    assert_eq!(timeout, Some(Duration::from_micros(20)));
    let early_request = receive(&mut b, &early_header.to_bytes());

    assert_eq!(a.poll_timeout(), Some(micros(10)));
    assert_eq!(a.poll_expired(micros(9)), None);
    let reply = b.answer(request).unwrap().to_bytes();
    assert!(matches!(a.handle_message(PEER, &reply), Incoming::Reply { call, .. } if call == answered));
    assert_eq!(a.poll_expired(micros(40)), Some(early));
    assert_eq!(a.poll_expired(micros(40)), Some(late));
    assert_eq!((a.poll_expired(micros(40)), a.poll_timeout()), (None, None));

    // A late reply is dropped.
    let reply = message(b.answer(early_request).unwrap(), b"late");
    assert_eq!(a.handle_message(PEER, &reply), Incoming::Ignored);
    assert_eq!((a.counters().expired_calls, a.counters().late_replies), (2, 1));
}

#[test]
fn a_session_end_ends_calls_and_requests() {
    let (mut a, mut b) = pair(RpcConfig::default());
    let timeout = Some(Duration::from_micros(5));
    let (with_timeout, _) = a.call(PEER, 1, timeout, Time::ZERO).unwrap();
    let (cancelled, _) = call(&mut a, b"");
    let (without, request) = call(&mut a, b"");
    let (other, _) = a.call(PeerId(1), 1, None, Time::ZERO).unwrap();
    let request = receive(&mut b, &request);
    a.cancel(cancelled);
    for rpc in [&mut a, &mut b] {
        rpc.end(PEER);
    }
    assert_eq!(a.call(PEER, 1, None, Time::ZERO), Err(PostError::NotOpen { peer: PEER }));
    assert!(a.open(PEER, 2).is_err(), "the calls were not taken");
    assert_eq!([a.poll_ended(PEER), a.poll_ended(PEER)], [Some(with_timeout), Some(without)]);
    assert_eq!((a.poll_ended(PEER), a.poll_timeout(), a.poll_ready()), (None, None, None));
    assert!(a.is_outstanding(other), "the other session is not affected");

    assert_eq!(b.poll_ended(PEER), None);
    a.open(PEER, 2).unwrap();
    b.open(PEER, 2).unwrap();
    // The request of the new session has the index of one that the application still holds.
    let (_, new) = call(&mut a, b"");
    let new = receive(&mut b, &new);
    assert_eq!(b.queue_reply(request, b"old"), Err(PostError::RequestEnded { peer: PEER }));
    assert!(b.is_pending(new) && !b.has_output(PEER));
}

#[test]
fn a_peer_that_restarts_uses_its_ids_again() {
    let (mut a, mut b) = pair(RpcConfig::default());
    let first = receive(&mut b, &call(&mut a, b"").1);
    let reply = b.answer(first).unwrap().to_bytes();
    a.handle_message(PEER, &reply);
    let old = receive(&mut b, &call(&mut a, b"").1);
    b.end(PEER);
    assert_eq!(b.poll_ended(PEER), None);
    b.open(PEER, 2).unwrap();

    let (mut a, _) = pair(RpcConfig::default());
    let first = receive(&mut b, &call(&mut a, b"").1);
    let reply = b.answer(first).unwrap().to_bytes();
    a.handle_message(PEER, &reply);
    // This request has the id of the one that the application still holds.
    let new = receive(&mut b, &call(&mut a, b"").1);
    assert_eq!((new.id, b.is_pending(old)), (old.id, false));
    assert_eq!(b.answer(old), Err(PostError::RequestEnded { peer: PEER }));
    assert_eq!(b.queue_reply(old, b""), Err(PostError::RequestEnded { peer: PEER }));
    assert!(b.is_pending(new));
}

#[test]
fn answers_wait_for_credits() {
    let (mut a, mut b) = pair(RpcConfig::default());
    let calls = [&b"reply"[..], b"failure", b"cancelled"].map(|data| {
        let (call, request) = call(&mut a, data);
        (call, receive(&mut b, &request))
    });
    b.queue_reply(calls[0].1, b"data").unwrap();
    b.queue_reply(calls[2].1, b"never sent").unwrap();
    b.queue_failure(calls[1].1, Failure::NoReply).unwrap();
    assert_eq!(b.pending_request_count(PEER), 0);
    a.cancel(calls[2].0);
    let cancellation = output(&mut a);
    b.handle_message(PEER, &cancellation);

    let reply = output(&mut b);
    let expected = Incoming::Reply { call: calls[0].0, result: Ok(&b"data"[..]) };
    assert_eq!(a.handle_message(PEER, &reply), expected);
    assert_eq!(b.poll_ready(), None, "the peer is returned once");
    b.mark_ready(PEER);
    let failure = output(&mut b);
    let expected = Incoming::Reply { call: calls[1].0, result: Err(Failure::NoReply) };
    assert_eq!(a.handle_message(PEER, &failure), expected);
    assert!(!b.has_output(PEER));
}

#[test]
fn excess_requests_are_refused() {
    let (mut a, _) = pair(RpcConfig { max_calls: 4, max_requests: 4 });
    let (_, mut b) = pair(RpcConfig { max_calls: 4, max_requests: 2 });
    let calls: Vec<_> = (0..4).map(|_| call(&mut a, b"")).collect();
    for (index, (_, request)) in calls.iter().enumerate() {
        let incoming = b.handle_message(PEER, request);
        assert_eq!(matches!(incoming, Incoming::Request { .. }), index < 2);
    }
    // The third call is cancelled before the refusal is sent.
    a.cancel(calls[2].0);
    let cancellation = output(&mut a);
    b.handle_message(PEER, &cancellation);
    let refusal = output(&mut b);
    let expected = Incoming::Reply { call: calls[3].0, result: Err(Failure::Overloaded) };
    assert_eq!(a.handle_message(PEER, &refusal), expected);
    assert!(!b.has_output(PEER));
    assert_eq!((b.counters().refused_requests, b.counters().cancelled_requests), (2, 1));
}

#[test]
fn hostile_peers_affect_only_themselves() {
    let (mut a, mut b) = pair(RpcConfig { max_calls: 4, max_requests: 4 });
    let (answered, request) = call(&mut a, b"data");
    let hostile = PeerId(1);
    let id = answered.id;
    for generation in [0, 1, 2, u32::MAX] {
        for index in [0, 1, 4, u16::MAX] {
            let id = WireId { index, generation };
            for header in [Header::Reply { id }, Header::Failure { id, failure: Failure::NoReply }] {
                assert_eq!(a.handle_message(hostile, &header.to_bytes()), Incoming::Ignored);
            }
            a.handle_message(hostile, &Header::Cancel { id }.to_bytes());
        }
    }
    // The peer itself: ids that are not in use, and messages without a meaning.
    for id in [WireId { generation: 2, ..id }, WireId { index: 1, ..id }] {
        assert_eq!(a.handle_message(PEER, &Header::Reply { id }.to_bytes()), Incoming::Ignored);
    }
    assert_eq!((a.counters().unknown_replies, a.counters().malformed_messages), (32 + 2, 0));
    for bytes in [&b""[..], &[0; HEADER_LEN], &[0xff; 100], &request[..HEADER_LEN - 1]] {
        assert_eq!(a.handle_message(PEER, bytes), Incoming::Ignored);
    }
    assert_eq!(a.handle_message(PeerId(2), &request), Incoming::Ignored, "no such peer");
    assert_eq!(a.counters().malformed_messages, 5);
    assert!(a.is_outstanding(answered));

    // A request that is repeated reaches the application once, even if it was answered.
    let pending = receive(&mut b, &request);
    assert_eq!(b.handle_message(PEER, &request), Incoming::Ignored);
    b.answer(pending).unwrap();
    assert_eq!(b.handle_message(PEER, &request), Incoming::Ignored);
    assert_eq!((b.counters().requests, b.counters().duplicate_requests), (1, 2));
}

#[test]
fn a_peer_without_credits_occupies_bounded_memory() {
    let (_, mut b) = pair(RpcConfig { max_calls: 4, max_requests: 4 });
    // A peer sends, and cancels, requests that are answered but whose answers can't be sent.
    for generation in 1..=1000u32 {
        for index in 0..8 {
            let id = WireId { index, generation };
            let header = Header::Request { id, method: 0, timeout: None };
            if let Incoming::Request { request, .. } = b.handle_message(PEER, &header.to_bytes()) {
                b.queue_reply(request, &[0; 100]).unwrap();
            }
            if generation % 2 == 0 {
                b.handle_message(PEER, &Header::Cancel { id }.to_bytes());
            }
        }
    }
    let mut count = 0;
    while b.poll_output(PEER).is_some() {
        count += 1;
    }
    // At most one answer for each index, and a refusal for each request that was not cancelled.
    assert!(count <= 4 + 4 * 500, "{count}");
    for generation in 1..=2 * u32::from(crate::MAX_COUNT) {
        let id = WireId { index: 9, generation };
        b.handle_message(PEER, &Header::Request { id, method: 0, timeout: None }.to_bytes());
    }
    let refusals = core::iter::from_fn(|| b.poll_output(PEER).map(|_| ())).count();
    assert_eq!(refusals, usize::from(crate::MAX_COUNT));
}

#[test]
fn withdrawn_calls_leave_nothing() {
    let (mut a, _) = pair(RpcConfig { max_calls: 1, max_requests: 1 });
    for _ in 0..3 {
        let (call, _) = a.call(PEER, 1, Some(Duration::from_secs(1)), Time::ZERO).unwrap();
        a.withdraw(call);
        assert!(!a.is_outstanding(call) && !a.has_output(PEER));
    }
    assert_eq!((a.poll_timeout(), a.counters().calls), (None, 0));
}

#[test]
fn limits_are_checked() {
    let config = RpcConfig { max_calls: 0, max_requests: 1 };
    assert!(matches!(Rpc::new(config, 1), Err(ConfigError::OutOfRange { field: "max_calls", .. })));
    let config = RpcConfig { max_calls: 1, max_requests: crate::MAX_COUNT + 1 };
    assert!(matches!(Rpc::new(config, 1), Err(ConfigError::OutOfRange { field: "max_requests", .. })));
    assert!(matches!(Rpc::new(RpcConfig::default(), 70_000), Err(ConfigError::TooManyPeers { .. })));
}

#[test]
fn the_documentation_has_the_defaults() {
    let RpcConfig { max_calls, max_requests } = RpcConfig::default();
    for (field, default) in [("max_calls", max_calls), ("max_requests", max_requests)] {
        let (docs, _) =
            include_str!("../types.rs").split_once(&format!("    pub {field}: ")).expect("a field");
        assert!(docs.trim_end().ends_with(&format!("The default is {default}.")), "{field} {default}");
    }
}
