//! Memory windows, on any device that has them.

mod common;

use adverb::memory::{MemoryRegion, RemoteMemory};
use adverb::verbs::{
    Access, CompletedOperation, Completion, Device, Error, MemoryWindow, QpState, RecvRequest, SendRequest,
    Status,
};

use common::{End, TIMEOUT, assert_logs_no_error, connect, device, pair};

const LEN: usize = 4096;
const BOUND_RANGE: std::ops::Range<usize> = 1024..3072;
const ALL: Access = Access::REMOTE_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

/// Opens a device with memory windows.
fn device_with_windows() -> Option<Device> {
    let device = device()?;
    if !device.attributes().has_memory_windows {
        println!("skipped: {} has no memory windows", device.name());
        return None;
    }
    Some(device)
}

/// Returns memory without remote access of its own.
fn region(end: &End) -> MemoryRegion {
    end.domain.allocate_region(LEN, Access::LOCAL_WRITE | Access::WINDOW_BIND).unwrap()
}

fn bind(end: &End, window: MemoryWindow, region: &MemoryRegion, access: Access) -> MemoryWindow {
    let request = SendRequest::bind(window, region.slice(BOUND_RANGE).unwrap(), access);
    let completion = end.run(request);
    assert_eq!(completion.result().unwrap().operation, CompletedOperation::BindWindow);
    completion.into_window().unwrap()
}

fn bound(end: &End, region: &MemoryRegion, access: Access) -> (MemoryWindow, RemoteMemory) {
    let window = bind(end, end.domain.create_memory_window().unwrap(), region, access);
    let remote = window.remote().unwrap();
    (window, remote)
}

fn invalidate(end: &End, window: MemoryWindow) -> MemoryWindow {
    let completion = end.run(SendRequest::local_invalidate(window));
    assert_eq!(completion.result().unwrap().operation, CompletedOperation::LocalInvalidate);
    completion.into_window().unwrap()
}

fn status(completion: &Completion) -> Status {
    completion.outcome().map_or_else(|failure| failure.status, |_| Status::Success)
}

/// Returns the status of a peer's WRITE.
fn write(peer: &End, remote: RemoteMemory) -> Status {
    status(&peer.run(SendRequest::write(peer.buffer(0xaa, 16), remote.at(0))))
}

/// Returns the error of a request that can't be posted, and its window.
fn post_rejected(end: &End, request: SendRequest) -> (String, MemoryWindow) {
    let mut error = end.queue_pair.post_send(request).unwrap_err();
    let request = error.requests.pop().unwrap();
    (error.error.to_string(), request.into_window().unwrap())
}

