//! Memory protection: accesses that a device must reject.

use adverb::memory::MemoryRegion;
use adverb::verbs::{Access, QpState, RemoteAddress, SendRequest, Status, Transport::Rc};
use anyhow::{Context, Result, ensure};

use crate::Need;
use crate::fixture::{ALL, Fixture, Pair, READ_WRITE, Side, check_equal, expect, pattern, read, status};
use crate::registry::tests;

tests! { "protection";
    a_write_needs_the_regions_right,
    a_read_needs_the_regions_right,
    [Need::Atomics] an_atomic_needs_the_regions_right,
    a_write_needs_the_queue_pairs_right,
    a_read_needs_the_queue_pairs_right,
    [Need::Atomics] an_atomic_needs_the_queue_pairs_right,
    a_write_beyond_the_end_is_refused_by_the_peer,
    a_write_before_the_beginning_is_refused_by_the_peer,
    a_write_of_several_packets_that_ends_outside_is_refused_by_the_peer,
    a_write_with_immediate_data_beyond_the_end_is_refused_by_the_peer,
    a_read_beyond_the_end_is_refused_by_the_peer,
    [Need::Atomics] an_atomic_beyond_the_end_is_refused_by_the_peer,
    [Need::Atomics] an_unaligned_atomic_is_refused,
    a_wrong_key_is_refused_by_the_peer,
    the_key_of_a_deregistered_region_is_refused_by_the_peer,
    the_key_of_another_domain_is_refused_by_the_peer,
    a_write_of_no_bytes_needs_no_key,
    a_read_of_no_bytes_needs_no_key,
    a_message_longer_than_its_receive_fails_both_ends,
    a_message_from_memory_of_another_domain_is_not_posted,
    a_read_into_memory_of_another_domain_is_not_posted,
    a_receive_into_memory_of_another_domain_is_not_posted,
    after_a_refusal_both_ends_have_failed,
}

/// Checks that the left side's request is rejected, and that the right side's bytes don't change.
fn check_rejected(pair: &Pair, region: &MemoryRegion, request: SendRequest, status: Status) -> Result<()> {
    let before = read(region, 0, region.len())?;
    pair.left.expect_failure(request, status)?;
    check_equal(&read(region, 0, region.len())?, &before).context("the peer's memory")
}

fn write(side: &Side, len: usize, remote: RemoteAddress) -> Result<SendRequest> {
    Ok(SendRequest::write(side.filled(len, 9)?, remote))
}

fn a_write_needs_the_regions_right(fixture: &Fixture) -> Result<()> {
    for access in [Access::LOCAL_WRITE, Access::LOCAL_WRITE | Access::REMOTE_READ] {
        let pair = fixture.rc()?;
        let region = pair.right.region(64, access)?;
        check_rejected(&pair, &region, write(&pair.left, 64, region.remote().at(0))?, Status::RemoteAccess)?;
    }
    Ok(())
}

fn a_read_needs_the_regions_right(fixture: &Fixture) -> Result<()> {
    for access in [Access::LOCAL_WRITE, Access::LOCAL_WRITE | Access::REMOTE_WRITE] {
        let pair = fixture.rc()?;
        let region = pair.right.region(64, access)?;
        let request = SendRequest::read(pair.left.buffer(64)?, region.remote().at(0));
        check_rejected(&pair, &region, request, Status::RemoteAccess)?;
    }
    Ok(())
}

fn an_atomic_needs_the_regions_right(fixture: &Fixture) -> Result<()> {
    for swap in [false, true] {
        let pair = fixture.rc()?;
        let region = pair.right.region(64, READ_WRITE)?;
        check_rejected(
            &pair,
            &region,
            atomic(&pair.left, region.remote().at(0), swap)?,
            Status::RemoteAccess,
        )?;
    }
    Ok(())
}

fn atomic(side: &Side, remote: RemoteAddress, swap: bool) -> Result<SendRequest> {
    let original = side.buffer(8)?;
    Ok(match swap {
        true => SendRequest::compare_swap(original, remote, 0, 1),
        false => SendRequest::fetch_add(original, remote, 1),
    })
}

/// Vol. 1, 9.7.4.1.3: an operation that the queue pair doesn't permit is an invalid request.
fn a_write_needs_the_queue_pairs_right(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Rc).right_access(Access::REMOTE_READ).connect()?;
    let region = pair.right.region(64, READ_WRITE)?;
    check_rejected(
        &pair,
        &region,
        write(&pair.left, 64, region.remote().at(0))?,
        Status::RemoteInvalidRequest,
    )
}

