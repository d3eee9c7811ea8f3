//! Objects that are dropped while other objects or requests use them.

use std::any::Any;

use adverb::memory::MemoryRegion;
use adverb::verbs::{Access, ArmFor, ConnectOptions, Device, SendRequest, Status, Transport, Transport::Rc};
use anyhow::{Context, Result, ensure};

use crate::fixture::{COMPLETION_TIMEOUT, Fixture, QUIET_PERIOD, READ_WRITE, check, expect, read};
use crate::registry::tests;

tests! { "dropping";
    objects_may_be_dropped_in_every_order,
    objects_may_be_dropped_in_every_order_with_requests_in_flight,
    dropping_a_queue_pair_releases_the_memory_of_its_requests,
    a_completion_outlives_its_queues,
    a_buffer_outlives_its_device,
    a_region_outlives_its_handle_while_a_request_uses_it,
    a_cloned_region_stays_registered,
    a_queue_pair_may_be_dropped_while_its_peer_sends,
    a_queue_pair_may_be_dropped_while_its_peer_reads,
    a_region_may_be_dropped_while_a_peer_writes,
    objects_are_created_and_dropped_many_times,
    an_armed_completion_queue_may_be_dropped,
}

/// Calls `each` with every order of the numbers below `count`.
fn orders(count: usize, each: &mut dyn FnMut(&[usize]) -> Result<()>) -> Result<()> {
    fn extend(
        order: &mut Vec<usize>,
        count: usize,
        each: &mut dyn FnMut(&[usize]) -> Result<()>,
    ) -> Result<()> {
        if order.len() == count {
            return each(order);
        }
        for next in 0..count {
            if !order.contains(&next) {
                order.push(next);
                extend(order, count, each)?;
                order.pop();
            }
        }
        Ok(())
    }
    extend(&mut Vec::new(), count, each)
}

fn drop_in(order: &[usize], objects: Vec<Box<dyn Any>>) {
    let mut objects: Vec<Option<Box<dyn Any>>> = objects.into_iter().map(Some).collect();
    for index in order {
        objects[*index] = None;
    }
}

/// Device, domain, completion queue, queue pair, region and buffer: 720 orders.
fn objects_may_be_dropped_in_every_order(fixture: &Fixture) -> Result<()> {
    let name = fixture.device.name();
    orders(6, &mut |order| {
        let device = Device::open(name)?;
        let domain = device.create_protection_domain()?;
        let cq = device.completion_queue(4).create()?;
        let builder = domain.queue_pair(Rc).completion_queue(&cq).port(fixture.port.number).depth(2, 2);
        let qp = builder.create()?;
        let region = domain.allocate_region(8, READ_WRITE)?;
        let buffer = domain.allocate_buffer(8)?;
        qp.post_recv(domain.allocate_buffer(8)?).map_err(adverb::verbs::Error::from)?;
        let objects: Vec<Box<dyn Any>> = vec![
            Box::new(device),
            Box::new(domain),
            Box::new(cq),
            Box::new(qp),
            Box::new(region),
            Box::new(buffer),
        ];
        drop_in(order, objects);
        Ok(())
    })
}

/// Domain, completion queue, queue pair, region and a device handle in 120 orders, with sends for which the peer has no
/// receive, posted receives, and a WRITE in progress.
fn objects_may_be_dropped_in_every_order_with_requests_in_flight(fixture: &Fixture) -> Result<()> {
    orders(5, &mut |order| {
        let pair = fixture.pair(Rc).depth(8, 8).connect()?;
        let region = pair.left.region(64, READ_WRITE)?;
        for _ in 0..4 {
            pair.left.recv(adverb::verbs::RecvRequest::new(region.slice(0..64)?))?;
        }
        pair.left.post(SendRequest::write(pair.left.buffer(4096)?, region.remote().at(0)))?;
        for _ in 0..4 {
            pair.left.post(SendRequest::send(region.slice(0..64)?))?;
        }
        let (device, side) = (fixture.device.clone(), pair.left);
        let objects: Vec<Box<dyn Any>> = vec![
            Box::new(side.domain),
            Box::new(side.cq),
            Box::new(side.qp),
            Box::new(region),
            Box::new(device),
        ];
        drop_in(order, objects);
        Ok(())
    })
}

/// Releases a region, or returns it if it has other handles.
fn try_release(region: MemoryRegion) -> Result<(), MemoryRegion> {
    region.into_buffer().map(drop)
}

fn dropping_a_queue_pair_releases_the_memory_of_its_requests(fixture: &Fixture) -> Result<()> {
    for transport in [Transport::Rc, Transport::Uc] {
        let pair = fixture.pair(transport).connect()?;
        let region = pair.left.region(64, Access::LOCAL_WRITE)?;
        pair.left.recv(adverb::verbs::RecvRequest::new(region.slice(0..64)?))?;
        pair.left.post(SendRequest::send(region.slice(0..64)?))?;
        let region = try_release(region).err().context("outstanding requests did not keep their memory")?;
        drop(pair.left.qp);
        ensure!(try_release(region).is_ok(), "requests of a dropped queue pair keep their memory");
    }
    Ok(())
}

