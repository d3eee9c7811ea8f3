//! Greetings that are encoded by hand, as docs/protocol.md describes them.

use adverb::verbs::Endpoint;

/// Returns the greeting of a side with this endpoint, nonce and proof.
pub(crate) fn greeting(
    endpoint: Option<Endpoint>,
    nonce: Option<[u8; 32]>,
    proof: Option<[u8; 32]>,
) -> Vec<u8> {
    let mut body = Vec::new();
    if let Some(endpoint) = endpoint {
        body.extend_from_slice(&endpoint.gid.bytes());
        body.extend_from_slice(&endpoint.lid.to_le_bytes());
        body.extend_from_slice(&endpoint.mtu.to_le_bytes());
        body.extend_from_slice(&endpoint.qpn.get().to_le_bytes());
        body.extend_from_slice(&endpoint.psn.get().to_le_bytes());
    }
    let parts =
        u8::from(endpoint.is_some()) | u8::from(nonce.is_some()) << 1 | u8::from(proof.is_some()) << 2;
    body.extend(nonce.into_iter().chain(proof).flatten());
    [b"adverb\r\n\x02\x00\x01", &[parts, body.len() as u8, 0, 0, 0][..], &body].concat()
}
