//! Servers and clients in one process, on software NICs at a loopback address.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use adverb::cluster::BrokerError;
use adverb::verbs::ConnectOptions;
use adverb_kv::check::{self, CheckConfig, Link};
use adverb_kv::client::{Client, ClientConfig, GetMethod, KvError, Outcome};
use adverb_kv::item::Verify;
use adverb_kv::load::{self, LoadConfig, Mix, key_of};
use adverb_kv::members::{Members, NamedAddr};
use adverb_kv::server::Server;
use adverb_kv::store::{Store, StoreConfig};

/// The time after which a test that makes no progress fails.
const TEST_DEADLINE: Duration = Duration::from_secs(60);

/// The members of a test. The listeners stay open between the runs of a member, so that no other program takes a port.
struct World {
    members: Members,
    listeners: Vec<TcpListener>,
}

impl World {
    fn new(servers: &[&str]) -> World {
        let names = || servers.iter().chain([&"client"]);
        let listeners: Vec<TcpListener> =
            names().map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let named = |(name, listener): (&&str, &TcpListener)| NamedAddr {
            name: (*name).to_owned(),
            addr: listener.local_addr().unwrap().to_string(),
        };
        let mut servers: Vec<NamedAddr> = names().zip(&listeners).map(named).collect();
        let clients = servers.split_off(servers.len() - 1);
        // A long timeout, so that a thread that waits for a CPU for seconds doesn't end a session.
        let connect_options = ConnectOptions::new().ack_timeout(17);
        World { members: Members { servers, clients, connect_options }, listeners }
    }

    fn start_server(&self, index: usize, config: StoreConfig) -> RunningServer {
        let (members, listener) = (self.members.clone(), self.listeners[index].try_clone().unwrap());
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let cluster = members.join_with(&members.servers[index].name, 1, listener).unwrap();
            let (member, epoch) = (cluster.this_member().0.into(), cluster.epoch());
            let domains = cluster.protection_domains();
            let store = Store::new(&config, members.servers.len(), member, epoch, domains).unwrap();
            Server::new(cluster.take_broker(0).unwrap(), Arc::new(store)).unwrap().run(&stopped)
        });
        RunningServer { stop, thread: Some(thread) }
    }

    /// Runs `test` with a client that has connected to all servers.
    fn with_client(&self, config: ClientConfig, test: impl FnOnce(&mut Client)) {
        let listener = self.listeners.last().unwrap().try_clone().unwrap();
        let cluster = self.members.join_with("client", 1, listener).unwrap();
        let config = ClientConfig { call_timeout: TEST_DEADLINE, ..config };
        let mut client = Client::new(cluster.take_broker(0).unwrap(), &self.members.servers, config).unwrap();
        assert!(client.wait_available(TEST_DEADLINE).unwrap(), "the client connects");
        test(&mut client);
    }
}

/// A server in a thread, which ends when the value is dropped.
struct RunningServer {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<(), BrokerError>>>,
}

impl Drop for RunningServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().unwrap().join();
        if !std::thread::panicking() {
            ended.unwrap().unwrap();
        }
    }
}

fn small_store() -> StoreConfig {
    StoreConfig { memory: 4 << 20, buckets: 512, ..StoreConfig::default() }
}

#[test]
fn values_are_stored_read_and_deleted() {
    let world = World::new(&["a", "b", "c"]);
    let _servers: Vec<_> = (0..3).map(|index| world.start_server(index, small_store())).collect();
    for (method, cached_words) in [(GetMethod::OneSided, 0), (GetMethod::OneSided, 1024), (GetMethod::Rpc, 0)]
    {
        let config = ClientConfig { method, cached_words, ..ClientConfig::default() };
        world.with_client(config, |client| {
            let keys = || (0..20).map(key_of);
            assert!((0..3).all(|server| keys().any(|key| client.server_of(&key) == server)));
            for (number, key) in keys().enumerate() {
                assert_eq!(client.get_blocking(&key).unwrap(), None);
                client.put_blocking(&key, &vec![number as u8; number * 10]).unwrap();
            }
            for (number, key) in keys().enumerate() {
                let value = Some(vec![number as u8; number * 10]);
                assert_eq!(client.get_blocking(&key).unwrap(), value);
                // With a cached location.
                assert_eq!(client.get_blocking(&key).unwrap(), value);
                client.put_blocking(&key, b"new").unwrap();
                assert_eq!(client.get_blocking(&key).unwrap().as_deref(), Some(&b"new"[..]));
                client.delete_blocking(&key).unwrap();
                assert_eq!(client.get_blocking(&key).unwrap(), None);
            }
            let stats = client.stats();
            assert_eq!(stats.torn, 0, "nothing is written during a READ");
            match method {
                GetMethod::Rpc => assert_eq!((stats.bucket_reads, stats.item_reads), (0, 0)),
                // Replaced and deleted items are detected by their mark.
                GetMethod::OneSided if cached_words > 0 => assert!(stats.retired >= 20, "{stats:?}"),
                GetMethod::OneSided => assert_eq!((stats.cached, stats.retired), (0, 0)),
            }
        });
    }
}

