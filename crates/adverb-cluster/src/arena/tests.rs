//! Arenas on the software NIC.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use adverb_verbs::{
    Completion, CompletionQueue, Device, QueuePair, SendRequest, SoftDevice, Status, Switch, Transport,
};

use super::*;

/// The time after which a test fails if a request has not completed.
const TEST_DEADLINE: Duration = Duration::from_secs(120);

const SLAB_SIZE: usize = 16 << 10;

fn device() -> Device {
    SoftDevice::loopback().open().unwrap()
}

fn domain() -> ProtectionDomain {
    device().create_protection_domain().unwrap()
}

/// Returns an arena with small slabs and one segment of `slab_count` slabs.
fn arena(domain: &ProtectionDomain, slab_count: usize, access: Access) -> Arena {
    let arena = Arena::builder()
        .member(3)
        .epoch(7)
        .slab_size(SLAB_SIZE)
        .partitions(4)
        .create(std::slice::from_ref(domain))
        .unwrap();
    let segment = arena.allocate_segment(slab_count * SLAB_SIZE, access).unwrap();
    assert_eq!(segment.len, slab_count * SLAB_SIZE);
    arena
}

/// A queue pair and its completion queue.
struct End {
    domain: ProtectionDomain,
    cq: CompletionQueue,
    queue_pair: QueuePair,
}

impl End {
    fn new(domain: &ProtectionDomain) -> End {
        let cq = domain.device().completion_queue(16).create().unwrap();
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let queue_pair = domain
            .queue_pair(Transport::Rc)
            .completion_queue(&cq)
            .access(access)
            .depth(8, 8)
            .create()
            .unwrap();
        End { domain: domain.clone(), cq, queue_pair }
    }

    fn pair(server: &ProtectionDomain, client: &ProtectionDomain) -> (End, End) {
        let (server, client) = (End::new(server), End::new(client));
        server.queue_pair.connect(&client.queue_pair.endpoint()).unwrap();
        client.queue_pair.connect(&server.queue_pair.endpoint()).unwrap();
        (server, client)
    }

    fn run(&self, request: SendRequest) -> Completion {
        let id = self.queue_pair.post_send(request).unwrap();
        self.cq.wait(id, TEST_DEADLINE).unwrap()
    }

    /// Reads the bytes that a pointer refers to, like a member that knows the segment's key.
    fn read(&self, segment: &SegmentInfo, domain: usize, ptr: RemotePtr) -> Vec<u8> {
        let remote = segment.remotes[domain];
        ptr.check(3, 7, remote.len).unwrap();
        let buffer = self.domain.allocate_buffer(ptr.len as usize).unwrap();
        let completion = self.run(SendRequest::read(buffer, remote.at(ptr.offset)));
        completion.result().unwrap();
        completion.into_buffer().unwrap().to_vec()
    }
}

#[test]
fn a_peer_reads_published_items() {
    let domain = domain();
    let arena = arena(&domain, 8, Access::REMOTE_READ);
    let (_server, client) = End::pair(&domain, &domain);
    let segment = &arena.segments()[0];
    let mut items = Vec::new();
    for len in [1, 8, 63, 64, 65, 1000, 5000, SLAB_SIZE] {
        let bytes: Vec<u8> = (0..len).map(|index| (index * 7 + len) as u8).collect();
        let mut draft = arena.allocate(len).unwrap();
        assert!(draft.len() == len && draft.capacity() >= len);
        let (head, tail) = bytes.split_at(len / 2);
        draft.write(0, head).unwrap();
        draft.write(head.len(), tail).unwrap();
        let item = draft.publish();
        let ptr = item.remote_ptr();
        assert_eq!((ptr.member, ptr.epoch, ptr.segment, ptr.len), (3, 7, segment.id, len as u64));
        assert!(ptr.offset.is_multiple_of(64));
        items.push((item, bytes));
    }
    for (item, bytes) in &items {
        assert_eq!(&client.read(segment, 0, item.remote_ptr()), bytes);
        assert_eq!(&item.to_vec(), bytes);
        // The pointer as it arrives from a peer.
        let ptr = RemotePtr::from_bytes(&item.remote_ptr().to_bytes()).unwrap();
        let mut copy = vec![0; bytes.len()];
        arena.read(ptr, &mut copy).unwrap();
        assert_eq!(&copy, bytes);
    }
}

