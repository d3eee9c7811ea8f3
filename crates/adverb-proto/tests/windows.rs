//! The rules of memory windows of type 2B. Each test checks one rule.

#[path = "harness/mod.rs"]
mod harness;

use adverb_proto::memory::{DeregisterError, Registration, RemoteInvalidate, StorageId, WindowError};
use adverb_proto::types::{
    Access, CompletedOperation, PathMtu, QpState, Qpn, RemoteAddress, Segment, SendFlags, SendOperation,
    Status, Transport, WindowBind,
};
use adverb_proto::{Init, PostError, QpConfig, ReadyToReceive, ReadyToSend, Transition};
use adverb_wire::{CompareSwap, FetchAdd, Flush, Header, NakCode, Operation, Psn, Rc, Reth, Send, Uc, Write};

use harness::{ADDR, ALL, End, Options, PSN, Pair, SIZE, ack, nak, pattern, solo, solo_with};

/// The offset of windows in the region. They have `WINDOW_LEN` bytes.
const WINDOW_START: u64 = 4096;
const WINDOW_LEN: u64 = 2048;
const READ_WRITE: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);
/// The access rights of a region for windows that let a peer write.
const BINDABLE: Access = Access::WINDOW_BIND.union(Access::LOCAL_WRITE);

/// Returns an end with a region that windows can be bound to, and the region's key.
fn bindable() -> (End, u32) {
    let mut end = solo();
    let region = end.register(BINDABLE);
    (end, region)
}

fn window(end: &mut End) -> u32 {
    let random = end.rng();
    end.device.create_window(end.pd, random).unwrap()
}

/// Returns the next key of a window.
fn next(key: u32) -> u32 {
    key & !0xff | (key + 1) & 0xff
}

fn binding(rkey: u32, lkey: u32, access: Access) -> WindowBind {
    WindowBind { rkey, lkey, addr: ADDR + WINDOW_START, length: WINDOW_LEN, access }
}

/// Binds a window, and returns the status.
fn try_bind(end: &mut End, bind: WindowBind) -> Status {
    end.try_post(77, SendOperation::BindWindow(bind), SendFlags::SIGNALED, &[]).unwrap();
    assert_eq!(end.transmits().len(), 0, "binding sends no packet");
    let statuses = end.statuses();
    assert_eq!(statuses.len(), 1);
    statuses[0].1
}

/// Binds a new window, and returns its key.
fn bound_window(end: &mut End, region: u32, access: Access) -> u32 {
    let key = next(window(end));
    assert_eq!(try_bind(end, binding(key, region, access)), Status::Success);
    key
}

fn write(key: u32, va: u64, length: u32) -> Rc {
    Rc::Write(Write::Only(Reth { va, rkey: key, length }, None))
}

/// Creates another reliable connection of the end's device.
fn another_qp(end: &mut End) -> Qpn {
    let random = end.rng();
    let qpn = end.device.create_qp(QpConfig::rc(end.pd, end.cq, end.cq), random).unwrap();
    let psn = Psn::wrapping(PSN);
    let ready_to_receive = ReadyToReceive::unreliable(Qpn::truncate(0x88), end.path(), PathMtu::Mtu1024, psn);
    let ready_to_send = Transition::ReadyToSend(ReadyToSend::unreliable(psn));
    for transition in
        [Transition::Init(Init::new(ALL)), Transition::ReadyToReceive(ready_to_receive), ready_to_send]
    {
        end.device.modify_qp(end.now, qpn, &transition).unwrap();
    }
    qpn
}

/// Checks that a request is rejected with a remote access error, and changes no memory.
#[track_caller]
fn assert_denied(end: &mut End, psn: u32, rc: Rc, payload: &[u8]) {
    let before = end.memory.bytes(end.storage).to_vec();
    assert_eq!(end.exchange(psn, rc, payload), [(nak(NakCode::RemoteAccess, psn), psn)]);
    assert_eq!(end.state(), QpState::Error);
    assert!(end.memory.bytes(end.storage) == before, "rejected requests change nothing");
}