fn a_read_needs_the_queue_pairs_right(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Rc).right_access(Access::REMOTE_WRITE).connect()?;
    let region = pair.right.region(64, READ_WRITE)?;
    let request = SendRequest::read(pair.left.buffer(64)?, region.remote().at(0));
    check_rejected(&pair, &region, request, Status::RemoteInvalidRequest)
}

fn an_atomic_needs_the_queue_pairs_right(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Rc).right_access(Access::REMOTE_WRITE | Access::REMOTE_READ).connect()?;
    let region = pair.right.region(64, ALL)?;
    let request = atomic(&pair.left, region.remote().at(0), false)?;
    check_rejected(&pair, &region, request, Status::RemoteInvalidRequest)
}

fn a_write_beyond_the_end_is_refused_by_the_peer(fixture: &Fixture) -> Result<()> {
    // The ranges start directly after the end, cross it, or wrap the address.
    for (offset, len) in [(64, 1), (0, 65), (63, 2), (1 << 40, 8), (u64::MAX - 3, 8)] {
        let pair = fixture.rc()?;
        let region = pair.right.region(64, READ_WRITE)?;
        let request = write(&pair.left, len, region.remote().at(offset))?;
        check_rejected(&pair, &region, request, Status::RemoteAccess)
            .with_context(|| format!("{len} at {offset}"))?;
    }
    Ok(())
}

fn a_write_before_the_beginning_is_refused_by_the_peer(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let region = pair.right.region(64, READ_WRITE)?;
    let request = write(&pair.left, 8, region.remote().at(0_u64.wrapping_sub(1)))?;
    check_rejected(&pair, &region, request, Status::RemoteAccess)
}

/// The first packet contains the length of the whole message, so no byte may be written.
fn a_write_of_several_packets_that_ends_outside_is_refused_by_the_peer(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let size = 3 * fixture.mtu();
    let region = pair.right.region(size, READ_WRITE)?;
    check_rejected(&pair, &region, write(&pair.left, size, region.remote().at(1))?, Status::RemoteAccess)
}

fn a_write_with_immediate_data_beyond_the_end_is_refused_by_the_peer(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let region = pair.right.region(64, READ_WRITE)?;
    let receiving = pair.right.post_receive(64)?;
    let request = SendRequest::write_with_imm(pair.left.filled(65, 1)?, region.remote().at(0), 7);
    check_rejected(&pair, &region, request, Status::RemoteAccess)?;
    // A device may or may not have consumed the receive for the WRITE (vol. 1, 11.6.2).
    let status = status(&pair.right.wait(receiving)?);
    let is_valid = matches!(status, Status::LocalAccess | Status::Flushed);
    ensure!(is_valid, "the peer's receive: {status:?}, neither LocalAccess nor Flushed");
    Ok(())
}

fn a_read_beyond_the_end_is_refused_by_the_peer(fixture: &Fixture) -> Result<()> {
    for (offset, len) in [(64, 1), (0, 65), (63, 2), (u64::MAX - 3, 8)] {
        let pair = fixture.rc()?;
        let region = pair.right.region(64, READ_WRITE)?;
        let request = SendRequest::read(pair.left.buffer(len)?, region.remote().at(offset));
        check_rejected(&pair, &region, request, Status::RemoteAccess)
            .with_context(|| format!("{len} at {offset}"))?;
    }
    Ok(())
}

fn an_atomic_beyond_the_end_is_refused_by_the_peer(fixture: &Fixture) -> Result<()> {
    for offset in [64, 128] {
        let pair = fixture.rc()?;
        let region = pair.right.region(64, ALL)?;
        let request = atomic(&pair.left, region.remote().at(offset), false)?;
        check_rejected(&pair, &region, request, Status::RemoteAccess)?;
    }
    Ok(())
}

/// Vol. 1, 9.4.5 and 9.7.5.2.2: the address of an atomic is a multiple of eight, and any other address is an invalid
/// request. A driver may detect it before posting.
fn an_unaligned_atomic_is_refused(fixture: &Fixture) -> Result<()> {
    for offset in [1, 4] {
        let pair = fixture.rc()?;
        let region = pair.right.region(64, ALL)?;
        let request = atomic(&pair.left, region.remote().at(offset), false)?;
        if let Ok(id) = pair.left.qp.post_send(request) {
            expect("the request", &pair.left.wait(id)?, Status::RemoteInvalidRequest)?;
        }
        check_equal(&read(&region, 0, 64)?, &[0; 64])?;
    }
    Ok(())
}