#[test]
fn a_peer_has_the_rights_of_the_segment_and_no_others() {
    let domain = domain();
    let status = |completion: Completion| {
        completion.outcome().map_or_else(|failure| failure.status, |_| Status::Success)
    };
    for (access, expected) in [
        (Access::empty(), [false, false, false]),
        (Access::REMOTE_READ, [true, false, false]),
        (Access::REMOTE_WRITE, [false, true, false]),
        (Access::REMOTE_ATOMIC, [false, false, true]),
    ] {
        let arena = arena(&domain, 1, access);
        let item = arena.allocate_copy(&[0; 64]).unwrap();
        let segment = &arena.segments()[0];
        assert_eq!(segment.access, access | Access::LOCAL_WRITE);
        let remote = segment.remotes[0].at(item.remote_ptr().offset);
        for (index, is_allowed) in expected.into_iter().enumerate() {
            // A refused request ends the connection.
            let (_server, client) = End::pair(&domain, &domain);
            let buffer = domain.allocate_buffer(8).unwrap();
            let request = match index {
                0 => SendRequest::read(buffer, remote),
                1 => SendRequest::write(buffer, remote),
                _ => SendRequest::fetch_add(buffer, remote, 5),
            };
            let expected = if is_allowed { Status::Success } else { Status::RemoteAccess };
            assert_eq!(status(client.run(request)), expected, "{access:?}, request {index}");
        }
        let expected = if access == Access::REMOTE_ATOMIC { 5 } else { 0 };
        assert_eq!(item.word(0).unwrap().load(Ordering::Relaxed), expected);
    }
}

#[test]
fn requests_use_items_as_their_memory() {
    let domain = domain();
    let arena = arena(&domain, 2, Access::REMOTE_READ | Access::REMOTE_WRITE);
    let (_server, client) = End::pair(&domain, &domain);
    let segment = &arena.segments()[0];
    let (source, target) =
        (arena.allocate_copy(b"from here").unwrap(), arena.allocate_copy(&[0; 20]).unwrap());
    let remote = segment.remotes[0].at(target.remote_ptr().offset);
    client.run(SendRequest::write(source.slice(0, 5..9).unwrap(), remote)).result().unwrap();
    assert_eq!(&target.to_vec()[..5], b"here\0");
    // A READ fills a draft.
    let mut draft = arena.allocate(9).unwrap();
    draft.write(0, &[1; 9]).unwrap();
    let remote = segment.remotes[0].at(source.remote_ptr().offset);
    client.run(SendRequest::read(draft.slice(0, 0..9).unwrap(), remote)).result().unwrap();
    assert_eq!(draft.publish().to_vec(), b"from here");
    let reversed = Range { start: 3, end: 2 };
    assert!(matches!(source.slice(0, reversed), Err(ArenaError::OutOfBounds { .. })));
    assert!(matches!(source.slice(0, 0..10), Err(ArenaError::OutOfBounds { .. })));
    assert!(matches!(source.slice(1, 0..9), Err(ArenaError::InvalidOption { .. })));
}

#[test]
fn segments_are_registered_in_every_domain() {
    let switch = Switch::default();
    let [one, other, peer] = ["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(|address| {
        let device = SoftDevice::on_switch(&switch, address.parse().unwrap()).open().unwrap();
        device.create_protection_domain().unwrap()
    });
    let domains = [one.clone(), other.clone()];
    let arena = Arena::builder().member(3).epoch(7).slab_size(SLAB_SIZE).create(&domains).unwrap();
    let segment = arena.allocate_segment(SLAB_SIZE, Access::REMOTE_READ).unwrap();
    assert_eq!(segment.remotes.len(), 2);
    let item = arena.allocate_copy(b"by either device").unwrap();
    for (index, domain) in domains.iter().enumerate() {
        let (_server, client) = End::pair(domain, &peer);
        assert_eq!(client.read(&segment, index, item.remote_ptr()), b"by either device");
    }
    // A lent region must be registered in one of the arena's domains.
    let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
    let region = other.allocate_region(4096, access).unwrap();
    region.write(100, b"lent").unwrap();
    let lent = arena.lend_segment(region.clone()).unwrap();
    assert_eq!((lent.kind, lent.len, lent.access), (SegmentKind::Lent, 4096, access));
    let ptr = arena.remote_ptr(lent.id, 100..104).unwrap();
    for (index, domain) in domains.iter().enumerate() {
        let (_server, client) = End::pair(domain, &peer);
        assert_eq!(client.read(&lent, index, ptr), b"lent");
    }
    let foreign = peer.allocate_region(4096, access).unwrap();
    assert!(
        matches!(arena.lend_segment(foreign), Err(ArenaError::ForeignRegion { domain }) if domain == peer.id())
    );
    // The caller keeps the region that it lent.
    assert!(arena.withdraw(lent.id).unwrap().is_released());
    assert!(matches!(arena.read(ptr, &mut [0; 4]), Err(ArenaError::UnknownSegment { .. })));
    region.write(0, b"still here").unwrap();
}