#[test]
fn peer_writes_and_reads_through_a_window() {
    let mut pair = Pair::new();
    let region = pair.b.register(BINDABLE);
    let key = bound_window(&mut pair.b, region, READ_WRITE);
    let remote = RemoteAddress { addr: ADDR + WINDOW_START, rkey: key };
    pair.a.fill(0, &pattern(2048, 3));
    pair.a.post(1, SendOperation::Write(remote), 0, 2048);
    pair.a.post(2, SendOperation::Read(remote), 8192, 2048);
    pair.run();
    assert_eq!(pair.a.statuses(), [(1, Status::Success), (2, Status::Success)]);
    assert_eq!(pair.b.bytes(WINDOW_START as usize, 2048), pattern(2048, 3));
    assert_eq!(pair.a.bytes(8192, 2048), pattern(2048, 3));
}

#[test]
fn peer_does_atomics_through_a_window() {
    let (mut end, region) = bindable();
    let key = bound_window(&mut end, region, Access::REMOTE_ATOMIC);
    let old = end.word(WINDOW_START as usize);
    end.receive(0, Rc::FetchAdd(FetchAdd { va: ADDR + WINDOW_START, rkey: key, add: 5 }), &[]);
    assert_eq!(end.word(WINDOW_START as usize), old.wrapping_add(5));
    let swap = CompareSwap { va: ADDR + WINDOW_START, rkey: key, swap: 9, compare: old.wrapping_add(5) };
    end.receive(1, Rc::CompareSwap(swap), &[]);
    assert_eq!(end.word(WINDOW_START as usize), 9);
}

#[test]
fn window_may_grant_access_that_its_region_does_not() {
    let (mut end, region) = bindable();
    let key = bound_window(&mut end, region, READ_WRITE);
    assert_eq!(end.exchange(0, write(key, ADDR + WINDOW_START, 4), b"abcd"), [(ack(1), 0)]);
    assert_denied(&mut end, 1, write(region, ADDR + WINDOW_START, 4), b"abcd");
}

#[test]
fn window_grants_access_only_to_its_range() {
    for offset in
        [WINDOW_START - 1, WINDOW_START + WINDOW_LEN - 3, WINDOW_START + WINDOW_LEN, 0, u64::MAX - ADDR - 2]
    {
        let (mut end, region) = bindable();
        let key = bound_window(&mut end, region, READ_WRITE);
        assert_denied(&mut end, 0, write(key, ADDR.wrapping_add(offset), 4), b"abcd");
    }
    let (mut end, region) = bindable();
    let key = bound_window(&mut end, region, READ_WRITE);
    assert_eq!(end.exchange(0, write(key, ADDR + WINDOW_START + WINDOW_LEN - 4, 4), b"last"), [(ack(1), 0)]);
}

#[test]
fn each_operation_needs_its_access_right() {
    let reth = |key| Reth { va: ADDR + WINDOW_START, rkey: key, length: 8 };
    type Make = fn(Reth) -> Rc;
    let operations: [(Access, Make, &[u8]); 5] = [
        (Access::REMOTE_WRITE, |reth| Rc::Write(Write::Only(reth, None)), b"abcdefgh"),
        (Access::REMOTE_READ, Rc::ReadRequest, b""),
        (Access::REMOTE_ATOMIC, |reth| Rc::FetchAdd(FetchAdd { va: reth.va, rkey: reth.rkey, add: 1 }), b""),
        (Access::REMOTE_WRITE, Rc::AtomicWrite, b"abcdefgh"),
        (
            Access::FLUSH_GLOBAL,
            |range| Rc::Flush(Flush { global: true, persistent: false, whole_region: false, range }),
            b"",
        ),
    ];
    for (right, create, payload) in operations {
        let mut end = solo();
        let region = end.register(ALL | Access::WINDOW_BIND);
        let key = bound_window(&mut end, region, Access::REMOTE.difference(right));
        assert_denied(&mut end, 0, create(reth(key)), payload);
        let mut end = solo();
        let region = end.register(ALL | Access::WINDOW_BIND);
        let key = bound_window(&mut end, region, right);
        end.exchange(0, create(reth(key)), payload);
        assert_eq!(end.state(), QpState::ReadyToSend, "{right:?} is enough");
    }
}

