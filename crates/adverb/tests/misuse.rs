//! Incorrect uses of a device: each is rejected or has no effect, and none misuses memory.
//!
//! The tests use the device that `ADVERB_DEVICE` names, or the first one. Without a device they print the reason and
//! are skipped. `cargo xtask asan` runs them on soft-RoCE with AddressSanitizer.

use std::fs::File;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use adverb::memory::{Buffer, Pages, Pool};
use adverb::verbs::{
    Access, Completion, CompletionQueue, Device, Error, PostError, ProtectionDomain, QpState, QueuePair,
    RecvRequest, Result, SendRequest, Transport,
};

const TIMEOUT: Duration = Duration::from_secs(10);
const QKEY: u32 = 0x1111_1111;

/// Opens a device. Without one the test prints the reason and is skipped.
fn device() -> Option<Device> {
    let device = match std::env::var("ADVERB_DEVICE") {
        Ok(name) => Device::open(&name),
        Err(_) => Device::open_first(),
    };
    device.inspect_err(|error| println!("SKIPPED: {error}")).ok()
}

/// One side of a connection.
struct Side {
    domain: ProtectionDomain,
    completions: CompletionQueue,
    queue_pair: QueuePair,
}

impl Side {
    fn new(device: &Device, transport: Transport) -> Result<Side> {
        let completions = device.completion_queue(64).events().create()?;
        Side::with(device, transport, completions)
    }

    fn with(device: &Device, transport: Transport, completions: CompletionQueue) -> Result<Side> {
        let domain = device.create_protection_domain()?;
        let builder = domain.queue_pair(transport).completion_queue(&completions);
        let queue_pair = builder.depth(16, 16).qkey(QKEY).create()?;
        Ok(Side { domain, completions, queue_pair })
    }
}

fn connected(device: &Device) -> Result<(Side, Side)> {
    let (left, right) = (Side::new(device, Transport::Rc)?, Side::new(device, Transport::Rc)?);
    connect(&left, &right)?;
    Ok((left, right))
}

fn connect(left: &Side, right: &Side) -> Result<()> {
    left.queue_pair.connect(&right.queue_pair.endpoint())?;
    right.queue_pair.connect(&left.queue_pair.endpoint())
}

fn is_rejected<T>(result: Result<T, impl Into<Error>>) -> bool {
    matches!(result.map_err(Into::into), Err(Error::InvalidRequest { .. }))
}

#[test]
fn a_region_with_remote_access_or_other_handles_doesnt_become_a_buffer() -> Result<()> {
    let Some(device) = device() else { return Ok(()) };
    let domain = device.create_protection_domain()?;
    let access = Access::LOCAL_WRITE;
    for remote_access in
        [Access::REMOTE_WRITE, Access::REMOTE_READ, Access::REMOTE_ATOMIC, Access::WINDOW_BIND]
    {
        match domain.allocate_region(4096, access | remote_access) {
            Ok(region) => assert!(region.into_buffer().is_err(), "{remote_access:?}"),
            Err(error) => println!("{remote_access:?}: {error}"),
        }
    }
    let region = domain.allocate_region(4096, access)?;
    let another = region.clone();
    let region = region.into_buffer().expect_err("another handle exists");
    let slice = another.slice(0..8)?;
    drop(another);
    let region = region.into_buffer().expect_err("a slice exists");
    drop(slice);
    assert_eq!(region.into_buffer().expect("no other handle exists").len(), 4096);
    Ok(())
}

#[test]
fn memory_shared_with_other_processes_doesnt_become_a_buffer() -> Result<(), Box<dyn std::error::Error>> {
    let Some(device) = device() else { return Ok(()) };
    let pages = Pages::memfd("misuse", 4096)?;
    let mut file = File::from(pages.as_memfd().expect("the memory is a memfd").try_clone_to_owned()?);
    let region = device.create_protection_domain()?.register(pages, Access::LOCAL_WRITE)?;
    let region = region.into_buffer().expect_err("processes with the descriptor can write to it");
    file.write_all(b"changed")?;
    let mut bytes = [0; 7];
    region.read(0, &mut bytes)?;
    assert_eq!(&bytes, b"changed");
    assert!(file.set_len(0).is_err(), "reading the region after a truncation would raise SIGBUS");
    region.read(0, &mut bytes)?;
    Ok(())
}

