//! The tokens of the epoll instance of an endpoint.

use nix::sys::epoll::{EpollEvent, EpollFlags};

/// The descriptor of an event of the epoll instance.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Token {
    /// The source with this number.
    Source(u64),
    /// The rings.
    Rings,
}

/// The number of the rings. There are never as many sources.
const RINGS: u64 = u64::MAX;

impl Token {
    /// Returns the token of an event.
    pub(super) fn of(event: &EpollEvent) -> Token {
        match event.data() {
            RINGS => Token::Rings,
            number => Token::Source(number),
        }
    }

    /// Returns an event with this token.
    pub(super) fn event(self, flags: EpollFlags) -> EpollEvent {
        let number = match self {
            Token::Source(number) => number,
            Token::Rings => RINGS,
        };
        EpollEvent::new(flags, number)
    }
}
