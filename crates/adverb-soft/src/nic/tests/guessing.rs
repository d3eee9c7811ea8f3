//! The figures in SECURITY.md about guessing numbers, computed from the code that draws the numbers.

use adverb_proto::Device;
use adverb_proto::memory::{Registration, RemoteInvalidate, StorageId};
use adverb_proto::trace::Recorder;
use adverb_proto::types::{Access, PathMtu};
use adverb_wire::{Psn, Qpn};

use super::super::engine::window;
use crate::link::AddressShare;

/// The random bits of a number, at an address of one process and at one that processes share.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Bits([u32; 2]);

impl Bits {
    /// Counts the bits of two functions' results that depend on their argument, a random number.
    fn of(exclusive: impl FnMut(u32) -> u32, shared: impl FnMut(u32) -> u32) -> Bits {
        fn count(mut draw: impl FnMut(u32) -> u32) -> u32 {
            let numbers: Vec<u32> = (0..u32::BITS).map(|bit| draw(1 << bit)).collect();
            let set_in_one = numbers.iter().fold(0, |bits, number| bits | number);
            let set_in_all = numbers.iter().fold(u32::MAX, |bits, number| bits & number);
            (set_in_one & !set_in_all).count_ones()
        }
        Bits([count(exclusive), count(shared)])
    }

    fn plus(self, other: Bits) -> Bits {
        Bits([self.0[0] + other.0[0], self.0[1] + other.0[1]])
    }

    /// The power of two that is the average number of guesses, which try half of all values.
    fn average(self) -> [u32; 2] {
        self.0.map(|bits| bits - 1)
    }
}

fn share() -> AddressShare {
    AddressShare::new(AddressShare::MAX_COUNT - 1).unwrap()
}

fn qpn() -> Bits {
    Bits::of(|random| Qpn::truncate(random).get(), |random| Qpn::truncate(share().qpn(random)).get())
}

/// The bits of packet and message sequence numbers. The connection manager draws them like communication IDs.
fn psn() -> Bits {
    Bits::of(|random| Psn::wrapping(random).get(), |random| Psn::wrapping(share().comm_id(random)).get())
}

fn comm_id() -> Bits {
    Bits::of(|random| random, |random| share().comm_id(random))
}

fn memory_key() -> Bits {
    let mut device = Device::new(Recorder::default());
    let pd = device.create_domain();
    let registration = Registration {
        addr: 0,
        length: 8,
        access: Access::LOCAL_WRITE,
        storage: StorageId(0),
        remote_invalidate: RemoteInvalidate::Denied,
    };
    let mut draw = |random| device.register(pd, registration, || random).unwrap();
    let keys: Vec<u32> = (0..u32::BITS).map(|bit| draw(1 << bit)).collect();
    let key = |random: u32| keys[random.trailing_zeros() as usize];
    Bits::of(key, key)
}

fn number(name: &str) -> Bits {
    match name {
        "queue pair number" => qpn(),
        "PSN" => psn(),
        "memory key" => memory_key(),
        "communication ID" => comm_id(),
        name => panic!("SECURITY.md names an unknown number: {name}"),
    }
}

/// The section of SECURITY.md about guessing.
fn section() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../SECURITY.md");
    let text = std::fs::read_to_string(path).unwrap();
    let (_, rest) = text.split_once("\n## Checks between a forged packet and memory\n").unwrap();
    rest.split_once("\n## ").unwrap().0.to_owned()
}

/// The rows of the table whose first column has a title, as cells.
fn rows<'a>(section: &'a str, title: &str) -> Vec<Vec<&'a str>> {
    let (_, table) = section.split_once(&format!("\n| {title} | ")).unwrap();
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect()).collect()
}

/// Writes a power of two as SECURITY.md does.
fn power(exponent: u32) -> String {
    let digit = |digit: char| "⁰¹²³⁴⁵⁶⁷⁸⁹".chars().nth(digit.to_digit(10).unwrap() as usize).unwrap();
    format!("2{}", exponent.to_string().chars().map(digit).collect::<String>())
}

/// The number of powers of two in a text.
fn power_count(text: &str) -> usize {
    let characters: Vec<char> = text.chars().collect();
    characters.windows(2).filter(|pair| pair[0] == '2' && "⁰¹²³⁴⁵⁶⁷⁸⁹".contains(pair[1])).count()
}

#[test]
fn security_md_has_the_random_bits_of_each_number() {
    let section = section();
    let rows = rows(&section, "number");
    assert_eq!(rows.len(), 4);
    for row in rows {
        let name = row[0].split(" (").next().unwrap();
        assert_eq!(row[1..], number(name).0.map(|bits| bits.to_string()), "{name}");
    }
}

#[test]
fn security_md_has_the_average_number_of_forged_packets() {
    let section = section();
    let rows = rows(&section, "forged packet");
    assert_eq!(rows.len(), 6);
    for row in rows {
        let guessed = row[1].split(", ").map(number).fold(Bits([0, 0]), Bits::plus);
        assert_eq!(row[2..], guessed.average().map(power), "{}", row[0]);
    }
}

#[test]
fn security_md_has_the_fraction_of_forged_responses_that_are_accepted() {
    let section = section();
    let checks: Vec<_> =
        rows(&section, "check | accepted values").into_iter().filter(|row| !row[1].is_empty()).collect();
    assert_eq!(checks.len(), 3);
    for (row, bits) in checks.iter().zip([qpn(), psn(), psn()]) {
        assert_eq!(row[2..], bits.0.map(power), "{}", row[0]);
    }
    let all = qpn().plus(psn()).plus(psn());
    let sentence = all.0.map(|bits| format!("in {} ÷ (W × (M + 1))", power(bits)));
    assert!(sentence.iter().all(|part| section.contains(part)), "{sentence:?}");

    let counts = [
        1,
        window(2 * 212_992, PathMtu::Mtu4096), // Linux's default limit of socket buffers, which the kernel doubles
        256,
        window(8 << 20, PathMtu::Mtu1024),
    ];
    let rows = rows(&section, "in flight");
    assert_eq!(rows.len(), counts.len());
    for (row, count) in rows.iter().zip(counts) {
        assert_eq!(row[0].split(' ').next().unwrap().replace(',', ""), count.to_string());
        let accepted = f64::from(count) * (f64::from(count) + 1.0);
        let expected = all.0.map(|bits| power((f64::from(bits) - accepted.log2()).round() as u32));
        assert_eq!(row[1..], expected, "{}", row[0]);
    }
}

#[test]
fn no_other_power_of_two_is_in_the_section() {
    let section = section();
    let tables =
        [("number", 0), ("forged packet", 2 * 6), ("check | accepted values", 2 * 3), ("in flight", 2 * 4)];
    let expected = tables.iter().map(|(title, count)| {
        let cells = rows(&section, title).concat().join(" ");
        assert_eq!(power_count(&cells), *count, "{title}");
        count
    });
    // The sentence before the last table has two.
    assert_eq!(power_count(&section), expected.sum::<usize>() + 2);
}