#[test]
fn flush_of_the_whole_region_flushes_the_window() {
    let mut end = solo();
    let region = end.register(ALL | Access::WINDOW_BIND);
    let key = bound_window(&mut end, region, Access::FLUSH_GLOBAL);
    let range = Reth { va: 0, rkey: key, length: 0 };
    let flush = Flush { global: true, persistent: false, whole_region: true, range };
    end.exchange(0, Rc::Flush(flush), &[]);
    assert_eq!(end.state(), QpState::ReadyToSend);
    let flush = Flush { global: false, persistent: true, ..flush };
    assert_denied(&mut end, 1, Rc::Flush(flush), &[]);
}

#[test]
fn window_is_for_one_connection() {
    let (mut end, region) = bindable();
    let key = bound_window(&mut end, region, READ_WRITE);
    let other = another_qp(&mut end);
    let header = Header::new(other, Psn::wrapping(PSN), Operation::Rc(write(key, ADDR + WINDOW_START, 4)));
    let bytes = end.forge(&header, b"evil");
    end.deliver(&bytes);
    assert_ne!(end.bytes(WINDOW_START as usize, 4), b"evil");
    assert_eq!(end.device.query_qp(other).unwrap().state, QpState::Error);
    end.transmits();
    assert_eq!(end.exchange(0, write(key, ADDR + WINDOW_START, 4), b"good"), [(ack(1), 0)]);
}

#[test]
fn unbound_window_grants_no_access() {
    let (mut end, _) = bindable();
    let key = window(&mut end);
    assert_denied(&mut end, 0, write(key, ADDR + WINDOW_START, 4), b"abcd");
}

#[test]
fn key_of_an_earlier_binding_is_rejected() {
    let (mut end, region) = bindable();
    let old = bound_window(&mut end, region, READ_WRITE);
    end.post(1, SendOperation::LocalInvalidate(old), 0, 0);
    end.transmits();
    end.statuses();
    assert_eq!(try_bind(&mut end, binding(next(old), region, READ_WRITE)), Status::Success);
    assert_eq!(end.exchange(0, write(next(old), ADDR + WINDOW_START, 4), b"abcd"), [(ack(1), 0)]);
    assert_denied(&mut end, 1, write(old, ADDR + WINDOW_START, 4), b"evil");
}

#[test]
fn locally_invalidated_window_is_rejected() {
    let (mut end, region) = bindable();
    let key = bound_window(&mut end, region, READ_WRITE);
    end.post(1, SendOperation::LocalInvalidate(key), 0, 0);
    end.transmits();
    let completion = end.completions()[0];
    assert_eq!(completion.outcome.unwrap().operation, CompletedOperation::LocalInvalidate);
    assert_denied(&mut end, 0, write(key, ADDR + WINDOW_START, 4), b"evil");
}

#[test]
fn remotely_invalidated_window_is_rejected() {
    let (mut end, region) = bindable();
    let key = bound_window(&mut end, region, READ_WRITE);
    end.post_recv(5, 0, 64);
    assert_eq!(end.exchange(0, Rc::SendOnlyInvalidate(key), b"done"), [(ack(1), 0)]);
    let expected =
        CompletedOperation::Recv { immediate: None, invalidated: Some(key), source: None, has_grh: false };
    assert_eq!(end.completions()[0].outcome.unwrap().operation, expected);
    assert_denied(&mut end, 1, write(key, ADDR + WINDOW_START, 4), b"evil");
}

#[test]
fn peer_invalidates_only_windows_of_its_own_connection() {
    let (mut end, region) = bindable();
    let key = bound_window(&mut end, region, READ_WRITE);
    let other = another_qp(&mut end);
    let segments = [end.segment(0, 64)];
    let request = adverb_proto::types::RecvRequest { wr_id: 9, tag: 0, segments: &segments };
    end.device.post_recv(end.now, other, &request).unwrap();
    let header = Header::new(other, Psn::wrapping(PSN), Operation::Rc(Rc::SendOnlyInvalidate(key)));
    let bytes = end.forge(&header, b"evil");
    end.deliver(&bytes);
    assert_eq!(end.device.query_qp(other).unwrap().state, QpState::Error);
    end.transmits();
    assert_eq!(
        end.exchange(0, write(key, ADDR + WINDOW_START, 4), b"good"),
        [(ack(1), 0)],
        "the window is still bound"
    );
}

