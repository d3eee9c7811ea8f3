//! Memory windows: access that is granted to a peer and revoked.

use std::sync::atomic::Ordering;

use adverb::memory::{MemoryRegion, RemoteMemory};
use adverb::verbs::{Access, CompletedOperation, MemoryWindow, SendRequest, Status, Transport::Rc};
use anyhow::{Context, Result, bail, ensure};

use crate::Need;
use crate::fixture::{Fixture, Side, check, check_equal, expect, pattern, read};
use crate::registry::tests;

tests! { "windows";
    [Need::MemoryWindows] a_peer_writes_and_reads_through_a_window,
    [Need::MemoryWindows, Need::Atomics] a_peer_does_atomics_through_a_window,
    [Need::MemoryWindows] a_write_needs_the_windows_right,
    [Need::MemoryWindows] a_read_needs_the_windows_right,
    [Need::MemoryWindows] a_window_shows_no_more_than_its_range,
    [Need::MemoryWindows] a_window_grants_access_that_its_region_does_not,
    [Need::MemoryWindows] a_window_is_for_one_connection,
    [Need::MemoryWindows] a_window_that_was_invalidated_here_is_refused,
    [Need::MemoryWindows] a_window_that_the_peer_invalidated_is_refused,
    [Need::MemoryWindows, Need::SharedReceiveQueues] a_message_to_a_shared_receive_invalidates_too,
    [Need::MemoryWindows] a_window_that_was_invalidated_is_not_invalidated_again,
    [Need::MemoryWindows] every_binding_has_its_own_key,
    [Need::MemoryWindows] a_region_stays_while_a_window_shows_it,
    [Need::MemoryWindows] a_dropped_window_is_refused,
    [Need::MemoryWindows] a_window_ends_with_its_queue_pair,
    [Need::MemoryWindows] a_reset_queue_pair_has_no_windows,
}

const EXPOSED: std::ops::Range<usize> = 1024..3072;
const READ_WRITE: Access = Access::REMOTE_WRITE.union(Access::REMOTE_READ);

/// Registers memory without rights for a peer.
fn region(side: &Side) -> Result<MemoryRegion> {
    side.region(4096, Access::LOCAL_WRITE | Access::WINDOW_BIND)
}

fn bind(side: &Side, window: MemoryWindow, region: &MemoryRegion, access: Access) -> Result<MemoryWindow> {
    let completion = side.completed(SendRequest::bind(window, region.slice(EXPOSED)?, access))?;
    let operation = completion.result()?.operation;
    ensure!(operation == CompletedOperation::BindWindow, "{operation:?} completed");
    completion.into_window().context("the completion has no window")
}

/// Binds a window, and returns it with its address and key for a peer.
fn bound(side: &Side, region: &MemoryRegion, access: Access) -> Result<(MemoryWindow, RemoteMemory)> {
    let window = bind(side, side.domain.create_memory_window()?, region, access)?;
    let remote = remote(&window)?;
    Ok((window, remote))
}

fn remote(window: &MemoryWindow) -> Result<RemoteMemory> {
    window.remote().context("the window isn't bound")
}

fn invalidate(side: &Side, window: MemoryWindow) -> Result<MemoryWindow> {
    let completion = side.completed(SendRequest::local_invalidate(window))?;
    let operation = completion.result()?.operation;
    ensure!(operation == CompletedOperation::LocalInvalidate, "{operation:?} completed");
    let window = completion.into_window().context("the completion has no window")?;
    ensure!(window.remote().is_none() && !window.is_bound(), "the window is still bound");
    Ok(window)
}

fn write(side: &Side, remote: RemoteMemory) -> Result<SendRequest> {
    Ok(SendRequest::write(side.filled(64, 3)?, remote.at(0)))
}

fn a_peer_writes_and_reads_through_a_window(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let region = region(&pair.right)?;
    let (_window, remote) = bound(&pair.right, &region, READ_WRITE)?;
    ensure!(remote.len == EXPOSED.len() as u64, "the window has {} bytes", remote.len);
    ensure!(remote.addr == region.remote().addr + EXPOSED.start as u64, "the window has another address");
    for (seed, len) in (0..).zip([1, 100, fixture.mtu().min(EXPOSED.len()), EXPOSED.len()]) {
        pair.left.execute(SendRequest::write(pair.left.filled(len, seed)?, remote.at(0)))?;
        check(&read(&region, EXPOSED.start, len)?, seed)?;
        region.write(EXPOSED.start, &pattern(len, seed + 100))?;
        let completion = pair.left.completed(SendRequest::read(pair.left.buffer(len)?, remote.at(0)))?;
        check(&completion.into_buffer().context("the completion has no buffer")?, seed + 100)?;
    }
    let before = read(&region, 0, EXPOSED.start)?;
    check_equal(&before, &vec![0; EXPOSED.start]).context("the bytes before the window")
}

