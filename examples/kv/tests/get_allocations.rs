//! A one-sided GET allocates nothing at the client. Alone in its process, whose allocations are counted.

#[path = "../../../crates/adverb/tests/common/counting.rs"]
mod counting;

use std::sync::Arc;
use std::time::{Duration, Instant};

use adverb::cluster::{Broker, BrokerConfig, PeerId};
use adverb::verbs::SoftDevice;
use adverb_kv::client::{Client, ClientConfig, Outcome};
use adverb_kv::load::key_of;
use adverb_kv::members::{MESSAGE_SIZE, NamedAddr};
use adverb_kv::server::Server;
use adverb_kv::store::{Store, StoreConfig};

const KEYS: u64 = 200;
const WINDOW: usize = 32;

#[test]
fn gets_allocate_nothing() {
    // One thread polls the server and the client, so that nothing else is counted.
    let domain = SoftDevice::loopback().open().unwrap().create_protection_domain().unwrap();
    let broker_config = BrokerConfig { slot_size: MESSAGE_SIZE, ..BrokerConfig::default() };
    let [mut at_server, mut at_client] =
        [1, 2].map(|epoch| Broker::new(&domain, broker_config, 1, epoch).unwrap());
    let peer = PeerId(0);
    let (offer_of_server, offer_of_client) =
        (at_server.prepare(peer).unwrap(), at_client.prepare(peer).unwrap());
    at_server.establish(peer, &offer_of_client).unwrap();
    at_client.establish(peer, &offer_of_server).unwrap();
    let store_config = StoreConfig { memory: 4 << 20, buckets: 256, ..StoreConfig::default() };
    let store = Arc::new(Store::new(&store_config, 1, 0, 1, &[domain]).unwrap());
    for key in 0..KEYS {
        store.put(&key_of(key), &[key as u8; 300], Instant::now()).unwrap();
    }
    let mut server = Server::new(at_server, Arc::clone(&store)).unwrap();
    let servers = [NamedAddr { name: "a".to_owned(), addr: String::new() }];
    let config = ClientConfig { window: WINDOW, cached_words: 64, ..ClientConfig::default() };
    let mut client = Client::new(at_client, &servers, config).unwrap();
    while !client.is_available(0) {
        server.poll().unwrap();
        client.wait(Duration::ZERO).unwrap();
        client.poll(|_, _| {}).unwrap();
    }
    counting::assert_no_allocations("1000 GETs", 4, || {
        let (mut started, mut ended) = (0, 0);
        while ended < 1000 {
            while started < 1000 && client.outstanding_count() < WINDOW {
                client.get(&key_of(started % KEYS), started % KEYS).unwrap();
                started += 1;
            }
            server.poll().unwrap();
            let polled = client.poll(|key, result| {
                assert_eq!(result, Ok(Outcome::Value(&[key as u8; 300])));
                ended += 1;
            });
            polled.unwrap();
        }
    });
    assert!(client.stats().cached > 0 && client.stats().bucket_reads > 0);
}
