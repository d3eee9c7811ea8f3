//! Pools: allocated buffers are exclusive, and return to their pool.

#![cfg(feature = "soft")]

mod common;
#[path = "common/random.rs"]
mod random;

use std::sync::Barrier;
use std::sync::mpsc::channel;

use adverb::memory::{Pool, PoolBuf};
use adverb::verbs::{Completion, Device, Error, ProtectionDomain, RecvRequest, SendRequest};
use common::{End, connect};
use random::Random;

fn domain() -> ProtectionDomain {
    Device::open("soft").unwrap().create_protection_domain().unwrap()
}

/// Returns a pool with one partition, which all threads share.
fn one_partition() -> Pool {
    Pool::builder().partitions(1).create(&domain())
}

impl Random {
    /// Returns a length of up to `bits` bits. Short lengths are as frequent as long ones.
    fn len(&mut self, bits: usize) -> usize {
        let bits = self.below(bits) + 1;
        self.below(1 << bits)
    }
}

#[test]
fn a_buffer_has_its_length_and_returns_to_the_pool() {
    let pool = one_partition();
    assert_eq!(pool.stats().registered_bytes, 0);
    for len in [0, 1, 63, 64, 65, 4096, 5000, 1 << 20, (3 << 20) + 1] {
        let mut buffer = pool.allocate(len).unwrap();
        assert_eq!(buffer.len(), len);
        assert!(buffer.capacity() >= len);
        buffer.fill(7);
        assert_eq!(pool.stats().used_bytes, buffer.capacity());
        drop(buffer);
        assert_eq!(pool.stats().used_bytes, 0);
    }
    assert!(matches!(pool.allocate(Pool::MAX_BUFFER_LEN + 1), Err(Error::LimitExceeded { .. })));
    pool.release_idle();
    assert_eq!((pool.stats().registered_bytes, pool.stats().chunk_count), (0, 0));
}

#[test]
fn live_buffers_share_no_byte() {
    let (pool, mut random) = (one_partition(), Random(1));
    let mut held: Vec<(PoolBuf, u8)> = Vec::new();
    for round in 0..20_000 {
        if !held.is_empty() && random.below(100) < 48 {
            let (buffer, value) = held.swap_remove(random.below(held.len()));
            assert!(
                buffer.iter().all(|byte| *byte == value),
                "round {round}: another buffer was written here"
            );
        } else {
            let mut buffer = pool.allocate(random.len(13)).unwrap();
            let value = round as u8;
            buffer.fill(value);
            held.push((buffer, value));
        }
    }
    let sum: usize = held.iter().map(|(buffer, _)| buffer.capacity()).sum();
    assert_eq!(pool.stats().used_bytes, sum);
}

#[test]
fn empty_chunks_above_the_idle_limit_are_released() {
    let pool = Pool::builder().partitions(1).max_idle_bytes(5 << 20).create(&domain());
    let mut held: Vec<PoolBuf> = (0..4096).map(|_| pool.allocate(4096).unwrap()).collect();
    let full = pool.stats();
    assert!(full.chunk_count > 4 && full.registered_bytes >= 16 << 20, "{full:?}");
    // The order is random, so that no chunk is empty before most are nearly empty.
    let mut random = Random(2);
    while !held.is_empty() {
        held.swap_remove(random.below(held.len()));
    }
    let kept = pool.stats();
    assert_eq!(kept.used_bytes, 0);
    assert!((3 << 20..=5 << 20).contains(&kept.registered_bytes), "{kept:?}");
    pool.release_idle();
    assert_eq!(pool.stats().registered_bytes, 0);
    // A chunk longer than the limit isn't kept.
    drop(pool.allocate(6 << 20).unwrap());
    assert_eq!(pool.stats().chunk_count, 0);
}

#[test]
fn idle_memory_is_limited_for_all_sizes_and_threads_together() {
    const MAX_IDLE: usize = 4 << 20;
    let pool = Pool::builder().partitions(4).max_idle_bytes(MAX_IDLE).create(&domain());
    for _ in 0..3 {
        for len in [100, 3000, 5000, 40_000, 100_000, 900_000] {
            // Each thread allocates as much as the whole pool may keep.
            let alloc_all = || (0..MAX_IDLE / len).map(|_| pool.allocate(len).unwrap()).collect::<Vec<_>>();
            std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(|| drop(alloc_all())))));
            let kept = pool.stats();
            assert!(kept.used_bytes == 0 && kept.registered_bytes <= MAX_IDLE, "{len}: {kept:?}");
        }
    }
    // Nearly all kept memory has one size. Single buffers of another size still reuse their memory.
    drop((0..MAX_IDLE / 900_000).map(|_| pool.allocate(900_000).unwrap()).collect::<Vec<_>>());
    let address = || pool.allocate(200_000).unwrap().as_ptr();
    drop((pool.allocate(200_000).unwrap(), pool.allocate(200_000).unwrap()));
    let first = address();
    for round in 0..100 {
        assert_eq!(address(), first, "round {round}: new memory");
    }
    assert!((MAX_IDLE / 2..=MAX_IDLE).contains(&pool.stats().registered_bytes), "{:?}", pool.stats());
    pool.release_idle();
    assert_eq!(pool.stats().registered_bytes, 0);
    // Released memory doesn't count toward the limit.
    drop((0..3).map(|_| pool.allocate(1 << 20).unwrap()).collect::<Vec<_>>());
    assert!(pool.stats().registered_bytes >= 3 << 20, "{:?}", pool.stats());
}

