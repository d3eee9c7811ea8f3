//! The errors of clusters as a user meets them. Each test tells its situation apart by `match`, and prints the error.

#![cfg(all(feature = "soft", feature = "cluster"))]

use std::error::Error;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use adverb::Key;
use adverb::cluster::{
    ArenaError, Broker, BrokerConfig, BrokerError, CallError, CallId, Cluster, ClusterBuilder, ClusterError,
    EndReason, EstablishError, Event, Execution, Member, PeerId, PostError, RefusedReply, RemotePtrError,
    Reply, Rpc, RpcConfig, RpcEvent, TicketError, TransferError,
};
use adverb::verbs::ConnectOptions;

const _: () = {
    const fn assert_error<E: Error + Send + Sync + 'static>() {
        assert!(size_of::<E>() <= 64);
    }
    assert_error::<ClusterError>();
    assert_error::<EstablishError>();
    assert_error::<BrokerError>();
    assert_error::<ArenaError>();
    assert_error::<PostError>();
    assert_error::<TransferError>();
    assert_error::<CallError>();
    assert_error::<TicketError>();
    assert_error::<RemotePtrError>();
    assert_error::<RefusedReply>();
};

const NAMES: [&str; 3] = ["a", "b", "c"];
const TEST_DEADLINE: Duration = Duration::from_secs(60);
/// The method whose requests are answered.
const ECHO: u16 = 1;
/// The method whose requests are kept without an answer.
const KEEP: u16 = 2;
/// The environment variable with the addresses of `a` and `b`, for the process of `c`.
const ADDRS: &str = "ADVERB_ADDRS";
/// The line of a process that has sessions with all members.
const READY: &str = "the sessions are open";

/// Prints an error, its chain of sources and its hint, and checks that no text occurs twice.
fn show(situation: &str, error: &dyn Error, hint: Option<&str>) {
    println!("{situation}: {error}");
    let mut texts = vec![error.to_string()];
    let mut cause = error.source();
    while let Some(error) = cause {
        println!("  cause: {error}");
        texts.push(error.to_string());
        cause = error.source();
    }
    if let Some(hint) = hint {
        println!("  hint: {hint}");
        texts.push(hint.to_owned());
    }
    for (index, text) in texts.iter().enumerate() {
        assert!(!text.contains('\n') && !text.is_empty(), "one line: {text:?}");
        assert!(!texts[..index].iter().any(|earlier| earlier.contains(text)), "{text:?} is printed twice");
    }
}

