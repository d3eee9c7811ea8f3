//! Byte streams for threads.

use std::io::{self, BufRead, IoSlice, Read, Write};
use std::sync::Arc;

use adverb_verbs::internal::WithCauses;
use adverb_verbs::memory::PoolBuf;

use super::Connection;
use crate::driver::Driver;
#[allow(unused_imports, reason = "for links")]
use crate::options::Options;

crate::api::stream!(Stream: reader.shared, ReadHalf: shared, WriteHalf: shared);

/// A byte stream over a connection, like a TCP stream.
///
/// - **Writing** returns when the bytes are in flight, or are queued because there are no credits. A write waits while
///   the peer reads too slowly. Queued bytes are sent when this side next writes, flushes or reads. A long write is
///   copied into registered memory, from which the peer's device reads it.
/// - **Flushing** waits until all written bytes are in flight.
/// - [**Shutting down**](Stream::shutdown) ends the sending direction. Reading remains possible.
/// - **Reading** returns the bytes that have arrived, or no bytes at the end of the stream, when the peer has shut down
///   or dropped its stream. If the peer crashes or is unreachable, reading returns an error about two seconds after a
///   [keepalive](Options::keepalive) probe. [`BufRead`] provides the bytes in place, without a copy.
/// - **Dropping** the stream closes the connection like [`Connection::close`], which waits for up to
///   [`Options::connect_timeout`]: the peer receives the written bytes and the end of the stream.
///
/// Reads and writes wait no longer than [`Options::timeout`]. The peer may use a [`Connection`] instead of a stream: it
/// receives the written bytes as messages of any sizes, and the stream returns the bytes of its messages.
///
/// ```
/// use std::io::{Read, Write};
/// use adverb::net::blocking::{Listener, connect_stream};
///
/// let listener = Listener::bind("127.0.0.1:0")?;
/// let address = listener.local_addr();
/// std::thread::spawn(move || {
///     let (mut reader, mut writer) = listener.accept_stream()?.into_split();
///     std::io::copy(&mut reader, &mut writer)?;
///     writer.shutdown()
/// });
/// let mut stream = connect_stream(address)?;
/// stream.write_all(b"hello, world")?;
/// stream.shutdown()?;
/// let mut answer = String::new();
/// stream.read_to_string(&mut answer)?;
/// assert_eq!(answer, "hello, world");
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Stream {
    reader: ReadHalf,
    writer: WriteHalf,
}

/// The reading half of a [`Stream`]: see [`Stream::into_split`].
pub struct ReadHalf {
    shared: Arc<Shared>,
    /// Bytes that were received and not read yet.
    rest: Option<PoolBuf>,
}

/// The writing half of a [`Stream`]: see [`Stream::into_split`].
///
/// Dropping this half shuts down the sending direction. If there are no credits, the drop waits for up to
/// [`Options::connect_timeout`].
pub struct WriteHalf {
    shared: Arc<Shared>,
}

/// State shared by the halves.
struct Shared {
    connection: Connection,
}

impl Stream {
    /// Converts a connection without other handles.
    pub(crate) fn new(connection: Connection) -> Stream {
        let shared = Arc::new(Shared { connection });
        Stream { reader: ReadHalf { shared: Arc::clone(&shared), rest: None }, writer: WriteHalf { shared } }
    }

    /// Shuts down the sending direction, and waits until the peer's device has received all written bytes.
    ///
    /// # Errors
    ///
    /// Returns an error if the connection has ended, or if the call takes longer than [`Options::timeout`].
    pub fn shutdown(&mut self) -> io::Result<()> {
        self.writer.shutdown()
    }
}

impl WriteHalf {
    /// Shuts down the sending direction, like [`Stream::shutdown`].
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Stream::shutdown`].
    pub fn shutdown(&mut self) -> io::Result<()> {
        let driver = &self.shared.connection.driver;
        Ok(driver.wait(driver.options.timeout, Driver::end_stream)?)
    }
}

impl BufRead for ReadHalf {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.rest.as_ref().is_none_or(|rest| rest.is_empty()) {
            // The buffer returns to its pool before the wait.
            self.rest = None;
            let driver = &self.shared.connection.driver;
            self.rest = driver.wait(driver.options.timeout, Driver::next_bytes)?;
        }
        Ok(self.rest.as_deref().unwrap_or_default())
    }

    fn consume(&mut self, count: usize) {
        self.advance(count);
    }
}

impl Read for ReadHalf {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let mut read = 0;
        while read < bytes.len() {
            let piece = self.fill_buf()?;
            let count = piece.len().min(bytes.len() - read);
            bytes[read..read + count].copy_from_slice(&piece[..count]);
            self.consume(count);
            read += count;
            // Continue if the caller's buffer has space, and more bytes have arrived.
            if read == bytes.len() || !self.take_next_piece() {
                break;
            }
        }
        Ok(read)
    }
}

impl ReadHalf {
    /// Takes the next received piece, if there is one, without polling the device. Returns whether there was one.
    fn take_next_piece(&mut self) -> bool {
        let driver = &self.shared.connection.driver;
        // The next read returns an end or an error again.
        let piece = driver.next_bytes(&mut driver.lock());
        self.rest = piece.ok().flatten().flatten();
        self.rest.is_some()
    }
}

impl Write for WriteHalf {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        if pieces.iter().all(|piece| piece.is_empty()) {
            return Ok(0);
        }
        let driver = &self.shared.connection.driver;
        loop {
            let written = driver.wait(driver.options.timeout, |driver, core| driver.write_some(core, pieces));
            if let Some(count) = driver.finish_write(written?, pieces)? {
                return Ok(count);
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        let driver = &self.shared.connection.driver;
        let sent = driver.wait(driver.options.timeout, |driver, core| driver.is_flushed(core));
        Ok(sent?)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let driver = &self.connection.driver;
        if driver.is_owned()
            && driver.is_open(&driver.lock())
            && let Err(error) = self.connection.close()
        {
            let peer = self.connection.peer_addr();
            tracing::debug!(%peer, error = %WithCauses(&error), "could not close the connection of a dropped stream");
        }
    }
}

impl Drop for WriteHalf {
    fn drop(&mut self) {
        // Without a read half, the connection is about to be closed, which ends the stream too.
        let driver = &self.shared.connection.driver;
        if Arc::strong_count(&self.shared) > 1 && driver.is_owned() {
            let ended = driver.wait(driver.options.connect_timeout, Driver::shutdown_and_flush);
            if let Err(error) = ended {
                tracing::debug!(error = %WithCauses(&error), "could not send the end of a dropped stream");
            }
        }
    }
}

impl Read for Stream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.reader.read(bytes)
    }
}

impl BufRead for Stream {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.reader.fill_buf()
    }

    fn consume(&mut self, count: usize) {
        self.reader.consume(count);
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writer.write(bytes)
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        self.writer.write_vectored(pieces)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}
