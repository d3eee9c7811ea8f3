//! What a piece of a pool costs beside what `malloc` gives, in the same minute: taken and given back.
//!
//! ```text
//! $ cargo bench -p adverb --features soft --bench pool
//! ```
//!
//! With arguments `pool|malloc LEN ROUNDS` it does just that, for callgrind to count the instructions of.

use std::hint::black_box;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use adverb::memory::{Pool, RegisteredBuf};
use adverb::verbs::Device;

/// How often each is measured: the best counts, because others use the machine too.
const TURNS: u32 = 40;
const ROUNDS: u32 = 20_000;
/// How many buffers there are at once, where there are many.
const MANY: usize = 64;

fn main() -> adverb::Result<()> {
    let pool = Pool::new(&Device::open("soft")?.protection_domain()?);
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    if let [what, len, rounds] = &args[..] {
        let (len, rounds) = (number(len), number(rounds));
        for _ in 0..rounds {
            if what == "pool" {
                black_box(pool.alloc(black_box(len))?);
            } else {
                black_box(Malloc::new(black_box(len)));
            }
        }
        return Ok(());
    }
    println!("{:34} {:>9} {:>9} {:>6}", "taken and given back", "pool", "malloc", "ratio");
    for len in [64, 1500, 4096, 65536, 1 << 20] {
        row(&format!("{len} bytes"), || pool.alloc(black_box(len)).expect("memory"), || Malloc::new(len));
    }
    let mut buffers: Vec<RegisteredBuf> = Vec::with_capacity(MANY);
    let mut blocks: Vec<Malloc> = Vec::with_capacity(MANY);
    row(
        "4096 bytes, one of 64 that are held",
        || hold(&mut buffers, || pool.alloc(black_box(4096)).expect("memory")),
        || hold(&mut blocks, || Malloc::new(black_box(4096))),
    );
    println!(
        "{:34} {:>9} {:>9}",
        "4096 bytes, given back by another",
        format!("{:.1} ns", nanoseconds(hand_over(|| pool.alloc(4096).expect("memory")))),
        format!("{:.1} ns", nanoseconds(hand_over(|| Malloc::new(4096)))),
    );
    Ok(())
}

fn number(text: &str) -> usize {
    text.parse().expect("a number")
}

/// Prints a comparison, measured in turns.
fn row<A, B>(name: &str, mut pool: impl FnMut() -> A, mut malloc: impl FnMut() -> B) {
    let (mut ours, mut theirs) = (Duration::MAX, Duration::MAX);
    for _ in 0..TURNS {
        ours = ours.min(measure(&mut pool));
        theirs = theirs.min(measure(&mut malloc));
    }
    let (ours, theirs) = (nanoseconds(ours), nanoseconds(theirs));
    println!("{name:34} {ours:>6.1} ns {theirs:>6.1} ns {:>6.2}", ours / theirs);
}

fn measure<T>(make: &mut impl FnMut() -> T) -> Duration {
    let start = Instant::now();
    for _ in 0..ROUNDS {
        black_box(make());
    }
    start.elapsed()
}

fn nanoseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e9 / f64::from(ROUNDS)
}

/// Takes one and gives one back, in turn.
fn hold<T>(held: &mut Vec<T>, make: impl FnOnce() -> T) {
    if held.len() == MANY {
        held.swap_remove(7);
    }
    held.push(make());
}

/// Has another thread give back what this one takes; the channel between them is the most of it.
fn hand_over<T: Send>(make: impl Fn() -> T) -> Duration {
    let turn = || {
        std::thread::scope(|scope| {
            let (sender, receiver) = sync_channel::<T>(MANY);
            scope.spawn(move || receiver.into_iter().for_each(drop));
            let start = Instant::now();
            for _ in 0..ROUNDS {
                sender.send(make()).expect("the other is there");
            }
            start.elapsed()
        })
    };
    (0..TURNS / 4).map(|_| turn()).min().unwrap_or_default()
}

/// What `malloc` gives.
struct Malloc(*mut libc::c_void);

// SAFETY: memory may be freed by any thread.
unsafe impl Send for Malloc {}

impl Malloc {
    fn new(len: usize) -> Malloc {
        // SAFETY: any length may be asked for.
        Malloc(unsafe { libc::malloc(len) })
    }
}

impl Drop for Malloc {
    fn drop(&mut self) {
        // SAFETY: it was given by malloc, and is freed once.
        unsafe { libc::free(self.0) };
    }
}
