//! Both ends of a ring in every interleaving of two threads with few preemptions.

use std::sync::Arc;

use loom::sync::Notify;
use loom::thread;

use super::loom_memory::Model;
use super::*;

/// The length of each message: the ring has space for two.
const MESSAGE_LEN: usize = 64;

const _: () = assert!(record_len(MESSAGE_LEN) < Model::BLOCK_LEN && Model::CAPACITY == 2 * Model::BLOCK_LEN);

fn model(test: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(test);
}

fn ring() -> (Writer<Model>, Reader<Model>) {
    let memory = Model::new();
    (Writer::new(memory.clone()).unwrap(), Reader::new(memory))
}

fn message(number: u8) -> [u8; MESSAGE_LEN] {
    [number; MESSAGE_LEN]
}

/// Writes a message in two pieces. Returns `None` if the ring is full, and else whether the reader must be woken.
fn write(writer: &mut Writer<Model>, number: u8) -> Option<bool> {
    let message = message(number);
    let (head, tail) = message.split_at(3);
    match writer.write([head, tail].into_iter()) {
        Written::Full => None,
        Written::WakeReader => Some(true),
        Written::Done => Some(false),
    }
}

fn read(reader: &mut Reader<Model>) -> Option<u8> {
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

/// Checks that a reader that sleeps is woken. loom reports a reader that sleeps forever as a deadlock.
fn check_wakeups(ring: impl Fn() -> (Writer<Model>, Reader<Model>) + Send + Sync + 'static) {
    model(move || {
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
                reader.wakeup_fence();
                if !reader.is_readable() {
                    wake.wait();
                }
                reader.set_wants_wakeup(false);
            }
        }
        writing.join().unwrap();
    });
}

#[test]
fn no_wakeup_of_the_reader_is_lost() {
    check_wakeups(ring);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_wakeup_is_lost_if_the_writer_has_no_fence() {
    check_wakeups(|| {
        let memory = Model::new();
        (Writer::new(memory.clone().without_fences()).unwrap(), Reader::new(memory))
    });
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_wakeup_is_lost_if_the_reader_has_no_fence() {
    check_wakeups(|| {
        let memory = Model::new();
        (Writer::new(memory.clone()).unwrap(), Reader::new(memory.without_fences()))
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
