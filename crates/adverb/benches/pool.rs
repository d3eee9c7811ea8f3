//! The cost of allocating and freeing a pool buffer, compared with `malloc` in the same run.
//!
//! ```text
//! $ cargo bench -p adverb --features soft --bench pool
//! ```
//!
//! With arguments `pool|malloc LEN ROUNDS` it only allocates and frees, so that callgrind can count the instructions.

use std::hint::black_box;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use adverb::memory::{Pool, PoolBuf};
use adverb::verbs::Device;

/// The number of measurements of each. The fastest counts, because other processes use the machine too.
const MEASUREMENTS: u32 = 40;
const ROUNDS: u32 = 20_000;
/// The number of buffers that are held at once, in the measurement with many.
const HELD_COUNT: usize = 64;

fn main() -> adverb::verbs::Result<()> {
    let pool = Pool::new(&Device::open("soft")?.create_protection_domain()?);
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    if let [allocator, len, rounds] = &args[..] {
        let (len, rounds) = (number(len), number(rounds));
        for _ in 0..rounds {
            if allocator == "pool" {
                black_box(pool.allocate(black_box(len))?);
            } else {
                black_box(Malloc::new(black_box(len)));
            }
        }
        return Ok(());
    }
    println!("{:34} {:>9} {:>9} {:>6}", "allocated and freed", "pool", "malloc", "ratio");
    for len in [64, 1500, 4096, 65536, 1 << 20] {
        row(&format!("{len} bytes"), || pool.allocate(black_box(len)).expect("memory"), || Malloc::new(len));
    }
    let mut buffers: Vec<PoolBuf> = Vec::with_capacity(HELD_COUNT);
    let mut blocks: Vec<Malloc> = Vec::with_capacity(HELD_COUNT);
    row(
        "4096 bytes, with 64 held",
        || replace_one(&mut buffers, || pool.allocate(black_box(4096)).expect("memory")),
        || replace_one(&mut blocks, || Malloc::new(black_box(4096))),
    );
    println!(
        "{:34} {:>9} {:>9}",
        "4096 bytes, freed by another thread",
        format!("{:.1} ns", nanoseconds(free_on_another_thread(|| pool.allocate(4096).expect("memory")))),
        format!("{:.1} ns", nanoseconds(free_on_another_thread(|| Malloc::new(4096)))),
    );
    Ok(())
}

fn number(text: &str) -> usize {
    text.parse().expect("a number")
}

/// Measures both in turn, and prints the comparison.
fn row<A, B>(name: &str, mut pool: impl FnMut() -> A, mut malloc: impl FnMut() -> B) {
    let (mut ours, mut theirs) = (Duration::MAX, Duration::MAX);
    for _ in 0..MEASUREMENTS {
        ours = ours.min(measure(&mut pool));
        theirs = theirs.min(measure(&mut malloc));
    }
    let (ours, theirs) = (nanoseconds(ours), nanoseconds(theirs));
    println!("{name:34} {ours:>6.1} ns {theirs:>6.1} ns {:>6.2}", ours / theirs);
}

fn measure<T>(alloc: &mut impl FnMut() -> T) -> Duration {
    let start = Instant::now();
    for _ in 0..ROUNDS {
        black_box(alloc());
    }
    start.elapsed()
}

fn nanoseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e9 / f64::from(ROUNDS)
}

/// Frees one of the held values, and allocates another.
fn replace_one<T>(held: &mut Vec<T>, alloc: impl FnOnce() -> T) {
    if held.len() == HELD_COUNT {
        held.swap_remove(7);
    }
    held.push(alloc());
}

/// Allocates on this thread and frees on another. Most of the time is the channel's.
fn free_on_another_thread<T: Send>(alloc: impl Fn() -> T) -> Duration {
    let run = || {
        std::thread::scope(|scope| {
            let (sender, receiver) = sync_channel::<T>(HELD_COUNT);
            scope.spawn(move || receiver.into_iter().for_each(drop));
            let start = Instant::now();
            for _ in 0..ROUNDS {
                sender.send(alloc()).expect("the other thread is running");
            }
            start.elapsed()
        })
    };
    (0..MEASUREMENTS / 4).map(|_| run()).min().unwrap_or_default()
}

/// Memory from `malloc`.
struct Malloc(*mut libc::c_void);

// SAFETY: memory may be freed by any thread.
unsafe impl Send for Malloc {}

impl Malloc {
    fn new(len: usize) -> Malloc {
        // SAFETY: malloc accepts any length.
        Malloc(unsafe { libc::malloc(len) })
    }
}

impl Drop for Malloc {
    fn drop(&mut self) {
        // SAFETY: the pointer is from malloc, and is freed once.
        unsafe { libc::free(self.0) };
    }
}