fn a_completion_outlives_its_queues(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let receiving = pair.right.post_receive(64)?;
    pair.left.execute(SendRequest::send(pair.left.filled(64, 3)?))?;
    let completion = pair.right.wait(receiving)?;
    drop(pair);
    check(&completion.into_message()?, 3)
}

fn a_buffer_outlives_its_device(fixture: &Fixture) -> Result<()> {
    let mut buffer = Device::open(fixture.device.name())?.create_protection_domain()?.allocate_buffer(64)?;
    crate::fixture::fill(&mut buffer, 5);
    check(&buffer, 5)
}

fn a_region_outlives_its_handle_while_a_request_uses_it(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let region = pair.right.region(64, Access::LOCAL_WRITE)?;
    let receiving = pair.right.recv(adverb::verbs::RecvRequest::new(region.slice(0..64)?))?;
    drop(region);
    pair.left.execute(SendRequest::send(pair.left.filled(64, 7)?))?;
    let completion = pair.right.wait(receiving)?;
    completion.result()?;
    let adverb::memory::Payload::One(adverb::memory::PayloadSegment::Region(slice)) =
        completion.into_payload()
    else {
        anyhow::bail!("the completion did not return the slice")
    };
    check(&read(&slice.region(), 0, 64)?, 7)
}

fn a_cloned_region_stays_registered(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let region = pair.right.region(64, READ_WRITE)?;
    let (clone, remote) = (region.clone(), region.remote());
    drop(region);
    pair.left.execute(SendRequest::write(pair.left.filled(64, 2)?, remote.at(0)))?;
    check(&read(&clone, 0, 64)?, 2)
}

fn a_queue_pair_may_be_dropped_while_its_peer_sends(fixture: &Fixture) -> Result<()> {
    for _ in 0..10 {
        let pair = fixture.pair(Rc).few_retries().connect()?;
        let size = 20 * fixture.mtu();
        for _ in 0..8 {
            pair.right.post_receive(size)?;
            pair.left.post(SendRequest::send(pair.left.buffer(size)?))?;
        }
        drop(pair.right);
        // Some messages may have arrived. Then one request fails, and the rest are flushed.
        let completions = pair.left.take(8)?;
        let failed = completions.iter().position(|completion| !completion.is_ok()).unwrap_or(8);
        for completion in completions.iter().skip(failed + 1) {
            expect("a request after a failure", completion, Status::Flushed)?;
        }
    }
    Ok(())
}

fn a_queue_pair_may_be_dropped_while_its_peer_reads(fixture: &Fixture) -> Result<()> {
    for _ in 0..10 {
        let pair = fixture.pair(Rc).few_retries().connect()?;
        let size = 20 * fixture.mtu();
        let region = pair.right.region(size, READ_WRITE)?;
        for _ in 0..4 {
            pair.left.post(SendRequest::read(pair.left.buffer(size)?, region.remote().at(0)))?;
        }
        drop(pair.right.qp);
        ensure!(pair.left.take(4)?.len() == 4, "not all requests completed");
    }
    Ok(())
}

/// A WRITE may arrive after the drop. In that case it is rejected, and never changes freed memory.
fn a_region_may_be_dropped_while_a_peer_writes(fixture: &Fixture) -> Result<()> {
    let options = ConnectOptions::new().ack_timeout(16);
    for _ in 0..10 {
        let pair = fixture.pair(Rc).options(options).connect()?;
        let size = 20 * fixture.mtu();
        let region = pair.right.region(size, READ_WRITE)?;
        for _ in 0..4 {
            pair.left.post(SendRequest::write(pair.left.buffer(size)?, region.remote().at(0)))?;
        }
        drop(region);
        let completions = pair.left.take(4)?;
        if let Some(failed) = completions.iter().position(|completion| !completion.is_ok()) {
            expect("the first request after the drop", &completions[failed], Status::RemoteAccess)?;
        }
    }
    Ok(())
}

fn objects_are_created_and_dropped_many_times(fixture: &Fixture) -> Result<()> {
    for round in 0..100 {
        let pair = fixture.pair(Rc).depth(4, 4).connect().with_context(|| format!("round {round}"))?;
        pair.ping()?;
    }
    Ok(())
}

fn an_armed_completion_queue_may_be_dropped(fixture: &Fixture) -> Result<()> {
    for take in [false, true] {
        let pair = fixture.pair(Rc).events().connect()?;
        pair.right.post_receive(8)?;
        pair.right.cq.arm(ArmFor::Any)?;
        pair.left.execute(SendRequest::send(pair.left.buffer(8)?))?;
        // The queue is dropped once with an unread event, and once without.
        if take {
            ensure!(pair.right.cq.wait_event(COMPLETION_TIMEOUT)?, "no event was delivered");
        } else {
            std::thread::sleep(QUIET_PERIOD);
        }
        drop(pair.right.qp);
        drop(pair.right.cq);
    }
    Ok(())
}
