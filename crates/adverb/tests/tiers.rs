//! The other two tiers of posting: requests that borrow their memory, and raw requests.

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use adverb::verbs::raw::{Completions, Segment, SendFlags, SendOperation};
use adverb::verbs::{Access, CompletedOperation, Error, QpState, SendRequest, Status};

use common::{End, TIMEOUT, assert_logs_no_error, device, pair};

/// Returns a region that the peer may read and write.
fn shared(end: &End, len: usize) -> adverb::memory::MemoryRegion {
    end.domain.allocate_region(len, Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ).unwrap()
}

#[test]
fn requests_of_a_scope_borrow_their_memory() {
    let Some(device) = device() else { return };
    let (mut left, right) = pair(&device, 32, true);
    let region = shared(&right, 8192);
    let page = left.buffer(7, 1024);
    let mut copy = left.buffer(0, 4096);
    let written = left.queue_pair.scope(TIMEOUT, |scope| {
        // The same memory is used by several requests, and read meanwhile.
        let mut last = None;
        for n in 0..8 {
            last = Some(scope.write(&page, region.remote().at(n * 1024))?);
        }
        assert_eq!(page[0], 7);
        let success = scope.wait(last.unwrap())?;
        assert_eq!(success.operation, CompletedOperation::Write);
        scope.read(&mut copy, region.remote().at(2048))?;
        Ok::<_, Error>(8)
    });
    assert_eq!(written.unwrap().unwrap(), 8);
    assert!(copy.iter().all(|byte| *byte == 7));
    // Completions that weren't waited for are consumed, and not polled later.
    let mut out = Vec::new();
    assert_eq!(left.completions.poll(&mut out).unwrap(), 0);
    assert_eq!(left.queue_pair.outstanding_send_count(), 0);
}

#[test]
fn the_error_of_a_failed_request_names_the_peer_while_the_queue_pair_is_connected() {
    let Some(device) = device() else { return };
    let (left, right) = pair(&device, 8, true);
    let flushed_peer = || {
        let id = left.queue_pair.post_recv(left.buffer(0, 64)).unwrap();
        left.queue_pair.move_to_error().unwrap();
        let completion = left.completions.wait(id, TIMEOUT).unwrap();
        match completion.result() {
            Err(Error::RequestFailed { failure, is_receive: true, peer })
                if failure.status == Status::Flushed =>
            {
                peer
            }
            other => panic!("{other:?}"),
        }
    };
    let address = right.queue_pair.endpoint().gid.udp_addr().ip();
    assert_eq!(flushed_peer(), Some(address));
    let _payloads = left.queue_pair.reset().unwrap();
    assert_eq!(flushed_peer(), None);
}

#[test]
fn messages_are_sent_and_received_in_borrowed_memory() {
    let Some(device) = device() else { return };
    let (mut left, mut right) = pair(&device, 8, true);
    let (message, mut received) = (left.buffer(1, 100), right.buffer(0, 4096));
    let result = std::thread::scope(|threads| {
        let receiving = threads.spawn(|| {
            right.queue_pair.scope(TIMEOUT, |scope| {
                let id = scope.recv(&mut received)?;
                scope.wait(id)
            })
        });
        left.queue_pair.scope(TIMEOUT, |scope| scope.send_with_imm(&message, 5)).unwrap().unwrap();
        receiving.join().unwrap()
    });
    let success = result.unwrap().unwrap();
    let CompletedOperation::Recv { immediate: Some(5), .. } = success.operation else {
        panic!("{success:?}");
    };
    assert_eq!(success.length, 100);
    assert_eq!((&received[..100], received[100]), (&message[..], 0));
}

#[test]
fn a_panic_in_a_scope_waits_for_outstanding_requests() {
    let Some(device) = device() else { return };
    let (mut left, right) = pair(&device, 8, true);
    let region = shared(&right, 1 << 20);
    let page = left.buffer(9, 1 << 20);
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        left.queue_pair.scope(TIMEOUT, |scope| {
            scope.write(&page, region.remote().at(0)).unwrap();
            panic!("injected panic");
        })
    }));
    assert!(panicked.is_err());
    assert_eq!(left.queue_pair.outstanding_send_count(), 0);
    let mut last = [0];
    region.read((1 << 20) - 1, &mut last).unwrap();
    assert_eq!(last, [9]);
}

#[test]
fn a_scope_that_times_out_makes_the_queue_pair_unusable() {
    let Some(device) = device() else { return };
    assert_logs_no_error(|| {
        let (mut left, right) = pair(&device, 8, true);
        let mut unfilled = left.buffer(3, 64);
        let start = Instant::now();
        let timeout = Duration::from_millis(200);
        let result = left.queue_pair.scope(timeout, |scope| scope.recv(&mut unfilled).map(|_| ()));
        assert!(matches!(result, Err(Error::TimedOut { .. })), "{result:?}");
        assert!(start.elapsed() >= timeout && start.elapsed() < TIMEOUT);
        // The memory is accessible again, and the queue pair is unusable.
        unfilled.fill(4);
        assert!(matches!(left.queue_pair.state(), Err(Error::WrongState { .. })));
        assert!(left.queue_pair.reset().is_err());
        let rejected = left.queue_pair.post_send(SendRequest::send(left.buffer(0, 8))).unwrap_err();
        assert!(matches!(rejected.error, Error::WrongState { state: QpState::Error, .. }));
        assert!(left.queue_pair.post_recv(left.buffer(0, 8)).is_err());
        let again = left.queue_pair.scope(timeout, |scope| scope.recv(&mut unfilled).map(|_| ()));
        assert!(again.unwrap().is_err());
        drop((left, right));
    });
}

