//! The part of HTTP/1.1 that a scrape needs: requests without a body, and one response per connection.

/// The maximum length of a request's head.
pub(super) const MAX_HEAD_LEN: usize = 8 << 10;

/// The result of parsing the bytes received so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Parsed {
    /// The head is incomplete.
    Incomplete,
    /// A complete request.
    Request(Request),
    /// A request that gets an error response with this status code.
    Rejected(u16),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Request {
    /// Whether the client wants the head of the response only.
    pub is_head: bool,
    /// The requested page.
    pub page: Page,
}

/// The pages of the exporter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Page {
    /// `/`
    Index,
    /// `/metrics`
    Metrics,
}

/// Parses the head of a request.
pub(super) fn parse(received: &[u8]) -> Parsed {
    let head = &received[..received.len().min(MAX_HEAD_LEN)];
    let Some(end) = head.windows(4).position(|window| window == b"\r\n\r\n") else {
        return if received.len() < MAX_HEAD_LEN { Parsed::Incomplete } else { Parsed::Rejected(431) };
    };
    let line = head[..end].split(|byte| *byte == b'\r').next().unwrap_or_default();
    let Ok(line) = std::str::from_utf8(line) else { return Parsed::Rejected(400) };
    let [method, target, version] = line.split(' ').collect::<Vec<_>>()[..] else {
        return Parsed::Rejected(400);
    };
    if !matches!(version, "HTTP/1.0" | "HTTP/1.1") {
        return Parsed::Rejected(if version.starts_with("HTTP/") { 505 } else { 400 });
    }
    let is_head = match method {
        "GET" => false,
        "HEAD" => true,
        _ => return Parsed::Rejected(405),
    };
    let page = match target.split('?').next() {
        Some("/") => Page::Index,
        Some("/metrics") => Page::Metrics,
        _ => return Parsed::Rejected(404),
    };
    Parsed::Request(Request { is_head, page })
}

/// Returns a response, after which the connection is closed.
pub(super) fn response(code: u16, content_type: &str, body: &str, is_head: bool) -> Vec<u8> {
    let allow = if code == 405 { "Allow: GET, HEAD\r\n" } else { "" };
    let head = format!(
        "HTTP/1.1 {code} {}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n\
         X-Content-Type-Options: nosniff\r\n{allow}Connection: close\r\n\r\n",
        reason(code),
        body.len()
    );
    let body = if is_head { "" } else { body };
    [head.as_bytes(), body.as_bytes()].concat()
}

/// Returns an error response.
pub(super) fn rejection(code: u16) -> Vec<u8> {
    response(code, "text/plain; charset=utf-8", &format!("{code} {}\n", reason(code)), false)
}

fn reason(code: u16) -> &'static str {
    match code {
        200 => "OK",
        400 => "Bad Request",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        431 => "Request Header Fields Too Large",
        503 => "Service Unavailable",
        505 => "HTTP Version Not Supported",
        _ => "Error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_line(line: &str) -> Parsed {
        parse(format!("{line}\r\nHost: a\r\n\r\n").as_bytes())
    }

    #[test]
    fn requests_for_a_page_are_parsed() {
        let request = |is_head, page| Parsed::Request(Request { is_head, page });
        assert_eq!(parse_line("GET /metrics HTTP/1.1"), request(false, Page::Metrics));
        assert_eq!(parse_line("GET /metrics?name[]=up HTTP/1.0"), request(false, Page::Metrics));
        assert_eq!(parse_line("HEAD / HTTP/1.1"), request(true, Page::Index));
    }

    #[test]
    fn other_requests_are_rejected_with_the_reason() {
        for (line, code) in [
            ("POST /metrics HTTP/1.1", 405),
            ("GET /metricsx HTTP/1.1", 404),
            ("GET /../etc/passwd HTTP/1.1", 404),
            ("GET http://a/metrics HTTP/1.1", 404),
            ("GET /metrics HTTP/2.0", 505),
            ("GET /metrics", 400),
            ("GET  /metrics HTTP/1.1", 400),
            ("GET /metrics HTTP/1.1 more", 400),
            ("", 400),
        ] {
            assert_eq!(parse_line(line), Parsed::Rejected(code), "{line:?}");
        }
        assert_eq!(parse(b"GET /\xff HTTP/1.1\r\n\r\n"), Parsed::Rejected(400));
    }

    #[test]
    fn a_head_is_incomplete_until_its_end_or_the_maximum_length() {
        let whole = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        for len in 0..whole.len() {
            assert_eq!(parse(&whole[..len]), Parsed::Incomplete, "{len}");
        }
        assert_eq!(parse(&[b'x'; MAX_HEAD_LEN - 1]), Parsed::Incomplete);
        assert_eq!(parse(&[b'x'; MAX_HEAD_LEN]), Parsed::Rejected(431));
        let late_end = [&[b'x'; MAX_HEAD_LEN][..], b"\r\n\r\n"].concat();
        assert_eq!(parse(&late_end), Parsed::Rejected(431));
    }

    #[test]
    fn arbitrary_bytes_never_panic() {
        // A linear congruential generator: the same bytes in each run.
        let mut state = 1_u32;
        for len in 0..2000 {
            let mut bytes: Vec<u8> = (0..len % 64)
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (state >> 24) as u8
                })
                .collect();
            bytes.extend_from_slice(b"\r\n\r\n");
            assert!(!matches!(parse(&bytes), Parsed::Incomplete | Parsed::Request(_)));
        }
    }

    #[test]
    fn a_response_to_head_has_the_length_and_no_body() {
        let whole = String::from_utf8(response(200, "text/plain", "abc", false)).unwrap();
        let head = String::from_utf8(response(200, "text/plain", "abc", true)).unwrap();
        assert_eq!(whole, head.clone() + "abc");
        assert!(head.contains("\r\nContent-Length: 3\r\n") && head.ends_with("\r\n\r\n"), "{head}");
        assert!(String::from_utf8(rejection(405)).unwrap().contains("\r\nAllow: GET, HEAD\r\n"));
    }
}
