//! An idle NIC uses no CPU time. The test has its own process, whose only progress thread it measures.

#![cfg(target_os = "linux")]

use std::fs;
use std::time::{Duration, Instant};

use adverb_soft::{Nic, NicOptions};

/// Returns the CPU time of the progress thread in nanoseconds, and whether the thread sleeps. Returns `None` before the
/// thread has its name.
fn progress_thread() -> Option<(u64, bool)> {
    let tasks = fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let is_progress_thread =
        |task: &std::path::PathBuf| fs::read_to_string(task.join("comm")).unwrap().trim() == "adverb-nic";
    let task = tasks.into_iter().find(is_progress_thread)?;
    let schedule = fs::read_to_string(task.join("schedstat")).unwrap();
    // The state follows the name, which is in parentheses.
    let is_sleeping = fs::read_to_string(task.join("stat")).unwrap().contains(") S ");
    Some((schedule.split_whitespace().next().unwrap().parse().unwrap(), is_sleeping))
}

#[test]
fn an_idle_nic_uses_no_cpu_time() {
    let nic = Nic::open(NicOptions::loopback()).unwrap();
    nic.create_domain().unwrap();
    // On a busy machine, the thread may start late.
    let start = Instant::now();
    let mut before = None;
    loop {
        std::thread::sleep(Duration::from_millis(100));
        let time = progress_thread();
        // A thread that is ready to run, but has no CPU, uses no CPU time either.
        if time.is_some_and(|(_, is_sleeping)| is_sleeping) && time == before {
            break;
        }
        assert!(
            start.elapsed() < Duration::from_secs(10),
            "the progress thread does not exist or never sleeps"
        );
        before = time;
    }
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(progress_thread(), before, "the progress thread ran without work");
}
