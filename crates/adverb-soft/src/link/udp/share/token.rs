//! The tokens of the epoll instance of a shared address.

use nix::sys::epoll::{EpollEvent, EpollFlags};

/// The descriptor of an event of the epoll instance.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Token {
    /// The source with this number.
    Source(u64),
    /// The connection to another process, to whose ring with this number this process writes.
    Ring(u64),
    /// The wake channel.
    WakeChannel,
}

/// The first number of a ring. Sources have the lower numbers. Neither are ever so many that they reach the end.
const FIRST_RING: u64 = 1 << 63;

/// The number of the wake channel.
const WAKE_CHANNEL: u64 = FIRST_RING - 1;

impl Token {
    /// Returns the token of an event.
    pub(super) fn of(event: &EpollEvent) -> Token {
        event.data().into()
    }

    /// Returns an event with this token.
    pub(super) fn event(self, flags: EpollFlags) -> EpollEvent {
        EpollEvent::new(flags, self.into())
    }
}

impl From<Token> for u64 {
    fn from(token: Token) -> u64 {
        match token {
            Token::Source(number) => number,
            Token::Ring(number) => FIRST_RING + number,
            Token::WakeChannel => WAKE_CHANNEL,
        }
    }
}

impl From<u64> for Token {
    fn from(number: u64) -> Token {
        match number {
            WAKE_CHANNEL => Token::WakeChannel,
            FIRST_RING.. => Token::Ring(number - FIRST_RING),
            _ => Token::Source(number),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_become_the_same_tokens_again() {
        let numbers = [0, 1, WAKE_CHANNEL - 1];
        let numbered = numbers.into_iter().flat_map(|number| [Token::Source(number), Token::Ring(number)]);
        for token in numbered.chain([Token::WakeChannel]) {
            assert_eq!(Token::from(u64::from(token)), token);
            assert_eq!(Token::of(&token.event(EpollFlags::EPOLLIN)), token);
        }
    }
}
