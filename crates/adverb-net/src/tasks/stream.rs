//! Byte streams for tasks.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use adverb_verbs::internal::WithCauses;
use adverb_verbs::memory::PoolBuf;
use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, ReadBuf};
use tokio::runtime::Handle;
use tokio::time::{Sleep, sleep};

use super::Connection;
use super::wait::TaskWait;
use crate::driver::{Core, Driver, StreamWrite};
use crate::error::{SendErrorKind, WaitError};
#[allow(unused_imports, reason = "for links")]
use crate::options::Options;

crate::api::stream!(Stream: reader.shared, ReadHalf: shared, WriteHalf: shared);

/// A byte stream over a connection, like a TCP stream, for code that reads and writes TCP streams, such as hyper and
/// tonic.
///
/// - **Writing** returns when the bytes are in flight, or are queued because there are no credits. A write waits while
///   the peer reads too slowly. Queued bytes are sent when there are credits, even without a flush. A long write is
///   copied into registered memory, from which the peer's device reads it.
/// - **Flushing** waits until all written bytes are in flight.
/// - **Shutting down** ends the sending direction, and waits until the peer's device has received all written bytes.
///   Reading remains possible.
/// - **Reading** returns the bytes that have arrived, or no bytes at the end of the stream, when the peer has shut down
///   or dropped its stream. If the peer crashes or is unreachable, reading returns an error about two seconds after a
///   [keepalive](Options::keepalive) probe. [`AsyncBufRead`](https://docs.rs/tokio/latest/tokio/io/trait.AsyncBufRead.html) provides the bytes in place, without a copy.
/// - **Dropping** the stream closes the connection like [`Connection::close`], in a separate task. The peer receives
///   the written bytes and the end of the stream, if it reads them within [`Options::connect_timeout`]. If the runtime
///   has shut down, the connection ends at once.
///
/// A stream ignores [`Options::timeout`]: its calls have no time limit. The peer may use a [`Connection`] instead of a
/// stream: it receives the written bytes as messages of any sizes, and the stream returns the bytes of its messages.
///
/// ```
/// use adverb::net::{Listener, connect_stream};
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let listener = Listener::bind("127.0.0.1:0").await?;
/// let address = listener.local_addr();
/// tokio::spawn(async move {
///     let (mut reader, mut writer) = listener.accept_stream().await?.into_split();
///     tokio::io::copy(&mut reader, &mut writer).await?;
///     writer.shutdown().await
/// });
/// let mut stream = connect_stream(address).await?;
/// stream.write_all(b"hello, world").await?;
/// stream.shutdown().await?;
/// let mut answer = String::new();
/// stream.read_to_string(&mut answer).await?;
/// assert_eq!(answer, "hello, world");
/// # Ok::<(), std::io::Error>(())
/// # }).unwrap();
/// ```
///
/// # Cancel safety
///
/// If a pending read is dropped, no byte is consumed. If a pending write is dropped, no byte is sent. For tokio's
/// `read_exact` and `write_all`, the cancel safety that tokio documents applies.
pub struct Stream {
    reader: ReadHalf,
    writer: WriteHalf,
}

/// The reading half of a [`Stream`]: see [`Stream::into_split`].
pub struct ReadHalf {
    shared: Arc<Shared>,
    /// Bytes that were received and not read yet.
    rest: Option<PoolBuf>,
    wait: Wait,
}

/// The writing half of a [`Stream`]: see [`Stream::into_split`]. Dropping this half shuts down the sending direction.
pub struct WriteHalf {
    shared: Arc<Shared>,
    wait: Wait,
    /// State of a waiting flush, which is independent of a waiting write.
    flush: Wait,
}

/// State shared by the halves.
struct Shared {
    connection: Connection,
    /// The runtime of the flush task, and of the task that closes the connection.
    runtime: Handle,
    /// Whether the flush task runs.
    has_flush_task: AtomicBool,
    /// Whether the write half was dropped, so that the end of the stream must be sent.
    is_write_half_dropped: AtomicBool,
}

