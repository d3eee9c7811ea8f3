//! The HTTP server: a thread per connection, with bounds on their number and duration.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::encode::{self, Status};
use super::exposition;
use super::gather::Gatherer;
use super::http::{self, Page, Parsed, Request};

/// The maximum number of connections at a time. Others are closed at once.
const MAX_CONNECTIONS: usize = 16;

/// The time limit of a request, and that of a response.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The time between a failed `accept` and the next one. It fails, for example, if the process has too many descriptors.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);

/// The page at `/`.
const INDEX: &str = "<!DOCTYPE html>\n<html lang=\"en\">\n<head><title>Adverb exporter</title></head>\n\
                     <body>\n<h1>Adverb exporter</h1>\n<p><a href=\"/metrics\">Metrics</a></p>\n</body>\n</html>\n";

/// An exporter of metrics.
pub(super) struct Exporter {
    gatherer: Gatherer,
    status: Mutex<Status>,
    timeout: Duration,
}

impl Exporter {
    /// Creates an exporter of the values that `gatherer` reads.
    pub(super) fn new(gatherer: Gatherer) -> Exporter {
        let start_time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        // The series starts at 0, because Prometheus ignores the first increase of a series that starts at 1.
        let requests = [(200, 0)].into();
        let status = Status { start_time, requests, ..Status::default() };
        Exporter { gatherer, status: Mutex::new(status), timeout: TIMEOUT }
    }

    /// Reads all values, and returns them in Prometheus' text format.
    pub(super) fn scrape(&self) -> String {
        let start = Instant::now();
        let snapshot = self.gatherer.snapshot();
        let duration = start.elapsed().as_secs_f64();
        let status = self.update(|status| {
            status.scrape_duration = duration;
            status.read_errors.add(&snapshot.read_errors);
            status.clone()
        });
        encode::text(&snapshot, &status)
    }

    /// Serves connections for as long as the process runs.
    pub(super) fn serve(self: Arc<Self>, listener: &TcpListener) -> ! {
        let connections = Arc::new(AtomicUsize::new(0));
        loop {
            let Ok((stream, _)) = listener.accept() else {
                std::thread::sleep(ACCEPT_BACKOFF);
                continue;
            };
            let Some(permit) = Permit::take(&connections) else {
                self.reject(&stream);
                continue;
            };
            let exporter = Arc::clone(&self);
            let thread = std::thread::Builder::new().name("adverb-scrape".to_owned());
            let spawned = thread.spawn(move || {
                let _permit = permit;
                // A client that closes the connection early is no failure of the exporter.
                let _ = exporter.handle(stream);
            });
            if spawned.is_err() {
                self.update(|status| status.refused_connections += 1);
            }
        }
    }

    /// Closes a connection with an error response, if that doesn't block.
    fn reject(&self, mut stream: &TcpStream) {
        self.update(|status| status.refused_connections += 1);
        if stream.set_nonblocking(true).is_ok() {
            let _ = stream.write_all(&http::rejection(503));
        }
    }

    /// Reads a request and responds to it.
    fn handle(&self, mut stream: TcpStream) -> io::Result<()> {
        let (code, response) = match read_request(&mut stream, self.timeout)? {
            Ok(Request { is_head, page: Page::Index }) => {
                (200, http::response(200, "text/html; charset=utf-8", INDEX, is_head))
            }
            Ok(Request { is_head, page: Page::Metrics }) => {
                (200, http::response(200, exposition::CONTENT_TYPE, &self.scrape(), is_head))
            }
            Err(code) => (code, http::rejection(code)),
        };
        self.update(|status| *status.requests.entry(code).or_default() += 1);
        write_all(&mut stream, &response, self.timeout)?;
        stream.shutdown(Shutdown::Write)
    }

