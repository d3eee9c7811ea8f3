use std::collections::{HashSet, VecDeque};

use super::*;

/// The current time in tests that don't advance it.
const NOW: Time = Time::from_nanos(1_000_000_000);

fn after(duration: Duration) -> Time {
    NOW + duration
}

/// Returns a schedule whose progress thread sleeps on the link, with no work pending.
fn idle() -> Schedule {
    let mut schedule = Schedule::new();
    assert_eq!(schedule.next_step(NOW, true), NextStep::Drive);
    assert_eq!(schedule.sleep(Time::MAX), Sleep { until: Time::MAX, on_link: true });
    assert_eq!(schedule.wake_interest_change(), None);
    schedule
}

/// Returns a schedule whose progress thread rests, because a caller polled now.
fn polled() -> Schedule {
    let mut schedule = idle();
    schedule.record_poll(NOW);
    assert_eq!(schedule.next_step(NOW, true), NextStep::Rest);
    assert_eq!(schedule.rest(NOW), Sleep { until: after(POLL_GRACE), on_link: false });
    assert_eq!(schedule.wake_interest_change(), Some(false));
    schedule
}

/// Returns a schedule whose progress thread has left the link to a waiting caller.
fn waited() -> Schedule {
    let mut schedule = idle();
    assert!(schedule.begin_wait());
    for _ in 0..=MAX_SPURIOUS_WAKEUPS {
        schedule.sleep(Time::MAX);
    }
    assert_eq!(schedule.wake_interest_change(), None);
    schedule
}

#[test]
fn each_state_has_one_driver() {
    assert_eq!(Schedule::new().driver(), Driver::ProgressThread);
    assert_eq!(idle().driver(), Driver::ProgressThread);
    assert_eq!(polled().driver(), Driver::PollingCaller);
    assert_eq!(waited().driver(), Driver::WaitingCaller);
    // A poll drives the timers, too, so a polling caller precedes a waiting one.
    let mut both = waited();
    both.record_poll(NOW);
    both.rest(NOW);
    assert_eq!(both.driver(), Driver::PollingCaller);
}

#[test]
fn a_nic_fails_once_and_stays_failed() {
    let mut schedule = idle();
    assert!(!schedule.has_failed());
    assert!(schedule.fail());
    assert!(!schedule.fail(), "the second failure changes nothing");
    schedule.close();
    assert!(schedule.has_failed());
    assert_eq!(schedule.next_step(NOW, true), NextStep::Exit);
    assert!(!schedule.begin_wait());

    let mut schedule = idle();
    schedule.close();
    assert!(!schedule.has_failed());
    assert_eq!(schedule.next_step(NOW, true), NextStep::Exit);
    assert!(schedule.fail(), "a closing NIC can fail");
    assert!(schedule.has_failed());
}

#[test]
fn the_progress_thread_rests_until_the_grace_period_ends() {
    let schedule = polled();
    let just_before = Time::from_nanos(after(POLL_GRACE).as_nanos() - 1);
    assert_eq!(schedule.next_step(just_before, true), NextStep::Rest);
    assert_eq!(schedule.next_step(after(POLL_GRACE), true), NextStep::Drive);
    // Without a descriptor, no caller can drive the link for the progress thread.
    assert_eq!(schedule.next_step(NOW, false), NextStep::Drive);
}

#[test]
fn arming_ends_the_rest_until_an_event_is_delivered() {
    let mut schedule = polled();
    assert!(schedule.arm());
    assert_eq!(schedule.driver(), Driver::ProgressThread);
    assert!(!schedule.arm(), "the progress thread has been woken");
    assert_eq!(schedule.next_step(NOW, true), NextStep::Drive);
    // The poll after arming doesn't mean that the caller polls again.
    schedule.record_poll(NOW);
    assert_eq!(schedule.next_step(NOW, true), NextStep::Drive);
    schedule.record_event();
    assert_eq!(schedule.next_step(NOW, true), NextStep::Rest);
    assert!(!idle().arm(), "the progress thread already drives the link");
}