#[test]
fn objects_of_two_devices_cant_be_combined() -> Result<()> {
    let Some(device) = device() else { return Ok(()) };
    let other = match device.name() {
        // A second `open` would return the same device.
        "soft" => Device::open("soft:127.83.7.9")?,
        // The same device, opened twice: handles of one mean other objects, or none, to the other.
        name => Device::open(name)?,
    };
    let domain = device.create_protection_domain()?;
    let (ours, theirs) = (device.completion_queue(64).create()?, other.completion_queue(64).create()?);
    let builder = || domain.queue_pair(Transport::Rc).depth(4, 4).completion_queue(&ours);
    assert!(is_rejected(builder().send_completion_queue(&theirs).create()));
    assert!(is_rejected(builder().recv_completion_queue(&theirs).create()));
    let shared = other.create_protection_domain()?.shared_receive_queue(4).create()?;
    assert!(is_rejected(builder().shared_receive_queue(&shared).create()));

    let (left, right) = (Side::new(&device, Transport::Ud)?, Side::new(&other, Transport::Ud)?);
    left.queue_pair.move_to_rts()?;
    right.queue_pair.move_to_rts()?;
    let destination = right.queue_pair.create_ud_destination(&left.queue_pair.endpoint(), QKEY)?;
    let request = SendRequest::send(left.domain.allocate_buffer(8)?).destination(&destination);
    assert!(is_rejected(left.queue_pair.post_send(request)));
    Ok(())
}

#[test]
fn objects_may_be_dropped_in_any_order_with_requests_in_flight() -> Result<()> {
    let Some(device) = device() else { return Ok(()) };
    for order in 0..24 {
        let (left, right) = connected(&device)?;
        for side in [&left, &right] {
            for _ in 0..8 {
                side.queue_pair.post_recv(side.domain.allocate_buffer(4096)?)?;
            }
        }
        for _ in 0..8 {
            left.queue_pair.post_send(SendRequest::send(left.domain.allocate_buffer(4096)?).unsignaled())?;
        }
        let Side { domain, completions, queue_pair } = left;
        let mut objects: Vec<Box<dyn std::any::Any>> =
            vec![Box::new(queue_pair), Box::new(completions), Box::new(domain), Box::new(right)];
        // The permutation with the index `order`.
        for (left, digit) in [(4, order % 4), (3, order / 4 % 3), (2, order / 12 % 2), (1, 0)] {
            assert_eq!(objects.len(), left);
            drop(objects.remove(digit));
        }
    }
    Ok(())
}

#[test]
fn a_completion_of_a_destroyed_queue_pair_is_not_attributed_to_another() -> Result<()> {
    let Some(device) = device() else { return Ok(()) };
    let completions = device.completion_queue(64).create()?;
    let sender = Side::new(&device, Transport::Rc)?;
    let receiver = Side::with(&device, Transport::Rc, completions.clone())?;
    connect(&sender, &receiver)?;
    receiver.queue_pair.post_recv(receiver.domain.allocate_buffer(64)?)?;
    let sent = sender.queue_pair.post_send(SendRequest::send(sender.domain.allocate_buffer(64)?))?;
    sender.completions.wait(sent, TIMEOUT)?.result()?;
    // The receiver's completion is in the queue now, or soon will be, and isn't polled.
    drop(receiver);
    // The ids wrap after this number of queue pairs, so the last one has the same id.
    let domain = device.create_protection_domain()?;
    let mut out = Vec::<Completion>::new();
    for round in 1..=1024 {
        let builder = domain.queue_pair(Transport::Rc).completion_queue(&completions);
        let queue_pair = builder.depth(16, 16).create()?;
        if round == 1024 {
            queue_pair.post_recv(domain.allocate_buffer(64)?)?;
            completions.poll(&mut out)?;
            assert!(out.is_empty(), "{out:?} for a request that did not complete");
        }
    }
    assert!(completions.stale_completion_count() <= 1);
    Ok(())
}

