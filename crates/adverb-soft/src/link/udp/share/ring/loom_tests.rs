//! Both ends of a ring in every interleaving of two threads with few preemptions.

use std::fs::File;
use std::sync::Arc;

use loom::sync::Notify;
use loom::thread;

use super::*;

/// The length of each message: the ring has space for two.
const MESSAGE_LEN: usize = 64;

const _: () = assert!(record_len(MESSAGE_LEN) < BLOCK_LEN && CAPACITY == 2 * BLOCK_LEN);

fn model(test: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(test);
}

fn ring() -> (Writer, Reader) {
    let memory = Memory::new();
    let file = Guarded::new(File::open("/dev/null").unwrap());
    let writer = Writer { memory: memory.clone(), file, allocated: LENGTH, written: 0, read: 0 };
    (writer, Reader { memory, read: 0, written: 0, is_closed: false })
}

fn message(number: u8) -> [u8; MESSAGE_LEN] {
    [number; MESSAGE_LEN]
}

/// Writes a message in two pieces. Returns `None` if the ring is full, and else whether the reader must be woken.
fn write(writer: &mut Writer, number: u8) -> Option<bool> {
    let message = message(number);
    let (head, tail) = message.split_at(3);
    match writer.write([head, tail].into_iter()) {
        Written::Full => None,
        Written::WakeReader => Some(true),
        Written::Done => Some(false),
    }
}

fn read(reader: &mut Reader) -> Option<u8> {
    let mut out = [0; MESSAGE_LEN];
    let length = reader.read(&mut out).unwrap()?;
    assert_eq!((length, out), (MESSAGE_LEN, message(out[0])));
    Some(out[0])
}

/// The ring has space for two messages, so the writer waits for the reader, and skips the bytes at the end.
#[test]
fn each_message_is_read_once_and_in_order() {
    model(|| {
        let (mut writer, mut reader) = ring();
        let writing = thread::spawn(move || {
            for number in 1..=3 {
                while write(&mut writer, number).is_none() {
                    thread::yield_now();
                }
            }
        });
        for number in 1..=3 {
            loop {
                match read(&mut reader) {
                    Some(found) => break assert_eq!(found, number),
                    None => thread::yield_now(),
                }
            }
        }
        assert_eq!(read(&mut reader), None);
        writing.join().unwrap();
    });
}

/// loom reports a reader that sleeps forever as a deadlock.
#[test]
fn no_wakeup_of_the_reader_is_lost() {
    model(|| {
        let (mut writer, mut reader) = ring();
        let wake = Arc::new(Notify::new());
        let waking = Arc::clone(&wake);
        let writing = thread::spawn(move || {
            for number in 1..=2 {
                // Both messages fit.
                if write(&mut writer, number).unwrap() {
                    waking.notify();
                }
            }
        });
        let mut count = 0;
        while count < 2 {
            while let Some(number) = read(&mut reader) {
                count += 1;
                assert_eq!(number, count);
            }
            if count < 2 {
                reader.set_wants_wakeup(true);
                wakeup_fence();
                if !reader.is_readable() {
                    wake.wait();
                }
                reader.set_wants_wakeup(false);
            }
        }
        writing.join().unwrap();
    });
}

/// A closed ring has the messages before the call, and perhaps those at the same time, but none after a later one.
#[test]
fn a_closed_ring_has_a_prefix_of_the_messages() {
    model(|| {
        let (mut writer, mut reader) = ring();
        assert!(write(&mut writer, 1).is_some());
        let writing = thread::spawn(move || _ = write(&mut writer, 2));
        reader.close();
        let count = (1..).take_while(|number| read(&mut reader) == Some(*number)).count();
        assert!((1..=2).contains(&count), "{count}");
        writing.join().unwrap();
        assert_eq!(read(&mut reader), None);
    });
}
