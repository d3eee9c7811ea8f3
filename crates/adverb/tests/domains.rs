//! Posting memory of another protection domain fails. An lkey is unique only within one device, so the queue pair's
//! device may have other memory with the same key and address, and would use that.
//!
//! The devices are two software NICs, or those that `ADVERB_DEVICE` and `ADVERB_SECOND_DEVICE` name.

use std::collections::HashMap;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::time::Duration;

use adverb::memory::{
    Buffer, Memory, MemoryRegion, Pages, Payload, PayloadSegment, Pool, RegionSlice, RemoteMemory,
};
use adverb::verbs::raw::{Completions, Segment, SendFlags, SendOperation};
use adverb::verbs::{
    Access, CompletionQueue, Device, Error, PostError, ProtectionDomain, QueuePair, RecvRequest, Result,
    SendRequest, Transport,
};

const TIMEOUT: Duration = Duration::from_secs(10);
const QKEY: u32 = 0x1111_1111;
const LEN: usize = 64;
/// Memory that is never accessed, because the requests that name it are rejected.
const REMOTE: RemoteMemory = RemoteMemory { addr: 0, rkey: 1, len: LEN as u64 };

/// Opens two devices. Without them the test prints the reason and is skipped.
fn devices() -> Option<(Device, Device)> {
    let open = |variable, default: &str| {
        let name = std::env::var(variable).unwrap_or(default.to_owned());
        Device::open(&name).inspect_err(|error| println!("SKIPPED: {error}")).ok()
    };
    Some((open("ADVERB_DEVICE", "soft:127.83.7.11")?, open("ADVERB_SECOND_DEVICE", "soft:127.83.7.12")?))
}

const PAGE: usize = 4096;
/// The number of regions of each domain that are kept during the search for equal keys.
const KEPT: usize = 40_000;
/// The maximum number of registrations. The search needs about 2³² / [`KEPT`].
const MAX_REGISTRATIONS: u32 = 2_000_000;

/// A page of a mapping that is never unmapped. Separate mappings for all pages would exceed Linux's limit.
struct Page(NonNull<u8>);

// SAFETY: the page stays mapped, readable and writable, and the search gives each page to one value at a time.
unsafe impl Memory for Page {
    fn as_ptr(&self) -> NonNull<u8> {
        self.0
    }

    fn len(&self) -> usize {
        LEN
    }
}

// SAFETY: this type doesn't access memory through the pointer.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

/// Registers its own pages in a domain, and keeps most of the regions.
struct Search<'a> {
    domain: &'a ProtectionDomain,
    pages: ManuallyDrop<Pages>,
    kept: HashMap<u32, MemoryRegion>,
}

impl Search<'_> {
    fn new(domain: &ProtectionDomain) -> Search<'_> {
        let pages = ManuallyDrop::new(Pages::new((KEPT + 2) * PAGE).unwrap());
        Search { domain, pages, kept: HashMap::new() }
    }

    /// Registers a page that no kept region uses.
    fn register_page(&self, access: Access) -> Result<MemoryRegion> {
        let start = self.pages.as_ptr().as_ptr().align_offset(PAGE) + self.kept.len() * PAGE;
        // SAFETY: the mapping has one page more than the kept regions, and one more for the alignment.
        let page = Page(unsafe { self.pages.as_ptr().add(start) });
        self.domain.register(page, access | Access::ZERO_BASED)
    }
}

/// Returns zero-based regions with the same lkey, of two domains of different devices.
fn regions_with_equal_keys(
    ours: &ProtectionDomain,
    theirs: &ProtectionDomain,
    access: Access,
) -> Result<(MemoryRegion, MemoryRegion)> {
    let (mut own, mut foreign) = (Search::new(ours), Search::new(theirs));
    for _ in 0..MAX_REGISTRATIONS {
        if own.kept.len() < KEPT {
            let region = own.register_page(access)?;
            if let Some(equal) = foreign.kept.remove(&region.lkey()) {
                return Ok((region, equal));
            }
            own.kept.insert(region.lkey(), region);
        }
        let region = foreign.register_page(access)?;
        if let Some(equal) = own.kept.remove(&region.lkey()) {
            return Ok((equal, region));
        }
        if foreign.kept.len() < KEPT {
            foreign.kept.insert(region.lkey(), region);
        }
    }
    panic!("no two keys of the devices are equal");
}

/// One end of a connection.
struct End {
    domain: ProtectionDomain,
    completions: CompletionQueue,
    queue_pair: QueuePair,
}

