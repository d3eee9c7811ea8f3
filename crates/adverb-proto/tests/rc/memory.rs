//! Protection domains, regions and keys.

use adverb_proto::Device;
use adverb_proto::memory::{
    DeregisterError, DomainError, RegisterError, Registration, RemoteInvalidate, StorageId,
};
use adverb_proto::types::{Access, QpState};
use adverb_wire::{NakCode, Rc, Reth, Write};

use crate::harness::{ADDR, ALL, ack, nak, solo};

fn registration(addr: u64, length: u64, access: Access) -> Registration {
    Registration { addr, length, access, storage: StorageId(0), remote_invalidate: RemoteInvalidate::Denied }
}

#[test]
fn empty_and_wrapping_ranges_are_rejected() {
    let mut device = Device::new(());
    let pd = device.create_domain();
    for (addr, length) in [(0x1000, 0), (u64::MAX, 1), (1, u64::MAX), (u64::MAX - 4095, 4096)] {
        let registered = device.register(pd, registration(addr, length, Access::empty()), || 5);
        assert_eq!(registered, Err(RegisterError::InvalidRange), "{addr:#x} {length:#x}");
    }
    assert!(device.register(pd, registration(u64::MAX - 4096, 4096, Access::empty()), || 5).is_ok());
}

#[test]
fn remote_write_access_needs_local_write_access() {
    let mut device = Device::new(());
    let pd = device.create_domain();
    for access in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC] {
        let registered = device.register(pd, registration(0, 8, access), || 5);
        assert_eq!(registered, Err(RegisterError::InvalidAccess));
    }
    assert!(device.register(pd, registration(0, 8, Access::REMOTE_READ), || 5).is_ok());
}

#[test]
fn keys_are_random_and_neither_zero_nor_in_use() {
    let mut device = Device::new(());
    let pd = device.create_domain();
    let mut numbers = [0, 9, 9, 0, 9, 12].into_iter();
    let mut random = || numbers.next().unwrap();
    assert_eq!(device.register(pd, registration(0, 8, Access::empty()), &mut random), Ok(9));
    assert_eq!(device.register(pd, registration(0, 8, Access::empty()), &mut random), Ok(12));
}

#[test]
fn deregistering_returns_the_registration_once() {
    let mut device = Device::new(());
    let pd = device.create_domain();
    let attributes = registration(0, 8, Access::empty());
    let key = device.register(pd, attributes, || 5).unwrap();
    assert_eq!(device.deregister(key), Ok(attributes));
    assert_eq!(device.deregister(key), Err(DeregisterError::UnknownKey));
}

#[test]
fn domain_with_regions_is_not_destroyed() {
    let mut device = Device::new(());
    let pd = device.create_domain();
    let key = device.register(pd, registration(0, 8, Access::empty()), || 5).unwrap();
    assert_eq!(device.destroy_domain(pd), Err(DomainError::InUse { user_count: 1 }));
    device.deregister(key).unwrap();
    assert_eq!(device.destroy_domain(pd), Ok(()));
    assert_eq!(device.destroy_domain(pd), Err(DomainError::Unknown));
    let registered = device.register(pd, registration(0, 8, Access::empty()), || 5);
    assert_eq!(registered, Err(RegisterError::UnknownDomain));
}

/// A requester that retransmitted a READ may have completed it with the first response, and let this side release the
/// memory before the second response is sent.
#[test]
fn duplicate_read_of_deregistered_memory_gets_a_nak_and_does_not_end_the_connection() {
    for is_deregistered_first in [false, true] {
        let mut end = solo();
        let other = end.register(ALL);
        let read = Rc::ReadRequest(Reth { va: ADDR, rkey: end.key, length: 3000 });
        assert_eq!(end.exchange(0, read, &[]).len(), 3);
        // The duplicate starts with the response's second packet.
        let rest = Rc::ReadRequest(Reth { va: ADDR + 1024, rkey: end.key, length: 1976 });
        let mut denied = 1;
        if !is_deregistered_first {
            end.receive(1, rest, &[]);
            let now = end.now;
            assert!(end.device.poll_transmit(now).is_some(), "the retransmission has started");
            denied = 2;
        }
        end.device.deregister(end.key).unwrap();
        if is_deregistered_first {
            end.receive(1, rest, &[]);
        }
        let write = Rc::Write(Write::Only(Reth { va: ADDR, rkey: other, length: 4 }, None));
        end.receive(3, write, b"abcd");
        assert_eq!(end.sent(), [(nak(NakCode::RemoteAccess, 0), denied), (ack(2), 3)]);
        assert_eq!(end.state(), QpState::ReadyToSend);
        assert_eq!(end.queue_events(), []);
        assert_eq!(end.bytes(0, 4), b"abcd", "the connection still works");
        assert_eq!(end.device.statistics().fatal_naks_sent, 1);
    }
}
