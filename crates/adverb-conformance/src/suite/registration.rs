//! Registration with chosen addresses, on-demand paging, and DMA-BUF.

use std::sync::atomic::Ordering;

use adverb::memory::{MemoryRegion, Pages};
use adverb::verbs::{Access, Error, SendRequest, Status, Transport::Rc};
use anyhow::{Context, Result, ensure};

use crate::Need;
use crate::fixture::{ALL, Fixture, Pair, READ_WRITE, check, pattern, read, whole};
use crate::registry::tests;

tests! { "registration";
    a_region_has_the_addresses_that_were_chosen,
    [Need::Atomics] atomics_find_their_word_under_the_chosen_address,
    memory_under_chosen_addresses_is_sent_and_received,
    a_peer_reaches_nothing_beside_the_chosen_addresses,
    regions_may_have_the_same_addresses,
    a_zero_based_region_begins_with_address_zero,
    a_zero_based_region_becomes_a_buffer_that_works,
    [Need::MemoryWindows] a_window_on_chosen_addresses_shows_the_right_bytes,
    an_address_with_another_page_offset_is_refused,
    addresses_beyond_the_last_are_refused,
    a_zero_based_region_can_not_begin_elsewhere,
    memory_under_chosen_addresses_is_not_sent_inline,
    a_region_with_relaxed_ordering_works,
    [Need::OnDemandPaging] memory_on_demand_is_written_and_read,
    unsupported_registrations_are_refused_with_an_explanation,
}

/// An address outside of any process's memory that is a multiple of every page size.
const CHOSEN: u64 = 0x5a_4000_0000;

fn chosen(pair: &Pair, len: usize, iova: u64) -> Result<MemoryRegion> {
    Ok(pair.right.domain.register_at(Pages::new(len)?, iova, ALL)?)
}

/// Checks that the left side can write and read the right side's region.
fn check_writes_and_reads(pair: &Pair, region: &MemoryRegion) -> Result<()> {
    let len = region.len().min(10_000);
    for offset in [0, region.len() - len] {
        let at = region.remote().at(offset as u64);
        pair.left.execute(SendRequest::write(pair.left.filled(len, 5)?, at))?;
        check(&read(region, offset, len)?, 5)?;
        region.write(offset, &pattern(len, 6))?;
        let completion = pair.left.completed(SendRequest::read(pair.left.buffer(len)?, at))?;
        check(&completion.into_buffer().context("the completion has no buffer")?, 6)?;
    }
    Ok(())
}

fn a_region_has_the_addresses_that_were_chosen(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    for iova in [CHOSEN, 1 << 20, 0, u64::MAX << 30] {
        let region = chosen(&pair, 30_000, iova)?;
        let remote = region.remote();
        ensure!(remote.addr == iova && remote.len == 30_000, "{remote:x?} was registered at {iova:#x}");
        check_writes_and_reads(&pair, &region).with_context(|| format!("at {iova:#x}"))?;
    }
    Ok(())
}

fn atomics_find_their_word_under_the_chosen_address(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let region = chosen(&pair, 8192, CHOSEN)?;
    let word = region.word(4104)?;
    word.store(40, Ordering::SeqCst);
    pair.left.execute(SendRequest::fetch_add(pair.left.buffer(8)?, region.remote().at(4104), 2))?;
    ensure!(word.load(Ordering::SeqCst) == 42, "the word is {}", word.load(Ordering::SeqCst));
    Ok(())
}

fn memory_under_chosen_addresses_is_sent_and_received(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let theirs = chosen(&pair, 5000, CHOSEN)?;
    let ours = pair.left.domain.register_at(Pages::new(5000)?, CHOSEN << 1, READ_WRITE)?;
    ours.write(0, &pattern(5000, 3))?;
    let receiving = pair.right.recv(adverb::verbs::RecvRequest::new(whole(&theirs)?))?;
    pair.left.execute(SendRequest::send(whole(&ours)?))?;
    pair.right.wait(receiving)?.result()?;
    check(&read(&theirs, 0, 5000)?, 3)
}

fn a_peer_reaches_nothing_beside_the_chosen_addresses(fixture: &Fixture) -> Result<()> {
    for (before, len) in [(1, 2), (4096, 8), (0, 4097)] {
        let pair = fixture.rc()?;
        let region = chosen(&pair, 4096, CHOSEN)?;
        let mut at = region.remote().at(0);
        at.addr -= before;
        let request = SendRequest::write(pair.left.filled(len, 1)?, at);
        pair.left
            .expect_failure(request, Status::RemoteAccess)
            .with_context(|| format!("{before} bytes before"))?;
        ensure!(read(&region, 0, 4096)? == [0; 4096], "the memory was written");
    }
    Ok(())
}

/// The key determines the region.
fn regions_may_have_the_same_addresses(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let regions = [chosen(&pair, 100, CHOSEN)?, chosen(&pair, 100, CHOSEN)?];
    for (seed, region) in (1..).zip(&regions) {
        pair.left.execute(SendRequest::write(pair.left.filled(100, seed)?, region.remote().at(0)))?;
    }
    for (seed, region) in (1..).zip(&regions) {
        check(&read(region, 0, 100)?, seed)?;
    }
    Ok(())
}