#[test]
fn invalid_requests_are_rejected_and_return_the_window() {
    let Some(device) = device_with_windows() else { return };
    let (owner, peer) = pair(&device, 8, false);
    let region = region(&owner);
    let slice = || region.slice(BOUND_RANGE).unwrap();
    let window = owner.domain.create_memory_window().unwrap();
    let check_reason = |(reason, window): (String, MemoryWindow), words: &str| {
        assert!(reason.contains(words), "{reason}");
        window
    };

    let window = check_reason(post_rejected(&owner, SendRequest::local_invalidate(window)), "is not bound");
    let local = Access::LOCAL_WRITE | Access::REMOTE_READ;
    let window = check_reason(
        post_rejected(&owner, SendRequest::bind(window, slice(), local)),
        "must be one or more of",
    );
    let window = check_reason(
        post_rejected(&owner, SendRequest::bind(window, slice(), Access::empty())),
        "must be one or more of",
    );
    let empty = region.slice(0..0).unwrap();
    let window =
        check_reason(post_rejected(&owner, SendRequest::bind(window, empty, ALL)), "at least one byte");
    let without = owner.domain.allocate_region(64, Access::LOCAL_WRITE).unwrap().slice(0..64).unwrap();
    let window = check_reason(post_rejected(&owner, SendRequest::bind(window, without, ALL)), "WINDOW_BIND");
    let unwritable = owner.domain.allocate_region(64, Access::WINDOW_BIND).unwrap().slice(0..64).unwrap();
    let window =
        check_reason(post_rejected(&owner, SendRequest::bind(window, unwritable, ALL)), "LOCAL_WRITE");
    let foreign = peer.domain.allocate_region(64, Access::LOCAL_WRITE | Access::WINDOW_BIND).unwrap();
    let foreign = foreign.slice(0..64).unwrap();
    let window =
        check_reason(post_rejected(&owner, SendRequest::bind(window, foreign, ALL)), "but the memory is in");
    let window = check_reason(
        post_rejected(&peer, SendRequest::bind(window, slice(), ALL)),
        "but the memory window is in",
    );
    let window = check_reason(
        post_rejected(&owner, SendRequest::bind(window, slice(), ALL).inline()),
        "can be inline",
    );
    assert!(window.is_usable() && !window.is_bound());

    let window = bind(&owner, window, &region, ALL);
    let remote = window.remote();
    let window =
        check_reason(post_rejected(&owner, SendRequest::bind(window, slice(), ALL)), "invalidate it first");
    let other = End::with(owner.domain.clone(), device.completion_queue(16).create().unwrap(), 8);
    let third = End::new(&device, 8, false);
    connect(&other, &third);
    let window =
        check_reason(post_rejected(&other, SendRequest::local_invalidate(window)), "another queue pair");
    assert_eq!(window.remote(), remote, "a rejected request changes nothing");

    let window = invalidate(&owner, window);
    let window = check_reason(post_rejected(&owner, SendRequest::local_invalidate(window)), "is not bound");
    // A window can't be sent.
    let payload = SendRequest::local_invalidate(window).into_payload();
    let (reason, window) = post_rejected(&owner, SendRequest::send(payload));
    assert!(reason.contains("can only be bound or invalidated"), "{reason}");
    drop(window);
    assert_eq!(owner.queue_pair.state().unwrap(), QpState::ReadyToSend);
}

#[test]
fn a_window_as_the_payload_of_a_receive_stays_unbound() {
    let Some(device) = device_with_windows() else { return };
    let (owner, peer) = pair(&device, 8, false);
    let region = region(&owner);
    // A bind request that was created but not posted.
    let bind_request = SendRequest::bind(
        owner.domain.create_memory_window().unwrap(),
        region.slice(BOUND_RANGE).unwrap(),
        ALL,
    );
    let receive = owner.queue_pair.post_recv(RecvRequest::new(bind_request.into_payload())).unwrap();
    peer.run(SendRequest::send(())).result().unwrap();
    let window = owner.wait(receive).into_window().unwrap();
    assert!(!window.is_bound());
    let (reason, _) = post_rejected(&owner, SendRequest::local_invalidate(window));
    assert!(reason.contains("is not bound"), "{reason}");
}

#[test]
fn a_batch_binds_and_invalidates_windows() {
    let Some(device) = device_with_windows() else { return };
    let (owner, peer) = pair(&device, 16, false);
    let region = region(&owner);
    let windows = (0..4).map(|_| owner.domain.create_memory_window().unwrap());
    let binds =
        windows.map(|window| SendRequest::bind(window, region.slice(BOUND_RANGE).unwrap(), ALL).unsignaled());
    let ids: Vec<_> = owner.queue_pair.post_sends(binds).unwrap().collect();
    // Unsignaled requests complete with the next signaled one. (It writes no bytes, so it needs no key.)
    let no_memory = RemoteMemory { addr: 0, rkey: 0, len: 0 };
    owner.run(SendRequest::write((), no_memory.at(0))).result().unwrap();
    let windows: Vec<MemoryWindow> =
        ids.into_iter().map(|id| owner.wait(id).into_window().unwrap()).collect();
    let remotes: Vec<RemoteMemory> = windows.iter().map(|window| window.remote().unwrap()).collect();
    for remote in &remotes {
        assert_eq!(write(&peer, *remote), Status::Success);
    }
    let ids = owner.queue_pair.post_sends(windows.into_iter().map(SendRequest::local_invalidate)).unwrap();
    for id in ids {
        assert!(!owner.wait(id).into_window().unwrap().is_bound());
    }
    assert_eq!(write(&peer, remotes[2]), Status::RemoteAccess);
}

