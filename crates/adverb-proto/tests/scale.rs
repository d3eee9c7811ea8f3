//! The cost of creating and destroying an object doesn't depend on the number of objects of a device.

#[path = "harness/mod.rs"]
mod harness;

use std::time::{Duration, Instant};

use adverb_proto::SrqConfig;

use harness::{End, solo};

/// Returns the shortest time of a hundred calls in several attempts.
fn cost(mut call: impl FnMut()) -> Duration {
    let attempt = |_| {
        let start = Instant::now();
        (0..100).for_each(|_| call());
        start.elapsed()
    };
    (0..20).map(attempt).min().unwrap()
}

/// Compares the cost of creating and destroying an object with few and with many objects. A scan of all objects would
/// take a thousand times as long.
#[track_caller]
fn assert_constant(mut create: impl FnMut(&mut End), mut create_and_destroy: impl FnMut(&mut End)) {
    let mut end = solo();
    let mut cost_at = |count| {
        (0..count).for_each(|_| create(&mut end));
        cost(|| create_and_destroy(&mut end))
    };
    let (few, many) = (cost_at(10), cost_at(50_000));
    assert!(many < few * 20, "{few:?} for 100 calls with 10 objects, {many:?} with 50,000");
}

#[test]
fn creating_a_completion_queue_has_constant_cost() {
    let create = |end: &mut End| end.device.create_cq(1);
    assert_constant(
        |end| {
            create(end);
        },
        |end| {
            let cq = create(end);
            assert!(end.device.destroy_cq(cq));
        },
    );
}

#[test]
fn creating_a_shared_receive_queue_has_constant_cost() {
    let create = |end: &mut End| end.device.create_srq(SrqConfig::new(end.pd)).unwrap();
    assert_constant(
        |end| {
            create(end);
        },
        |end| {
            let srq = create(end);
            end.device.destroy_srq(srq).unwrap();
        },
    );
}

#[test]
fn creating_a_protection_domain_has_constant_cost() {
    assert_constant(
        |end| {
            end.device.create_domain();
        },
        |end| {
            let pd = end.device.create_domain();
            end.device.destroy_domain(pd).unwrap();
        },
    );
}