fn a_peer_does_atomics_through_a_window(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let region = region(&pair.right)?;
    let (_window, remote) = bound(&pair.right, &region, Access::REMOTE_ATOMIC)?;
    let word = region.word(EXPOSED.start)?;
    word.store(40, Ordering::SeqCst);
    pair.left.execute(SendRequest::fetch_add(pair.left.buffer(8)?, remote.at(0), 2))?;
    pair.left.execute(SendRequest::compare_swap(pair.left.buffer(8)?, remote.at(0), 42, 7))?;
    let value = word.load(Ordering::SeqCst);
    ensure!(value == 7, "the word is {value}, not 7");
    Ok(())
}

fn a_write_needs_the_windows_right(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let region = region(&pair.right)?;
    let (_window, remote) = bound(&pair.right, &region, Access::REMOTE_READ)?;
    pair.left.expect_failure(write(&pair.left, remote)?, Status::RemoteAccess)?;
    check_equal(&read(&region, 0, 4096)?, &[0; 4096])
}

fn a_read_needs_the_windows_right(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let region = region(&pair.right)?;
    let (_window, remote) = bound(&pair.right, &region, Access::REMOTE_WRITE)?;
    pair.left.expect_failure(SendRequest::read(pair.left.buffer(64)?, remote.at(0)), Status::RemoteAccess)
}

/// Vol. 1, 10.6.7.2: an access through a window is checked against the window's bounds.
fn a_window_shows_no_more_than_its_range(fixture: &Fixture) -> Result<()> {
    for offset in [EXPOSED.len() as u64 - 63, EXPOSED.len() as u64, 0u64.wrapping_sub(1)] {
        let pair = fixture.rc()?;
        let region = region(&pair.right)?;
        let (_window, remote) = bound(&pair.right, &region, READ_WRITE)?;
        let request = SendRequest::write(pair.left.filled(64, 3)?, remote.at(offset));
        pair.left.expect_failure(request, Status::RemoteAccess)?;
        check_equal(&read(&region, 0, 4096)?, &[0; 4096])?;
    }
    Ok(())
}

fn a_window_grants_access_that_its_region_does_not(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let region = region(&pair.right)?;
    let (_window, remote) = bound(&pair.right, &region, READ_WRITE)?;
    pair.left.execute(write(&pair.left, remote)?)?;
    pair.left.expect_failure(write(&pair.left, region.remote())?, Status::RemoteAccess)
}

fn a_window_is_for_one_connection(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let region = region(&pair.right)?;
    let (_window, remote) = bound(&pair.right, &region, READ_WRITE)?;
    // Both have the same domain, so that only the queue pair differs.
    let builder = fixture.pair(Rc);
    let cq = fixture.device.completion_queue(128).create()?;
    let other = builder.side_of(&pair.right.domain, &cq, None)?;
    let other_peer = builder.side(None)?;
    other.qp.connect(&other_peer.qp.endpoint())?;
    other_peer.qp.connect(&other.qp.endpoint())?;
    other_peer.expect_failure(write(&other_peer, remote)?, Status::RemoteAccess)?;
    pair.left.execute(write(&pair.left, remote)?)
}

fn a_window_that_was_invalidated_here_is_refused(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let region = region(&pair.right)?;
    let (window, remote) = bound(&pair.right, &region, READ_WRITE)?;
    pair.left.execute(write(&pair.left, remote)?)?;
    invalidate(&pair.right, window)?;
    pair.left.expect_failure(write(&pair.left, remote)?, Status::RemoteAccess)
}

fn a_window_that_the_peer_invalidated_is_refused(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let region = region(&pair.right)?;
    let (window, remote) = bound(&pair.right, &region, READ_WRITE)?;
    pair.left.execute(write(&pair.left, remote)?)?;
    let receiving = pair.right.post_receive(64)?;
    pair.left.execute(SendRequest::send_invalidate(pair.left.filled(64, 8)?, remote.rkey))?;
    let completion = pair.right.wait(receiving)?;
    let CompletedOperation::Recv { invalidated, .. } = completion.result()?.operation else {
        bail!("the completion is not that of a receive: {completion}")
    };
    ensure!(invalidated == Some(remote.rkey), "{invalidated:x?} was invalidated, not {:x}", remote.rkey);
    check(&completion.into_message()?, 8)?;
    ensure!(window.remote().is_none() && window.is_usable(), "the window is not marked as invalidated");
    pair.left.expect_failure(write(&pair.left, remote)?, Status::RemoteAccess)
}