/// Returns a listener at a free port for each member.
fn listeners() -> [TcpListener; 3] {
    [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").unwrap())
}

/// Returns a builder whose list has these members.
fn builder(listeners: &[TcpListener], names: &[&str], this: usize) -> ClusterBuilder {
    let config = BrokerConfig { keepalive: Some(Duration::from_millis(200)), ..BrokerConfig::default() };
    let members = names.iter().zip(listeners);
    let members =
        members.map(|(name, listener)| Member::new(*name, listener.local_addr().unwrap().to_string()));
    members
        .fold(Cluster::builder(), ClusterBuilder::member)
        .listener(listeners[this].try_clone().unwrap())
        .config(config)
}

/// Polls brokers until the condition holds.
fn poll_until(brokers: &mut [&mut Broker], mut is_done: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_done() {
        for broker in &mut *brokers {
            broker.wait(Duration::from_millis(1)).unwrap();
            broker.poll(|_, _| ()).unwrap();
        }
        assert!(started.elapsed() < TEST_DEADLINE, "the situation does not occur");
    }
}

fn last_error(cluster: &Cluster, peer: u16) -> Option<EstablishError> {
    cluster.status(PeerId(peer)).expect("another member").last_error
}

#[test]
fn an_unknown_member_is_named() {
    let listeners = listeners();
    let error = builder(&listeners, &NAMES, 0).join("d").unwrap_err();
    show("26 unknown member", &error, error.hint().as_deref());
    assert!(matches!(&error, ClusterError::UnknownMember { name } if &**name == "d"));
    let cluster = builder(&listeners, &NAMES, 0).join("a").unwrap();
    assert_eq!((cluster.peer("d"), cluster.peer("b")), (None, Some(PeerId(1))));
    assert!(cluster.status(PeerId(0)).is_none() && cluster.status(PeerId(3)).is_none());
}

#[test]
fn both_members_report_that_their_lists_differ() {
    let listeners = listeners();
    let a = builder(&listeners, &NAMES[..2], 0).join("a").unwrap();
    let b = builder(&listeners, &NAMES, 1).join("b").unwrap();
    let (mut broker_a, mut broker_b) = (a.take_broker(0).unwrap(), b.take_broker(0).unwrap());
    let differ = |error: &Option<EstablishError>| matches!(error, Some(EstablishError::ListsDiffer { .. }));
    poll_until(&mut [&mut broker_a, &mut broker_b], || {
        differ(&last_error(&a, 1)) && differ(&last_error(&b, 0))
    });
    let error = last_error(&b, 0).unwrap();
    show("27 lists differ", &error, error.hint().as_deref());
    assert!(!error.is_retryable() && !error.is_timeout());
    let status = b.status(PeerId(0)).unwrap();
    assert_eq!((status.open_session_count, error.peer()), (0, PeerId(0)));
}

#[test]
fn a_member_with_another_key_or_slot_size_is_told_apart() {
    let (listeners, key) = (listeners(), Key::random().unwrap());
    let a = builder(&listeners, &NAMES[..2], 0).key(&key).join("a").unwrap();
    let b = builder(&listeners, &NAMES[..2], 1).join("b").unwrap();
    let (mut broker_a, mut broker_b) = (a.take_broker(0).unwrap(), b.take_broker(0).unwrap());
    let is_refused = |error| matches!(error, Some(EstablishError::Authentication { .. }));
    poll_until(&mut [&mut broker_a, &mut broker_b], || {
        is_refused(last_error(&a, 1)) && is_refused(last_error(&b, 0))
    });
    let error = last_error(&b, 0).unwrap();
    show("another key", &error, error.hint().as_deref());
    drop((broker_b, b));

    let config = BrokerConfig { slot_size: 8192, ..BrokerConfig::default() };
    let b = builder(&listeners, &NAMES[..2], 1).key(&key).config(config).join("b").unwrap();
    let mut broker_b = b.take_broker(0).unwrap();
    let sizes = |error| match error {
        Some(EstablishError::Broker { source, .. }) => match *source {
            BrokerError::SlotSizeMismatch { local, remote, .. } => Some((local, remote)),
            _ => None,
        },
        _ => None,
    };
    poll_until(&mut [&mut broker_a, &mut broker_b], || sizes(last_error(&b, 0)) == Some((8192, 4096)));
    let error = last_error(&b, 0).unwrap();
    show("another slot size", &error, error.hint().as_deref());
}

#[test]
fn a_member_that_does_not_run_is_unreachable() {
    let listeners = listeners();
    let [a, ..] = &listeners;
    let absent = a.local_addr().unwrap();
    let b = Cluster::builder()
        .member(Member::new("a", absent.to_string()))
        .member(Member::new("b", "127.0.0.1:0"))
        .join("b")
        .unwrap();
    // The listener's port is free from now on, so connections are refused.
    drop(listeners);
    let mut broker = b.take_broker(0).unwrap();
    poll_until(&mut [&mut broker], || last_error(&b, 0).is_some());
    let error = last_error(&b, 0).unwrap();
    show("member not running", &error, error.hint().as_deref());
    assert!(matches!(error, EstablishError::Unreachable { addr, .. } if addr == absent));
    assert!(error.is_retryable());
}

#[test]
fn a_run_with_an_epoch_in_the_past_learns_the_newer_epoch() {
    let listeners = listeners();
    // No session may end because the machine is busy.
    let options = ConnectOptions::new().ack_timeout(20);
    let join = |this: usize, epoch| {
        let builder = builder(&listeners, &NAMES[..2], this).connect_options(options).epoch(epoch);
        builder.join(NAMES[this]).unwrap()
    };
    let (a, b) = (join(0, 1), join(1, 5));
    let (mut broker_a, mut broker_b) = (a.take_broker(0).unwrap(), b.take_broker(0).unwrap());
    let is_open = || a.status(PeerId(1)).unwrap().open_session_count == 1;
    poll_until(&mut [&mut broker_a, &mut broker_b], is_open);
    assert!(last_error(&a, 1).is_none(), "an open session has no error");
    // A session counts only after a message of its run has arrived.
    broker_b.send(PeerId(0), b"hello").unwrap();
    let mut has_message = false;
    while !has_message {
        broker_b.poll(|_, _| ()).unwrap();
        broker_a.poll(|_, event| has_message |= matches!(event, Event::Message { .. })).unwrap();
    }
    // The clock of the host went back before this run started.
    let restarted = join(1, 4);
    let mut broker = restarted.take_broker(0).unwrap();
    let stale = |error| matches!(error, Some(EstablishError::StaleEpoch { epoch: 4, newest: 5, .. }));
    poll_until(&mut [&mut broker_a, &mut broker_b, &mut broker], || stale(last_error(&restarted, 0)));
    let error = last_error(&restarted, 0).unwrap();
    show("28 epoch in the past", &error, error.hint().as_deref());
    // The newer run ends, and the older one gets the session.
    drop((broker_b, b));
    let is_open = || restarted.status(PeerId(0)).unwrap().open_session_count == 1;
    poll_until(&mut [&mut broker_a, &mut broker], is_open);
    assert!(last_error(&restarted, 0).is_none());
}

/// A member whose calls and requests a test sees.
struct Caller {
    rpc: Rpc,
    results: Vec<(CallId, Result<Vec<u8>, CallError>)>,
    ended: Vec<(PeerId, EndReason)>,
    kept: Vec<Reply>,
}

impl Caller {
    fn new(broker: Broker) -> Caller {
        let rpc = Rpc::new(broker, RpcConfig::default()).unwrap();
        Caller { rpc, results: Vec::new(), ended: Vec::new(), kept: Vec::new() }
    }

    fn poll(&mut self) {
        let Caller { rpc, results, ended, kept } = self;
        rpc.wait(Duration::from_millis(1)).unwrap();
        let polled = rpc.poll(|rpc, event| match event {
            RpcEvent::Request { method: ECHO, bytes, reply, .. } => {
                let bytes = bytes.to_vec();
                rpc.reply(reply, &bytes).unwrap();
            }
            RpcEvent::Request { reply, .. } => kept.push(reply),
            RpcEvent::CallEnded { call, result } => results.push((call, result.map(<[u8]>::to_vec))),
            RpcEvent::Broker(Event::SessionEnded { peer, reason, .. }) => ended.push((peer, reason)),
            _ => {}
        });
        polled.unwrap();
    }

    /// Polls until a condition holds.
    fn poll_until(&mut self, mut is_done: impl FnMut(&mut Caller) -> bool) {
        let started = Instant::now();
        while !is_done(self) {
            self.poll();
            assert!(started.elapsed() < TEST_DEADLINE, "{:?} {:?}", self.results, self.ended);
        }
    }

    /// Calls a method, and waits for its result.
    fn call(&mut self, peer: PeerId, method: u16, timeout: Option<Duration>) -> Result<Vec<u8>, CallError> {
        let call = self.rpc.call(peer, method, b"data", timeout).unwrap();
        self.poll_until(|caller| caller.results.iter().any(|(ended, _)| *ended == call));
        let index = self.results.iter().position(|(ended, _)| *ended == call).unwrap();
        self.results.remove(index).1
    }
}

/// Joins as `c` in a process of its own, until the process is killed.
#[test]
fn runs_as_a_member_that_is_killed() {
    let Ok(addrs) = std::env::var(ADDRS) else { return };
    let addrs = addrs.split(' ').chain(["127.0.0.1:0"]);
    let members = NAMES.iter().zip(addrs).map(|(name, addr)| Member::new(*name, addr));
    let cluster = members.fold(Cluster::builder(), ClusterBuilder::member).join("c").unwrap();
    let mut caller = Caller::new(cluster.take_broker(0).unwrap());
    caller.poll_until(|caller| [0, 1].iter().all(|peer| caller.rpc.broker().is_open(PeerId(*peer))));
    println!("{READY}");
    loop {
        caller.poll();
    }
}

#[test]
fn only_the_calls_to_a_dead_member_fail() {
    let listeners = listeners();
    // A request that is not acknowledged fails after about 0.2 s.
    let options = ConnectOptions::new().ack_timeout(12);
    let join =
        |this: usize| builder(&listeners, &NAMES, this).connect_options(options).join(NAMES[this]).unwrap();
    let (a, b) = (join(0), join(1));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut server = Caller::new(b.take_broker(0).unwrap());
            server.poll_until(|_| is_over.load(Ordering::Acquire));
        });
        let addrs = [0, 1].map(|member: usize| listeners[member].local_addr().unwrap().to_string()).join(" ");
        let mut program = Command::new(std::env::current_exe().unwrap());
        program.args(["--exact", "runs_as_a_member_that_is_killed", "--nocapture"]).env(ADDRS, addrs);
        let mut child = program.stdout(Stdio::piped()).spawn().unwrap();

        let (to_b, to_c) = (PeerId(1), PeerId(2));
        let mut caller = Caller::new(a.take_broker(0).unwrap());
        caller.poll_until(|caller| [to_b, to_c].iter().all(|peer| caller.rpc.broker().is_open(*peer)));
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains(READY)));
        assert_eq!(caller.call(to_c, ECHO, None).as_deref(), Ok(&b"data"[..]));

        let call = caller.rpc.call(to_c, KEEP, b"data", None).unwrap();
        caller.rpc.flush_all();
        child.kill().unwrap();
        child.wait().unwrap();
        // Other members are not affected, before and after the death is detected.
        assert!(caller.call(to_b, ECHO, None).is_ok());
        caller.poll_until(|caller| !caller.ended.is_empty());
        let (ended, result) = caller.results.remove(0);
        let error = result.unwrap_err();
        show("29 dead member", &error, error.hint());
        assert_eq!(ended, call);
        assert!(matches!(
            error,
            CallError::SessionEnded { peer, reason: EndReason::RequestFailed { .. } } if peer == to_c
        ));
        assert_eq!(error.execution(), Execution::Unknown);
        assert!(matches!(caller.ended[..], [(peer, EndReason::RequestFailed { .. })] if peer == to_c));
        assert!(caller.call(to_b, ECHO, None).is_ok());
        let refused = caller.rpc.call(to_c, ECHO, b"data", None).unwrap_err();
        show("29 dead member, later calls", &refused, refused.hint());
        assert!(matches!(refused, PostError::NotOpen { peer } if peer == to_c) && refused.is_retryable());
        let open_count = |peer| a.status(peer).unwrap().open_session_count;
        caller.poll_until(|_| (open_count(to_b), open_count(to_c)) == (1, 0));
        // The member with the smaller number doesn't dial, so it has no failed attempt, but the end of the session.
        let status = a.status(to_c).unwrap();
        assert!(matches!(status.last_end, Some(EndReason::RequestFailed { .. })), "{status:?}");
        assert!(status.last_error.is_none(), "{status:?}");
        assert_eq!(a.status(to_b).unwrap().last_end, None);
        is_over.store(true, Ordering::Release);
    });
}

