//! Byte streams: the common part of those for tasks and of those for threads.

macro_rules! stream {
    ($($type:ident: $($field:ident).+),*) => {

impl Stream {
    /// Splits the stream into two halves. The connection is closed when both halves have been dropped.
    pub fn into_split(self) -> (ReadHalf, WriteHalf) {
        (self.reader, self.writer)
    }
}

impl ReadHalf {
    /// Removes the first bytes of those that were received and not read yet.
    fn advance(&mut self, count: usize) {
        if let Some(rest) = &mut self.rest {
            rest.advance(count).expect("no more bytes are consumed than there are");
        }
    }
}

$(
impl $type {
    /// Returns the address of this side's device, like [`Connection::local_addr`].
    pub fn local_addr(&self) -> std::net::SocketAddr {
        self.$($field).+.connection.local_addr()
    }

    /// Returns the peer's address.
    pub fn peer_addr(&self) -> std::net::SocketAddr {
        self.$($field).+.connection.peer_addr()
    }
}

impl std::fmt::Debug for $type {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct(stringify!($type)).field("peer", &self.peer_addr()).finish_non_exhaustive()
    }
}
)*

    };
}
pub(crate) use stream;
