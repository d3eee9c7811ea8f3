//! The wait protocol under loom: threads, tasks, handshakes and cancelled callers on a model of a completion queue, in
//! every interleaving with few preemptions. A lost wake-up is a deadlock, which loom reports. Injected faults must be
//! reported.
//!
//! A reported deadlock unwinds, and loom's types then can't be used. So connections are in the standard library's
//! `Arc`.

use std::mem::ManuallyDrop;
use std::sync::Arc;

use loom::model::Builder;
use loom::sync::{Condvar, Mutex, MutexGuard};
use loom::thread;

use super::protocol::{Block, CallerKind, Events, Fault, Lock, Notify, Waiters, WaitingCaller};

/// A connection: messages are completions that were processed.
struct Connection {
    state: Mutex<State>,
    followers: Condvar,
    device: Mutex<Device>,
    /// Notified when an event is raised.
    events: Condvar,
    tasks: Mutex<Tasks>,
    /// Notified when tasks are woken.
    wakers: Condvar,
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
    /// Whether a handshake uses the lane.
    is_handshake: bool,
}

#[derive(Default)]
struct Device {
    queues: [CompletionQueue; 2],
    reactor: Reactor,
}

/// The runtime's readiness of the queues' descriptors. It has one waker, which wakes all tasks, once.
#[derive(Default)]
struct Reactor {
    is_ready: bool,
    /// The number of times that a descriptor became ready.
    tick: u32,
    has_waker: bool,
}

/// The tasks that have registered a waker, and those that were woken and have not run since.
#[derive(Default)]
struct Tasks {
    has_waker: [bool; 2],
    is_woken: [bool; 2],
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

    fn is_owned(&self) -> bool {
        true
    }
}

impl Events for Locked<'_> {
    fn waiters(&mut self) -> &mut Waiters {
        &mut self.state.waiters
    }

    fn has_lane(&self) -> bool {
        !self.state.is_handshake
    }

    fn arm(&mut self) {
        self.connection.device.lock().unwrap().queues[self.state.lane].is_armed = true;
    }

    fn poll(&mut self) {
        let completions = self.connection.poll(self.state.lane);
        self.process(completions);
    }

    fn notify(&mut self, notify: Notify) {
        match notify {
            Notify::None => return,
            Notify::One => self.connection.followers.notify_one(),
            Notify::All => self.connection.followers.notify_all(),
        }
        self.connection.wake_tasks();
    }
}