#[test]
fn a_call_that_timed_out_may_have_been_executed() {
    let listeners = listeners();
    let options = ConnectOptions::new().ack_timeout(20);
    let join = |this: usize| {
        builder(&listeners, &NAMES[..2], this).connect_options(options).join(NAMES[this]).unwrap()
    };
    let (a, b) = (join(0), join(1));
    let peer = PeerId(1);
    let is_over = AtomicBool::new(false);
    let executed = std::thread::scope(|scope| {
        let server = scope.spawn(|| {
            let mut server = Caller::new(b.take_broker(0).unwrap());
            server.poll_until(|server| !server.kept.is_empty() && is_over.load(Ordering::Acquire));
            server.kept.len()
        });
        let mut caller = Caller::new(a.take_broker(0).unwrap());
        caller.poll_until(|caller| caller.rpc.broker().is_open(peer));
        let error = caller.call(peer, KEEP, Some(Duration::from_millis(50))).unwrap_err();
        show("30 a call timed out", &error, error.hint());
        assert!(matches!(error, CallError::TimedOut { peer: PeerId(1) }));
        assert_eq!(error.execution(), Execution::Unknown);
        assert!(error.is_timeout() && error.is_retryable());
        is_over.store(true, Ordering::Release);
        server.join().unwrap()
    });
    assert_eq!(executed, 1, "the peer had executed the call");
}

#[cfg(feature = "tokio")]
#[tokio::test]
async fn a_task_learns_whether_its_call_was_executed() {
    use adverb::cluster::{AsyncRpc, CallerError};

    let listeners = listeners();
    let b = builder(&listeners, &NAMES[..2], 1).join("b").unwrap();
    let rpc = Rpc::new(b.take_broker(0).unwrap(), RpcConfig::default()).unwrap();
    let mut rpc = AsyncRpc::new(rpc).unwrap();
    let caller = rpc.caller();
    let task = tokio::spawn(async move { rpc.run(|_, _| ()).await });
    let error = caller.call(PeerId(0), ECHO, b"data", None).await.unwrap_err();
    show("a call without a session", &error, error.hint());
    assert!(matches!(error, CallerError::Post(PostError::NotOpen { .. })));
    assert_eq!(error.execution(), Execution::NotExecuted);
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    let error = caller.call(PeerId(0), ECHO, b"data", None).await.unwrap_err();
    show("a call after the end of the task", &error, error.hint());
    assert!(matches!(error, CallerError::Stopped));
}