fn a_wrong_key_is_refused_by_the_peer(fixture: &Fixture) -> Result<()> {
    for bits in [0x1, 0x80, 0x100, 0x8000_0000] {
        let pair = fixture.rc()?;
        let region = pair.right.region(64, READ_WRITE)?;
        let mut remote = region.remote().at(0);
        remote.rkey ^= bits;
        check_rejected(&pair, &region, write(&pair.left, 64, remote)?, Status::RemoteAccess)?;
    }
    Ok(())
}

fn the_key_of_a_deregistered_region_is_refused_by_the_peer(fixture: &Fixture) -> Result<()> {
    for reads in [false, true] {
        let pair = fixture.rc()?;
        let region = pair.right.region(64, READ_WRITE)?;
        let remote = region.remote().at(0);
        pair.left.execute(write(&pair.left, 64, remote)?)?;
        drop(region);
        let request = if reads {
            SendRequest::read(pair.left.buffer(64)?, remote)
        } else {
            write(&pair.left, 64, remote)?
        };
        pair.left.expect_failure(request, Status::RemoteAccess)?;
    }
    Ok(())
}

fn the_key_of_another_domain_is_refused_by_the_peer(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let region = fixture.device.create_protection_domain()?.allocate_region(64, READ_WRITE)?;
    check_rejected(&pair, &region, write(&pair.left, 64, region.remote().at(0))?, Status::RemoteAccess)?;
    let pair = fixture.rc()?;
    let request = SendRequest::read(pair.left.buffer(64)?, region.remote().at(0));
    check_rejected(&pair, &region, request, Status::RemoteAccess)
}

/// Vol. 1, 9.7.4.1.5: without bytes to access, the key and the address are not checked.
fn a_write_of_no_bytes_needs_no_key(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    pair.left.execute(SendRequest::write((), RemoteAddress { addr: 0, rkey: 0 }))?;
    pair.ping()
}

fn a_read_of_no_bytes_needs_no_key(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    pair.left.execute(SendRequest::read((), RemoteAddress { addr: 0, rkey: 0 }))?;
    pair.ping()
}

/// Vol. 1, 9.7.4.1.2 and 11.6.2: a local length error at the receiver, an invalid request at the sender.
fn a_message_longer_than_its_receive_fails_both_ends(fixture: &Fixture) -> Result<()> {
    for size in [101, 3 * fixture.mtu()] {
        let pair = fixture.rc()?;
        let receiving = pair.right.post_receive(100)?;
        let sent = pair.left.run(SendRequest::send(pair.left.filled(size, 1)?))?;
        expect("the sender", &sent, Status::RemoteInvalidRequest)?;
        expect("the receiver", &pair.right.wait(receiving)?, Status::LocalLength)?;
    }
    Ok(())
}

fn a_message_from_memory_of_another_domain_is_not_posted(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let foreign = fixture.device.create_protection_domain()?.allocate_buffer(100)?;
    expect_foreign_domain(&pair.left.expect_rejected(SendRequest::send(foreign))?)?;
    pair.ping()
}

fn a_read_into_memory_of_another_domain_is_not_posted(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let region = pair.right.region(100, READ_WRITE)?;
    region.write(0, &pattern(100, 1))?;
    let foreign = fixture.device.create_protection_domain()?.allocate_region(100, READ_WRITE)?;
    let request = SendRequest::read(foreign.slice(0..100)?, region.remote().at(0));
    expect_foreign_domain(&pair.left.expect_rejected(request)?)?;
    check_equal(&read(&foreign, 0, 100)?, &[0; 100])?;
    pair.ping()
}

fn a_receive_into_memory_of_another_domain_is_not_posted(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let foreign = fixture.device.create_protection_domain()?.allocate_buffer(100)?;
    expect_foreign_domain(&pair.right.expect_recv_rejected(foreign)?)?;
    pair.ping()
}

fn expect_foreign_domain(error: &adverb::verbs::Error) -> Result<()> {
    ensure!(
        matches!(error, adverb::verbs::Error::ForeignDomain { .. }),
        "refused with another error: {error}"
    );
    Ok(())
}

fn after_a_refusal_both_ends_have_failed(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let region = pair.right.region(64, Access::LOCAL_WRITE)?;
    pair.left.expect_failure(write(&pair.left, 64, region.remote().at(0))?, Status::RemoteAccess)?;
    pair.left.expect_state(QpState::Error)?;
    pair.right.expect_state(QpState::Error)
}
