//! A descriptor that follows a connection from lane to lane.

use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::{AsFd, BorrowedFd};

use adverb_verbs::internal::Watch;
use parking_lot::Mutex;

/// A descriptor that is readable when a connection may have made progress, over any of its lanes.
pub(crate) struct WakeFd {
    watch: Watch,
    _reader: PipeReader,
    /// Dropping it makes the descriptor readable for ever.
    writer: Mutex<Option<PipeWriter>>,
}

impl WakeFd {
    #[cfg(feature = "tokio")]
    pub(crate) fn new(events: BorrowedFd<'_>, manager: Option<BorrowedFd<'_>>) -> io::Result<WakeFd> {
        let (watch, (reader, writer)) = (Watch::new()?, io::pipe()?);
        watch.add(reader.as_fd())?;
        let wake_fd = WakeFd { watch, _reader: reader, writer: Mutex::new(Some(writer)) };
        wake_fd.watch(events, manager)?;
        Ok(wake_fd)
    }

    /// Watches the events of another lane's completion queue too, and those of its connection manager.
    pub(crate) fn watch(&self, events: BorrowedFd<'_>, manager: Option<BorrowedFd<'_>>) -> io::Result<()> {
        self.watch.add(events)?;
        manager.map_or(Ok(()), |manager| self.watch.add(manager))
    }

    /// Makes the descriptor readable for ever.
    pub(crate) fn wake_forever(&self) {
        self.writer.lock().take();
    }
}

impl AsFd for WakeFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }
}
