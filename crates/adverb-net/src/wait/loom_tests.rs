//! The wait protocol under loom: threads and cancelled callers on a model of a completion queue, in every interleaving
//! with few preemptions. A lost wake-up is a deadlock, which loom reports. Injected faults must be reported.
//!
//! A reported deadlock unwinds, and loom's types then can't be used. So connections are in the standard library's `Arc`.

use std::mem::ManuallyDrop;
use std::sync::Arc;

use loom::model::Builder;
use loom::sync::{Condvar, Mutex, MutexGuard};
use loom::thread;

use super::protocol::{Block, Events, Fault, Lock, Notify, Waiters, WaitingCaller, Wake};

/// A connection: messages are completions that were processed.
struct Connection {
    state: Mutex<State>,
    followers: Condvar,
    device: Mutex<Device>,
    /// Notified when an event is raised, or when the leader is woken.
    events: Condvar,
}

/// Messages of two kinds, which callers wait for separately.
type Messages = [u32; 2];

#[derive(Default)]
struct State {
    waiters: Waiters,
    /// The number of the lane, and therefore of its completion queue.
    lane: usize,
    /// The number of messages of each kind.
    messages: Messages,
    is_closed: bool,
}

#[derive(Default)]
struct Device {
    queues: [CompletionQueue; 2],
    /// The leader was woken, and hasn't noticed.
    is_woken: bool,
}

#[derive(Default)]
struct CompletionQueue {
    completions: Messages,
    is_armed: bool,
    has_event: bool,
}

struct Locked<'a> {
    connection: &'a Connection,
    state: MutexGuard<'a, State>,
}

impl Lock for Connection {
    type Guard<'a> = Locked<'a>;

    fn lock(&self) -> Locked<'_> {
        Locked { connection: self, state: self.state.lock().unwrap() }
    }
}

impl Events for Locked<'_> {
    type Error = ();

    fn waiters(&mut self) -> &mut Waiters {
        &mut self.state.waiters
    }

    fn arm(&mut self) -> Result<(), ()> {
        self.connection.device.lock().unwrap().queues[self.state.lane].is_armed = true;
        Ok(())
    }

    fn poll(&mut self) -> Result<bool, ()> {
        let completions = self.connection.poll(self.state.lane);
        Ok(self.state.process(completions))
    }

    fn wake(&mut self, wake: Wake) {
        if wake.leader {
            self.connection.device.lock().unwrap().is_woken = true;
            self.connection.events.notify_all();
        }
        match wake.followers {
            Notify::None => {}
            Notify::One => self.connection.followers.notify_one(),
            Notify::All => self.connection.followers.notify_all(),
        }
    }
}

impl Connection {
    fn new(fault: Option<Fault>) -> Arc<Connection> {
        let mut state = State::default();
        state.waiters.fault = fault;
        Arc::new(Connection {
            state: Mutex::new(state),
            followers: Condvar::new(),
            device: Mutex::new(Device::default()),
            events: Condvar::new(),
        })
    }

    fn poll(&self, lane: usize) -> Messages {
        std::mem::take(&mut self.device.lock().unwrap().queues[lane].completions)
    }

    /// The device adds a completion to a queue.
    fn complete(&self, lane: usize, kind: usize) {
        let mut device = self.device.lock().unwrap();
        let queue = &mut device.queues[lane];
        queue.completions[kind] += 1;
        if std::mem::take(&mut queue.is_armed) {
            queue.has_event = true;
            self.events.notify_all();
        }
    }

    /// Waits for an event of a lane, or to be woken. Returns whether there was an event.
    fn sleep(&self, lane: usize) -> bool {
        let mut device = self.device.lock().unwrap();
        while !device.queues[lane].has_event && !device.is_woken {
            device = self.events.wait(device).unwrap();
        }
        device.is_woken = false;
        std::mem::take(&mut device.queues[lane].has_event)
    }

    /// Receives a message of a kind as a thread does. Returns `false` if the connection was closed.
    fn recv(&self, kind: usize) -> bool {
        // Not dropped, because a reported deadlock unwinds from here.
        let mut waiting = ManuallyDrop::new(WaitingCaller::new(self));
        let mut guard = self.lock();
        loop {
            let block = match waiting.advance(&mut guard, |guard| Ok(guard.state.take(kind))) {
                Ok(received) => return received == Ok(true),
                Err(block) => block,
            };
            let lane = guard.state.lane;
            match block {
                Block::Follow => {
                    guard.state = self.followers.wait(guard.state).unwrap();
                }
                Block::Spin(_) => {
                    drop(guard);
                    let completions = self.poll(lane);
                    guard = self.lock();
                    let has_completions = guard.state.process(completions);
                    waiting.spun(&mut guard, has_completions);
                }
                Block::Sleep => {
                    drop(guard);
                    let has_event = self.sleep(lane);
                    guard = self.lock();
                    if has_event {
                        guard.state.waiters.event_taken();
                    }
                }
            }
        }
    }

    /// Polls as a caller does that doesn't wait.
    fn poll_for_itself(&self) {
        let mut guard = self.lock();
        if guard.state.waiters.may_poll() && guard.poll() == Ok(true) {
            let wake = guard.state.waiters.polled(true);
            guard.wake(wake);
        }
    }

