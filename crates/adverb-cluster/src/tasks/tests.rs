//! Brokers and calls in tasks, on a software NIC.

use std::time::Duration;

use adverb_verbs::{FaultConfig, ProtectionDomain, SoftDevice, Switch};

use super::*;
use crate::{
    Broker, BrokerConfig, CallError, EndReason, Event, Failure, PeerId, PostError, Rpc, RpcConfig, RpcEvent,
};

/// The time after which a test that makes no progress fails.
const TEST_DEADLINE: Duration = Duration::from_secs(60);
const PEER: PeerId = PeerId(0);
const ECHO: u16 = 1;
const KEEP: u16 = 2;
const LATER: u16 = 3;

fn pair() -> [Broker; 2] {
    let domain = SoftDevice::loopback().open().unwrap().create_protection_domain().unwrap();
    connect([&domain; 2])
}

fn connect(domains: [&ProtectionDomain; 2]) -> [Broker; 2] {
    let config = BrokerConfig { send_slots: 4, recv_slots: 4, keepalive: None, ..BrokerConfig::default() };
    let mut brokers = domains.map(|domain| Broker::builder(domain).config(config).epoch(1).create().unwrap());
    let [a, b] = &mut brokers;
    let (of_a, of_b) = (a.prepare(PEER).unwrap(), b.prepare(PEER).unwrap());
    a.establish(PEER, &of_b).unwrap();
    b.establish(PEER, &of_a).unwrap();
    brokers
}

/// Starts a client and a server in tasks, and returns their handles, and the reply tokens of the requests that the server
/// keeps.
fn start() -> (Caller, Caller, tokio::sync::mpsc::UnboundedReceiver<crate::Reply>) {
    let [client, server] =
        pair().map(|broker| AsyncRpc::new(Rpc::new(broker, RpcConfig::default()).unwrap()).unwrap());
    let (mut client, mut server) = (client, server);
    let (keep, kept) = tokio::sync::mpsc::unbounded_channel();
    let (caller, replier) = (client.caller(), server.caller());
    let later = replier.clone();
    tokio::spawn(async move {
        let run = server.run(move |rpc, event| match event {
            RpcEvent::Request { method: ECHO, bytes, reply, .. } => {
                let bytes = bytes.to_vec();
                rpc.reply(reply, &bytes).unwrap();
            }
            RpcEvent::Request { method: LATER, bytes, reply, .. } => {
                let (later, bytes) = (later.clone(), bytes.to_vec());
                tokio::spawn(async move {
                    tokio::task::yield_now().await;
                    later.reply(reply, bytes);
                });
            }
            RpcEvent::Request { method: KEEP, reply, .. } => keep.send(reply).unwrap(),
            _ => {}
        });
        run.await.unwrap();
    });
    tokio::spawn(async move { client.run(|_, _| ()).await });
    (caller, replier, kept)
}

async fn call_many(caller: &Caller) {
    let calls = (0..100u32).map(|index| {
        let caller = caller.clone();
        let method = if index % 2 == 0 { ECHO } else { LATER };
        tokio::spawn(async move { caller.call(PEER, method, &index.to_le_bytes(), None).await })
    });
    for (index, call) in Vec::from_iter(calls).into_iter().enumerate() {
        assert_eq!(call.await.unwrap().unwrap(), (index as u32).to_le_bytes());
    }
}

async fn check_calls() {
    let (caller, replier, mut kept) = start();
    // More calls than credits.
    call_many(&caller).await;

    // A future that is dropped cancels its call: the server can't answer, and others still can.
    let mut call = Box::pin(caller.call(PEER, KEEP, b"", None));
    let reply = tokio::select! {
        _ = &mut call => panic!("the peer doesn't answer"),
        reply = kept.recv() => reply.unwrap(),
    };
    drop(call);
    call_many(&caller).await;
    replier.reply(reply, b"late".to_vec());
    call_many(&caller).await;

    // A call that the server drops fails, and one with a timeout expires.
    let (failed, ()) = tokio::join!(caller.call(PEER, KEEP, b"", None), async {
        drop(kept.recv().await);
    });
    assert_eq!(failed, Err(CallerError::Call(CallError::Failed { peer: PEER, source: Failure::NoReply })));
    let expired = caller.call(PEER, KEEP, b"", Some(Duration::from_millis(20))).await;
    assert_eq!(expired, Err(CallerError::Call(CallError::TimedOut { peer: PEER })));
    let too_long = caller.call(PEER, ECHO, &[0; 8192], None).await;
    assert!(matches!(too_long, Err(CallerError::Post(PostError::MessageTooLong { .. }))));
    let unknown = caller.call(PeerId(7), ECHO, b"", None).await;
    assert!(matches!(unknown, Err(CallerError::Post(PostError::NotOpen { .. }))));
}