#[test]
fn invalidating_an_unbound_window_fails() {
    for twice in [false, true] {
        let (mut end, region) = bindable();
        let key = if twice { bound_window(&mut end, region, READ_WRITE) } else { window(&mut end) };
        end.post(1, SendOperation::LocalInvalidate(key), 0, 0);
        end.post(2, SendOperation::LocalInvalidate(key), 0, 0);
        end.transmits();
        let first = if twice { Status::Success } else { Status::LocalQpOperation };
        let second = if twice { Status::LocalQpOperation } else { Status::Flushed };
        assert_eq!(end.statuses(), [(1, first), (2, second)]);
    }
}

#[test]
fn window_is_invalidated_only_by_its_queue_pair() {
    let (mut end, region) = bindable();
    let key = bound_window(&mut end, region, READ_WRITE);
    let bound_qpn = end.qpn;
    end.qpn = another_qp(&mut end);
    end.post(1, SendOperation::LocalInvalidate(key), 0, 0);
    end.transmits();
    assert_eq!(end.statuses(), [(1, Status::LocalQpOperation)]);
    end.qpn = bound_qpn;
    assert_eq!(end.exchange(0, write(key, ADDR + WINDOW_START, 4), b"good"), [(ack(1), 0)]);
}

#[test]
fn bound_window_is_not_bound_again_without_invalidation() {
    let (mut end, region) = bindable();
    let key = bound_window(&mut end, region, READ_WRITE);
    assert_eq!(try_bind(&mut end, binding(next(key), region, READ_WRITE)), Status::WindowBind);
    assert_eq!(end.state(), QpState::Error);
}

#[test]
fn binding_needs_another_key_than_the_current_one() {
    let (mut end, region) = bindable();
    let key = window(&mut end);
    assert_eq!(try_bind(&mut end, binding(key, region, READ_WRITE)), Status::WindowBind);
}

#[test]
fn owner_chooses_the_lowest_eight_bits_of_the_key() {
    let (mut end, region) = bindable();
    let first = window(&mut end);
    for bits in (0..256).filter(|bits| *bits != first & 0xff) {
        let key = first & !0xff | bits;
        assert_eq!(try_bind(&mut end, binding(key, region, READ_WRITE)), Status::Success);
        end.post(1, SendOperation::LocalInvalidate(key), 0, 0);
        end.transmits();
        assert_eq!(end.statuses(), [(1, Status::Success)]);
    }
}

#[test]
fn binding_a_key_that_is_not_a_window_fails() {
    let (mut end, region) = bindable();
    let stray = window(&mut end) ^ 0x5500;
    assert_eq!(try_bind(&mut end, binding(stray, region, READ_WRITE)), Status::WindowBind);
}

#[test]
fn region_needs_window_bind_access() {
    let mut end = solo();
    let region = end.register(ALL);
    let key = next(window(&mut end));
    assert_eq!(try_bind(&mut end, binding(key, region, READ_WRITE)), Status::WindowBind);
}

#[test]
fn region_needs_local_write_access_for_a_remotely_writable_window() {
    for (access, expected) in [
        (Access::REMOTE_READ, Status::Success),
        (Access::REMOTE_WRITE, Status::WindowBind),
        (Access::REMOTE_ATOMIC, Status::WindowBind),
    ] {
        let mut end = solo();
        let region = end.register(Access::WINDOW_BIND);
        let key = next(window(&mut end));
        assert_eq!(try_bind(&mut end, binding(key, region, access)), expected, "{access:?}");
    }
}

#[test]
fn window_grants_only_remote_access_rights() {
    for access in [Access::LOCAL_WRITE, Access::WINDOW_BIND | READ_WRITE] {
        let (mut end, region) = bindable();
        let key = next(window(&mut end));
        assert_eq!(try_bind(&mut end, binding(key, region, access)), Status::WindowBind, "{access:?}");
    }
}