#[test]
fn a_rejected_request_borrows_nothing() {
    let Some(device) = device() else { return };
    let (mut left, _right) = pair(&device, 2, true);
    let (mut first, mut second, mut third) = (left.buffer(1, 64), left.buffer(1, 64), left.buffer(1, 64));
    let full = left.queue_pair.scope(TIMEOUT, |scope| {
        scope.recv(&mut first).unwrap();
        scope.recv(&mut second).unwrap();
        let full = scope.recv(&mut third).unwrap_err();
        // The posted receives are flushed, so that the scope ends in time.
        scope.queue_pair().move_to_error().unwrap();
        full
    });
    assert!(matches!(full, Ok(Error::QueueFull { .. })), "{full:?}");
    let rejected = left.queue_pair.scope(TIMEOUT, |scope| scope.recv(&mut first).map(|_| ())).unwrap();
    assert!(matches!(rejected, Err(Error::WrongState { .. })), "{rejected:?}");
}

#[test]
fn raw_requests_are_posted_and_polled() {
    let Some(device) = device() else { return };
    let (left, right) = pair(&device, 64, false);
    let (source, target) = (shared(&left, 4096), shared(&right, 4096));
    source.write(0, &[5; 4096]).unwrap();
    let at = |offset: u64, length: u32| Segment {
        addr: source.remote().addr + offset,
        length,
        lkey: source.lkey(),
    };
    let mut list = left.queue_pair.raw_send_list();
    let mut completions = Completions::new(8);
    for round in 0..4 {
        list.clear();
        for n in 0..16 {
            let operation = SendOperation::Write(target.remote().at(n * 256));
            // One segment, a short segment, and none.
            let segments: &[Segment] = match n % 3 {
                0 => &[at(0, 256)],
                1 => &[at(256, 100)],
                _ => &[],
            };
            list.add(round * 100 + n, operation, SendFlags::SIGNALED, segments);
        }
        // SAFETY: the regions outlive the requests, whose completions are polled below, and aren't accessed meanwhile.
        // Only this code polls both completion queues.
        unsafe { left.queue_pair.post_raw_sends(&mut list) }.unwrap();
        let start = Instant::now();
        let mut ids = Vec::new();
        while ids.len() < 16 {
            assert!(start.elapsed() < TIMEOUT);
            left.completions.poll_raw(&mut completions).unwrap();
            for completion in completions.iter() {
                assert_eq!(completion.outcome().unwrap().operation, CompletedOperation::Write);
                assert_eq!(completion.qpn(), left.queue_pair.qpn());
                ids.push(completion.id());
            }
        }
        assert!(ids.into_iter().eq(round * 100..round * 100 + 16));
    }
    let mut bytes = [0; 512];
    target.read(0, &mut bytes).unwrap();
    assert!(bytes[..356].iter().all(|byte| *byte == 5) && bytes[356..].iter().all(|byte| *byte == 0));
}

#[test]
fn raw_receives_and_failures_are_polled() {
    let Some(device) = device() else { return };
    let (left, right) = pair(&device, 8, false);
    let (source, target) = (shared(&left, 64), shared(&right, 64));
    source.write(0, b"raw").unwrap();
    let mut recvs = right.queue_pair.raw_recv_list();
    recvs.add(1, &[Segment { addr: target.remote().addr, length: 64, lkey: target.lkey() }]);
    recvs.add(2, &[]);
    let mut sends = left.queue_pair.raw_send_list();
    let segment = Segment { addr: source.remote().addr, length: 3, lkey: source.lkey() };
    sends.add(3, SendOperation::SendWithImm(77), SendFlags::SIGNALED, &[segment]);
    // SAFETY: as above. The last request is flushed before the regions are dropped.
    unsafe {
        right.queue_pair.post_raw_recvs(&mut recvs).unwrap();
        left.queue_pair.post_raw_sends(&mut sends).unwrap();
    }
    let mut polled = Completions::new(4);
    let mut next = |end: &End| {
        let start = Instant::now();
        while end.completions.poll_raw(&mut polled).unwrap() == 0 {
            assert!(start.elapsed() < TIMEOUT);
        }
        let completion = polled.iter().next().unwrap();
        (completion.id(), completion.is_ok(), completion.outcome())
    };
    let (id, _, received) = next(&right);
    let received = received.unwrap();
    let CompletedOperation::Recv { immediate: Some(77), .. } = received.operation else {
        panic!("{received:?}")
    };
    assert_eq!((id, received.length), (1, 3));
    assert_eq!(next(&left).0, 3);
    right.queue_pair.move_to_error().unwrap();
    let (id, is_ok, flushed) = next(&right);
    assert_eq!((id, is_ok, flushed.unwrap_err().status), (2, false, Status::Flushed));
}
