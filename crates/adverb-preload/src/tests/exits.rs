//! `exit` in a signal handler, while the interrupted thread holds locks.

use std::time::Duration;

use adverb_sys::*;

use super::End;
use super::children::{Part, is_part};
use crate::cq::poll_cq;

#[test]
fn exit_in_a_signal_handler_ends_the_process() {
    run_often("exits::exit_in_handler");
}

#[test]
fn exit_in_a_signal_handler_allocates_nothing() {
    run_often("exits::exit_in_malloc");
}

/// Runs a part that exits in a signal handler, which interrupts the thread at a different place each time.
fn run_often(part: &str) {
    // More processes at once would only wait for the CPU.
    for _ in 0..10 {
        let parts: Vec<Part> = (0..5).map(|_| Part::start(part, &[])).collect();
        for part in parts {
            let status = part.status();
            assert!(status.is_some_and(|status| status.code() == Some(EXIT_CODE)), "{status:?}");
        }
    }
}

#[test]
fn exit_in_handler() {
    if !is_part("exits::exit_in_handler") {
        return;
    }
    let end = End::new();
    exit_soon();
    let mut wc = ibv_wc::zeroed();
    loop {
        // SAFETY: the queue is alive.
        unsafe { poll_cq(end.cq, 1, &raw mut wc) };
    }
}

#[test]
fn exit_in_malloc() {
    if !is_part("exits::exit_in_malloc") {
        return;
    }
    let _end = End::new();
    // A thread that has called nothing of this library: the library's values of the thread don't exist.
    let thread = std::thread::spawn(|| {
        exit_soon();
        loop {
            // SAFETY: each block is freed once. The sizes are those that need the lock of the allocator.
            unsafe {
                let blocks: [_; 64] = std::array::from_fn(|index| libc::malloc(5000 + 100 * index));
                blocks.iter().for_each(|block| libc::free(*block));
            }
        }
    });
    _ = thread.join();
}

/// Makes the calling thread exit in a signal handler.
fn exit_soon() {
    extern "C" fn handler(_: i32) {
        // SAFETY: the function is one that programs call here, though they should not.
        unsafe { libc::exit(EXIT_CODE) };
    }
    // SAFETY: the functions have no preconditions; the dynamic linker calls `adverb_at_exit` last in programs.
    let this = unsafe {
        libc::atexit(crate::report::adverb_at_exit);
        libc::signal(libc::SIGALRM, handler as *const () as usize);
        libc::pthread_self()
    };
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(30));
        // SAFETY: the thread runs until the process exits.
        unsafe { libc::pthread_kill(this, libc::SIGALRM) };
    });
}

/// The exit status of the handler, which differs from those of a test.
const EXIT_CODE: i32 = 42;
