//! The cost of allocating and freeing an item of an arena, compared with a buffer of a pool and with `malloc` in the same
//! run.
//!
//! ```text
//! $ cargo bench -p adverb-cluster --bench arena
//! ```
//!
//! With arguments `arena|pool|malloc LEN ROUNDS` it only allocates and frees, so that callgrind can count the
//! instructions.

use std::hint::black_box;
use std::time::{Duration, Instant};

use adverb_cluster::{Arena, Draft, Item};
use adverb_verbs::memory::Pool;
use adverb_verbs::{Access, Device};

/// The number of measurements per allocator. The fastest one counts, because other processes use the machine, too.
const TURNS: u32 = 40;
const ROUNDS: u32 = 20_000;
/// The number of items that the measurement with held items keeps allocated.
const HELD_ITEMS: usize = 64;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let domain = Device::open("soft")?.create_protection_domain()?;
    let pool = Pool::new(&domain);
    let arena = Arena::builder().create(&[domain])?;
    arena.allocate_segment(64 << 20, Access::REMOTE_READ)?;
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    if let [name, len, rounds] = &args[..] {
        let (len, rounds) = (len.parse()?, rounds.parse()?);
        for _ in 0..rounds {
            match name.as_str() {
                "arena" => drop(black_box(arena.allocate(black_box(len))?)),
                "pool" => drop(black_box(pool.allocate(black_box(len))?)),
                _ => drop(black_box(Malloc::new(black_box(len)))),
            }
        }
        return Ok(());
    }
    println!(
        "{:34} {:>9} {:>9} {:>9} {:>13}",
        "allocated and freed", "arena", "pool", "malloc", "arena/malloc"
    );
    for len in [64, 1500, 4096, 65536, 1 << 20] {
        row(
            &format!("{len} bytes"),
            || arena.allocate(black_box(len)).expect("a free slot"),
            || pool.allocate(black_box(len)).expect("memory"),
            || Malloc::new(black_box(len)),
        );
    }
    let (mut items, mut buffers, mut blocks) = (Vec::new(), Vec::new(), Vec::new());
    row(
        "4096 bytes, with 64 held",
        || hold(&mut items, || arena.allocate(black_box(4096)).expect("a free slot")),
        || hold(&mut buffers, || pool.allocate(black_box(4096)).expect("memory")),
        || hold(&mut blocks, || Malloc::new(black_box(4096))),
    );
    bulk(&arena);
    threads(&arena);
    println!("\n{}", arena.stats());
    Ok(())
}

/// Measures the three allocators in turn, and prints the comparison.
fn row<A, B, C>(
    name: &str,
    mut arena: impl FnMut() -> A,
    mut pool: impl FnMut() -> B,
    mut malloc: impl FnMut() -> C,
) {
    let mut times = [Duration::MAX; 3];
    for _ in 0..TURNS {
        let turn = [measure(&mut arena), measure(&mut pool), measure(&mut malloc)];
        for (time, turn) in times.iter_mut().zip(turn) {
            *time = turn.min(*time);
        }
    }
    let [arena, pool, malloc] = times.map(nanoseconds);
    println!("{name:34} {arena:>6.1} ns {pool:>6.1} ns {malloc:>6.1} ns {:>13.2}", arena / malloc);
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

/// Frees one of the held values, and allocates another.
fn hold<T>(held: &mut Vec<T>, make: impl FnOnce() -> T) {
    if held.len() == HELD_ITEMS {
        held.swap_remove(7);
    }
    held.push(make());
}

/// Measures freeing items one by one, and in bulk.
fn bulk(arena: &Arena) {
    let fill =
        || (0..ROUNDS).map(|_| arena.allocate(256).expect("a free slot").publish()).collect::<Vec<Item>>();
    let (mut singly, mut together) = (Duration::MAX, Duration::MAX);
    for _ in 0..TURNS {
        let (first, second) = (fill(), fill());
        let start = Instant::now();
        drop(first);
        singly = singly.min(start.elapsed());
        let start = Instant::now();
        Item::free_all(second);
        together = together.min(start.elapsed());
    }
    let [singly, together] = [singly, together].map(nanoseconds);
    println!("freed only: {singly:.1} ns each, {together:.1} ns each with free_all");
}

/// Measures two threads, with partitions of their own and with one partition for both.
fn threads(arena: &Arena) {
    let run = |partitions: [usize; 2]| {
        let turn = || {
            let start = Instant::now();
            std::thread::scope(|scope| {
                for partition in partitions {
                    scope.spawn(move || {
                        for _ in 0..ROUNDS {
                            black_box::<Draft>(arena.allocate_in(partition, 256).expect("a free slot"));
                        }
                    });
                }
            });
            start.elapsed()
        };
        nanoseconds((0..TURNS).map(|_| turn()).min().unwrap_or_default())
    };
    println!("two threads: {:.1} ns in two partitions, {:.1} ns in one", run([0, 1]), run([0, 0]));
}

/// Memory from `malloc`.
struct Malloc(*mut libc::c_void);

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