fn a_zero_based_region_begins_with_address_zero(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let region = pair.right.region(20_000, READ_WRITE | Access::ZERO_BASED)?;
    ensure!(region.remote().addr == 0, "the first address is {:#x}", region.remote().addr);
    check_writes_and_reads(&pair, &region)
}

fn a_zero_based_region_becomes_a_buffer_that_works(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let region = pair.left.region(100, Access::LOCAL_WRITE | Access::ZERO_BASED)?;
    region.write(0, &pattern(100, 8))?;
    let buffer = region.into_buffer().ok().context("the unshared region did not become a buffer")?;
    check(&pair.deliver(buffer)?, 8)
}

fn a_window_on_chosen_addresses_shows_the_right_bytes(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let access = Access::LOCAL_WRITE | Access::WINDOW_BIND;
    let region = pair.right.domain.register_at(Pages::new(8192)?, CHOSEN, access)?;
    let window = pair.right.domain.create_memory_window()?;
    let bind = SendRequest::bind(window, region.slice(4096..4196)?, Access::REMOTE_WRITE);
    let window = pair.right.completed(bind)?.into_window().context("the completion has no window")?;
    let remote = window.remote().context("the window isn't bound")?;
    ensure!(remote.addr == CHOSEN + 4096, "the first address is {:#x}", remote.addr);
    pair.left.execute(SendRequest::write(pair.left.filled(100, 4)?, remote.at(0)))?;
    check(&read(&region, 4096, 100)?, 4)
}

fn an_address_with_another_page_offset_is_refused(fixture: &Fixture) -> Result<()> {
    let domain = fixture.device.create_protection_domain()?;
    for iova in [CHOSEN + 1, CHOSEN + 2048, CHOSEN - 8] {
        let made = domain.register_at(Pages::new(100)?, iova, READ_WRITE);
        ensure!(matches!(made, Err(Error::InvalidRequest { .. })), "{iova:#x}: {made:?}");
    }
    Ok(())
}

fn addresses_beyond_the_last_are_refused(fixture: &Fixture) -> Result<()> {
    let domain = fixture.device.create_protection_domain()?;
    let made = domain.register_at(Pages::new(8192)?, u64::MAX - 4095, READ_WRITE);
    ensure!(matches!(made, Err(Error::InvalidRequest { .. })), "{made:?}");
    Ok(())
}

fn a_zero_based_region_can_not_begin_elsewhere(fixture: &Fixture) -> Result<()> {
    let domain = fixture.device.create_protection_domain()?;
    let made = domain.register_at(Pages::new(100)?, CHOSEN, READ_WRITE | Access::ZERO_BASED);
    ensure!(matches!(made, Err(Error::InvalidRequest { .. })), "{made:?}");
    domain.register_at(Pages::new(100)?, 0, READ_WRITE | Access::ZERO_BASED)?;
    Ok(())
}

/// This process reads inline data at the address in the request, so the memory must be at that address.
fn memory_under_chosen_addresses_is_not_sent_inline(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Rc).max_inline_data(64).connect()?;
    let domain = &pair.left.domain;
    let regions = [
        domain.allocate_region(32, Access::LOCAL_WRITE | Access::ZERO_BASED)?,
        domain.register_at(Pages::new(32)?, CHOSEN, Access::LOCAL_WRITE)?,
    ];
    for region in &regions {
        let error = pair.left.expect_rejected(SendRequest::send(whole(region)?).inline())?;
        ensure!(matches!(error, Error::InvalidRequest { .. }), "refused with another error: {error}");
        pair.right.post_receive(32)?;
        pair.left.execute(SendRequest::send(whole(region)?))?;
    }
    for region in regions {
        let buffer = region.into_buffer().ok().context("the unshared region did not become a buffer")?;
        pair.left.expect_rejected(SendRequest::send(buffer).inline())?;
    }
    Ok(())
}

fn a_region_with_relaxed_ordering_works(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    check_writes_and_reads(&pair, &pair.right.region(20_000, READ_WRITE | Access::RELAXED_ORDERING)?)
}

fn memory_on_demand_is_written_and_read(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    check_writes_and_reads(&pair, &pair.right.region(1 << 20, READ_WRITE | Access::ON_DEMAND)?)
}

fn unsupported_registrations_are_refused_with_an_explanation(fixture: &Fixture) -> Result<()> {
    let domain = fixture.device.create_protection_domain()?;
    let on_demand = domain.allocate_region(4096, READ_WRITE | Access::ON_DEMAND);
    let dmabuf = domain.register_dmabuf(std::io::stdin(), 0, 4096, 0, READ_WRITE);
    // If the device can register dma-bufs, the registration fails because the descriptor is invalid.
    let can_dmabuf = fixture.device.can_register_dmabuf()?;
    for (what, can, made) in
        [("on demand", fixture.device.attributes().odp.supported, on_demand), ("dma-buf", can_dmabuf, dmabuf)]
    {
        match (can, made) {
            (true, _) => {}
            (false, Err(error @ Error::Unsupported { .. })) => {
                ensure!(error.hint().is_some(), "{what}: the error has no hint: {error}");
            }
            (false, made) => {
                anyhow::bail!("{what}: the device does not support it, but the result is {made:?}")
            }
        }
    }
    Ok(())
}
