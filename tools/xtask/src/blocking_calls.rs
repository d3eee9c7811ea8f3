//! `cargo xtask blocking-calls`: counts the blocking system calls of a current-thread runtime whose connections break and
//! reconnect (see `crates/adverb-net/examples/broken_lanes.rs`), with strace.
//!
//! Between two `epoll_wait`s of a runtime, its thread must not block. A call counts if it can block, whether it did or
//! not: its duration depends on the machine's load. Waits for locks are counted in a second run, in which strace stops
//! only the runtime's thread: a thread that strace stops while it holds a lock holds it longer.
//!
//! The C library's allocator has locks of its own, and every program whose threads free each other's memory waits for
//! them now and then. These waits are found by their backtraces, and printed apart.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use support::{paths, process};

/// The options of `cargo xtask blocking-calls`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Number of connections.
    #[arg(long, default_value_t = 64)]
    connections: usize,
    /// Number of times that all lanes break.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Maximum number of blocking calls, without the waits for locks of the allocator; more are a failure.
    #[arg(long, default_value_t = 0)]
    limit: usize,
    /// Skip the slower run with the backtraces of all blocking calls. The backtraces of waits for locks are always printed.
    #[arg(long)]
    no_backtraces: bool,
    /// Shared library with another allocator than the C library's, such as libjemalloc.so.2.
    #[arg(long, value_name = "NAME")]
    allocator: Option<String>,
    /// Program to run instead of building it.
    #[arg(long, value_name = "PATH")]
    program: Option<String>,
}

/// The calls that can block, and those that show whether a descriptor is non-blocking.
const TRACED: &str = "futex,nanosleep,clock_nanosleep,poll,ppoll,select,pselect6,epoll_wait,epoll_pwait,epoll_pwait2,\
                      read,readv,write,writev,recvfrom,recvmsg,recvmmsg,sendto,sendmsg,sendmmsg,accept,accept4,connect,\
                      wait4,waitid,socket,socketpair,fcntl,ioctl,eventfd2,pipe2,timerfd_create,getppid";

/// The call that marks the start and the end of the rounds.
const MARK: &str = "getppid";

/// The calls that wait for locks, and the marks.
const LOCKS: &str = "futex,getppid";

/// The extent of a run under strace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum TraceScope {
    /// All threads, so that the descriptors which other threads create are known.
    AllThreads,
    /// Only the runtime's thread, which is the program's first, with the backtrace of each call.
    RuntimeThread,
    /// All threads, with the backtrace of each call.
    Backtraces,
}

/// Runs the program under strace and prints the blocking calls. Fails if there are more than the limit.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    ensure!(process::find("strace").is_some(), "strace is not installed: `apt install strace`");
    let program = match &args.program {
        Some(program) => program.clone(),
        None => build()?,
    };
    let directory = Scratch::new()?;
    let trace = directory.trace(args, &program, TRACED, TraceScope::AllThreads)?;
    let locks = directory.trace(args, &program, LOCKS, TraceScope::RuntimeThread)?;
    let is_lock = |call: &&Call| call.name == "futex";
    let (allocator, locks): (Vec<&Call>, Vec<&Call>) =
        locks.blocking.iter().filter(is_lock).partition(|call| call.is_in_allocator);
    let blocking: Vec<&Call> =
        trace.blocking.iter().filter(|call| !is_lock(call)).chain(locks.iter().copied()).collect();
    println!(
        "{} system calls of the runtime's thread while lanes broke, {} of them epoll_wait; {} can block:",
        trace.calls,
        trace.waits,
        blocking.len()
    );
    let mut kinds: BTreeMap<&str, (usize, f64)> = BTreeMap::new();
    for call in &blocking {
        let (count, seconds) = kinds.entry(&call.name).or_default();
        (*count, *seconds) = (*count + 1, *seconds + call.seconds);
    }
    for (name, (count, seconds)) in &kinds {
        println!("{count:8} {name:16} {:9.1} ms together", seconds * 1e3);
    }
    let seconds = allocator.iter().fold(0.0, |sum, call| sum + call.seconds);
    println!("{:8} waits for a lock of the allocator, {:.1} ms together", allocator.len(), seconds * 1e3);
    if !locks.is_empty() {
        println!("\nbacktraces of waits for locks:");
        print_stacks(locks.iter().copied());
    }
    if !kinds.is_empty() && !args.no_backtraces {
        let names: Vec<&str> = kinds.keys().copied().chain([MARK, "epoll_wait"]).collect();
        // These calls show which descriptors are non-blocking.
        let traced = format!("{},socket,fcntl,ioctl,eventfd2,pipe2,accept4", names.join(","));
        let trace = directory.trace(args, &program, &traced, TraceScope::Backtraces)?;
        println!("\nbacktraces of another run, in which strace stops all threads:");
        print_stacks(&trace.blocking);
    }
    if blocking.len() <= args.limit {
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("error: {} blocking system calls, and the limit is {}", blocking.len(), args.limit);
    Ok(ExitCode::FAILURE)
}

