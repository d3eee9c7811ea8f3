//! The files that a process writes when it exits: a report for `adverb run`, and the recording of its device.

use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use adverb_proto::ResourceCounts;
use adverb_proto::trace::{ClockOrigin, RecorderOptions};
use adverb_proto::types::{CompletedOperation, Completion, Status};
use adverb_soft::Nic;
use adverb_trace::Trace;

use crate::context::Context;
use crate::exit::Work;
use crate::nic::{Listed, OpenNic};
use crate::settings::Settings;

/// The numbers of the program's requests and protection domains.
#[derive(Default)]
pub(crate) struct RequestCounts {
    sent: AtomicU64,
    received: AtomicU64,
    /// The number of requests in `sent` that could not be posted.
    rejected: AtomicU64,
    /// The numbers of failed completions, by status.
    failed: [AtomicU64; STATUSES],
    domains: AtomicU64,
    /// The numbers of objects, by kind, whose context the program closed before it destroyed them.
    closed: [AtomicU64; 6],
}

/// The kinds of objects whose leaks are reported.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Domain,
    Region,
    Window,
    CompletionQueue,
    SharedReceiveQueue,
    QueuePair,
}

impl RequestCounts {
    /// Counts a request that the NIC is about to accept. The caller holds the NIC's lock.
    #[inline]
    pub(crate) fn post(&self) {
        increment(&self.sent);
    }