fn a_message_to_a_shared_receive_invalidates_too(fixture: &Fixture) -> Result<()> {
    let peer = fixture.pair(Rc).side(None)?;
    let domain = fixture.device.create_protection_domain()?;
    let cq = fixture.device.completion_queue(64).create()?;
    let shared = domain.shared_receive_queue(8).create()?;
    let builder = domain.queue_pair(Rc).completion_queue(&cq).port(fixture.port.number);
    let qp = builder.shared_receive_queue(&shared).depth(8, 8).create()?;
    let owner = Side { qp, cq, domain };
    owner.qp.connect(&peer.qp.endpoint())?;
    peer.qp.connect(&owner.qp.endpoint())?;
    let region = region(&owner)?;
    let (window, remote) = bound(&owner, &region, READ_WRITE)?;
    let receiving = shared.post_recv(owner.buffer(8)?).map_err(adverb::verbs::Error::from)?;
    peer.execute(SendRequest::send_invalidate(peer.buffer(8)?, remote.rkey))?;
    owner.wait(receiving)?.result()?;
    ensure!(!window.is_bound(), "the window is not marked as invalidated");
    peer.expect_failure(write(&peer, remote)?, Status::RemoteAccess)
}

/// This holds for either side's invalidation. The kernel of soft-RoCE crashes at a second invalidation, so it must be
/// prevented.
fn a_window_that_was_invalidated_is_not_invalidated_again(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let region = region(&pair.right)?;
    pair.right.expect_rejected(SendRequest::local_invalidate(pair.right.domain.create_memory_window()?))?;
    let (window, _) = bound(&pair.right, &region, READ_WRITE)?;
    let window = invalidate(&pair.right, window)?;
    pair.right.expect_rejected(SendRequest::local_invalidate(window))?;
    let (window, remote) = bound(&pair.right, &region, READ_WRITE)?;
    let receiving = pair.right.post_receive(8)?;
    pair.left.execute(SendRequest::send_invalidate(pair.left.buffer(8)?, remote.rkey))?;
    pair.right.wait(receiving)?.result()?;
    pair.right.expect_rejected(SendRequest::local_invalidate(window))?;
    pair.ping()
}

fn every_binding_has_its_own_key(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let region = region(&pair.right)?;
    let mut window = pair.right.domain.create_memory_window()?;
    let mut keys = Vec::new();
    for _ in 0..10 {
        window = bind(&pair.right, window, &region, READ_WRITE)?;
        let remote = remote(&window)?;
        ensure!(!keys.contains(&remote.rkey), "the key {:x} was used again", remote.rkey);
        keys.push(remote.rkey);
        pair.left.execute(write(&pair.left, remote)?)?;
        window = invalidate(&pair.right, window)?;
    }
    window = bind(&pair.right, window, &region, READ_WRITE)?;
    let old = RemoteMemory { rkey: keys[9], ..remote(&window)? };
    pair.left.expect_failure(write(&pair.left, old)?, Status::RemoteAccess)
}

fn a_region_stays_while_a_window_shows_it(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let (_window, remote) = bound(&pair.right, &region(&pair.right)?, READ_WRITE)?;
    pair.left.execute(write(&pair.left, remote)?)?;
    let completion = pair.left.completed(SendRequest::read(pair.left.buffer(64)?, remote.at(0)))?;
    check(&completion.into_buffer().context("the completion has no buffer")?, 3)
}

fn a_dropped_window_is_refused(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let region = region(&pair.right)?;
    let (window, remote) = bound(&pair.right, &region, READ_WRITE)?;
    pair.left.execute(write(&pair.left, remote)?)?;
    drop(window);
    pair.left.expect_failure(write(&pair.left, remote)?, Status::RemoteAccess)
}

fn a_window_ends_with_its_queue_pair(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let region = region(&pair.right)?;
    let (window, _) = bound(&pair.right, &region, READ_WRITE)?;
    let Side { qp, cq, domain } = pair.right;
    drop(qp);
    ensure!(window.remote().is_none() && !window.is_usable(), "the window is not marked as invalidated");
    let next = fixture.pair(Rc).side_of(&domain, &cq, None)?;
    let peer = fixture.pair(Rc).side(None)?;
    next.qp.connect(&peer.qp.endpoint())?;
    next.expect_rejected(SendRequest::bind(window, region.slice(EXPOSED)?, READ_WRITE))?;
    Ok(())
}

fn a_reset_queue_pair_has_no_windows(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let region = region(&pair.right)?;
    let (window, remote) = bound(&pair.right, &region, READ_WRITE)?;
    pair.right.qp.reset()?;
    ensure!(!window.is_usable(), "the window is not marked as invalidated");
    let next = fixture.pair(Rc).side(None)?;
    pair.right.qp.connect(&next.qp.endpoint())?;
    next.qp.connect(&pair.right.qp.endpoint())?;
    let completion = next.run(write(&next, remote)?)?;
    expect("the next peer's write", &completion, Status::RemoteAccess)
}
