//! Programs that exit, or drop a connection, without closing it: their peers notice at once, long before a keepalive
//! probe.

#![cfg(feature = "soft")]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use adverb::net::blocking::{Connection, Connector, Listener};
use adverb::net::{ConnectionError, Options, RecvError};

/// The environment variable that selects the role of a child process.
const ROLE: &str = "ADVERB_ROLE";
/// The environment variable with the listener's address.
const ADDR: &str = "ADVERB_ADDR";
/// The number of forks in a test.
const FORKS: usize = 50;
/// The line of a child process that has sent its messages.
const READY: &str = "the messages are sent";

/// Returns options whose keepalive detects nothing during a test.
fn options() -> Options {
    Options::new().keepalive(Duration::from_secs(60)).timeout(Duration::from_secs(20))
}

/// Starts this program with a role, and accepts its connection.
fn start(role: &str, options: &Options) -> (Child, Connection) {
    // A forked child shares its parent's UDP socket, but not the memory through which processes at one address exchange
    // packets.
    let address = if role.starts_with("fork") { "127.0.0.2:0" } else { "127.0.0.1:0" };
    let listener = Listener::builder().options(options).bind(address).unwrap();
    let mut program = Command::new(std::env::current_exe().unwrap());
    program.args(["--exact", "runs_its_role", "--nocapture"]);
    program.env(ROLE, role).env(ADDR, listener.local_addr().to_string());
    let child = program.stdout(Stdio::piped()).spawn().unwrap();
    (child, listener.accept().unwrap())
}

#[test]
fn runs_its_role() {
    let (Ok(role), Ok(addr)) = (std::env::var(ROLE), std::env::var(ADDR)) else { return };
    let options = match role.as_str() {
        "resumable" => options().reconnect(Duration::from_secs(60)),
        "close" => options().connect_timeout(Duration::from_secs(1)),
        _ => options().connect_timeout(Duration::from_secs(60)),
    };
    let connection = Connector::new().options(&options).connect(addr).unwrap();
    connection.send(b"first").unwrap();
    match role.as_str() {
        "exit" | "resumable" => std::process::exit(0),
        "leak" => std::mem::forget(connection),
        "drop" => {
            drop(connection);
            std::thread::sleep(Duration::from_secs(60));
        }
        "close" => {
            send_all(&connection);
            let error = connection.close().unwrap_err();
            assert!(matches!(error, ConnectionError::CloseTimedOut { .. }), "{error:?}");
            println!("{READY}");
            std::thread::sleep(Duration::from_secs(60));
        }
        "exit-closing" => {
            send_all(&connection);
            std::thread::spawn(move || connection.close());
            std::thread::sleep(Duration::from_millis(200));
            println!("{READY}");
            std::process::exit(0);
        }
        "fork" | "fork-drop" => {
            let is_done = AtomicBool::new(false);
            let listener = Listener::bind("127.0.0.2:0").unwrap();
            std::thread::scope(|scope| {
                // The lock of the listener, too.
                scope.spawn(|| listener.accept().map(drop));
                // The locks of the connection and of the device are often held when the process forks.
                scope.spawn(|| {
                    while !is_done.load(Ordering::Relaxed) {
                        connection.send(b"meanwhile").unwrap();
                    }
                });
                (0..FORKS).for_each(|_| fork(&role, &connection, &listener));
                is_done.store(true, Ordering::Relaxed);
                listener.stop();
            });
            connection.send(b"last").unwrap();
            connection.close().unwrap();
        }
        _ => panic!("unknown role {role}"),
    }
}

/// Forks, and waits until the child has ended: by the functions at exit, or after it has dropped the connection, a buffer
/// and the listener.
fn fork(role: &str, connection: &Connection, listener: &Listener) {
    let buffer = connection.pool().allocate(64).unwrap();
    // SAFETY: the child calls only functions that are safe after a fork of a program with threads, apart from the
    // functions at exit and the destructor, which are tested.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: the function has no preconditions.
        unsafe { libc::alarm(20) };
        if role == "fork" {
            // SAFETY: the function has no preconditions.
            unsafe { libc::exit(0) };
        }
        drop(buffer);
        // SAFETY: the child never uses the connection and the listener again.
        unsafe {
            drop(std::ptr::read(connection));
            drop(std::ptr::read(listener));
        }
        // SAFETY: the function has no preconditions.
        unsafe { libc::_exit(0) };
    }
    let mut status = -1;
    // SAFETY: `status` is writable.
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(status, 0, "the child hung or crashed");
}

/// Sends messages until the peer's credits are used up.
fn send_all(connection: &Connection) {
    for len in [8000, 1] {
        while connection.try_send(&vec![7; len][..]).is_ok() {}
    }
}

fn assert_notices(role: &str, options: &Options) {
    let (mut child, connection) = start(role, options);
    assert_eq!(&connection.recv().unwrap().unwrap()[..], b"first");
    assert_end(role, &connection);
    let _ = child.kill();
    let _ = child.wait();
}

/// Receives all messages, and checks that the connection then ends at once.
fn assert_end(role: &str, connection: &Connection) {
    let start = Instant::now();
    let error = loop {
        match connection.recv() {
            Ok(message) => assert!(message.is_some(), "{role}: the peer has closed the connection"),
            Err(error) => break error,
        }
    };
    assert!(start.elapsed() < Duration::from_secs(15), "{role}: {:?}", start.elapsed());
    let RecvError::ConnectionLost(ConnectionError::PeerAborted { .. }) = error else {
        panic!("{role}: {error:?}")
    };
}

#[test]
fn the_peer_of_a_program_that_exits_without_closing_notices_at_once() {
    for role in ["exit", "leak"] {
        assert_notices(role, &options());
    }
    assert_notices("resumable", &options().reconnect(Duration::from_secs(60)));
}

#[test]
fn the_peer_of_a_dropped_connection_notices_at_once() {
    assert_notices("drop", &options());
}

#[test]
fn the_peer_of_a_connection_whose_close_does_not_finish_notices_at_once() {
    for role in ["close", "exit-closing"] {
        let (mut child, connection) = start(role, &options());
        // This side returns no credits, so the close is not sent.
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.is_ok_and(|line| line.contains(READY))), "{role}");
        if role == "exit-closing" {
            child.wait().unwrap();
        }
        assert_end(role, &connection);
        let _ = child.kill();
        let _ = child.wait();
    }
}

#[test]
fn a_forked_child_does_not_end_its_parents_connections() {
    for role in ["fork", "fork-drop"] {
        let (mut child, connection) = start(role, &options());
        assert_eq!(&connection.recv().unwrap().unwrap()[..], b"first", "{role}");
        loop {
            match &connection.recv().unwrap().expect("a message")[..] {
                b"meanwhile" => {}
                message => break assert_eq!(message, b"last", "{role}"),
            }
        }
        assert!(connection.recv().unwrap().is_none());
        connection.close().unwrap();
        assert!(child.wait().unwrap().success());
    }
}