#[test]
fn a_rejected_batch_doesnt_change_windows() {
    let Some(device) = device_with_windows() else { return };
    let (owner, peer) = pair(&device, 16, false);
    let region = region(&owner);
    let (bound, remote) = bound(&owner, &region, ALL);
    let unbound = owner.domain.create_memory_window().unwrap();
    let requests = [SendRequest::local_invalidate(bound), SendRequest::local_invalidate(unbound)];
    let mut error = owner.queue_pair.post_sends(requests).unwrap_err();
    let bound = error.requests.remove(0).into_window().unwrap();
    assert_eq!(bound.remote(), Some(remote));
    assert_eq!(write(&peer, remote), Status::Success);
    let again = invalidate(&owner, bound);
    assert!(again.is_usable());
}

#[test]
fn a_region_stays_registered_while_a_window_is_bound_to_it() {
    let Some(device) = device_with_windows() else { return };
    let (owner, peer) = pair(&device, 8, false);
    let region = region(&owner);
    let region_clone = region.clone();
    let (window, remote) = bound(&owner, &region, ALL);
    drop(region);
    let region_clone = region_clone.into_buffer().expect_err("the region may be bound to a window");
    drop(region_clone);
    assert_eq!(write(&peer, remote), Status::Success, "the region stays registered without a handle");
    drop(window);
    assert_eq!(write(&peer, remote), Status::RemoteAccess, "dropping the window revokes its access");
}

#[test]
fn a_region_that_was_bound_to_a_window_cant_become_a_buffer() {
    let Some(device) = device_with_windows() else { return };
    let (owner, _peer) = pair(&device, 8, false);
    let region = region(&owner);
    let (window, _) = bound(&owner, &region, ALL);
    drop(invalidate(&owner, window));
    region.into_buffer().unwrap_err();
}

/// The dropped objects: the region, the window, the queue pair, the completion queue and the domain.
#[test]
fn objects_can_be_dropped_in_any_order() {
    let Some(device) = device_with_windows() else { return };
    for order in permutations(4) {
        let (owner, peer) = pair(&device, 4, false);
        let region = region(&owner);
        let (window, remote) = bound(&owner, &region, ALL);
        assert_eq!(write(&peer, remote), Status::Success);
        let End { queue_pair, completions, domain } = owner;
        let mut objects: Vec<Option<Box<dyn std::any::Any>>> = vec![
            Some(Box::new(region)),
            Some(Box::new(window)),
            Some(Box::new(queue_pair)),
            Some(Box::new((completions, domain))),
        ];
        assert_logs_no_error(|| {
            for index in order {
                drop(objects[index].take());
            }
        });
    }
}

#[test]
fn objects_can_be_dropped_while_windows_are_bound_and_invalidated() {
    let Some(device) = device_with_windows() else { return };
    for rounds in 0..8 {
        let (owner, _peer) = pair(&device, 32, false);
        let region = region(&owner);
        let (window, _) = bound(&owner, &region, ALL);
        for _ in 0..rounds {
            let window = owner.domain.create_memory_window().unwrap();
            let request = SendRequest::bind(window, region.slice(BOUND_RANGE).unwrap(), ALL);
            owner.queue_pair.post_send(request).unwrap();
        }
        owner.queue_pair.post_send(SendRequest::local_invalidate(window)).unwrap();
        assert_logs_no_error(|| {
            drop(region);
            drop(owner);
        });
    }
}