impl End {
    fn new(domain: &ProtectionDomain, transport: Transport) -> Result<End> {
        let completions = domain.device().completion_queue(64).create()?;
        let builder = domain.queue_pair(transport).completion_queue(&completions).qkey(QKEY);
        let queue_pair = builder.depth(8, 8).max_sge(2, 2).max_inline_data(64).create()?;
        Ok(End { domain: domain.clone(), completions, queue_pair })
    }

    fn pair(domain: &ProtectionDomain, transport: Transport) -> Result<(End, End)> {
        let (left, right) = (End::new(domain, transport)?, End::new(domain, transport)?);
        left.queue_pair.connect(&right.queue_pair.endpoint())?;
        right.queue_pair.connect(&left.queue_pair.endpoint())?;
        Ok((left, right))
    }

    /// Sends a message of `byte`s, and checks that it arrives.
    fn send(&self, to: &End, byte: u8) -> Result<()> {
        let receive = to.queue_pair.post_recv(to.domain.allocate_buffer(LEN)?)?;
        let mut message = self.domain.allocate_buffer(LEN)?;
        message.fill(byte);
        let send = self.queue_pair.post_send(SendRequest::send(message))?;
        self.completions.wait(send, TIMEOUT)?.result()?;
        let message =
            to.completions.wait(receive, TIMEOUT)?.into_message().expect("the receive has a buffer");
        assert!(message.iter().all(|other| *other == byte));
        Ok(())
    }
}

/// Memory of another domain than the queue pair's.
struct Foreign {
    region: MemoryRegion,
    pool: Pool,
}

impl Foreign {
    fn slice(&self) -> RegionSlice {
        self.region.slice(0..LEN).unwrap()
    }

    /// Returns payloads of every kind of memory, alone and after memory of the queue's own domain.
    fn payloads(&self, own: &ProtectionDomain) -> Vec<Payload> {
        let own = || PayloadSegment::Buffer(own.allocate_buffer(LEN).unwrap());
        let buffer = || self.region.protection_domain().allocate_buffer(LEN).unwrap();
        let pooled = || self.pool.allocate(LEN).unwrap();
        vec![
            self.slice().into(),
            buffer().into(),
            pooled().into(),
            vec![own(), PayloadSegment::Region(self.slice())].into(),
            vec![own(), PayloadSegment::Buffer(buffer())].into(),
            vec![PayloadSegment::PoolBuf(pooled()), own()].into(),
        ]
    }

    /// Checks that the error names both domains and has a hint.
    fn check_error(&self, error: &Error, own: &ProtectionDomain) {
        let theirs = self.region.protection_domain();
        assert!(matches!(error, Error::ForeignDomain { .. }), "{error}");
        let message = error.to_string();
        for domain in [own, theirs] {
            let name = format!("protection domain {} of {}", domain.id(), domain.device().name());
            assert!(message.contains(&name), "{message:?} doesn't name {name}");
        }
        assert!(error.hint().is_some());
    }

    /// Checks that posting failed, all requests were returned, and the error names both domains.
    fn check_rejected<T, R>(
        &self,
        posted: Result<T, PostError<R>>,
        own: &ProtectionDomain,
        count: usize,
    ) -> Vec<R> {
        let Err(PostError { error, requests }) = posted else { panic!("foreign memory was posted") };
        self.check_error(&error, own);
        assert_eq!(requests.len(), count);
        requests
    }
}