#[test]
fn a_caller_wakes_the_progress_thread_only_for_earlier_work() {
    let ms = Duration::from_millis;
    // The caller polls; the caller has armed; the deadline, and the end of the progress thread's sleep, in milliseconds
    // from now; whether the caller wakes the progress thread.
    let cases = [
        (false, false, 5, 10, true),
        (false, false, 10, 10, false),
        (false, false, 10, 5, false),
        (true, false, 5, 10, true),
        // The grace period ends after 1 ms.
        (true, false, 0, 1, false),
        (true, false, 0, 2, true),
        (true, true, 0, 1, true),
    ];
    for (polls, arms, deadline, sleep, is_woken) in cases {
        let mut schedule = idle();
        schedule.sleep(after(ms(sleep)));
        if polls {
            schedule.record_poll(NOW);
        }
        if arms {
            assert!(!schedule.arm());
        }
        let case = (polls, arms, deadline, sleep);
        assert_eq!(schedule.hand_over(after(ms(deadline))), is_woken, "{case:?}");
        assert!(!schedule.hand_over(after(ms(deadline))), "{case:?}: woken twice");
    }
}

#[test]
fn one_caller_waits_and_hands_the_link_back() {
    let mut schedule = idle();
    assert!(schedule.begin_wait());
    assert!(!schedule.begin_wait(), "another waiting caller drives the link");
    assert!(!schedule.end_wait(), "the progress thread still sleeps on the link");
    let mut schedule = waited();
    assert!(schedule.end_wait());
    assert_eq!(schedule.driver(), Driver::ProgressThread);
    assert!(schedule.begin_wait());
    assert_eq!(schedule.driver(), Driver::ProgressThread, "wake-ups are counted per wait");
}

#[test]
fn packets_wake_the_progress_thread_a_limited_number_of_times_per_wait() {
    for wait in 0..3 {
        let mut schedule = idle();
        assert!(schedule.begin_wait());
        let mut on_link = true;
        let mut wakeups = 0;
        for _ in 0..1000 {
            // A packet wakes all threads that sleep on the link.
            if on_link {
                wakeups += 1;
                on_link = schedule.sleep(Time::MAX).on_link;
            }
        }
        assert_eq!(wakeups, MAX_SPURIOUS_WAKEUPS + 1, "wait {wait}");
        // Timers still wake the progress thread.
        let timer = after(Duration::from_millis(3));
        assert_eq!(schedule.sleep(timer), Sleep { until: timer, on_link: false });
        assert!(schedule.end_wait());
    }
}

#[test]
fn the_link_gets_only_changes_of_wake_interest() {
    let mut schedule = polled();
    assert_eq!(schedule.wake_interest_change(), None);
    assert!(schedule.begin_wait());
    assert_eq!(schedule.wake_interest_change(), Some(true), "the waiting caller sleeps on the link");
    assert!(!schedule.end_wait());
    assert_eq!(schedule.wake_interest_change(), Some(false));
    schedule.sleep(Time::MAX);
    assert_eq!(schedule.wake_interest_change(), Some(true));
}

#[test]
fn acknowledgements_are_delayed_once_in_a_row() {
    let until = |polls| DelayedAck::Until { time: after(MAX_ACK_DELAY), polls };
    assert_eq!(DelayedAck::Idle.after_poll(NOW, true, || Some(1)), until(1));
    assert_eq!(DelayedAck::Idle.after_poll(NOW, true, || None), DelayedAck::Idle);
    assert_eq!(until(1).after_poll(NOW, true, || Some(1)), DelayedAck::Idle);
    assert_eq!(until(1).after_poll(NOW, false, || None), DelayedAck::Idle);
    assert_eq!((DelayedAck::Idle.is_pending(), until(1).is_pending()), (false, true));
    assert_eq!((DelayedAck::Idle.deadline(), until(1).deadline()), (Time::MAX, after(MAX_ACK_DELAY)));
    // Polls of other queues, which receive no packet, don't send them.
    assert_eq!(until(2).after_poll(after(TICK), false, || None), until(1));
    assert_eq!(until(2).after_poll(NOW, true, || Some(2)), DelayedAck::Idle);
}

