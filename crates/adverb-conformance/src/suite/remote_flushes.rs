//! FLUSH: earlier writes become globally visible or persistent (Annex A19.4).

use adverb::memory::{MemoryRegion, RemoteMemory};
use adverb::verbs::Error;
use adverb::verbs::{
    Access, CompletedOperation, FlushPlacement, SendRequest, Status,
    Transport::{Rc, Uc},
};
use anyhow::{Context, Result, ensure};

use crate::Need;
use crate::fixture::{Fixture, Pair, READ_WRITE, check, pattern, read};
use crate::registry::tests;

tests! { "remote flushes";
    a_flush_is_refused_with_a_hint_unless_the_device_has_it,
    a_region_to_flush_is_refused_with_a_hint_unless_the_device_has_flush,
    [Need::Flush] a_flush_completes_after_earlier_writes,
    [Need::Flush] a_flush_of_a_whole_region_completes,
    [Need::Flush] a_flush_changes_no_bytes,
    [Need::Flush] flushes_complete_in_order_with_other_requests,
    [Need::Flush] a_flush_without_a_placement_is_refused,
    [Need::Flush] a_flush_of_more_than_two_gibibytes_is_refused,
    [Need::Flush] an_unreliable_connection_refuses_flushes,
    [Need::Flush] a_flush_needs_the_regions_right,
    [Need::Flush] a_flush_needs_the_queue_pairs_right,
    [Need::Flush] a_flush_beyond_the_end_is_refused_by_the_peer,
    [Need::Flush] a_flush_with_a_wrong_key_is_refused_by_the_peer,
    [Need::Flush] a_flush_of_a_deregistered_region_is_refused_by_the_peer,
}

const GLOBAL: FlushPlacement = FlushPlacement::GLOBAL;

/// The access rights of memory that a peer may write, read and flush.
const FLUSHABLE: Access = READ_WRITE.union(Access::FLUSH_GLOBAL);

fn a_flush_is_refused_with_a_hint_unless_the_device_has_it(fixture: &Fixture) -> Result<()> {
    let flush = fixture.device.attributes().flush;
    for placement in [GLOBAL, FlushPlacement::PERSISTENT, GLOBAL | FlushPlacement::PERSISTENT] {
        if flush.supports(placement) {
            // A successful FLUSH to persistence needs persistent memory.
            continue;
        }
        let pair = fixture.rc()?;
        let region = pair.right.region(64, READ_WRITE)?;
        for request in [
            SendRequest::flush(region.remote(), placement),
            SendRequest::flush_region(region.remote().rkey, placement),
        ] {
            expect_unsupported(&pair.left.expect_rejected(request)?)
                .with_context(|| format!("{placement:?}"))?;
        }
        pair.ping()?;
    }
    Ok(())
}

fn expect_unsupported(error: &Error) -> Result<()> {
    ensure!(matches!(error, Error::Unsupported { .. }), "refused with another error: {error}");
    ensure!(error.hint().is_some(), "the error has no hint: {error}");
    Ok(())
}

fn a_region_to_flush_is_refused_with_a_hint_unless_the_device_has_flush(fixture: &Fixture) -> Result<()> {
    let flush = fixture.device.attributes().flush;
    let domain = fixture.device.create_protection_domain()?;
    for (right, is_supported) in
        [(Access::FLUSH_GLOBAL, flush.global), (Access::FLUSH_PERSISTENT, flush.persistent)]
    {
        if !is_supported {
            let error = domain.allocate_region(64, READ_WRITE | right).err();
            expect_unsupported(&error.with_context(|| format!("a region with {right:?} was registered"))?)?;
        }
    }
    if flush.global {
        domain.allocate_region(64, FLUSHABLE)?;
    }
    Ok(())
}

fn a_flush_completes_after_earlier_writes(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let size = 3 * fixture.mtu() + 5;
    let region = pair.right.region(size, FLUSHABLE)?;
    for seed in 0..20 {
        let write = SendRequest::write(pair.left.filled(size, seed)?, region.remote().at(0)).unsignaled();
        let flush = SendRequest::flush(region.remote(), GLOBAL);
        pair.left.qp.post_sends([write, flush]).map_err(Error::from)?;
        let mut operations = Vec::new();
        for completion in pair.left.take(2)? {
            operations.push(completion.result()?.operation);
        }
        let expected = [CompletedOperation::Write, CompletedOperation::Flush];
        ensure!(operations == expected, "these completed: {operations:?}");
        check(&read(&region, 0, size)?, seed)?;
    }
    Ok(())
}

fn a_flush_of_a_whole_region_completes(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let region = pair.right.region(10_000, FLUSHABLE)?;
    pair.left.execute(SendRequest::write(pair.left.filled(10_000, 3)?, region.remote().at(0)))?;
    pair.left.execute(SendRequest::flush_region(region.remote().rkey, GLOBAL))?;
    check(&read(&region, 0, 10_000)?, 3)?;
    pair.ping()
}