#[test]
fn the_iterator_of_a_batch_may_poll_and_post() -> Result<()> {
    let Some(device) = device() else { return Ok(()) };
    let (left, right) = connected(&device)?;
    let mut out = Vec::new();
    let buffers: Vec<Buffer> = (0..4).map(|_| right.domain.allocate_buffer(64)).collect::<Result<_>>()?;
    right.queue_pair.post_recvs(buffers.into_iter().inspect(|_| {
        right.queue_pair.post_recv(right.domain.allocate_buffer(64).unwrap()).unwrap();
    }))?;
    assert_eq!(right.queue_pair.outstanding_recv_count(), 8);
    left.queue_pair.post_sends((0..4).map(|_| {
        left.completions.poll(&mut out).unwrap();
        left.queue_pair.post_send(SendRequest::send(left.domain.allocate_buffer(64).unwrap())).unwrap();
        SendRequest::send(left.domain.allocate_buffer(64).unwrap())
    }))?;
    while out.len() < 8 {
        assert_ne!(left.completions.poll_timeout(&mut out, TIMEOUT)?, 0, "{} of 8 completions", out.len());
    }
    assert!(out.iter().all(Completion::is_ok));
    Ok(())
}

#[test]
fn a_panic_in_the_iterator_of_a_batch_posts_nothing() -> Result<()> {
    let Some(device) = device() else { return Ok(()) };
    let (left, right) = connected(&device)?;
    let posted = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _ = right.queue_pair.post_recvs((0..4).map(|n| {
            assert!(n < 2, "injected panic");
            right.domain.allocate_buffer(64).unwrap()
        }));
    }));
    assert!(posted.is_err());
    assert_eq!(right.queue_pair.outstanding_recv_count(), 0);
    right.queue_pair.post_recvs([right.domain.allocate_buffer(64)?])?;
    let sent = left.queue_pair.post_send(SendRequest::send(left.domain.allocate_buffer(64)?))?;
    left.completions.wait(sent, TIMEOUT)?.result()?;
    Ok(())
}

#[test]
fn nothing_is_posted_behind_the_markers_of_a_drain() -> Result<()> {
    let Some(device) = device() else { return Ok(()) };
    let (left, right) = connected(&device)?;
    let Side { domain, queue_pair, .. } = &left;
    // The peer has no receives, so no message is delivered.
    for tag in 0..4 {
        queue_pair.post_recv(RecvRequest::new(domain.allocate_buffer(64)?).tag(tag))?;
        queue_pair.post_send(SendRequest::send(domain.allocate_buffer(64)?).tag(tag).unsignaled())?;
    }
    assert!(!queue_pair.poll_drain()?, "a drain that was not begun has ended");
    queue_pair.begin_drain()?;
    let mut out = Vec::new();
    drain(&left, &mut out, || {
        let sent = queue_pair.post_send(SendRequest::send(domain.allocate_buffer(64).unwrap()));
        assert!(
            matches!(sent, Err(PostError { error: Error::WrongState { .. }, requests }) if requests.len() == 1)
        );
        let received = queue_pair.post_recv(domain.allocate_buffer(64).unwrap());
        assert!(
            matches!(received, Err(PostError { error: Error::WrongState { .. }, requests }) if requests.len() == 1)
        );
        // A second drain has no effect, and asking the device for the state doesn't permit posting.
        queue_pair.begin_drain().unwrap();
        assert_eq!(queue_pair.state().unwrap(), QpState::Error);
    })?;
    let mut tags: Vec<u64> = out.iter().map(Completion::tag).collect();
    tags.sort_unstable();
    assert_eq!(tags, [0, 0, 1, 1, 2, 2, 3, 3]);
    assert!(out.iter().all(|completion| !completion.is_ok()), "{out:?}");
    // The queue pair can be used again.
    assert!(queue_pair.reset()?.is_empty() && right.queue_pair.reset()?.is_empty());
    assert!(!queue_pair.poll_drain()?, "a queue pair that was reset is drained");
    connect(&left, &right)?;
    exchange(&left, &right)
}