/// Wait state of one operation.
struct Wait {
    task: TaskWait,
    /// The timer of the connection's next timeout.
    timer: Pin<Box<Option<Sleep>>>,
}

/// The delay before the flush task sends queued bytes. Further writes may send them meanwhile.
const FLUSH_DELAY: Duration = Duration::from_millis(1);

impl Stream {
    /// Converts a connection without other handles.
    pub(crate) fn new(connection: Connection) -> Stream {
        let wait = || Wait::new(TaskWait::new(&connection.driver));
        let [read, write, flush] = [wait(), wait(), wait()];
        let shared = Arc::new(Shared {
            connection,
            runtime: Handle::current(),
            has_flush_task: AtomicBool::new(false),
            is_write_half_dropped: AtomicBool::new(false),
        });
        Stream {
            reader: ReadHalf { shared: Arc::clone(&shared), rest: None, wait: read },
            writer: WriteHalf { shared, wait: write, flush },
        }
    }
}

impl AsyncBufRead for ReadHalf {
    fn poll_fill_buf(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let this = self.get_mut();
        if this.rest.as_ref().is_none_or(|rest| rest.is_empty()) {
            // The buffer returns to its pool before the wait.
            this.rest = None;
            // A task that never has to wait yields now and then.
            ready!(pin!(tokio::task::coop::consume_budget()).poll(cx));
            let next = this.shared.poll(&mut this.wait, cx, Driver::next_bytes);
            this.rest = ready!(next)?;
        }
        Poll::Ready(Ok(this.rest.as_deref().unwrap_or_default()))
    }

    fn consume(self: Pin<&mut Self>, count: usize) {
        self.get_mut().advance(count);
    }
}