#[test]
fn long_items_and_requests_beyond_the_window_are_refused() {
    let world = World::new(&["a"]);
    let _server = world.start_server(0, small_store());
    world.with_client(ClientConfig { window: 1, ..ClientConfig::default() }, |client| {
        assert!(matches!(client.put_blocking(b"key", &[0; 9000]), Err(KvError::TooLong { .. })));
        client.put_blocking(b"key", &[7; 8000]).unwrap();
        assert_eq!(client.get_blocking(b"key").unwrap(), Some(vec![7; 8000]));
        client.get(b"key", 1).unwrap();
        assert!(matches!(client.get(b"key", 2), Err(KvError::WindowFull { window: 1 })));
    });
}

#[test]
fn a_mixed_load_finds_every_key() {
    let world = World::new(&["a", "b"]);
    let _servers: Vec<_> = (0..2).map(|index| world.start_server(index, small_store())).collect();
    for method in [GetMethod::OneSided, GetMethod::Rpc] {
        // More outstanding operations than a broker accepts.
        let config = ClientConfig { method, window: 256, ..ClientConfig::default() };
        world.with_client(config, |client| {
            let load =
                LoadConfig { mix: Mix::A, keys: 500, value_len: 100, operations: 3000, window: 256, seed: 1 };
            load::fill(client, &load).unwrap();
            let report = load::run(client, &load).unwrap();
            assert_eq!((report.succeeded, report.missing, report.failed), (3000, 0, 0));
            assert_eq!(report.latencies.len(), 3000);
            assert!(report.latency_us(0.5) > 1.0, "a request takes longer than 1 µs");
        });
    }
}

#[test]
fn keys_of_a_lost_server_fail_until_it_returns() {
    let world = World::new(&["a", "b"]);
    let _a = world.start_server(0, small_store());
    let b = world.start_server(1, small_store());
    world.with_client(ClientConfig::default(), |client| {
        let key_on = |client: &Client, server| {
            (0..).map(key_of).find(|key| client.server_of(key) == server).unwrap()
        };
        let (on_a, on_b) = (key_on(client, 0), key_on(client, 1));
        client.put_blocking(&on_a, b"at a").unwrap();
        client.put_blocking(&on_b, b"at b").unwrap();
        assert_eq!(client.get_blocking(&on_b).unwrap().as_deref(), Some(&b"at b"[..]));

        // Requests that are outstanding when the server disappears end, too.
        for tag in 0..32 {
            client.get(&on_b, tag).unwrap();
        }
        drop(b);
        let start = Instant::now();
        let (mut ended, mut wrong) = (0, 0);
        while client.is_available(1) || ended < 32 {
            assert!(start.elapsed() < TEST_DEADLINE, "the loss of a server is detected");
            client.wait(Duration::from_millis(50)).unwrap();
            client
                .poll(|_, result| {
                    ended += 1;
                    let is_expected = match &result {
                        Ok(outcome) => *outcome == Outcome::Value(b"at b"),
                        Err(error) => matches!(
                            error,
                            KvError::SessionEnded { server } | KvError::Unavailable { server } if server == "b"
                        ),
                    };
                    wrong += u32::from(!is_expected);
                })
                .unwrap();
        }
        assert_eq!((ended, wrong), (32, 0), "each request ends once");
        let error = client.get_blocking(&on_b).unwrap_err();
        assert!(matches!(&error, KvError::Unavailable { server } if server == "b"), "{error:?}");
        assert!(error.to_string().starts_with("the server \"b\" of the key is not connected"), "{error}");
        assert!(client.put_blocking(&on_b, b"value").is_err());
        assert_eq!(client.get_blocking(&on_a).unwrap().as_deref(), Some(&b"at a"[..]), "server a answers");

        let _b = world.start_server(1, small_store());
        assert!(client.wait_available(TEST_DEADLINE).unwrap(), "the server returns");
        assert_eq!(client.get_blocking(&on_b).unwrap(), None, "its memory is empty");
        client.put_blocking(&on_b, b"again").unwrap();
        assert_eq!(client.get_blocking(&on_b).unwrap().as_deref(), Some(&b"again"[..]));
        assert_eq!(client.get_blocking(&on_a).unwrap().as_deref(), Some(&b"at a"[..]));
    });
}

/// The number of torn reads depends on the scheduler, so the test allows any. `kv check` fails if there was none.
#[test]
fn no_wrong_value_is_accepted_while_items_are_replaced() {
    for (link, reads) in [(Link::Udp, 1000), (Link::Memory, 10_000)] {
        let verify = Verify::Checksum;
        let config = CheckConfig { reads, keys: 256, value_len: 512, verify, link, progress: None };
        let report = check::run(&config).unwrap();
        let counts = (report.accepted, report.wrong, report.stale, report.missing);
        assert_eq!(counts, (reads, 0, 0, 0), "{report:?}");
    }
}
