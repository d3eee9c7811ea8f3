//! The table of an attack.

use std::fmt;

use crate::datagrams::Kind;

/// Bytes of the headers and the ICRC of a datagram's packet: base transport header, datagram header, ICRC.
pub(crate) const UD_OVERHEAD: u64 = 12 + 8 + 4;
/// Bytes of the IPv4 and UDP headers.
const IP_OVERHEAD: u64 = 20 + 8;

/// The sums of all rounds.
#[derive(Default)]
pub(crate) struct Report {
    pub(crate) rounds: u64,
    /// Probes of the well-behaved prober, all of which were answered.
    pub(crate) good_probes: u64,
    /// Hostile datagrams by kind.
    pub(crate) kinds: [Totals; Kind::ALL.len()],
    /// The largest ratio of the bytes of a probe's answers to the bytes of the probe: as messages, as UDP payload, and as
    /// IPv4 packets.
    pub(crate) max_ratios: [f64; 3],
    /// The counters of the responders: invalid, bad tags, over the rate limit.
    pub(crate) dropped: [u64; 3],
    /// Forged acknowledgements and other datagrams to the prober.
    pub(crate) to_prober: u64,
}

/// Hostile datagrams of one kind, and the answers to them.
#[derive(Clone, Copy, Default)]
pub(crate) struct Totals {
    pub(crate) sent: u64,
    pub(crate) bytes_in: u64,
    pub(crate) answers: u64,
    pub(crate) bytes_out: u64,
}

impl Report {
    /// Adds the answers to one probe.
    pub(crate) fn add_answers(&mut self, probe: &Totals) {
        let totals = [*probe, probe.with_headers(UD_OVERHEAD), probe.with_headers(UD_OVERHEAD + IP_OVERHEAD)];
        for (max, totals) in self.max_ratios.iter_mut().zip(totals) {
            *max = max.max(totals.ratio());
        }
    }
}

impl Totals {
    fn ratio(&self) -> f64 {
        self.bytes_out as f64 / self.bytes_in.max(1) as f64
    }

    /// Returns the totals with the headers of each packet.
    fn with_headers(&self, header: u64) -> Totals {
        let Totals { sent, bytes_in, answers, bytes_out } = *self;
        Totals { bytes_in: bytes_in + sent * header, bytes_out: bytes_out + answers * header, ..*self }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:26} {:>9} {:>11} {:>9} {:>11}  out/in",
            "to the responder", "datagrams", "bytes in", "answers", "bytes out"
        )?;
        let mut all = Totals::default();
        let row = |f: &mut fmt::Formatter<'_>, name: &str, row: &Totals| {
            let Totals { sent, bytes_in, answers, bytes_out } = row;
            writeln!(
                f,
                "{name:26} {sent:>9} {bytes_in:>11} {answers:>9} {bytes_out:>11}  {:6.3}",
                row.ratio()
            )
        };
        for (kind, totals) in Kind::ALL.iter().zip(&self.kinds) {
            row(f, kind.name(), totals)?;
            all.sent += totals.sent;
            all.bytes_in += totals.bytes_in;
            all.answers += totals.answers;
            all.bytes_out += totals.bytes_out;
        }
        row(f, "all", &all)?;
        row(f, "all, as UDP payload", &all.with_headers(UD_OVERHEAD))?;
        row(f, "all, as IPv4 packets", &all.with_headers(UD_OVERHEAD + IP_OVERHEAD))?;
        let [invalid, bad_tags, rate_limited] = self.dropped;
        writeln!(
            f,
            "dropped by the responders: {invalid} invalid, {bad_tags} with a wrong tag, {rate_limited} over the rate limit"
        )?;
        let [messages, payload, packets] = self.max_ratios;
        writeln!(
            f,
            "answers to one probe: at most {messages:.3} of its bytes; with headers, {payload:.3} as UDP payload, \
             {packets:.3} as IPv4 packets"
        )?;
        write!(
            f,
            "{} datagrams to the prober, all dropped; {} rounds, {} probes of the well-behaved prober, all answered",
            self.to_prober, self.rounds, self.good_probes
        )
    }
}