#[test]
fn memory_is_deregistered_with_the_last_item_of_a_withdrawn_segment() {
    let device = device();
    let domain = device.create_protection_domain().unwrap();
    let region_count = || device.resource_counts().unwrap().regions;
    let before = region_count();
    let arena = arena(&domain, 2, Access::REMOTE_READ);
    let first = arena.segments()[0].id;
    let items: Vec<Item> = (0..5).map(|_| arena.allocate_copy(b"old").unwrap()).collect();
    let second = arena.allocate_segment(1, Access::REMOTE_READ).unwrap();
    assert_eq!((second.id, second.len), (first + 1, SLAB_SIZE));
    let withdrawal = arena.withdraw(first).unwrap();
    assert_eq!((withdrawal.item_count(), withdrawal.is_released()), (5, false));
    assert!(matches!(arena.withdraw(first), Err(ArenaError::UnknownSegment { segment }) if segment == first));
    // New items are in the other segment, and old ones stay.
    let new = arena.allocate_copy(b"new").unwrap();
    assert_eq!(new.remote_ptr().segment, second.id);
    assert!(items.iter().all(|item| item.to_vec() == b"old"));
    assert_eq!(region_count(), before + 2);
    drop(items);
    assert!(withdrawal.is_released());
    assert_eq!(region_count(), before + 1);
    // Numbers aren't reused.
    assert_eq!(arena.allocate_segment(1, Access::empty()).unwrap().id, second.id + 1);
    // An item outlives the arena.
    drop(arena);
    assert_eq!((new.to_vec(), region_count()), (b"new".to_vec(), before + 1));
    drop(new);
    assert_eq!(region_count(), before);
}

#[test]
fn pointers_to_other_members_and_epochs_are_refused() {
    let domain = domain();
    let arena = arena(&domain, 1, Access::REMOTE_READ);
    let ptr = arena.allocate_copy(&[1; 100]).unwrap().remote_ptr();
    let refused = |ptr: RemotePtr, len: usize| match arena.read(ptr, &mut vec![0; len]) {
        Err(ArenaError::InvalidPointer(error)) => error,
        other => panic!("{other:?}"),
    };
    assert!(matches!(refused(RemotePtr { member: 4, ..ptr }, 1), RemotePtrError::WrongMember { .. }));
    assert!(matches!(refused(RemotePtr { epoch: 6, ..ptr }, 1), RemotePtrError::StaleEpoch { .. }));
    assert!(matches!(refused(ptr, 101), RemotePtrError::OutOfBounds { .. }));
    for (offset, len) in [(SLAB_SIZE as u64, 1), (SLAB_SIZE as u64 - 1, 2), (u64::MAX, 1)] {
        let outside = RemotePtr { offset, len, ..ptr };
        assert!(matches!(refused(outside, len as usize), RemotePtrError::OutOfBounds { .. }));
    }
    let unknown = arena.read(RemotePtr { segment: 9, ..ptr }, &mut [0]);
    assert!(matches!(unknown, Err(ArenaError::UnknownSegment { segment: 9 })));
    assert!(arena.remote_ptr(0, 0..SLAB_SIZE as u64).is_ok());
    for range in [0..SLAB_SIZE as u64 + 1, Range { start: 2, end: 1 }] {
        assert!(matches!(arena.remote_ptr(0, range), Err(ArenaError::InvalidPointer(_))));
    }
}

