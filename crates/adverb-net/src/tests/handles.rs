//! The last handle of a connection, dropped while the acknowledgement of the peer's close is outstanding.

use std::sync::{Arc, Weak};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use crate::blocking::{Connection, Connector, Listener};
use crate::driver::{Driver, LINGER};
use crate::options::Options;

/// The maximum time of a drop. A drop that waits for the peer takes [`LINGER`]; on a busy machine, any other may take some
/// hundred milliseconds.
const MAX_DROP_TIME: Duration = LINGER.checked_div(2).unwrap();

fn connected() -> (Connection, Connection) {
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr();
    scope(|scope| {
        let left = scope.spawn(move || Connector::new().options(&options()).connect(address).unwrap());
        let right = listener.accept().unwrap();
        (left.join().unwrap(), right)
    })
}

fn options() -> Options {
    Options::new().timeout(Duration::from_secs(20))
}

/// Returns a connection whose peer has closed it, and does not drive it any longer.
fn lingering() -> (Connection, Connection) {
    let (left, right) = connected();
    right.driver().begin_close();
    assert!(left.recv().unwrap().is_none());
    assert!(left.driver().is_lingering());
    (left, right)
}

/// Drops a handle, and checks that this does not take long.
fn drop_quickly<T>(handle: T) {
    let start = Instant::now();
    drop(handle);
    assert!(start.elapsed() < MAX_DROP_TIME, "{:?}", start.elapsed());
}

/// Returns the time until a connection is dropped.
fn time_until_dropped(driver: &Weak<Driver>) -> Duration {
    let start = Instant::now();
    while driver.strong_count() > 0 {
        assert!(start.elapsed() < 10 * LINGER, "the connection is never dropped");
        sleep(Duration::from_millis(1));
    }
    start.elapsed()
}

#[test]
fn dropping_the_last_handle_does_not_wait_for_the_peer() {
    let (left, right) = lingering();
    let driver = Arc::downgrade(left.driver());
    let clone = left.clone();
    drop_quickly(left);
    assert!(clone.recv().unwrap().is_none());
    drop_quickly(clone);
    assert!(driver.strong_count() > 0, "the connection does not linger");
    right.close().unwrap();
    assert!(time_until_dropped(&driver) < LINGER);
}

#[test]
fn a_dropped_connection_lingers_for_a_limited_time() {
    let (left, _right) = lingering();
    let driver = Arc::downgrade(left.driver());
    drop_quickly(left);
    assert!(time_until_dropped(&driver) > LINGER / 2);
}

#[test]
fn many_connections_linger_at_the_same_time() {
    let pairs = Vec::from_iter((0..20).map(|_| lingering()));
    let (dropped, rights): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
    let drivers = Vec::from_iter(dropped.iter().map(|left| Arc::downgrade(left.driver())));
    drop_quickly(dropped);
    rights.iter().for_each(|right| right.close().unwrap());
    drivers.iter().for_each(|driver| assert!(time_until_dropped(driver) < LINGER));
}

#[test]
fn a_connection_that_does_not_linger_is_dropped_at_once() {
    let (left, right) = connected();
    let driver = Arc::downgrade(left.driver());
    drop_quickly(left.clone());
    assert!(driver.strong_count() > 0);
    drop_quickly(left);
    assert_eq!(driver.strong_count(), 0);
    assert!(right.recv().is_err());
}

#[cfg(feature = "tokio")]
#[tokio::test]
async fn dropping_the_last_handle_of_tasks_does_not_wait_for_the_peer() {
    let listener = crate::Listener::bind("127.0.0.1:0").await.unwrap();
    let (left, right) = tokio::join!(crate::connect(listener.local_addr()), listener.accept());
    let (left, right) = (left.unwrap(), right.unwrap());
    right.driver().begin_close();
    assert!(left.recv().await.unwrap().is_none());
    assert!(left.driver().is_lingering());
    let driver = Arc::downgrade(left.driver());
    let clone = left.clone();
    drop_quickly(left);
    assert!(clone.recv().await.unwrap().is_none());
    drop_quickly(clone);
    assert!(driver.strong_count() > 0, "the connection does not linger");
    right.close().await.unwrap();
    assert!(time_until_dropped(&driver) < LINGER);
}

#[cfg(feature = "tokio")]
#[test]
fn a_connection_lingers_after_its_runtime() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (left, right) = runtime.block_on(async {
        let listener = crate::Listener::bind("127.0.0.1:0").await.unwrap();
        let (left, right) = tokio::join!(crate::connect(listener.local_addr()), listener.accept());
        let (left, right) = (left.unwrap(), right.unwrap());
        right.driver().begin_close();
        assert!(left.recv().await.unwrap().is_none());
        (left, right)
    });
    let driver = Arc::downgrade(left.driver());
    drop(runtime);
    drop_quickly(left);
    assert!(driver.strong_count() > 0, "the connection does not linger");
    drop(right);
    time_until_dropped(&driver);
}