/// Tries every safe method that posts memory, with foreign memory.
fn check_every_path(own: &ProtectionDomain, foreign: &Foreign) -> Result<()> {
    let (mut left, right) = End::pair(own, Transport::Rc)?;
    let shared = own.shared_receive_queue(4).max_sge(2).create()?;
    for payload in foreign.payloads(own) {
        // A rejected request returns its memory, which the next request uses.
        let payload = {
            let requests: [fn(Payload) -> SendRequest; 5] = [
                SendRequest::send,
                |payload| SendRequest::send_with_imm(payload, 1),
                |payload| SendRequest::write(payload, REMOTE.at(0)),
                |payload| SendRequest::write_with_imm(payload, REMOTE.at(0), 1),
                |payload| SendRequest::read(payload, REMOTE.at(0)),
            ];
            requests.into_iter().fold(payload, |payload, request| {
                let rejected = foreign.check_rejected(left.queue_pair.post_send(request(payload)), own, 1);
                let batch = [
                    SendRequest::send(own.allocate_buffer(LEN).unwrap()),
                    request(rejected.into_iter().next().unwrap().into_payload()),
                ];
                let rejected = foreign.check_rejected(left.queue_pair.post_sends(batch), own, 2);
                rejected.into_iter().next_back().unwrap().into_payload()
            })
        };
        let recv = RecvRequest::new(payload);
        let mut rejected = foreign.check_rejected(right.queue_pair.post_recv(recv), own, 1);
        let batch = [RecvRequest::new(own.allocate_buffer(LEN)?), rejected.remove(0)];
        let mut rejected = foreign.check_rejected(right.queue_pair.post_recvs(batch), own, 2);
        foreign.check_rejected(shared.post_recv(rejected.remove(1)), own, 1);
    }
    // The result of an atomic has eight bytes.
    let word = || foreign.region.slice(0..8).unwrap();
    for request in [
        SendRequest::fetch_add(word(), REMOTE.at(0), 1),
        SendRequest::compare_swap(word(), REMOTE.at(0), 0, 1),
        SendRequest::send_invalidate(foreign.slice(), 1),
    ] {
        foreign.check_rejected(left.queue_pair.post_send(request), own, 1);
    }
    assert_eq!((left.queue_pair.outstanding_send_count(), right.queue_pair.outstanding_recv_count()), (0, 0));
    assert_eq!(shared.outstanding_recv_count(), 0);

    check_scopes(&mut left, foreign)?;
    check_other_transports(own, foreign)?;
    check_windows(&left, foreign)?;
    // Inline data is copied when the request is posted, so it may be of any domain.
    let receive = right.queue_pair.post_recv(own.allocate_buffer(LEN)?)?;
    let mut message = foreign.region.protection_domain().allocate_buffer(5)?;
    message.copy_from_slice(b"hello");
    let send = left.queue_pair.post_send(SendRequest::send(message).inline())?;
    left.completions.wait(send, TIMEOUT)?.result()?;
    let message = right.completions.wait(receive, TIMEOUT)?.into_message().expect("the receive has a buffer");
    assert_eq!(&message[..], b"hello");
    // The rejected requests did not affect the queue pairs.
    left.send(&right, 1)
}

fn check_scopes(end: &mut End, foreign: &Foreign) -> Result<()> {
    let own = end.domain.clone();
    let mut buffers: Vec<Buffer> =
        (0..5).map(|_| foreign.region.protection_domain().allocate_buffer(LEN)).collect::<Result<_>>()?;
    let [a, b, c, d, e] = &mut buffers[..] else { unreachable!("there are five") };
    end.queue_pair.scope(TIMEOUT, |scope| {
        for posted in [
            scope.send(a),
            scope.send_with_imm(b, 1),
            scope.write(c, REMOTE.at(0)),
            scope.read(d, REMOTE.at(0)),
            scope.recv(e),
        ] {
            foreign.check_error(&posted.expect_err("foreign memory was lent"), &own);
        }
    })
}

fn check_other_transports(own: &ProtectionDomain, foreign: &Foreign) -> Result<()> {
    let (left, right) = End::pair(own, Transport::Uc)?;
    foreign.check_rejected(left.queue_pair.post_send(SendRequest::send(foreign.slice())), own, 1);
    foreign.check_rejected(right.queue_pair.post_recv(RecvRequest::new(foreign.slice())), own, 1);
    let datagrams = End::new(own, Transport::Ud)?;
    datagrams.queue_pair.move_to_rts()?;
    let destination = datagrams.queue_pair.create_ud_destination(&datagrams.queue_pair.endpoint(), QKEY)?;
    let request = SendRequest::send(foreign.slice()).destination(&destination);
    foreign.check_rejected(datagrams.queue_pair.post_send(request), own, 1);
    let buffer = foreign.region.protection_domain().allocate_buffer(8192)?;
    foreign.check_rejected(datagrams.queue_pair.post_recv(buffer), own, 1);
    Ok(())
}

fn check_windows(end: &End, foreign: &Foreign) -> Result<()> {
    let theirs = foreign.region.protection_domain();
    if !end.domain.device().attributes().has_memory_windows
        || !theirs.device().attributes().has_memory_windows
    {
        return Ok(());
    }
    let bind = SendRequest::bind(end.domain.create_memory_window()?, foreign.slice(), Access::REMOTE_READ);
    foreign.check_rejected(end.queue_pair.post_send(bind), &end.domain, 1);
    let region = end.domain.allocate_region(LEN, Access::LOCAL_WRITE | Access::WINDOW_BIND)?;
    let bind = SendRequest::bind(theirs.create_memory_window()?, region.slice(0..LEN)?, Access::REMOTE_READ);
    foreign.check_rejected(end.queue_pair.post_send(bind), &end.domain, 1);
    Ok(())
}