#[test]
fn every_256th_poll_drives_the_link_and_every_8th_empty_one_reads_the_clock() {
    let mut pacing = PollPacing::default();
    for _ in 0..2 {
        let skipped = (0..).take_while(|_| pacing.try_skip_link()).count();
        assert_eq!(skipped, 255);
        assert!(!pacing.try_skip_link(), "the link has not been driven yet");
        pacing.record_link_driven();
    }
    let skips: Vec<bool> = (0..16).map(|_| pacing.try_skip_clock()).collect();
    let expected: Vec<bool> = (1..=16).map(|poll| poll % 8 != 0).collect();
    assert_eq!(skips, expected);
    // A failed NIC's counters wrap around.
    let mut pacing = PollPacing { since_link: u32::MAX, empty: u32::MAX };
    assert!(pacing.try_skip_link());
    assert!(!pacing.try_skip_clock());
}

/// The step by which time advances in [`NicModel`].
const TICK: Duration = Duration::from_nanos(POLL_GRACE.as_nanos() as u64 / 2);

/// A model of a NIC's threads, link and timers around a schedule. The current time is always [`NOW`]: time advances by
/// moving all other times back, so that the number of states is finite.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct NicModel {
    schedule: Schedule,
    has_descriptor: bool,
    /// The end of the progress thread's sleep, and whether packets end it.
    sleep: (Time, bool),
    is_wake_pending: bool,
    /// Whether the link signals its descriptor.
    link_signals: bool,
    has_packets: bool,
    /// The time at which the engine has work.
    due: Time,
    has_waiting_caller: bool,
}

/// The steps of callers, of the link, and of time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Poll,
    /// A poll that finds queued completions, or one that finds no packet and doesn't read the clock.
    ShortPoll,
    /// A post whose packets are sent, and whose retransmission timer expires after this many ticks.
    Post(u32),
    /// A post with more packets than are sent in one call.
    LongPost,
    Arm,
    Event,
    BeginWait,
    EndWait,
    Packet,
    ProgressThread,
    WaitingCaller,
    Tick,
}

const STEPS: &[Step] = &[
    Step::Poll,
    Step::ShortPoll,
    Step::Post(1),
    Step::Post(5),
    Step::LongPost,
    Step::Arm,
    Step::Event,
    Step::BeginWait,
    Step::EndWait,
    Step::Packet,
    Step::ProgressThread,
    Step::WaitingCaller,
    Step::Tick,
];

impl NicModel {
    fn new(has_descriptor: bool) -> NicModel {
        NicModel {
            schedule: Schedule::new(),
            has_descriptor,
            sleep: (Time::ZERO, false),
            is_wake_pending: false,
            link_signals: true,
            has_packets: false,
            due: Time::MAX,
            has_waiting_caller: false,
        }
    }

    fn is_progress_thread_runnable(&self) -> bool {
        let (until, on_link) = self.sleep;
        self.is_wake_pending || until <= NOW || on_link && self.is_descriptor_readable()
    }

    fn is_waiting_caller_runnable(&self) -> bool {
        self.has_waiting_caller && self.is_descriptor_readable()
    }

    fn is_descriptor_readable(&self) -> bool {
        self.has_packets && self.link_signals
    }

    fn has_overdue_work(&self) -> bool {
        self.has_packets || self.due <= NOW
    }

    /// Whether the step is possible in this state.
    fn can(&self, step: Step) -> bool {
        match step {
            Step::BeginWait => self.has_descriptor && !self.has_waiting_caller,
            Step::EndWait => self.has_waiting_caller,
            Step::Packet => self.has_descriptor && !self.has_packets,
            Step::ProgressThread => self.is_progress_thread_runnable(),
            Step::WaitingCaller => self.is_waiting_caller_runnable(),
            // Runnable threads run before time advances.
            Step::Tick => !self.is_progress_thread_runnable() && !self.is_waiting_caller_runnable(),
            _ => true,
        }
    }

    fn apply(&mut self, step: Step) {
        match step {
            Step::Poll => {
                self.drive();
                self.schedule.record_poll(NOW);
                self.is_wake_pending |= self.schedule.hand_over(self.due);
            }
            Step::ShortPoll => self.is_wake_pending |= self.schedule.hand_over(self.due),
            Step::Post(ticks) => {
                self.due = self.due.min(NOW + TICK * ticks);
                self.is_wake_pending |= self.schedule.hand_over(self.due);
            }
            Step::LongPost => {
                self.due = NOW;
                self.is_wake_pending |= self.schedule.hand_over(Time::ZERO);
            }
            Step::Arm => self.is_wake_pending |= self.schedule.arm(),
            Step::Event => self.schedule.record_event(),
            Step::BeginWait => {
                self.has_waiting_caller = self.schedule.begin_wait();
                assert!(self.has_waiting_caller, "no other caller waits");
                self.update_link();
            }
            Step::EndWait => {
                self.has_waiting_caller = false;
                self.is_wake_pending |= self.schedule.end_wait();
            }
            Step::Packet => self.has_packets = true,
            Step::ProgressThread => self.run_progress_thread(),
            Step::WaitingCaller => {
                self.drive();
                self.is_wake_pending |= self.schedule.hand_over(self.due);
            }
            Step::Tick => self.advance(),
        }
    }