fn a_flush_changes_no_bytes(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let region = pair.right.region(4096, FLUSHABLE)?;
    region.write(0, &pattern(4096, 1))?;
    let remote = region.remote();
    for (offset, len) in [(0, 4096), (1, 1), (100, 1000), (4095, 1)] {
        let range = RemoteMemory { addr: remote.addr + offset, len, ..remote };
        pair.left.execute(SendRequest::flush(range, GLOBAL)).with_context(|| format!("{len} at {offset}"))?;
    }
    check(&read(&region, 0, 4096)?, 1)
}

fn flushes_complete_in_order_with_other_requests(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let region = pair.right.region(4096, FLUSHABLE)?;
    for round in 0..8 {
        let mut ids = Vec::new();
        for n in 0..16 {
            let remote = region.remote().at(64 * n);
            let request = match n % 4 {
                0 => SendRequest::write(pair.left.filled(64, n)?, remote),
                1 => SendRequest::flush(region.remote(), GLOBAL),
                2 => SendRequest::read(pair.left.buffer(64)?, remote),
                _ => SendRequest::flush_region(region.remote().rkey, GLOBAL),
            };
            ids.push(pair.left.post(request)?);
        }
        let completions = pair.left.take(16)?;
        for completion in &completions {
            completion.result()?;
        }
        let completed: Vec<_> = completions.iter().map(adverb::verbs::Completion::id).collect();
        ensure!(completed == ids, "round {round}: completed in another order: {completed:?}, not {ids:?}");
    }
    Ok(())
}

fn a_flush_without_a_placement_is_refused(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let region = pair.right.region(64, FLUSHABLE)?;
    expect_invalid(
        &pair.left.expect_rejected(SendRequest::flush(region.remote(), FlushPlacement::empty()))?,
    )?;
    pair.ping()
}

fn a_flush_of_more_than_two_gibibytes_is_refused(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let region = pair.right.region(64, FLUSHABLE)?;
    for len in [(1 << 31) + 1, 1 << 32, u64::MAX] {
        let range = RemoteMemory { len, ..region.remote() };
        expect_invalid(&pair.left.expect_rejected(SendRequest::flush(range, GLOBAL))?)?;
    }
    pair.ping()
}

fn expect_invalid(error: &Error) -> Result<()> {
    ensure!(matches!(error, Error::InvalidRequest { .. }), "refused with another error: {error}");
    Ok(())
}

fn an_unreliable_connection_refuses_flushes(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Uc).connect()?;
    let region = pair.right.region(64, FLUSHABLE)?;
    expect_invalid(&pair.left.expect_rejected(SendRequest::flush(region.remote(), GLOBAL))?)
}

/// Returns both kinds of FLUSH of a region.
fn both(region: &MemoryRegion) -> [SendRequest; 2] {
    [SendRequest::flush(region.remote(), GLOBAL), SendRequest::flush_region(region.remote().rkey, GLOBAL)]
}

/// Annex A19.4: the region needs the access right of the placement type.
fn a_flush_needs_the_regions_right(fixture: &Fixture) -> Result<()> {
    for which in 0..2 {
        let pair = fixture.rc()?;
        let region = pair.right.region(64, READ_WRITE)?;
        let [range, whole] = both(&region);
        pair.left.expect_failure(if which == 0 { range } else { whole }, Status::RemoteAccess)?;
    }
    Ok(())
}

fn a_flush_needs_the_queue_pairs_right(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Rc).right_access(Access::REMOTE_WRITE | Access::REMOTE_READ).connect()?;
    let region = pair.right.region(64, FLUSHABLE)?;
    pair.left.expect_failure(SendRequest::flush(region.remote(), GLOBAL), Status::RemoteInvalidRequest)
}

/// Checks that the peer rejects a FLUSH of a range.
fn check_rejected(pair: &Pair, range: RemoteMemory) -> Result<()> {
    pair.left.expect_failure(SendRequest::flush(range, GLOBAL), Status::RemoteAccess)
}

fn a_flush_beyond_the_end_is_refused_by_the_peer(fixture: &Fixture) -> Result<()> {
    for (offset, len) in [(64, 1), (0, 65), (63, 2), (0u64.wrapping_sub(1), 1)] {
        let pair = fixture.rc()?;
        let region = pair.right.region(64, FLUSHABLE)?;
        let remote = region.remote();
        check_rejected(&pair, RemoteMemory { addr: remote.addr.wrapping_add(offset), len, ..remote })
            .with_context(|| format!("{len} at {offset:#x}"))?;
    }
    Ok(())
}

fn a_flush_with_a_wrong_key_is_refused_by_the_peer(fixture: &Fixture) -> Result<()> {
    for bits in [0x1, 0x8000_0000] {
        let pair = fixture.rc()?;
        let region = pair.right.region(64, FLUSHABLE)?;
        let remote = region.remote();
        check_rejected(&pair, RemoteMemory { rkey: remote.rkey ^ bits, ..remote })?;
        let pair = fixture.rc()?;
        pair.left
            .expect_failure(SendRequest::flush_region(remote.rkey ^ bits, GLOBAL), Status::RemoteAccess)?;
    }
    Ok(())
}

fn a_flush_of_a_deregistered_region_is_refused_by_the_peer(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let region = pair.right.region(64, FLUSHABLE)?;
    let remote = region.remote();
    pair.left.execute(SendRequest::flush(remote, GLOBAL))?;
    drop(region);
    check_rejected(&pair, remote)
}