/// Builds the program with frame pointers, without which a backtrace ends at the first function of a lock.
fn build() -> Result<String> {
    let mut cargo = process::cargo("build --release -p adverb-net --example broken_lanes");
    // A target directory of its own, because other RUSTFLAGS would invalidate the usual build.
    cargo
        .env("RUSTFLAGS", "-Cforce-frame-pointers=yes")
        .env("CARGO_TARGET_DIR", paths::cache()?.join("target-frame-pointers"));
    process::build_with(cargo)
}

/// Prints each backtrace once, with the number of its calls, most frequent first.
fn print_stacks<'a>(calls: impl IntoIterator<Item = &'a Call>) {
    let mut stacks: BTreeMap<(&str, String), (usize, f64)> = BTreeMap::new();
    for call in calls {
        let (count, seconds) = stacks.entry((&call.name, call.stack.join("\n    "))).or_default();
        (*count, *seconds) = (*count + 1, *seconds + call.seconds);
    }
    let mut stacks: Vec<_> = stacks.into_iter().collect();
    stacks.sort_by_key(|(_, (count, _))| std::cmp::Reverse(*count));
    for ((name, stack), (count, seconds)) in stacks {
        println!("{count:8} {name}, {:.1} ms together\n    {stack}", seconds * 1e3);
    }
}