    /// Receives the packets, and does the work that is due.
    fn drive(&mut self) {
        self.has_packets = false;
        if self.due <= NOW {
            self.due = Time::MAX;
        }
    }

    fn run_progress_thread(&mut self) {
        self.is_wake_pending = false;
        let sleep = match self.schedule.next_step(NOW, self.has_descriptor) {
            NextStep::Drive => {
                self.drive();
                self.schedule.sleep(self.due)
            }
            NextStep::Rest => self.schedule.rest(NOW),
            NextStep::Exit => panic!("the NIC neither closes nor fails"),
        };
        self.update_link();
        self.sleep = (sleep.until, sleep.on_link && self.has_descriptor);
    }

    fn update_link(&mut self) {
        if let Some(interest) = self.schedule.wake_interest_change() {
            self.link_signals = interest;
        }
    }

    fn advance(&mut self) {
        let schedule = &mut self.schedule;
        for time in [&mut schedule.asleep_until, &mut schedule.polls_until, &mut self.sleep.0, &mut self.due]
        {
            if *time != Time::MAX {
                // All times in the past have the same effect.
                let left = *time - NOW;
                *time = if left < TICK { Time::ZERO } else { NOW + (left - TICK) };
            }
        }
    }

    /// Returns the number of ticks after which all overdue work is done if no caller polls, posts or begins to wait.
    fn ticks_until_served(mut self) -> u32 {
        for tick in 0..100 {
            for step in 0.. {
                assert!(step < 20, "the threads run forever: {self:?}");
                if self.can(Step::ProgressThread) {
                    self.apply(Step::ProgressThread);
                } else if self.can(Step::WaitingCaller) {
                    self.apply(Step::WaitingCaller);
                } else {
                    break;
                }
            }
            if !self.has_overdue_work() {
                return tick;
            }
            self.apply(Step::Tick);
        }
        panic!("no thread ever does the work: {self:?}");
    }

    fn check(&self) {
        let grace = (POLL_GRACE.as_nanos() / TICK.as_nanos()) as u32;
        // The progress thread may rest until the end of the last poll's grace period, and for one more.
        let max = if self.schedule.driver() == Driver::PollingCaller || self.schedule.polls_until > NOW {
            2 * grace
        } else {
            0
        };
        let ticks = self.clone().ticks_until_served();
        assert!(ticks <= max, "overdue work waits for {ticks} ticks: {self:?}");
        let (_, on_link) = self.sleep;
        assert!(
            !(on_link && self.schedule.waiting.is_some_and(Waiting::drives_alone)),
            "spurious wake-ups: {self:?}"
        );
        // A thread that sleeps on the link's descriptor is woken.
        if self.has_waiting_caller || on_link && !self.is_wake_pending {
            assert!(self.link_signals, "the link wakes no thread: {self:?}");
        }
        assert!(self.schedule.waiting.is_some() == self.has_waiting_caller);
    }
}

/// Checks every state that callers, packets and timers can reach, in any order.
#[test]
fn work_is_done_soon_in_every_reachable_state() {
    for has_descriptor in [true, false] {
        let first = NicModel::new(has_descriptor);
        let mut seen = HashSet::from([first.clone()]);
        let mut queue = VecDeque::from([first]);
        let mut drivers = [0; 3];
        while let Some(model) = queue.pop_front() {
            model.check();
            drivers[model.schedule.driver() as usize] += 1;
            for &step in STEPS {
                if model.can(step) {
                    let mut next = model.clone();
                    next.apply(step);
                    if seen.insert(next.clone()) {
                        queue.push_back(next);
                    }
                }
            }
        }
        let states = seen.len();
        assert_eq!(drivers.iter().all(|count| *count > 0), has_descriptor, "{drivers:?} of {states} states");
    }
}
