//! Limits of private data.

use adverb_proto::cm::{CallError, Event, LocalQp, ResolveParams};
use adverb_wire::cm::{DataTooLong, RejectReason, ServiceId};

use crate::harness::*;

const DATA: [u8; 256] = [0xa5; 256];

#[test]
fn a_request_carries_0_to_56_bytes() {
    for length in [0, 1, 55, 56] {
        let mut pair = Pair::new();
        let mut connect = pair.request();
        connect.private_data = &DATA[..length];
        pair.connect_with(CLIENT, &connect).unwrap();
        pair.run();
        let request = pair.expect_request();
        assert_eq!(request.private_data.len(), 56);
        assert_eq!(request.private_data[..length], DATA[..length]);
        assert!(request.private_data[length..].iter().all(|byte| *byte == 0));
    }
    let mut pair = Pair::new();
    let mut connect = pair.request();
    connect.private_data = &DATA[..57];
    let refused = Err(CallError::PrivateDataTooLong(DataTooLong { len: 57, max: 56 }));
    assert_eq!(pair.connect_with(CLIENT, &connect), refused);
    pair.assert_no_state_left();
}

#[test]
fn an_acceptance_carries_0_to_196_bytes() {
    for length in [0, 1, 196] {
        let mut pair = Pair::new();
        pair.connect();
        pair.run();
        let id = pair.expect_request().id;
        let local_qp = LocalQp::new(pair.qpn());
        let deadline = pair.deadline();
        let too_long = pair.sides[SERVER].accept(pair.now, id, &local_qp, &DATA[..197], deadline);
        assert_eq!(too_long, Err(CallError::PrivateDataTooLong(DataTooLong { len: 197, max: 196 })));
        pair.sides[SERVER].accept(pair.now, id, &local_qp, &DATA[..length], deadline).unwrap();
        pair.run();
        let Some(Event::Accepted(acceptance)) = pair.event(CLIENT) else { panic!() };
        assert_eq!(acceptance.private_data.len(), 196);
        assert_eq!(acceptance.private_data[..length], DATA[..length]);
        assert!(acceptance.private_data[length..].iter().all(|byte| *byte == 0));
    }
}

#[test]
fn a_rejection_carries_0_to_148_bytes() {
    for length in [0, 1, 148] {
        let mut pair = Pair::new();
        pair.connect();
        pair.run();
        let id = pair.expect_request().id;
        let reason = RejectReason::ConsumerReject;
        let too_long = pair.sides[SERVER].reject(pair.now, id, reason, &DATA[..149]);
        assert_eq!(too_long, Err(CallError::PrivateDataTooLong(DataTooLong { len: 149, max: 148 })));
        pair.sides[SERVER].reject(pair.now, id, reason, &DATA[..length]).unwrap();
        pair.run();
        let Some(Event::Rejected(rejection)) = pair.event(CLIENT) else { panic!() };
        assert_eq!(rejection.private_data.len(), 148);
        assert_eq!(rejection.private_data[..length], DATA[..length]);
        assert!(rejection.private_data[length..].iter().all(|byte| *byte == 0));
    }
}

#[test]
fn a_query_carries_0_to_180_bytes_or_216_without_an_ip_header() {
    let mut pair = Pair::without_listener();
    let mut state = 5;
    let mut resolve = |length: usize, service| {
        let (addrs, deadline) = (addrs(CLIENT), pair.deadline());
        let resolve =
            ResolveParams { addrs, service, source_port: 1, private_data: &DATA[..length], deadline };
        pair.sides[CLIENT].resolve_service(pair.now, &resolve, &mut || random_u32(&mut state)).map(|_| ())
    };
    let udp = ServiceId::udp_port(1);
    assert_eq!(resolve(0, udp), Ok(()));
    assert_eq!(resolve(180, udp), Ok(()));
    let refused = Err(CallError::PrivateDataTooLong(DataTooLong { len: 181, max: 180 }));
    assert_eq!(resolve(181, udp), refused);
    assert_eq!(resolve(216, ServiceId::new(1)), Ok(()));
    let refused = Err(CallError::PrivateDataTooLong(DataTooLong { len: 217, max: 216 }));
    assert_eq!(resolve(217, ServiceId::new(1)), refused);
}
