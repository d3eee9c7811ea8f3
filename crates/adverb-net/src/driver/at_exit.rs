//! The end of the process: its connections end, too, and their peers are told.

use std::sync::mpsc::channel;
use std::sync::{Arc, Once, Weak};
use std::time::{Duration, Instant};

use adverb_verbs::internal::call_at_exit;
use parking_lot::Mutex;

use super::{Driver, abort};

/// The maximum time for which the end of the process is delayed. A thread may hold a lock and never release it.
const TIMEOUT: Duration = Duration::from_millis(100);

/// The connections, and the processes that created them: a forked child must not end its parent's.
static DRIVERS: Mutex<Vec<(u32, Weak<Driver>)>> = Mutex::new(Vec::new());

/// Adds a connection, which ends with the process.
pub(super) fn add(driver: &Arc<Driver>) {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| call_at_exit(abort_all));
    let mut drivers = DRIVERS.lock();
    if drivers.len() == drivers.capacity() {
        drivers.retain(|(_, driver)| driver.strong_count() > 0);
        // Half of the list is free, so that it is rarely searched.
        let open = drivers.len();
        drivers.reserve(open);
    }
    drivers.push((std::process::id(), Arc::downgrade(driver)));
}

/// Tells the peers of all connections that the connections end.
extern "C" fn abort_all() {
    let (process, deadline) = (std::process::id(), Instant::now() + TIMEOUT);
    let Some(mut drivers) = DRIVERS.try_lock_until(deadline).map(|mut drivers| std::mem::take(&mut *drivers))
    else {
        return;
    };
    drivers.retain(|(owner, driver)| *owner == process && driver.strong_count() > 0);
    if drivers.is_empty() {
        return;
    }
    let (done, is_done) = channel();
    // Posting takes locks without a time limit, so it has a thread of its own, which ends with the process.
    let thread = std::thread::Builder::new().name("adverb-exit".to_owned()).spawn(move || {
        for driver in drivers.iter().filter_map(|(_, driver)| driver.upgrade()) {
            if let Some(mut core) = driver.core.try_lock_until(deadline) {
                abort(&mut core);
                // The software NIC sends queued packets with the next poll.
                let _ = core.lane.completions.poll(&mut Vec::new());
            }
            // Destroying the connection takes long, and the system does it.
            std::mem::forget(driver);
        }
        let _ = done.send(());
    });
    if thread.is_ok() {
        let _ = is_done.recv_timeout(deadline.saturating_duration_since(Instant::now()));
    }
}