#[test]
fn window_without_rights_can_be_bound() {
    let (mut end, region) = bindable();
    let key = next(window(&mut end));
    assert_eq!(try_bind(&mut end, binding(key, region, Access::empty())), Status::Success);
}

#[test]
fn range_of_a_window_lies_within_its_region() {
    for (addr, length) in [
        (ADDR - 1, 8),
        (ADDR + SIZE - 7, 8),
        (ADDR + SIZE, 1),
        (ADDR, SIZE + 1),
        (ADDR, u64::MAX),
        (u64::MAX, 1),
        (ADDR, 0),
    ] {
        let (mut end, region) = bindable();
        let key = next(window(&mut end));
        let bind = WindowBind { rkey: key, lkey: region, addr, length, access: READ_WRITE };
        assert_eq!(try_bind(&mut end, bind), Status::WindowBind, "{addr:#x} {length:#x}");
    }
    let (mut end, region) = bindable();
    let key = next(window(&mut end));
    let bind = WindowBind { rkey: key, lkey: region, addr: ADDR, length: SIZE, access: READ_WRITE };
    assert_eq!(try_bind(&mut end, bind), Status::Success, "the whole region");
}

#[test]
fn window_region_and_queue_pair_must_be_of_one_domain() {
    let (mut end, _) = bindable();
    let domain = end.device.create_domain();
    let foreign = end.register_with(domain, BINDABLE, RemoteInvalidate::Denied);
    let key = next(window(&mut end));
    assert_eq!(try_bind(&mut end, binding(key, foreign, READ_WRITE)), Status::WindowBind);
    let (mut end, region) = bindable();
    let domain = end.device.create_domain();
    let random = end.rng();
    let key = next(end.device.create_window(domain, random).unwrap());
    assert_eq!(try_bind(&mut end, binding(key, region, READ_WRITE)), Status::WindowBind);
}

#[test]
fn invalidated_region_cannot_be_bound() {
    let (mut end, region) = bindable();
    end.post(1, SendOperation::LocalInvalidate(region), 0, 0);
    end.transmits();
    end.statuses();
    let key = next(window(&mut end));
    assert_eq!(try_bind(&mut end, binding(key, region, READ_WRITE)), Status::WindowBind);
}

#[test]
fn region_is_not_deregistered_while_windows_are_bound() {
    let (mut end, region) = bindable();
    let keys =
        [bound_window(&mut end, region, READ_WRITE), bound_window(&mut end, region, Access::REMOTE_READ)];
    assert_eq!(end.device.deregister(region), Err(DeregisterError::WindowsBound { window_count: 2 }));
    for (id, key) in keys.into_iter().enumerate() {
        end.post(id as u64, SendOperation::LocalInvalidate(key), 0, 0);
    }
    end.transmits();
    assert!(end.device.deregister(region).is_ok());
}

#[test]
fn region_is_not_invalidated_while_windows_are_bound() {
    let (mut end, region) = bindable();
    let key = bound_window(&mut end, region, READ_WRITE);
    end.post(1, SendOperation::LocalInvalidate(region), 0, 0);
    end.transmits();
    assert_eq!(end.statuses(), [(1, Status::LocalQpOperation)]);
    let mut end = solo();
    let region = end.register_with(end.pd, BINDABLE, RemoteInvalidate::Allowed);
    bound_window(&mut end, region, READ_WRITE);
    end.post_recv(5, 0, 64);
    assert_eq!(end.exchange(0, Rc::SendOnlyInvalidate(region), b"x"), [(nak(NakCode::RemoteAccess, 0), 0)]);
    assert_ne!(key, 0);
}

#[test]
fn destroyed_window_grants_no_access_and_releases_its_region() {
    let (mut end, region) = bindable();
    let key = bound_window(&mut end, region, READ_WRITE);
    assert_eq!(end.device.resource_counts().windows, 1);
    assert_eq!(end.device.destroy_window(key), Ok(()));
    assert_eq!(end.device.destroy_window(key), Err(WindowError::UnknownWindow));
    assert_eq!(end.device.resource_counts().windows, 0);
    assert!(end.device.deregister(region).is_ok());
    assert_denied(&mut end, 0, write(key, ADDR + WINDOW_START, 4), b"evil");
}