    fn update<T>(&self, change: impl FnOnce(&mut Status) -> T) -> T {
        change(&mut self.status.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Returns a listener at an address, and the actual address, whose port is not 0.
pub(super) fn bind(address: SocketAddr) -> io::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(address)?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

/// The permit for one of [`MAX_CONNECTIONS`] connections. Dropping it allows another connection.
struct Permit(Arc<AtomicUsize>);

impl Permit {
    /// Returns a permit, unless all of them are in use. Only one thread takes permits.
    fn take(connections: &Arc<AtomicUsize>) -> Option<Permit> {
        if connections.load(Ordering::Relaxed) >= MAX_CONNECTIONS {
            return None;
        }
        connections.fetch_add(1, Ordering::Relaxed);
        Some(Permit(Arc::clone(connections)))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Reads a request, or returns the status code of the error response.
fn read_request(stream: &mut TcpStream, timeout: Duration) -> io::Result<Result<Request, u16>> {
    let deadline = Instant::now() + timeout;
    let mut head = Vec::new();
    let mut chunk = [0; 1024];
    loop {
        match http::parse(&head) {
            Parsed::Request(request) => return Ok(Ok(request)),
            Parsed::Rejected(code) => return Ok(Err(code)),
            Parsed::Incomplete => {}
        }
        let Some(left) = left_until(deadline) else { return Ok(Err(408)) };
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut chunk) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(len) => head.extend_from_slice(&chunk[..len]),
            Err(error) if is_timeout(&error) => return Ok(Err(408)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Writes a response. A client that reads it slowly has the same time as one that doesn't read at all.
fn write_all(stream: &mut TcpStream, mut bytes: &[u8], timeout: Duration) -> io::Result<()> {
    let deadline = Instant::now() + timeout;
    while !bytes.is_empty() {
        let left = left_until(deadline).ok_or(io::ErrorKind::TimedOut)?;
        stream.set_write_timeout(Some(left))?;
        match stream.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(len) => bytes = &bytes[len..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Returns the time until a deadline, or `None` if it has passed. A socket's timeout must not be 0.
fn left_until(deadline: Instant) -> Option<Duration> {
    Some(deadline.saturating_duration_since(Instant::now())).filter(|left| !left.is_zero())
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

#[cfg(test)]
mod tests {
    use super::super::gather::tests::{CONNECTX, Sysfs};
    use super::*;

    /// Starts an exporter of a test's sysfs. Its thread ends with the process.
    fn start(sysfs: &Sysfs, timeout: Duration) -> (Arc<Exporter>, SocketAddr) {
        let (listener, address) = bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let mut exporter = Exporter::new(Gatherer::new(&sysfs.0, Vec::new()));
        exporter.timeout = timeout;
        let exporter = Arc::new(exporter);
        let serving = Arc::clone(&exporter);
        std::thread::spawn(move || serving.serve(&listener));
        (exporter, address)
    }

    fn exchange(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        response
    }

    #[test]
    fn pages_are_served_and_counted() {
        let sysfs = Sysfs::new("serve", CONNECTX);
        let (_, address) = start(&sysfs, TIMEOUT);
        let index = exchange(address, "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(index.starts_with("HTTP/1.1 200 OK\r\n") && index.contains("href=\"/metrics\""), "{index}");
        assert!(exchange(address, "GET /x HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
        let metrics = exchange(address, "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
        let (head, body) = metrics.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("Content-Type: {}", exposition::CONTENT_TYPE)), "{head}");
        assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{head}");
        for line in [
            r#"adverb_rdma_errors_total{device="mlx5_0",port="1",counter="out_of_sequence"} 3"#,
            r#"adverb_exporter_http_requests_total{code="200"} 1"#,
            r#"adverb_exporter_http_requests_total{code="404"} 1"#,
        ] {
            assert!(body.lines().any(|it| it == line), "{line} is not in {body}");
        }
    }

    #[test]
    fn a_client_that_sends_no_request_is_timed_out() {
        let sysfs = Sysfs::new("silent", &[]);
        let (_, address) = start(&sysfs, Duration::from_secs(2));
        assert!(exchange(address, "GET /metr").starts_with("HTTP/1.1 408 "));
    }

    #[test]
    fn connections_beyond_the_maximum_are_refused_and_the_others_served() {
        let sysfs = Sysfs::new("crowd", &[]);
        let (exporter, address) = start(&sysfs, Duration::from_secs(60));
        let idle: Vec<TcpStream> =
            (0..MAX_CONNECTIONS).map(|_| TcpStream::connect(address).unwrap()).collect();
        // The kernel delivers connections in their order, so all of the idle ones are accepted before this one.
        let mut refused = TcpStream::connect(address).unwrap();
        let mut response = String::new();
        refused.read_to_string(&mut response).unwrap();
        assert!(response.starts_with("HTTP/1.1 503 "), "{response}");
        assert_eq!(exporter.update(|status| status.refused_connections), 1);
        let mut first = idle.first().unwrap();
        first.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        response.clear();
        first.read_to_string(&mut response).unwrap();
        assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
    }
}