#[test]
fn access_outside_an_item_is_refused() {
    let domain = domain();
    let arena = arena(&domain, 1, Access::REMOTE_WRITE);
    // The item is shorter than its slot.
    let mut draft = arena.allocate(100).unwrap();
    assert!(matches!(draft.write(99, &[0; 2]), Err(ArenaError::OutOfBounds { item_len: 100, .. })));
    assert!(matches!(draft.read(usize::MAX, &mut [0; 2]), Err(ArenaError::OutOfBounds { .. })));
    let item = draft.publish();
    assert!(matches!(item.read(101, &mut []), Err(ArenaError::OutOfBounds { .. })));
    assert!(matches!(item.write(0, &[0; 101]), Err(ArenaError::OutOfBounds { .. })));
    assert!(matches!(item.word(96), Err(ArenaError::OutOfBounds { .. })));
    assert!(matches!(item.word(4), Err(ArenaError::Verbs(adverb_verbs::Error::Unaligned { .. }))));
    item.word(88).unwrap().store(u64::from_ne_bytes(*b"in place"), Ordering::Relaxed);
    let mut bytes = [0; 8];
    item.read(88, &mut bytes).unwrap();
    assert_eq!(&bytes, b"in place");
    assert!(matches!(arena.allocate(SLAB_SIZE + 1), Err(ArenaError::ItemTooLarge { max: SLAB_SIZE, .. })));
    assert!(matches!(arena.allocate(usize::MAX), Err(ArenaError::ItemTooLarge { .. })));
    assert!(matches!(Arena::builder().create(&[]), Err(ArenaError::InvalidOption { option: "domains", .. })));
    for count in [0, 4097] {
        let refused = Arena::builder().partitions(count).create(std::slice::from_ref(&domain));
        assert!(matches!(refused, Err(ArenaError::InvalidOption { option: "partitions", .. })), "{count}");
    }
    for len in [0, usize::MAX] {
        let refused = arena.allocate_segment(len, Access::empty());
        assert!(matches!(refused, Err(ArenaError::InvalidOption { option: "len", .. })));
    }
}

#[test]
fn a_full_arena_recovers_and_items_are_freed_in_bulk() {
    let domain = domain();
    let [one, other] = [4, 2].map(|slab_count| arena(&domain, slab_count, Access::REMOTE_READ));
    let fill = |arena: &Arena, len: usize| -> Vec<Item> {
        std::iter::from_fn(|| arena.allocate(len).ok().map(Draft::publish)).collect()
    };
    for len in [64, 700, SLAB_SIZE, 3000] {
        let mut items = fill(&one, len);
        let slots_per_slab = SLAB_SIZE / one.slot_size(len).unwrap();
        assert_eq!(items.len(), 4 * slots_per_slab);
        let failure = one.allocate(len).unwrap_err();
        assert!(matches!(failure, ArenaError::Full { .. }), "{failure}");
        items.extend(fill(&other, len));
        let pointers: HashSet<_> = items.iter().map(Item::remote_ptr).collect();
        // Both arenas have the same identity, so pointers to items of both can be equal.
        assert!(pointers.len() >= 4 * slots_per_slab);
        Item::free_all(items);
        for arena in [&one, &other] {
            let stats = arena.stats();
            assert_eq!((stats.item_count(), stats.item_bytes()), (0, 0));
            assert_eq!(stats.empty_slab_count(), stats.slab_count);
            assert_eq!(stats.fragmentation(), 0.0);
        }
    }
    Item::free_all(Vec::new());
}

#[test]
fn keys_have_partitions_and_partitions_have_slabs() {
    let domain = domain();
    let arena = arena(&domain, 64, Access::REMOTE_READ);
    let mut counts = vec![0; arena.partition_count()];
    for key in 0..4000 {
        let key = format!("user:{key}");
        let partition = arena.partition_of(key.as_str());
        assert_eq!(partition, arena.partition_of(&key));
        counts[partition] += 1;
    }
    // Each has a quarter: 1000, with a standard deviation of 27.
    assert!(counts.len() == 4 && counts.iter().all(|count| (600..1400).contains(count)), "{counts:?}");
    // Items of different partitions are in different slabs.
    let slab = |item: &Item| item.remote_ptr().offset / SLAB_SIZE as u64;
    let items: Vec<Item> =
        (0..8).map(|partition| arena.allocate_in(partition, 64).unwrap().publish()).collect();
    let slabs: HashSet<u64> = items.iter().map(slab).collect();
    assert_eq!(slabs.len(), 4);
    assert!((0..4).all(|partition| slab(&items[partition]) == slab(&items[partition + 4])));
}