impl Locked<'_> {
    fn process(&mut self, completions: Messages) {
        let has_completions = completions != Messages::default();
        self.state.waiters.polled(has_completions);
        self.state.messages.iter_mut().zip(completions).for_each(|(messages, count)| *messages += count);
        if has_completions {
            self.change();
        }
    }

    fn change(&mut self) {
        let notify = self.state.waiters.changed();
        self.notify(notify);
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
            tasks: Mutex::new(Tasks::default()),
            wakers: Condvar::new(),
        })
    }

    fn poll(&self, lane: usize) -> Messages {
        std::mem::take(&mut self.device.lock().unwrap().queues[lane].completions)
    }

    /// Adds a completion to a queue, as the device does.
    fn complete(&self, lane: usize, kind: usize) {
        let mut device = self.device.lock().unwrap();
        let queue = &mut device.queues[lane];
        queue.completions[kind] += 1;
        if std::mem::take(&mut queue.is_armed) {
            queue.has_event = true;
            self.events.notify_all();
            device.reactor.is_ready = true;
            device.reactor.tick += 1;
            let has_waker = std::mem::take(&mut device.reactor.has_waker);
            drop(device);
            if has_waker {
                self.wake_tasks();
            }
        }
    }

    fn wake_tasks(&self) {
        let tasks = &mut *self.tasks.lock().unwrap();
        for (has_waker, is_woken) in tasks.has_waker.iter_mut().zip(&mut tasks.is_woken) {
            *is_woken |= std::mem::take(has_waker);
        }
        self.wakers.notify_all();
    }

    /// Waits for an event of a lane.
    fn sleep(&self, lane: usize) {
        let mut device = self.device.lock().unwrap();
        while !std::mem::take(&mut device.queues[lane].has_event) {
            device = self.events.wait(device).unwrap();
        }
    }

    /// Receives a message of a kind as a thread does. Returns `false` if the connection was closed.
    fn recv(&self, kind: usize) -> bool {
        // The caller is not dropped, because a reported deadlock unwinds from here.
        let mut waiting = ManuallyDrop::new(WaitingCaller::new(self, CallerKind::Thread));
        let mut guard = self.lock();
        loop {
            let block = match waiting.advance(&mut guard, |guard| guard.state.take_message(kind)) {
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
                    waiting.spun(&mut guard, completions != Messages::default());
                    guard.process(completions);
                }
                Block::Sleep => {
                    drop(guard);
                    self.sleep(lane);
                    guard = self.lock();
                    waiting.event_taken(&mut guard);
                }
            }
        }
    }

    /// Receives a message of a kind as a task does. Returns `false` if the connection was closed.
    fn recv_as_task(&self, task: usize, kind: usize) -> bool {
        let mut waiting = ManuallyDrop::new(WaitingCaller::new(self, CallerKind::Task));
        loop {
            if let Some(received) = self.poll_task(&mut waiting, task, kind) {
                return received;
            }
            let mut tasks = self.tasks.lock().unwrap();
            while !std::mem::take(&mut tasks.is_woken[task]) {
                tasks = self.wakers.wait(tasks).unwrap();
            }
        }
    }

    /// Polls a task that receives.
    fn poll_task(&self, waiting: &mut WaitingCaller<&Connection>, task: usize, kind: usize) -> Option<bool> {
        self.take_event(waiting, task);
        loop {
            self.tasks.lock().unwrap().has_waker[task] = false;
            let mut guard = self.lock();
            let block = match waiting.advance(&mut guard, |guard| guard.state.take_message(kind)) {
                Ok(received) => return Some(received == Ok(true)),
                Err(block) => block,
            };
            if let Block::Spin(_) = block {
                guard.poll();
                waiting.spun(&mut guard, false);
                continue;
            }
            self.tasks.lock().unwrap().has_waker[task] = true;
            drop(guard);
            if block == Block::Follow || !self.take_event(waiting, task) {
                return None;
            }
        }
    }

    /// Takes the event of the lane as a task does. Returns whether the reactor has reported one. Otherwise the next one
    /// wakes all tasks.
    fn take_event(&self, waiting: &mut WaitingCaller<&Connection>, task: usize) -> bool {
        let mut device = self.device.lock().unwrap();
        let Reactor { is_ready, tick, .. } = device.reactor;
        if !is_ready {
            device.reactor.has_waker = true;
            return false;
        }
        drop(device);
        self.tasks.lock().unwrap().has_waker[task] = false;
        let mut guard = self.lock();
        if !guard.has_lane() {
            return true;
        }
        let lane = guard.state.lane;
        if std::mem::take(&mut self.device.lock().unwrap().queues[lane].has_event) {
            waiting.event_taken(&mut guard);
        }
        let mut device = self.device.lock().unwrap();
        if device.reactor.tick == tick {
            device.reactor.is_ready = false;
        }
        true
    }

    /// Polls as a caller does that doesn't wait.
    fn poll_without_waiting(&self) {
        let mut guard = self.lock();
        if guard.state.waiters.may_poll() {
            guard.poll();
        }
    }

    /// Begins to receive as a thread does, and cancels the wait when it would block. Returns whether there was a
    /// message.
    fn begin_recv(&self, kind: usize) -> bool {
        let mut waiting = WaitingCaller::new(self, CallerKind::Thread);
        let mut guard = self.lock();
        waiting.advance(&mut guard, |guard| guard.state.take_message(kind)) == Ok(Ok(true))
    }

    /// Receives a hello, as a message of the first kind. Only the events of the lane lead to the next poll.
    fn recv_hello(&self) {
        let mut waiting = ManuallyDrop::new(WaitingCaller::new(self, CallerKind::Handshake));
        loop {
            let mut guard = self.lock();
            let lane = guard.state.lane;
            if std::mem::take(&mut self.device.lock().unwrap().queues[lane].has_event) {
                waiting.event_taken(&mut guard);
            }
            if waiting.advance(&mut guard, |guard| guard.state.take_message(0)) == Ok(Ok(true)) {
                guard.state.is_handshake = false;
                return guard.change();
            }
            drop(guard);
            let mut device = self.device.lock().unwrap();
            while !device.queues[lane].has_event {
                device = self.events.wait(device).unwrap();
            }
        }
    }

    /// Changes the connection without a completion.
    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut guard = self.lock();
        change(&mut guard.state);
        guard.change();
    }
}