#[test]
fn repeated_allocations_reuse_memory() {
    let pool = one_partition();
    let alloc_all = || (0..8).map(|_| pool.allocate(1 << 20).unwrap()).collect::<Vec<_>>();
    let addresses = |buffers: &[PoolBuf]| {
        let mut addresses: Vec<_> = buffers.iter().map(|buffer| buffer.as_ptr()).collect();
        addresses.sort_unstable();
        addresses
    };
    let first = alloc_all();
    let known = addresses(&first);
    drop(first);
    for _ in 0..3 {
        assert!(addresses(&alloc_all()) == known);
    }
}

#[test]
fn a_pool_at_its_limit_fails_and_uses_free_memory_of_all_partitions() {
    let pool = Pool::builder().partitions(4).max_bytes(128 << 10).create(&domain());
    let first = pool.allocate(100 << 10).unwrap();
    let error = pool.allocate(100 << 10).unwrap_err();
    assert!(matches!(error, Error::LimitExceeded { .. }), "{error}");
    // No memory is left for another size class, but the empty chunk of this one can be released.
    drop(first);
    assert!(pool.allocate(60 << 10).is_ok());
    pool.release_idle();
    // Threads of other partitions find free buffers.
    std::thread::scope(|scope| {
        let all: Vec<PoolBuf> = std::iter::from_fn(|| pool.allocate(4096).ok()).collect();
        assert_eq!(all.len(), 32);
        drop(all);
        for _ in 0..8 {
            scope.spawn(|| drop(pool.allocate(4096).unwrap()));
        }
    });
}

#[test]
fn parts_share_no_byte_and_return_to_the_pool_together() {
    let (pool, mut random) = (one_partition(), Random(3));
    for _ in 0..500 {
        let len = 1 + random.len(12);
        let mut whole = pool.allocate(len).unwrap();
        for (n, byte) in whole.iter_mut().enumerate() {
            *byte = n as u8;
        }
        let capacity = whole.capacity();
        // Each part with its offset.
        let mut parts = vec![(whole, 0)];
        for _ in 0..random.below(12) {
            let at = random.below(parts.len());
            let (part, start) = &mut parts[at];
            let cut = random.below(part.len() + 1);
            let new = match random.below(2) {
                0 => (part.split_off(cut).unwrap(), *start + cut),
                _ => {
                    let first = part.split_to(cut).unwrap();
                    let new = (first, *start);
                    *start += cut;
                    new
                }
            };
            assert!(part.split_off(part.len() + 1).is_err());
            parts.push(new);
        }
        assert_eq!(parts.iter().map(|(part, _)| part.len()).sum::<usize>(), len);
        assert_eq!(parts.iter().map(|(part, _)| part.capacity()).sum::<usize>(), capacity);
        for (part, start) in &mut parts {
            // The bytes after a part's length still belong to it.
            part.resize(part.capacity()).unwrap();
            assert!(part.resize(part.capacity() + 1).is_err());
            for (n, byte) in (*start..len).zip(part.iter_mut()) {
                assert_eq!(*byte, n as u8);
                *byte = 0xee;
            }
            part.fill(0xee);
        }
        if random.below(2) == 0 {
            // Unsplit in order, the parts form the original buffer.
            parts.sort_by_key(|(part, start)| (*start, part.capacity()));
            let mut parts = parts.into_iter().map(|(part, _)| part);
            let mut whole = parts.next().unwrap();
            for part in parts {
                whole.unsplit(part).unwrap();
            }
            let unrelated = pool.allocate(len).unwrap();
            assert!(whole.unsplit(unrelated).is_err());
            assert_eq!((whole.len(), whole.capacity()), (capacity, capacity));
            drop(whole);
            assert_eq!(pool.stats().used_bytes, 0);
            continue;
        }
        while !parts.is_empty() {
            assert_eq!(pool.stats().used_bytes, capacity);
            parts.swap_remove(random.below(parts.len()));
        }
        assert_eq!(pool.stats().used_bytes, 0);
    }
}

#[test]
fn frozen_bytes_return_to_the_pool_with_their_last_part() {
    let pool = one_partition();
    let mut buffer = pool.allocate_copy(b"header and body").unwrap();
    let body = buffer.split_off(11).unwrap().freeze();
    let parts = [body.slice(0..2), body.slice(2..4), body];
    drop(buffer);
    for (part, expected) in parts.into_iter().zip([&b"bo"[..], b"dy", b"body"]) {
        assert_eq!(pool.stats().used_bytes, 64);
        std::thread::spawn(move || assert_eq!(part, expected)).join().unwrap();
    }
    assert_eq!(pool.stats().used_bytes, 0);
}

