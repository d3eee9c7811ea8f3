//! A server: answers requests from the shards. One-sided GETs don't run its code.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use adverb::cluster::{Broker, BrokerError, Failure, Rpc, RpcEvent};

use crate::members::rpc_config;
use crate::store::Store;

/// The time after which a server thread checks whether it must stop.
const STOP_INTERVAL: Duration = Duration::from_millis(20);

/// A server, for one thread. The threads of a server share its [`Store`].
#[derive(Debug)]
pub struct Server {
    rpc: Rpc,
    store: Arc<Store>,
    reply: Vec<u8>,
}

impl Server {
    /// Creates a server, for one thread, and announces the store's memory to the peers.
    ///
    /// # Errors
    ///
    /// Returns an error if the store belongs to another cluster.
    pub fn new(mut broker: Broker, store: Arc<Store>) -> Result<Server, BrokerError> {
        broker.publish(store.arena())?;
        Ok(Server { rpc: Rpc::new(broker, rpc_config())?, store, reply: Vec::new() })
    }

    /// Answers the requests that have arrived, and returns the number of processed events.
    ///
    /// # Errors
    ///
    /// Returns an error if the device failed.
    pub fn poll(&mut self) -> Result<usize, BrokerError> {
        let Server { rpc, store, reply: bytes } = self;
        // All requests of a poll have the same time, so that the clock is read only once.
        let now = Instant::now();
        rpc.poll(|rpc, event| {
            if let RpcEvent::Request { method, bytes: request, reply, .. } = event {
                if store.handle(method, request, now, bytes) {
                    // An error means that the caller no longer waits, or that the value is longer than a message: then
                    // the call fails, because the token is dropped.
                    let _ = rpc.reply(reply, bytes);
                } else {
                    rpc.reject(reply, Failure::UnknownMethod);
                }
            }
        })
    }

    /// Serves until `stop` is set.
    ///
    /// # Errors
    ///
    /// Returns an error if the device failed.
    pub fn run(&mut self, stop: &AtomicBool) -> Result<(), BrokerError> {
        while !stop.load(Ordering::Relaxed) {
            self.rpc.wait(STOP_INTERVAL)?;
            self.poll()?;
        }
        Ok(())
    }
}