#[tokio::test(flavor = "current_thread")]
async fn calls_in_one_thread() {
    tokio::time::timeout(TEST_DEADLINE, check_calls()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn calls_in_several_threads() {
    tokio::time::timeout(TEST_DEADLINE, tokio::spawn(check_calls())).await.unwrap().unwrap();
}

#[tokio::test(flavor = "current_thread")]
async fn calls_end_when_their_task_ends() {
    let [a, _b] = pair();
    let mut rpc = AsyncRpc::new(Rpc::new(a, RpcConfig::default()).unwrap()).unwrap();
    let caller = rpc.caller();
    let running = tokio::spawn(async move { rpc.run(|_, _| ()).await });
    let call = tokio::spawn({
        let caller = caller.clone();
        async move { caller.call(PEER, KEEP, b"", None).await }
    });
    tokio::task::yield_now().await;
    running.abort();
    let ended = tokio::time::timeout(TEST_DEADLINE, call).await.unwrap().unwrap();
    assert_eq!(ended, Err(CallerError::Stopped));
    assert_eq!(caller.call(PEER, KEEP, b"", None).await, Err(CallerError::Stopped));
}

#[tokio::test(flavor = "current_thread")]
async fn callers_wait_for_sessions_and_calls_end_when_they_leave() {
    let domain = SoftDevice::loopback().open().unwrap().create_protection_domain().unwrap();
    let [mut a, mut b] = [1, 2].map(|epoch| Broker::builder(&domain).epoch(epoch).create().unwrap());
    let (of_a, of_b) = (a.prepare(PEER).unwrap(), b.prepare(PEER).unwrap());
    let mut client = AsyncRpc::new(Rpc::new(a, RpcConfig::default()).unwrap()).unwrap();
    let caller = client.caller();
    // Without a session, callers wait, and dropping the future has no effect.
    let run = client.run(|_, _| ());
    let is_open = tokio::select! {
        result = tokio::time::timeout(Duration::from_millis(20), caller.opened(PEER)) => result.is_ok(),
        result = run => panic!("{result:?}"),
    };
    assert!(!is_open);
    assert_eq!(caller.opened(PeerId(7)).await, Err(PostError::NotOpen { peer: PeerId(7) }.into()));

    let waiting = tokio::spawn({
        let caller = caller.clone();
        async move {
            caller.opened(PEER).await?;
            caller.call(PEER, ECHO, b"data", None).await
        }
    });
    client.rpc_mut().broker_mut().establish(PEER, &of_b).unwrap();
    b.establish(PEER, &of_a).unwrap();
    let mut server = AsyncRpc::new(Rpc::new(b, RpcConfig::default()).unwrap()).unwrap();
    let server = tokio::spawn(async move {
        let (ended, mut is_over) = tokio::sync::mpsc::unbounded_channel();
        let run = server.run(|rpc, event| match event {
            RpcEvent::Request { bytes, reply, .. } => {
                let bytes = bytes.to_vec();
                rpc.reply(reply, &bytes).unwrap();
            }
            RpcEvent::Broker(Event::SessionEnded { reason, .. }) => ended.send(reason).unwrap(),
            _ => {}
        });
        let end = tokio::select! {
            result = run => panic!("{result:?}"),
            reason = is_over.recv() => reason,
        };
        let caller = server.caller();
        let opened = tokio::time::timeout(Duration::from_millis(20), caller.opened(PEER)).await;
        assert!(opened.is_err(), "the session has ended");
        end
    });
    let reply = tokio::select! {
        result = client.run(|_, _| ()) => panic!("{result:?}"),
        reply = waiting => reply.unwrap(),
    };
    assert_eq!(reply, Ok(b"data".to_vec()));
    assert_eq!(caller.opened(PEER).await, Ok(()));
    // A call that is outstanding, and later ones.
    let call = tokio::spawn({
        let caller = caller.clone();
        async move { caller.call(PEER, ECHO, b"", None).await }
    });
    tokio::task::yield_now().await;
    assert!(tokio::time::timeout(TEST_DEADLINE, client.leave(TEST_DEADLINE)).await.unwrap().unwrap());
    assert_eq!(call.await.unwrap(), Err(CallerError::Stopped));
    assert_eq!(caller.opened(PEER).await, Err(CallerError::Stopped));
    assert_eq!(caller.call(PEER, ECHO, b"", None).await, Err(CallerError::Stopped));
    let end = tokio::time::timeout(TEST_DEADLINE, server).await.unwrap().unwrap();
    assert_eq!(end, Some(EndReason::Left));
}

#[tokio::test(flavor = "current_thread")]
async fn a_timeout_includes_the_wait_for_credits() {
    // The server doesn't poll, and the client has more calls than credits.
    let [client, _server] = pair();
    let mut rpc = AsyncRpc::new(Rpc::new(client, RpcConfig::default()).unwrap()).unwrap();
    let caller = rpc.caller();
    tokio::spawn(async move { rpc.run(|_, _| ()).await });
    let call = |caller: Caller| async move { caller.call(PEER, KEEP, &[0; 4000], None).await };
    let calls: Vec<_> = (0..8).map(|_| tokio::spawn(call(caller.clone()))).collect();
    let timeout = Some(Duration::from_millis(50));
    for _ in 0..3 {
        let call = caller.call(PEER, KEEP, &[0; 4000], timeout);
        let expired =
            tokio::time::timeout(TEST_DEADLINE, call).await.expect("the call doesn't wait for ever");
        assert_eq!(expired, Err(CallerError::Call(CallError::TimedOut { peer: PEER })));
    }
    assert!(calls.iter().all(|call| !call.is_finished()), "calls without a timeout wait");
}

#[tokio::test(flavor = "current_thread")]
async fn waiting_calls_are_bounded_and_end_with_the_task() {
    let [client, _server] = pair();
    let rpc = AsyncRpc::new(Rpc::new(client, RpcConfig::default()).unwrap()).unwrap();
    let caller = rpc.caller();
    let call = |caller: Caller| async move { caller.call(PEER, KEEP, b"", None).await };
    let mut calls: Vec<_> = (0..1000).map(|_| tokio::spawn(call(caller.clone()))).collect();
    for _ in 0..1000 {
        caller.connect(PEER);
        tokio::task::yield_now().await;
    }
    // Each peer has 64 calls in the queue, and a request for a session.
    assert_eq!(rpc.messages.len(), 65);
    for call in calls.drain(..500) {
        call.abort();
        assert!(call.await.unwrap_err().is_cancelled());
    }
    assert_eq!(rpc.messages.len(), 65 + 64, "a dropped call in the queue has a cancellation");
    drop(rpc);
    for call in calls {
        let ended = tokio::time::timeout(TEST_DEADLINE, call).await.expect("the call ends").unwrap();
        assert_eq!(ended, Err(CallerError::Stopped));
    }
}

#[tokio::test(flavor = "current_thread")]
async fn calls_fail_after_the_device_failed() {
    let faults = FaultConfig { link_failure_after: Some(60), ..FaultConfig::new(1) };
    let switch = Switch::default();
    let domains = [(1, faults), (2, FaultConfig::new(2))].map(|(host, faults)| {
        let device = SoftDevice::on_switch(&switch, [10, 0, 0, host].into()).faults(faults).open();
        device.unwrap().create_protection_domain().unwrap()
    });
    let [client, mut server] = connect(domains.each_ref());
    let mut rpc = AsyncRpc::new(Rpc::new(client, RpcConfig::default()).unwrap()).unwrap();
    let caller = rpc.caller();
    let running = tokio::spawn(async move {
        let result = rpc.run(|_, _| ()).await;
        (rpc, result)
    });
    let call = |caller: Caller| async move { caller.call(PEER, KEEP, &[0; 4000], None).await };
    let calls: Vec<_> = (0..200).map(|_| tokio::spawn(call(caller.clone()))).collect();
    let ended = tokio::time::timeout(TEST_DEADLINE, async {
        while !running.is_finished() {
            // Without events, the software NIC has no packets, and can't fail.
            let _ = server.poll(|_, _| ());
            let _ = server.send(PEER, b"no call");
            tokio::task::yield_now().await;
        }
        running.await.unwrap()
    });
    let (rpc, result) = ended.await.expect("the device fails");
    assert!(matches!(result, Err(crate::BrokerError::Verbs(_))), "{result:?}");
    // The `AsyncRpc` still exists.
    for call in calls {
        let ended = tokio::time::timeout(TEST_DEADLINE, call).await.expect("the call ends").unwrap();
        assert!(matches!(ended, Err(CallerError::Stopped | CallerError::Call(_) | CallerError::Post(_))));
    }
    let later = tokio::time::timeout(TEST_DEADLINE, caller.call(PEER, KEEP, b"", None)).await;
    assert_eq!(later.expect("the call ends"), Err(CallerError::Stopped));
    drop(rpc);
}

async fn check_brokers() {
    let [a, b] = pair();
    let (mut a, mut b) = (AsyncBroker::new(a).unwrap(), AsyncBroker::new(b).unwrap());
    let receiver = tokio::spawn(async move {
        let (mut count, mut end) = (0u32, None);
        while end.is_none() {
            let polled = b.poll(|_, event| match event {
                Event::Message { bytes, .. } => {
                    assert_eq!(bytes, count.to_le_bytes());
                    count += 1;
                }
                Event::SessionEnded { reason, .. } => end = Some(reason),
                _ => {}
            });
            polled.await.unwrap();
        }
        (count, end)
    });
    for number in 0..500u32 {
        while let Err(PostError::WouldBlock { .. }) = a.broker_mut().send(PEER, &number.to_le_bytes()) {
            a.poll(|_, _| ()).await.unwrap();
        }
        // A future that is dropped while it waits loses no message.
        let _ = tokio::time::timeout(Duration::ZERO, a.poll(|_, _| ())).await;
    }
    assert!(a.leave(TEST_DEADLINE).await.unwrap());
    assert_eq!(receiver.await.unwrap(), (500, Some(EndReason::Left)));
}

#[tokio::test(flavor = "current_thread")]
async fn brokers_in_one_thread() {
    tokio::time::timeout(TEST_DEADLINE, check_brokers()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn brokers_in_several_threads() {
    tokio::time::timeout(TEST_DEADLINE, tokio::spawn(check_brokers())).await.unwrap().unwrap();
}
