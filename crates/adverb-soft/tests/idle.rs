//! An idle NIC uses no CPU time. The test has its own process, whose only progress thread it measures.

#![cfg(target_os = "linux")]

use std::fs;
use std::time::{Duration, Instant};

use adverb_soft::{Nic, NicOptions};

/// Returns the CPU time of the progress thread in nanoseconds, or `None` before the thread has its name.
fn progress_thread_time() -> Option<u64> {
    let tasks = fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let is_progress_thread =
        |task: &std::path::PathBuf| fs::read_to_string(task.join("comm")).unwrap().trim() == "adverb-nic";
    let schedule = fs::read_to_string(tasks.into_iter().find(is_progress_thread)?.join("schedstat")).unwrap();
    Some(schedule.split_whitespace().next().unwrap().parse().unwrap())
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
        let time = progress_thread_time();
        if time.is_some() && time == before {
            break;
        }
        assert!(
            start.elapsed() < Duration::from_secs(10),
            "the progress thread does not exist or never sleeps"
        );
        before = time;
    }
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(progress_thread_time(), before, "the progress thread ran without work");
}