#[test]
fn window_is_unbound_with_its_queue_pair() {
    for destroy in [false, true] {
        let (mut end, region) = bindable();
        let key = bound_window(&mut end, region, READ_WRITE);
        if destroy {
            end.device.destroy_qp(end.qpn);
        } else {
            end.modify(Transition::Reset);
            end.connect(Qpn::truncate(0x77), &Options::default());
            assert_denied(&mut end, 0, write(key, ADDR + WINDOW_START, 4), b"evil");
        }
        assert!(end.device.deregister(region).is_ok());
        end.device.destroy_window(key).unwrap();
    }
}

#[test]
fn window_that_lost_its_queue_pair_can_be_bound_on_another() {
    let (mut end, region) = bindable();
    let key = bound_window(&mut end, region, READ_WRITE);
    let other = another_qp(&mut end);
    end.device.destroy_qp(end.qpn);
    end.qpn = other;
    assert_eq!(try_bind(&mut end, binding(next(key), region, READ_WRITE)), Status::Success);
    assert_eq!(end.exchange(0, write(next(key), ADDR + WINDOW_START, 4), b"good"), [(ack(1), 0)]);
}

#[test]
fn window_is_looked_up_for_each_packet() {
    let (mut end, region) = bindable();
    let key = bound_window(&mut end, region, READ_WRITE);
    let reth = Reth { va: ADDR + WINDOW_START, rkey: key, length: 2048 };
    end.receive(0, Rc::Write(Write::First(reth)), &pattern(1024, 1));
    end.post(1, SendOperation::LocalInvalidate(key), 0, 0);
    end.transmits();
    let before = end.memory.bytes(end.storage).to_vec();
    assert_eq!(
        end.exchange(1, Rc::Write(Write::Last(None)), &pattern(1024, 2)),
        [(nak(NakCode::RemoteAccess, 0), 1)]
    );
    assert!(end.memory.bytes(end.storage) == before);
}

#[test]
fn read_response_ends_when_its_window_is_destroyed() {
    let (mut end, region) = bindable();
    let key = bound_window(&mut end, region, READ_WRITE);
    end.receive(0, Rc::ReadRequest(Reth { va: ADDR + WINDOW_START, rkey: key, length: 2048 }), &[]);
    assert!(end.device.poll_transmit(end.now).is_some());
    end.device.destroy_window(key).unwrap();
    assert_eq!(end.sent(), [(nak(NakCode::RemoteAccess, 1), 1)]);
}

#[test]
fn zero_based_window_has_addresses_from_zero() {
    let (mut end, region) = bindable();
    let key = bound_window(&mut end, region, READ_WRITE | Access::ZERO_BASED);
    assert_eq!(end.exchange(0, write(key, 10, 4), b"here"), [(ack(1), 0)]);
    assert_eq!(end.bytes(WINDOW_START as usize + 10, 4), b"here");
    assert_denied(&mut end, 1, write(key, WINDOW_LEN - 3, 4), b"evil");
}

#[test]
fn binding_waits_for_earlier_requests() {
    let (mut end, region) = bindable();
    let key = next(window(&mut end));
    end.post(1, SendOperation::Send, 0, 8);
    let bind = SendOperation::BindWindow(binding(key, region, READ_WRITE));
    end.try_post(2, bind, SendFlags::SIGNALED, &[]).unwrap();
    assert_eq!(end.transmits().len(), 1);
    assert_eq!(end.statuses(), []);
    end.receive_ack(0);
    end.transmits();
    assert_eq!(end.statuses(), [(1, Status::Success), (2, Status::Success)]);
}

#[test]
fn requests_after_a_binding_wait_for_it() {
    let (mut end, region) = bindable();
    let key = next(window(&mut end));
    let bind = SendOperation::BindWindow(binding(key, region, READ_WRITE));
    end.try_post(1, bind, SendFlags::empty(), &[]).unwrap();
    end.post(2, SendOperation::Send, 0, 8);
    assert_eq!(end.transmits().len(), 1, "the request with the key is sent after the binding");
    assert_eq!(end.exchange(0, write(key, ADDR + WINDOW_START, 4), b"good"), [(ack(1), 0)]);
}

