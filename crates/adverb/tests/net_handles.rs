//! Handles of a connection: clones, and the memory that the peer exposes.

#![cfg(feature = "soft")]

#[path = "common/connections.rs"]
mod connections;

use std::thread::{scope, sleep, spawn};
use std::time::{Duration, Instant};

use adverb::Error;
use adverb::net::blocking::Connection;
use adverb::net::{ConnectionError, ExposeError, RecvError, RemoteAccess, RemoteErrorKind, SendErrorKind};
use connections::options;

/// The time after which a thread waits.
const MOMENT: Duration = Duration::from_millis(100);

fn pair() -> (Connection, Connection) {
    connections::blocking_pair(&options(), &options())
}

/// Returns the reason for the end of the connection with which an operation has failed.
#[track_caller]
fn reason<T>(result: Result<T, impl Into<Error>>) -> ConnectionError {
    match result.map(drop).map_err(Into::into) {
        Err(Error::Connection(error)) => return *error,
        Err(Error::Send(error)) => {
            if let SendErrorKind::ConnectionLost(error) = *error {
                return error;
            }
        }
        Err(Error::Recv(error)) => {
            if let RecvError::ConnectionLost(error) = *error {
                return error;
            }
        }
        Err(Error::Expose(error)) => {
            if let ExposeError::Send(SendErrorKind::ConnectionLost(error)) = *error {
                return error;
            }
        }
        Err(Error::Remote(error)) => {
            if let RemoteErrorKind::ConnectionLost(error) = *error {
                return error;
            }
        }
        other => panic!("{other:?}"),
    }
    panic!("another error than the end of the connection");
}

#[track_caller]
fn assert_closed_by_this_side<T>(result: Result<T, impl Into<Error>>) {
    let reason = reason(result);
    assert!(matches!(reason, ConnectionError::LocallyClosed { .. }), "{reason:?}");
}

#[track_caller]
fn assert_aborted_by_the_peer<T>(result: Result<T, impl Into<Error>>) {
    let reason = reason(result);
    assert!(matches!(reason, ConnectionError::PeerAborted { .. }), "{reason:?}");
}

#[test]
fn threads_share_a_connection_by_its_clones() {
    let (left, right) = pair();
    let echo = spawn(move || {
        while let Some(message) = right.recv().unwrap() {
            right.send(message).unwrap();
        }
        right.close().unwrap();
    });
    let receiver = left.clone();
    let receiving = spawn(move || {
        for number in 0..1000_u32 {
            assert_eq!(receiver.recv().unwrap().unwrap()[..], number.to_le_bytes());
        }
    });
    for number in 0..1000_u32 {
        left.send(&number.to_le_bytes()).unwrap();
    }
    receiving.join().unwrap();
    left.close().unwrap();
    echo.join().unwrap();
}

#[test]
fn closing_a_connection_ends_the_calls_of_its_clones() {
    let (left, right) = pair();
    right.expose("memory", 64, RemoteAccess::READ).unwrap();
    let region = left.remote_region("memory").unwrap();
    scope(|scope| {
        let [receiver, finder, waiter] = [(); 3].map(|()| left.clone());
        let receiving = scope.spawn(move || receiver.recv());
        let finding = scope.spawn(move || finder.remote_region("no such memory"));
        let waiting = scope.spawn(move || waiter.closed());
        sleep(MOMENT);
        let start = Instant::now();
        left.clone().close().unwrap();
        assert_closed_by_this_side(receiving.join().unwrap());
        assert_closed_by_this_side(finding.join().unwrap());
        assert_closed_by_this_side(Err::<(), _>(waiting.join().unwrap()));
        assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    });
    assert!(right.recv().unwrap().is_none());
    assert_closed_by_this_side(left.send(b"more"));
    assert_closed_by_this_side(left.feed(b"more"));
    assert_closed_by_this_side(left.try_send(b"more"));
    assert_closed_by_this_side(left.recv());
    assert_closed_by_this_side(left.shutdown());
    assert_closed_by_this_side(left.expose("mine", 64, RemoteAccess::READ));
    assert_closed_by_this_side(left.remote_region("memory"));
    assert_closed_by_this_side(region.read(0..8));
    left.close().expect("it is closed already");
}

#[test]
fn a_call_that_waits_for_credits_ends_when_the_connection_is_closed() {
    let options = connections::minimal(options()).connect_timeout(Duration::from_secs(1));
    let (left, _right) = connections::blocking_pair(&options, &options);
    scope(|scope| {
        let sender = left.clone();
        let sending = scope.spawn(move || {
            loop {
                if let Err(error) = sender.send(&[7; 100]) {
                    return error;
                }
            }
        });
        sleep(MOMENT);
        // The peer does not receive the messages, so the close fails.
        assert!(matches!(left.close(), Err(ConnectionError::CloseTimedOut { .. })));
        reason(Err::<(), _>(sending.join().unwrap()));
    });
}

#[test]
fn dropping_a_clone_does_not_end_the_connection() {
    let (left, right) = pair();
    drop(left.clone());
    spawn({
        let clone = left.clone();
        move || drop(clone)
    })
    .join()
    .unwrap();
    left.send(b"still here").unwrap();
    assert_eq!(&right.recv().unwrap().unwrap()[..], b"still here");
    drop(left);
    assert_aborted_by_the_peer(right.recv());
}