#[test]
fn memory_of_another_device_is_rejected_even_if_the_device_has_its_key() -> Result<()> {
    let Some((device, other)) = devices() else { return Ok(()) };
    let (own, theirs) = (device.create_protection_domain()?, other.create_protection_domain()?);
    let access = Access::LOCAL_WRITE | Access::WINDOW_BIND;
    let (victim, decoy) = regions_with_equal_keys(&own, &theirs, access)?;
    assert_eq!((victim.lkey(), victim.remote().addr), (decoy.lkey(), decoy.remote().addr));
    check_every_path(&own, &Foreign { region: decoy, pool: Pool::new(&theirs) })?;
    let mut bytes = [1; LEN];
    victim.read(0, &mut bytes)?;
    assert_eq!(bytes, [0; LEN]);
    Ok(())
}

/// A safe program in which borrowed memory would change.
#[test]
fn a_borrowed_buffer_doesnt_change_if_another_devices_buffer_has_its_key() -> Result<()> {
    let Some((device, other)) = devices() else { return Ok(()) };
    let (own, theirs) = (device.create_protection_domain()?, other.create_protection_domain()?);
    let (victim, decoy) = regions_with_equal_keys(&own, &theirs, Access::LOCAL_WRITE)?;
    let (victim, decoy) = (victim.into_buffer().unwrap(), decoy.into_buffer().unwrap());
    let (left, right) = End::pair(&own, Transport::Rc)?;
    let borrowed: &[u8] = &victim;
    let posted = right.queue_pair.post_recv(decoy);
    assert!(matches!(posted.map_err(Error::from), Err(Error::ForeignDomain { .. })));
    left.send(&right, 0x5a)?;
    assert!(std::hint::black_box(borrowed).iter().all(|byte| *byte == 0));
    Ok(())
}

#[test]
fn memory_of_another_domain_of_the_device_is_rejected() -> Result<()> {
    let Some((device, _)) = devices() else { return Ok(()) };
    let (own, theirs) = (device.create_protection_domain()?, device.create_protection_domain()?);
    let region = theirs.allocate_region(LEN, Access::LOCAL_WRITE | Access::WINDOW_BIND)?;
    check_every_path(&own, &Foreign { region, pool: Pool::new(&theirs) })
}

/// Raw requests aren't checked when they are posted. The device rejects a key of another of its domains.
#[test]
fn a_raw_request_with_the_key_of_another_domain_of_the_device_fails() -> Result<()> {
    let Some((device, _)) = devices() else { return Ok(()) };
    let (own, theirs) = (device.create_protection_domain()?, device.create_protection_domain()?);
    let (left, right) = End::pair(&own, Transport::Rc)?;
    right.queue_pair.post_recv(own.allocate_buffer(LEN)?)?;
    let region = theirs.allocate_region(LEN, Access::LOCAL_WRITE)?;
    let segment = Segment { addr: region.remote().addr, length: LEN as u32, lkey: region.lkey() };
    let (mut list, mut completions) = (left.queue_pair.raw_send_list(), Completions::new(1));
    list.add(7, SendOperation::Send, SendFlags::SIGNALED, &[segment]);
    // SAFETY: the region outlives the queue pair and isn't written to, and only this code polls the queue. The lkey is
    // of another domain of the same device, whose lkeys are unique: the device finds the region and rejects the
    // request.
    unsafe { left.queue_pair.post_raw_sends(&mut list) }?;
    let deadline = std::time::Instant::now() + TIMEOUT;
    while left.completions.poll_raw(&mut completions)? == 0 {
        assert!(std::time::Instant::now() < deadline, "the request never completed");
    }
    assert!(completions.iter().all(|completion| completion.id() == 7 && !completion.is_ok()));
    Ok(())
}

#[test]
fn protection_domain_ids_are_unique_in_a_process() -> Result<()> {
    let Some((device, other)) = devices() else { return Ok(()) };
    let first = device.create_protection_domain()?;
    let (id, same) = (first.id(), first.clone());
    assert_eq!(same.id(), id);
    drop((first, same));
    // The id of a destroyed domain isn't reused.
    let numbers = [device.create_protection_domain()?.id(), other.create_protection_domain()?.id(), id];
    assert!(numbers[0] != numbers[1] && !numbers[..2].contains(&id));
    Ok(())
}
