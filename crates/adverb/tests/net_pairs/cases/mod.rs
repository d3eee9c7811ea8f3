//! Test cases of connections between two ends, each on any device.
//!
//! An end knows of its peer only what arrives over the connection. So a case is the same between two threads of a test,
//! and between two processes on different devices (`cargo xtask net`).
//!
//! To add a case: write two functions, for the connector and for the listener, and add a line to [`cases!`].

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
use end::{End, StreamEnd};
use random::Random;

pub(crate) use end::{AnyListener, Api, Opening};

/// A test case.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    /// The options of each end.
    pub(crate) options: fn(Role, Options) -> Options,
    /// The code of each end, which panics if a check fails.
    client: Code,
    server: Code,
    /// Whether the connector must be async.
    pub(crate) needs_async_client: bool,
}

/// The code of an end.
enum Code {
    Connection(fn(End)),
    Stream(fn(StreamEnd)),
}

/// The role of an end: connector or listener.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    Client,
    Server,
}

impl Case {
    /// Returns the possible APIs of the two ends, the client's first.
    pub(crate) fn apis(&self) -> impl Iterator<Item = (Api, Api)> + '_ {
        let all = Api::ALL.into_iter().flat_map(|client| Api::ALL.map(|server| (client, server)));
        all.filter(|(client, _)| !self.needs_async_client || *client == Api::Tasks)
    }

    /// Returns the options of an end, based on options with a device.
    pub(crate) fn options(&self, role: Role, options: Options) -> Options {
        (self.options)(role, options.timeout(TIMEOUT).keepalive(Duration::from_secs(1)))
    }

    /// Connects an end, and runs its code.
    pub(crate) fn run(&self, role: Role, opening: &Opening<'_>) {
        let code = match role {
            Role::Client => &self.client,
            Role::Server => &self.server,
        };
        match code {
            Code::Connection(run) => run(opening.connection().unwrap()),
            Code::Stream(run) => run(opening.stream().unwrap()),
        }
    }
}

/// The timeout of every operation, for slow and busy machines.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// Declares the cases, and a test of each between two threads.
macro_rules! cases {
    (
        any_api { $($name:ident($options:expr) $client:path, $server:path;)* }
        streams { $($stream_name:ident($stream_options:expr) $stream_client:path, $stream_server:path;)* }
        tasks { $($tasks_name:ident($tasks_options:expr) $tasks_client:path, $tasks_server:path;)* }
    ) => {
        /// All cases.
        pub(crate) const CASES: &[Case] = &[
            $(Case {
                name: stringify!($name),
                options: $options,
                client: Code::Connection($client),
                server: Code::Connection($server),
                needs_async_client: false,
            },)*
            $(Case {
                name: stringify!($stream_name),
                options: $stream_options,
                client: Code::Stream($stream_client),
                server: Code::Stream($stream_server),
                needs_async_client: false,
            },)*
            $(Case {
                name: stringify!($tasks_name),
                options: $tasks_options,
                client: Code::Connection($tasks_client),
                server: Code::Connection($tasks_server),
                needs_async_client: true,
            },)*
        ];

        #[cfg(test)]
        mod between_threads {
            $(#[test]
            fn $name() {
                crate::run_in_process(stringify!($name));
            })*
            $(#[test]
            fn $stream_name() {
                crate::run_in_process(stringify!($stream_name));
            })*
            $(#[test]
            fn $tasks_name() {
                crate::run_in_process(stringify!($tasks_name));
            })*
        }
    };
}