#[test]
fn binding_has_no_segments_and_is_not_supported_by_datagrams() {
    let (mut end, region) = bindable();
    let bind = SendOperation::BindWindow(binding(5, region, READ_WRITE));
    let segments = [end.segment(0, 8)];
    assert_eq!(end.try_post(1, bind, SendFlags::empty(), &segments), Err(PostError::TooManySegments));
    let mut end = solo_with(&Options { transport: Transport::Ud, ..Options::default() });
    assert_eq!(end.try_post(1, bind, SendFlags::empty(), &[]), Err(PostError::Unsupported));
}

#[test]
fn unreliable_connection_binds_and_invalidates() {
    let mut end = solo_with(&Options { transport: Transport::Uc, ..Options::default() });
    let region = end.register(BINDABLE);
    let key = bound_window(&mut end, region, READ_WRITE);
    let only = |key| Uc::Write(Write::Only(Reth { va: ADDR + WINDOW_START, rkey: key, length: 4 }, None));
    end.receive_uc(0, only(key), b"good");
    assert_eq!(end.bytes(WINDOW_START as usize, 4), b"good");
    end.post(1, SendOperation::LocalInvalidate(key), 0, 0);
    end.transmits();
    assert_eq!(end.statuses(), [(1, Status::Success)]);
    end.receive_uc(1, only(key), b"evil");
    assert_eq!(end.bytes(WINDOW_START as usize, 4), b"good");
    assert_eq!(end.device.statistics().messages_dropped, 1);
}

#[test]
fn failed_binding_on_an_unreliable_connection_fails_only_its_send_queue() {
    let mut end = solo_with(&Options { transport: Transport::Uc, ..Options::default() });
    end.post_recv(5, 0, 64);
    let key = next(window(&mut end));
    assert_eq!(try_bind(&mut end, binding(key, 1, READ_WRITE)), Status::WindowBind);
    assert_eq!(end.state(), QpState::SendQueueError);
    end.receive_uc(0, Uc::Send(Send::Only(None)), b"abcd");
    assert_eq!(end.statuses(), [(5, Status::Success)]);
}

#[test]
fn window_key_is_not_a_local_key() {
    let (mut end, region) = bindable();
    let key = bound_window(&mut end, region, READ_WRITE);
    let segment = Segment { addr: ADDR + WINDOW_START, length: 8, lkey: key };
    end.try_post(1, SendOperation::Send, SendFlags::empty(), &[segment]).unwrap();
    end.transmits();
    assert_eq!(end.statuses(), [(1, Status::LocalProtection)]);
}

#[test]
fn regions_and_windows_never_share_a_key() {
    let mut end = solo();
    let first = end.device.create_window(end.pd, || 0x1234_5678).unwrap();
    assert_eq!(first, 0x1234_5678);
    let mut numbers = [0x1234_56ff, 0x1234_5600, 0x9999_0001].into_iter();
    let registration = Registration {
        addr: 0,
        length: 8,
        access: Access::empty(),
        storage: StorageId(0),
        remote_invalidate: RemoteInvalidate::Denied,
    };
    let region = end.device.register(end.pd, registration, || numbers.next().unwrap()).unwrap();
    assert_eq!(region, 0x9999_0001);
    let mut numbers = [0x9999_0077, 0x1234_5601, 0x77, 0x8888_0000].into_iter();
    let second = end.device.create_window(end.pd, || numbers.next().unwrap()).unwrap();
    assert_eq!(second, 0x8888_0000, "no key of the window is a region's key, another window's key, or 0");
}

#[test]
fn windows_belong_to_their_domain() {
    let mut end = solo();
    let domain = end.device.create_domain();
    let random = end.rng();
    let key = end.device.create_window(domain, random).unwrap();
    assert!(end.device.destroy_domain(domain).is_err());
    end.device.destroy_window(key).unwrap();
    assert!(end.device.destroy_domain(domain).is_ok());
    assert_eq!(end.device.create_window(domain, || 5), Err(WindowError::UnknownDomain));
}
