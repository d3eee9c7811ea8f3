//! What connections must do, as cases that two ends play with each other, wherever each of them is.
//!
//! The ends know nothing of each other but what comes over the connection: so a case is the same between two threads of a
//! test, and between two processes on different devices (`cargo xtask net`).
//!
//! To add one: two functions, for who connects and who is connected to, and a line in [`cases!`].

#![allow(dead_code, reason = "a test needs one part, the program of pairs another")]

mod dropped;
mod end;
mod failure;
mod memory;
mod messages;
#[path = "../../common/random.rs"]
mod random;
mod streams;

use std::time::Duration;

use adverb::net::{Bootstrap, Key, Options};
use random::Random;

pub(crate) use end::{End, Flavour, Listening};

/// Something that two ends do.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    /// How each end's connection is to be.
    pub(crate) options: fn(Role, Options) -> Options,
    /// What each end does; it panics if it finds anything wrong.
    pub(crate) client: fn(End),
    pub(crate) server: fn(End),
    /// Whether who connects must be a task.
    pub(crate) is_for_tasks: bool,
}

/// Who connects, and who is connected to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    Client,
    Server,
}

impl Case {
    /// Which flavours the two ends can have, the client's first.
    pub(crate) fn flavours(&self) -> impl Iterator<Item = (Flavour, Flavour)> + '_ {
        let all = Flavour::ALL.into_iter().flat_map(|client| Flavour::ALL.map(|server| (client, server)));
        all.filter(|(client, _)| !self.is_for_tasks || *client == Flavour::Tasks)
    }

    /// How an end's connection is to be, of one that has its device.
    pub(crate) fn options(&self, role: Role, options: Options) -> Options {
        (self.options)(role, options.timeout(PATIENCE).keepalive(Duration::from_secs(1)))
    }

    /// What an end does.
    pub(crate) fn play(&self, role: Role, end: End) {
        match role {
            Role::Client => (self.client)(end),
            Role::Server => (self.server)(end),
        }
    }
}

/// How long anything may take, where machines are slow and busy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Declares the cases, and a test of each between two threads.
macro_rules! cases {
    (
        everybody { $($name:ident($options:expr) $client:path, $server:path;)* }
        tasks { $($tasks_name:ident($tasks_options:expr) $tasks_client:path, $tasks_server:path;)* }
    ) => {
        /// All cases.
        pub(crate) const CASES: &[Case] = &[
            $(Case {
                name: stringify!($name),
                options: $options,
                client: $client,
                server: $server,
                is_for_tasks: false,
            },)*
            $(Case {
                name: stringify!($tasks_name),
                options: $tasks_options,
                client: $tasks_client,
                server: $tasks_server,
                is_for_tasks: true,
            },)*
        ];

        #[cfg(test)]
        mod between_threads {
            $(#[test]
            fn $name() {
                crate::play_here(stringify!($name));
            })*
            $(#[test]
            fn $tasks_name() {
                crate::play_here(stringify!($tasks_name));
            })*
        }
    };
}

cases! {
    everybody {
        messages_of_every_class_of_length_come_back(usual) messages::send_lengths, messages::echo;
        sides_with_a_key_meet_over_tcp(keyed_over_tcp) messages::send_lengths, messages::echo;
        sides_with_a_key_meet_by_the_connection_manager(keyed_by_manager) messages::send_lengths, messages::echo;
        who_can_be_found_over_tcp_only_is_found(found_over_tcp) messages::shut_down, messages::answer_after_the_end;
        a_message_of_64_mib_arrives(patient) messages::send_longest, messages::recv_longest;
        messages_go_both_ways_at_once(usual) messages::exchange_long, messages::exchange_long;
        everything_wraps_in_the_smallest_rings(tiny) messages::exchange_short, messages::exchange_short;
        the_ends_need_not_agree(unequal) messages::exchange_short, messages::exchange_short;
        what_is_fed_goes_in_order_and_before_anybody_waits(usual) messages::feed, messages::take_fed;
        what_is_fed_fits_the_smallest_rings(tiny) messages::feed, messages::take_fed;
        many_threads_share_a_connection(tiny) messages::send_from_threads, messages::recv_by_threads;
        one_direction_ends_and_the_other_goes_on(usual) messages::shut_down, messages::answer_after_the_end;
        closing_delivers_what_was_sent(usual) messages::send_and_close, messages::recv_late;
        a_receiver_that_stops_stops_the_sender(stopping) messages::fill_up, messages::stop;
        waiting_ends_in_time(usual) messages::wait_in_vain, messages::say_nothing_for_a_while;
        memory_is_reached_without_the_peers_program(usual) memory::reach, memory::expose;
        words_are_counted_while_messages_pass(tiny) memory::count, memory::be_counted_in;
        what_there_is_no_right_to_is_refused(usual) memory::overreach, memory::expose_little;
        memory_is_reached_by_its_addresses_alone(usual) memory::reach_addresses, memory::expose_addresses;
        bytes_go_both_ways_as_streams(usual) streams::exchange_much, streams::exchange_much;
        streams_wrap_in_the_smallest_rings(tiny) streams::exchange_little, streams::exchange_little;
        a_peer_that_is_gone_is_noticed(watchful) failure::notice, failure::vanish;
        messages_go_on_where_the_network_was_cut(going_on_by_manager) failure::send_on, failure::echo_on;
        streams_go_on_where_the_network_was_cut(going_on) streams::write_on, streams::copy_on;
    }
    tasks {
        sends_and_receives_may_be_dropped(tiny_eager) dropped::send_and_drop, dropped::check_what_comes;
        operations_on_memory_may_be_dropped(usual) dropped::operate_and_drop, dropped::expose;
    }
}

