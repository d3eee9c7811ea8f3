//! The members of the cluster: servers, and then clients.

use std::net::TcpListener;
use std::str::FromStr;
use std::time::Duration;

use adverb::cluster::{BrokerConfig, Cluster, ClusterBuilder, ClusterError, Member, RpcConfig};
use adverb::verbs::ConnectOptions;

/// The maximum number of requests of a client thread that are outstanding at a server.
pub const MAX_WINDOW: usize = 256;
/// The maximum number of READs that the software NIC has outstanding.
pub const MAX_SOFT_READS: u8 = 128;
/// The size of a message, which limits the items that are stored and requested by RPC.
pub const MESSAGE_SIZE: u32 = 8192;

/// The names and addresses of all members, and the options of connections, which all members must agree on.
#[derive(Clone, Default, Debug)]
pub struct Members {
    /// The servers. Their order determines which server has a key.
    pub servers: Vec<NamedAddr>,
    /// The clients.
    pub clients: Vec<NamedAddr>,
    /// The options of the connections. `max_rd_atomic` is the maximum number of READs that the NIC of a client's thread has
    /// outstanding at a server; the others wait. RDMA NICs usually allow 16, and the software NIC allows [`MAX_SOFT_READS`].
    pub connect_options: ConnectOptions,
}

/// A member's name and address: `NAME=IP:PORT`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamedAddr {
    /// The name.
    pub name: String,
    /// The address.
    pub addr: String,
}

impl FromStr for NamedAddr {
    type Err = String;

    fn from_str(text: &str) -> Result<NamedAddr, String> {
        match text.split_once('=') {
            Some((name, addr)) if !name.is_empty() && addr.contains(':') => {
                Ok(NamedAddr { name: name.to_owned(), addr: addr.to_owned() })
            }
            _ => Err(format!("`{text}` is no NAME=IP:PORT")),
        }
    }
}

impl Members {
    /// Joins the cluster as the member with this name, with `threads` threads, the same number for all members.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`ClusterBuilder::join`].
    pub fn join(&self, name: &str, threads: usize) -> Result<Cluster, ClusterError> {
        self.builder(threads).join(name)
    }

    /// Joins the cluster with a listener that is bound already.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`ClusterBuilder::join`].
    pub fn join_with(
        &self,
        name: &str,
        threads: usize,
        listener: TcpListener,
    ) -> Result<Cluster, ClusterError> {
        self.builder(threads).listener(listener).join(name)
    }

    /// Returns a builder of the cluster, with its members and options.
    pub fn builder(&self, threads: usize) -> ClusterBuilder {
        let config = BrokerConfig {
            slot_size: MESSAGE_SIZE,
            queue_depth: MAX_WINDOW as u16,
            send_queue_depth: MAX_WINDOW as u16,
            // A client detects a lost server when this time has passed and the NIC's retries have failed.
            keepalive: Some(Duration::from_millis(500)),
            ..BrokerConfig::default()
        };
        let mut builder = Cluster::builder().threads(threads).config(config);
        builder = builder.connect_options(self.connect_options);
        for NamedAddr { name, addr } in self.servers.iter().chain(&self.clients) {
            builder = builder.member(Member::new(name.clone(), addr.clone()));
        }
        builder
    }
}

/// Returns the limits of calls: as many as a broker has message slots.
pub(crate) fn rpc_config() -> RpcConfig {
    RpcConfig { max_calls: 64, max_requests: 64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_has_a_name_and_an_address() {
        let member: NamedAddr = "a=127.0.0.1:7471".parse().unwrap();
        assert_eq!((&member.name[..], &member.addr[..]), ("a", "127.0.0.1:7471"));
        assert!("127.0.0.1:7471".parse::<NamedAddr>().is_err());
        assert!("=127.0.0.1:7471".parse::<NamedAddr>().is_err());
        assert!("a=127.0.0.1".parse::<NamedAddr>().is_err());
    }
}
