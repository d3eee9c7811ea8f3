//! An adapter with nothing to do uses no processor. Alone in its process, whose time is what is looked at.

#![cfg(target_os = "linux")]

use std::fs;
use std::time::Duration;

use adverb_soft::{Nic, NicOptions};

/// How long the adapter's thread has run, in nanoseconds.
fn time_of_the_thread() -> u64 {
    let tasks = fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let is_it =
        |task: &std::path::PathBuf| fs::read_to_string(task.join("comm")).unwrap().trim() == "adverb-nic";
    let task = tasks.into_iter().find(is_it).expect("no thread of an adapter");
    let schedule = fs::read_to_string(task.join("schedstat")).unwrap();
    schedule.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn an_idle_adapter_uses_no_processor() {
    let nic = Nic::open(NicOptions::loopback()).unwrap();
    nic.create_domain().unwrap();
    std::thread::sleep(Duration::from_millis(100));
    let before = time_of_the_thread();
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(time_of_the_thread(), before, "the thread ran while there was nothing to do");
}
