//! One-sided operations on the peer's memory.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::thread::scope;

use adverb::memory::Pages;
use adverb::net::{RemoteAccess, RemoteErrorKind, SharedRegion};

use super::{End, check, fill};

const TABLE_LEN: usize = 1 << 20;

/// Executes every operation on the peer's memory. The peer makes no calls meanwhile.
pub(super) fn access(end: End) {
    let remote = end.remote_region("table").unwrap();
    assert_eq!(remote.len(), TABLE_LEN as u64);
    assert_eq!(&end.recv().unwrap().unwrap()[..], b"there is a row");
    assert_eq!(&remote.read(4096..4101).unwrap()[..], b"a row");
    remote.write(100, b"written").unwrap();
    let rows = remote.read_many([100..107, 4096..4101, 0..0, 0..TABLE_LEN as u64]).unwrap();
    assert_eq!((&rows[0][..], &rows[1][..], rows[2].len()), (&b"written"[..], &b"a row"[..], 0));
    assert_eq!((rows[3].len(), &rows[3][100..107]), (TABLE_LEN, &b"written"[..]));

    let mut all = end.pool().allocate(TABLE_LEN).unwrap();
    fill(7, &mut all);
    remote.write(0, all).unwrap();
    check(7, TABLE_LEN, &remote.read(0..TABLE_LEN as u64).unwrap());

    remote.write(8, &[0; 8]).unwrap();
    assert_eq!(remote.fetch_add(8, 5).unwrap(), 0);
    assert_eq!(remote.compare_swap(8, 5, 7).unwrap(), 5);
    assert_eq!(remote.compare_swap(8, 5, 9).unwrap(), 7);
    assert_eq!(remote.fetch_add(8, u64::MAX).unwrap(), 7);

    // A write, and then the notification of it.
    remote.write_with_imm(0, b"data", 42).unwrap();
    end.close().unwrap();
}

pub(super) fn expose(end: End) {
    let table = end
        .expose("table", TABLE_LEN, RemoteAccess::READ | RemoteAccess::WRITE | RemoteAccess::ATOMIC)
        .unwrap();
    table.write(4096, b"a row").unwrap();
    end.send(b"there is a row").unwrap();
    let message = end.recv().unwrap().unwrap();
    assert_eq!((message.len(), message.immediate()), (0, Some(42)));
    let mut bytes = [0; 4];
    table.read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"data");
    assert_eq!(table.word(8).unwrap().load(Ordering::Relaxed), 6);
    assert!(end.recv().unwrap().is_none());
}

/// Accesses a region with the rights that the peer grants, until the peer withdraws it.
pub(super) fn access_shared(end: End) {
    let reader = end.remote_region("to read").unwrap();
    let writer = end.remote_region("to write").unwrap();
    writer.write(4096, b"written").unwrap();
    assert_eq!(&reader.read(4096..4103).unwrap()[..], b"written");
    assert!(matches!(reader.write(0, b"x"), Err(RemoteErrorKind::NotPermitted { .. })));
    end.send(b"withdraw it").unwrap();
    assert_eq!(&end.recv().unwrap().unwrap()[..], b"withdrawn");
    assert!(matches!(writer.write(0, b"x"), Err(RemoteErrorKind::Withdrawn { .. })));
    // The rest of the connection is not affected.
    assert_eq!(&reader.read(4096..4103).unwrap()[..], b"written");
    end.close().unwrap();
}

pub(super) fn share(end: End) {
    let region = SharedRegion::allocate(TABLE_LEN).unwrap();
    end.expose_region("to read", &region, RemoteAccess::READ).unwrap();
    end.expose_region("to write", &region, RemoteAccess::WRITE).unwrap();
    assert_eq!(&end.recv().unwrap().unwrap()[..], b"withdraw it");
    assert!(end.withdraw("to write"));
    end.send(b"withdrawn").unwrap();
    assert!(end.recv().unwrap().is_none());
    let mut bytes = [0; 7];
    region.read(4096, &mut bytes).unwrap();
    assert_eq!(&bytes, b"written");
}

const THREADS: u64 = 4;
const EACH: u64 = 100;

pub(super) fn count(end: End) {
    scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let remote = end.remote_region("counter").unwrap();
                for _ in 0..EACH {
                    remote.fetch_add(0, 1).unwrap();
                    end.send(b"counted").unwrap();
                }
            });
        }
    });
    end.close().unwrap();
}

pub(super) fn expose_counter(end: End) {
    let counter = end.expose("counter", 8, RemoteAccess::ATOMIC).unwrap();
    for _ in 0..THREADS * EACH {
        assert_eq!(&end.recv().unwrap().unwrap()[..], b"counted");
    }
    assert!(end.recv().unwrap().is_none());
    assert_eq!(counter.word(0).unwrap().load(Ordering::Relaxed), THREADS * EACH);
}

/// Attempts invalid operations. The connection continues.
pub(super) fn access_without_rights(end: End) {
    let log = end.remote_region("log").unwrap();
    assert!(matches!(log.write(0, b"x"), Err(RemoteErrorKind::NotPermitted { .. })));
    assert!(matches!(log.fetch_add(0, 1), Err(RemoteErrorKind::NotPermitted { .. })));
    assert!(matches!(log.compare_swap(0, 0, 1), Err(RemoteErrorKind::NotPermitted { .. })));
    assert!(matches!(log.read(63..65), Err(RemoteErrorKind::OutOfBounds { .. })));
    let words = end.remote_region("words").unwrap();
    assert!(matches!(words.read(0..8), Err(RemoteErrorKind::NotPermitted { .. })));
    assert!(matches!(words.write(0, b"x"), Err(RemoteErrorKind::NotPermitted { .. })));
    assert!(matches!(words.fetch_add(4, 1), Err(RemoteErrorKind::Unaligned { .. })));
    assert!(matches!(words.fetch_add(64, 1), Err(RemoteErrorKind::OutOfBounds { .. })));
    let write_only = end.remote_region("box").unwrap();
    assert!(matches!(write_only.read(0..1), Err(RemoteErrorKind::NotPermitted { .. })));
    assert!(matches!(write_only.write(u64::MAX, b"x"), Err(RemoteErrorKind::OutOfBounds { .. })));
    // Valid operations succeed.
    assert_eq!(log.read(0..64).unwrap().len(), 64);
    assert_eq!(words.fetch_add(56, 3).unwrap(), 0);
    write_only.write(63, b"x").unwrap();
    end.close().unwrap();
}