/// A directory for traces, removed afterwards.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Scratch> {
        let path = std::env::temp_dir().join(format!("adverb-blocking-calls-{}", std::process::id()));
        fs::create_dir_all(&path).with_context(|| format!("could not create {}", path.display()))?;
        Ok(Scratch(path))
    }

    /// Runs the program under strace, and reads the trace of the runtime's thread.
    fn trace(&self, args: &Args, program: &str, calls: &str, scope: TraceScope) -> Result<Trace> {
        let directory = self.0.join(format!("{scope:?}"));
        fs::create_dir_all(&directory)?;
        let mut strace = Command::new("strace");
        strace
            .args(["-y", "-T", "-s", "16", "-e", &format!("trace={calls}"), "-o"])
            .arg(directory.join("trace"));
        match scope {
            TraceScope::AllThreads => strace.arg("-ff"),
            TraceScope::RuntimeThread => strace.arg("-k"),
            TraceScope::Backtraces => strace.args(["-ff", "-k"]),
        };
        if let Some(allocator) = &args.allocator {
            strace.args(["-E", &format!("LD_PRELOAD={allocator}")]);
        }
        strace.args([program, &args.connections.to_string(), &args.rounds.to_string()]);
        process::run(&mut strace)?;
        read(&directory)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A directory that can't be removed stays in the system's directory for temporary files.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The calls of the runtime's thread between the marks.
#[derive(Debug, Default, PartialEq)]
struct Trace {
    calls: usize,
    /// Calls of `epoll_wait` by the runtime.
    waits: usize,
    blocking: Vec<Call>,
}

/// A system call.
#[derive(Clone, Debug, Default, PartialEq)]
struct Call {
    name: String,
    arguments: String,
    /// The result, and the name of an error.
    result: String,
    seconds: f64,
    /// The functions that made the call, innermost first.
    stack: Vec<String>,
    /// Whether a function of the allocator made the call.
    is_in_allocator: bool,
}

/// Reads the traces in a directory, one file per thread.
fn read(directory: &Path) -> Result<Trace> {
    let mut threads = Vec::new();
    for entry in fs::read_dir(directory)? {
        let bytes = fs::read(entry?.path())?;
        threads.push(parse(&String::from_utf8_lossy(&bytes)));
    }
    analyze(&threads).context("no thread called getppid twice: the program did not complete its rounds")
}

/// Finds the blocking calls of the thread that made the marks.
fn analyze(threads: &[Vec<Call>]) -> Option<Trace> {
    let non_blocking: BTreeSet<&str> = threads.iter().flatten().flat_map(non_blocking_descriptors).collect();
    let calls = threads.iter().find_map(|thread| {
        let parts: Vec<&[Call]> = thread.split(|call| call.name == MARK).collect();
        match parts[..] {
            [_, rounds, _] => Some(rounds),
            _ => None,
        }
    })?;
    // The runtime's own descriptor is the one that it waits for most often. Others are polled with a timeout of 0, maybe
    // more often.
    let mut waits: BTreeMap<&str, usize> = BTreeMap::new();
    calls
        .iter()
        .filter(|call| call.is_epoll_wait() && call.can_block(&non_blocking))
        .for_each(|call| *waits.entry(call.argument(0)).or_default() += 1);
    let runtime = waits.iter().max_by_key(|(_, count)| **count).map(|(descriptor, _)| *descriptor);
    let is_runtimes = |call: &&Call| call.is_epoll_wait() && Some(call.argument(0)) == runtime;
    let blocking =
        calls.iter().filter(|call| !is_runtimes(call) && call.can_block(&non_blocking)).cloned().collect();
    Some(Trace { calls: calls.len(), waits: calls.iter().filter(is_runtimes).count(), blocking })
}

/// Returns the descriptors, with their labels, that a call shows to be non-blocking.
fn non_blocking_descriptors(call: &Call) -> Vec<&str> {
    let has = |word: &str| call.arguments.contains(word);
    match &*call.name {
        // The kernel answers a request over netlink before the call that sends it returns.
        "socket" | "accept4" | "eventfd2" | "timerfd_create" if has("_NONBLOCK") || has("AF_NETLINK") => {
            call.result.split_whitespace().next().into_iter().collect()
        }
        "pipe2" | "socketpair" if has("_NONBLOCK") => {
            call.arguments.split(['[', ',', ' ', ']']).filter(|word| word.contains('<')).collect()
        }
        "fcntl" if has("F_SETFL") && has("O_NONBLOCK") => vec![call.argument(0)],
        "ioctl" if has("FIONBIO, [1]") => vec![call.argument(0)],
        "futex" => Vec::new(),
        _ if call.result.contains("EINPROGRESS")
            || call.result.contains("EAGAIN") && !has("MSG_DONTWAIT") =>
        {
            vec![call.argument(0)]
        }
        _ => Vec::new(),
    }
}

impl Call {
    fn is_epoll_wait(&self) -> bool {
        self.name.starts_with("epoll_")
    }

    /// Returns an argument that contains no comma, by its index.
    fn argument(&self, index: usize) -> &str {
        self.arguments.split(", ").nth(index).unwrap_or_default()
    }

    fn last_argument(&self) -> &str {
        self.arguments.rsplit(", ").next().unwrap_or_default()
    }

    /// Whether the call can block.
    fn can_block(&self, non_blocking: &BTreeSet<&str>) -> bool {
        let has = |word: &str| self.arguments.contains(word);
        match &*self.name {
            // A changed value makes the call return at once.
            "futex" => has("FUTEX_WAIT") && !self.result.contains("EAGAIN"),
            "nanosleep" | "clock_nanosleep" => true,
            "poll" => self.last_argument() != "0",
            "ppoll" | "select" | "pselect6" | "epoll_pwait2" => {
                !has("{tv_sec=0, tv_nsec=0}") && !has("{tv_sec=0, tv_usec=0}")
            }
            "epoll_wait" => self.last_argument() != "0",
            "epoll_pwait" => !has(", 0, NULL, 8"),
            "wait4" | "waitid" => !has("WNOHANG"),
            "read" | "readv" | "write" | "writev" | "recvfrom" | "recvmsg" | "recvmmsg" | "sendto"
            | "sendmsg" | "sendmmsg" | "accept" | "accept4" | "connect" => {
                let descriptor = self.argument(0);
                let label = descriptor.split('<').nth(1).unwrap_or_default();
                let waits = ["socket:", "pipe:", "anon_inode:", "TCP", "UDP", "UNIX"];
                let is_standard = ["0<", "1<", "2<"].iter().any(|number| descriptor.starts_with(number));
                waits.iter().any(|kind| label.starts_with(kind))
                    && !is_standard
                    && !has("MSG_DONTWAIT")
                    && !non_blocking.contains(descriptor)
            }
            _ => false,
        }
    }
}

/// Reads the calls of a thread from strace's output.
fn parse(text: &str) -> Vec<Call> {
    let mut calls: Vec<Call> = Vec::new();
    for line in text.lines() {
        if let Some(frame) = line.strip_prefix(" > ") {
            if let Some(call) = calls.last_mut() {
                let symbol = symbol(frame);
                call.is_in_allocator |= symbol.is_some_and(|symbol| ALLOCATOR.contains(&symbol));
                call.stack.extend(symbol.and_then(function));
            }
        } else if let Some(call) = parse_call(line) {
            calls.push(call);
        }
    }
    calls
}

/// Reads one call: `name(arguments) = result <seconds>`.
fn parse_call(line: &str) -> Option<Call> {
    let (name, rest) = line.split_once('(')?;
    let (arguments, result) = rest.rsplit_once(" = ")?;
    let arguments = arguments.trim_end().strip_suffix(')')?;
    let (result, seconds) = match result.rsplit_once(" <") {
        Some((result, seconds)) => (result, seconds.trim_end_matches('>').parse().unwrap_or(0.0)),
        None => (result, 0.0),
    };
    let (name, arguments, result) = (name.to_owned(), arguments.to_owned(), result.to_owned());
    Some(Call { name, arguments, result, seconds, ..Call::default() })
}

/// The functions of the allocator.
const ALLOCATOR: &[&str] = &[
    "malloc",
    "calloc",
    "realloc",
    "free",
    "cfree",
    "__libc_malloc",
    "__libc_calloc",
    "__libc_realloc",
    "__libc_free",
    "aligned_alloc",
    "memalign",
    "posix_memalign",
];

/// Returns the symbol of a frame: `file(symbol+offset) [address]`.
fn symbol(frame: &str) -> Option<&str> {
    Some(frame.split_once('(')?.1.rsplit_once('+')?.0)
}

/// Returns the function of a symbol, if it is one of Adverb's or of its locks.
fn function(symbol: &str) -> Option<String> {
    let name = demangle(symbol);
    ["adverb", "parking_lot", "broken_lanes"].iter().any(|word| name.contains(word)).then_some(name)
}

/// Returns the path in a symbol of Rust's legacy mangling, without the hash, or the symbol itself.
fn demangle(symbol: &str) -> String {
    let mut parts = Vec::new();
    let mut rest = symbol.strip_prefix("_ZN").unwrap_or_default();
    while let Some(end) = rest.find(|character: char| !character.is_ascii_digit())
        && let Ok(length) = rest[..end].parse::<usize>()
        && let Some(part) = rest.get(end..end + length)
    {
        parts.push(part);
        rest = &rest[end + length..];
    }
    if parts.len() < 2 {
        return symbol.to_owned();
    }
    parts.pop();
    let path = parts.join("::").replace("$LT$", "<").replace("$GT$", ">").replace("$u20$", " ");
    path.replace("$RF$", "&")
        .replace("$C$", ",")
        .replace("..", "::")
        .replace("$u7b$", "{")
        .replace("$u7d$", "}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUNTIME: &str = r#"
getppid() = 1 <0.000010>
epoll_wait(3<anon_inode:[eventpoll]>, [{events=EPOLLIN, data=0x1}], 1024, 12) = 1 <0.000100>
epoll_wait(3<anon_inode:[eventpoll]>, [], 1024, 0) = 0 <0.000010>
epoll_wait(3<anon_inode:[eventpoll]>, [], 1024, 3) = 0 <0.003000>
epoll_wait(9<anon_inode:[eventpoll]>, [], 1, 50) = 0 <0.050000>
epoll_wait(9<anon_inode:[eventpoll]>, [], 1, 0) = 0 <0.000010>
futex(0x55d0, FUTEX_WAIT_PRIVATE, 2, NULL) = -1 EAGAIN (Resource temporarily unavailable) <0.000010>
futex(0x55d0, FUTEX_WAIT_BITSET_PRIVATE, 0, {tv_sec=5, tv_nsec=1}, FUTEX_BITSET_MATCH_ANY) = 0 <0.001000>
 > /x/broken_lanes(_ZN11parking_lot9raw_mutex8RawMutex9lock_slow17h0123456789abcdefE+0x12) [0x1234]
 > /x/broken_lanes(_ZN10adverb_net6driver6Driver4lock17h0123456789abcdefE+0x12) [0x1234]
 > /x/libc.so.6(syscall+0x1d) [0x1234]
futex(0x55d0, FUTEX_WAKE_PRIVATE, 1) = 1 <0.000010>
clock_nanosleep(CLOCK_REALTIME, 0, {tv_sec=0, tv_nsec=1000000}, NULL) = 0 <0.001100>
poll([{fd=5<socket:[7]>, events=POLLIN}], 1, 0) = 0 (Timeout) <0.000010>
recvfrom(5<socket:[7]>, ""..., 16, 0, NULL, NULL) = 16 <0.000010>
recvfrom(6<socket:[8]>, ""..., 16, MSG_DONTWAIT, NULL, NULL) = 16 <0.000010>
recvfrom(6<socket:[8]>, ""..., 16, 0, NULL, NULL) = 16 <0.000010>
recvmsg(8<socket:[9]>, {msg_name=NULL, msg_namelen=0}, 0) = 20 <0.000010>
read(7</etc/hosts>, "127.0.0.1 localh"..., 4096) = 100 <0.000010>
futex(0x7f7f6c000030, FUTEX_WAIT_PRIVATE, 2, NULL) = 0 <0.000100>
 > /x/libc.so.6(__lll_lock_wait_private+0x26) [0x860d6]
 > /x/libc.so.6(__libc_free+0x6f) [0x98f5f]
 > /x/broken_lanes(_ZN10adverb_net6driver6Driver4lock17h0123456789abcdefE+0x12) [0x1234]
getppid() = 1 <0.000010>
clock_nanosleep(CLOCK_REALTIME, 0, {tv_sec=0, tv_nsec=1000000}, NULL) = 0 <0.001100>
"#;
    const OTHER: &str = "socket(AF_INET, SOCK_DGRAM|SOCK_CLOEXEC|SOCK_NONBLOCK, IPPROTO_UDP) = 5<socket:[7]> <0.000010>\n\
                         socket(AF_NETLINK, SOCK_RAW|SOCK_CLOEXEC, NETLINK_ROUTE) = 8<socket:[9]> <0.000010>\n\
                         clock_nanosleep(CLOCK_REALTIME, 0, {tv_sec=9, tv_nsec=0}, NULL) = 0 <9.000000>\n\
                         +++ exited with 0 +++\n";

    #[test]
    fn blocking_calls_of_the_runtimes_thread_are_found() {
        let trace = analyze(&[parse(OTHER), parse(RUNTIME)]).unwrap();
        let names: Vec<&str> = trace.blocking.iter().map(|call| &*call.name).collect();
        assert_eq!(names, ["epoll_wait", "futex", "clock_nanosleep", "recvfrom", "futex"]);
        assert_eq!((trace.calls, trace.waits), (16, 3));
        let in_allocator: Vec<bool> = trace.blocking.iter().map(|call| call.is_in_allocator).collect();
        assert_eq!(in_allocator, [false, false, false, false, true]);
        assert_eq!(
            trace.blocking[1].stack,
            ["parking_lot::raw_mutex::RawMutex::lock_slow", "adverb_net::driver::Driver::lock"]
        );
        assert_eq!(trace.blocking[3].argument(0), "6<socket:[8]>");
        assert!((trace.blocking[0].seconds - 0.05).abs() < 1e-9);
    }

    #[test]
    fn a_trace_without_both_marks_is_an_error() {
        assert_eq!(analyze(&[parse(OTHER)]), None);
        assert_eq!(analyze(&[parse(OTHER), parse("getppid() = 1 <0.000010>\n")]), None);
    }
}