impl State {
    fn take_message(&mut self, kind: usize) -> Result<Option<bool>, ()> {
        if self.messages[kind] > 0 {
            self.messages[kind] -= 1;
            return Ok(Some(true));
        }
        Ok(self.is_closed.then_some(false))
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

/// A completion arrives at any time: before the queue is armed, or between the poll and the sleep.
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
fn a_leader_that_does_not_poll_after_arming_is_detected() {
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
            connection.poll_without_waiting();
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
fn a_leader_that_notifies_no_follower_is_detected() {
    each_of_two_callers_receives_its_message(Some(Fault::NoHandover));
}

/// A caller is cancelled while it leads, follows or has been notified; the other one receives the message.
fn a_caller_receives_though_another_is_cancelled(fault: Option<Fault>) {
    check(move || {
        let connection = Connection::new(fault);
        let cancelled = spawn(&connection, |connection| {
            if connection.begin_recv(0) {
                // This caller received the message before it was cancelled, so the other caller needs another one.
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
fn a_cancelled_leader_that_notifies_no_follower_is_detected() {
    a_caller_receives_though_another_is_cancelled(Some(Fault::NoHandover));
}

/// The lane is replaced at any time, and the message arrives on the new lane. The old one is drained, which raises an
/// event.
#[test]
fn a_leader_notices_another_lane() {
    check(|| {
        let connection = Connection::new(None);
        let driver = spawn(&connection, |connection| {
            connection.change(|state| {
                state.lane = 1;
                state.waiters.replace_lane();
            });
            connection.complete(0, 1);
            connection.complete(1, 0);
        });
        assert!(connection.recv(0));
        driver.join().unwrap();
    });
}

/// The connection is closed, and its lane is drained, which raises an event.
#[test]
fn a_closed_connection_wakes_all_threads() {
    check(|| {
        let connection = Connection::new(None);
        let other = spawn(&connection, |connection| assert!(!connection.recv(0)));
        let closer = spawn(&connection, |connection| {
            connection.change(|state| state.is_closed = true);
            connection.complete(0, 1);
        });
        assert!(!connection.recv(0));
        other.join().unwrap();
        closer.join().unwrap();
    });
}

/// A caller that doesn't wait processes the completion that another caller waits for.
#[test]
fn a_caller_that_polls_without_waiting_notifies_the_others() {
    for recv in [(|connection| assert!(connection.recv(0))) as fn(&Connection), |connection| {
        assert!(connection.recv_as_task(0, 0))
    }] {
        check(move || {
            let connection = Connection::new(None);
            let other = spawn(&connection, recv);
            let poller = spawn(&connection, |connection| {
                connection.complete(0, 0);
                connection.poll_without_waiting();
            });
            other.join().unwrap();
            poller.join().unwrap();
        });
    }
}

fn a_completion_wakes_a_task_whenever_it_arrives(fault: Option<Fault>) {
    check(move || {
        let connection = Connection::new(fault);
        let device = spawn(&connection, |connection| connection.complete(0, 0));
        assert!(connection.recv_as_task(0, 0));
        device.join().unwrap();
    });
}

#[test]
fn a_completion_wakes_a_task() {
    a_completion_wakes_a_task_whenever_it_arrives(None);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_task_that_does_not_poll_after_arming_is_detected() {
    a_completion_wakes_a_task_whenever_it_arrives(Some(Fault::NoPollAfterArm));
}

/// Two tasks wait for different messages. A caller that doesn't wait may process the first message, so that a task
/// takes an event and leaves without a poll.
fn each_of_two_tasks_receives_its_message(fault: Option<Fault>) {
    check(move || {
        let connection = Connection::new(fault);
        let other = spawn(&connection, |connection| assert!(connection.recv_as_task(1, 1)));
        let device = spawn(&connection, |connection| {
            connection.complete(0, 0);
            connection.poll_without_waiting();
            connection.complete(0, 1);
        });
        assert!(connection.recv_as_task(0, 0));
        other.join().unwrap();
        device.join().unwrap();
    });
}

#[test]
fn a_task_that_takes_an_event_notifies_the_others() {
    each_of_two_tasks_receives_its_message(None);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_task_that_takes_an_event_without_a_notification_is_detected() {
    each_of_two_tasks_receives_its_message(Some(Fault::EventTakenWithoutNotify));
}

/// A task is polled once, and then dropped, or neither polled again nor dropped. The other one receives the message.
#[test]
fn a_task_receives_though_another_is_not_polled_again() {
    for is_dropped in [true, false] {
        check(move || {
            let connection = Connection::new(None);
            let abandoned = Arc::clone(&connection);
            let abandoned = thread::spawn(move || {
                let mut waiting = ManuallyDrop::new(WaitingCaller::new(&*abandoned, CallerKind::Task));
                if abandoned.poll_task(&mut waiting, 1, 0).is_some() {
                    // This task has received the message, so the other task needs another one.
                    abandoned.complete(0, 0);
                }
                if is_dropped {
                    drop(ManuallyDrop::into_inner(waiting));
                }
            });
            let device = spawn(&connection, |connection| connection.complete(0, 0));
            assert!(connection.recv_as_task(0, 0));
            abandoned.join().unwrap();
            device.join().unwrap();
        });
    }
}

fn a_message_for_a_task_arrives_on_another_lane(fault: Option<Fault>) {
    check(move || {
        let connection = Connection::new(fault);
        let driver = spawn(&connection, |connection| {
            connection.change(|state| {
                state.lane = 1;
                state.waiters.replace_lane();
            });
            connection.complete(1, 0);
        });
        assert!(connection.recv_as_task(0, 0));
        driver.join().unwrap();
    });
}

#[test]
fn a_task_notices_another_lane() {
    a_message_for_a_task_arrives_on_another_lane(None);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_task_that_assumes_that_a_new_lane_is_armed_is_detected() {
    a_message_for_a_task_arrives_on_another_lane(Some(Fault::NewLaneAssumedArmed));
}

#[test]
fn a_change_without_an_event_wakes_all_tasks() {
    check(|| {
        let connection = Connection::new(None);
        let other = spawn(&connection, |connection| assert!(!connection.recv_as_task(1, 0)));
        let closer = spawn(&connection, |connection| connection.change(|state| state.is_closed = true));
        assert!(!connection.recv_as_task(0, 0));
        other.join().unwrap();
        closer.join().unwrap();
    });
}

/// A handshake receives the hello on its lane, while a caller waits for the message that follows.
#[test]
fn a_caller_waits_until_the_handshake_is_finished() {
    for recv in [(|connection| assert!(connection.recv(1))) as fn(&Connection), |connection| {
        assert!(connection.recv_as_task(0, 1))
    }] {
        check(move || {
            let connection = Connection::new(None);
            connection.lock().state.is_handshake = true;
            let caller = spawn(&connection, recv);
            let peer = spawn(&connection, |connection| {
                connection.complete(0, 0);
                connection.complete(0, 1);
            });
            connection.recv_hello();
            caller.join().unwrap();
            peer.join().unwrap();
        });
    }
}