#[test]
fn a_reset_cancels_a_drain_and_returns_the_requests() -> Result<()> {
    let Some(device) = device() else { return Ok(()) };
    // In full queues the markers wait for an entry; otherwise they are in flight.
    for count in [16, 15] {
        let (left, right) = connected(&device)?;
        let Side { domain, queue_pair, .. } = &left;
        for tag in 0..count {
            queue_pair.post_send(SendRequest::send(domain.allocate_buffer(64)?).tag(tag))?;
            queue_pair.post_recv(RecvRequest::new(domain.allocate_buffer(64)?).tag(100 + tag))?;
        }
        queue_pair.begin_drain()?;
        let left_over = queue_pair.reset()?;
        let tags: Vec<u64> = left_over.iter().map(|request| request.tag).collect();
        assert_eq!(tags, (0..count).chain(100..100 + count).collect::<Vec<_>>());
        assert!(left_over.into_iter().all(|request| request.payload.into_buffer().is_some()));
        assert!(!queue_pair.poll_drain()?, "the drain has ended by itself");
        right.queue_pair.reset()?;
        connect(&left, &right)?;
        assert!(!queue_pair.poll_drain()?, "the drain continues");
        // Completions of the requests and markers before the reset are not attributed to later requests.
        exchange(&left, &right)?;
        queue_pair.begin_drain()?;
        let mut out = Vec::new();
        drain(&left, &mut out, || ())?;
        assert!(out.is_empty(), "{out:?}");
    }
    Ok(())
}

#[test]
fn resets_without_polls_leave_room_in_the_completion_queue() -> Result<()> {
    let Some(device) = device() else { return Ok(()) };
    let side = || Side::with(&device, Transport::Rc, device.completion_queue(32).events().create()?);
    let (left, right) = (side()?, side()?);
    for _ in 0..4 {
        connect(&left, &right)?;
        for _ in 0..16 {
            left.queue_pair.post_recv(left.domain.allocate_buffer(64)?)?;
            left.queue_pair.post_send(SendRequest::send(left.domain.allocate_buffer(64)?))?;
        }
        left.queue_pair.move_to_error()?;
        assert_eq!(left.queue_pair.reset()?.len(), 32);
        right.queue_pair.reset()?;
    }
    connect(&left, &right)?;
    exchange(&left, &right)
}

#[test]
fn a_drain_that_races_with_a_reset_returns_each_request_once() -> Result<()> {
    let Some(device) = device() else { return Ok(()) };
    let side = Side::new(&device, Transport::Rc)?;
    let Side { domain, completions, queue_pair } = &side;
    let (mut posted, mut returned) = (0, 0);
    let mut out = Vec::new();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                // The calls fail in some states. The threads must not post a marker in a state in which it is executed.
                let _ = queue_pair.begin_drain();
                let _ = queue_pair.poll_drain();
                let _ = queue_pair.state();
            }
        });
        for _ in 0..300 {
            returned += queue_pair.reset().map_or(0, |requests| requests.len());
            let _ = queue_pair.connect(&queue_pair.endpoint());
            for _ in 0..4 {
                let buffer = domain.allocate_buffer(64).unwrap();
                posted += usize::from(queue_pair.post_recv(buffer).is_ok());
            }
            returned += completions.poll(&mut out).unwrap();
        }
        is_over.store(true, Ordering::Relaxed);
    });
    returned += queue_pair.reset()?.len();
    returned += completions.poll(&mut out)?;
    assert_eq!(returned, posted);
    // No peer sends a message, so a receive that succeeds has consumed a marker.
    assert!(out.iter().all(|completion| !completion.is_ok()), "{out:?}");
    Ok(())
}

#[test]
fn a_drain_of_a_queue_pair_that_was_never_connected_ends() -> Result<()> {
    let Some(device) = device() else { return Ok(()) };
    let side = Side::new(&device, Transport::Rc)?;
    side.queue_pair.post_recv(side.domain.allocate_buffer(64)?)?;
    side.queue_pair.begin_drain()?;
    let mut out = Vec::new();
    drain(&side, &mut out, || ())?;
    assert_eq!(out.len(), 1);
    // A datagram queue pair has no markers.
    assert!(is_rejected(Side::new(&device, Transport::Ud)?.queue_pair.begin_drain()));
    // The markers may be in flight when the queue pair is dropped.
    for polls in [false, true] {
        let (left, _right) = connected(&device)?;
        left.queue_pair.post_recv(left.domain.allocate_buffer(64)?)?;
        left.queue_pair.begin_drain()?;
        drop(left.queue_pair);
        if polls {
            left.completions.poll(&mut out)?;
        }
    }
    assert_eq!(out.len(), 1, "a completion of a queue pair that was dropped is returned");
    Ok(())
}