    /// Begins to receive, and is cancelled when it blocks, as a task is whose future is dropped.
    fn begin_recv(&self, kind: usize) -> bool {
        let mut waiting = WaitingCaller::new(self);
        let mut guard = self.lock();
        waiting.advance(&mut guard, |guard| Ok(guard.state.take(kind))) == Ok(Ok(true))
    }
}

impl State {
    /// Processes completions, and returns whether there are any.
    fn process(&mut self, completions: Messages) -> bool {
        self.messages.iter_mut().zip(completions).for_each(|(messages, count)| *messages += count);
        completions != Messages::default()
    }

    fn take(&mut self, kind: usize) -> Option<bool> {
        if self.messages[kind] > 0 {
            self.messages[kind] -= 1;
            return Some(true);
        }
        self.is_closed.then_some(false)
    }
}

fn check(work: impl Fn() + Sync + Send + 'static) {
    let mut model = Builder::new();
    model.preemption_bound = Some(3);
    model.check(work);
}

fn spawn(connection: &Arc<Connection>, work: fn(&Connection)) -> thread::JoinHandle<()> {
    let connection = Arc::clone(connection);
    thread::spawn(move || work(&connection))
}

/// An event between the poll and the sleep, and before the arming.
fn a_completion_wakes_the_leader_whenever_it_arrives(fault: Option<Fault>) {
    check(move || {
        let connection = Connection::new(fault);
        let device = spawn(&connection, |connection| connection.complete(0, 0));
        assert!(connection.recv(0));
        device.join().unwrap();
    });
}

#[test]
fn a_completion_wakes_the_leader() {
    a_completion_wakes_the_leader_whenever_it_arrives(None);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_leader_that_does_not_poll_after_arming_is_found() {
    a_completion_wakes_the_leader_whenever_it_arrives(Some(Fault::NoPollAfterArm));
}

/// Two callers wait for different messages. A third one, which doesn't wait, may process the first message, so that the
/// leader leaves without having found completions itself.
fn each_of_two_callers_receives_its_message(fault: Option<Fault>) {
    check(move || {
        let connection = Connection::new(fault);
        let other = spawn(&connection, |connection| assert!(connection.recv(1)));
        let device = spawn(&connection, |connection| {
            connection.complete(0, 0);
            connection.poll_for_itself();
            connection.complete(0, 1);
        });
        assert!(connection.recv(0));
        other.join().unwrap();
        device.join().unwrap();
    });
}

#[test]
fn a_leader_that_leaves_is_replaced() {
    each_of_two_callers_receives_its_message(None);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_leader_that_notifies_no_follower_is_found() {
    each_of_two_callers_receives_its_message(Some(Fault::NoHandover));
}

/// A caller is cancelled while it leads, follows or has been notified; the other one receives the message.
fn a_caller_receives_though_another_is_cancelled(fault: Option<Fault>) {
    check(move || {
        let connection = Connection::new(fault);
        let cancelled = spawn(&connection, |connection| {
            if connection.begin_recv(0) {
                // It has received the message before it could be cancelled: another one for the other caller.
                connection.complete(0, 0);
            }
        });
        let device = spawn(&connection, |connection| connection.complete(0, 0));
        assert!(connection.recv(0));
        cancelled.join().unwrap();
        device.join().unwrap();
    });
}

#[test]
fn a_cancelled_leader_is_replaced() {
    a_caller_receives_though_another_is_cancelled(None);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_cancelled_leader_that_notifies_no_follower_is_found() {
    a_caller_receives_though_another_is_cancelled(Some(Fault::NoHandover));
}

/// The lane is replaced at any time, and the message arrives on the new one.
fn a_message_arrives_on_another_lane(fault: Option<Fault>) {
    check(move || {
        let connection = Connection::new(fault);
        let driver = spawn(&connection, |connection| {
            let mut guard = connection.lock();
            guard.state.lane = 1;
            let wake = guard.state.waiters.replace_lane();
            guard.wake(wake);
            drop(guard);
            connection.complete(1, 0);
        });
        assert!(connection.recv(0));
        driver.join().unwrap();
    });
}

#[test]
fn a_sleeper_notices_another_lane() {
    a_message_arrives_on_another_lane(None);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_sleeper_that_keeps_its_old_lane_is_found() {
    a_message_arrives_on_another_lane(Some(Fault::SleeperKeepsOldLane));
}

#[test]
fn a_change_without_an_event_wakes_all_callers() {
    check(|| {
        let connection = Connection::new(None);
        let other = spawn(&connection, |connection| assert!(!connection.recv(0)));
        let closer = spawn(&connection, |connection| {
            let mut guard = connection.lock();
            guard.state.is_closed = true;
            let wake = guard.state.waiters.changed();
            guard.wake(wake);
        });
        assert!(!connection.recv(0));
        other.join().unwrap();
        closer.join().unwrap();
    });
}

/// A caller that doesn't wait processes what another one waits for.
#[test]
fn a_caller_that_polls_for_itself_notifies_the_others() {
    check(|| {
        let connection = Connection::new(None);
        let other = spawn(&connection, |connection| assert!(connection.recv(0)));
        let poller = spawn(&connection, |connection| {
            connection.complete(0, 0);
            connection.poll_for_itself();
        });
        other.join().unwrap();
        poller.join().unwrap();
    });
}