#[test]
fn stats_account_for_every_byte() {
    let domain = domain();
    let arena = arena(&domain, 8, Access::REMOTE_READ);
    let region = domain.allocate_region(4096, Access::LOCAL_WRITE).unwrap();
    arena.lend_segment(region).unwrap();
    // 100 bytes in slots of 128; 2600 bytes in slots of 2688, of which 6 fit into a slab.
    let mut items: Vec<Item> = (0..200).map(|_| arena.allocate_in(0, 100).unwrap().publish()).collect();
    items.extend((0..8).map(|_| arena.allocate_in(0, 2600).unwrap().publish()));
    let stats = arena.stats();
    assert_eq!(
        (stats.segment_count, stats.allocated_bytes, stats.lent_bytes),
        (2, 8 * SLAB_SIZE as u64, 4096)
    );
    assert_eq!((stats.item_count(), stats.item_bytes()), (208, 40_800));
    assert_eq!((stats.slab_count, stats.spare_slab_count, stats.assigned_slabs), (8, 4, 4));
    let [small, large] = &stats.classes[..] else { panic!("{stats}") };
    assert_eq!(
        (small.slot_size, small.slots_per_slab, small.slab_count, small.item_count),
        (128, 128, 2, 200)
    );
    assert_eq!((small.padding_bytes, small.free_slot_bytes, small.tail_bytes), (200 * 28, 56 * 128, 0));
    assert_eq!((large.slot_size, large.slots_per_slab, large.slab_count, large.item_count), (2688, 6, 2, 8));
    assert_eq!((large.padding_bytes, large.free_slot_bytes, large.tail_bytes), (8 * 88, 4 * 2688, 2 * 256));
    for class in [small, large] {
        let sum = class.item_bytes + class.padding_bytes + class.free_slot_bytes + class.tail_bytes;
        assert_eq!(sum, class.slab_count * SLAB_SIZE as u64);
    }
    assert!((stats.fragmentation() - (1.0 - 40_800.0 / 65_536.0)).abs() < 1e-9);
    // Every second item stays: they would fit into half of the slabs.
    let mut index = 0;
    items.retain(|_| {
        index += 1;
        index % 2 == 0
    });
    let stats = arena.stats();
    let excess: Vec<u64> = stats.classes.iter().map(ClassStats::excess_slab_count).collect();
    assert_eq!((stats.item_count(), excess), (104, vec![1, 1]));
    let report = stats.to_string();
    assert!(report.contains("104 items of 20400 bytes; 68.9 % of their slabs is unused"), "{report}");
    assert_eq!(report.lines().count(), 7, "{report}");
}

#[test]
fn threads_allocate_and_free_at_the_same_time() {
    let domain = domain();
    // At most 230 items exist at once, so there is a slab for each.
    let arena = arena(&domain, 240, Access::REMOTE_READ);
    let (sender, receiver) = std::sync::mpsc::sync_channel::<Item>(60);
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let (arena, sender) = (arena.clone(), sender.clone());
            scope.spawn(move || {
                let mut held = Vec::new();
                for round in 0..3000usize {
                    let len = 1 + round * 37 % 900;
                    let mut draft = arena.allocate(len).unwrap();
                    draft.write(0, &vec![thread; len]).unwrap();
                    held.push(draft.publish());
                    if held.len() == 40 {
                        let item = held.swap_remove(round % 40);
                        assert!(item.to_vec().iter().all(|byte| *byte == thread));
                        sender.send(item).unwrap();
                    }
                }
                Item::free_all(held);
            });
        }
        drop(sender);
        // Another thread frees most of them. Each has the bytes of one thread.
        for item in receiver {
            let bytes = item.to_vec();
            assert!(bytes.iter().all(|byte| *byte == bytes[0]));
        }
    });
    assert_eq!(arena.stats().item_count(), 0);
}