#[test]
fn a_registered_pool_buffer_with_other_users_is_not_taken_back() -> Result<()> {
    let Some(device) = device() else { return Ok(()) };
    let domain = device.create_protection_domain()?;
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let region = Pool::new(&domain).allocate_copy(&[7; 4096])?.register(access)?;
    let another = region.clone();
    let region = region.into_pool_buf().expect_err("another handle exists");
    let slice = another.slice(0..8)?;
    drop(another);
    let region = region.into_pool_buf().expect_err("a slice exists");
    drop(slice);
    let again = region.register_in(&device.create_protection_domain()?, access)?;
    let region = region.into_pool_buf().expect_err("the memory is registered again");
    let again = again.into_pool_buf().expect_err("the buffer belongs to the first region");
    again.write(0, &[8])?;
    drop(again);
    let buffer = region.into_pool_buf().expect("no other user exists");
    assert_eq!(buffer[..2], [8, 7]);

    let region = domain.allocate_region(4096, Access::LOCAL_WRITE)?;
    let region = region.into_pool_buf().expect_err("the region has no pool buffer");
    let again = region.register_in(&domain, Access::LOCAL_WRITE)?;
    let again = again.into_buffer().expect_err("another region has the memory");
    let region = region.into_buffer().expect_err("another region has the memory");
    drop(again);
    assert_eq!(region.into_buffer().expect("no other region exists").len(), 4096);
    Ok(())
}

/// Polls until the queue pair is drained, and calls `meanwhile` before each poll.
fn drain(side: &Side, out: &mut Vec<Completion>, meanwhile: impl Fn()) -> Result<()> {
    let deadline = Instant::now() + TIMEOUT;
    while !side.queue_pair.poll_drain()? {
        assert!(Instant::now() < deadline, "the drain did not end: {out:?}");
        meanwhile();
        side.completions.poll(out)?;
    }
    meanwhile();
    side.completions.poll(out)?;
    assert_eq!((side.queue_pair.outstanding_send_count(), side.queue_pair.outstanding_recv_count()), (0, 0));
    Ok(())
}

/// Sends a message, and checks that both sides have its completion and no other.
fn exchange(left: &Side, right: &Side) -> Result<()> {
    right.queue_pair.post_recv(RecvRequest::new(right.domain.allocate_buffer(64)?).tag(7001))?;
    let message = SendRequest::send(left.domain.allocate_buffer(64)?).tag(7000);
    left.queue_pair.post_send(message)?;
    for (side, tag) in [(left, 7000), (right, 7001)] {
        let mut out = Vec::new();
        assert_ne!(side.completions.poll_timeout(&mut out, TIMEOUT)?, 0, "no completion of {tag}");
        assert!(matches!(&out[..], [one] if one.tag() == tag && one.is_ok()), "{out:?}");
    }
    Ok(())
}

#[test]
fn a_datagram_in_a_pool_buffer_is_a_pool_message() -> Result<()> {
    let Some(device) = device() else { return Ok(()) };
    let (left, right) = (Side::new(&device, Transport::Ud)?, Side::new(&device, Transport::Ud)?);
    left.queue_pair.move_to_rts()?;
    right.queue_pair.move_to_rts()?;
    let pool = Pool::new(&right.domain);
    let destination = left.queue_pair.create_ud_destination(&right.queue_pair.endpoint(), QKEY)?;
    let exchange = || -> Result<Completion> {
        let len = 40 + right.queue_pair.max_message_size() as usize;
        let receiving = right.queue_pair.post_recv(pool.allocate(len)?)?;
        let mut message = left.domain.allocate_buffer(8)?;
        message.copy_from_slice(b"datagram");
        left.queue_pair.post_send(SendRequest::send(message).destination(&destination))?;
        right.completions.wait(receiving, TIMEOUT)
    };
    let error = exchange()?.into_datagram().expect_err("a pool buffer");
    assert!(error.to_string().contains("`into_pool_message`"), "{error}");
    let mut message = exchange()?.into_pool_message()?;
    message.split_to(40)?;
    assert_eq!(&message[..], b"datagram");
    Ok(())
}
