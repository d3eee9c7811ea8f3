//! Acknowledgements of events: an object is destroyed only after all its reported events are acknowledged.

use parking_lot::{Condvar, Mutex};

/// The numbers of reported and acknowledged events of an object.
#[derive(Debug, Default)]
pub(crate) struct Acks {
    counts: Mutex<Counts>,
    acknowledged: Condvar,
}

#[derive(Debug, Default)]
struct Counts {
    reported: u32,
    acknowledged: u32,
}

impl Acks {
    /// Counts an event that was reported to the program.
    pub(crate) fn report(&self) {
        let mut counts = self.counts.lock();
        counts.reported = counts.reported.wrapping_add(1);
    }

    /// Counts acknowledged events, and passes the number of all acknowledged events to `store`. The object may be
    /// destroyed as soon as this function returns.
    pub(crate) fn acknowledge(&self, count: u32, store: impl FnOnce(u32)) {
        let mut counts = self.counts.lock();
        counts.acknowledged = counts.acknowledged.wrapping_add(count);
        store(counts.acknowledged);
        self.acknowledged.notify_all();
    }

    /// Waits until all reported events are acknowledged.
    pub(crate) fn wait(&self) {
        let mut counts = self.counts.lock();
        while counts.reported != counts.acknowledged {
            self.acknowledged.wait(&mut counts);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destroying_waits_for_the_last_acknowledgement() {
        let acks = Acks::default();
        acks.wait();
        acks.report();
        acks.report();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                acks.acknowledge(1, |count| assert_eq!(count, 1));
                acks.acknowledge(1, |count| assert_eq!(count, 2));
            });
            acks.wait();
        });
    }
}