#[test]
fn a_window_of_a_flushed_request_is_unusable() {
    let Some(device) = device_with_windows() else { return };
    let (owner, peer) = pair(&device, 8, false);
    let region = region(&owner);
    let (window, _) = bound(&owner, &region, ALL);
    // The peer is destroyed, so this request fails after a while, and those after it are flushed.
    drop(peer);
    let write = SendRequest::send(owner.buffer(0, 8));
    let failing = owner.queue_pair.post_send(write).unwrap();
    let fence = SendRequest::local_invalidate(window).fence();
    let invalidating = owner.queue_pair.post_send(fence).unwrap();
    owner.queue_pair.drain(TIMEOUT).unwrap();
    assert!(!owner.wait(failing).is_ok());
    let completion = owner.wait(invalidating);
    let is_ok = completion.is_ok();
    let window = completion.into_window().unwrap();
    assert_eq!(window.is_usable(), is_ok, "rxe executes it immediately, others flush it");
    assert!(!window.is_bound());
}

#[test]
fn a_forgotten_window_neither_frees_memory_nor_blocks_the_queue_pair() {
    let Some(device) = device_with_windows() else { return };
    let (owner, peer) = pair(&device, 8, false);
    let region = region(&owner);
    let (window, remote) = bound(&owner, &region, ALL);
    std::mem::forget(window);
    drop(region);
    assert_eq!(write(&peer, remote), Status::Success);
    assert_logs_no_error(|| drop(owner));
}

#[test]
fn windows_are_bound_by_one_thread_and_polled_by_another() {
    let Some(device) = device_with_windows() else { return };
    let (owner, peer) = pair(&device, 16, true);
    let region = region(&owner);
    let (sender, windows) = std::sync::mpsc::channel();
    let handler = move |completion: Completion| {
        completion.result().unwrap();
        sender.send(completion.into_window().unwrap()).unwrap();
    };
    let poller = owner.completions.start_poller(handler).unwrap();
    let post = |request| owner.queue_pair.post_send(request).unwrap();
    for _ in 0..4 {
        let window = owner.domain.create_memory_window().unwrap();
        post(SendRequest::bind(window, region.slice(BOUND_RANGE).unwrap(), ALL));
    }
    for _ in 0..2000 {
        let window = windows.recv_timeout(TIMEOUT).unwrap();
        match window.is_bound() {
            true => post(SendRequest::local_invalidate(window)),
            false => post(SendRequest::bind(window, region.slice(BOUND_RANGE).unwrap(), ALL)),
        };
    }
    let window = windows.recv_timeout(TIMEOUT).unwrap();
    let remote = window.remote();
    if let Some(remote) = remote {
        assert_eq!(write(&peer, remote), Status::Success);
    }
    assert_logs_no_error(move || {
        drop((owner, region, window));
        assert_eq!(poller.stop().unwrap().stats.panic_count, 0);
    });
}

#[test]
fn binding_on_an_unsupported_transport_fails() {
    let Some(device) = device_with_windows() else { return };
    let domain = device.create_protection_domain().unwrap();
    let completions = device.completion_queue(16).create().unwrap();
    let create = || {
        let builder = domain.queue_pair(adverb::verbs::Transport::Uc).completion_queue(&completions);
        builder.depth(2, 2).create().unwrap()
    };
    let (left, right) = (create(), create());
    left.connect(&right.endpoint()).unwrap();
    let region = domain.allocate_region(LEN, Access::LOCAL_WRITE | Access::WINDOW_BIND).unwrap();
    let window = domain.create_memory_window().unwrap();
    let error =
        left.post_send(SendRequest::bind(window, region.slice(BOUND_RANGE).unwrap(), ALL)).unwrap_err();
    assert!(matches!(error.error, Error::InvalidRequest { .. }), "{error}");
}

/// Returns every permutation of the numbers below `count`.
fn permutations(count: usize) -> Vec<Vec<usize>> {
    if count == 0 {
        return vec![Vec::new()];
    }
    let insert = |order: Vec<usize>| {
        (0..count).map(move |at| {
            let mut order = order.clone();
            order.insert(at, count - 1);
            order
        })
    };
    permutations(count - 1).into_iter().flat_map(insert).collect()
}