#[test]
fn buffers_outlive_their_pool() {
    let pool = one_partition();
    let mut first = pool.allocate_copy(&[1; 100]).unwrap();
    let second = first.split_off(50).unwrap();
    let third = pool.allocate_copy(&[3; 5000]).unwrap();
    drop((pool.clone(), pool));
    assert_eq!((&first[..], &second[..], &third[..]), (&[1; 50][..], &[1; 50][..], &[3; 5000][..]));
    std::thread::spawn(move || drop(first)).join().unwrap();
    drop(third);
    assert_eq!(second[..], [1; 50]);
}

#[test]
fn threads_may_free_buffers_of_other_threads() {
    const THREADS: usize = 4;
    const ROUNDS: usize = 20_000;
    let pool = Pool::builder().partitions(2).create(&domain());
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..THREADS).map(|_| channel()).unzip();
    let start = Barrier::new(THREADS);
    std::thread::scope(|scope| {
        for (number, receiver) in receivers.into_iter().enumerate() {
            let (pool, senders, start) = (pool.clone(), senders.clone(), &start);
            scope.spawn(move || {
                let mut random = Random(number as u64);
                start.wait();
                let check = |(buffer, value): (PoolBuf, u8)| {
                    assert!(buffer.iter().all(|byte| *byte == value), "another buffer was written here");
                };
                for round in 0..ROUNDS {
                    let mut buffer = pool.allocate(random.len(11)).unwrap();
                    let value = (round * THREADS + number) as u8;
                    buffer.fill(value);
                    // Some buffers are split, and their parts are freed on different threads.
                    if random.below(4) == 0 {
                        let rest = buffer.split_off(random.below(buffer.len() + 1)).unwrap();
                        senders[random.below(THREADS)].send((rest, value)).unwrap();
                    }
                    senders[random.below(THREADS)].send((buffer, value)).unwrap();
                    receiver.try_iter().take(3).for_each(check);
                }
                drop(senders);
                // When the last thread drops its senders, all receivers end.
                receiver.into_iter().for_each(check);
            });
        }
        drop(senders);
    });
    assert_eq!(pool.stats().used_bytes, 0);
}

#[test]
fn the_last_buffer_and_the_pool_may_be_dropped_concurrently() {
    for round in 0..2_000 {
        let pool = one_partition();
        let mut buffers: Vec<PoolBuf> = (0..3).map(|_| pool.allocate(64).unwrap()).collect();
        buffers.push(pool.allocate(100_000).unwrap());
        let last = buffers.pop();
        let start = Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                start.wait();
                drop(buffers);
                drop(last);
            });
            start.wait();
            if round % 2 == 0 { drop(pool) } else { pool.release_idle() }
        });
    }
}

#[test]
fn requests_own_pool_buffers() {
    let device = Device::open("soft").unwrap();
    let domain = device.create_protection_domain().unwrap();
    let end = || End::with(domain.clone(), device.completion_queue(64).events().create().unwrap(), 16);
    let (left, right) = (end(), end());
    connect(&left, &right);
    let pool = Pool::new(&domain);

    let mut buffer = pool.allocate(4096).unwrap();
    buffer.fill(0);
    let receiving = right.queue_pair.post_recv(buffer).unwrap();
    let sent = left.run(SendRequest::send(pool.allocate_copy(b"hello").unwrap()));
    assert_eq!(sent.into_pool_buf().as_deref(), Some(&b"hello"[..]));
    let message = right.wait(receiving).into_pool_message().unwrap();
    assert_eq!(&message[..], b"hello");

    // Two halves of one buffer are written to parts of a region.
    let region = domain
        .allocate_region(
            64,
            adverb::verbs::Access::LOCAL_WRITE
                | adverb::verbs::Access::REMOTE_WRITE
                | adverb::verbs::Access::REMOTE_READ,
        )
        .unwrap();
    let mut first = pool.allocate_copy(b"left right").unwrap();
    let second = first.split_off(5).unwrap();
    assert!(left.run(SendRequest::write(second, region.remote().at(5))).is_ok());
    assert!(left.run(SendRequest::write(first, region.remote().at(0))).is_ok());
    let read: Completion = left.run(SendRequest::read(pool.allocate(10).unwrap(), region.remote().at(0)));
    assert_eq!(read.into_pool_buf().as_deref(), Some(&b"left right"[..]));

    // Buffers in flight return to the pool when the queue pair and the pool are dropped.
    for _ in 0..4 {
        right.queue_pair.post_recv(RecvRequest::new(pool.allocate(64).unwrap())).unwrap();
    }
    let pool_handle = pool.clone();
    drop((pool, message, left, right.queue_pair));
    assert_eq!(pool_handle.stats().used_bytes, 0);
}
