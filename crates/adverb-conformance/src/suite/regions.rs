//! Memory regions: local access.

use std::sync::atomic::Ordering;

use adverb::memory::{MemoryRegion, Pages};
use adverb::verbs::{Access, Error, SendRequest};
use anyhow::{Context, Result, ensure};

use crate::fixture::{Fixture, READ_WRITE, check, check_equal, pattern, read, whole};
use crate::registry::tests;

tests! { "memory regions";
    a_new_region_is_all_zeros,
    bytes_written_are_read_back,
    reading_and_writing_keep_within_bounds,
    words_keep_within_bounds_and_are_aligned,
    words_and_bytes_are_the_same_memory,
    slices_keep_within_bounds,
    a_region_without_bytes_is_refused,
    inconsistent_access_rights_are_refused,
    regions_have_their_own_keys,
    a_region_has_the_data_that_a_peer_needs,
    a_region_becomes_a_buffer_only_when_it_is_not_shared,
    a_region_of_a_memfd_works,
    a_region_of_odd_length_works_to_its_last_byte,
    a_region_of_many_pages_works,
    peers_and_owner_see_the_same_bytes,
}

fn region(fixture: &Fixture, len: usize) -> Result<MemoryRegion> {
    Ok(fixture.device.create_protection_domain()?.allocate_region(len, READ_WRITE)?)
}

fn a_new_region_is_all_zeros(fixture: &Fixture) -> Result<()> {
    let region = region(fixture, 10_000)?;
    ensure!(region.len() == 10_000 && !region.is_empty(), "its length is {} bytes", region.len());
    check_equal(&read(&region, 0, 10_000)?, &[0; 10_000])
}

fn bytes_written_are_read_back(fixture: &Fixture) -> Result<()> {
    let region = region(fixture, 1000)?;
    region.write(0, &pattern(1000, 1))?;
    check(&read(&region, 0, 1000)?, 1)?;
    region.write(500, &[7; 3])?;
    ensure!(read(&region, 500, 3)? == [7; 3], "the written bytes were not read back");
    check_equal(&read(&region, 503, 497)?, &pattern(1000, 1)[503..])
}

/// Ranges that don't lie in a region of 100 bytes.
const OUTSIDE: [(usize, usize); 5] = [(100, 1), (0, 101), (99, 2), (usize::MAX, 1), (usize::MAX - 1, 8)];

fn reading_and_writing_keep_within_bounds(fixture: &Fixture) -> Result<()> {
    let region = region(fixture, 100)?;
    for (offset, len) in OUTSIDE {
        let mut bytes = vec![0; len];
        for result in [region.read(offset, &mut bytes), region.write(offset, &vec![1; len])] {
            ensure!(matches!(result, Err(Error::OutOfBounds { .. })), "{len} at {offset}: {result:?}");
        }
    }
    check_equal(&read(&region, 0, 100)?, &[0; 100])?;
    region.read(100, &mut [])?;
    region.write(100, &[])?;
    Ok(())
}

fn words_keep_within_bounds_and_are_aligned(fixture: &Fixture) -> Result<()> {
    let region = region(fixture, 20)?;
    for offset in [0, 8] {
        region.word(offset)?;
    }
    for offset in [13, 16, 20, usize::MAX] {
        ensure!(matches!(region.word(offset), Err(Error::OutOfBounds { .. })), "offset {offset}");
    }
    for offset in [1, 4, 12] {
        ensure!(matches!(region.word(offset), Err(Error::Unaligned { .. })), "offset {offset}");
    }
    Ok(())
}

fn words_and_bytes_are_the_same_memory(fixture: &Fixture) -> Result<()> {
    let region = region(fixture, 16)?;
    region.word(8)?.store(0x0102_0304_0506_0708, Ordering::Relaxed);
    ensure!(read(&region, 8, 8)? == 0x0102_0304_0506_0708_u64.to_ne_bytes(), "the bytes differ");
    region.write(8, &[0xff; 8])?;
    ensure!(region.word(8)?.load(Ordering::Relaxed) == u64::MAX, "the word differs");
    Ok(())
}

fn slices_keep_within_bounds(fixture: &Fixture) -> Result<()> {
    let region = region(fixture, 100)?;
    ensure!(region.slice(0..100)?.len() == 100, "a slice of the whole region has another length");
    ensure!(region.slice(100..100)?.is_empty(), "an empty slice isn't empty");
    for (offset, len) in OUTSIDE {
        let slice = region.slice(offset..offset.saturating_add(len));
        // Near the end of the address space, the range may become empty.
        ensure!(slice.is_err(), "{len} at {offset}: {slice:?}");
    }
    #[expect(clippy::reversed_empty_ranges, reason = "the range must be invalid")]
    let reversed = region.slice(50..40);
    ensure!(matches!(reversed, Err(Error::OutOfBounds { .. })), "{reversed:?}");
    Ok(())
}