cases! {
    any_api {
        messages_of_all_lengths_are_echoed(default_options) messages::send_lengths, messages::echo;
        sides_with_a_key_connect_over_tcp(tcp_with_key) messages::send_lengths, messages::echo;
        sides_with_a_key_connect_with_the_connection_manager(cm_with_key) messages::send_lengths, messages::echo;
        a_listener_with_tcp_only_is_reached(tcp_listener) messages::shut_down, messages::reply_after_shutdown;
        a_message_of_64_mib_arrives(long_connect_timeout) messages::send_max_len, messages::recv_max_len;
        messages_arrive_in_both_directions(default_options) messages::exchange_long, messages::exchange_long;
        messages_arrive_through_the_smallest_rings(minimal) messages::exchange_short, messages::exchange_short;
        ends_with_different_options_exchange_messages(unequal) messages::exchange_short, messages::exchange_short;
        fed_messages_are_sent_in_order_and_before_a_wait(default_options) messages::feed, messages::recv_fed;
        fed_messages_fit_the_smallest_rings(minimal) messages::feed, messages::recv_fed;
        many_threads_share_a_connection(minimal) messages::send_from_threads, messages::recv_by_threads;
        messages_arrive_after_the_other_direction_is_shut_down(default_options) messages::shut_down, messages::reply_after_shutdown;
        close_delivers_all_sent_messages(default_options) messages::send_and_close, messages::recv_late;
        a_stopped_receiver_blocks_the_sender(small_receive_buffer) messages::exhaust_credits, messages::recv_after_signal;
        a_receive_times_out(default_options) messages::recv_with_timeout, messages::reply_to_ping;
        exposed_memory_is_accessed_without_calls_of_the_peer(default_options) memory::access, memory::expose;
        a_remote_counter_is_incremented_while_messages_are_sent(minimal) memory::count, memory::expose_counter;
        access_without_the_right_is_rejected(default_options) memory::access_without_rights, memory::expose_with_few_rights;
        messages_arrive_over_a_shared_domain(shared_domain) messages::exchange_long, messages::exchange_long;
        a_shared_region_is_accessed_until_it_is_withdrawn(shared_domain) memory::access_shared, memory::share;
        exposed_memory_is_accessed_by_address(default_options) memory::access_addresses, memory::expose_addresses;
        a_dropped_peer_is_detected(short_keepalive) failure::detect_failure, failure::drop_connection;
        messages_survive_a_network_interruption(reconnecting_over_cm) failure::send_despite_interruption, failure::echo_despite_interruption;
    }
    streams {
        streams_carry_bytes_in_both_directions(default_options) streams::exchange_long, streams::exchange_long;
        streams_work_with_the_smallest_rings(minimal) streams::exchange_short, streams::exchange_short;
        streams_survive_a_network_interruption(reconnecting_over_tcp) streams::write_despite_interruption, streams::copy_despite_interruption;
    }
    tasks {
        sends_and_receives_may_be_dropped(minimal_eager) dropped::send_and_drop, dropped::check_received;
        operations_on_memory_may_be_dropped(default_options) dropped::operate_and_drop, dropped::expose;
    }
}

fn default_options(_: Role, options: Options) -> Options {
    options
}

fn tcp_with_key(_: Role, options: Options) -> Options {
    options.bootstrap(Bootstrap::Tcp).key(&Key::new([7; 32]).unwrap())
}

/// With hardware, the connection manager is tried first. It reports that no program listens on the port.
fn tcp_listener(role: Role, options: Options) -> Options {
    match role {
        Role::Client => options,
        Role::Server => options.bootstrap(Bootstrap::Tcp),
    }
}

fn cm_with_key(_: Role, options: Options) -> Options {
    options.bootstrap(Bootstrap::ConnectionManager).key(&Key::new([7; 32]).unwrap())
}

/// For messages that take longer than the default connect timeout.
fn long_connect_timeout(_: Role, options: Options) -> Options {
    options.connect_timeout(TIMEOUT)
}

/// The minimum ring size and number of outstanding writes, so that all indices wrap often.
fn minimal(_: Role, options: Options) -> Options {
    options.recv_ring_size(512).max_outstanding_writes(4)
}

fn shared_domain(_: Role, options: Options) -> Options {
    options.shared_domain(true)
}

fn minimal_eager(role: Role, options: Options) -> Options {
    minimal(role, options).eager_threshold(100)
}

fn unequal(role: Role, options: Options) -> Options {
    match role {
        Role::Client => minimal(role, options),
        Role::Server => options.recv_ring_size(1 << 20).max_outstanding_writes(256).eager_threshold(1 << 20),
    }
}

fn small_receive_buffer(role: Role, options: Options) -> Options {
    minimal(role, options).recv_buffer_limit(1000)
}

fn short_keepalive(_: Role, options: Options) -> Options {
    options.keepalive(Duration::from_millis(100))
}

fn reconnecting_over_tcp(role: Role, options: Options) -> Options {
    short_keepalive(role, options).reconnect(TIMEOUT).bootstrap(Bootstrap::Tcp)
}

fn reconnecting_over_cm(role: Role, options: Options) -> Options {
    reconnecting_over_tcp(role, options).bootstrap(Bootstrap::ConnectionManager)
}

impl Random {
    /// Returns a length up to `max`. Short lengths are as frequent as long ones.
    fn len(&mut self, max: usize) -> usize {
        let bits = self.below(max.ilog2() as usize + 1) + 1;
        self.below(1 << bits).min(max)
    }
}

/// Fills a message so that each byte depends on the message's number and the byte's index.
fn fill(number: usize, bytes: &mut [u8]) {
    // Later parts are copies of the first part, except for their first byte, because long messages are filled often.
    let (first, rest) = bytes.split_at_mut(bytes.len().min(PART_LEN));
    for (at, byte) in first.iter_mut().enumerate() {
        *byte = (number ^ at ^ at >> 8) as u8;
    }
    for (part, bytes) in rest.chunks_mut(PART_LEN).enumerate() {
        bytes.copy_from_slice(&first[..bytes.len()]);
        bytes[0] ^= (part + 1) as u8;
    }
}

const PART_LEN: usize = 64 << 10;

fn check(number: usize, len: usize, bytes: &[u8]) {
    assert_eq!(bytes.len(), len, "message {number}");
    let mut expected = vec![0; len];
    fill(number, &mut expected);
    if bytes != expected {
        let wrong = bytes.iter().zip(&expected).position(|(byte, expected)| byte != expected);
        panic!("message {number} of {len} bytes is wrong at {wrong:?}");
    }
}