impl AsyncRead for ReadHalf {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if buffer.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        loop {
            let bytes = ready!(self.as_mut().poll_fill_buf(cx))?;
            let count = bytes.len().min(buffer.remaining());
            buffer.put_slice(&bytes[..count]);
            self.as_mut().consume(count);
            // Continue if the caller's buffer has space, and more bytes have arrived.
            if buffer.remaining() == 0 || !self.take_next_piece() {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl ReadHalf {
    /// Takes the next received piece, if there is one, without polling the device. Returns whether there was one.
    fn take_next_piece(&mut self) -> bool {
        let driver = &self.shared.connection.driver;
        // The next read returns an end or an error again.
        if let Some(mut core) = driver.try_lock()
            && let Ok(Some(Some(piece))) = driver.next_bytes(&mut core)
        {
            self.rest = Some(piece);
            return true;
        }
        false
    }
}

impl AsyncWrite for WriteHalf {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if pieces.iter().all(|piece| piece.is_empty()) {
            return Poll::Ready(Ok(0));
        }
        let this = self.get_mut();
        // A task that never has to wait yields now and then.
        ready!(pin!(tokio::task::coop::consume_budget()).poll(cx));
        let shared = &this.shared;
        loop {
            let mut has_queued = false;
            let written = shared.poll(&mut this.wait, cx, |driver, core| {
                let written = driver.write_some(core, pieces)?;
                has_queued |= driver.is_flushed(core)?.is_none();
                Ok::<_, SendErrorKind>(written)
            });
            if has_queued {
                shared.start_flush_task();
            }
            let written = ready!(written)?;
            if let StreamWrite::Queued(count) = written {
                return Poll::Ready(Ok(count));
            }
            let count = shared.connection.driver.finish_write(written, pieces)?;
            shared.flush_or_start_task();
            if let Some(count) = count {
                return Poll::Ready(Ok(count));
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.shared.poll(&mut this.flush, cx, |driver, core| driver.is_flushed(core)).map_err(io::Error::from)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let ended = this.shared.poll(&mut this.flush, cx, Driver::end_stream);
        if ended.is_pending() {
            // The caller may never poll again.
            this.shared.flush_or_start_task();
        }
        ended.map_err(io::Error::from)
    }
}

impl Drop for WriteHalf {
    fn drop(&mut self) {
        if self.shared.connection.driver.is_owned() {
            self.shared.is_write_half_dropped.store(true, Ordering::Relaxed);
            self.shared.flush_or_start_task();
        }
    }
}

impl Shared {
    /// Polls until `ready` returns a value.
    fn poll<T, E: WaitError>(
        &self,
        wait: &mut Wait,
        cx: &mut Context<'_>,
        mut ready: impl FnMut(&Driver, &mut Core) -> Result<Option<T>, E>,
    ) -> Poll<Result<T, E>> {
        let Connection { driver, events } = &self.connection;
        let Wait { task, timer } = wait;
        task.poll(cx, driver, events, timer.as_mut(), &mut ready)
    }

    /// Sends queued bytes now, or starts the flush task if there are no credits.
    fn flush_or_start_task(self: &Arc<Shared>) {
        let driver = &self.connection.driver;
        let rest = self.flush_rest(driver, &mut driver.lock());
        if let Ok(None) = rest {
            self.start_flush_task();
        }
    }

    /// Starts the flush task, which sends queued bytes when there are credits, even if no half is polled again.
    fn start_flush_task(self: &Arc<Shared>) {
        if self.has_flush_task.swap(true, Ordering::Relaxed) {
            return;
        }
        let shared = Arc::downgrade(self);
        self.runtime.spawn(async move {
            // A busy writer sends the queued bytes itself, at less cost.
            sleep(FLUSH_DELAY).await;
            let mut wait = None;
            let sent = poll_fn(|cx| {
                let Some(shared) = shared.upgrade() else { return Poll::Ready(Ok(())) };
                let wait = wait.get_or_insert_with(|| {
                    Wait::new(TaskWait::new(&shared.connection.driver).without_spin())
                });
                shared.poll(wait, cx, |driver, core| {
                    let sent = shared.flush_rest(driver, core);
                    // Bytes that are queued from now on need another flush task.
                    shared.has_flush_task.store(matches!(sent, Ok(None)), Ordering::Relaxed);
                    sent
                })
            });
            if let Err(error) = sent.await {
                tracing::debug!(error = %WithCauses(&error), "could not send the last bytes written to a stream");
            }
        });
    }

    /// Sends queued bytes, and the end of the stream if the write half was dropped.
    fn flush_rest(&self, driver: &Driver, core: &mut Core) -> Result<Option<()>, SendErrorKind> {
        if self.is_write_half_dropped.load(Ordering::Relaxed) {
            return driver.shutdown_and_flush(core);
        }
        driver.flush(core);
        driver.is_flushed(core)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let driver = &self.connection.driver;
        if !driver.is_owned() {
            return;
        }
        // The flush task ends when it is woken without a stream.
        driver.wakers().wake_all();
        if driver.is_open(&driver.lock()) {
            let connection = self.connection.clone();
            self.runtime.spawn(async move {
                let peer = connection.peer_addr();
                if let Err(error) = connection.close().await {
                    tracing::debug!(%peer, error = %WithCauses(&error), "could not close the connection of a dropped stream");
                }
            });
        }
    }
}

impl Wait {
    fn new(task: TaskWait) -> Wait {
        Wait { task, timer: Box::pin(None) }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().reader).poll_read(cx, buffer)
    }
}

impl AsyncBufRead for Stream {
    fn poll_fill_buf(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        Pin::new(&mut self.get_mut().reader).poll_fill_buf(cx)
    }

    fn consume(self: Pin<&mut Self>, count: usize) {
        Pin::new(&mut self.get_mut().reader).consume(count);
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().writer).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().writer).poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.writer.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().writer).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().writer).poll_shutdown(cx)
    }
}