pub(super) fn expose_with_few_rights(end: End) {
    let log = end.expose("log", 64, RemoteAccess::READ).unwrap();
    let words = end.expose("words", 64, RemoteAccess::ATOMIC).unwrap();
    let write_only = end.expose("box", 64, RemoteAccess::WRITE).unwrap();
    assert!(end.recv().unwrap().is_none());
    assert_eq!(words.word(56).unwrap().load(Ordering::Relaxed), 3);
    let mut bytes = [0; 64];
    write_only.read(0, &mut bytes).unwrap();
    assert_eq!((bytes[..63] == [0; 63], bytes[63]), (true, b'x'));
    log.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 64]);
}

/// The addresses of two exposed pieces of two pages each. The memory between and after them isn't exposed.
const FIRST_ADDR: u64 = 0x10_0000_0000;
const SECOND_ADDR: u64 = 0x7000_0000_0000;
const PIECE_LEN: u64 = 8192;

/// Executes every operation on the peer's memory, by address.
pub(super) fn access_addresses(end: End) {
    assert_eq!(&end.recv().unwrap().unwrap()[..], b"exposed");
    let space = end.address_space().unwrap();
    assert_eq!(&space.read(FIRST_ADDR + 4096..FIRST_ADDR + 4101).unwrap()[..], b"a row");
    space.write(SECOND_ADDR, b"written").unwrap();
    let rows = space
        .read_many([
            SECOND_ADDR..SECOND_ADDR + 7,
            FIRST_ADDR + 4096..FIRST_ADDR + 4101,
            FIRST_ADDR..FIRST_ADDR + PIECE_LEN,
        ])
        .unwrap();
    assert_eq!((&rows[0][..], &rows[1][..]), (&b"written"[..], &b"a row"[..]));
    assert_eq!((rows[2].len(), &rows[2][4096..4101]), (PIECE_LEN as usize, &b"a row"[..]));
    assert_eq!(space.fetch_add(FIRST_ADDR + 8, 5).unwrap(), 0);
    assert_eq!(space.compare_swap(FIRST_ADDR + 8, 5, 7).unwrap(), 5);

    // Operations on unexposed memory, or without the access right, fail, and the connection continues.
    let unexposed = [
        FIRST_ADDR - 1..FIRST_ADDR + 1,
        FIRST_ADDR + PIECE_LEN - 1..FIRST_ADDR + PIECE_LEN + 1,
        0..1,
        u64::MAX - 8..u64::MAX,
    ];
    let backwards = Range { start: FIRST_ADDR + 8, end: FIRST_ADDR };
    for addresses in unexposed.into_iter().chain([FIRST_ADDR..SECOND_ADDR + 1, backwards]) {
        let error = space.read(addresses.clone()).unwrap_err();
        assert!(
            matches!(error, RemoteErrorKind::UnknownAddresses { addresses: unknown } if unknown == addresses),
            "{addresses:x?}"
        );
    }
    for address in [FIRST_ADDR - 1, FIRST_ADDR + PIECE_LEN - 2, SECOND_ADDR + PIECE_LEN, u64::MAX - 1] {
        assert!(
            matches!(space.write(address, b"xyz"), Err(RemoteErrorKind::UnknownAddresses { .. })),
            "{address:x}"
        );
    }
    assert!(matches!(space.fetch_add(SECOND_ADDR, 1), Err(RemoteErrorKind::NotPermitted { .. })));
    assert!(matches!(space.fetch_add(FIRST_ADDR + 4, 1), Err(RemoteErrorKind::Unaligned { .. })));
    assert!(matches!(space.fetch_add(u64::MAX - 7, 1), Err(RemoteErrorKind::UnknownAddresses { .. })));

    space.write_with_imm(SECOND_ADDR + PIECE_LEN - 4, b"last", 42).unwrap();
    end.close().unwrap();
}

pub(super) fn expose_addresses(end: End) {
    let rights = RemoteAccess::READ | RemoteAccess::WRITE;
    let piece = || Pages::new(PIECE_LEN as usize).unwrap();
    let first_region = end.expose_addresses(FIRST_ADDR, piece(), rights | RemoteAccess::ATOMIC).unwrap();
    let second_region = end.expose_addresses(SECOND_ADDR, piece(), rights).unwrap();
    first_region.write(4096, b"a row").unwrap();
    end.send(b"exposed").unwrap();
    let message = end.recv().unwrap().unwrap();
    assert_eq!((message.len(), message.immediate()), (0, Some(42)));
    let (mut first, mut last) = ([0; 7], [0; 4]);
    second_region.read(0, &mut first).unwrap();
    second_region.read(PIECE_LEN as usize - 4, &mut last).unwrap();
    assert_eq!((&first, &last), (b"written", b"last"));
    assert_eq!(first_region.word(8).unwrap().load(Ordering::Relaxed), 7);
    assert!(end.recv().unwrap().is_none());
}