fn usual(_: Role, options: Options) -> Options {
    options
}

fn keyed_over_tcp(_: Role, options: Options) -> Options {
    options.bootstrap(Bootstrap::Tcp).key(&Key::new([7; 32]).unwrap())
}

/// The connection manager is asked first where there is hardware, and says that nobody is there.
fn found_over_tcp(role: Role, options: Options) -> Options {
    match role {
        Role::Client => options,
        Role::Server => options.bootstrap(Bootstrap::Tcp),
    }
}

fn keyed_by_manager(_: Role, options: Options) -> Options {
    options.bootstrap(Bootstrap::ConnectionManager).key(&Key::new([7; 32]).unwrap())
}

/// For messages that take longer than connecting may.
fn patient(_: Role, options: Options) -> Options {
    options.connect_timeout(PATIENCE)
}

/// The shortest ring and the fewest writes that there can be, so that all that wraps does so often.
fn tiny(_: Role, options: Options) -> Options {
    options.recv_ring_size(512).max_outstanding_writes(4)
}

fn tiny_eager(role: Role, options: Options) -> Options {
    tiny(role, options).eager_threshold(100)
}

fn unequal(role: Role, options: Options) -> Options {
    match role {
        Role::Client => tiny(role, options),
        Role::Server => options.recv_ring_size(1 << 20).max_outstanding_writes(256).eager_threshold(1 << 20),
    }
}

fn stopping(role: Role, options: Options) -> Options {
    tiny(role, options).recv_buffer_limit(1000)
}

fn watchful(_: Role, options: Options) -> Options {
    options.keepalive(Duration::from_millis(100))
}

fn going_on(role: Role, options: Options) -> Options {
    watchful(role, options).reconnect(PATIENCE).bootstrap(Bootstrap::Tcp)
}

fn going_on_by_manager(role: Role, options: Options) -> Options {
    going_on(role, options).bootstrap(Bootstrap::ConnectionManager)
}

impl Random {
    /// Short lengths as often as long ones, up to `most`.
    fn len(&mut self, most: usize) -> usize {
        let bits = self.below(most.ilog2() as usize + 1) + 1;
        self.below(1 << bits).min(most)
    }
}

/// A message that tells its number, and where each of its bytes belongs.
fn fill(number: usize, bytes: &mut [u8]) {
    // The first part byte by byte, the others as it is but for their own number: long ones are many, and filled often.
    let (first, rest) = bytes.split_at_mut(bytes.len().min(PART));
    for (at, byte) in first.iter_mut().enumerate() {
        *byte = (number ^ at ^ at >> 8) as u8;
    }
    for (part, bytes) in rest.chunks_mut(PART).enumerate() {
        bytes.copy_from_slice(&first[..bytes.len()]);
        bytes[0] ^= (part + 1) as u8;
    }
}

const PART: usize = 64 << 10;

fn check(number: usize, len: usize, bytes: &[u8]) {
    assert_eq!(bytes.len(), len, "message {number}");
    let mut expected = vec![0; len];
    fill(number, &mut expected);
    if bytes != expected {
        let wrong = bytes.iter().zip(&expected).position(|(byte, expected)| byte != expected);
        panic!("message {number} of {len} bytes is wrong at {wrong:?}");
    }
}