fn a_region_without_bytes_is_refused(fixture: &Fixture) -> Result<()> {
    let domain = fixture.device.create_protection_domain()?;
    ensure!(domain.allocate_region(0, READ_WRITE).is_err(), "a region of 0 bytes was created");
    ensure!(domain.allocate_buffer(0).is_err(), "a buffer of 0 bytes was created");
    Ok(())
}

/// Vol. 1, 10.6.3.1: a peer may not write memory that the device itself may not write.
fn inconsistent_access_rights_are_refused(fixture: &Fixture) -> Result<()> {
    let domain = fixture.device.create_protection_domain()?;
    for access in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC, Access::REMOTE_WRITE | Access::REMOTE_READ] {
        let made = domain.allocate_region(64, access);
        ensure!(matches!(made, Err(Error::InvalidRequest { .. })), "{access:?}: {made:?}");
    }
    domain.allocate_region(64, Access::REMOTE_READ)?;
    domain.allocate_region(64, Access::empty())?;
    Ok(())
}

fn regions_have_their_own_keys(fixture: &Fixture) -> Result<()> {
    let domain = fixture.device.create_protection_domain()?;
    let regions =
        (0..32).map(|_| domain.allocate_region(64, READ_WRITE)).collect::<adverb::verbs::Result<Vec<_>>>()?;
    let mut keys: Vec<u32> = regions.iter().map(|region| region.remote().rkey).collect();
    keys.sort_unstable();
    keys.dedup();
    ensure!(keys.len() == 32, "32 regions have {} keys", keys.len());
    Ok(())
}

fn a_region_has_the_data_that_a_peer_needs(fixture: &Fixture) -> Result<()> {
    let region = region(fixture, 100)?;
    let remote = region.remote();
    ensure!(remote.len == 100 && remote.rkey == region.remote().rkey, "{remote:?}");
    ensure!(remote.at(7).addr == remote.addr + 7 && remote.at(7).rkey == remote.rkey, "{:?}", remote.at(7));
    ensure!(region.access() == READ_WRITE, "the access rights are {:?}", region.access());
    Ok(())
}

fn a_region_becomes_a_buffer_only_when_it_is_not_shared(fixture: &Fixture) -> Result<()> {
    let domain = fixture.device.create_protection_domain()?;
    let shared = domain.allocate_region(64, READ_WRITE)?;
    ensure!(shared.into_buffer().is_err(), "a peer could write to the region");
    let region = domain.allocate_region(64, Access::LOCAL_WRITE)?;
    let handle = region.clone();
    let region = region.into_buffer().err().context("the region became a buffer despite another handle")?;
    drop(handle);
    let slice = region.slice(0..8)?;
    let region = region.into_buffer().err().context("the region became a buffer despite a slice")?;
    drop(slice);
    region.write(0, &pattern(64, 1))?;
    let buffer = region.into_buffer().ok().context("the unshared region did not become a buffer")?;
    check(&buffer, 1)
}

fn a_region_of_a_memfd_works(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let pages = Pages::memfd("conformance", 10_000)?;
    let region = pair.right.domain.register(pages, READ_WRITE)?;
    pair.left.execute(SendRequest::write(pair.left.filled(10_000, 3)?, region.remote().at(0)))?;
    check(&read(&region, 0, 10_000)?, 3)
}

fn a_region_of_odd_length_works_to_its_last_byte(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    for len in [1, 4095, 4097, 12_345] {
        let region = pair.right.region(len, READ_WRITE)?;
        pair.left.execute(SendRequest::write(pair.left.filled(len, 3)?, region.remote().at(0)))?;
        check(&read(&region, 0, len)?, 3)?;
    }
    Ok(())
}

fn a_region_of_many_pages_works(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let region = pair.right.region(16 << 20, READ_WRITE)?;
    for offset in [0, (1 << 20) - 7, (8 << 20) + 4090, (16 << 20) - 100] {
        let request = SendRequest::write(pair.left.filled(100, offset)?, region.remote().at(offset));
        pair.left.execute(request)?;
        check(&read(&region, offset as usize, 100)?, offset)?;
    }
    Ok(())
}

/// A region may be the source of a request, the target of a peer's request, and read by its owner at the same time.
fn peers_and_owner_see_the_same_bytes(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let (ours, theirs) = (pair.left.region(64, READ_WRITE)?, pair.right.region(64, READ_WRITE)?);
    for seed in 0..20 {
        ours.write(0, &pattern(64, seed))?;
        pair.left.execute(SendRequest::write(whole(&ours)?, theirs.remote().at(0)))?;
        check(&read(&theirs, 0, 64)?, seed)?;
        theirs.write(0, &pattern(64, 100 + seed))?;
        pair.left.execute(SendRequest::read(whole(&ours)?, theirs.remote().at(0)))?;
        check(&read(&ours, 0, 64)?, 100 + seed)?;
    }
    Ok(())
}
