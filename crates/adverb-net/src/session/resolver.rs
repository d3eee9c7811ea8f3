//! Host-name lookups on behalf of the redialer.
//!
//! `getaddrinfo` blocks for as long as the system's resolver takes. The lookups have threads of their own, at most
//! [`MAX_THREADS`], which exist only while names are looked up. A lookup that hangs delays other lookups, but dials
//! only shortly: a round of dials waits for lookups for at most 200 ms, and then uses the addresses that are known.

use std::collections::VecDeque;
use std::net::SocketAddr;

use parking_lot::Mutex;

use super::paths::look_up;

/// Maximum number of threads that look up names.
const MAX_THREADS: usize = 4;

static LOOKUPS: Mutex<Lookups> =
    Mutex::new(Lookups { queue: VecDeque::new(), current: Vec::new(), threads: 0 });

/// The lookups that are queued or in progress. Each name is among them once.
struct Lookups {
    queue: VecDeque<String>,
    current: Vec<String>,
    threads: usize,
}

/// Queues a lookup, unless one of the same name is queued or in progress. `report` receives the result on another
/// thread.
pub(super) fn resolve(name: &str, report: fn(&str, Vec<SocketAddr>)) {
    let mut lookups = LOOKUPS.lock();
    if lookups.queue.iter().chain(&lookups.current).any(|queued| queued == name) {
        return;
    }
    lookups.queue.push_back(name.to_owned());
    if lookups.threads < MAX_THREADS {
        let thread = std::thread::Builder::new().name("adverb-resolve".to_owned());
        match thread.spawn(move || run(report)) {
            Ok(_) => lookups.threads += 1,
            Err(error) if lookups.threads == 0 => {
                tracing::debug!(name, %error, "could not start a thread to resolve a host name");
                lookups.queue.clear();
            }
            // One of the running threads looks up the name.
            Err(_) => {}
        }
    }
}

/// Looks up queued names until none is left.
fn run(report: fn(&str, Vec<SocketAddr>)) {
    loop {
        let mut lookups = LOOKUPS.lock();
        let Some(name) = lookups.queue.pop_front() else {
            lookups.threads -= 1;
            return;
        };
        lookups.current.push(name.clone());
        drop(lookups);
        let addresses = look_up(&name);
        LOOKUPS.lock().current.retain(|current| *current != name);
        report(&name, addresses);
    }
}