    /// Counts a request that the NIC did not accept.
    pub(crate) fn reject(&self) {
        self.rejected.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a completion that the program polls. The caller holds the NIC's lock.
    #[inline]
    pub(crate) fn complete(&self, completion: &Completion) {
        match &completion.outcome {
            Ok(success) => {
                let operation = success.operation;
                if matches!(operation, CompletedOperation::Recv { .. } | CompletedOperation::RecvWrite { .. })
                {
                    increment(&self.received);
                }
            }
            Err(failure) => {
                increment(&self.failed[(failure.status.code() as usize).min(STATUSES - 1)]);
            }
        }
    }

    /// Counts a protection domain.
    pub(crate) fn create_domain(&self) {
        self.domains.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts the end of a protection domain.
    pub(crate) fn destroy_domain(&self) {
        self.domains.fetch_sub(1, Ordering::Relaxed);
    }

    /// Counts an object that closing its context destroyed, which the program should have destroyed.
    pub(crate) fn close(&self, kind: Option<Kind>) {
        if let Some(kind) = kind {
            self.closed[kind as usize].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts an object that the program destroyed after it closed the context.
    pub(crate) fn destroy_closed(&self, kind: Option<Kind>) {
        if let Some(kind) = kind {
            self.closed[kind as usize].fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Increments a counter that only the holder of a lock changes, without a locked instruction.
#[inline]
fn increment(counter: &AtomicU64) {
    counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

/// The files to write.
pub(crate) struct Output {
    /// The file of the recording.
    trace: Option<PathBuf>,
    /// The report, which exists and is empty until the process exits.
    report: Option<PathBuf>,
    /// The NIC's own objects, which the program doesn't leak.
    initial: ResourceCounts,
}

impl Output {
    /// Starts the recording, and creates an empty report. If the process is killed, the report stays empty.
    pub(crate) fn start(settings: &Settings, nic: &Nic) -> io::Result<Output> {
        if settings.trace.is_some() {
            nic.start_recording(&RecorderOptions::default(), None).map_err(io::Error::other)?;
        }
        let report =
            settings.report.as_deref().map(|directory| directory.join(std::process::id().to_string()));
        if let Some(report) = &report {
            private().create(true).truncate(true).open(report)?;
        }
        Ok(Output { trace: settings.trace.clone(), report, initial: nic.resource_counts() })
    }
}

/// Writes the files. The dynamic linker calls this function when the process exits, after the destructors of the libraries
/// that use this one. It isn't an entry point: an entry point allocates when a thread first calls it.
// SAFETY: no other library has a function of this name.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn adverb_at_exit() {
    _ = crate::entry::catch(|| {
        if let Some(nic) = OpenNic::if_open() {
            nic.exit.request(nic, Work::Report);
        }
    });
}

/// Writes the files.
pub(crate) fn write(nic: &OpenNic) {
    if let Some(path) = &nic.output.report
        && let Err(error) = fs::write(path, report(nic))
    {
        eprintln!("adverb: writing {} failed: {error}", path.display());
    }
    if let Some(path) = &nic.output.trace
        && let Err(error) = write_trace(nic, path)
    {
        eprintln!("adverb: writing the recording {} failed: {error}", path.display());
    }
}

/// Returns the report: lines with a group, a name and a number, which tabs separate.
fn report(nic: &OpenNic) -> String {
    let mut text = String::new();
    let mut line = |group: &str, name: &str, value: u64| {
        // Writing to a string can't fail.
        _ = writeln!(text, "{group}\t{name}\t{value}");
    };
    let counts = &nic.counts;
    let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    line("messages", "sent", load(&counts.sent).saturating_sub(load(&counts.rejected)));
    line("messages", "received", load(&counts.received));
    for (code, failed) in (0u32..).zip(&counts.failed).filter(|(_, failed)| load(failed) > 0) {
        line("error", &Status::from_code(code).to_string(), load(failed));
    }
    for (call, count) in crate::calls::failed() {
        line("call", &call, count);
    }
    let (resources, initial) = (nic.nic.resource_counts(), &nic.output.initial);
    let (contexts, cqs) = {
        let objects = nic.objects.lock();
        // SAFETY: a listed context is open, and stays listed while the lock is held.
        let is_of_program = |listed: &&Listed<Context>| !unsafe { listed.0.as_ref() }.is_shared;
        (objects.contexts.iter().filter(is_of_program).count(), objects.cqs.len())
    };
    let regions = resources.regions.saturating_sub(initial.regions);
    let queue_pairs = resources.queue_pairs.saturating_sub(initial.queue_pairs);
    let closed = |kind: Kind| load(&counts.closed[kind as usize]);
    for (name, count) in [
        ("contexts", contexts as u64),
        ("protection domains", load(&counts.domains) + closed(Kind::Domain)),
        ("memory regions", regions as u64 + closed(Kind::Region)),
        ("memory windows", resources.windows as u64 + closed(Kind::Window)),
        ("completion queues", cqs as u64 + closed(Kind::CompletionQueue)),
        ("shared receive queues", resources.shared_receive_queues as u64 + closed(Kind::SharedReceiveQueue)),
        ("queue pairs", queue_pairs as u64 + closed(Kind::QueuePair)),
    ] {
        if count > 0 {
            line("leak", name, count);
        }
    }
    for (name, value) in nic.nic.statistics().counters() {
        line("counter", name, value);
    }
    text
}

/// Writes the recording in the format that the extension of the file's name selects.
fn write_trace(nic: &OpenNic, path: &Path) -> io::Result<()> {
    let clock = clock_origin(nic.nic.clock_origin());
    let device = format!("adverb0 of process {}", std::process::id());
    let Some(recording) = nic.nic.stop_recording(&device, clock) else { return Ok(()) };
    let trace = Trace::new([recording]);
    let mut out = BufWriter::new(create(path)?);
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("html") => trace.write_html(&mut out)?,
        Some("pcapng") => trace.write_pcapng(&mut out)?,
        Some("json" | "jsonl") => trace.write_json_lines(&mut out)?,
        Some("perfetto") => trace.write_perfetto(&mut out)?,
        _ => trace.write_text(&mut out)?,
    }
    out.flush()
}

/// Creates the file of a recording. If another process has created it, the name gets the number of this process.
fn create(path: &Path) -> io::Result<File> {
    match private().create_new(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        created => return created,
    }
    if !fs::metadata(path)?.is_file() {
        return OpenOptions::new().write(true).open(path);
    }
    let mut name = path.file_stem().unwrap_or_default().to_owned();
    name.push(format!("-{}", std::process::id()));
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    private().create(true).truncate(true).open(path.with_file_name(name))
}

/// Returns the options to create a file that other users can't read: remote keys and payloads are secrets.
fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).mode(0o600);
    options
}

/// Returns the origin of a clock that began at `start`. The processes of a host have one monotonic clock.
fn clock_origin(start: Instant) -> ClockOrigin {
    let nanos = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, nanos);
    ClockOrigin { unix_nanos: unix.saturating_sub(nanos(start.elapsed())), ..ClockOrigin::default() }
}

/// The number of statuses that are distinguished. The last one includes all further ones.
const STATUSES: usize = 32;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use adverb_proto::types::{Failure, Qpn, Success};

    use super::*;

    #[test]
    fn a_recording_gets_another_name_if_its_file_exists() {
        let directory = std::env::temp_dir().join(format!("adverb-trace-{}", std::process::id()));
        fs::create_dir(&directory).unwrap();
        let path = directory.join("a.html");
        create(&path).unwrap().write_all(b"first").unwrap();
        create(&path).unwrap().write_all(b"second").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let second = directory.join(format!("a-{}.html", std::process::id()));
        let modes = [&path, &second].map(|path| mode(path));
        let texts = [&path, &second].map(|path| fs::read_to_string(path).unwrap());
        fs::remove_dir_all(&directory).unwrap();
        assert_eq!(texts, ["first", "second"]);
        assert_eq!(modes, [0o600; 2], "other users can't read remote keys");
    }

    #[test]
    fn posted_and_rejected_requests_are_counted() {
        let counts = RequestCounts::default();
        counts.post();
        counts.post();
        counts.reject();
        assert_eq!((load(&counts.sent), load(&counts.rejected)), (2, 1));
    }

    #[test]
    fn completions_are_counted_by_their_outcome() {
        let counts = RequestCounts::default();
        let complete = |outcome| counts.complete(&Completion { wr_id: 1, qpn: Qpn::truncate(2), outcome });
        let recv =
            CompletedOperation::Recv { immediate: None, invalidated: None, source: None, has_grh: false };
        for operation in [recv, CompletedOperation::RecvWrite { immediate: 3 }, CompletedOperation::Send] {
            complete(Ok(Success { operation, length: 8 }));
        }
        for status in [Status::Flushed, Status::Flushed, Status::RetryExceeded] {
            complete(Err(Failure { status, vendor_error: 0 }));
        }
        assert_eq!(
            (load(&counts.sent), load(&counts.received)),
            (0, 2),
            "a SEND is counted when it is posted"
        );
        let failed = |status: Status| load(&counts.failed[status.code() as usize]);
        assert_eq!((failed(Status::Flushed), failed(Status::RetryExceeded)), (2, 1));
        assert_eq!(counts.failed.iter().map(load).sum::<u64>(), 3);
    }

    fn load(counter: &AtomicU64) -> u64 {
        counter.load(Ordering::Relaxed)
    }
}
