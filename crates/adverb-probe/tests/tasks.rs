//! `AsyncProber` on the software NIC.

#![cfg(all(feature = "soft", feature = "tokio"))]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use adverb_probe::session::{ProbeEventKind, ProbeResult};
use adverb_probe::{AsyncProber, ProbeError, ProbePath, ProberOptions, Responder, ResponderOptions};
use adverb_verbs::{Device, Error, FaultConfig, SoftDevice, Switch};

/// The limit of waits that succeed at once unless something is broken.
const TEST_DEADLINE: Duration = Duration::from_secs(60);

/// Returns an address that no other device of this process has: a lookup finds its device by the address.
fn unique() -> IpAddr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    Ipv4Addr::new(10, 0, 2, NEXT.fetch_add(1, Ordering::Relaxed)).into()
}

fn on_switch(switch: &Switch) -> Device {
    SoftDevice::on_switch(switch, unique()).open().unwrap()
}

fn responder_on(device: &Device) -> Responder {
    let device = device.clone();
    ResponderOptions::new().port(0).start(move || Ok(device.clone())).unwrap()
}

/// Options with timeouts that a loaded machine doesn't reach.
fn patient() -> ProberOptions {
    ProberOptions::new().timeout(TEST_DEADLINE).grace(TEST_DEADLINE).lookup_timeout(TEST_DEADLINE)
}

/// A prober and a responder on one switch.
fn pair() -> (AsyncProber, Responder) {
    let switch = Switch::default();
    let [here, there] = [(); 2].map(|()| on_switch(&switch));
    let prober = patient().open_async(move || Ok(here.clone())).unwrap();
    (prober, responder_on(&there))
}

fn is_answered(result: &ProbeResult) -> bool {
    // Under load, timestamps of processes may contradict each other.
    use ProbeResult::{Answered, Impossible, Late, Unstamped};
    matches!(result, Answered(_) | Late(_) | Impossible(_) | Unstamped)
}

#[tokio::test]
async fn a_probe_is_answered_in_a_task() {
    let (mut prober, responder) = pair();
    let peer = prober.connect(responder.local_addr()).await.unwrap();
    for _ in 0..20 {
        let result = prober.probe(&peer).await.unwrap();
        assert!(is_answered(&result), "{result:?}");
    }
    let absent = SocketAddr::new(responder.local_addr().ip(), 1);
    let rejected = prober.connect(absent).await;
    assert!(matches!(rejected, Err(ProbeError::Verbs(Error::CmRejected { .. }))), "{rejected:?}");
    // The prober can be used without tasks afterwards.
    let mut prober = prober.into_blocking();
    assert!(is_answered(&prober.probe(&peer).unwrap()));
    assert_eq!(prober.counts(&peer).begun, 21);
}

#[tokio::test]
async fn cancelled_waits_lose_no_event_and_results_belong_to_their_probe() {
    let (mut prober, responder) = pair();
    // A lookup that is cancelled.
    let cancelled = tokio::time::timeout(Duration::ZERO, prober.connect(responder.local_addr())).await;
    let peer = match cancelled {
        Ok(connected) => connected.unwrap(),
        Err(_) => prober.connect(responder.local_addr()).await.unwrap(),
    };
    // Waits that are cancelled at any time pass each result once.
    let (mut posted, mut results) = (0, Vec::new());
    while results.len() < 200 {
        while posted < 200 && prober.post(&peer, ProbePath::default()).unwrap() {
            posted += 1;
        }
        let wait = prober.wait(|_, event| {
            if let ProbeEventKind::Finished(result) = event.kind {
                assert!(is_answered(&result), "{result:?}");
                results.push(event.probe.sequence.number);
            }
        });
        let limit = Duration::from_micros(50 * (posted as u64 % 4));
        if let Ok(waited) = tokio::time::timeout(limit, wait).await {
            assert!(waited.unwrap() > 0);
        }
    }
    results.sort_unstable();
    assert!(results.iter().copied().eq(0..200));
    // Probes that are cancelled are counted, and the next call returns the result of its own probe.
    let mut cancelled_count = 0;
    for _ in 0..20 {
        let cancelled = tokio::time::timeout(Duration::ZERO, prober.probe(&peer)).await;
        cancelled_count += u64::from(cancelled.is_err());
        assert!(is_answered(&prober.probe(&peer).await.unwrap()));
    }
    println!("{cancelled_count} of 20 probes were cancelled");
    assert_eq!(prober.counts(&peer).begun, 240);
    assert_eq!((prober.counts(&peer).duplicate_acks, prober.strays().unmatched_acks), (0, 0));
}

#[test]
fn a_runtime_shuts_down_while_a_prober_waits() {
    let (mut prober, _responder) = pair();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let stop = prober.waker();
    let stopped = runtime.spawn(async move {
        // A responder that doesn't exist is looked up again and again.
        prober.add(SocketAddr::new([10, 0, 2, 250].into(), 7)).unwrap();
        let count = prober.wait(|_, _| {}).await.unwrap();
        (prober, count)
    });
    stop.stop();
    let (_, count) = runtime.block_on(stopped).unwrap();
    assert_eq!(count, 0);
    let (mut waiting, _responder) = pair();
    runtime.spawn(async move { waiting.wait(|_, _| {}).await });
    // Dropping the runtime waits for tasks that block a thread.
    drop(runtime);
}

#[tokio::test]
async fn tasks_use_a_device_that_is_opened_again() {
    let switch = Switch::default();
    let there = on_switch(&switch);
    let responder = responder_on(&there);
    let (address, mut is_first) = (unique(), true);
    let opened = patient().open_async(move || {
        let device = SoftDevice::on_switch(&switch, address);
        match std::mem::take(&mut is_first) {
            true => {
                let faults = FaultConfig { link_failure_after: Some(60), ..FaultConfig::new(1) };
                device.faults(faults).open()
            }
            false => device.open(),
        }
    });
    let mut prober = opened.unwrap();
    let peer = prober.connect(responder.local_addr()).await.unwrap();
    let (mut answered_before, mut answered_after) = (0, 0);
    while answered_after < 5 {
        let result = prober.probe(&peer).await.unwrap();
        let counter = match prober.queue().stats().reopens {
            0 => &mut answered_before,
            _ => &mut answered_after,
        };
        *counter += u32::from(is_answered(&result));
        assert!(
            is_answered(&result) || matches!(result, ProbeResult::Ended | ProbeResult::NotSent),
            "{result:?}"
        );
    }
    println!("{answered_before} probes were answered before the device failed");
    assert!(answered_before > 0);
    assert_eq!(prober.queue().stats().device_failures, 1);
}
