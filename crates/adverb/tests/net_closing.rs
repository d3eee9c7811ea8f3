//! Graceful closes: both sides learn that the peer has received everything, even if the last packets are lost.

#![cfg(feature = "soft")]

use std::io::Write;
use std::thread::{scope, spawn};
use std::time::{Duration, Instant};

use adverb::net::Options;
use adverb::net::blocking::{Connection, Connector, Listener};
use adverb::verbs::{FaultConfig, SoftDevice, Switch};

/// Returns the options of the closing side and of its peer, whose device drops `loss` of a million sent packets.
fn options(seed: u64, loss: u32) -> [Options; 2] {
    let switch = Switch::default();
    let device = |address: &str, loss| {
        let faults = FaultConfig { loss_ppm: loss, ..FaultConfig::new(seed) };
        SoftDevice::on_switch(&switch, address.parse().unwrap()).faults(faults).open().unwrap()
    };
    [device("127.0.0.1", 0), device("127.0.0.2", loss)].map(|device| Options::new().device(&device))
}

fn pair([closer, peer]: &[Options; 2]) -> (Connection, Connection) {
    let listener = Listener::builder().options(peer).bind("127.0.0.1:0").unwrap();
    scope(|scope| {
        let accepting = scope.spawn(|| listener.accept().unwrap());
        let closer = Connector::new().options(closer).connect(listener.local_addr()).unwrap();
        (closer, accepting.join().unwrap())
    })
}

/// Sends messages and closes. The peer receives them, and then closes or drops its connection.
fn exchange_and_close(options: &[Options; 2], peer_closes: bool) -> Duration {
    let (closer, peer) = pair(options);
    scope(|scope| {
        let reading = scope.spawn(move || {
            let mut count = 0;
            while peer.recv().unwrap().is_some() {
                count += 1;
            }
            let start = Instant::now();
            if peer_closes {
                peer.close().unwrap();
            } else {
                drop(peer);
            }
            (count, start.elapsed())
        });
        for _ in 0..3 {
            closer.send(b"message").unwrap();
        }
        closer.close().unwrap();
        let (count, time) = reading.join().unwrap();
        assert_eq!(count, 3);
        time
    })
}

#[test]
fn close_succeeds_despite_packet_loss() {
    let workers = [1, 2, 3, 4, 5, 6].map(|seed| {
        spawn(move || {
            let options = options(seed, 200_000);
            for round in 0..10 {
                exchange_and_close(&options, round % 2 == 0);
            }
        })
    });
    workers.into_iter().for_each(|worker| worker.join().unwrap());
}

#[test]
fn no_side_lingers_without_packet_loss() {
    let options = options(7, 0);
    let times: Vec<Duration> = (0..40).map(|round| exchange_and_close(&options, round % 2 == 0)).collect();
    // A side that receives no close acknowledgement lingers for two seconds.
    let lingering = times.iter().filter(|time| **time > Duration::from_secs(1)).count();
    assert!(lingering < 3, "{lingering} of {} lingered: {times:?}", times.len());
}

#[test]
fn both_sides_may_close_at_the_same_time() {
    let options = options(8, 0);
    for _ in 0..50 {
        let (one, other) = pair(&options);
        scope(|scope| {
            let closing = [one, other].map(|side| scope.spawn(move || side.close()));
            closing.into_iter().for_each(|side| side.join().unwrap().unwrap());
        });
    }
}

#[cfg(feature = "tokio")]
mod tasks {
    use adverb::net::{Connector, Listener};
    use tokio::io::AsyncWriteExt;
    use tokio::runtime::Builder;
    use tokio::task::JoinSet;

    use super::*;

    fn run<T>(work: impl Future<Output = T>) -> T {
        Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
    }

    #[test]
    fn close_succeeds_despite_packet_loss() {
        run(async {
            let mut workers = JoinSet::new();
            for seed in 1..7 {
                workers.spawn(async move {
                    let [closer, peer] = options(seed, 200_000);
                    let listener = Listener::builder().options(&peer).bind("127.0.0.1:0").await.unwrap();
                    for round in 0..10 {
                        let address = listener.local_addr();
                        let connector = Connector::new().options(&closer);
                        let (closer, peer) = tokio::join!(connector.connect(address), listener.accept());
                        let (closer, peer) = (closer.unwrap(), peer.unwrap());
                        let reading = async {
                            while peer.recv().await.unwrap().is_some() {}
                            if round % 2 == 0 {
                                peer.close().await.unwrap();
                            } else {
                                drop(peer);
                            }
                        };
                        let closing = async {
                            closer.send(b"message").await.unwrap();
                            closer.close().await.unwrap();
                        };
                        tokio::join!(reading, closing);
                    }
                });
            }
            workers.join_all().await;
        });
    }

    #[test]
    fn a_connection_may_be_dropped_outside_of_a_task() {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        for seed in 1..7 {
            let [closer, peer] = options(seed, 200_000);
            let listener = runtime.block_on(Listener::builder().options(&peer).bind("127.0.0.1:0")).unwrap();
            for _ in 0..5 {
                let address = listener.local_addr();
                let closing = runtime.spawn({
                    let connector = Connector::new().options(&closer);
                    async move { Ok::<_, adverb::Error>(connector.connect(address).await?.close().await?) }
                });
                let peer = runtime.block_on(listener.accept()).unwrap();
                while runtime.block_on(peer.recv()).unwrap().is_some() {}
                // Dropped outside of a task.
                drop(peer);
                runtime.block_on(closing).unwrap().unwrap();
            }
        }
    }

    #[test]
    fn simultaneous_stream_shutdowns_succeed_if_one_side_exits_first() {
        for round in 0..8 {
            let [one, other] = options(round, 0);
            let (send_address, address) = std::sync::mpsc::channel();
            let accepting = spawn(move || {
                run(async {
                    let listener = Listener::builder().options(&other).bind("127.0.0.1:0").await.unwrap();
                    send_address.send(listener.local_addr()).unwrap();
                    listener.accept_stream().await.unwrap().shutdown().await
                })
            });
            let connected = run(async {
                let stream = Connector::new().options(&one).connect_stream(address.recv().unwrap()).await;
                stream.unwrap().shutdown().await
            });
            connected.unwrap();
            accepting.join().unwrap().unwrap();
        }
    }
}

#[test]
fn connect_succeeds_if_the_listener_writes_and_closes_at_once() {
    let [connector, listener] = options(1, 0);
    for _ in 0..100 {
        let listener = Listener::builder().options(&listener).bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr();
        scope(|scope| {
            scope.spawn(|| listener.accept_stream().unwrap().write_all(b"bytes").unwrap());
            // One poll may return the listener's hello, its bytes and its close.
            let stream = Connector::new().options(&connector).connect_stream(address).unwrap();
            assert_eq!(std::io::read_to_string(stream).unwrap(), "bytes");
        });
    }
}