#[test]
fn a_remote_region_keeps_its_connection() {
    let (left, right) = pair();
    let access = RemoteAccess::READ | RemoteAccess::WRITE;
    let memory = right.expose("memory", 64, access).unwrap();
    let heap = right.expose_addresses(0x10_0000, adverb::memory::Pages::new(4096).unwrap(), access).unwrap();
    let (region, space) = (left.remote_region("memory").unwrap(), left.address_space().unwrap());
    drop(left);
    spawn(move || region.write(8, b"written!").unwrap()).join().unwrap();
    space.clone().write(0x10_0010, b"by addr.").unwrap();
    let mut bytes = [0; 8];
    memory.read(8, &mut bytes).unwrap();
    assert_eq!(&bytes, b"written!");
    heap.read(16, &mut bytes).unwrap();
    assert_eq!(&bytes, b"by addr.");
    drop(space);
    assert_aborted_by_the_peer(right.recv());
}

#[cfg(feature = "tokio")]
mod tasks {
    use adverb::net::{Connection, Connector, Listener};
    use tokio::time::{sleep, timeout};

    use super::*;

    async fn pair() -> (Connection, Connection) {
        let listener = Listener::builder().options(&options()).bind("127.0.0.1:0").await.unwrap();
        let connector = Connector::new().options(&options());
        let (left, right) = tokio::join!(connector.connect(listener.local_addr()), listener.accept());
        (left.unwrap(), right.unwrap())
    }

    #[tokio::test]
    async fn tasks_share_a_connection_by_its_clones() {
        let (left, right) = pair().await;
        let echo = tokio::spawn(async move {
            while let Some(message) = right.recv().await.unwrap() {
                right.send(message).await.unwrap();
            }
            right.close().await.unwrap();
        });
        let receiver = left.clone();
        let receiving = tokio::spawn(async move {
            for number in 0..1000_u32 {
                assert_eq!(receiver.recv().await.unwrap().unwrap()[..], number.to_le_bytes());
            }
        });
        for number in 0..1000_u32 {
            left.send(&number.to_le_bytes()).await.unwrap();
        }
        receiving.await.unwrap();
        left.close().await.unwrap();
        echo.await.unwrap();
    }

    #[tokio::test]
    async fn closing_a_connection_ends_the_calls_of_its_clones() {
        let (left, right) = pair().await;
        right.expose("memory", 64, RemoteAccess::READ).await.unwrap();
        let region = left.remote_region("memory").await.unwrap();
        let [receiver, finder, waiter] = [(); 3].map(|()| left.clone());
        let receiving = tokio::spawn(async move { receiver.recv().await });
        let finding = tokio::spawn(async move { finder.remote_region("no such memory").await });
        let waiting = tokio::spawn(async move { waiter.closed().await });
        sleep(MOMENT).await;
        let start = Instant::now();
        left.clone().close().await.unwrap();
        assert_closed_by_this_side(receiving.await.unwrap());
        assert_closed_by_this_side(finding.await.unwrap());
        assert_closed_by_this_side(Err::<(), _>(waiting.await.unwrap()));
        assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
        assert!(right.recv().await.unwrap().is_none());
        assert_closed_by_this_side(left.send(b"more").await);
        assert_closed_by_this_side(left.recv().await);
        assert_closed_by_this_side(region.read(0..8).await);
        left.close().await.expect("it is closed already");
    }

    #[tokio::test]
    async fn a_close_whose_future_was_dropped_can_be_awaited_again() {
        let (left, right) = pair().await;
        left.send(b"message").await.unwrap();
        // The first poll begins the close.
        let _ = timeout(Duration::ZERO, left.close()).await;
        assert_closed_by_this_side(left.recv().await);
        left.close().await.unwrap();
        assert_eq!(&right.recv().await.unwrap().unwrap()[..], b"message");
        assert!(right.recv().await.unwrap().is_none());
    }

    #[tokio::test]
    async fn dropping_a_clone_does_not_end_the_connection() {
        let (left, right) = pair().await;
        drop(left.clone());
        let clone = left.clone();
        tokio::spawn(async move { drop(clone) }).await.unwrap();
        left.send(b"still here").await.unwrap();
        assert_eq!(&right.recv().await.unwrap().unwrap()[..], b"still here");
        drop(left);
        assert_aborted_by_the_peer(right.recv().await);
    }

    #[tokio::test]
    async fn a_remote_region_keeps_its_connection() {
        let (left, right) = pair().await;
        let memory = right.expose("memory", 64, RemoteAccess::WRITE).await.unwrap();
        let region = left.remote_region("memory").await.unwrap();
        drop(left);
        tokio::spawn(async move { region.write(8, b"written!").await.unwrap() }).await.unwrap();
        let mut bytes = [0; 8];
        memory.read(8, &mut bytes).unwrap();
        assert_eq!(&bytes, b"written!");
        assert_aborted_by_the_peer(right.recv().await);
    }
}
